//! Holds the source together: layers, files without circles, the places of `unsafe` and of `process::exit`, what is public, and what
//! ARCHITECTURE.md says of all this.
//!
//! Nothing in one crate keeps a lower module from using a higher one, so this test reads the source. `syn` parses each file once
//! (`source.rs`); every check is a function over what is read, and `samples` beside it shows it bad source, so that each is seen to
//! fail. `cargo test --test architecture -- --show-output` also prints the arrows, the longest functions and the tree of files.

mod attacks;
mod circles;
mod documents;
mod layers;
mod linked;
mod places;
mod public;
mod shape;
mod source;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use documents::{anchor_of, done_ids, is_mission_id, links, named_items, named_paths, names_id};
use layers::LAYERS;
use places::{BY_NAME, works_with};
use source::Source;
use tree::Tree;

/// The crates on which this one is to stand, as code names them: each does work in the program itself.
const CARD: &[&str] =
    &["anyhow", "caps", "cgroups_rs", "clap", "libc", "nix", "procfs", "rustix", "serde_json", "signal_hook"];

/// All files of `src/`, parsed.
static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let mut sources = parse(&files(&repository().join("src"), &[".rs"]));
    tree::mark_tests(&mut sources);
    sources
});

/// Parses files side by side.
fn parse(texts: &BTreeMap<String, String>) -> Vec<Source> {
    let texts: Vec<(&String, &String)> = texts.iter().collect();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let share = texts.len().div_ceil(workers).max(1);
    std::thread::scope(|scope| {
        let parts: Vec<_> = texts
            .chunks(share)
            .map(|part| scope.spawn(|| part.iter().map(|(path, text)| Source::parse(path, text)).collect::<Vec<_>>()))
            .collect();
        parts.into_iter().flat_map(|part| part.join().expect("the files are Rust")).collect()
    })
}

/// Everything that is checked of one file.
fn check_source(source: &Source) -> Vec<String> {
    let checks = [
        layers::hubs,
        layers::arrows,
        layers::path_attributes,
        places::unsafe_home,
        places::exits,
        places::path_searches,
        places::opens_by_name,
        places::unlisted_starts,
        places::large_maps,
        places::large_objects,
        shape::opening,
        shape::purpose,
    ];
    checks.iter().flat_map(|check| check(source)).collect()
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `dir` whose name ends in one of `ends`, as (path relative to `dir`, text).
fn files(dir: &Path, ends: &[&str]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        let Ok(entries) = fs::read_dir(&next) else { continue };
        for entry in entries {
            let path = entry.expect("reads a directory entry").path();
            if path.is_dir() {
                todo.push(path);
            } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
                let name = path.strip_prefix(dir).expect("lies below").to_string_lossy().into_owned();
                found.insert(name, String::from_utf8_lossy(&fs::read(&path).expect("reads a file")).into_owned());
            }
        }
    }
    found
}

fn report(what: &str, bad: &[String]) {
    assert!(bad.is_empty(), "{what}:\n{}", bad.join("\n"));
}

#[test]
fn the_source_keeps_its_layers() {
    assert!(SOURCES.len() > 10, "src/ was not read");
    let bad: Vec<String> = SOURCES.iter().flat_map(check_source).collect();
    let arrows: usize = SOURCES.iter().map(layers::count).sum();
    let up: usize = SOURCES.iter().map(|source| layers::arrows(source).len()).sum();
    println!("{arrows} arrows between modules, {up} of them not down");
    report("the source is out of order", &bad);
}

#[test]
fn no_files_of_a_module_make_a_circle() {
    let tree = Tree::new(&SOURCES);
    let arrows = circles::between_files(&tree);
    let found = circles::circles(&arrows);
    println!("{} arrows between files of one module, {} circles", arrows.len(), found.len());
    report("files of one module use each other in a circle; move an item to where both can use it", &found);
}

#[test]
fn the_longest_functions_are_known() {
    println!("the longest functions:");
    for (lines, path, line, name) in shape::longest(&SOURCES, 10) {
        println!("{lines:5} lines  {name} (src/{path}:{line})");
    }
}

#[test]
fn the_tree_of_files_is_known() {
    println!("{}", shape::drawn(&SOURCES));
}

/// `public.txt` is what programs that embed the library may use. Who changes it tells them.
#[test]
fn what_is_public_is_listed() {
    let list = repository().join("tests/architecture/public.txt");
    let found = public::items(&Tree::new(&SOURCES));
    println!("{} public items", found.len());
    if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() {
        let lines: Vec<&str> = found.iter().map(String::as_str).collect();
        fs::write(&list, lines.join("\n") + "\n").expect("writes the list");
    }
    let changes = public::changes(&fs::read_to_string(&list).unwrap_or_default(), &found);
    report(
        "the public items of the library have changed. `AGENTBIN_WRITE_GOLDEN=1 cargo test --test architecture what_is_public` \
         writes the list; CHANGELOG.md tells users in the same commit",
        &changes,
    );
}

#[test]
fn every_crate_of_the_card_does_work_in_the_program() {
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).expect("reads Cargo.toml");
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").expect("there are dependencies");
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let listed = |name: &str| {
        let names = dependencies.lines().filter_map(|line| line.split([' ', '=']).next());
        names.map(|listed| listed.replace('-', "_")).any(|listed| listed == name)
    };
    let bad: Vec<String> = CARD
        .iter()
        .filter(|name| !listed(name) || !SOURCES.iter().any(|source| works_with(source, name)))
        .map(|name| format!("{name} is not used by src/"))
        .collect();
    report("crates of the card", &bad);
}

#[test]
fn every_reason_to_open_by_name_is_needed() {
    let opens = |file: &str| {
        let source = SOURCES.iter().find(|source| source.path == file);
        source.is_some_and(|source| !places::opened_by_name(source).is_empty())
    };
    let bad: Vec<String> = BY_NAME
        .iter()
        .filter(|(file, _)| !opens(file))
        .map(|(file, _)| format!("{file} opens nothing by name"))
        .collect();
    report("reasons that nobody needs", &bad);
}

#[test]
fn the_lint_for_unsafe_is_on() {
    let lib = fs::read_to_string(repository().join("src/lib.rs")).expect("reads lib.rs");
    assert!(lib.contains("#![deny(unsafe_code)]"), "src/lib.rs does not deny unsafe_code");
    let allowed = lib.matches("(unsafe_code").count();
    assert_eq!(allowed, 2, "src/lib.rs lifts the ban on unsafe for more than sys");
}

#[test]
fn paths_in_the_documents_exist() {
    let mut bad = Vec::new();
    let pages: Vec<String> =
        files(&repository().join("docs"), &[".md"]).into_keys().map(|n| format!("docs/{n}")).collect();
    let tops = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"];
    for name in tops.into_iter().chain(pages.iter().map(String::as_str)) {
        let text = fs::read_to_string(repository().join(name)).expect("reads the document");
        for (line, link) in links(&text) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { name.into() } else { Path::new(name).with_file_name(file) };
            match fs::read_to_string(repository().join(&target)) {
                Err(_) => bad.push(format!("{name}:{line}: {link} leads nowhere")),
                Ok(page) if !anchor.is_empty() && !page.lines().any(|l| anchor_of(l).as_deref() == Some(anchor)) => {
                    bad.push(format!("{name}:{line}: {} has no heading #{anchor}", target.display()));
                }
                Ok(_) => {}
            }
        }
        for (line, path) in named_paths(&text) {
            if !repository().join(path).exists() {
                bad.push(format!("{name}:{line}: {path} does not exist"));
            }
        }
        for (line, path, item) in named_items(&text) {
            let source = SOURCES.iter().find(|source| path.strip_prefix("src/") == Some(&source.path));
            if !source.is_some_and(|source| source.defines(item)) {
                bad.push(format!("{name}:{line}: {path} defines no {item}"));
            }
        }
    }
    report("documents name what is not there", &bad);
}

#[test]
fn documents_for_a_first_reading_stay_short() {
    for (name, most) in [("README.md", 250), ("ARCHITECTURE.md", 300)] {
        let lines = fs::read_to_string(repository().join(name)).expect("reads the document").lines().count();
        assert!(lines <= most, "{name} has {lines} lines; move what is over {most} to docs/");
    }
}

#[test]
fn the_table_of_layers_in_the_document_is_this_one() {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("reads ARCHITECTURE.md");
    let mut bad = Vec::new();
    for (module, number) in LAYERS {
        if !repository().join("src").join(module).is_dir() {
            continue; // arrives with a later issue
        }
        let shown = *number;
        let row = text.lines().find(|l| l.starts_with('|') && l.contains(&format!("`{module}/`")));
        match row.and_then(|l| l.split('|').nth(1)) {
            Some(cell) if cell.trim() == shown.to_string() => {}
            Some(cell) => bad.push(format!("ARCHITECTURE.md has `{module}/` on layer {}, not {shown}", cell.trim())),
            None => bad.push(format!("ARCHITECTURE.md has no row for `{module}/`")),
        }
    }
    report("the table of layers drifted", &bad);
}

#[test]
fn what_is_done_has_a_test() {
    let document = fs::read_to_string(repository().join("docs/coverage.md")).expect("reads docs/coverage.md");
    let ids = done_ids(&document);
    assert!(!ids.is_empty(), "docs/coverage.md has no table of ids");
    let mut tests: Vec<String> = files(&repository().join("tests"), &[".rs", ".go", ".sh"])
        .into_iter()
        .filter(|(path, _)| !path.starts_with("architecture/"))
        .map(|(_, text)| text)
        .collect();
    tests.extend(files(&repository().join("src"), &[".rs"]).into_values().filter_map(|text| {
        let at = text.find("#[cfg(test)]")?;
        Some(text[at..].to_owned())
    }));
    let mut bad: Vec<String> = ids
        .into_iter()
        .filter(|id| !tests.iter().any(|text| names_id(text, id)))
        .map(|id| format!("docs/coverage.md says that {id} is done, but no test names it"))
        .collect();
    // Each file that a row names does so, too.
    for row in document.lines() {
        let Some(id) = row.strip_prefix('|').and_then(|r| r.split('|').next()).map(str::trim) else { continue };
        let named = if is_mission_id(id) { named_paths(row) } else { Vec::new() };
        for (_, path) in named {
            let text = fs::read_to_string(repository().join(path)).unwrap_or_default();
            if !names_id(&text, id) {
                bad.push(format!("docs/coverage.md says that {path} tests {id}, but it does not name it"));
            }
        }
    }
    report("promises without a test", &bad);
}

/// Invariant 13. Also what nobody calls must not be there: then nobody can begin to.
#[test]
#[cfg(not(feature = "mutants"))]
fn no_name_service_of_the_c_library_is_linked() {
    let symbols = linked::symbols(&fs::read(env!("CARGO_BIN_EXE_agentbin")).expect("reads the program"));
    assert!(symbols.contains("main"), "the program is stripped: nothing can be seen in it");
    report("the program may load the host's NSS modules", &linked::loading(&symbols));
}

/// The tables for unwinding are registered when the program starts, so that it needs no index of them (build.rs). A program
/// with neither would end at a panic instead of unwinding.
#[test]
#[cfg(all(not(feature = "mutants"), target_arch = "x86_64", target_env = "gnu"))]
fn a_panic_finds_the_tables_for_unwinding() {
    let symbols = linked::symbols(&fs::read(env!("CARGO_BIN_EXE_agentbin")).expect("reads the program"));
    for needed in ["__EH_FRAME_BEGIN__", "__register_frame_info"] {
        assert!(symbols.contains(needed), "{needed} is not linked in: build.rs may not leave the index out");
    }
}

#[test]
fn attacks_mutants_and_their_table_are_the_same() {
    let document = fs::read_to_string(repository().join("tests/attack/README.md")).expect("reads the table");
    let attacks = parse(&files(&repository().join("tests/attack"), &[".rs"]));
    report("the attack suite drifted", &attacks::faults(&document, &attacks, &SOURCES));
}

#[test]
fn one_bad_file_is_reported_once_per_fault() {
    let text = "//! Cgroups. Never anything else.\nuse crate::alloc::X;\nfn f() { unsafe { std::process::exit(1) } }\n";
    assert_eq!(check_source(&Source::parse("cgroup/mod.rs", text)).len(), 3);
}
