//! The house itself: imports between modules, the words of the prose, code that the compiler must reject, and the tools of the
//! tests.

mod api;
mod compile_fail;
mod harness;
mod layers;
mod oracle;
mod prose;
mod run;
mod unpolled;
