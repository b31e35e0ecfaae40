//! Templates and artifacts of a task.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::base::Base;
use super::schema::{ARTIFACT, CHANGE_SCRIPT, TEMPLATE};
use super::section::{self, Section};
use crate::spec::collections::BTreeMap;
use crate::spec::{
    Artifact, ArtifactMode, ChangeMode, ChangeScript, IntoMap as _, Pos, Signal, Source, Template, names,
};
use crate::template;

/// Longest delimiter of a template, in bytes.
const LONGEST_DELIMITER: usize = 64;

/// The `template` blocks of a task.
pub(super) fn templates(task: &Section<'_>, name: &str) -> Vec<Template> {
    let mut out: Vec<Template> = Vec::new();
    let mut lines: BTreeMap<String, u32> = BTreeMap::new();
    for block in task.blocks_of("template") {
        if task.sink.is_full() {
            break;
        }
        let section = Section::open(format!("template of {}", task.name), block, &TEMPLATE, task.sink);
        let template = template(&section, name);
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

fn template(section: &Section<'_>, task: &str) -> Template {
    if section.attr("data").is_none() && section.attr("source").is_none() {
        section.error(section.pos, format!("{} has no data; add data = \"...\"", section.name));
    }
    let data = section.string("data").unwrap_or_default();
    let source = section.string("source").filter(|s| !s.is_empty());
    if source.is_some() && !data.is_empty() {
        let message = format!("{} has both data and source; take one of them out", section.name);
        section.error(section.pos_of("source"), message);
    }
    let left_delimiter = delimiter(section, "left_delimiter", "{{");
    let right_delimiter = delimiter(section, "right_delimiter", "}}");
    let parsed = template::Template::parse(data.as_bytes(), &left_delimiter, &right_delimiter, &AtomicBool::new(false));
    if let Err(error) = parsed {
        let excerpt = match error.text.trim() {
            "" => String::new(),
            text => format!(", in: {text}"),
        };
        let message = format!("data in {}: line {}: {}{excerpt}", section.name, error.line, error.message);
        section.error(section.pos_of("data"), message);
    }
    let destination = section.string("destination").unwrap_or_default();
    if destination.is_empty() {
        let message = format!("{} has no destination; add destination = \"local/...\"", section.name);
        section.error(section.pos_of("destination"), message);
    }
    stays_below(section, task, &destination);
    let perms = section.string("perms").unwrap_or_else(|| "0644".to_owned());
    let mode = u32::from_str_radix(&perms, 8).ok().filter(|m| *m <= 0o7777 && !perms.starts_with('+'));
    if mode.is_none() {
        let message = format!("\"perms\" in {} must be octal such as \"0644\", not \"{perms}\"", section.name);
        section.error(section.pos_of("perms"), message);
    }
    Template {
        data,
        source,
        destination,
        perms: mode.unwrap_or(0o644),
        env: section.bool("env").unwrap_or(false),
        change_mode: change_mode(section),
        once: section.bool("once").unwrap_or(false),
        splay: section.duration("splay").unwrap_or(Duration::from_secs(5)),
        uid: id(section, "uid"),
        gid: id(section, "gid"),
        left_delimiter,
        right_delimiter,
        error_on_missing_key: section.bool("error_on_missing_key").unwrap_or(false),
        pos: section.pos.clone(),
    }
}

/// A user's or group's number; a negative one is none.
fn id(section: &Section<'_>, name: &str) -> Option<u32> {
    section.int::<i64>(name, i128::from(i64::MIN)).and_then(|n| u32::try_from(n).ok())
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
    let signal = name.as_ref().and_then(|n| section::signal(section, "change_signal", n));
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
            let script = section.child("change_script", &CHANGE_SCRIPT);
            let command = script.as_ref().and_then(|s| s.string("command")).filter(|c| !c.is_empty());
            let Some((script, command)) = script.zip(command) else {
                let message = format!(
                    "change_mode \"script\" in {} needs a change_script block with a command, such as change_script {{ command = \"/local/reload.sh\" }}",
                    section.name
                );
                section.error(section.pos_of("change_mode"), message);
                return ChangeMode::Noop;
            };
            ChangeMode::Script(ChangeScript {
                command,
                args: script.texts("args").unwrap_or_default(),
                timeout: script.duration("timeout").unwrap_or(Duration::from_secs(5)),
                fail_on_error: script.bool("fail_on_error").unwrap_or(false),
                run_on_first_render: script.bool("run_on_first_render").unwrap_or(false),
            })
        }
        Some(other) => {
            let message = format!("unknown change_mode \"{other}\"; use noop, restart, signal or script");
            section.error(section.pos_of("change_mode"), message);
            ChangeMode::Noop
        }
    }
}

/// The `artifact` blocks of a task.
pub(super) fn artifacts(task: &Section<'_>, name: &str, base: Base<'_>) -> Vec<Artifact> {
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
        let source = section.string("source").unwrap_or_default();
        let (headers, options) = (section.strings("headers"), section.strings("options"));
        if let Err((key, reason)) = check_source(&source, &options, &headers, mode) {
            let pos = section.blocks_of(key).next().map_or_else(|| section.pos_of(key), |block| block.pos);
            section.refuse(pos, format!("{key} in {}: {reason}", section.name));
        }
        let path = source.split_once('?').map_or(source.as_str(), |(path, _)| path);
        let destination = section.string("destination").unwrap_or_else(|| match (mode, path.rsplit('/').next()) {
            (ArtifactMode::File, Some(file)) => format!("local/{file}"),
            _ => "local/".to_owned(),
        });
        stays_below(&section, name, &destination);
        out.push(Artifact {
            source,
            options,
            headers,
            insecure: section.bool("insecure").unwrap_or(false),
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

/// A destination has to end in the task's directory or in the shared one, `alloc`, which stands in the task's directory and beside
/// it. Nomad lets it end anywhere in the allocation's directory; out of that it leads to files of the host, and Nomad takes no such
/// job. Where a variable stands in it, its value decides.
fn stays_below(section: &Section<'_>, task: &str, destination: &str) {
    if destination.contains("${") {
        return;
    }
    // From the allocation's directory on, in which the task's own has no name here: names may be long, and templates many.
    let mut path = vec![None];
    let mut is_outside = false;
    for name in names(destination) {
        match name {
            ".." => is_outside |= path.pop().is_none(),
            name => path.push(Some(name)),
        }
    }
    if !is_outside && path.first().is_some_and(|first| first.is_none_or(|name| name == task || name == "alloc")) {
        return;
    }
    let message = format!(
        "destination \"{destination}\" in {} leads out of the task's directory; write a path below it, such as local/FILE, or \
         one below alloc/",
        section.name
    );
    let pos = section.pos_of("destination");
    if is_outside { section.error(pos, message) } else { section.refuse(pos, message) }
}

/// Two files in one place would overwrite each other; directories may be filled from several sources.
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

/// What is wrong with a source before its variables have values, and the key that says so. What depends on them is looked at
/// when it is fetched.
fn check_source(
    source: &str,
    options: &BTreeMap<String, String>,
    headers: &BTreeMap<String, String>,
    mode: ArtifactMode,
) -> Result<(), (&'static str, String)> {
    if source.starts_with("${") {
        return Ok(());
    }
    let (address, query) = source.split_once('?').unwrap_or((source, ""));
    let known = |text: &str| !text.contains("${");
    let address = without_variables(address);
    let text = if query.is_empty() || !known(query) { address } else { format!("{address}?{query}") };
    let options = options.iter().filter(|(_, value)| known(value));
    let parsed = Source::parse(&text, &BTreeMap::new()).map_err(|reason| ("source", reason))?;
    let options: BTreeMap<String, String> = options.map(|(key, value)| (key.clone(), value.clone())).into_map();
    let parsed = if options.is_empty() {
        parsed
    } else {
        Source::parse(&text, &options).map_err(|reason| ("options", reason))?
    };
    parsed.fits(mode).map_err(|reason| ("mode", reason))?;
    if !headers.is_empty() && !parsed.takes_headers() {
        return Err(("headers", "they are for http and https; remove them".to_owned()));
    }
    Ok(())
}

/// With something in the place of each `${...}` that may stand everywhere: a digit can be a port.
fn without_variables(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        out.push('1');
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    out + rest
}
