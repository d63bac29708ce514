//! The house itself: who may import whom, what the compiler refuses, and whether the tools of the tests can be relied on.

mod api;
mod compile_fail;
mod harness;
mod layers;
mod oracle;
