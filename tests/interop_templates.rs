//! J4: templates beside the real library (`tests/templates`): the same bytes, or a refusal at the same line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;

use agentbin::spec::collections::BTreeMap;
use agentbin::template::{Found, Host, Limits, Service, Template, Tree, Variable};
use serde_json::{Value as Json, json};

#[path = "support/golden.rs"]
#[expect(dead_code, reason = "its build is that of another Go module")]
mod golden;

/// What the templates find; `tests/templates/main.go` has the same.
struct Fixed;

impl Host for Fixed {
    fn env(&self, name: &str) -> Option<Vec<u8>> {
        let value: &[u8] = match name {
            "NAME" => b"web",
            "EMPTY" => b"",
            "LIST" => b"a,b,c",
            "JSON" => br#"{"a":1,"b":[true,null,"x"],"c":{"d":"<e>"},"f":1.5,"g":1e21}"#,
            "BAD" => b"\xff\xfeok",
            _ => return None,
        };
        Some(value.to_vec())
    }

    fn file(&self, _: &[u8]) -> Result<Vec<u8>, String> {
        Err("there are no files".to_owned())
    }

    fn key(&self, path: &str) -> Found<String> {
        match path {
            "app/name" => Found::Here("web".to_owned()),
            "app/port" => Found::Here("8080".to_owned()),
            "app/db/host" => Found::Here("db.example".to_owned()),
            _ => Found::Missing,
        }
    }

    fn tree(&self, prefix: &str) -> Tree {
        let pairs = [("db/host", "db.example"), ("name", "web"), ("port", "8080")];
        let pairs = pairs.iter().filter(|_| prefix == "app").map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        pairs.collect()
    }

    fn secret(&self, path: &str) -> Found<Json> {
        match path {
            "secret/data/x" => Found::Here(json!({"data": {"password": "p<w>", "n": 3.0}})),
            _ => Found::Missing,
        }
    }

    fn secrets(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn variable(&self, path: &str) -> Found<Variable> {
        if path != "nomad/jobs/x" {
            return Found::Missing;
        }
        let items = [("user", "admin"), ("pass", "s3 \"cret\""), ("odd-key", "x")];
        Found::Here(items.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    fn variables(&self, _: &str) -> Vec<String> {
        vec!["nomad/jobs/x".to_owned()]
    }

    fn services(&self) -> Vec<Service> {
        let of = |(i, tag): (u16, &str)| Service {
            id: format!("web-{i}"),
            name: "web".to_owned(),
            node: "node".to_owned(),
            address: "10.0.0.1".to_owned(),
            port: 8080 + i,
            datacenter: "dc1".to_owned(),
            tags: vec!["http".to_owned(), tag.to_owned()],
            meta: BTreeMap::from([("color".to_owned(), tag.to_owned())]),
            job: "job".to_owned(),
            alloc: "alloc".to_owned(),
            status: "passing".to_owned(),
        };
        [(0, "blue"), (1, "green")].map(of).into()
    }

    fn now(&self) -> (i64, u32) {
        (0, 0)
    }
}

/// A line of the table as a template, and whether a missing key is an error.
fn template_of(line: &str) -> (Vec<u8>, bool) {
    let (line, strict) = line.strip_prefix('!').map_or((line, false), |rest| (rest, true));
    let mut bytes = Vec::new();
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        match c {
            '↵' => bytes.push(b'\n'),
            '‹' => {
                bytes.extend(golden::bytes(&rest[c.len_utf8()..c.len_utf8() + 2]));
                rest = &rest[c.len_utf8() + 2 + '›'.len_utf8()..];
                continue;
            }
            c => bytes.extend(c.to_string().bytes()),
        }
        rest = &rest[c.len_utf8()..];
    }
    (bytes, strict)
}

fn ours(text: &[u8], strict: bool) -> Result<Vec<u8>, agentbin::template::TemplateError> {
    let cancel = AtomicBool::new(false);
    let template = Template::parse(text, "{{", "}}", &cancel)?;
    template.render(&Fixed, strict, Limits::default(), &cancel).map(|rendered| rendered.output)
}

fn binary() -> Option<PathBuf> {
    if Command::new("go").arg("version").output().is_err() {
        println!("SKIP: interop_templates: no go toolchain; scripts/setup says how to get one");
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "no skips in CI");
        return None;
    }
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-templates");
    let go = Command::new("go").args(["build", "-o"]).arg(&binary).arg(".").current_dir(module).output().unwrap();
    assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
    Some(binary)
}

#[test]
fn j4_templates_render_as_the_real_library_does() {
    let Some(binary) = binary() else { return };
    let table = include_str!("templates/cases.txt");
    let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert!(lines.len() >= 300, "only {} templates", lines.len());
    let answers = golden::ask(&binary, "", table);
    let answers: Vec<Json> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), lines.len());
    let (mut rendered, mut refused, mut faults) = (0, 0, Vec::new());
    for (line, answer) in lines.iter().zip(&answers) {
        let (text, strict) = template_of(line);
        match (ours(&text, strict), answer["hex"].as_str()) {
            (Ok(bytes), Some(hex)) if golden::hex(&bytes) == hex => rendered += 1,
            // A panic of the library's has no line.
            (Err(error), None) if answer["line"] == error.line || answer["line"] == 0 => refused += 1,
            (mine, Some(hex)) => faults.push(format!(
                "{line}\n  Go's {}\n  ours {}",
                String::from_utf8_lossy(&golden::bytes(hex)),
                mine.map_or_else(|e| e.to_string(), |b| String::from_utf8_lossy(&b).into_owned())
            )),
            (mine, None) => faults.push(format!(
                "{line}\n  Go's {} {}\n  ours {}",
                answer["line"],
                answer["error"],
                mine.map_or_else(|e| e.to_string(), |b| String::from_utf8_lossy(&b).into_owned())
            )),
        }
    }
    assert!(faults.is_empty(), "{} of {} differ:\n{}", faults.len(), lines.len(), faults.join("\n"));
    println!("{rendered} rendered to the same bytes, {refused} refused at the same line");
}

/// yaml's order of keys is none: "10" < "1a" < "9" < "10". Whoever writes such keys gets them all, and no panic.
#[test]
fn j4_keys_without_an_order_are_all_written() {
    let keys: Vec<String> = (0..100_u64).map(|i| format!("{:x}", i * 2_654_435_761 % 65_536)).collect();
    let map: BTreeMap<&str, u8> = keys.iter().map(|key| (key.as_str(), 0)).collect();
    let text = format!("{{{{ parseJSON `{}` | toYAML }}}}", serde_json::to_string(&map).unwrap());
    let written = String::from_utf8(ours(text.as_bytes(), true).unwrap()).unwrap();
    assert_eq!(written.lines().count(), map.len(), "{written}");
    assert!(map.keys().all(|key| written.contains(key)), "{written}");
}
