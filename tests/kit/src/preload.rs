//! Libraries for LD_PRELOAD, by which a test changes what the system shows to a program.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A library that makes a process fork when a signal tells it to.
pub const FORKS: &[u8] = include_bytes!("forks.c");

/// A library that keeps a process from ending by `exit` and by `abort`.
pub const HANGS: &[u8] = include_bytes!("hangs.c");

/// Compiles C into a shared library.
pub fn compile(source: &[u8], library: &Path) {
    let mut compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-x", "c", "-", "-o"])
        .arg(library)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler, cc: Rust links with one, and these tests compile a little C");
    let mut input = compiler.stdin.take().expect("it was asked for");
    input.write_all(source).expect("cc reads");
    drop(input);
    let status = compiler.wait().expect("cc can be waited for");
    assert!(status.success(), "cc cannot compile {}: {status}", library.display());
}
