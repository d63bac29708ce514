//! The rare states, and `tests/kit/reached.txt`, which says where each must be reached.

use kit::reached::{Counts, PARTS, Reach, wanted};
use std::fs;
use std::path::Path;

#[test]
fn each_rare_state_has_one_line_in_its_order() {
    let states = leasehold::testing::reached();
    let states: Vec<&str> = states.iter().map(|state| &*state.name).collect();
    let lines: Vec<&str> = wanted().into_iter().map(|(state, _)| state).collect();
    assert_eq!(
        lines, states,
        "tests/kit/reached.txt has a line for each state of src/util/reached.rs"
    );
    assert!(states.len() >= 40);
}

#[test]
fn rare_states_name_runs_and_tests_that_are_there() {
    for (state, reach) in wanted() {
        match reach {
            Reach::In(parts) => {
                let wrong = parts.iter().find(|part| !PARTS.contains(part));
                assert_eq!(wrong, None, "{state}: there is no such run");
            }
            Reach::Test(test) => {
                let (file, name) = test.split_once(' ').unwrap_or((test, ""));
                let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
                let text = fs::read_to_string(&file).unwrap_or_default();
                let is_there = text.contains(&format!("fn {name}("));
                assert!(is_there, "{state}: there is no test {name:?} in {}", file.display());
                // `Must::reach` for it, or in src/ its count.
                assert!(text.contains(state), "{state}: {name} does not look for it");
            }
        }
    }
}

#[test]
fn state_that_a_run_must_reach_is_missed() {
    let (state, parts) = wanted()
        .into_iter()
        .find_map(|(state, reach)| match reach {
            Reach::In(parts) if !parts.is_empty() => Some((state, parts)),
            _ => None,
        })
        .expect("some run must reach some state");
    let mut counts = Counts::default();
    for (state, _) in wanted() {
        counts.add(state, 1);
    }
    assert_eq!(counts.missing(parts[0]), [""; 0]);
    let mut others = Counts::default();
    let rest = wanted().into_iter().filter(|(other, _)| *other != state);
    rest.for_each(|(other, _)| others.add(other, 1));
    assert_eq!(others.missing(parts[0]), [state]);
}
