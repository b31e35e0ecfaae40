//! Ids of allocations, and the identity of a process.

use std::fmt;

/// The id of an allocation: a UUID in Nomad's text form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocId(String);

impl AllocId {
    /// Wraps a UUID; its text form is what paths and cgroup names use.
    #[must_use]
    pub fn new(id: uuid::Uuid) -> AllocId {
        AllocId(id.hyphenated().to_string())
    }

    /// Reads the text form; anything but a hyphenated UUID is refused, so that the id is safe in a path.
    #[must_use]
    pub fn parse(text: &str) -> Option<AllocId> {
        let id = uuid::Uuid::parse_str(text).ok()?;
        (id.hyphenated().to_string() == text).then(|| AllocId(text.to_owned()))
    }

    /// The hyphenated lower-case form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight digits, as Nomad shows them.
    #[must_use]
    pub fn short(&self) -> &str {
        &self.0[..8]
    }
}

impl fmt::Display for AllocId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A process that cannot be mistaken for a later one with the same number.
///
/// A bare pid is reused; with the start time (clock ticks after boot, field 22 of `/proc/<pid>/stat`) and the boot id
/// it names one process for ever.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessId {
    /// Process id in the initial reader's pid namespace.
    pub pid: i32,
    /// Clock ticks between boot and the start of the process.
    pub start_ticks: u64,
    /// `/proc/sys/kernel/random/boot_id` of the boot in which it ran.
    pub boot_id: String,
}
