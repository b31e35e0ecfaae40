//! Arrows between modules: each points to a lower layer. And what would tie the modules together in spite of that.

use super::source::{Place, Source};

/// The layers. A module may use modules with a smaller number, none with the same or a larger one.
pub const LAYERS: &[(&str, u8)] = &[
    ("spec", 0),
    ("template", 0),
    ("sys", 0),
    ("cgroup", 1),
    ("jobspec", 1),
    ("names", 1),
    ("store", 1),
    ("net", 1),
    ("wire", 1),
    ("container", 2),
    ("docker", 2),
    ("http", 2),
    ("logs", 2), // below the executor, which collects the output of its task itself
    ("plugin", 2),
    ("artifact", 3),
    ("executor", 3),
    ("csi", 4),
    ("driver", 4),
    ("alloc", 5),
    ("agent", 6),
    ("cli", 7),
    ("roles", 7),
];

/// The arrows that stay on a layer: `roles` starts the command line, and two modules use `spec`, which does no I/O and uses nobody:
/// system calls speak of processes and signals in its words, and templates hold their values in its maps. Templates make keys with
/// functions of a C library, which `sys` calls.
const BESIDE: &[(&str, &str)] = &[("roles", "cli"), ("sys", "spec"), ("template", "spec"), ("template", "sys")];

/// Files of `src/` that belong to no module.
pub const OUTSIDE: &[&str] = &["fuzz.rs", "lib.rs", "main.rs"];

/// Names that end up imported by everybody; a type lives in the lowest module that understands it.
const HUBS: &[&str] = &["util", "utils", "common", "helper", "helpers"];

fn layer(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, n)| *n)
}

/// The module of a file: the first component of its path, `None` for the crate root.
pub fn module_of(path: &str) -> Option<&str> {
    if OUTSIDE.contains(&path) {
        return None;
    }
    Some(path.split('/').next().unwrap_or(path).trim_end_matches(".rs"))
}

/// How deep a file is in the tree of modules: 0 is the crate root, 1 a module of `src`.
fn module_depth(path: &str) -> usize {
    let parts = path.split('/').count();
    if path.ends_with("/mod.rs") { parts - 1 } else { parts }
}

/// Names at the crate root that a file uses, with the line of each: `crate::x`, `super::super::x`; `*` for all of them.
fn root_names(source: &Source) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for named in &source.paths {
        let mut depth = module_depth(&source.path) + named.inside.len();
        let mut words = named.words.iter().map(String::as_str).peekable();
        if !matches!(words.peek(), Some(&("crate" | "super" | "self"))) {
            continue;
        }
        while let Some(word) = words.next_if(|word| matches!(*word, "crate" | "super" | "self")) {
            depth = match word {
                "crate" => 0,
                "super" => depth.saturating_sub(1),
                _ => depth,
            };
        }
        let glob = matches!(named.place, Place::Use { name: None, .. }).then_some("*");
        if let (0, Some(name)) = (depth, words.next().or(glob)) {
            found.push((named.line, name));
        }
    }
    // `a::{self, b}` is one arrow.
    found.dedup();
    found
}

/// How many arrows lead from a file to other modules.
pub fn count(source: &Source) -> usize {
    let module = module_of(&source.path);
    root_names(source).into_iter().filter(|(_, name)| module.is_some_and(|module| module != *name)).count()
}

pub fn arrows(source: &Source) -> Vec<String> {
    let path = &source.path;
    let Some(module) = module_of(path) else { return Vec::new() };
    let Some(mine) = layer(module) else {
        return vec![format!("{path}: module `{module}` is not in the table of layers")];
    };
    let mut bad = Vec::new();
    for (line, name) in root_names(source) {
        match layer(name) {
            _ if name == module || BESIDE.contains(&(module, name)) => {}
            Some(theirs) if theirs < mine => {}
            Some(theirs) if theirs == mine => bad.push(format!("{path}:{line}: {module} -> {name} points sideways")),
            Some(_) => bad.push(format!("{path}:{line}: {module} -> {name} points up")),
            None => bad.push(format!("{path}:{line}: crate::{name} is not a module; name the module that owns it")),
        }
    }
    bad
}

/// A file may not be compiled into a module it does not lie in.
pub fn path_attributes(source: &Source) -> Vec<String> {
    let lines = source.path_attributes.iter();
    lines.map(|line| format!("{}:{line}: #[path] hides which module a file belongs to", source.path)).collect()
}

/// No hub module that everybody imports, and no module called `error`.
pub fn hubs(source: &Source) -> Vec<String> {
    let path = &source.path;
    let names: Vec<&str> = path.split('/').map(|part| part.trim_end_matches(".rs")).collect();
    let hub = names.iter().find(|n| HUBS.contains(n)).or(names.first().filter(|n| matches!(**n, "error" | "errors")));
    hub.map(|name| format!("{path}: `{name}` is a hub; put the item into the lowest module that understands it"))
        .into_iter()
        .collect()
}

mod samples {
    use super::*;

    fn arrows(path: &str, text: &str) -> Vec<String> {
        super::arrows(&Source::parse(path, text))
    }

    #[test]
    fn an_arrow_up_is_reported_with_its_line() {
        let text = "//! Cgroups. Never anything.\n\nuse crate::executor::Executor;\n";
        assert_eq!(arrows("cgroup/mod.rs", text), ["cgroup/mod.rs:3: cgroup -> executor points up"]);
    }

    #[test]
    fn arrows_hide_in_groups_and_expressions() {
        let bad = |text: &str| arrows("container/child/mounts.rs", text);
        assert_eq!(bad("use crate::{spec::Mount, executor::{self, X}, sys};").len(), 1);
        assert_eq!(
            bad("use crate::{\n    sys::{a, b::{c, d}},\n    alloc,\n};"),
            ["container/child/mounts.rs:3: container -> alloc points up"]
        );
        assert_eq!(bad("fn f() { crate::driver::start() }").len(), 1);
        assert_eq!(bad("fn f() -> Vec<crate::alloc::X> { g::<crate::agent::Y>() }").len(), 2);
        assert_eq!(bad("use super::super::super::alloc::X;").len(), 1, "depth 3: two supers stay in the module");
        assert_eq!(bad("use super::super::alloc::X;").len(), 0);
        assert_eq!(bad("mod inner { use super::super::super::super::alloc::X; }").len(), 1);
        assert_eq!(bad("mod inner { fn f() { if x { y } } }\nuse super::super::super::{sys, alloc};").len(), 1);
        assert_eq!(bad("use super::super::{super::alloc, x};").len(), 1);
        assert_eq!(bad("macro_rules! m { () => { $crate::alloc::x() } }").len(), 1);
        assert_eq!(bad("use crate::{sys::*, r#alloc as a};").len(), 1);
    }

    #[test]
    fn arrows_sideways_and_re_exports_are_reported() {
        assert_eq!(arrows("spec/job.rs", "use crate::sys::Pid;"), ["spec/job.rs:1: spec -> sys points sideways"]);
        assert_eq!(arrows("cli/run.rs", "use crate::roles::x;"), ["cli/run.rs:1: cli -> roles points sideways"]);
        assert_eq!(arrows("roles/mod.rs", "use crate::cli::command;"), [""; 0]);
        assert_eq!(arrows("sys/time.rs", "use crate::spec::ProcessId;"), [""; 0]);
        assert_eq!(arrows("alloc/mod.rs", "use crate::init;").len(), 1);
        assert_eq!(arrows("alloc/mod.rs", "use crate::*;").len(), 1);
        assert_eq!(arrows("attic/mod.rs", ""), ["attic/mod.rs: module `attic` is not in the table of layers"]);
    }

    #[test]
    fn comments_strings_and_own_paths_are_no_arrows() {
        let text = r##"
            // use crate::alloc::X;
            /* crate::alloc /* nested */ crate::alloc */
            const A: &str = "crate::alloc";
            const B: &str = r#"say "crate::alloc" twice"#;
            const C: char = '"'; fn f<'a>(x: &'a str) {}
            pub(crate) use crate::executor::y;
            pub(in crate::executor) fn g() { self::h(); super::k() }
            use crate::{plugin, spec::{Task, Role}};
            use std::crate_like::alloc;
        "##;
        assert_eq!(arrows("executor/service.rs", text), [""; 0]);
    }

    #[test]
    fn hubs_and_path_attributes_are_refused() {
        let hubs = |path: &str| super::hubs(&Source::parse(path, ""));
        for path in ["utils.rs", "common/mod.rs", "error.rs", "error/mod.rs", "cgroup/utils.rs", "plugin/common/x.rs"] {
            assert_eq!(hubs(path).len(), 1, "{path}");
        }
        assert_eq!(hubs("jobspec/error.rs"), [""; 0], "errors of a module are its own");
        let bad = |text: &str| path_attributes(&Source::parse("sys/mod.rs", text));
        assert_eq!(bad("#[path = \"../alloc/x.rs\"]\nmod x;").len(), 1);
        assert_eq!(bad("#[cfg_attr(unix, path = \"../alloc/x.rs\")]\nmod x;").len(), 1);
        assert_eq!(bad("#[cfg(test)]\nmod x;"), [""; 0]);
    }
}
