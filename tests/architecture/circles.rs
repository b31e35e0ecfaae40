//! Circles between the files of one module.
//!
//! A file points to another when it names an item that the other defines. The parent of a directory (`mod.rs`, or `a.rs` beside
//! `a/`) declares what its children share and calls them as well, so each of its items counts for itself: a circle is a child that
//! names an item of the parent whose own text leads back to that child. What `use` and `mod` say in a parent is no arrow. Tests are
//! left out. A method called on a value is not seen, because the source does not say whose it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::source::Place;
use super::tree::{Definition, Tree, module_path};

/// A file, or an item of a parent (`alloc/control/mod.rs::Control`).
type Node = String;

/// Who points to whom, and the items that are named.
pub type Arrows = BTreeMap<(Node, Node), BTreeSet<String>>;

/// The file that a node is in.
fn file_of(node: &str) -> &str {
    node.split("::").next().unwrap_or(node)
}

/// The modules that have files below them, other than tests.
fn parents(tree: &Tree<'_>) -> BTreeSet<Vec<String>> {
    let files = tree.sources.iter().filter(|source| !source.of_tests);
    let modules = files.filter_map(|source| module_path(&source.path));
    modules.filter_map(|module| Some(module.split_last()?.1.to_vec())).collect()
}

/// The item of a parent that a path names: a method for itself, where the parent has it.
fn part_of(tree: &Tree<'_>, definition: &Definition) -> String {
    let (source, name) = (&tree.sources[definition.file], &definition.name);
    if let Some(part) = &definition.part {
        let defined = source.items.iter().any(|item| {
            item.name == *part
                && matches!(item.kind, "fn" | "const")
                && item.owner.as_ref().is_some_and(|owner| owner.last() == Some(name))
        });
        if defined {
            return format!("{}::{name}::{part}", source.path);
        }
    }
    format!("{}::{name}", source.path)
}

/// All arrows between files of one module.
pub fn between_files(tree: &Tree<'_>) -> Arrows {
    let parents = parents(tree);
    let mut arrows = Arrows::new();
    for (file, source) in tree.sources.iter().enumerate() {
        let Some(module) = module_path(&source.path).filter(|module| !module.is_empty() && !source.of_tests) else {
            continue;
        };
        let is_parent = parents.contains(&module);
        for named in source.paths.iter().filter(|named| !named.of_tests) {
            if is_parent && matches!(named.place, Place::Use { .. }) {
                continue;
            }
            let Some(definition) = tree.definition(file, named) else { continue };
            let Some(theirs) = module_path(&tree.sources[definition.file].path) else { continue };
            if theirs.first() != module.first() {
                continue;
            }
            let from = if is_parent { format!("{}::{}", source.path, named.item) } else { source.path.clone() };
            let to = if parents.contains(&theirs) {
                part_of(tree, &definition)
            } else {
                tree.sources[definition.file].path.clone()
            };
            if from != to {
                arrows.entry((from, to)).or_default().insert(definition.name);
            }
        }
    }
    arrows
}

/// Where one gets from a node.
fn reached<'a>(next: &BTreeMap<&'a str, Vec<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut todo = vec![from];
    while let Some(node) = todo.pop() {
        todo.extend(next.get(node).into_iter().flatten().filter(|to| seen.insert(**to)));
    }
    seen
}

/// The knots of a graph: nodes that all reach each other, of more than one file.
pub fn knots(arrows: &Arrows) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
    }
    let all: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|node| (*node, reached(&next, node))).collect();
    let mut found: Vec<BTreeSet<&str>> = Vec::new();
    for (node, reach) in &all {
        if !reach.contains(node) || found.iter().any(|knot| knot.contains(node)) {
            continue;
        }
        let knot: BTreeSet<&str> =
            reach.iter().copied().filter(|other| all.get(other).is_some_and(|back| back.contains(node))).collect();
        if knot.iter().map(|node| file_of(node)).collect::<BTreeSet<_>>().len() > 1 {
            found.push(knot);
        }
    }
    found
}

/// The shortest way from a node back to itself within a knot, through another file.
fn shortest<'a>(arrows: &'a Arrows, knot: &BTreeSet<&'a str>) -> Vec<&'a str> {
    let from_one = |start: &'a str| {
        let mut ways: Vec<Vec<&str>> = vec![vec![start]];
        let mut seen = BTreeSet::new();
        let mut at = 0;
        while at < ways.len() {
            let way = ways[at].clone();
            let last = way[way.len() - 1];
            for (_, to) in arrows.keys().filter(|(from, to)| from == last && knot.contains(to.as_str())) {
                let longer = [&way[..], &[to.as_str()]].concat();
                if to == start {
                    if longer.iter().any(|node| file_of(node) != file_of(start)) {
                        return Some(longer);
                    }
                } else if seen.insert(to) {
                    ways.push(longer);
                }
            }
            at += 1;
        }
        None
    };
    knot.iter().filter_map(|start| from_one(start)).min_by_key(Vec::len).unwrap_or_default()
}

/// One line for each knot: its shortest circle with the items that make it, and how many files it ties together.
pub fn circles(arrows: &Arrows) -> Vec<String> {
    let said = |knot: &BTreeSet<&str>| {
        let way = shortest(arrows, knot);
        let mut line = way.first().copied().unwrap_or_default().to_owned();
        for pair in way.windows(2) {
            let items = &arrows[&(pair[0].to_owned(), pair[1].to_owned())];
            let items: Vec<&str> = items.iter().map(String::as_str).collect();
            write!(line, " -({})-> {}", items.join(", "), pair[1]).expect("a string takes all");
        }
        let files: BTreeSet<&str> = knot.iter().map(|node| file_of(node)).collect();
        if files.len() > 2 {
            let files: Vec<&str> = files.into_iter().collect();
            write!(line, "\n    of {} files: {}", files.len(), files.join(" ")).expect("a string takes all");
        }
        line
    };
    knots(arrows).iter().map(said).collect()
}

mod samples {
    use super::super::source::Source;
    use super::super::tree::mark_tests;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut sources: Vec<Source> = files.iter().map(|(path, text)| Source::parse(path, text)).collect();
        mark_tests(&mut sources);
        circles(&between_files(&Tree::new(&sources)))
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        let said = found(&[
            ("net/mod.rs", "mod a;\nmod b;"),
            ("net/a.rs", "use super::b::B;\npub fn of(b: B) {}"),
            ("net/b.rs", "pub struct B;\nfn f() { super::a::of(B) }"),
        ]);
        assert_eq!(said, ["net/a.rs -(B)-> net/b.rs -(of)-> net/a.rs"]);
    }

    #[test]
    fn circles_go_through_more_files_and_directories() {
        let said = found(&[
            ("net/mod.rs", "mod a;\nmod b;\nmod c;"),
            ("net/a.rs", "use crate::net::b;\nfn f(x: b::B) {}\npub struct A;"),
            ("net/b/mod.rs", "mod inner;\npub use inner::B;"),
            ("net/b/inner.rs", "use super::super::c::*;\npub struct B(C);"),
            ("net/c.rs", "use {super::a, std::fmt};\npub struct C;\nfn f() { g::<a::A>() }"),
        ]);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("net/a.rs -(B)-> net/b/inner.rs -(C)-> net/c.rs -(A)-> net/a.rs\n"), "{said:?}");
        assert!(said[0].ends_with("of 3 files: net/a.rs net/b/inner.rs net/c.rs"), "{said:?}");
    }

    #[test]
    fn macros_and_renamed_items_count() {
        let both = |text: &str| {
            found(&[
                ("net/mod.rs", "mod a;\nmod b;"),
                ("net/a.rs", text),
                ("net/b.rs", "pub fn b() {}\npub struct B;\nuse super::a::A;"),
            ])
        };
        assert_eq!(both("pub struct A;").len(), 0);
        assert_eq!(both("pub struct A;\nfn f() { tokio::select! { x = super::b::b() => {} } }").len(), 1);
        assert_eq!(both("pub struct A;\nuse super::b::{B as Other};").len(), 1);
        assert_eq!(both("pub struct A;\nuse super::{b as c};\nfn f() { c::b() }").len(), 1);
        assert_eq!(both("pub struct A;\nfn f() { if x { use super::b::b; b() } }").len(), 1);
    }

    #[test]
    fn a_parent_counts_item_by_item() {
        let parent = |parent: &str, child: &str| found(&[("net/mod.rs", parent), ("net/a.rs", child)]);
        let child = "use super::Error;\npub fn run() -> Error { Error }";
        // What children share, and what calls them, are two things.
        assert_eq!(parent("mod a;\npub struct Error;\npub fn run() { a::run(); }", child), [""; 0]);
        assert_eq!(parent("mod a;\npub use a::Hold;\npub struct Error;", child), [""; 0]);
        // A type that has a part of a child.
        let said = parent("mod a;\npub struct Error(a::Cause);", "use super::Error;\npub struct Cause;");
        assert_eq!(said, ["net/a.rs -(Error)-> net/mod.rs::Error -(Cause)-> net/a.rs"]);
        // Functions that call each other, also by another function of the parent.
        let child = "pub fn run() { super::start() }";
        assert_eq!(parent("mod a;\npub fn start() { a::run() }", child).len(), 1);
        assert_eq!(parent("mod a;\npub fn start() { again() }\nfn again() { a::run() }", child).len(), 1);
        assert_eq!(parent("mod a;\npub fn start() {}\nfn again() { a::run() }", child).len(), 0);
        // Methods count by themselves, where a path names one.
        let engine = "mod a;\npub struct Engine;\nimpl Engine {\n pub fn open() { a::run() }\n pub fn close() {}\n}";
        assert_eq!(parent(engine, "use super::Engine;\npub fn run() { Engine::open() }").len(), 1);
        assert_eq!(parent(engine, "use super::Engine;\npub fn run(e: Engine) { Engine::close() }").len(), 0);
    }

    #[test]
    fn a_file_beside_its_directory_is_a_parent() {
        let said = found(&[
            ("net/mod.rs", "mod a;"),
            ("net/a.rs", "mod b;\npub fn start() { b::run() }\npub struct Shared;"),
            ("net/a/b.rs", "use super::Shared;\npub fn run() {}"),
        ]);
        assert_eq!(said, [""; 0]);
        // A file that has nothing below it but tests is none.
        let said = found(&[
            ("net/mod.rs", "mod a;\nmod b;"),
            ("net/a.rs", "#[cfg(test)]\nmod tests;\npub struct A;\nfn f() { super::b::run() }"),
            ("net/a/tests.rs", "use super::A;"),
            ("net/b.rs", "use super::a::A;\npub fn run() {}"),
        ]);
        assert_eq!(said, ["net/a.rs -(run)-> net/b.rs -(A)-> net/a.rs"]);
    }

    #[test]
    fn tests_and_functions_called_like_a_file_make_no_arrow() {
        let b = "pub fn b() {}\npub struct B;\nuse super::a::A;";
        let a =
            |text: &str| found(&[("net/mod.rs", "mod a;\nmod b;\npub fn b() {}"), ("net/a.rs", text), ("net/b.rs", b)]);
        assert_eq!(a("pub struct A;\n#[cfg(test)]\nmod tests { use super::super::b::B; }"), [""; 0]);
        assert_eq!(a("pub struct A;\n#[cfg(all(test, unix))]\nuse super::b::B;"), [""; 0]);
        assert_eq!(a("pub struct A;\n// super::b::B\nconst X: &str = \"super::b::B\";"), [""; 0]);
        assert_eq!(a("pub struct A;\nfn f() { super::b() }"), [""; 0]);
        let declared = found(&[
            ("net/mod.rs", "#[cfg(test)]\nmod a;\nmod b;"),
            ("net/a.rs", "pub struct A;\nuse super::b::B;"),
            ("net/b.rs", b),
        ]);
        assert_eq!(declared, [""; 0], "a file of tests");
    }
}
