//! `agentbin systemd`: a unit that runs a job file.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};

use super::run::{Prepared, patience, prepare};
use super::{RunArgs, complain, print};
use crate::spec::{Job, JobType, escaped};
use crate::sys;

/// The prefix of environment variables that a job file uses besides the command line.
const VARIABLES: &str = "NOMAD_VAR_";

/// Prints the unit, if the job could be run as it is now.
///
/// # Errors
/// What would prevent the job from being started; a word that a unit cannot contain.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<i32> {
    if args.file.as_os_str() == "-" || args.payload.as_ref().is_some_and(|file| file.as_os_str() == "-") {
        bail!("a service has no standard input; name a file instead of -");
    }
    for (given, name, why) in [
        (args.detach, "--detach", "systemd waits for the job in the foreground"),
        (args.dry_run, "--dry-run", "the unit runs the job"),
    ] {
        if given {
            bail!("{name} cannot be used here: {why}; leave it out");
        }
    }
    let Prepared { job, .. } = prepare(args.clone())?;
    for (name, _) in std::env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES)) {
            complain(&format!(
                "warning: {} of this environment is not in the unit; give --var {}=VALUE",
                escaped(name),
                escaped(&name[VARIABLES.len()..])
            ));
        }
    }
    // The words as they were given; relative paths are relative to this directory.
    let mut command = Vec::from([sys::exe::path().context("cannot find this program")?.into_os_string(), "run".into()]);
    command.extend(std::env::args_os().skip(2));
    let mut words = Vec::new();
    for word in command {
        let shown = word.to_string_lossy().into_owned();
        words.push(quoted(&word.into_string().ok().with_context(|| format!("{shown} is not UTF-8 text"))?));
    }
    let dir = std::env::current_dir().context("cannot find out where this is")?;
    let dir = dir.to_str().filter(|dir| !dir.contains(char::is_control));
    let dir = dir.context("the name of this directory cannot stand in a unit; go to another one")?;
    print(unit(&job, &words.join(" "), dir, rustix::process::geteuid().is_root()).as_bytes())
}

fn unit(job: &Job, command: &str, dir: &str, is_root: bool) -> String {
    let has_docker = job.groups.iter().flat_map(|group| &group.tasks).any(|task| task.driver == "docker");
    let engine = if has_docker { " docker.service" } else { "" };
    // A job of a type that is meant to go on is restarted when its own restart policy has given up; a batch job has ended then.
    let restart = match job.kind {
        JobType::Service | JobType::System => "Restart=on-failure\nRestartSec=5\n",
        JobType::Batch | JobType::Sysbatch => "Restart=no\n",
    };
    let target = if is_root { "multi-user.target" } else { "default.target" };
    let mut text = String::new();
    let _ = write!(
        text,
        "# Written by agentbin systemd: systemd.service(5) has the keys. The job file is read at each start.\n\
         [Unit]\nDescription=Nomad job {}\nDocumentation=man:agentbin(8)\nWants=network-online.target\n\
         After=network-online.target{engine}\n\n\
         [Service]\nType=exec\nWorkingDirectory={}\nExecStart={command}\n\
         # A stop that was asked for is not a failure.\nSuccessExitStatus=130 143\n\
         # The run ends its tasks as the job says, and takes no longer than that.\nKillMode=mixed\nTimeoutStopSec={}\n\
         {restart}# Cgroups below the service's own are its own to make.\nDelegate=yes\nTasksMax=infinity\n\n\
         [Install]\nWantedBy={target}\n",
        specifiers(&escaped(&job.id)),
        specifiers(dir),
        patience(job).as_secs(),
    );
    text
}

/// The text with `%` escaped. See `systemd.unit(5)`, Specifiers.
fn specifiers(text: &str) -> String {
    text.replace('%', "%%")
}

/// A quoted word of a command line. See `systemd.service(5)`, Command lines.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@:/.,=+-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' | '$' => text.extend([c, c]),
            c if c.is_ascii_control() => _ = write!(text, "\\x{:02x}", u32::from(c)),
            c => text.push(c),
        }
    }
    text + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p1_words_stay_what_they_are() {
        for (word, expected) in [
            ("/usr/bin/a-b_c", "/usr/bin/a-b_c"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("50%$HOME", "\"50%%$$HOME\""),
            ("a\"b\\c\n", "\"a\\\"b\\\\c\\x0a\""),
            (";", "\";\""),
        ] {
            assert_eq!(quoted(word), expected, "{word:?}");
        }
    }
}
