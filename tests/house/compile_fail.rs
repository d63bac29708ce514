//! What the compiler refuses: two flows of control with one handle. Each case has a twin that
//! differs in little and compiles, so that no slip of the pen passes for a refusal.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn cases(dir: &str) -> BTreeSet<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui").join(dir);
    fs::read_dir(dir)
        .expect("the cases are there")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect()
}

#[test]
fn one_handle_is_one_flow_of_control() {
    assert_eq!(cases("refused"), cases("accepted"), "each has its twin");
    let tests = trybuild::TestCases::new();
    tests.compile_fail("tests/ui/refused/*.rs");
    tests.pass("tests/ui/accepted/*.rs");
}
