//! The shape of the source: what each file says of itself, and how long its functions are.

use std::fmt::Write as _;

use super::source::Source;

/// A module opens with its one job and with what it never does.
pub fn opening(source: &Source) -> Vec<String> {
    let path = &source.path;
    if path.split('/').count() != 2 || !path.ends_with("/mod.rs") {
        return Vec::new();
    }
    if source.doc.trim().is_empty() {
        return vec![format!("{path}:1: a module opens with a `//!` sentence that says its one job")];
    }
    // A module that is still empty says so; it owes its sentence from its first item on.
    if source.empty || source.doc.replace('\n', " ").contains("ever ") {
        return Vec::new();
    }
    vec![format!("{path}:1: the opening does not say what the module never does (\"Never ...\")")]
}

/// Each file says in its first sentence what it is for.
pub fn purpose(source: &Source) -> Vec<String> {
    if first_sentence(&source.doc).is_some() {
        return Vec::new();
    }
    vec![format!("{}:1: a file opens with a `//!` sentence that says what it is for", source.path)]
}

/// The first sentence of a comment, on one line.
fn first_sentence(doc: &str) -> Option<String> {
    let paragraph: Vec<&str> = doc.trim_start().lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let text = paragraph.join(" ");
    let end = text.match_indices(". ").map(|(at, _)| at + 1).find(|end| !text[..*end].ends_with("e.g."));
    let sentence = &text[..end.unwrap_or(text.len())];
    sentence.contains(char::is_alphabetic).then(|| sentence.to_owned())
}

/// The files of the source as a tree, each with its sentence.
pub fn drawn(sources: &[Source]) -> String {
    let mut tree = String::new();
    let mut above: Vec<&str> = Vec::new();
    for source in sources {
        let mut parts: Vec<&str> = source.path.split('/').collect();
        let name = parts.pop().unwrap_or_default();
        let same = above.iter().zip(&parts).take_while(|(one, other)| one == other).count();
        for (depth, part) in parts.iter().enumerate().skip(same) {
            writeln!(tree, "{:indent$}{part}/", "", indent = 2 * depth).expect("a string takes all");
        }
        let sentence = first_sentence(&source.doc).unwrap_or_default();
        let indent = 2 * parts.len();
        writeln!(tree, "{:indent$}{name}: {sentence}", "").expect("a string takes all");
        above = parts;
    }
    tree
}

/// The longest functions of the program: lines, file, line, name.
pub fn longest(sources: &[Source], count: usize) -> Vec<(usize, &str, usize, &str)> {
    let of_program = sources.iter().filter(|source| !source.of_tests);
    let mut all: Vec<_> = of_program
        .flat_map(|source| source.functions.iter().map(move |function| (source, function)))
        .filter(|(_, function)| !function.of_tests)
        .map(|(source, function)| (function.lines, source.path.as_str(), function.line, function.name.as_str()))
        .collect();
    all.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.cmp(other)));
    all.truncate(count);
    all
}

mod samples {
    use super::*;

    #[test]
    fn a_module_says_its_job_and_its_never() {
        let opening = |path: &str, text: &str| super::opening(&Source::parse(path, text));
        assert_eq!(opening("cgroup/mod.rs", "use x;").len(), 1);
        assert_eq!(opening("cgroup/mod.rs", "//! Cgroups.\nuse x;").len(), 1);
        assert_eq!(opening("cgroup/mod.rs", "//! Cgroups. Never\n//! finds its own root.\nuse x;"), [""; 0]);
        assert_eq!(opening("cgroup/v1/mod.rs", "use x;"), [""; 0], "only modules");
        assert_eq!(opening("cgroup/mod.rs", "//! Skeleton.\n"), [""; 0], "nothing in it yet");
    }

    #[test]
    fn a_file_without_a_sentence_is_reported() {
        let purpose = |text: &str| super::purpose(&Source::parse("cgroup/v1.rs", text));
        let missing = ["cgroup/v1.rs:1: a file opens with a `//!` sentence that says what it is for"];
        assert_eq!(purpose("// A comment.\n/// Of the function.\nfn f() {}"), missing);
        assert_eq!(purpose("//!\n//! ---\nfn f() {}"), missing);
        assert_eq!(purpose("//! Version 1\n//! of cgroups. More.\nfn f() {}"), [""; 0]);
        assert_eq!(first_sentence(" Version 1.2\n of `x.y`. More.\n").as_deref(), Some("Version 1.2 of `x.y`."));
        assert_eq!(first_sentence(" One line\n\n Another.").as_deref(), Some("One line"));
    }

    #[test]
    fn the_tree_has_a_line_for_each_file() {
        let sources = [
            Source::parse("a/b/c.rs", "//! See. Not this.\n"),
            Source::parse("a/mod.rs", "//! Ay.\n"),
            Source::parse("lib.rs", "//! All.\n"),
        ];
        assert_eq!(drawn(&sources), "a/\n  b/\n    c.rs: See.\n  mod.rs: Ay.\nlib.rs: All.\n");
    }

    #[test]
    fn the_longest_functions_are_those_of_the_program() {
        let text = "fn one() {}\nimpl A {\n    /// Not this line.\n    fn three(\n    ) {\n    }\n}\n#[cfg(test)]\nmod tests {\n    fn five() {\n\n\n\n    }\n}\n";
        let sources = [Source::parse("a.rs", text)];
        assert_eq!(longest(&sources, 10), [(3, "a.rs", 4, "three"), (1, "a.rs", 1, "one")]);
        assert_eq!(longest(&sources, 1).len(), 1);
    }
}
