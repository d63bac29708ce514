//! The house itself: its rules, with `debts.txt` for what still breaks them, the words of the prose, code that the compiler
//! must reject, and the tools of the tests.

mod api;
mod circles;
mod compile_fail;
mod debts;
mod harness;
mod layers;
mod oracle;
mod prose;
mod reached;
mod rules;
mod run;
mod source;
mod unpolled;
