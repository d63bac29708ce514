//! Rules of the house that a file keeps or breaks by itself. `circles.rs` has those between rooms.

use crate::debts::{Debt, settle};
use crate::source::{Source, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Applies a rule to each file below src/.
fn apply(rule: &str, check: impl Fn(&Source) -> Vec<String>) {
    let sources = sources();
    assert!(sources.len() > 100, "{} files: mend this test", sources.len());
    let debts = sources.iter().flat_map(|source| {
        let path = &source.path;
        check(source).into_iter().map(move |text| Debt::new(format!("src/{path}: {text}")))
    });
    settle(rule, debts.collect());
}

/// The pure machines take the time and all else as values.
#[test]
fn debts_of_the_machines() {
    assert!(sources().iter().any(|source| source.path.starts_with("engine/machine/")));
    apply("the outside named in engine/machine", impure);
}

/// What is neither a value nor a rule: runtimes, clocks, stores, wakers, input and output.
const OUTSIDE: &[&str] = &["tokio", "Clock", "Store", "Waker", "Mutex"];

fn impure(source: &Source) -> Vec<String> {
    if !source.path.starts_with("engine/machine/") {
        return Vec::new();
    }
    let all = 0..source.tokens.len();
    let words = source.tokens.iter().filter(|token| token.is_ident).map(|token| &*token.text);
    let mut found: BTreeSet<_> = words.filter(|word| OUTSIDE.contains(word)).collect();
    let paths = source.paths(all);
    for path in &paths {
        for (at, part) in path.iter().enumerate() {
            let next = path.get(at + 1).map_or("", String::as_str);
            // A shared value is still a value.
            let is_value = part == "sync" && ["Arc", "Weak"].contains(&next);
            let is_std =
                at == 1 && path[0] == "std" && ["fs", "io", "net", "thread"].contains(&&**part);
            if part == "sync" && !is_value || is_std {
                found.insert(part);
            }
        }
    }
    found.into_iter().map(|word| format!("names {word}")).collect()
}

#[test]
fn machines_that_are_not_pure_are_found() {
    let check = |text: &str| impure(&Source::parse("engine/machine/name.rs", text));
    assert_eq!(check("use tokio::time::Instant;"), ["names tokio"]);
    assert_eq!(
        check("use crate::{store::Store, util::sync::Mutex};"),
        ["names Mutex", "names Store", "names sync"]
    );
    assert_eq!(
        check("fn f(clock: &dyn Clock, w: std::task::Waker) {}"),
        ["names Clock", "names Waker"]
    );
    assert_eq!(check("use std::sync::atomic::AtomicU8; use std::io;"), ["names io", "names sync"]);
    assert_eq!(check("use std::sync::{Arc, Weak};\n/// As tokio.\nfn f() {}"), [""; 0]);
    assert_eq!(check("#[cfg(test)]\nmod tests { use tokio::x; }"), [""; 0]);
    assert_eq!(impure(&Source::parse("engine/run.rs", "use tokio::time;")), [""; 0]);
}

/// The clients of other crates stay behind a door.
#[test]
fn debts_of_fred() {
    assert!(sources().iter().any(|source| source.path.starts_with("store/redis/link/")));
    apply("fred named outside of link and topology", names_fred);
}

fn names_fred(source: &Source) -> Vec<String> {
    let inside = ["store/redis/link/", "store/redis/topology/"];
    let is_inside = inside.iter().any(|room| source.path.starts_with(room));
    let names = source.tokens.iter().any(|token| token.is_ident && token.text == "fred");
    if names && !is_inside { vec!["names fred".to_owned()] } else { Vec::new() }
}

#[test]
fn names_of_fred_are_found() {
    let check = |path: &str| names_fred(&Source::parse(path, "use fred::clients::Client;"));
    assert_eq!(check("store/redis/mod.rs"), ["names fred"]);
    assert_eq!(check("store/redis/link/node.rs"), [""; 0]);
    assert_eq!(names_fred(&Source::parse("engine/run.rs", "// As fred does.\n")), [""; 0]);
}

/// The methods of a type stand in the file that defines it.
#[test]
fn debts_of_methods_elsewhere() {
    apply("methods outside the file of their type", methods_elsewhere);
}

fn methods_elsewhere(source: &Source) -> Vec<String> {
    let methods =
        source.functions.iter().filter(|one| one.of_trait.is_none() && !one.is_declaration);
    methods
        .filter_map(|method| {
            let of = method.of.as_ref().filter(|of| !source.types.contains(*of))?;
            Some(format!("{of}::{}", method.name))
        })
        .collect()
}

#[test]
fn methods_outside_the_file_of_their_type_are_found() {
    let check = |text: &str| methods_elsewhere(&Source::parse("engine/hold/release.rs", text));
    assert_eq!(
        check("impl Hold { fn a() {} } impl<T: X> super::Core<T> { pub fn b(&self) {} }"),
        ["Hold::a", "Core::b"]
    );
    let own =
        "struct Hold<T>(T); enum Core {} impl<T> Hold<T> { fn a() {} } impl Core { fn b() {} }";
    assert_eq!(check(own), [""; 0]);
    assert_eq!(
        check("impl Drop for Hold { fn drop(&mut self) {} } trait A { fn a(&self) {} }"),
        [""; 0]
    );
}

/// What belongs together has a struct with a name.
#[test]
fn debts_of_tuples_as_parameters() {
    apply("tuples as parameters", tuple_parameters);
}

fn tuple_parameters(source: &Source) -> Vec<String> {
    // The trait decides what its implementors take.
    let own = source.functions.iter().filter(|function| function.of_trait.is_none());
    own.flat_map(|function| {
        let tuples = function.parameters.iter().filter(|parameter| parameter.is_tuple);
        tuples.map(|tuple| format!("{}({})", function.name, tuple.text))
    })
    .collect()
}

#[test]
fn tuples_as_parameters_are_found() {
    let check = |text: &str| tuple_parameters(&Source::parse("engine/run.rs", text));
    assert_eq!(
        check(
            "impl A { fn f(&self, (now, jitter): (Instant, f64), b: u8) {} } fn g(a: &mut (A, B)) { fn h(c: (D,)) {} }"
        ),
        ["f((now, jitter): (Instant, f64))", "g(a: &mut (A, B))", "h(c: (D,))"]
    );
    assert_eq!(check("trait T { fn f(a: (A, B)); }"), ["f(a: (A, B))"]);
    assert_eq!(check("fn f(a: A, b: Vec<(A, B)>, c: ()) -> (A, B) {}"), [""; 0]);
    assert_eq!(check("impl From<(A, B)> for C { fn from(pair: (A, B)) -> C {} }"), [""; 0]);
}

/// A line for each thing that is set; several in one line only make a file shorter.
#[test]
fn debts_of_several_variables_in_one_let() {
    apply("several variables in one let", lets_of_tuples);
}

fn lets_of_tuples(source: &Source) -> Vec<String> {
    let token = |at: usize| source.word(at);
    let mut found = Vec::new();
    for at in (0..source.tokens.len()).filter(|at| token(*at) == "let" && token(at + 1) == "(") {
        let pattern = at + 1..source.close(at + 1) + 1;
        let mut next = pattern.end;
        if token(next) == ":" {
            // Its type; a tuple, as the pattern is one.
            next = if token(next + 1) == "(" { source.close(next + 1) + 1 } else { next };
        }
        if token(next) != "=" || token(next + 1) != "(" {
            continue;
        }
        let end = source.close(next + 1);
        let has_comma = top_commas(source, next + 2..end) > 0;
        if has_comma && token(end + 1) == ";" {
            let inside = |function: &&crate::source::Function| function.body.contains(&at);
            let function = source.functions.iter().filter(inside).min_by_key(|one| one.body.len());
            let name = function.map_or("", |function| &function.name);
            found.push(format!("{name}: let {}", source.joined(pattern)));
        }
    }
    found
}

fn top_commas(source: &Source, range: std::ops::Range<usize>) -> usize {
    let mut depth = 0;
    let mut commas = 0;
    for token in &source.tokens[range] {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            "," if depth == 0 => commas += 1,
            _ => {}
        }
    }
    commas
}

#[test]
fn lets_of_several_variables_are_found() {
    let check = |text: &str| lets_of_tuples(&Source::parse("engine/run.rs", text));
    assert_eq!(check("fn f() { let (a, mut b) = (x, y.z()); }"), ["f: let (a, mut b)"]);
    assert_eq!(check("fn f() { let (a, b): (A, B) = (x(), [1, 2]); }"), ["f: let (a, b)"]);
    assert_eq!(
        check("impl A { fn g(&self) { if b { let (a, _) = (x, y); } } }"),
        ["g: let (a, _)"]
    );
    assert_eq!(
        check("fn f() { let (a, b) = pair(); let (a, b) = (x.f)(1, 2); let c = (x, y); }"),
        [""; 0]
    );
    assert_eq!(
        check("fn f() { if let (Some(a), b) = (x, y) {} let (a, b) = (pair(1, 2)); }"),
        [""; 0]
    );
    assert_eq!(check("fn f() { let (Some(a), b) = (x, y) else { return }; }"), [""; 0]);
}

/// The form of a reason, in a comment directly above the trait.
const REASON: &str = "// One implementor: ";

/// A trait is a promise to choose between implementors, and a `dyn` of it the choice while the program runs.
#[test]
fn debts_of_traits_with_one_implementor() {
    let sources = sources();
    assert!(sources.iter().any(|source| !source.traits.is_empty()), "mend this test");
    settle("traits with one implementor", lone_traits(sources));
}

fn lone_traits(sources: &[Source]) -> Vec<Debt> {
    let mut implementors: BTreeMap<&str, usize> = BTreeMap::new();
    for name in sources.iter().flat_map(|source| &source.implemented) {
        *implementors.entry(name).or_default() += 1;
    }
    let mut found = Vec::new();
    for source in sources {
        for item in &source.traits {
            let count = implementors.get(&*item.name).copied().unwrap_or_default();
            let reason = source.above(item).into_iter().find_map(|line| line.strip_prefix(REASON));
            let has_reason = reason.is_some_and(|reason| !reason.trim().is_empty());
            if count < 2 && !has_reason {
                let help =
                    format!("add an implementor or, above it, a comment {REASON}<the reason>");
                let line = format!("src/{}: {}", source.path, item.name);
                found.push(Debt { line, help });
            }
            if count > 1 && has_reason {
                let line = format!("src/{}: {} has {count} by now", source.path, item.name);
                found.push(Debt { line, help: format!("remove the comment {REASON}..") });
            }
        }
    }
    found
}

#[test]
fn traits_with_one_implementor_are_found() {
    let check = |text: &str| {
        let sources =
            [Source::parse("engine/a.rs", text), Source::parse("b.rs", "impl a::T for B {}")];
        lone_traits(&sources).into_iter().map(|debt| debt.line).collect::<Vec<_>>()
    };
    assert_eq!(check("pub trait T {}"), ["src/engine/a.rs: T"]);
    assert_eq!(check("pub trait T {} impl<X: Y> T for X {}"), [""; 0]);
    assert_eq!(check("pub trait T {}\n#[cfg(test)]\nimpl T for X {}"), ["src/engine/a.rs: T"]);
    assert_eq!(
        check("/// Docs.\n// One implementor: users have others.\n#[x]\npub(crate) trait T {}"),
        [""; 0]
    );
    assert_eq!(check("// One implementor: \npub trait T {}"), ["src/engine/a.rs: T"]);
    assert_eq!(
        check("// One implementor: why.\n\nfn f() {}\npub trait T {}"),
        ["src/engine/a.rs: T"]
    );
    assert_eq!(
        check("// One implementor: why.\ntrait T {}\nimpl T for A {}"),
        ["src/engine/a.rs: T has 2 by now"]
    );
}

/// A file is an idea, not a length; this many lines of code are no longer one.
#[test]
fn files_stay_short_before_their_tests() {
    for source in sources() {
        let lines = source.lines();
        assert!(lines <= 700, "src/{} has {lines} lines of code; split it", source.path);
    }
}

/// Prints the size of the engine, with `--nocapture`. Lines are those with code on them.
#[test]
fn size_of_the_engine_is_counted() {
    let is_engine = |source: &&Source| source.path.starts_with("engine/");
    let files: Vec<_> = sources().iter().filter(is_engine).collect();
    assert!(!files.is_empty(), "no file is in engine/; mend this test");
    let lines: usize = files.iter().map(|source| source.lines()).sum();
    let functions: Vec<_> = files.iter().flat_map(|source| &source.functions).collect();
    let visible = functions.iter().filter(|function| function.seen_in.is_some()).count();
    println!(
        "the engine: {lines} lines of code in {} files; {visible} of {} functions ({:.0} %) are visible outside their file",
        files.len(),
        functions.len(),
        100.0 * visible as f64 / functions.len() as f64
    );
}
