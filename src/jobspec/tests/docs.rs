//! `docs/job-files.md`: every block and key with what becomes of it, made from the table that the parser uses.
//!
//! After a change of the table, `AGENTBIN_WRITE_DOCS=1 cargo test --lib job_files_md` writes it anew.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::schema::{BlockSchema, JOB, Often, Schema, Takes, Use};
use crate::spec::collections::BTreeSet;

const HEAD: &str = "# Blocks and keys of job files

<!-- Made from src/jobspec/schema.rs by a test, which says how; not written by hand. -->

Every block and key of Nomad's job specification, and what `agentbin run` does with it. `agentbin validate FILE` reads all of them and starts
nothing. A name that is not here is an error in both; the error suggests the nearest name.

| in the tables | means |
|---|---|
| done | it does here what Nomad's documentation says |
| only by `agentbin agent` | accepted by `run`, with a warning; `agentbin agent` does what Nomad's documentation says |
| no meaning here | accepted, with a warning: only a scheduler or a server reads it, and the task cannot tell whether it was there |
| accepted | with a warning that says what happens instead |
| refused | accepted by `validate` with a warning, refused by `run` before anything starts: running without it would not be what the file says |

`--strict` turns warnings into errors. Ignored blocks are checked as well: a misspelt name or a value of the wrong type in them is an error.
";

/// What the table cannot say: path of the key, and what of it is done.
const NOTES: [(&str, &str); 11] = [
    ("job.periodic", "`agentbin agent` starts it at its times"),
    ("job.group.max_run_duration", "`agentbin agent` does it"),
    ("job.group.service.provider", "both `nomad` and `consul` are agentbin's own registry; `consul` with a warning"),
    ("job.group.service.on_update", "decides the health of the allocation, which the agent's deployments look at"),
    ("job.group.service.weights", "kept and shown; no DNS asks for them"),
    ("job.group.service.check.expose", "`true` is refused"),
    ("job.group.service.check.type", "`tcp`, `http`, `https`, `grpc`, `script`"),
    (
        "job.group.volume.access_mode",
        "of a host volume it must be one of a single node; only for a dynamic one of the agent",
    ),
    ("job.group.volume.attachment_mode", "of a host volume only for a dynamic one of the agent"),
    ("job.group.volume.mount_options", "a mistake with `type = \"host\"`, as in Nomad"),
    ("job.group.task.volume_mount.selinux_label", "docker only; other drivers have no labels"),
];

fn takes(takes: Takes) -> &'static str {
    match takes {
        Takes::Text => "text",
        Takes::Number => "number",
        Takes::Flag => "`true` or `false`",
        Takes::Duration => "duration",
        Takes::Texts => "list of texts",
        Takes::Map => "map of texts",
        Takes::Any => "any value",
    }
}

/// What becomes of something in a block that becomes `around`.
fn inside(around: Use, own: Use) -> Use {
    match (around, own) {
        (Use::Taken, own) => own,
        (Use::Refused(_), _) => around,
        (_, refused @ Use::Refused(_)) => refused,
        _ => around,
    }
}

fn becomes(becomes: Use) -> String {
    match becomes {
        Use::Taken => "done".to_owned(),
        Use::Agent => "only by `agentbin agent`".to_owned(),
        Use::NoEffect => "no meaning here".to_owned(),
        Use::Instead(what) => format!("accepted: {what}"),
        Use::Refused(fix) => format!("refused; {fix}"),
    }
}

fn row(out: &mut String, path: &str, name: &str, takes: &str, used: Use) {
    let note = NOTES.iter().find(|(noted, _)| *noted == format!("{path}.{name}")).map(|(_, note)| format!(": {note}"));
    let _ = writeln!(out, "| `{name}` | {takes} | {}{} |", becomes(used), note.unwrap_or_default());
}

/// The tables of a body and of all below it. One that another path has shown is only named there.
fn section(out: &mut String, path: &str, schema: &'static Schema, around: Use, shown: &mut BTreeSet<String>) {
    if schema.free {
        return;
    }
    let place = path.rsplit('.').map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" in ");
    let _ = writeln!(out, "\n## {place}\n\n| name | takes | agentbin run |\n|---|---|---|");
    for key in schema.keys {
        row(out, path, key.name, takes(key.takes), inside(around, key.becomes));
    }
    for block in schema.blocks {
        let labels = if block.labels == 1 { " with a name" } else { "" };
        let often = if block.often == Often::Many { "blocks" } else { "one block" };
        let contents = if block.body.free { ", any keys" } else { "" };
        row(out, path, block.name, &format!("{often}{labels}{contents}"), inside(around, block.becomes));
    }
    for BlockSchema { name, body, becomes, .. } in schema.blocks {
        let used = inside(around, *becomes);
        if shown.insert(format!("{name} {:p} {used:?}", *body)) {
            section(out, &format!("{path}.{name}"), body, used, shown);
        }
    }
}

fn page() -> String {
    let mut out = HEAD.to_owned();
    section(&mut out, "job", &JOB, Use::Taken, &mut BTreeSet::new());
    out
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/job-files.md")
}

#[test]
fn j1_job_files_md_is_what_the_parser_does() {
    let page = page();
    if std::env::var_os("AGENTBIN_WRITE_DOCS").is_some() {
        std::fs::write(file(), &page).unwrap();
    }
    let written = std::fs::read_to_string(file()).unwrap_or_default();
    let differs = page.lines().zip(written.lines()).find(|(made, found)| made != found);
    assert!(
        page == written,
        "docs/job-files.md is not what the table makes ({differs:?}); write it with AGENTBIN_WRITE_DOCS=1 cargo test --lib \
         job_files_md"
    );
}

/// What an agent does although a run does not (`src/agent/jobs.rs`).
#[test]
fn j1_job_files_md_says_what_the_agent_does() {
    let page = page();
    for name in [
        "all_at_once",
        "datacenters",
        "max_run_duration",
        "migrate",
        "node_pool",
        "periodic",
        "priority",
        "reschedule",
        "sticky",
        "update",
    ] {
        let mut rows = page.lines().filter(|line| line.starts_with(&format!("| `{name}` |")));
        assert!(rows.any(|row| row.contains("`agentbin agent`")), "{name}");
    }
}

/// Each name that Nomad's own types have is on the page, and each note is about one of them.
#[test]
fn j1_job_files_md_has_every_name_of_nomads() {
    let page = page();
    let known = include_str!("../../../tests/jobfiles/keys.txt");
    let names = known.lines().filter(|line| !line.is_empty() && !line.starts_with('['));
    for name in names.filter_map(|line| line.split(' ').next()) {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is missing");
    }
    for (path, note) in NOTES {
        assert!(page.contains(note), "{path} is not a key or block");
    }
}
