//! What people see of a mistake in a job file: golden texts beside the files, in `tests/errors`.
//!
//! `AGENTBIN_WRITE_GOLDEN=1 cargo test --test errors` writes them anew; read what has changed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/errors")
}

/// What `agentbin validate` says of a file, and its exit status.
fn told(name: &str) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_agentbin"))
        .args(["validate", name])
        .current_dir(directory())
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .output()
        .expect("starts agentbin");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    format!("{}{}exit status {}\n", text(out.stdout), text(out.stderr), out.status.code().expect("ends by itself"))
}

#[test]
fn j1_mistakes_are_told_with_line_caret_and_fix() {
    let mut names: Vec<String> = std::fs::read_dir(directory())
        .expect("lists the files")
        .map(|entry| entry.expect("lists the files").file_name().into_string().expect("a text"))
        .filter(|name| !name.ends_with(".txt"))
        .collect();
    names.sort();
    assert!(names.len() >= 100, "{names:?}");
    let mut bad = Vec::new();
    for name in names {
        let golden = directory().join(format!("{name}.txt"));
        let told = told(&name);
        if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() {
            std::fs::write(&golden, &told).expect("writes the golden text");
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        if told != expected {
            bad.push(format!("{name}: expected\n{expected}\nand it says\n{told}"));
        }
        // Each mistake names the place to go to, and is followed by its line and a caret, where it has one.
        let places = told.lines().filter(|line| line.contains("--> ")).count();
        let carets = told.lines().filter(|line| line.trim_start().starts_with('|') && line.contains('^')).count();
        if places == 0 || places != carets {
            bad.push(format!("{name}: {places} places, {carets} carets\n{told}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
