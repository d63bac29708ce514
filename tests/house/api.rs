//! Reads the public items of the crate from src/ and compares them with `public-api.txt`, so that no change
//! goes unseen. Auto traits, and the output of macros of other crates, are not listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use proc_macro2::TokenTree;
use syn::spanned::Spanned;
use syn::{Attribute, Fields, Generics, ImplItem, Item, ItemImpl, TraitItem, UseTree, Visibility};

const HEAD: &str = "\
# The public API. Do not edit; to write it anew:
# LEASEHOLD_API=write cargo test --test house api
";

#[test]
fn api_is_the_one_that_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("tests/house/public-api.txt");
    let mut listing = Listing::default();
    listing.load("", &root.join("src/lib.rs"));
    listing.publish("", "leasehold");
    listing.add_impls();
    let now = format!("{HEAD}{}", listing.text());
    if env::var_os("LEASEHOLD_API").is_some_and(|value| value == "write") {
        fs::write(&file, &now).expect("the file can be written");
    }
    let listed = fs::read_to_string(&file).unwrap_or_default();
    let (old, new) = (lines(&listed), lines(&now));
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let added = new.difference(&old).map(|line| format!("+ {line}\n"));
    let changes: String = gone.chain(added).collect();
    assert!(
        listed == now,
        "the public API has changed:\n{changes}If that is meant, write it down with\n    \
         LEASEHOLD_API=write cargo test --test house api\nand name it in CHANGELOG.md"
    );
}

/// Returns each line with the item that it belongs to.
fn lines(text: &str) -> BTreeSet<String> {
    let mut of = "";
    let mut found = BTreeSet::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(line) => _ = found.insert(format!("{of}: {line}")),
            None => of = line,
        }
    }
    found
}

#[derive(Default)]
struct Listing {
    /// The items of each module, by its path without `leasehold`, such as `store::redis`.
    modules: BTreeMap<String, Vec<Item>>,
    /// The public path of an item of a module.
    published: BTreeMap<(String, String), String>,
    /// The lines of each public path, the item itself first.
    said: BTreeMap<String, BTreeSet<(bool, String)>>,
}

impl Listing {
    fn load(&mut self, module: &str, file: &Path) {
        let text = fs::read_to_string(file).expect("readable");
        let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let dir = match file.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => file.parent().expect("a directory").to_owned(),
            _ => file.with_extension(""),
        };
        self.enter(module, parsed.items, &dir);
    }

    fn enter(&mut self, module: &str, items: Vec<Item>, dir: &Path) {
        for item in &items {
            let Item::Mod(inner) = item else { continue };
            if is_for_tests(&inner.attrs) {
                continue;
            }
            let name = inner.ident.to_string();
            let path = join(module, &name);
            match &inner.content {
                Some((_, items)) => self.enter(&path, items.clone(), &dir.join(&name)),
                None => {
                    let files: [PathBuf; 2] =
                        [dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs")];
                    let file = files.iter().find(|file| file.exists());
                    self.load(&path, file.unwrap_or_else(|| panic!("no file of {path}")));
                }
            }
        }
        self.modules.insert(module.to_owned(), items);
    }

    /// Lists what `module` offers under the public path `at`.
    fn publish(&mut self, module: &str, at: &str) {
        for item in self.modules[module].clone() {
            self.publish_item(module, &item, at);
        }
    }

    fn publish_item(&mut self, module: &str, item: &Item, at: &str) {
        let Some((attrs, vis, name)) = parts(item) else { return };
        if let Item::Macro(_) = item {
            if attrs.iter().any(|attr| attr.path().is_ident("macro_export")) {
                self.say(format!("leasehold::{name}!"), "macro_rules!".to_owned());
            }
            return;
        }
        if !matches!(vis, Visibility::Public(_)) || is_for_tests(attrs) || is_hidden(attrs) {
            return;
        }
        if let Item::Use(item) = item {
            return self.publish_use(module, &item.tree, Vec::new(), at);
        }
        let path = format!("{at}::{name}");
        let known = self.published.insert((module.to_owned(), name.clone()), path.clone());
        if let Some(known) = known {
            self.published.insert((module.to_owned(), name), known.clone());
            return self.say(path, format!("pub use {known}"));
        }
        let mut lines = described(item).into_iter();
        self.said.entry(path.clone()).or_default().extend(lines.next().map(|line| (false, line)));
        lines.for_each(|line| self.say(path.clone(), line));
        if let Item::Mod(_) = item {
            self.publish(&join(module, &name), &path);
        }
    }

    fn publish_use(&mut self, module: &str, tree: &UseTree, mut path: Vec<String>, at: &str) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.publish_use(module, &tree.tree, path, at);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.publish_use(module, tree, path.clone(), at);
                }
            }
            UseTree::Glob(_) => match self.module_at(module, &path) {
                Some(from) => self.publish(&from, at),
                None => self.say(at.to_owned(), format!("pub use {}::*", path.join("::"))),
            },
            UseTree::Rename(tree) => {
                panic!("`pub use … as {}`: teach this test about it", tree.rename)
            }
            UseTree::Name(tree) => {
                let name = tree.ident.to_string();
                match self.module_at(module, &path) {
                    Some(from) => self.publish_name(&from, &name, at),
                    None => {
                        let source = join(&path.join("::"), &name);
                        self.say(format!("{at}::{name}"), format!("pub use {source}"));
                    }
                }
            }
        }
    }

    fn publish_name(&mut self, module: &str, name: &str, at: &str) {
        for item in self.modules[module].clone() {
            match &item {
                Item::Use(inner) => {
                    if let Some(path) = import(&inner.tree, name) {
                        let from = self.module_at(module, &path).expect("of this crate");
                        return self.publish_name(&from, name, at);
                    }
                }
                _ if parts(&item).is_some_and(|(.., found)| found == name) => {
                    return self.publish_item(module, &item, at);
                }
                _ => {}
            }
        }
        panic!("no {name} in {module}");
    }

    /// The module of this crate that `path` leads to from `module`.
    fn module_at(&self, module: &str, path: &[String]) -> Option<String> {
        let mut at = module.to_owned();
        for step in path {
            at = match step.as_str() {
                "crate" => String::new(),
                "self" => at,
                "super" => at.rsplit_once("::").map_or("", |(outer, _)| outer).to_owned(),
                name => join(&at, name),
            };
        }
        self.modules.contains_key(&at).then_some(at)
    }

    /// Lists the methods and traits of the public types, wherever they are written.
    fn add_impls(&mut self) {
        for (module, items) in self.modules.clone() {
            for item in items {
                if let Item::Impl(block) = item
                    && !is_for_tests(&block.attrs)
                    && let Some(of) = self.public_type(&module, &block.self_ty)
                {
                    self.add_impl(of, &block);
                }
            }
        }
    }

    fn add_impl(&mut self, of: String, block: &ItemImpl) {
        let gate = attributes(&block.attrs);
        if let Some((path, _)) = &block.trait_ {
            let name = path.segments.last().expect("a name").ident.to_string();
            if self.is_private(&name) {
                return;
            }
            let head = format!("{gate}impl{} {}", generics(&block.generics), text(path));
            return self.say(of, head + " for " + &text(&block.self_ty) + &bounds(&block.generics));
        }
        let written = block.items.iter().flat_map(|item| self.written(item)).collect::<Vec<_>>();
        for item in block.items.iter().chain(&written) {
            let (vis, attrs, line) = match item {
                ImplItem::Fn(item) => (&item.vis, &item.attrs, text(&item.sig)),
                ImplItem::Const(item) => {
                    (&item.vis, &item.attrs, format!("const {}: {}", item.ident, text(&item.ty)))
                }
                _ => continue,
            };
            if matches!(vis, Visibility::Public(_)) && !is_hidden(attrs) && !is_for_tests(attrs) {
                self.say(of.clone(), format!("{gate}{}{line}", attributes(attrs)));
            }
        }
    }

    /// The items that a macro of the crate writes into an `impl`: for each word of the call those of its rule `@word`.
    fn written(&self, call: &ImplItem) -> Vec<ImplItem> {
        let ImplItem::Macro(call) = call else { return Vec::new() };
        let is_called = |item: &&Item| {
            let Item::Macro(item) = item else { return false };
            item.ident.as_ref().is_some_and(|name| call.mac.path.is_ident(name))
        };
        let Some(Item::Macro(rules)) = self.modules.values().flatten().find(is_called) else {
            panic!("no macro of the crate: {}", text(&call.mac.path))
        };
        let groups = rules.mac.tokens.clone().into_iter().filter_map(|token| match token {
            TokenTree::Group(group) => Some(group.stream().to_string()),
            _ => None,
        });
        let groups: Vec<String> = groups.collect();
        let body = |word: TokenTree| {
            let mut rule =
                groups.chunks(2).filter(|rule| rule[0].replace(' ', "") == format!("@{word}"));
            let [_, body] = rule.next().expect("a rule") else { panic!("a rule has two sides") };
            let block: ItemImpl = syn::parse_str(&format!("impl X {{ {body} }}")).expect("items");
            block.items
        };
        call.mac.tokens.clone().into_iter().flat_map(body).collect()
    }

    /// The public path of a type that is named in `module`: its own one, else the public one of that name.
    fn public_type(&self, module: &str, named: &syn::Type) -> Option<String> {
        let named = match named {
            syn::Type::Reference(inner) => &*inner.elem,
            other => other,
        };
        let syn::Type::Path(path) = named else { return None };
        let name = path.path.segments.last()?.ident.to_string();
        let own = self.modules[module]
            .iter()
            .any(|item| parts(item).is_some_and(|(.., found)| found == name));
        if own {
            return self.published.get(&(module.to_owned(), name)).cloned();
        }
        let mut found = self.published.iter().filter(|((_, other), _)| *other == name);
        let path = found.next()?.1.clone();
        assert!(found.next().is_none(), "two public types are named {name}");
        Some(path)
    }

    /// Whether a trait is one of this crate that users cannot name.
    fn is_private(&self, name: &str) -> bool {
        let is_trait = |item: &Item| matches!(item, Item::Trait(item) if item.ident == name);
        self.modules.values().flatten().any(is_trait)
            && !self.published.keys().any(|(_, published)| published == name)
    }

    fn say(&mut self, of: String, line: String) {
        self.said.entry(of).or_default().insert((true, line));
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (path, lines) in &self.said {
            text += &format!("\n{path}\n");
            for (_, line) in lines {
                text += &format!("    {line}\n");
            }
        }
        text
    }
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The path that a `use` takes `name` from.
fn import(tree: &UseTree, name: &str) -> Option<Vec<String>> {
    match tree {
        UseTree::Path(tree) => {
            let mut path = import(&tree.tree, name)?;
            path.insert(0, tree.ident.to_string());
            Some(path)
        }
        UseTree::Group(group) => group.items.iter().find_map(|tree| import(tree, name)),
        UseTree::Name(tree) => (tree.ident == name).then(Vec::new),
        UseTree::Glob(_) | UseTree::Rename(_) => None,
    }
}

/// What is the same for all items that can be public.
fn parts(item: &Item) -> Option<(&[Attribute], &Visibility, String)> {
    Some(match item {
        Item::Const(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Enum(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Fn(item) => (&item.attrs, &item.vis, item.sig.ident.to_string()),
        Item::Macro(item) => {
            (&item.attrs, &Visibility::Inherited, item.ident.as_ref()?.to_string())
        }
        Item::Mod(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Static(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Struct(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Trait(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Type(item) => (&item.attrs, &item.vis, item.ident.to_string()),
        Item::Use(item) => (&item.attrs, &item.vis, String::new()),
        _ => return None,
    })
}

/// The item itself, and a line for each of its public parts.
fn described(item: &Item) -> Vec<String> {
    let (attrs, _, name) = parts(item).expect("asked before");
    let head = attributes(attrs);
    match item {
        Item::Enum(item) => {
            let of = &item.generics;
            let mut lines = vec![format!("{head}enum {name}{}{}", generics(of), bounds(of))];
            lines.extend(item.variants.iter().map(|variant| {
                let fields = match &variant.fields {
                    Fields::Unit => String::new(),
                    Fields::Named(_) => format!(" {{ {} }}", fields(&variant.fields).join(", ")),
                    Fields::Unnamed(_) => format!("({})", fields(&variant.fields).join(", ")),
                };
                format!("{}{name}::{}{fields}", attributes(&variant.attrs), variant.ident)
            }));
            lines
        }
        Item::Struct(item) => {
            let of = &item.generics;
            let mut lines = vec![format!("{head}struct {name}{}{}", generics(of), bounds(of))];
            let public = |field: &&syn::Field| matches!(field.vis, Visibility::Public(_));
            let hidden = item.fields.iter().filter(|field| !public(field)).count();
            lines.extend(item.fields.iter().filter(public).map(|f| format!("pub {}", field(f))));
            lines.extend((hidden > 0).then(|| "private fields".to_owned()));
            lines
        }
        Item::Trait(item) => {
            let of = &item.generics;
            let above: Vec<_> = item.supertraits.iter().map(text).collect();
            let colon = if above.is_empty() { "" } else { ": " };
            let above = format!("{colon}{}", above.join(" + "));
            let first = format!("{head}trait {name}{}{above}{}", generics(of), bounds(of));
            [first].into_iter().chain(item.items.iter().filter_map(trait_item)).collect()
        }
        Item::Fn(item) => vec![head + &text(&item.sig)],
        Item::Const(item) => vec![format!("{head}const {name}: {}", text(&item.ty))],
        Item::Static(item) => vec![format!("{head}static {name}: {}", text(&item.ty))],
        Item::Type(item) => {
            vec![format!("{head}type {name}{} = {}", generics(&item.generics), text(&item.ty))]
        }
        _ => vec![format!("{head}mod {name}")],
    }
}

fn trait_item(item: &TraitItem) -> Option<String> {
    Some(match item {
        TraitItem::Fn(item) => {
            let provided = if item.default.is_some() { " { provided }" } else { "" };
            attributes(&item.attrs) + &text(&item.sig) + provided
        }
        TraitItem::Const(item) => format!("const {}: {}", item.ident, text(&item.ty)),
        TraitItem::Type(item) => format!("type {}", item.ident),
        _ => return None,
    })
}

fn fields(fields: &Fields) -> Vec<String> {
    fields.iter().map(field).collect()
}

fn field(field: &syn::Field) -> String {
    let name = field.ident.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    name + &text(&field.ty)
}

fn generics(generics: &Generics) -> String {
    if generics.params.is_empty() {
        return String::new();
    }
    let params: Vec<_> = generics.params.iter().map(text).collect();
    format!("<{}>", params.join(", "))
}

fn bounds(generics: &Generics) -> String {
    generics.where_clause.as_ref().map(|bounds| format!(" {}", text(bounds))).unwrap_or_default()
}

/// The attributes that users of an item notice.
fn attributes(attrs: &[Attribute]) -> String {
    let mut found = String::new();
    for attr in attrs {
        let is = |name| attr.path().is_ident(name);
        if is("cfg") || is("derive") || is("repr") || is("non_exhaustive") {
            found += &format!("{} ", text(attr));
        } else if is("must_use") || is("deprecated") {
            found += &format!("#[{}] ", text(attr.path()));
        }
    }
    found
}

fn is_for_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| ["#[cfg(test)]", "#[cfg(doctest)]"].contains(&&*text(attr)))
}

fn is_hidden(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| text(attr) == "#[doc(hidden)]")
}

/// The source of something, in one line.
fn text(of: &(impl Spanned + ?Sized)) -> String {
    let source = of.span().source_text().expect("parsed from a file");
    let line = source.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace("( ", "(").replace(", )", ")").replace(" )", ")").replace("(mut self", "(self")
}
