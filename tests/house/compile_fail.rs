//! Cases that the compiler must refuse: two flows of control with one handle; and handles that are not used. Each case has a twin that
//! differs in little and compiles, so that a typing error does not count as a refusal.
//!
//! The compiler is run on each case with the libraries that this program is linked with, so that nothing is built once
//! more: where `--workspace` built them, `LEASEHOLD_WORKSPACE` says so. With `LEASEHOLD_MESSAGES=write` its messages are written to the files that they are compared with.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const CASES: &str = "tests/house/ui";

fn cases(kind: &str) -> BTreeSet<String> {
    fs::read_dir(root().join(CASES).join(kind))
        .expect("the cases are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the libraries that this program is linked with; cargo has just built them, and reports where they are.
struct Libraries(String);

impl Libraries {
    fn find() -> Self {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["test", "--no-run", "--quiet", "--message-format=json", "--test", "house"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        if env::var_os("LEASEHOLD_WORKSPACE").is_some() {
            cargo.arg("--workspace");
        }
        // Cargo gives these to what it runs; some build scripts look at them, and would run once more.
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&name);
            }
        }
        let output = cargo.current_dir(root()).stderr(Stdio::inherit()).output();
        let output = output.expect("cargo can be started");
        assert!(output.status.success(), "cargo cannot build this very program");
        Self(String::from_utf8(output.stdout).expect("JSON"))
    }

    #[track_caller]
    fn path(&self, library: &str) -> PathBuf {
        let file = format!("lib{library}-");
        let mut paths = self.0.split('"').filter(|text| text.ends_with(".rlib")).map(Path::new);
        let is_it = |path: &&Path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&file))
        };
        paths.find(is_it).unwrap_or_else(|| panic!("no {library} in {}", self.0)).to_owned()
    }

    /// Returns the compiler's message on a case; `None` if it accepts the case.
    fn refusal(&self, case: &str) -> Option<String> {
        let (leasehold, tokio) = (self.path("leasehold"), self.path("tokio"));
        let out = tempfile::tempdir().expect("a temporary directory");
        let mut search = vec![leasehold.parent().expect("a directory")];
        search.extend(tokio.parent());
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.current_dir(root()).args(["--edition", "2024", "--emit", "metadata"]);
        rustc.args(["--color", "never", "--out-dir"]).arg(out.path());
        for dir in search {
            rustc.arg("-L").arg(format!("dependency={}", dir.display()));
        }
        rustc.arg("--extern").arg(format!("leasehold={}", leasehold.display()));
        rustc.arg("--extern").arg(format!("tokio={}", tokio.display()));
        let output =
            rustc.arg(format!("{CASES}/{case}.rs")).output().expect("rustc can be started");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(output.status.success() || !said.contains("internal compiler error"), "{said}");
        (!output.status.success()).then(|| without_summary(&said))
    }
}

/// What says nothing about the case goes.
fn without_summary(said: &str) -> String {
    let summary = ["error: aborting due to", "For more information about this error"];
    let lines = said.lines().filter(|line| !summary.iter().any(|start| line.starts_with(start)));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.trim().to_owned() + "\n"
}

#[test]
fn one_handle_has_one_caller_and_is_used() {
    let names = cases("refused");
    assert_eq!(names, cases("accepted"), "each has its twin");
    assert!(!names.is_empty());
    let libraries = Libraries::find();
    for name in names {
        let refusal = libraries.refusal(&format!("accepted/{name}"));
        assert_eq!(refusal, None, "accepted/{name} is refused");
        let refusal = libraries.refusal(&format!("refused/{name}"));
        let refusal = refusal.unwrap_or_else(|| panic!("refused/{name} is accepted"));
        let file = root().join(CASES).join(format!("refused/{name}.stderr"));
        if env::var_os("LEASEHOLD_MESSAGES").is_some_and(|value| value == "write") {
            fs::write(&file, &refusal).expect("the file can be written");
        }
        let expected = fs::read_to_string(&file).expect("the message is there");
        assert_eq!(refusal, expected, "refused/{name} is refused for another reason");
    }
}
