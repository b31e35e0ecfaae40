//! How a task's main process ended.

use std::time::SystemTime;

/// How a task's main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct ExitResult {
    /// Exit status; `128 + N` when signal N ended the process.
    pub exit_code: i32,
    /// The signal that ended the process, 0 for none.
    pub signal: i32,
    /// The kernel killed a process of the task for memory.
    pub oom_killed: bool,
    /// The signal made the kernel write a core file, or give one to the program that `core_pattern` names.
    pub core_dumped: bool,
}

impl ExitResult {
    /// Ended by itself with status 0 and not for lack of memory.
    #[must_use]
    pub const fn successful(&self) -> bool {
        self.exit_code == 0 && self.signal == 0 && !self.oom_killed
    }

    /// The result for a raw `waitid(2)` status: an exit status or a signal number.
    #[must_use]
    pub const fn from_wait(status: Option<i32>, signal: Option<i32>) -> ExitResult {
        let (exit_code, signal) = match (status, signal) {
            (_, Some(signal)) => (128 + signal, signal),
            (Some(code), None) => (code, 0),
            (None, None) => (1, 0),
        };
        ExitResult { exit_code, signal, oom_killed: false, core_dumped: false }
    }
}

/// What an executor knows of its task's main process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessState {
    /// Process id in the executor's pid namespace.
    pub pid: i32,
    /// `None` while it runs.
    pub exit: Option<ExitResult>,
    /// When this was true.
    pub time: SystemTime,
}
