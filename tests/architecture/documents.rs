//! What documents say of the source: the paths, items, anchors and mission ids that they name.

/// Spans in backticks of a document, with their lines; fenced blocks are examples and do not count.
fn backticked(document: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut fenced = false;
    for (number, line) in document.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            spans.extend(line.split('`').skip(1).step_by(2).map(|span| (number + 1, span)));
        }
    }
    spans
}

/// Paths of the repository that a document names.
pub fn named_paths(document: &str) -> Vec<(usize, &str)> {
    const TOPS: &[&str] =
        &["src/", "tests/", "scripts/", "proto/", "examples/", "benches/", "man/", "docs/", ".ci/", ".cargo/"];
    backticked(document)
        .into_iter()
        .map(|(line, span)| (line, span.split([' ', ':', '#']).next().unwrap_or(span)))
        .filter(|(_, path)| TOPS.iter().any(|top| path.starts_with(top)) && !path.contains(['*', '<', '{']))
        .collect()
}

/// Where a document's links lead inside of the repository, with their lines.
pub fn links(document: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    for (number, line) in document.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let target = line[at + 2..].split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.starts_with("mailto:") {
                links.push((number + 1, target));
            }
        }
    }
    links
}

/// The name by which a heading can be linked to, as code hosts make it.
pub fn anchor_of(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept =
        title.to_lowercase().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c)).collect::<String>();
    Some(kept.replace(' ', "-"))
}

/// Names that a document says are in a file: `src/a.rs::name`.
pub fn named_items(document: &str) -> Vec<(usize, &str, &str)> {
    backticked(document)
        .into_iter()
        .filter_map(|(line, span)| span.split_once("::").map(|(path, name)| (line, path, name)))
        .filter(|(_, path, _)| path.starts_with("src/") && path.ends_with(".rs"))
        .collect()
}

/// The ids in the first column of the table below the heading that names it.
pub fn done_ids(document: &str) -> Vec<&str> {
    document
        .lines()
        .skip_while(|l| !(l.starts_with('#') && l.to_lowercase().contains("coverage")))
        .skip(1)
        .take_while(|l| !l.starts_with('#'))
        .filter_map(|l| l.strip_prefix('|')?.split('|').next())
        .map(str::trim)
        .filter(|id| is_mission_id(id))
        .collect()
}

pub fn is_mission_id(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_uppercase())
        && chars.as_str().parse::<u8>().is_ok_and(|n| n.to_string() == chars.as_str())
}

/// Whether a text names an id as a word of its own, or has a test whose name begins with it.
pub fn names_id(text: &str, id: &str) -> bool {
    text.match_indices(id).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + id.len()..].chars().next();
        let outside = |c: Option<char>| c.is_none_or(|c| !(c.is_alphanumeric() || c == '_'));
        outside(before) && outside(after)
    }) || text.contains(&format!("fn {}_", id.to_lowercase()))
}

mod samples {
    use super::super::source::Source;
    use super::*;

    #[test]
    fn document_paths_and_ids_are_found() {
        let text = "See `src/sys/path.rs:12` and `scripts/test guest`, not `tests/*.rs`.\n```\n`src/none.rs`\n```\n";
        assert_eq!(named_paths(text), [(1, "src/sys/path.rs"), (1, "scripts/test")]);
        assert_eq!(named_items("so `src/a.rs::main` and `crate::x`"), [(1, "src/a.rs", "main")]);
        let defines = |text: &str, name: &str| Source::parse("a.rs", text).defines(name);
        assert!(defines("pub async fn main() {}", "main") && !defines("// fn main\nconst X: u8 = main();", "main"));
        assert!(
            defines("impl A { fn start() {} } trait B { fn stop(); }", "start")
                && defines("trait B { fn stop(); }", "stop")
        );
        let text = "| A9 | no |\n## Coverage\n| id | what |\n|---|---|\n| A1 | x |\n| N12 | y |\n## Next\n| B1 | z |\n";
        assert_eq!(done_ids(text), ["A1", "N12"]);
        assert!(names_id("// A1: roles", "A1") && names_id("(A1)", "A1"));
        assert!(!names_id("A12 BA1 A1_x", "A1"));
    }
}
