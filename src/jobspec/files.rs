//! Templates and artifacts of a task.

use std::collections::BTreeMap;

use super::base::Base;
use super::schema::{ARTIFACT, TEMPLATE};
use super::section::Section;
use super::task;
use crate::spec::{Artifact, ArtifactMode, ChangeMode, Pos, Signal, Template};

/// Longest delimiter of a template, in bytes.
const LONGEST_DELIMITER: usize = 64;

/// The `template` blocks of a task.
pub(super) fn templates(task: &Section<'_>) -> Vec<Template> {
    let mut out: Vec<Template> = Vec::new();
    let mut lines: BTreeMap<String, u32> = BTreeMap::new();
    for block in task.blocks_of("template") {
        let section = Section::open(format!("template of {}", task.name), block, &TEMPLATE, task.sink);
        let template = template(&section);
        let same = lines.get(&template.destination).copied().filter(|_| !template.destination.is_empty());
        if let Some(line) = same {
            let message = format!(
                "two templates of {} have the destination \"{}\", the other one stands in line {}; change one",
                task.name, template.destination, line
            );
            task.error(&template.pos, message);
        } else {
            lines.insert(template.destination.clone(), template.pos.line);
        }
        out.push(template);
    }
    out
}

fn template(section: &Section<'_>) -> Template {
    if section.attr("data").is_none() && section.attr("source").is_none() {
        section.error(section.pos, format!("{} has no data; add data = \"...\"", section.name));
    }
    let destination = section.string("destination").unwrap_or_default();
    if destination.is_empty() {
        let message = format!("{} has no destination; add destination = \"local/...\"", section.name);
        section.error(section.pos_of("destination"), message);
    }
    let perms = section.string("perms").unwrap_or_else(|| "0644".to_owned());
    let mode = u32::from_str_radix(&perms, 8).ok().filter(|m| *m <= 0o7777 && !perms.starts_with('+'));
    if mode.is_none() {
        let message = format!("\"perms\" in {} must be octal such as \"0644\", not \"{perms}\"", section.name);
        section.error(section.pos_of("perms"), message);
    }
    Template {
        data: section.string("data").unwrap_or_default(),
        destination,
        perms: mode.unwrap_or(0o644),
        env: section.bool("env").unwrap_or(false),
        change_mode: change_mode(section),
        left_delimiter: delimiter(section, "left_delimiter", "{{"),
        right_delimiter: delimiter(section, "right_delimiter", "}}"),
        error_on_missing_key: section.bool("error_on_missing_key").unwrap_or(false),
        pos: section.pos.clone(),
    }
}

/// What an action begins or ends with; each word of an action is compared with it.
fn delimiter(section: &Section<'_>, name: &str, default: &str) -> String {
    let given = section.string(name).filter(|d| !d.is_empty()).unwrap_or_else(|| default.to_owned());
    if given.len() > LONGEST_DELIMITER {
        let (here, length) = (&section.name, given.len());
        let message = format!("\"{name}\" in {here} has {length} bytes; at most {LONGEST_DELIMITER} are possible");
        section.error(section.pos_of(name), message);
        return default.to_owned();
    }
    given
}

fn change_mode(section: &Section<'_>) -> ChangeMode {
    let name = section.string("change_signal").filter(|s| !s.is_empty());
    let signal = name.as_ref().and_then(|n| task::signal(section, "change_signal", n));
    match section.string("change_mode").as_deref() {
        None | Some("restart") => ChangeMode::Restart,
        Some("noop") => ChangeMode::Noop,
        Some("signal") => {
            if name.is_none() {
                let message = format!("change_mode \"signal\" in {} needs change_signal", section.name);
                section.error(section.pos_of("change_mode"), message);
            }
            ChangeMode::Signal(signal.unwrap_or(Signal::TERM))
        }
        Some("script") => {
            let message = "change_mode \"script\" is not supported yet by agentbin run; use noop, restart or signal";
            section.refuse(section.pos_of("change_mode"), message);
            ChangeMode::Noop
        }
        Some(other) => {
            let message = format!("unknown change_mode \"{other}\"; use noop, restart or signal");
            section.error(section.pos_of("change_mode"), message);
            ChangeMode::Noop
        }
    }
}

/// The `artifact` blocks of a task.
pub(super) fn artifacts(task: &Section<'_>, base: Base<'_>) -> Vec<Artifact> {
    let mut out = Vec::new();
    for block in task.blocks_of("artifact") {
        let section = Section::open(format!("artifact of {}", task.name), block, &ARTIFACT, task.sink);
        let mode = match section.string("mode").as_deref() {
            None | Some("any") => ArtifactMode::Any,
            Some("file") => ArtifactMode::File,
            Some("dir") => ArtifactMode::Dir,
            Some(other) => {
                section
                    .error(section.pos_of("mode"), format!("unknown artifact mode \"{other}\"; use any, file or dir"));
                ArtifactMode::Any
            }
        };
        let written = section.string("source").unwrap_or_default();
        let source = match local_path(&written) {
            Ok(path) => path,
            Err(reason) => {
                section.refuse(section.pos_of("source"), format!("source in {}: {reason}", section.name));
                // Only its name counts any more: that of what would lie in the task's directory.
                written.clone()
            }
        };
        let destination = section.string("destination").unwrap_or_else(|| match (mode, source.rsplit('/').next()) {
            (ArtifactMode::File, Some(file)) => format!("local/{file}"),
            _ => "local/".to_owned(),
        });
        out.push(Artifact {
            source,
            base_dir: base.dir.to_owned(),
            stays_in_base_dir: base.alone,
            destination,
            mode,
            chown: section.bool("chown").unwrap_or(false),
            pos: block.pos.clone(),
        });
    }
    check_destinations(task, &out);
    out
}

/// Two files in one place would overwrite each other; folders may be filled from several sources.
fn check_destinations(task: &Section<'_>, artifacts: &[Artifact]) {
    let mut seen: BTreeMap<&str, &Pos> = BTreeMap::new();
    for artifact in artifacts.iter().filter(|a| a.mode == ArtifactMode::File) {
        if let Some(first) = seen.insert(&artifact.destination, &artifact.pos) {
            let message = format!(
                "two artifacts of {} have the destination \"{}\", the other one stands in line {}; change one",
                task.name, artifact.destination, first.line
            );
            task.error(&artifact.pos, message);
        }
    }
}

/// Hosts that a bare path is a download from, by the rules of artifact sources.
const HOSTS: [&str; 4] = ["github.com/", "gitlab.com/", "bitbucket.org/", "gist.github.com/"];

/// The path of a source on this machine, or why it is none.
fn local_path(source: &str) -> Result<String, String> {
    const REMOTE: &str = "downloading is not supported yet by agentbin run; fetch it before and name the local path";
    if source.is_empty() {
        return Err("it must not be empty; name a local path".to_owned());
    }
    if source.contains('?') {
        return Err("options after \"?\" are not supported yet by agentbin run; remove them".to_owned());
    }
    let plain = source.strip_prefix("file::").unwrap_or(source);
    if let Some(path) = plain.strip_prefix("file://") {
        if !path.starts_with('/') {
            return Err("a file URL names an absolute path; write file:///path".to_owned());
        }
        return percent_decoded(path).ok_or_else(|| "invalid % escape in the file URL".to_owned());
    }
    let forced = plain
        .split_once("::")
        .is_some_and(|(scheme, _)| !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric()));
    let remote =
        forced || plain.contains("://") || plain.starts_with("git@") || HOSTS.iter().any(|h| plain.starts_with(h));
    if remote { Err(REMOTE.to_owned()) } else { Ok(plain.to_owned()) }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'%' {
            let hex = std::str::from_utf8(tail.get(..2)?).ok()?;
            out.push(u8::from_str_radix(hex, 16).ok()?);
            rest = &tail[2..];
        } else {
            out.push(*first);
        }
    }
    String::from_utf8(out).ok()
}
