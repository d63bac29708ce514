//! The rooms of a folder form no circle, neither by what they import nor by the methods that they call. Rooms are the
//! folders and files of a folder that has folders. In any other folder files may know each other.

use crate::debts::{Debt, settle};
use crate::source::{Function, Module, Parameter, Source, absolute, sources};
use std::collections::{BTreeMap, BTreeSet};

/// Names of methods that the standard library and other crates have too. Where the type of a value is not known, a call of
/// one of these says nothing.
const FOREIGN: &str = "\
    abort add all any append as_str borrow build cancel change changed changes children clear \
    clone close code command complete connect contains count data delay drain elapsed end \
    enter entry extend find finish first flush get get_or_insert_with host id insert inside \
    is_closed is_empty is_enabled is_finished is_ready iter join keys kind label last len link \
    listen load lock map max merge message min name next notify now open path poll pop port \
    position publish push quit read recv release remaining remove replace reset resize retain \
    role run saturating_duration_since send session set sleep_until source split start state \
    status stop store subscribe swap take text update value values version wait wake watch \
    words write";

#[test]
fn debts_of_circles() {
    let arrows = arrows(sources());
    assert!(arrows.len() > 100, "{} arrows between rooms: mend this test", arrows.len());
    settle("circles of rooms", circles(&arrows));
}

/// From one room of a folder to another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Arrow {
    folder: Module,
    from: String,
    to: String,
}

/// For each arrow an import and a call that make it.
#[derive(Default)]
struct Reason {
    import: Option<String>,
    call: Option<String>,
}

fn circles(arrows: &BTreeMap<Arrow, Reason>) -> Vec<Debt> {
    let leads_back = |arrow: &&Arrow| {
        let mut reached = BTreeSet::new();
        let mut next = vec![&arrow.to];
        while let Some(room) = next.pop() {
            let further =
                arrows.keys().filter(|one| one.folder == arrow.folder && one.from == *room);
            next.extend(further.map(|one| &one.to).filter(|to| reached.insert(*to)));
        }
        reached.contains(&arrow.from)
    };
    arrows
        .keys()
        .filter(leads_back)
        .map(|arrow| {
            let reason = &arrows[arrow];
            let by = match (&reason.import, &reason.call) {
                (Some(_), Some(_)) => "imports, calls",
                (Some(_), None) => "imports",
                _ => "calls",
            };
            let folder = [&["src".to_owned()], &arrow.folder[..]].concat().join("/");
            let help = reason.import.iter().chain(&reason.call).cloned().collect::<Vec<_>>();
            Debt {
                line: format!("{folder}: {} -> {} ({by})", arrow.from, arrow.to),
                help: help.join("; "),
            }
        })
        .collect()
}

fn arrows(sources: &[Source]) -> BTreeMap<Arrow, Reason> {
    let house = House::new(sources);
    let mut arrows: BTreeMap<Arrow, Reason> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.module.is_empty()) {
        for path in source.paths(0..source.tokens.len()) {
            let Some(to) = house.module_of(source, &path) else { continue };
            if let Some(arrow) = house.arrow(&source.module, &to) {
                let reason = format!("{} names {}", source.path, path.join("::"));
                arrows.entry(arrow).or_default().import.get_or_insert(reason);
            }
        }
        for call in house.calls(source) {
            if let Some(arrow) = house.arrow(&source.module, &call.to.module) {
                let reason = format!("{} calls {} of {}", source.path, call.name, call.to.path);
                arrows.entry(arrow).or_default().call.get_or_insert(reason);
            }
        }
    }
    arrows
}

/// What the files define.
struct House<'a> {
    modules: BTreeMap<&'a [String], &'a Source>,
    folders: BTreeSet<&'a [String]>,
    /// The methods by their names.
    methods: BTreeMap<&'a str, Vec<Method<'a>>>,
    /// The types in the type of a field.
    fields: BTreeMap<(TypeName, &'a str), Vec<TypeName>>,
}

/// A type or trait of the crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TypeName {
    module: Module,
    name: String,
}

struct Method<'a> {
    function: &'a Function,
    source: &'a Source,
    of: Option<TypeName>,
}

struct Call<'a> {
    name: String,
    to: &'a Source,
}

impl<'a> House<'a> {
    fn new(sources: &'a [Source]) -> Self {
        let above = |source: &'a Source| (0..source.module.len()).map(|n| &source.module[..n]);
        // A folder of folders; a file beside a folder of its name is that folder's `mod.rs`.
        let folders: BTreeSet<_> = sources.iter().flat_map(above).collect();
        let has_folders = |folder: &&&[String]| {
            folders.iter().any(|one| one.len() == folder.len() + 1 && one.starts_with(folder))
        };
        let mut house = Self {
            modules: sources.iter().map(|one| (&one.module[..], one)).collect(),
            folders: folders.iter().filter(has_folders).copied().collect(),
            methods: BTreeMap::new(),
            fields: BTreeMap::new(),
        };
        for source in sources {
            for function in source.functions.iter().filter(|function| function.of.is_some()) {
                let of = function.of.as_ref().map(std::slice::from_ref);
                let of = of.and_then(|of| house.type_named(source, of));
                let method = Method { function, source, of };
                house.methods.entry(&function.name).or_default().push(method);
            }
            for ((of, field), made_of) in &source.fields {
                let of = TypeName { module: source.module.clone(), name: of.clone() };
                let made_of = house.types_named(source, made_of);
                house.fields.insert((of, field), made_of);
            }
        }
        house
    }

    fn arrow(&self, from: &[String], to: &[String]) -> Option<Arrow> {
        let shared = from.iter().zip(to).take_while(|(one, other)| one == other).count();
        // A file above a folder is not one of its rooms.
        let (room, other) = (from.get(shared)?, to.get(shared)?);
        let folder = self.folders.get(&from[..shared])?;
        Some(Arrow { folder: folder.to_vec(), from: room.clone(), to: other.clone() })
    }

    /// The file that defines what a path leads to, through the imports of the files on its way.
    fn module_of(&self, source: &Source, path: &[String]) -> Option<Module> {
        Some(self.end_of(absolute(&source.module, path)?)?.0)
    }

    /// The file at the end of a path from the root of the crate, and how the rest of the path is called there.
    fn end_of(&self, mut path: Vec<String>) -> Option<(Module, Vec<String>)> {
        // More would be a circle of imports.
        for _ in 0..8 {
            let is_module = |n: &usize| self.modules.contains_key(&path[..*n]);
            let end = (0..=path.len()).rev().find(is_module)?;
            let module = &path[..end];
            let through = path.get(end).and_then(|name| self.modules[module].uses.get(name));
            let Some(through) = through else {
                return Some((module.to_vec(), path[end..].to_vec()));
            };
            // Otherwise it is of another crate.
            let through = self.leads(module, through)?;
            path = [&through[..], &path[end + 1..]].concat();
        }
        None
    }

    /// The whole path of a `use` in this module, if it leads into the crate.
    fn leads(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let inner = || {
            let path = [module, path].concat();
            self.modules.contains_key(&path[..module.len() + 1]).then_some(path)
        };
        absolute(module, path).or_else(inner)
    }

    /// The type of the crate that a file knows by this path.
    fn type_named(&self, source: &Source, path: &[String]) -> Option<TypeName> {
        let is_of = |source: &Source, name: &String| {
            source.types.contains(name) || source.traits.iter().any(|one| one.name == *name)
        };
        let through = absolute(&source.module, path);
        let path = through.unwrap_or_else(|| [&source.module[..], path].concat());
        let (module, rest) = self.end_of(path)?;
        let [name] = &rest[..] else { return None };
        is_of(self.modules.get(&module[..])?, name).then(|| TypeName { module, name: name.clone() })
    }

    fn types_named(&self, source: &Source, paths: &[Vec<String>]) -> Vec<TypeName> {
        paths.iter().filter_map(|path| self.type_named(source, path)).collect()
    }

    /// The calls of methods whose place is known.
    fn calls(&self, source: &'a Source) -> Vec<Call<'a>> {
        let mut found = Vec::new();
        for function in &source.functions {
            found.extend(function.body.clone().filter_map(|at| self.call(source, function, at)));
        }
        found
    }

    fn call(&self, source: &Source, function: &Function, at: usize) -> Option<Call<'a>> {
        let token = |at: usize| source.word(at);
        let name = token(at);
        let candidates = self.methods.get(name)?;
        let method = if token(at - 1) == ":" && token(at - 2) == ":" {
            let owner = match token(at - 3) {
                "Self" => function.of.as_deref()?,
                owner => owner,
            };
            self.method_of(
                source,
                candidates,
                &self.types_named(source, &[vec![owner.to_owned()]]),
            )?
        } else if token(at - 1) == "." && is_called(source, at + 1) {
            match self.receiver(source, function, at) {
                Some(types) => self.method_of(source, candidates, &types)?,
                None if FOREIGN.split(' ').any(|foreign| foreign == name) => return None,
                None => {
                    // Only one file has methods of this name.
                    let first = candidates.iter().find(|method| is_seen(method, source))?;
                    let is_same = |other: &Method| {
                        other.source.path == first.source.path && other.function.of_trait.is_none()
                    };
                    candidates.iter().all(is_same).then_some(first)?
                }
            }
        } else {
            return None;
        };
        let of = method.function.of.as_deref().unwrap_or_default();
        Some(Call { name: format!("{of}::{name}"), to: method.source })
    }

    /// The method of one of these types, the last one first: it is in the middle of `Arc<Mutex<..>>`.
    fn method_of<'b>(
        &self,
        source: &Source,
        candidates: &'b [Method<'a>],
        types: &[TypeName],
    ) -> Option<&'b Method<'a>> {
        types.iter().rev().find_map(|of| {
            candidates.iter().find(|method| {
                method.of.as_ref() == Some(of)
                    && method.function.of_trait.is_none()
                    && is_seen(method, source)
            })
        })
    }

    /// The types in the type of what a method is called on, if that is `self`, a parameter, or a field of them.
    fn receiver(&self, source: &Source, function: &Function, at: usize) -> Option<Vec<TypeName>> {
        let token = |at: usize| &source.tokens[at];
        let mut start = at - 2;
        while token(start - 1).text == "." {
            start -= 2;
        }
        let chain: Vec<_> = (start..at).step_by(2).map(token).collect();
        let is_field = |text: &str| text.chars().all(char::is_numeric);
        if token(start - 1).text == ":"
            || !chain.iter().all(|one| one.is_ident || is_field(&one.text))
        {
            return None;
        }
        let names = match chain[0].text.as_str() {
            "self" => vec![vec![function.of.clone()?]],
            name => {
                let mut parameters = function.parameters.iter();
                let is_it = |one: &&Parameter| one.name.as_deref() == Some(name);
                parameters.find(is_it)?.of.clone()
            }
        };
        let mut types = self.types_named(source, &names);
        for field in &chain[1..] {
            let of = |of: &TypeName| self.fields.get(&(of.clone(), &*field.text));
            types = types.iter().rev().find_map(of)?.clone();
        }
        Some(types)
    }
}

fn is_seen(method: &Method, from: &Source) -> bool {
    let seen_in = method.function.seen_in.as_ref().unwrap_or(&method.source.module);
    from.module.starts_with(seen_in)
}

/// Returns whether arguments follow, perhaps those of the type first.
fn is_called(source: &Source, at: usize) -> bool {
    let token = |at: usize| source.word(at);
    token(at) == "(" || token(at) == ":" && token(at + 1) == ":" && token(at + 2) == "<"
}

fn lines(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<_> = files.iter().map(|(path, text)| Source::parse(path, text)).collect();
    circles(&arrows(&sources)).into_iter().map(|debt| debt.line).collect()
}

#[test]
fn circles_by_imports_are_found() {
    let files = |back: &'static str| {
        [
            ("engine/mod.rs", "mod a; mod b; pub(crate) use a::one::One;"),
            ("engine/a/mod.rs", "mod one;"),
            ("engine/a/one.rs", "use crate::engine::b::Two; pub struct One;"),
            ("engine/b.rs", back),
        ]
    };
    let circle = ["src/engine: a -> b (imports)", "src/engine: b -> a (imports)"];
    assert_eq!(lines(&files("pub struct Two(super::a::One);")), circle);
    assert_eq!(lines(&files("pub struct Two; fn f() -> super::a::one::One {}")), circle);
    // Through the door of the folder.
    assert_eq!(lines(&files("use super::One; pub struct Two;")), circle);
    assert_eq!(lines(&files("pub struct Two;")), [""; 0]);
    assert_eq!(lines(&files("#[cfg(test)]\nuse super::One; pub struct Two;")), [""; 0]);
}

#[test]
fn circles_by_calls_are_found() {
    let one = "use crate::engine::b::Two; use crate::engine::c::Four; use super::three::Three;
        pub struct One { pub three: Three }
        impl One { pub fn join(&self) {} pub fn rare(&self) {} }
        impl Four { pub fn more(&self) {} }";
    let three = "pub struct Three; impl Three { pub fn join(&self) {} fn hidden(&self) {} }";
    let files = |call: &'static str| {
        [
            ("engine/a/one.rs", one),
            ("engine/a/three.rs", three),
            ("engine/b.rs", call),
            ("engine/c.rs", "pub struct Four; impl Four { pub fn other(&self) {} }"),
        ]
    };
    for (call, by) in [
        ("use super::a::one::One; fn f(one: &Arc<One>) { one.join() }", "imports, calls"),
        ("use super::a::one::One; fn f(one: &One) { one.three.join() }", "imports, calls"),
        ("use super::a::one::One; fn f() { One::join(&x) }", "imports, calls"),
        ("use super::a::one::One; fn f(one: &One) { one.y.join() }", "imports"),
        // Without an import: the only method of this name, and one that is not in the file of its type.
        ("fn f() { let x = y(); x.rare() }", "calls"),
        ("fn f() { y().rare::<u8>() }", "calls"),
        ("fn f(four: &super::c::Four) { four.more() }", "calls"),
        ("use super::c::Four; fn f(four: &Four) { four.more() }", "calls"),
        ("use super::c::Four; struct S(Four); impl S { fn f(&self) { self.0.more() } }", "calls"),
    ] {
        let circle =
            ["src/engine: a -> b (imports)".to_owned(), format!("src/engine: b -> a ({by})")];
        assert_eq!(lines(&files(call)), circle, "{call}");
    }
    for call in [
        "use super::c::Four; fn f(four: &Four) { four.other() }",
        "fn f(one: &Foreign) { one.rare() }",
        "use other::One; fn f() { One::rare() }",
        "fn f() { other::One::rare() }",
        "fn f() { let x = y(); x.join() }",
        "fn f() { x.hidden() }",
        "fn f() { x.rare }",
        "struct Two; impl Two { fn rare(&self) { self.rare() } }",
    ] {
        assert_eq!(lines(&files(call)), [""; 0], "{call}");
    }
}

#[test]
fn circles_inside_a_room_are_none() {
    let files = [
        ("engine/a/one.rs", "use super::two::Two;"),
        ("engine/a/two.rs", "use super::one::One;"),
        ("engine/b.rs", ""),
    ];
    assert_eq!(lines(&files), [""; 0]);
}
