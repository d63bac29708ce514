//! Reads source files into tokens and items, without comments and without what is only for tests or docs.

use crate::layers::below;
use proc_macro2::{Delimiter, LineColumn, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use syn::spanned::Spanned;
use syn::{
    Attribute, Fields, FnArg, ImplItem, Item, Meta, Pat, Stmt, TraitItem, Type, UseTree, Visibility,
};

/// A path of modules, such as `["engine", "hold", "release"]`.
pub type Module = Vec<String>;

#[derive(Default)]
pub struct Source {
    /// Such as `engine/hold/release.rs`.
    pub path: String,
    pub module: Module,
    pub text: String,
    pub tokens: Vec<Token>,
    pub functions: Vec<Function>,
    /// The structs, enums and aliases.
    pub types: BTreeSet<String>,
    /// What each field is made of, as paths, by its type and its name.
    pub fields: BTreeMap<(String, String), Vec<Vec<String>>>,
    pub traits: Vec<Trait>,
    /// The traits that this file implements, once for each `impl`.
    pub implemented: Vec<String>,
    /// The paths behind the names that a `use` outside of functions brings in.
    pub uses: BTreeMap<String, Vec<String>>,
    /// Files below this one that are only for tests.
    test_modules: Vec<String>,
}

pub struct Token {
    pub text: String,
    pub is_ident: bool,
    start: LineColumn,
    end: LineColumn,
}

pub struct Function {
    pub name: String,
    /// The type of the `impl`, or the trait of a declaration.
    pub of: Option<String>,
    /// The trait of an `impl Trait for ..`.
    pub of_trait: Option<String>,
    /// Where it is visible, if that is more than its own module; empty for the whole crate.
    pub seen_in: Option<Module>,
    pub is_declaration: bool,
    pub parameters: Vec<Parameter>,
    /// The tokens of its body.
    pub body: Range<usize>,
}

pub struct Parameter {
    pub name: Option<String>,
    pub text: String,
    /// A tuple, or a reference to one.
    pub is_tuple: bool,
    /// The paths in its type.
    pub of: Vec<Vec<String>>,
}

pub struct Trait {
    pub name: String,
    line: usize,
}

/// The files of src/, read once for all tests.
pub fn sources() -> &'static [Source] {
    static SOURCES: OnceLock<Vec<Source>> = OnceLock::new();
    SOURCES.get_or_init(|| {
        let read = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), Source::parse);
        let tests: BTreeSet<Module> = read.iter().flat_map(Source::test_files).collect();
        let is_test = |source: &Source| {
            (0..=source.module.len()).any(|n| tests.contains(&source.module[..n]))
        };
        read.into_iter().filter(|source| !is_test(source)).collect()
    })
}

/// Reads the files below a directory, in the order of their paths.
pub fn read(root: &Path, parse: fn(&str, &str) -> Source) -> Vec<Source> {
    let mut files = below(root, "rs");
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let path = file.strip_prefix(root).expect("below it").to_string_lossy().replace('\\', "/");
        parse(&path, &fs::read_to_string(file).expect("readable"))
    };
    files.iter().map(read).collect()
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Self {
        let fail = |error: &dyn std::fmt::Display| -> ! { panic!("{path}: {error}") };
        let stream: TokenStream = text.parse().unwrap_or_else(|error| fail(&error));
        let file: syn::File = syn::parse2(stream.clone()).unwrap_or_else(|error| fail(&error));
        let mut source = Self {
            path: path.to_owned(),
            module: module(path),
            text: text.to_owned(),
            ..Self::default()
        };
        flatten(stream, &mut source.tokens);
        let mut skipped = Vec::new();
        find_skipped(&file.items, &mut skipped);
        let is_skipped = |token: &Token| skipped.iter().any(|span| span.contains(&token.start));
        source.tokens.retain(|token| !is_skipped(token));
        source.enter(&file.items);
        source
    }

    /// Reads a file for its tokens alone, those of its tests included.
    pub fn lex(path: &str, text: &str) -> Self {
        let mut source = Self { path: path.to_owned(), module: module(path), ..Self::default() };
        let stream: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
        flatten(stream, &mut source.tokens);
        source
    }

    /// The names that this file gives to items, fields, variants, parameters and variables.
    pub fn names(&self) -> BTreeSet<&str> {
        let before =
            ["fn", "struct", "enum", "trait", "const", "static", "mod", "type", "let", "mut"];
        let mut names = BTreeSet::new();
        for at in (0..self.tokens.len()).filter(|at| self.tokens[*at].is_ident) {
            let previous = at.checked_sub(1).map_or("", |before| self.word(before));
            // A field or a parameter, and no path.
            let has_type = self.word(at + 1) == ":" && self.word(at + 2) != ":" && previous != ":";
            if has_type || before.contains(&previous) && self.word(at) != "mut" {
                names.insert(self.word(at));
            }
            if self.word(at) == "enum" {
                names.extend(self.variants(at));
            }
        }
        names
    }

    fn variants(&self, at: usize) -> Vec<&str> {
        let is_end = |at: &usize| [";", "{"].contains(&self.word(*at));
        let open = (at..self.tokens.len()).find(is_end).filter(|open| self.word(*open) == "{");
        let Some(open) = open else { return Vec::new() };
        let mut found = Vec::new();
        let mut at = open + 1;
        let end = self.close(open);
        while at < end {
            match self.word(at) {
                "(" | "[" | "{" => at = self.close(at),
                word if self.tokens[at].is_ident => found.push(word),
                _ => {}
            }
            at += 1;
        }
        found
    }

    /// The text of a token, or nothing behind the last one.
    pub fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }

    /// Where the bracket at this token is closed.
    pub fn close(&self, open: usize) -> usize {
        let mut depth = 0;
        for (at, token) in self.tokens.iter().enumerate().skip(open) {
            match token.text.as_str() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        panic!("{}: a bracket is not closed", self.path)
    }

    /// The number of lines with code on them.
    pub fn lines(&self) -> usize {
        let lines = self.tokens.iter().flat_map(|token| token.start.line..=token.end.line);
        lines.collect::<BTreeSet<_>>().len()
    }

    /// Returns the paths in these tokens, those of a `use` taken apart, such as `["crate", "error", "Error"]`.
    pub fn paths(&self, tokens: Range<usize>) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        let mut at = 0;
        let tokens = &self.tokens[tokens];
        while at < tokens.len() {
            if tokens[at].is_ident && is_colons(tokens, at + 1) {
                // `$crate` is that of the macro's user.
                let is_foreign = at > 0 && ["$", ":"].contains(&tokens[at - 1].text.as_str());
                let before = found.len();
                at = path(tokens, at, &mut Vec::new(), &mut found);
                if is_foreign {
                    found.truncate(before);
                }
            } else {
                at += 1;
            }
        }
        found
    }

    /// The comments and attributes directly above a trait.
    pub fn above(&self, item: &Trait) -> Vec<&str> {
        let lines: Vec<&str> = self.text.lines().take(item.line - 1).map(str::trim).collect();
        let is_above = |line: &&str| line.starts_with("//") || line.starts_with("#[");
        lines.into_iter().rev().take_while(is_above).collect()
    }

    fn test_files(&self) -> Vec<Module> {
        let inner = |name: &String| [&self.module[..], std::slice::from_ref(name)].concat();
        self.test_modules.iter().map(inner).collect()
    }

    /// The tokens of a block. Its own span would be slow to find.
    fn body(&self, block: &syn::Block) -> Range<usize> {
        let span = block.brace_token.span;
        self.between(span.open().start(), span.close().end())
    }

    fn range(&self, of: &impl Spanned) -> Range<usize> {
        let span = of.span();
        self.between(span.start(), span.end())
    }

    fn between(&self, start: LineColumn, end: LineColumn) -> Range<usize> {
        let before = |at: LineColumn| self.tokens.partition_point(|token| token.start < at);
        before(start)..before(end)
    }

    fn enter(&mut self, items: &[Item]) {
        for item in items {
            if let Item::Mod(inner) = item
                && is_skipped(&inner.attrs)
                && inner.content.is_none()
            {
                self.test_modules.push(inner.ident.to_string());
            }
            if !is_skipped(attributes(item)) {
                self.enter_item(item);
            }
        }
    }

    fn enter_item(&mut self, item: &Item) {
        match item {
            Item::Fn(item) => {
                self.add_function(&item.sig, Some(&item.vis), Some(&item.block), &Owner::default());
            }
            Item::Impl(block) => {
                let last =
                    |path: &syn::Path| path.segments.last().map(|last| last.ident.to_string());
                let of_trait = block.trait_.as_ref().and_then(|(path, _)| last(path));
                self.implemented.extend(of_trait.clone());
                let of = match &*block.self_ty {
                    Type::Path(of) => last(&of.path),
                    _ => None,
                };
                let owner = Owner { of, of_trait, is_declaration: false };
                for item in &block.items {
                    if let ImplItem::Fn(item) = item
                        && !is_skipped(&item.attrs)
                    {
                        self.add_function(&item.sig, Some(&item.vis), Some(&item.block), &owner);
                    }
                }
            }
            Item::Trait(item) => {
                let name = item.ident.to_string();
                let line = match &item.vis {
                    Visibility::Inherited => item.trait_token.span.start().line,
                    visibility => visibility.span().start().line,
                };
                self.traits.push(Trait { name: name.clone(), line });
                let seen_in = self.seen_in(&item.vis);
                let owner = Owner { of: Some(name), of_trait: None, is_declaration: true };
                for inner in &item.items {
                    if let TraitItem::Fn(inner) = inner {
                        self.add_function(&inner.sig, None, inner.default.as_ref(), &owner);
                        if let Some(function) = self.functions.last_mut() {
                            function.seen_in.clone_from(&seen_in);
                        }
                    }
                }
            }
            Item::Struct(item) => {
                self.add_type(&item.ident);
                self.add_fields(&item.ident.to_string(), &item.fields);
            }
            Item::Enum(item) => {
                self.add_type(&item.ident);
                for variant in &item.variants {
                    self.add_fields(&item.ident.to_string(), &variant.fields);
                }
            }
            Item::Type(item) => self.add_type(&item.ident),
            Item::Union(item) => self.add_type(&item.ident),
            Item::Mod(item) => {
                if let Some((_, items)) = &item.content {
                    self.enter(items);
                }
            }
            Item::Use(item) => self.add_use(&item.tree, &mut Vec::new()),
            _ => {}
        }
    }

    fn add_type(&mut self, name: &syn::Ident) {
        self.types.insert(name.to_string());
    }

    fn add_fields(&mut self, of: &str, fields: &Fields) {
        for (at, field) in fields.iter().enumerate() {
            let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
            let made_of = self.names_of_types(self.range(&field.ty));
            self.fields.insert((of.to_owned(), name), made_of);
        }
    }

    fn add_use(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        let mut add = |name: String, path: Vec<String>| self.uses.insert(name, path);
        let joined = |path: &[String], name: &syn::Ident| [path, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_use(&tree.tree, path);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(tree, path)),
            UseTree::Name(tree) => _ = add(tree.ident.to_string(), joined(path, &tree.ident)),
            UseTree::Rename(tree) => _ = add(tree.rename.to_string(), joined(path, &tree.ident)),
            UseTree::Glob(_) => {}
        }
    }

    fn add_function(
        &mut self,
        signature: &syn::Signature,
        visibility: Option<&Visibility>,
        block: Option<&syn::Block>,
        owner: &Owner,
    ) {
        let parameters: Vec<_> =
            signature.inputs.iter().filter_map(|input| self.parameter(input)).collect();
        self.functions.push(Function {
            name: signature.ident.to_string(),
            of: owner.of.clone(),
            of_trait: owner.of_trait.clone(),
            seen_in: visibility.and_then(|visibility| self.seen_in(visibility)),
            is_declaration: owner.is_declaration,
            parameters,
            body: block.map_or(0..0, |block| self.body(block)),
        });
        let inner = block.into_iter().flat_map(|block| &block.stmts);
        for statement in inner {
            if let Stmt::Item(item) = statement
                && !is_skipped(attributes(item))
            {
                self.enter_item(item);
            }
        }
    }

    fn parameter(&self, input: &FnArg) -> Option<Parameter> {
        let FnArg::Typed(input) = input else { return None };
        let mut of = &*input.ty;
        while let Type::Reference(inner) = of {
            of = &*inner.elem;
        }
        let name = match &*input.pat {
            Pat::Ident(name) => Some(name.ident.to_string()),
            _ => None,
        };
        let range = self.range(&input);
        Some(Parameter {
            name,
            text: self.joined(range),
            is_tuple: matches!(of, Type::Tuple(of) if !of.elems.is_empty()),
            of: self.names_of_types(self.range(&input.ty)),
        })
    }

    /// The module that sees it, if that is more than this file.
    fn seen_in(&self, visibility: &Visibility) -> Option<Module> {
        match visibility {
            Visibility::Inherited => None,
            Visibility::Public(_) => Some(Module::new()),
            Visibility::Restricted(to) => {
                let path: Vec<_> =
                    to.path.segments.iter().map(|part| part.ident.to_string()).collect();
                let module = absolute(&self.module, &path).unwrap_or_default();
                (module != self.module).then_some(module)
            }
        }
    }

    /// The paths in these tokens, also those of one name.
    fn names_of_types(&self, range: Range<usize>) -> Vec<Vec<String>> {
        let mut found: Vec<Vec<String>> = Vec::new();
        for at in range.filter(|at| self.tokens[*at].is_ident) {
            let is_next = at > 1 && is_colons(&self.tokens, at - 2);
            match found.last_mut().filter(|_| is_next) {
                Some(path) => path.push(self.tokens[at].text.clone()),
                None => found.push(vec![self.tokens[at].text.clone()]),
            }
        }
        found
    }

    /// The tokens, written as one would write a pattern or a simple type.
    pub fn joined(&self, range: Range<usize>) -> String {
        let mut text = String::new();
        for token in &self.tokens[range] {
            let after_word = text.ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let after_mark = text.ends_with(',') || text.ends_with(':') && !text.ends_with("::");
            let is_spaced = after_word && token.is_ident
                || after_mark && ![":", ")"].contains(&&*token.text)
                || text.ends_with("&mut");
            if is_spaced {
                text.push(' ');
            }
            text += &token.text;
        }
        text
    }
}

#[derive(Default)]
struct Owner {
    of: Option<String>,
    of_trait: Option<String>,
    is_declaration: bool,
}

/// Returns a path from the root of the crate, or `None` for one that leads elsewhere.
pub fn absolute(module: &[String], path: &[String]) -> Option<Vec<String>> {
    let mut base = match path.first()?.as_str() {
        "crate" => Module::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().saturating_sub(1)].to_vec(),
        _ => return None,
    };
    for part in &path[1..] {
        match part.as_str() {
            "super" => _ = base.pop(),
            "self" => {}
            _ => base.push(part.clone()),
        }
    }
    Some(base)
}

fn module(path: &str) -> Module {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let parts = path.split('/').filter(|part| !["lib", "mod", "main"].contains(part));
    parts.map(str::to_owned).collect()
}

fn is_colons(tokens: &[Token], at: usize) -> bool {
    let is_colon = |at: usize| tokens.get(at).is_some_and(|token| token.text == ":");
    is_colon(at) && is_colon(at + 1)
}

/// Reads one path, or each of a group, and returns where it ends.
fn path(
    tokens: &[Token],
    mut at: usize,
    stem: &mut Vec<String>,
    found: &mut Vec<Vec<String>>,
) -> usize {
    let depth = stem.len();
    loop {
        match tokens.get(at) {
            Some(token) if token.is_ident || token.text == "*" => {
                stem.push(token.text.clone());
                at += 1;
                if is_colons(tokens, at) {
                    at += 2;
                    continue;
                }
                found.push(stem.clone());
            }
            Some(token) if token.text == "{" => {
                at += 1;
                while let Some(token) = tokens.get(at)
                    && token.text != "}"
                {
                    at = match token.text.as_str() {
                        "," => at + 1,
                        "as" => at + 2,
                        // In a macro it may be anything.
                        _ => std::cmp::max(at + 1, path(tokens, at, stem, found)),
                    };
                }
                at += 1;
            }
            // The arguments of a type: what follows is read by the caller.
            _ => found.push(stem.clone()),
        }
        break;
    }
    stem.truncate(depth);
    at
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let mut at = 0;
    let is_mark = |at: usize, mark: char| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == mark);
    while at < trees.len() {
        // The comments of docs come as attributes.
        if is_mark(at, '#') {
            let attribute = if is_mark(at + 1, '!') { at + 2 } else { at + 1 };
            if trees.get(attribute).is_some_and(is_doc) {
                at = attribute + 1;
                continue;
            }
        }
        let mut add = |text: String, is_ident: bool, span: proc_macro2::Span| {
            tokens.push(Token { text, is_ident, start: span.start(), end: span.end() });
        };
        match &trees[at] {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                add(open.to_owned(), false, group.span_open());
                flatten(group.stream(), tokens);
                let span = group.span_close();
                let (start, end) = (span.start(), span.end());
                tokens.push(Token { text: close.to_owned(), is_ident: false, start, end });
            }
            TokenTree::Ident(ident) => add(ident.to_string(), true, ident.span()),
            TokenTree::Punct(punct) => add(punct.as_char().to_string(), false, punct.span()),
            TokenTree::Literal(literal) => add(literal.to_string(), false, literal.span()),
        }
        at += 1;
    }
}

fn is_doc(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else { return false };
    let parts: Vec<_> = group.stream().into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(_)] = &parts[..] else {
        return false;
    };
    name == "doc"
}

fn find_skipped(items: &[Item], found: &mut Vec<Range<LineColumn>>) {
    let range = |of: &dyn Fn() -> proc_macro2::Span| of().start()..of().end();
    for item in items {
        if is_skipped(attributes(item)) {
            found.push(range(&|| item.span()));
            continue;
        }
        match item {
            Item::Mod(inner) => {
                if let Some((_, items)) = &inner.content {
                    find_skipped(items, found);
                }
            }
            Item::Impl(block) => {
                for inner in &block.items {
                    if let ImplItem::Fn(function) = inner
                        && is_skipped(&function.attrs)
                    {
                        found.push(range(&|| inner.span()));
                    }
                }
            }
            _ => {}
        }
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether the item is only for tests or docs.
fn is_skipped(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            ["test", "doc", "doctest"].contains(&&*list.tokens.to_string())
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_has_neither_comments_nor_tests() {
        let source = Source::parse(
            "engine/a/mod.rs",
            "//! Docs.\n\n/// Docs.\n#[must_use]\nfn one() -> u8 {\n    // Why.\n    1\n}\n\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\n\
             #[cfg(test)]\nmod more_tests;\nstruct S {\n    a: u8,\n}\nimpl S {\n    #[cfg(test)]\n    fn three() {}\n}\n",
        );
        assert_eq!(source.module, ["engine", "a"]);
        assert_eq!(source.lines(), 9);
        assert_eq!(source.functions.iter().map(|one| &*one.name).collect::<Vec<_>>(), ["one"]);
        assert_eq!(source.test_files(), [["engine", "a", "more_tests"]]);
    }

    #[test]
    fn paths_of_a_use_are_taken_apart() {
        let source = Source::parse(
            "a.rs",
            "use crate::{b::{C, d as e}, f::G};\nfn h() { b::i::<J>(); }\nmacro_rules! j { () => { $crate::k() } }",
        );
        let paths: Vec<_> =
            source.paths(0..source.tokens.len()).iter().map(|path| path.join("::")).collect();
        assert_eq!(paths, ["crate::b::C", "crate::b::d", "crate::f::G", "b::i"]);
    }

    #[test]
    fn visibility_is_a_module() {
        let source = Source::parse(
            "engine/a/b.rs",
            "fn a() {} pub fn b() {} pub(crate) fn c() {} pub(super) fn d() {} pub(in crate::engine) fn e() {} pub(self) fn f() {}",
        );
        let seen: Vec<_> = source
            .functions
            .iter()
            .map(|one| one.seen_in.as_ref().map(|module| module.join("::")))
            .collect();
        let expected = [None, Some(""), Some(""), Some("engine::a"), Some("engine"), None];
        assert_eq!(seen, expected.map(|module| module.map(str::to_owned)));
    }

    #[test]
    fn names_are_those_that_a_file_gives() {
        let source = Source::lex(
            "a.rs",
            "enum Ab<T> { #[x(y)] Cd(Ef), Gh { ij: Kl }, Mn = 1 } fn op(qr: st::Uv) -> Wx { let mut yz = mem::take(q); let (s, t) = u; }",
        );
        let expected = ["Ab", "Cd", "Gh", "Mn", "ij", "op", "qr", "yz"];
        assert_eq!(source.names().into_iter().collect::<Vec<_>>(), expected);
    }
}
