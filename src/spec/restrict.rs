//! Restrictions that a task is started with: resource limits, unveiled files, masked paths, namespaces of its own.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a process may have of one resource. `setrlimit(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceLimit {
    /// Of what.
    pub resource: LimitedResource,
    /// What holds, in the resource's own unit; `None` is unlimited.
    pub soft: Option<u64>,
    /// How far the process may raise what holds; `None` is unlimited.
    pub hard: Option<u64>,
}

impl ResourceLimit {
    /// Reads `soft` or `soft:hard`; each a number, or -1 or `unlimited`. `None` for anything else.
    #[must_use]
    pub fn parse(resource: LimitedResource, text: &str) -> Option<ResourceLimit> {
        let value = |text: &str| match text.trim() {
            "-1" | "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        Some(ResourceLimit { resource, soft: value(soft)?, hard: value(hard)? })
    }

    /// Whether what holds is more than what it may be raised to, which no kernel takes.
    #[must_use]
    pub fn is_upside_down(&self) -> bool {
        self.soft.unwrap_or(u64::MAX) > self.hard.unwrap_or(u64::MAX)
    }
}

impl fmt::Display for ResourceLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: Option<u64>| value.map_or_else(|| "unlimited".to_owned(), |value| value.to_string());
        write!(f, "{}:{}", text(self.soft), text(self.hard))
    }
}

/// The resources of `setrlimit(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the manual page")]
pub enum LimitedResource {
    As,
    Core,
    Cpu,
    Data,
    Fsize,
    Locks,
    Memlock,
    Msgqueue,
    Nice,
    Nofile,
    Nproc,
    Rss,
    Rtprio,
    Rttime,
    Sigpending,
    Stack,
}

impl LimitedResource {
    /// All of them, by name.
    pub const ALL: [LimitedResource; 16] = [
        LimitedResource::As,
        LimitedResource::Core,
        LimitedResource::Cpu,
        LimitedResource::Data,
        LimitedResource::Fsize,
        LimitedResource::Locks,
        LimitedResource::Memlock,
        LimitedResource::Msgqueue,
        LimitedResource::Nice,
        LimitedResource::Nofile,
        LimitedResource::Nproc,
        LimitedResource::Rss,
        LimitedResource::Rtprio,
        LimitedResource::Rttime,
        LimitedResource::Sigpending,
        LimitedResource::Stack,
    ];

    /// Its name in lower case, without `RLIMIT_`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LimitedResource::As => "as",
            LimitedResource::Core => "core",
            LimitedResource::Cpu => "cpu",
            LimitedResource::Data => "data",
            LimitedResource::Fsize => "fsize",
            LimitedResource::Locks => "locks",
            LimitedResource::Memlock => "memlock",
            LimitedResource::Msgqueue => "msgqueue",
            LimitedResource::Nice => "nice",
            LimitedResource::Nofile => "nofile",
            LimitedResource::Nproc => "nproc",
            LimitedResource::Rss => "rss",
            LimitedResource::Rtprio => "rtprio",
            LimitedResource::Rttime => "rttime",
            LimitedResource::Sigpending => "sigpending",
            LimitedResource::Stack => "stack",
        }
    }

    /// Reads a name, in any case, with or without `RLIMIT_`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<LimitedResource> {
        let lower = name.to_ascii_lowercase();
        let bare = lower.strip_prefix("rlimit_").unwrap_or(&lower);
        LimitedResource::ALL.into_iter().find(|resource| resource.name() == bare)
    }
}

/// A part of the task's files that it keeps when everything else is withdrawn (Landlock).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Unveil {
    /// File or directory as the task sees it, with all below it.
    pub path: PathBuf,
    /// Read files, list directories.
    pub read: bool,
    /// Write to files and cut them.
    pub write: bool,
    /// Execute files.
    pub execute: bool,
    /// Make, rename and remove files and directories.
    pub create: bool,
}

impl Unveil {
    /// Reads `mode:path`, where the mode has the letters `r`, `w`, `x` and `c` and the path is absolute.
    #[must_use]
    pub fn parse(text: &str) -> Option<Unveil> {
        let (mode, path) = text.split_once(':')?;
        let known = !mode.is_empty() && mode.chars().all(|letter| "rwxc".contains(letter));
        (known && path.starts_with('/')).then(|| Unveil {
            path: path.into(),
            read: mode.contains('r'),
            write: mode.contains('w'),
            execute: mode.contains('x'),
            create: mode.contains('c'),
        })
    }
}

impl fmt::Display for Unveil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, has) in [('r', self.read), ('w', self.write), ('x', self.execute), ('c', self.create)] {
            if has {
                write!(f, "{letter}")?;
            }
        }
        write!(f, ":{}", self.path.display())
    }
}

/// Which files of `/proc` and `/sys` a task with its own root does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Masks {
    /// All that tell of the machine.
    #[default]
    All,
    /// Those that Nomad's own drivers hide.
    Nomad,
}

/// Namespaces that a task has of its own, beside those with a mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OwnNamespaces {
    /// Host name.
    pub uts: bool,
    /// Cgroups: it sees its own by the path from where its executor is.
    pub cgroup: bool,
    /// A network with nothing but `lo`, unless the task joins one.
    pub network: bool,
}

#[cfg(test)]
mod tests {
    use super::{LimitedResource, ResourceLimit, Unveil};

    #[test]
    fn n6_limits_are_read() {
        let read = |text| ResourceLimit::parse(LimitedResource::Nofile, text).map(|limit| (limit.soft, limit.hard));
        assert_eq!(read("10"), Some((Some(10), Some(10))));
        assert_eq!(read("10:20"), Some((Some(10), Some(20))));
        assert_eq!(read("0:-1"), Some((Some(0), None)));
        assert_eq!(read("unlimited"), Some((None, None)));
        for bad in ["", "x", "1:", ":1", "1:2:3", "-2", "1k", "18446744073709551616"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for (text, upside_down) in [("2:1", true), ("-1:1", true), ("1:1", false), ("1:-1", false)] {
            let limit = ResourceLimit::parse(LimitedResource::Core, text).unwrap();
            assert_eq!(limit.is_upside_down(), upside_down, "{text}");
        }
        for resource in LimitedResource::ALL {
            assert_eq!(LimitedResource::from_name(&format!("RLIMIT_{}", resource.name())), Some(resource));
        }
        assert_eq!(LimitedResource::from_name("files"), None);
    }

    #[test]
    fn n6_unveiled_paths_are_read() {
        let rx = Unveil { path: "/usr".into(), read: true, execute: true, ..Unveil::default() };
        assert_eq!(Unveil::parse("rx:/usr"), Some(rx));
        assert_eq!(Unveil::parse("cwxr:/a:b").unwrap().to_string(), "rwxc:/a:b");
        for bad in ["", "/usr", ":/usr", "rq:/usr", "r:usr", "r:", "R:/usr"] {
            assert_eq!(Unveil::parse(bad), None, "{bad}");
        }
    }
}
