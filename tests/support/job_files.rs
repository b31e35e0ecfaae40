//! The job files of `tests/jobs`: what the comment at the top of each says of its run, and a run that is held to it.
//!
//! The first paragraph of the comment says what the file shows. Lines with a key follow:
//!
//! | key | meaning |
//! |---|---|
//! | `before` | a shell command before the run |
//! | `args` | options of `agentbin run` |
//! | `env` | a variable of the run, `NAME=value` |
//! | `meanwhile` | a shell command that is tried until it succeeds; then the run gets SIGTERM |
//! | `after` | a shell command that has to succeed after the run |
//! | `status` | the exit status of the run; 0 unless given |
//! | `prints` | a text that the run's output contains |
//! | `never` | a text that it does not contain |
//!
//! Commands and `args` have `$DIR`, a directory of the run, commands also `$OUT`, the run's output so far, and `$AGENTBIN`.
#![allow(dead_code, reason = "every test program uses a part")]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::world::{World, seconds, signal, wait_within};

/// What the comment of a job file says.
#[derive(Debug, Default, Clone)]
pub struct JobFile {
    pub name: String,
    pub path: PathBuf,
    pub shows: String,
    pub drivers: Vec<String>,
    before: Option<String>,
    args: Vec<String>,
    env: Vec<(String, String)>,
    meanwhile: Option<String>,
    after: Option<String>,
    status: i32,
    prints: Vec<String>,
    never: Vec<String>,
}

pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/jobs")
}

/// All of them, by name.
pub fn all() -> Vec<JobFile> {
    let entries = std::fs::read_dir(directory()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".nomad.hcl"));
    paths.sort();
    paths.iter().map(|path| JobFile::read(path)).collect()
}

impl JobFile {
    fn read(path: &Path) -> JobFile {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut file = JobFile { path: path.to_owned(), ..JobFile::default() };
        for line in text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim) {
            let (key, value) = line.split_once(": ").unwrap_or(("", line));
            let value = value.to_owned();
            match key {
                "before" => file.before = Some(value),
                "args" => file.args = value.split_whitespace().map(str::to_owned).collect(),
                "env" => {
                    file.env.extend(value.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())));
                }
                "meanwhile" => file.meanwhile = Some(value),
                "after" => file.after = Some(value),
                "status" => file.status = value.parse().unwrap(),
                "prints" => file.prints.push(value),
                "never" => file.never.push(value),
                _ => format!("{} {line}", file.shows).trim().clone_into(&mut file.shows),
            }
        }
        let drivers = text.lines().filter_map(|line| line.trim().strip_prefix("driver")?.trim().strip_prefix('='));
        file.drivers = drivers.map(|driver| driver.trim().trim_matches('"').to_owned()).collect();
        file.drivers.sort();
        file.drivers.dedup();
        assert!(!file.shows.is_empty(), "{name} does not say what it shows");
        let effects = file.prints.len() + file.never.len() + usize::from(file.after.is_some());
        assert!(effects > 0 || file.meanwhile.is_some(), "{name} shows no effect");
        file.name = name;
        file
    }

    /// How its effect is seen, for the table.
    fn seen_by(&self) -> String {
        let mut seen: Vec<String> = self.prints.iter().map(|text| format!("prints `{text}`")).collect();
        seen.extend(self.never.iter().map(|text| format!("never prints `{text}`")));
        seen.extend(self.meanwhile.iter().map(|command| format!("while it runs: `{command}`")));
        seen.extend(self.after.iter().map(|command| format!("afterwards: `{command}`")));
        seen.join("; ").replace('|', "\\|")
    }

    /// Runs the file in a directory of its own.
    fn run(&self, more_env: &[(&str, String)]) -> Result<(), String> {
        let world = World::new();
        let dir = world.path("").to_str().unwrap().trim_end_matches('/').to_owned();
        let out = world.path("out");
        let shell = |command: &str| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]).env("DIR", &dir).env("OUT", &out);
            shell.env("AGENTBIN", env!("CARGO_BIN_EXE_agentbin")).envs(more_env.iter().cloned());
            shell.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
            shell
        };
        let succeeds = |command: &str| shell(command).status().unwrap().success();
        if let Some(before) = self.before.as_deref().filter(|before| !succeeds(before)) {
            return Err(format!("failed before the run: {before}"));
        }
        let args: Vec<String> = self.args.iter().map(|arg| arg.replace("$DIR", &dir)).collect();
        let mut command = world.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let file = File::options().create(true).append(true).open(&out).unwrap();
        command.arg(&self.path).stdout(file.try_clone().unwrap()).stderr(file);
        command.envs(self.env.iter().map(|(name, value)| (name, value))).envs(more_env.iter().cloned());
        let mut child = command.spawn().unwrap();
        let told = || String::from_utf8_lossy(&std::fs::read(&out).unwrap()).into_owned();
        let mut wrong = Vec::new();
        if let Some(meanwhile) = &self.meanwhile {
            let deadline = Instant::now() + seconds(60);
            while !succeeds(meanwhile) {
                if child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                    wrong.push(format!("did not come true while it ran: {meanwhile}"));
                    break;
                }
                #[expect(
                    clippy::disallowed_methods,
                    reason = "another process's state is looked for until a deadline"
                )]
                std::thread::sleep(Duration::from_millis(100));
            }
            if child.try_wait().unwrap().is_none() {
                signal(&child, "SIGTERM");
            }
        }
        wait_within(&mut child, seconds(90));
        let status = child.wait().unwrap().code().unwrap_or(-1);
        let text = told();
        if status != self.status {
            wrong.push(format!("ended with {status} instead of {}", self.status));
        }
        wrong.extend(
            self.prints.iter().filter(|want| !text.contains(*want)).map(|want| format!("did not print: {want}")),
        );
        wrong.extend(self.never.iter().filter(|not| text.contains(*not)).map(|not| format!("printed: {not}")));
        if let Some(after) = self.after.as_deref().filter(|after| !succeeds(after)) {
            wrong.push(format!("failed after the run: {after}"));
        }
        if !wrong.is_empty() {
            return Err(format!("{}\n{text}", wrong.join("\n")));
        }
        world.assert_clean();
        Ok(())
    }
}

/// Runs the files, some at once. Each has a thread of its own, which `enter` gives what it needs.
pub fn run_all(files: Vec<JobFile>, at_once: usize, enter: fn(), env: &[(&str, String)]) {
    let (waiting, failed) = (Mutex::new(VecDeque::from(files)), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(file) = { waiting.lock().unwrap().pop_front() } {
                    let name = file.name.clone();
                    let start = Instant::now();
                    let run = std::thread::scope(|scope| {
                        let run = || {
                            enter();
                            file.run(env)
                        };
                        scope.spawn(run).join()
                    });
                    let took = start.elapsed().as_millis();
                    match run {
                        Ok(Ok(())) => println!("{name}: {took} ms"),
                        Ok(Err(why)) => failed.lock().unwrap().push(format!("{name}: {why}")),
                        Err(_) => failed.lock().unwrap().push(format!("{name}: panicked, see above")),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} job files:\n{}", failed.len(), failed.join("\n\n"));
}

/// The table of all files.
pub fn table() -> String {
    let mut out = "# Job files that show effects\n\n\
        Each is run by `tests/jobs.rs`, those with containers by `tests/docker_jobs.rs`, and held to the comment at its top.\n\
        This table is made from these comments: `AGENTBIN_WRITE_GOLDEN=1 cargo test --test jobs table`.\n\n\
        | file | drivers | shows | status | seen by |\n|---|---|---|---|---|\n"
        .to_owned();
    for file in all() {
        let JobFile { name, drivers, shows, status, .. } = &file;
        let _ =
            writeln!(out, "| [{name}]({name}) | {} | {shows} | {status} | {} |", drivers.join(", "), file.seen_by());
    }
    out
}
