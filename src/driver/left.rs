//! Log collectors that an agent's own drivers left running for a task that agentbin took over. The agent that started them has
//! ended, and the current one learns from the driver that it collects logs itself, so it neither reattaches to them nor ends
//! them.
//!
//! They are needed as long as the task runs: its executor or `docker_logger`, which also keep running, write to their FIFOs.
//! They are ended when the task is destroyed, once all written output has arrived.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::types::TaskConfig;
use crate::spec::{Order as _, Signal};
use crate::sys::lock::lock;
use crate::sys::process;
use crate::sys::processes::{self, Stat};

/// Helper roles of an agent, in the order in which they have to end: the first one writes to the second.
const ROLES: [&[u8]; 2] = [b"docker_logger", b"logmon"];
/// How long a helper may take to read the remaining output, and how long to end.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(20);
/// An agent's log collector flushes its buffer ten times a second.
const FLUSH: Duration = Duration::from_millis(250);

/// The helpers of all tasks that were taken over.
#[derive(Debug, Default)]
pub(super) struct LeftHelpers(Mutex<HashMap<String, Vec<Helper>>>);

#[derive(Debug)]
struct Helper {
    role: usize,
    pid: i32,
    process: OwnedFd,
    /// Device and inode of the task's FIFOs.
    fifos: Vec<(u64, u64)>,
}

impl LeftHelpers {
    /// Finds the helpers of a task that is being taken over and whose output its driver was to collect. Processes that cannot
    /// be inspected are skipped, with a line in the log.
    pub(super) async fn find(&self, task: &TaskConfig) {
        let fifos: Vec<_> = [&task.stdout_path, &task.stderr_path].into_iter().filter_map(|path| fifo(path)).collect();
        if fifos.is_empty() {
            return;
        }
        let found = crate::sys::task::spawn_blocking(move || helpers(&fifos)).await;
        match found.map_err(std::io::Error::other).flatten() {
            Ok(found) if found.is_empty() => {}
            Ok(found) => drop(lock(&self.0).insert(task.id.clone(), found)),
            Err(error) => tracing::warn!(%error, task = task.id, "cannot look for log collectors of an earlier driver"),
        }
    }

    /// Ends the helpers of a task that has ended.
    pub(super) async fn end(&self, id: &str) {
        let found = lock(&self.0).remove(id).unwrap_or_default();
        for helper in found {
            helper.end().await;
        }
    }
}

impl Helper {
    async fn end(self) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && self.reads() {
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(FLUSH).await;
        for signal in [Signal::TERM, Signal::KILL] {
            if process::send_signal(self.process.as_fd(), signal).is_err() {
                return; // it has ended
            }
            let deadline = Instant::now() + PATIENCE;
            while process::check_signal(self.process.as_fd()).is_ok() && Instant::now() < deadline {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    fn reads(&self) -> bool {
        process::check_signal(self.process.as_fd()).is_ok() && has_open(self.pid, &self.fifos)
    }
}

/// Device and inode of `path`, if it is a FIFO.
fn fifo(path: &str) -> Option<(u64, u64)> {
    let found = fs::symlink_metadata(path).ok()?;
    found.file_type().is_fifo().then(|| (found.dev(), found.ino()))
}

/// Processes of this user with the arguments of a helper that have one of the FIFOs open.
fn helpers(fifos: &[(u64, u64)]) -> std::io::Result<Vec<Helper>> {
    let user = Some(rustix::process::geteuid().as_raw());
    let mut found: Vec<Helper> = processes::all()?.iter().filter_map(|stat| helper(stat, user, fifos)).collect();
    found.order_by_key(|helper| helper.role);
    Ok(found)
}

fn helper(stat: &Stat, user: Option<u32>, fifos: &[(u64, u64)]) -> Option<Helper> {
    let arguments = processes::arguments(stat.pid).ok()?;
    let role = ROLES.iter().position(|role| arguments.get(1).is_some_and(|argument| argument == role))?;
    let process = process::open_pidfd(stat.pid).ok()?;
    // Checked again: from here on the pidfd guarantees that it is the same process.
    let same = processes::stat(stat.pid).ok()?.is_some_and(|now| now.start_ticks == stat.start_ticks);
    let own = processes::user(stat.pid).is_ok_and(|found| found == user);
    (same && own && has_open(stat.pid, fifos)).then(|| Helper { role, pid: stat.pid, process, fifos: fifos.to_vec() })
}

/// Whether a process has one of these files open.
fn has_open(pid: i32, files: &[(u64, u64)]) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let mut opened = entries.filter_map(|entry| fs::metadata(entry.path()).ok());
    opened.any(|file| files.contains(&(file.dev(), file.ino())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::process::Command;

    use super::*;

    /// A helper is recognised by its second argument and by having the FIFO open, and not by its name alone.
    #[tokio::test]
    async fn only_who_reads_the_tasks_output_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, other] = ["ours", "other"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
        for path in [&ours, &other] {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                path.as_str(),
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .unwrap();
        }
        let reader = |role: &str, path: &str| {
            let mut command = Command::new("/bin/sh");
            // With `sh -c`, that would be the second argument.
            command.arg0("agent").arg(role).stdin(fs::OpenOptions::new().read(true).write(true).open(path).unwrap());
            command.current_dir(dir.path()).spawn().unwrap()
        };
        for role in ["logmon", "docker_logger", "task"] {
            fs::write(dir.path().join(role), "read line\n").unwrap();
        }
        let mut all =
            [reader("logmon", &ours), reader("docker_logger", &ours), reader("task", &ours), reader("logmon", &other)];
        let left = LeftHelpers::default();
        let task = TaskConfig {
            id: "a/web/1".into(),
            stdout_path: ours,
            stderr_path: "/dev/null".into(),
            ..TaskConfig::default()
        };
        // Waits for their exec: before it they do not have these arguments.
        for child in &all {
            let pid = i32::try_from(child.id()).unwrap();
            while processes::arguments(pid).unwrap().first().is_none_or(|first| first != b"agent") {
                tokio::time::sleep(LOOK).await;
            }
        }
        left.find(&task).await;
        left.end("b/web/1").await;
        assert!(all.iter_mut().all(|child| child.try_wait().unwrap().is_none()));
        left.end("a/web/1").await;
        let signals = all.each_mut().map(|child| child.try_wait().unwrap().and_then(|status| status.signal()));
        assert_eq!(signals, [Some(15), Some(15), None, None]);
        for child in &mut all {
            let _ = child.kill();
            child.wait().unwrap();
        }
    }
}
