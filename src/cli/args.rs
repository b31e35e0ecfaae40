//! Nomad's syntax of flags, durations and metadata; files that flags name.

use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::jobspec;
use crate::spec::collections::BTreeMap;

/// Turns Go's long flags with a single dash (`-var x=y`, `-var-file=f`, `-json=false`) into what clap parses. Only names that
/// some command has are changed, and nothing after `--`.
pub(super) fn go_flags(args: Vec<OsString>, command: &clap::Command) -> Vec<OsString> {
    let flags = flags(&args, command);
    let mut out = Vec::with_capacity(args.len());
    // The words after the target of `exec` are the command to run, whose flags belong to that command.
    let words: Vec<&OsStr> = args.iter().skip(1).take(2).map(OsString::as_os_str).collect();
    let target = match words[..] {
        [word, ..] if word == "exec" => Some(2),
        [first, second] if first == "alloc" && second == "exec" => Some(3),
        _ => None,
    };
    let mut args = args.into_iter();
    let mut is_value = false;
    for (number, arg) in args.by_ref().enumerate() {
        if arg == "--" {
            out.push(arg);
            break;
        }
        let is_target = target.is_some_and(|from| number >= from) && !is_value && !arg.as_bytes().starts_with(b"-");
        is_value = takes_next(&arg, &flags);
        out.extend(rewrite(arg, &flags));
        if is_target {
            break;
        }
    }
    out.extend(args);
    out
}

/// Whether the next word is the value of this one.
fn takes_next(arg: &OsStr, flags: &BTreeMap<String, bool>) -> bool {
    let bytes = arg.as_bytes();
    let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"));
    name.and_then(|name| std::str::from_utf8(name).ok()).and_then(|name| flags.get(name)).is_some_and(|takes| *takes)
}

/// The value of `--tail`: a number of lines, or a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tail {
    On,
    Off,
    Lines(u64),
}

impl std::str::FromStr for Tail {
    type Err = String;

    fn from_str(text: &str) -> Result<Tail, String> {
        match text {
            "true" => Ok(Tail::On),
            "false" => Ok(Tail::Off),
            lines => lines.parse().map(Tail::Lines).map_err(|_| "give a number of lines".to_owned()),
        }
    }
}

/// Those of the command that is called if they explain all the arguments, and otherwise those of all commands: to make all of them
/// takes longer than many a command does.
fn flags(args: &[OsString], command: &clap::Command) -> BTreeMap<String, bool> {
    let mut flags = BTreeMap::new();
    if let Some(called) = args.get(1).and_then(|name| command.find_subcommand(name)) {
        let mut called = called.clone();
        called.build();
        collect(&called, &mut flags);
    }
    let mut words = args.iter().take_while(|word| *word != "--");
    if words.any(|word| is_unknown(word, &flags)) {
        let mut all = command.clone();
        all.build();
        collect(&all, &mut flags);
    }
    flags
}

/// Whether a word may be a long flag with a single dash, or several short ones.
fn is_unknown(word: &OsStr, flags: &BTreeMap<String, bool>) -> bool {
    let Some(name) = word.as_bytes().strip_prefix(b"-").filter(|name| name.len() > 1 && name[0] != b'-') else {
        return false;
    };
    let name = name.split(|byte| *byte == b'=').next().unwrap_or_default();
    !std::str::from_utf8(name).is_ok_and(|name| flags.contains_key(name))
}

/// Every long flag and whether it takes a value.
fn collect(command: &clap::Command, flags: &mut BTreeMap<String, bool>) {
    for argument in command.get_arguments() {
        if let Some(long) = argument.get_long() {
            flags.insert(long.to_owned(), argument.get_action().takes_values());
        }
    }
    flags.insert("help".to_owned(), false);
    // A command may have one with a value.
    flags.entry("version".to_owned()).or_insert(false);
    command.get_subcommands().for_each(|c| collect(c, flags));
}

/// A switch that is set to false is dropped.
fn rewrite(arg: OsString, flags: &BTreeMap<String, bool>) -> Option<OsString> {
    let bytes = arg.as_bytes();
    let Some(body) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else { return Some(arg) };
    let (name, value) = match body.iter().position(|b| *b == b'=') {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    let Some(takes_value) = OsStr::from_bytes(name).to_str().and_then(|n| flags.get(n)) else { return Some(arg) };
    match value {
        Some(b"false" | b"0") if !takes_value => None,
        Some(b"true" | b"1") if !takes_value => Some(OsString::from_vec([b"--", name].concat())),
        _ => Some(OsString::from_vec([b"--", body].concat())),
    }
}

/// Parses `90s`, `1h30m`, `250ms`, or a number of seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|e| e.to_string())
}

/// What is in a file that the user names; `-` is standard input, whatever that is.
pub(super) fn contents(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file.as_os_str() != "-" {
        return jobspec::read_bytes(file).with_context(|| format!("cannot read {}", file.display()));
    }
    let (most, mut read) = (jobspec::LARGEST_FILE, Vec::new());
    std::io::stdin().lock().take(most as u64 + 1).read_to_end(&mut read).context("cannot read standard input")?;
    ensure!(read.len() <= most, "there are more than {} MiB on standard input", most >> 20);
    Ok(read)
}

/// Parses `KEY=VALUE`.
pub(super) fn meta(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    fn rewritten(args: &[&str]) -> Vec<String> {
        let args = args.iter().map(OsString::from).collect();
        let out = go_flags(args, &crate::cli::Cli::command());
        out.into_iter().map(|a| a.into_string().unwrap()).collect()
    }

    #[test]
    fn single_dash_flags_are_understood() {
        for (given, expected) in [
            (vec!["run", "-var", "a=b", "-var-file=x", "f"], vec!["run", "--var", "a=b", "--var-file=x", "f"]),
            (vec!["run", "-json", "--quiet", "-"], vec!["run", "--json", "--quiet", "-"]),
            (vec!["run", "-json=false", "-quiet=true", "f"], vec!["run", "--quiet", "f"]),
            (vec!["-help"], vec!["--help"]),
            (vec!["run", "-x", "-variable=1"], vec!["run", "-x", "-variable=1"]),
            (vec!["run", "--", "-json"], vec!["run", "--", "-json"]),
            (vec!["x", "exec", "-task", "a", "b", "ls", "-json"], vec!["x", "exec", "--task", "a", "b", "ls", "-json"]),
            (
                vec!["x", "alloc", "exec", "-task", "a", "b", "ls", "-json"],
                vec!["x", "alloc", "exec", "--task", "a", "b", "ls", "-json"],
            ),
            (vec!["x", "logs", "-tail", "b", "-f"], vec!["x", "logs", "--tail", "b", "-f"]),
        ] {
            assert_eq!(rewritten(&given), expected);
        }
    }

    #[test]
    fn each_command_knows_its_own_flags_and_those_of_others() {
        let flags = |args: &[OsString]| super::flags(args, &crate::cli::Cli::command());
        let mut all = crate::cli::Cli::command();
        all.build();
        for command in all.get_subcommands() {
            let mut own = BTreeMap::new();
            collect(command, &mut own);
            for (name, takes) in &own {
                let args = ["agentbin", command.get_name(), &format!("-{name}")].map(OsString::from);
                assert_eq!(flags(&args).get(name), Some(takes), "{args:?}");
            }
        }
        let mut every = BTreeMap::new();
        collect(&all, &mut every);
        for args in [["agentbin", "run", "-namespace"], ["agentbin", "run", "-fn"], ["agentbin", "none", "-json"]] {
            assert_eq!(flags(&args.map(OsString::from)), every, "{args:?}");
        }
        let own = flags(&["agentbin", "run", "-var", "x=y", "--", "-namespace"].map(OsString::from));
        assert!(own.contains_key("var") && own.len() < every.len() / 2, "{own:?}");
    }

    #[test]
    fn durations_are_gos_or_seconds() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("soon").is_err() && duration("-1s").is_err());
    }

    #[test]
    fn metadata_is_a_key_and_a_value() {
        assert_eq!(meta("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(meta("a="), Ok(("a".to_owned(), String::new())));
        assert!(meta("a").is_err() && meta("=a").is_err());
    }
}
