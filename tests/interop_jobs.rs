//! J1: job files in the API's form beside the real parser (`tests/jobfiles`): the JSON that `nomad job run -output` prints, and the
//! defaults of the API's client.

use std::path::{Path, PathBuf};
use std::process::Command;

use agentbin::jobspec::{self, Input};
use serde_json::Value as Json;

fn module() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobfiles")
}

fn binary(test: &str) -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: {test}: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("go-jobfiles-{test}"));
    let go = Command::new("go").args(["build", "-o"]).arg(&binary).arg(".").current_dir(module()).output().unwrap();
    assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
    Some(binary)
}

/// What the real parser says of each file.
fn ask(binary: &Path, mode: &str, files: &[PathBuf]) -> Vec<Json> {
    let out = Command::new(binary).arg(mode).args(files).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let answers: Vec<Json> = out
        .stdout
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!(answers.len(), files.len());
    answers
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs-form");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths.filter(|path| path.to_string_lossy().contains(".nomad.")).collect();
    files.sort();
    assert!(files.len() >= 100, "only {} files", files.len());
    files
}

fn ours(path: &Path) -> Result<Json, jobspec::Error> {
    let text = std::fs::read_to_string(path).unwrap();
    jobspec::to_api(&Input {
        file: path,
        text: &text,
        vars: &[],
        var_files: &[],
        env: &[],
        base_dir: path.parent().unwrap(),
        stays_in_base_dir: false,
    })
}

/// Replaces what differs from one call to the next: ids that are made up, and the time of the submission.
fn normalised(value: &Json) -> Json {
    match value {
        Json::String(text) => Json::from(without_ids(text)),
        Json::Array(items) => items.iter().map(normalised).collect(),
        Json::Object(members) => {
            let member = |(name, value): (&String, &Json)| {
                let value =
                    if name == "SubmitTime" && !value.is_null() { Json::from("time") } else { normalised(value) };
                (name.clone(), value)
            };
            Json::Object(members.iter().map(member).collect())
        }
        // Go has numbers of 64 bits with a point behind the same value.
        Json::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => Json::from(float),
            _ => value.clone(),
        },
        other => other.clone(),
    }
}

fn without_ids(text: &str) -> String {
    const PARTS: [usize; 5] = [8, 4, 4, 4, 12];
    let is_id = |text: &str| -> bool {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == PARTS.len()
            && parts.iter().zip(PARTS).all(|(part, n)| part.len() == n && part.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if rest.get(..36).is_some_and(is_id) {
            out.push_str("id");
            rest = &rest[36..];
        } else {
            out.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    out
}

/// The first place where two values differ.
fn difference(path: &str, real: &Json, ours: &Json) -> Option<String> {
    match (real, ours) {
        (Json::Object(real), Json::Object(ours)) => {
            if let Some(more) = ours.keys().find(|name| !real.contains_key(*name)) {
                return Some(format!("{path}.{more} is not Nomad's"));
            }
            real.iter().find_map(|(name, value)| match ours.get(name) {
                None => Some(format!("{path}.{name} is missing")),
                Some(other) => difference(&format!("{path}.{name}"), value, other),
            })
        }
        (Json::Array(real), Json::Array(ours)) if real.len() == ours.len() => real
            .iter()
            .zip(ours)
            .enumerate()
            .find_map(|(i, (real, ours))| difference(&format!("{path}[{i}]"), real, ours)),
        (Json::Number(a), Json::Number(b)) if a.as_f64() == b.as_f64() && a.as_i64() == b.as_i64() => None,
        (Json::Number(a), Json::Number(b)) if (a.is_f64() || b.is_f64()) && a.as_f64() == b.as_f64() => None,
        (real, ours) if real == ours => None,
        (real, ours) => Some(format!("{path} is {ours}, and with Nomad {real}")),
    }
}

#[test]
fn j1_job_files_become_the_same_json() {
    let Some(binary) = binary("j1_job_files_become_the_same_json") else { return };
    let files = files();
    let mut bad = Vec::new();
    for ((path, raw), full) in files.iter().zip(ask(&binary, "raw", &files)).zip(ask(&binary, "parse", &files)) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(raw["error"].is_null(), "{name}: {}", raw["error"]);
        let found = match ours(path) {
            Ok(found) => found,
            Err(error) => {
                bad.push(format!("{name}: {error}"));
                continue;
            }
        };
        let written = difference("Job", &normalised(&raw["job"]), &normalised(&found["Job"]));
        bad.extend(written.map(|d| format!("{name}: {d}")));
        let filled = Json::Object(jobspec::with_defaults(&found).unwrap());
        let defaults = difference("Job", &normalised(&full["job"]), &normalised(&filled));
        bad.extend(defaults.map(|d| format!("{name} with defaults: {d}")));
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The comparison sees each value that is another one: changed, missing, of another type, or more.
#[test]
fn j1_the_comparison_sees_every_value() {
    let mut changed = 0;
    for path in files() {
        let real = normalised(&ours(&path).unwrap()["Job"]);
        assert_eq!(difference("Job", &real, &real), None);
        let mut places = Vec::new();
        leaves(&real, &mut Vec::new(), &mut places);
        for place in places {
            let mut other = real.clone();
            let value = other.pointer_mut(&place).unwrap();
            *value = match value.take() {
                Json::Null => Json::from(0),
                Json::Bool(b) => Json::from(!b),
                Json::Number(n) => {
                    n.as_i64().map_or_else(|| Json::from(n.as_f64().unwrap() + 1.0), |n| Json::from(n + 1))
                }
                Json::String(s) => Json::from(s + "x"),
                Json::Array(_) => Json::from(vec![Json::Null]),
                Json::Object(_) => Json::Null,
            };
            assert!(difference("Job", &real, &normalised(&other)).is_some(), "{}: {place}", path.display());
            changed += 1;
        }
    }
    assert!(changed > 10_000, "{changed}");
    let lacking = serde_json::json!({ "a": 1 });
    assert!(difference("", &serde_json::json!({ "a": 1, "b": null }), &lacking).is_some());
    assert!(difference("", &lacking, &serde_json::json!({ "a": 1, "b": null })).is_some());
    assert_eq!(without_ids("x-ad5a3407-dfc3-4eb6-b098-7035c18d6717-y é"), "x-id-y é");
}

/// Pointers to everything that has no members.
fn leaves(value: &Json, path: &mut Vec<String>, out: &mut Vec<String>) {
    let inner: Vec<(String, &Json)> = match value {
        Json::Array(items) => items.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        Json::Object(members) => members.iter().map(|(k, v)| (k.replace('~', "~0").replace('/', "~1"), v)).collect(),
        _ => Vec::new(),
    };
    if inner.is_empty() {
        out.push(path.iter().fold(String::new(), |pointer, part| pointer + "/" + part));
    }
    for (name, value) in inner {
        path.push(name);
        leaves(value, path, out);
        path.pop();
    }
}

/// A field that the API gets or loses fails here: run `go run . types` in tests/jobfiles and look at what it means.
#[test]
fn j1_the_table_of_types_is_that_of_the_api_package() {
    let Some(binary) = binary("j1_the_table_of_types_is_that_of_the_api_package") else { return };
    let out = Command::new(binary).arg("types").output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert_eq!(text, include_str!("../src/jobspec/form/types.txt"));
}

/// What a line of a job file is made, with the change's name: something that neither takes.
fn mutants(text: &str) -> Vec<(usize, String)> {
    const FREE: [&str; 12] = [
        "config",
        "env",
        "meta",
        "policy",
        "options",
        "headers",
        "header",
        "canary_meta",
        "tagged_addresses",
        "add",
        "set",
        "locals",
    ];
    let mut out = Vec::new();
    let mut blocks: Vec<&str> = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let word = line.trim_start().split([' ', '"']).next().unwrap_or_default();
        let free = blocks.iter().any(|b| FREE.contains(b) || matches!(*b, "dynamic" | "content" | "variable"));
        let is_block = line.trim_end().ends_with('{') && !line.contains('=');
        let replaced = |new: String| {
            let mut lines: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
            lines[at] = new;
            (at + 1, lines.join("\n") + "\n")
        };
        if line.trim_end().ends_with('{') || line.trim_end().ends_with('[') || line.contains("<<") {
            blocks.push(if is_block { word } else { "config" });
        }
        if is_block && !free && !blocks.is_empty() && word != "job" && !FREE.contains(&word) {
            out.push(replaced(line.replacen(word, &format!("{word}zz"), 1)));
        } else if !free
            && !is_block
            && line.contains(" = ")
            && line.trim_end().ends_with(|c| c != '{' && c != '[' && c != 'F')
        {
            out.push(replaced(line.replacen(word, &format!("{word}zz"), 1)));
            out.push(replaced(format!("{} = {{ a = 1 }}", line.split(" = ").next().unwrap())));
            out.push(replaced(format!("{line} )")));
        }
        if matches!(line.trim(), "}" | "]" | "}]" | "EOF") {
            blocks.pop();
        }
    }
    out
}

/// J1: what Nomad refuses is refused here, in the line where it is.
#[test]
fn j1_mutated_files_are_refused_in_their_line() {
    let Some(binary) = binary("j1_mutated_files_are_refused_in_their_line") else { return };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutated-jobs");
    std::fs::create_dir_all(&dir).unwrap();
    let mut made: Vec<(PathBuf, usize)> = Vec::new();
    for path in files().iter().filter(|p| p.extension().is_some_and(|e| e == "hcl")) {
        let text = std::fs::read_to_string(path).unwrap();
        for (i, (line, mutant)) in mutants(&text).into_iter().enumerate().step_by(3) {
            let name = format!("{i}-{}", path.file_name().unwrap().to_string_lossy());
            let file = dir.join(name);
            std::fs::write(&file, mutant).unwrap();
            made.push((file, line));
        }
    }
    let paths: Vec<PathBuf> = made.iter().map(|(path, _)| path.clone()).collect();
    let (mut refused, mut bad) = (0, Vec::new());
    for ((path, line), answer) in made.iter().zip(ask(&binary, "raw", &paths)) {
        let by_nomad = !answer["error"].is_null();
        match ours(path) {
            Err(error) if by_nomad => {
                refused += 1;
                if !error.diagnostics.iter().any(|d| d.pos.line as usize == *line) {
                    bad.push(format!("{}: line {line} is not named: {error}", path.display()));
                }
            }
            Ok(_) if by_nomad => bad.push(format!("{}: accepted; with Nomad {}", path.display(), answer["error"])),
            // What is wrong in these blocks of a group is lost there.
            Err(_) if ["group-vault", "group-secret"].iter().any(|name| path.to_string_lossy().contains(name)) => {}
            Err(error) => bad.push(format!("{}: Nomad takes it: {error}", path.display())),
            Ok(_) => {}
        }
    }
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), made.len(), bad.join("\n"));
    assert!(refused >= 200, "only {refused} of {} are refused", made.len());
    std::fs::remove_dir_all(&dir).unwrap();
}
