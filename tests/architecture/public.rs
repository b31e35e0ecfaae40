//! What a program that embeds the library can name: modules, items, and the functions and constants of types.
//!
//! Fields, variants and implementations of traits are not listed. What a macro defines is not seen.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Item, Place, Public, Source};
use super::tree::{Definition, Tree, module_path};

/// Each public item: its path in the crate, and its kind.
pub fn items(tree: &Tree<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // The modules that can be reached, and under which path.
    let mut todo: Vec<(Vec<String>, Vec<String>)> = vec![(Vec::new(), Vec::new())];
    let mut seen = BTreeSet::new();
    // Types, by where they are defined: all paths that lead to them.
    let mut types: BTreeMap<Definition, BTreeSet<Vec<String>>> = BTreeMap::new();
    while let Some((module, shown)) = todo.pop() {
        if !seen.insert(shown.clone()) || shown.len() > 8 {
            continue;
        }
        for (name, target, kind) in tree.public_names(&module) {
            let path = [&shown[..], &[name]].concat();
            match target {
                Ok(below) => {
                    found.insert(format!("{} mod", path.join("::")));
                    todo.push((below, path));
                }
                Err(definition) => {
                    found.insert(format!("{} {kind}", path.join("::")));
                    types.entry(definition).or_default().insert(path);
                }
            }
        }
    }
    for source in tree.sources.iter().filter(|source| !source.of_tests) {
        for item in source.items.iter().filter(|item| item.public == Public::Yes && !item.of_tests && !item.nested) {
            let Some(definition) = owner(tree, source, item) else { continue };
            for path in types.get(&definition).into_iter().flatten() {
                found.insert(format!("{}::{} {}", path.join("::"), item.name, item.kind));
            }
        }
    }
    found
}

/// The type or trait to which a function or constant belongs.
fn owner(tree: &Tree<'_>, source: &Source, item: &Item) -> Option<Definition> {
    let owner = item.owner.as_ref().filter(|owner| !owner.is_empty())?;
    if !matches!(item.kind, "fn" | "const" | "type") {
        return None;
    }
    let module = [&module_path(&source.path)?[..], &item.inside].concat();
    let found = tree.item(&module, owner)?;
    Some(Definition { part: None, ..found })
}

/// A name that a module makes public, and the module (`Ok`) or the item that it leads to.
type Shown = (String, Result<Vec<String>, Definition>, &'static str);

impl Tree<'_> {
    fn public_names(&self, path: &[String]) -> Vec<Shown> {
        let mut found = Vec::new();
        let own = self.own_items(path);
        for item in own.filter(|item| item.public == Public::Yes && !item.of_tests) {
            let target = if item.kind == "mod" {
                Ok([path, std::slice::from_ref(&item.name)].concat())
            } else {
                let Some(definition) = self.item(path, &["self".to_owned(), item.name.clone()]) else { continue };
                Err(definition)
            };
            found.push((item.name.clone(), target, item.kind));
        }
        for named in self.own_uses(path).filter(|named| !named.of_tests) {
            match &named.place {
                Place::Use { name: Some(name), public: Public::Yes } => {
                    if let Some(definition) = self.item(path, &named.words) {
                        let definition = Definition { part: None, ..definition };
                        let kind = self.kind(&definition);
                        found.push((name.clone(), Err(definition), if kind.is_empty() { "item" } else { kind }));
                    } else if let Some(module) = self.module(path, &named.words) {
                        found.push((name.clone(), Ok(module), "mod"));
                    } else {
                        // Of another crate.
                        let definition =
                            Definition { file: 0, module: named.words.clone(), name: name.clone(), part: None };
                        found.push((name.clone(), Err(definition), "use"));
                    }
                }
                Place::Use { name: None, public: Public::Yes } => {
                    if let Some(module) = self.module(path, &named.words).filter(|module| module != path) {
                        found.extend(self.public_names(&module));
                    }
                }
                _ => {}
            }
        }
        found
    }
}

/// What has changed against the list that is committed.
pub fn changes(listed: &str, found: &BTreeSet<String>) -> Vec<String> {
    let listed: BTreeSet<&str> = listed.lines().filter(|line| !line.is_empty()).collect();
    let new = found.iter().filter(|item| !listed.contains(item.as_str())).map(|item| format!("new: {item}"));
    let gone = listed.iter().filter(|item| !found.contains(**item)).map(|item| format!("gone: {item}"));
    new.chain(gone).collect()
}

mod samples {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::parse(path, text)).collect();
        items(&Tree::new(&sources)).into_iter().collect()
    }

    #[test]
    fn what_can_be_reached_is_public() {
        let found = of(&[
            ("lib.rs", "pub mod net;\nmod sys;\npub use net::a::start;\n#[cfg(test)]\npub mod tests;"),
            (
                "net/mod.rs",
                "pub mod a;\nmod b;\npub use b::{B, hidden as shown};\npub(crate) fn inner() {}\nfn own() {}",
            ),
            (
                "net/a.rs",
                "pub fn start() {}\npub const MOST: u8 = 1;\n#[cfg(feature = \"mutants\")]\npub fn broken() {}",
            ),
            (
                "net/b.rs",
                "pub struct B { pub field: u8 }\npub struct Unseen;\npub fn hidden() {}\nimpl B {\n pub fn new() {}\n fn old() {}\n}\nimpl Clone for B { fn clone() {} }",
            ),
            ("sys/mod.rs", "pub fn call() {}"),
        ]);
        let expected = [
            "net mod",
            "net::B struct",
            "net::B::new fn",
            "net::a mod",
            "net::a::MOST const",
            "net::a::start fn",
            "net::shown fn",
            "start fn",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn traits_show_their_functions_and_types_the_impl_of_another_file() {
        let found = of(&[
            ("lib.rs", "pub mod net;"),
            ("net/mod.rs", "mod more;\npub trait Pace { fn wait(); const LONG: u8; }\npub enum Kind { One }"),
            ("net/more.rs", "use super::Kind;\nimpl Kind { pub fn is(&self) {} pub const FIRST: u8 = 0; }"),
        ]);
        let expected = [
            "net mod",
            "net::Kind enum",
            "net::Kind::FIRST const",
            "net::Kind::is fn",
            "net::Pace trait",
            "net::Pace::LONG const",
            "net::Pace::wait fn",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn new_and_vanished_items_are_reported() {
        let found = BTreeSet::from(["net mod".to_owned(), "net::start fn".to_owned()]);
        assert_eq!(changes("net mod\nnet::start fn\n", &found), [""; 0]);
        assert_eq!(changes("net mod\nnet::stop fn\n", &found), ["new: net::start fn", "gone: net::stop fn"]);
    }
}
