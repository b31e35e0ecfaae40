//! A source file, parsed: the paths that it names, the calls that it makes, the items that it defines.
//!
//! `syn` reads the file. What it does not parse, the tokens in macros and attributes, is searched for paths and calls as tokens.
//! Comments are not part of what `syn` returns; where one matters, the text between two tokens is read (`Argument`).

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Item as SynItem, Lit, Meta, Token, UseTree, Visibility};

/// A file of `src/` or `tests/`: plain values, so that all tests share what has been read once.
#[derive(Debug, Default)]
pub struct Source {
    /// Relative to the directory that was read: `cgroup/mod.rs`.
    pub path: String,
    /// The text of the `//!` lines.
    pub doc: String,
    /// Nothing but comments is in it.
    pub empty: bool,
    /// It is compiled for tests only: set by those who know the declaration of its module.
    pub of_tests: bool,
    /// Lines of `#[path]` attributes.
    pub path_attributes: Vec<usize>,
    pub paths: Vec<Named>,
    pub calls: Vec<Call>,
    /// Fields of struct literals that have a string: `id: "a01"`.
    pub fields: Vec<(String, String)>,
    pub items: Vec<Item>,
    pub functions: Vec<Function>,
    pub unsafes: Vec<Unsafe>,
    /// What a `use` has given a name to.
    used: BTreeMap<String, Vec<String>>,
}

/// Where a path stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A `use`: under which name (`None`: all names, `*`), and whether it is passed on.
    Use {
        name: Option<String>,
        public: Public,
    },
    Code,
    /// Tokens of a macro: a single word may be anything.
    Tokens,
}

/// A path that a file names, from its first word to where generic arguments or the path end.
#[derive(Debug, Clone)]
pub struct Named {
    pub line: usize,
    pub words: Vec<String>,
    pub place: Place,
    /// The modules within the file that it stands in.
    pub inside: Vec<String>,
    /// The item of the file that it stands in: `run`, `Engine`, and of what is in an `impl`, `Engine::open`.
    pub item: String,
    /// It is compiled for tests only.
    pub of_tests: bool,
}

/// A call of a function (`words`) or a method (the last word, `method`).
#[derive(Debug)]
pub struct Call {
    pub line: usize,
    pub words: Vec<String>,
    pub method: bool,
    pub arguments: bool,
    /// The first argument, where it is a string.
    pub text: Option<String>,
    pub of_tests: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Public {
    Yes,
    /// `pub(crate)`, `pub(super)`.
    Within,
    No,
}

/// An item that a file defines.
#[derive(Debug)]
pub struct Item {
    pub kind: &'static str,
    pub name: String,
    pub public: Public,
    pub inside: Vec<String>,
    /// It is defined in a function.
    pub nested: bool,
    /// For what belongs to a type: the type, as the file names it.
    pub owner: Option<Vec<String>>,
    pub of_tests: bool,
}

#[derive(Debug)]
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
    pub of_tests: bool,
}

/// One `unsafe`.
#[derive(Debug)]
pub struct Unsafe {
    pub line: usize,
    /// It is a block or an `impl`, which owes an argument, and has none.
    pub without_argument: bool,
}

impl Source {
    /// # Panics
    /// The text is not Rust.
    pub fn parse(path: &str, text: &str) -> Self {
        let file = match syn::parse_file(text) {
            Ok(file) => file,
            Err(error) => panic!("{path}:{}: {error}", error.span().start().line),
        };
        let doc: Vec<String> = file.attrs.iter().filter_map(doc_line).collect();
        let mut reader = Reader {
            source: Self {
                path: path.to_owned(),
                doc: doc.join("\n"),
                empty: file.items.is_empty(),
                ..Self::default()
            },
            inside: Vec::new(),
            within: String::new(),
            blocks: 0,
            of_tests: false,
        };
        reader.visit_file(&file);
        let mut source = reader.source;
        source.unsafes = unsafes(text);
        for named in &source.paths {
            if let Place::Use { name: Some(name), .. } = &named.place {
                source.used.insert(name.clone(), named.words.clone());
            }
        }
        source
    }

    /// The words of a path, after a `use` of its first word in this file has been followed.
    pub fn whole(&self, words: &[String]) -> Vec<String> {
        match words {
            [first, rest @ ..] if self.used.contains_key(first) => [&self.used[first][..], rest].concat(),
            _ => words.to_vec(),
        }
    }

    /// Every path of the program, not of its tests, whole. A single word stays one: it was named in its `use`.
    pub fn whole_paths(&self) -> impl Iterator<Item = (usize, Vec<String>)> {
        let of_program = self.paths.iter().filter(|named| !self.of_tests && !named.of_tests);
        of_program.map(|named| (named.line, self.whole_path(named)))
    }

    pub fn whole_path(&self, named: &Named) -> Vec<String> {
        match named.place {
            Place::Code | Place::Tokens if named.words.len() > 1 => self.whole(&named.words),
            _ => named.words.clone(),
        }
    }

    /// All names that the file defines, at any depth.
    pub fn defines(&self, name: &str) -> bool {
        self.items.iter().any(|item| item.name == name)
    }
}

/// The text of one `//!` or `///` line.
fn doc_line(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(literal) = &pair.value else { return None };
    let Lit::Str(text) = &literal.lit else { return None };
    pair.path.is_ident("doc").then(|| text.value())
}

/// What attributes say of a release build: `Some(false)` when the item is not in it.
fn in_release(attributes: &[Attribute]) -> bool {
    attributes.iter().all(|attribute| {
        if attribute.path().is_ident("test") {
            return false;
        }
        let Meta::List(list) = &attribute.meta else { return true };
        if !list.path.is_ident("cfg") {
            return true;
        }
        list.parse_args::<Meta>().ok().and_then(|condition| holds(&condition)) != Some(false)
    })
}

/// Whether a condition of `cfg` holds in a release build; `None` when that depends on the target.
fn holds(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) => path.is_ident("test").then_some(false),
        Meta::NameValue(pair) => {
            let Expr::Lit(literal) = &pair.value else { return None };
            let Lit::Str(text) = &literal.lit else { return None };
            pair.path.is_ident("feature").then(|| text.value() == "lean")
        }
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let parts: Vec<Option<bool>> = parts.iter().map(holds).collect();
            let all = |wanted: bool| parts.iter().all(|part| *part == Some(wanted)).then_some(wanted);
            if list.path.is_ident("not") {
                parts.first().copied().flatten().map(|part| !part)
            } else if list.path.is_ident("all") {
                if parts.contains(&Some(false)) { Some(false) } else { all(true) }
            } else if list.path.is_ident("any") {
                if parts.contains(&Some(true)) { Some(true) } else { all(false) }
            } else {
                None
            }
        }
    }
}

fn attributes_of(item: &SynItem) -> &[Attribute] {
    match item {
        SynItem::Const(item) => &item.attrs,
        SynItem::Enum(item) => &item.attrs,
        SynItem::ExternCrate(item) => &item.attrs,
        SynItem::Fn(item) => &item.attrs,
        SynItem::ForeignMod(item) => &item.attrs,
        SynItem::Impl(item) => &item.attrs,
        SynItem::Macro(item) => &item.attrs,
        SynItem::Mod(item) => &item.attrs,
        SynItem::Static(item) => &item.attrs,
        SynItem::Struct(item) => &item.attrs,
        SynItem::Trait(item) => &item.attrs,
        SynItem::TraitAlias(item) => &item.attrs,
        SynItem::Type(item) => &item.attrs,
        SynItem::Union(item) => &item.attrs,
        SynItem::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name of an item; of an `impl` that of its type in words that no path has: only its parts are named by paths.
fn name_of(item: &SynItem) -> String {
    let ident = match item {
        SynItem::Const(item) => &item.ident,
        SynItem::Enum(item) => &item.ident,
        SynItem::Fn(item) => &item.sig.ident,
        SynItem::Impl(item) => match &*item.self_ty {
            syn::Type::Path(path) => return format!("impl {}", words_of(&path.path).pop().unwrap_or_default()),
            _ => return "impl".to_owned(),
        },
        SynItem::Static(item) => &item.ident,
        SynItem::Struct(item) => &item.ident,
        SynItem::Trait(item) => &item.ident,
        SynItem::Type(item) => &item.ident,
        SynItem::Union(item) => &item.ident,
        _ => return "macro".to_owned(),
    };
    word(ident)
}

fn public(visibility: &Visibility) -> Public {
    match visibility {
        Visibility::Public(_) => Public::Yes,
        Visibility::Restricted(_) => Public::Within,
        Visibility::Inherited => Public::No,
    }
}

fn line_of(spanned: &impl Spanned) -> usize {
    spanned.span().start().line
}

/// A name as it is compared: `r#alloc` is `alloc`.
fn word(ident: &proc_macro2::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or_else(|| text.clone(), str::to_owned)
}

fn words_of(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| word(&segment.ident)).collect()
}

/// Walks over a file and notes what it finds.
struct Reader {
    source: Source,
    inside: Vec<String>,
    /// The item that is walked over: the outermost, or a part of an outermost `impl`.
    within: String,
    /// How many blocks of code are around.
    blocks: usize,
    of_tests: bool,
}

impl Reader {
    fn named(&mut self, line: usize, words: Vec<String>, place: Place) {
        let (inside, item) = (self.inside.clone(), self.within.clone());
        self.source.paths.push(Named { line, words, place, inside, item, of_tests: self.of_tests });
    }

    fn item(&mut self, kind: &'static str, name: &proc_macro2::Ident, public: Public, owner: Option<Vec<String>>) {
        let (name, inside, nested) = (word(name), self.inside.clone(), self.blocks > 0);
        self.source.items.push(Item { kind, name, public, inside, nested, owner, of_tests: self.of_tests });
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (line_of(&signature.fn_token), block.span().end().line);
        let (name, of_tests) = (word(&signature.ident), self.of_tests);
        self.source.functions.push(Function { name, line: first, lines: last - first + 1, of_tests });
    }

    /// Goes on with something that has attributes.
    fn under(&mut self, attributes: &[Attribute], walk: impl FnOnce(&mut Self)) {
        let before = self.of_tests;
        self.of_tests |= !in_release(attributes);
        walk(self);
        self.of_tests = before;
    }

    fn tree(&mut self, tree: &UseTree, before: &[String], public: Public) {
        let with = |ident: &proc_macro2::Ident| before.iter().cloned().chain([word(ident)]).collect::<Vec<_>>();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident), public),
            UseTree::Name(name) if name.ident == "self" => {
                let used = Place::Use { name: before.last().cloned(), public };
                self.named(line_of(&name.ident), before.to_vec(), used);
            }
            UseTree::Name(name) => {
                let used = Place::Use { name: Some(word(&name.ident)), public };
                self.named(line_of(&name.ident), with(&name.ident), used);
            }
            UseTree::Rename(rename) => {
                let words = if rename.ident == "self" { before.to_vec() } else { with(&rename.ident) };
                let used = Place::Use { name: Some(word(&rename.rename)), public };
                self.named(line_of(&rename.ident), words, used);
            }
            UseTree::Glob(glob) => {
                self.named(line_of(glob), before.to_vec(), Place::Use { name: None, public });
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before, public);
                }
            }
        }
    }

    /// What tokens name and call. `words`: a single word counts as well, where it is a type or is called.
    fn tokens(&mut self, tokens: &TokenStream, words: bool) {
        let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let mut at = 0;
        let mut before = ' ';
        while at < trees.len() {
            match &trees[at] {
                TokenTree::Group(group) => {
                    self.tokens(&group.stream(), words);
                    before = ' ';
                    at += 1;
                }
                TokenTree::Ident(first) => {
                    let mut path = vec![word(first)];
                    let line = first.span().start().line;
                    at += 1;
                    let mut branches = None;
                    while separator(&trees, at) {
                        match trees.get(at + 2) {
                            Some(TokenTree::Ident(next)) => path.push(word(next)),
                            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                                branches = Some(group.stream());
                            }
                            Some(TokenTree::Punct(star)) if star.as_char() == '*' => {
                                self.named(line, path.clone(), Place::Use { name: None, public: Public::No });
                            }
                            _ => {
                                at += 2;
                                break;
                            }
                        }
                        at += 3;
                    }
                    if let Some(branches) = branches {
                        self.branches(&branches, &path);
                    }
                    let call = match trees.get(at) {
                        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis => {
                            Some(group.stream())
                        }
                        _ => None,
                    };
                    let types = path[0].starts_with(char::is_uppercase);
                    if before != '.' && (path.len() > 1 || (words && (types || call.is_some()))) {
                        self.named(line, path.clone(), Place::Tokens);
                    }
                    if let Some(arguments) = call {
                        let text = arguments.clone().into_iter().next();
                        self.source.calls.push(Call {
                            line,
                            words: path,
                            method: before == '.',
                            arguments: !arguments.is_empty(),
                            text: text.as_ref().and_then(string),
                            of_tests: self.of_tests,
                        });
                    }
                    before = ' ';
                }
                TokenTree::Punct(punct) => {
                    before = punct.as_char();
                    at += 1;
                }
                TokenTree::Literal(_) => {
                    before = ' ';
                    at += 1;
                }
            }
        }
    }

    /// The branches of a `use` that a macro writes: `{a, b::{c, d}}`.
    fn branches(&mut self, tokens: &TokenStream, before: &[String]) {
        let trees: Vec<TokenTree> = tokens.clone().into_iter().collect();
        let mut path = before.to_vec();
        for tree in trees.iter().chain([&TokenTree::Punct(proc_macro2::Punct::new(',', proc_macro2::Spacing::Alone))]) {
            match tree {
                TokenTree::Ident(next) => path.push(word(next)),
                TokenTree::Group(group) => {
                    self.branches(&group.stream(), &path);
                    path.truncate(before.len());
                }
                TokenTree::Punct(punct) if punct.as_char() == ',' => {
                    if path.len() > before.len() {
                        let line = tree.span().start().line;
                        self.named(line, path.clone(), Place::Tokens);
                    }
                    path.truncate(before.len());
                }
                _ => {}
            }
        }
    }
}

/// `::` at this place.
fn separator(trees: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| matches!(trees.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    colon(at) && colon(at + 1)
}

/// The value of a token that is a string.
fn string(tree: &TokenTree) -> Option<String> {
    let TokenTree::Literal(literal) = tree else { return None };
    match Lit::new(literal.clone()) {
        Lit::Str(text) => Some(text.value()),
        _ => None,
    }
}

/// The value of an expression that is a string.
fn string_of(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast SynItem) {
        self.under(attributes_of(item), |reader| {
            let public = |visibility| public(visibility);
            match item {
                SynItem::Const(item) if item.ident != "_" => reader.item("const", &item.ident, public(&item.vis), None),
                SynItem::Enum(item) => {
                    reader.item("enum", &item.ident, public(&item.vis), None);
                    for variant in &item.variants {
                        reader.item("variant", &variant.ident, Public::Yes, Some(vec![word(&item.ident)]));
                    }
                }
                SynItem::Fn(item) => {
                    reader.item("fn", &item.sig.ident, public(&item.vis), None);
                    reader.function(&item.sig, &item.block);
                }
                SynItem::Macro(item) => {
                    if let Some(name) = &item.ident {
                        reader.item("macro", name, Public::No, None);
                    }
                }
                SynItem::Mod(item) => reader.item("mod", &item.ident, public(&item.vis), None),
                SynItem::Static(item) => reader.item("static", &item.ident, public(&item.vis), None),
                SynItem::Struct(item) => {
                    reader.item("struct", &item.ident, public(&item.vis), None);
                    for field in &item.fields {
                        if let (Some(name), Public::Yes) = (&field.ident, public(&field.vis)) {
                            reader.item("field", name, Public::Yes, Some(vec![word(&item.ident)]));
                        }
                    }
                }
                SynItem::Trait(item) => reader.item("trait", &item.ident, public(&item.vis), None),
                SynItem::TraitAlias(item) => reader.item("trait", &item.ident, public(&item.vis), None),
                SynItem::Type(item) => reader.item("type", &item.ident, public(&item.vis), None),
                SynItem::Union(item) => reader.item("union", &item.ident, public(&item.vis), None),
                _ => {}
            }
            let outermost = reader.within.is_empty() && !matches!(item, SynItem::Mod(_) | SynItem::Use(_));
            if outermost {
                reader.within = name_of(item);
            }
            visit::visit_item(reader, item);
            if outermost {
                reader.within.clear();
            }
        });
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.inside.push(word(&item.ident));
        visit::visit_item_mod(self, item);
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&item.tree, &[], public(&item.vis));
    }

    fn visit_impl_item(&mut self, part: &'ast syn::ImplItem) {
        let name = match part {
            syn::ImplItem::Fn(part) => &part.sig.ident,
            syn::ImplItem::Const(part) => &part.ident,
            _ => return visit::visit_impl_item(self, part),
        };
        let before = self.within.clone();
        if let Some(owner) = before.strip_prefix("impl ") {
            self.within = format!("{owner}::{}", word(name));
        }
        visit::visit_impl_item(self, part);
        self.within = before;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) if item.trait_.is_none() => Some(words_of(&path.path)),
            _ => None,
        };
        for part in &item.items {
            let (kind, attributes, name, visibility) = match part {
                syn::ImplItem::Fn(part) => ("fn", &part.attrs, &part.sig.ident, &part.vis),
                syn::ImplItem::Const(part) => ("const", &part.attrs, &part.ident, &part.vis),
                syn::ImplItem::Type(part) => ("type", &part.attrs, &part.ident, &part.vis),
                _ => continue,
            };
            let owner = owner.clone().unwrap_or_default();
            self.under(attributes, |reader| reader.item(kind, name, public(visibility), Some(owner)));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        for part in &item.items {
            let (kind, attributes, name) = match part {
                syn::TraitItem::Fn(part) => ("fn", &part.attrs, &part.sig.ident),
                syn::TraitItem::Const(part) => ("const", &part.attrs, &part.ident),
                syn::TraitItem::Type(part) => ("type", &part.attrs, &part.ident),
                _ => continue,
            };
            let owner = vec![word(&item.ident)];
            self.under(attributes, |reader| reader.item(kind, name, Public::Yes, Some(owner)));
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.under(&item.attrs, |reader| {
            reader.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(reader, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.blocks += 1;
        visit::visit_block(self, block);
        self.blocks -= 1;
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.under(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        self.under(&local.attrs, |reader| visit::visit_local(reader, local));
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        self.under(&block.attrs, |reader| visit::visit_expr_block(reader, block));
    }

    /// `pub(in crate::a)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.named(line_of(path), words_of(path), Place::Code);
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let hides = match &attribute.meta {
            Meta::NameValue(pair) => pair.path.is_ident("path"),
            Meta::List(list) if list.path.is_ident("cfg_attr") => {
                list.tokens.clone().into_iter().any(|token| matches!(token, TokenTree::Ident(name) if name == "path"))
            }
            _ => false,
        };
        if hides {
            self.source.path_attributes.push(line_of(attribute));
        }
        match &attribute.meta {
            Meta::List(list) => self.tokens(&list.tokens, false),
            Meta::NameValue(pair) => self.visit_expr(&pair.value),
            Meta::Path(_) => {}
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.tokens(&called.tokens, true);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func {
            self.source.calls.push(Call {
                line: line_of(&function.path),
                words: words_of(&function.path),
                method: false,
                arguments: !call.args.is_empty(),
                text: call.args.first().and_then(string_of),
                of_tests: self.of_tests,
            });
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.source.calls.push(Call {
            line: line_of(&call.method),
            words: vec![word(&call.method)],
            method: true,
            arguments: !call.args.is_empty(),
            text: call.args.first().and_then(string_of),
            of_tests: self.of_tests,
        });
        visit::visit_expr_method_call(self, call);
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if let (syn::Member::Named(name), Some(text)) = (&field.member, string_of(&field.expr)) {
            self.source.fields.push((word(name), text));
        }
        visit::visit_field_value(self, field);
    }
}

/// A token of a file, with the bytes that it stands on.
struct Piece {
    text: String,
    line: usize,
    bytes: std::ops::Range<usize>,
}

/// All `unsafe` of a file, those in macros too. A block or an `impl` needs a SAFETY comment of its own, in the statement before it.
fn unsafes(text: &str) -> Vec<Unsafe> {
    if !text.contains("unsafe") {
        return Vec::new();
    }
    let mut pieces = Vec::new();
    flatten(text.parse().expect("syn has read it"), &mut pieces);
    let found = pieces.iter().enumerate().filter(|(_, piece)| piece.text == "unsafe");
    let argued = |at: usize| {
        for earlier in (0..at).rev() {
            if text[pieces[earlier].bytes.end..pieces[earlier + 1].bytes.start].contains("SAFETY:") {
                return true;
            }
            if matches!(pieces[earlier].text.as_str(), ";" | "{" | "}" | "unsafe") {
                return false;
            }
        }
        text[..pieces[0].bytes.start].contains("SAFETY:")
    };
    found
        .map(|(at, piece)| {
            let owes = pieces.get(at + 1).is_some_and(|next| matches!(next.text.as_str(), "{" | "impl"));
            Unsafe { line: piece.line, without_argument: owes && !argued(at) }
        })
        .collect()
}

/// The tokens of a stream, with those that open and close a group.
fn flatten(stream: TokenStream, pieces: &mut Vec<Piece>) {
    let piece = |text: &str, span: proc_macro2::Span| Piece {
        text: text.to_owned(),
        line: span.start().line,
        bytes: span.byte_range(),
    };
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                pieces.push(piece(open, group.span_open()));
                flatten(group.stream(), pieces);
                pieces.push(piece(close, group.span_close()));
            }
            TokenTree::Ident(ident) => pieces.push(piece(&ident.to_string(), ident.span())),
            TokenTree::Punct(punct) => pieces.push(piece(&punct.as_char().to_string(), punct.span())),
            TokenTree::Literal(literal) => pieces.push(piece("literal", literal.span())),
        }
    }
}
