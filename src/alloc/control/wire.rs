//! The protocol of a control socket: frames with a kind, a length and a payload. One request per connection.
//!
//! ```text
//! ▶ json request   ◀ json answer: {"ok": ...} or {"error": "..."}
//! exec: then       ▶ exec frames (ExecTaskStreamingRequest)   ◀ exec frames (ExecTaskStreamingResponse), or a json error
//! ```
//!
//! A session's messages are those of Nomad's driver service, so that nothing is translated between terminal and executor.

use crate::spec::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::executor::NewLimits;

/// Bytes of one frame, at most.
pub(super) const LONGEST: u32 = 16 << 20;
/// Bytes of a request, at most: a command line.
pub(super) const LONGEST_REQUEST: u32 = 1 << 20;

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Json = b'j',
    Exec = b'x',
}

/// Reads a frame; `None` at the end of the stream before a frame.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin), most: u32) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind).await? == 0 {
        return Ok(None);
    }
    let kind = match kind[0] {
        b'j' => Kind::Json,
        b'x' => Kind::Exec,
        other => {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of an unknown kind, {other}")));
        }
    };
    let length = from.read_u32().await?;
    if length > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes, more than {most}")));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await?;
    Ok(Some((kind, bytes)))
}

/// Writes a frame.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), kind: Kind, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "too much for one frame"))?;
    let mut frame = Vec::with_capacity(bytes.len() + 5);
    frame.push(kind as u8);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(bytes);
    to.write_all(&frame).await
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// The status of the run: a [`RunView`].
    Status,
    /// Stop the allocation, or the whole run; the answer comes when that is done. For a run, the answer is the end of the
    /// connection.
    Stop {
        /// Its id; `None` means the run.
        alloc: Option<String>,
        /// Kill at once, without the tasks' kill signals and timeouts.
        now: bool,
    },
    /// Restart one task, or all running tasks; the answer, the tasks' names, comes when they run again.
    Restart {
        /// The allocation's id.
        alloc: String,
        /// `None` means all running tasks.
        task: Option<String>,
    },
    /// Send a signal to one task, or to all running tasks; the answer is their names.
    Signal {
        /// The allocation's id.
        alloc: String,
        /// `None` means all running tasks.
        task: Option<String>,
        /// The signal's number.
        signal: i32,
    },
    /// Change the limits of one task, or of all running tasks; the answer is their names.
    Update {
        /// The allocation's id.
        alloc: String,
        /// `None` means all running tasks.
        task: Option<String>,
        /// The new limits.
        limits: NewLimits,
    },
    /// One sample of one task, or of all running tasks: a list of [`StatsView`].
    Stats {
        /// The allocation's id.
        alloc: String,
        /// `None` means all running tasks.
        task: Option<String>,
    },
    /// Run a session inside a task.
    Exec {
        /// The allocation's id.
        alloc: String,
        /// `None` means the only task.
        task: Option<String>,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// A run or the agent: the process that supervises some allocations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunView {
    /// Version of agentbin.
    pub version: String,
    /// Its process id.
    pub pid: i32,
    /// Its job; empty for the agent.
    pub job: String,
    /// Where its allocations are.
    pub data_dir: PathBuf,
    /// Whether it runs in the background.
    pub detached: bool,
    /// Whether it is the agent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub agent: bool,
    /// Since when (RFC 3339).
    pub began_at: String,
    /// Its allocations.
    #[serde(default)]
    pub allocs: Vec<AllocView>,
}

/// An allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocView {
    /// Its id.
    pub id: String,
    /// Nomad's name of it: `<job>.<group>[<index>]`.
    pub name: String,
    /// Its job's namespace; empty where an earlier release tells nothing of it.
    #[serde(default)]
    pub namespace: String,
    /// Its job.
    pub job: String,
    /// Its group.
    pub group: String,
    /// Its number among the group's, from 0.
    pub index: u32,
    /// Nomad's client status: pending, running, complete, failed.
    pub status: String,
    /// Whether its tasks are being stopped.
    #[serde(default)]
    pub stopping: bool,
    /// When it was made (RFC 3339).
    pub created_at: String,
    /// Its directory.
    pub dir: PathBuf,
    /// The directory of its tasks' output.
    pub logs: PathBuf,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<PortView>,
    /// Its registered services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceView>,
    /// Its tasks, in the order of the job file.
    #[serde(default)]
    pub tasks: Vec<TaskView>,
    /// The process id of its run, or of the agent; `None` when the run, or what the agent keeps of it, has ended.
    #[serde(default)]
    pub run: Option<i32>,
    /// The file in which a run in the background reports messages for people; it does not exist if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<PathBuf>,
    /// Fields of a newer version's answer.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// A port of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// Its label in the job file.
    pub label: String,
    /// The host's address.
    pub host_ip: String,
    /// The host's port.
    pub value: u16,
    /// The port inside the task's network; 0 if it is the same.
    pub to: u16,
}

/// A service of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Unique among all instances.
    pub id: String,
    /// The name under which it is looked up.
    pub name: String,
    /// Its task; empty for a service of the group.
    pub task: String,
    /// `nomad` or `consul`, as the job file says.
    pub provider: String,
    /// Its address.
    pub address: String,
    /// Its port; 0 if it has none.
    pub port: u16,
    /// In the order of the job file.
    pub tags: Vec<String>,
    /// The worst status of its checks: passing, warning, pending, critical.
    pub status: String,
    /// Its checks, in the order of the job file.
    pub checks: Vec<CheckView>,
}

/// A check of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckView {
    /// Unique among all.
    pub id: String,
    /// Its name in the job file.
    pub name: String,
    /// tcp, http, grpc, script.
    #[serde(rename = "type")]
    pub kind: String,
    /// How it counts for the allocation's health: `require_healthy`, `ignore_warnings`, ignore.
    pub on_update: String,
    /// passing, warning, pending, critical.
    pub status: String,
    /// The output of the last probe, at most 4 KiB of it.
    pub output: String,
    /// When that was (RFC 3339).
    pub time: Option<String>,
}

/// A task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Nomad's state: pending, running, dead.
    pub state: String,
    /// Whether it failed.
    pub failed: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// When it was last restarted (RFC 3339).
    pub last_restart: Option<String>,
    /// When it was started last (RFC 3339).
    pub started_at: Option<String>,
    /// When it ended last (RFC 3339).
    pub finished_at: Option<String>,
    /// Its exit status.
    pub exit_code: Option<i32>,
    /// The signal that killed it; 0 for none.
    pub signal: Option<i32>,
    /// The kernel killed a process of it because of memory.
    #[serde(default)]
    pub oom_killed: bool,
    /// Its last events.
    #[serde(default)]
    pub events: Vec<EventView>,
}

/// An event of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventView {
    /// Nomad's type of the event.
    #[serde(rename = "type")]
    pub kind: String,
    /// When (RFC 3339).
    pub time: String,
    /// The message for people.
    pub message: String,
    /// Nomad's details.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

/// The resource usage of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatsView {
    /// Its allocation.
    pub alloc_id: String,
    /// Its name.
    pub task: String,
    /// When it was measured (RFC 3339).
    pub time: String,
    /// The whole task.
    #[serde(flatten)]
    pub total: ProcessUse,
    /// By process id.
    #[serde(default)]
    pub by_pid: BTreeMap<i32, ProcessUse>,
    /// The most bytes of memory that may be charged to it; 0 if there is no limit.
    #[serde(default)]
    pub memory_limit: u64,
}

/// The resource usage of a task, or of one of its processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// Percent of one core since the previous sample.
    pub cpu_percent: f64,
    /// The same in MHz.
    pub cpu_mhz: f64,
    /// Bytes of anonymous memory.
    pub memory_rss: u64,
    /// Bytes of all memory that is charged to its cgroup.
    pub memory_usage: u64,
    /// The maximum so far.
    pub memory_max_usage: u64,
    /// Bytes in swap.
    pub swap: u64,
    /// Periods in which it was throttled.
    pub throttled_periods: u64,
}

/// Formats a time as all times here are formatted.
#[must_use]
pub fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_nanos(time).to_string()
}

/// Seconds since a time that [`timestamp`] wrote.
#[must_use]
pub fn seconds_since(time: &str) -> Option<u64> {
    SystemTime::now().duration_since(humantime::parse_rfc3339(time).ok()?).ok().map(|age| age.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_bounded_and_come_whole() {
        let mut bytes = Vec::new();
        write(&mut bytes, Kind::Json, b"{}").await.unwrap();
        write(&mut bytes, Kind::Exec, b"").await.unwrap();
        let mut from = &bytes[..];
        assert_eq!(read(&mut from, 2).await.unwrap(), Some((Kind::Json, b"{}".to_vec())));
        assert_eq!(read(&mut from, 2).await.unwrap(), Some((Kind::Exec, Vec::new())));
        assert_eq!(read(&mut from, 2).await.unwrap(), None);
        let kind = |bytes: &'static [u8]| async move { read(&mut &*bytes, 2).await.unwrap_err().kind() };
        assert_eq!(kind(b"j\0\0\0\x03abc").await, io::ErrorKind::InvalidData, "longer than it may be");
        assert_eq!(kind(b"?\0\0\0\x01a").await, io::ErrorKind::InvalidData, "of an unknown kind");
        assert_eq!(kind(b"j\0\0\0\x02a").await, io::ErrorKind::UnexpectedEof, "cut off");
        assert_eq!(kind(b"j\0").await, io::ErrorKind::UnexpectedEof, "cut off");
    }
}
