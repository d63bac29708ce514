//! `tests/run` on a machine that has nothing.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// What any machine has.
const TOOLS: [&str; 6] = ["bash", "sh", "env", "dirname", "uname", "id"];

/// Makes a directory of programs: the tools, and these, which print how they were called.
fn programs(stubs: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = env::var_os("PATH").expect("a PATH");
    for tool in TOOLS {
        let found = env::split_paths(&path).map(|dir| dir.join(tool)).find(|file| file.exists());
        symlink(found.expect(tool), dir.path().join(tool)).expect("a link");
    }
    for stub in stubs {
        let file = dir.path().join(stub);
        fs::write(&file, format!("#!/bin/sh\necho \"{stub} $*\"\n")).expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("executable");
    }
    dir
}

fn run(programs: &Path) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run");
    let mut run = Command::new(script);
    run.args(["--test", "engine"]).env_clear().env("PATH", programs);
    run.output().expect("bash is there")
}

#[test]
fn tests_run_names_all_that_is_missing_at_once() {
    let programs = programs(&[]);
    let output = run(programs.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    for missing in
        ["https://rustup.rs", "a C compiler", "redis-server", "openssl", "ZOOKEEPER_CLASSPATH"]
    {
        assert!(said.contains(missing), "{missing}: {said}");
    }
    if cfg!(target_os = "linux") {
        assert!(said.contains("iproute2") && said.contains("libssl-dev"), "{said}");
    }
}

#[test]
fn tests_run_says_what_it_installs_and_does_it_in_one_call() {
    let programs = programs(&["cargo", "apt-get", "sudo"]);
    let output = run(programs.path());
    let (did, said) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let line = said.lines().next().unwrap_or_default();
    for package in ["gcc", "libssl-dev", "redis-server", "openssl", "libzookeeper-java"] {
        assert!(line.contains(package), "{package}: {said}");
    }
    assert_eq!(did.matches(" install -qy ").count(), 1, "{did}");
    // The stub has installed nothing, and that is not taken for success.
    assert!(!output.status.success() && !did.contains("cargo test"), "{did} {said}");
    assert!(said.contains("still missing"), "{said}");
}
