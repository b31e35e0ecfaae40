//! What the kernel tells of processes that are started and moved between cgroups: all of it, where looking at /proc sees samples.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::machine::{sh, write};

const ROOT: &str = "/sys/kernel/tracing";

/// One thing that the kernel told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    /// A process has begun to run a file.
    Runs { pid: u32, file: String },
    /// A process has a child.
    Forks { parent: u32, child: u32 },
    /// A process was moved into a cgroup.
    Moves { pid: u32, to: String },
}

/// Is told until it is dropped.
pub struct Trace(PathBuf);

impl Trace {
    pub fn start() -> Trace {
        sh(&format!("mountpoint -q {ROOT} || mount -t tracefs tracefs {ROOT}"));
        write_to("tracing_on", "0");
        write_to("trace", "");
        write_to("buffer_size_kb", "8192");
        for event in ["sched/sched_process_exec", "sched/sched_process_fork", "cgroup/cgroup_attach_task"] {
            write_to(&format!("events/{event}/enable"), "1");
        }
        write_to("tracing_on", "1");
        Trace(PathBuf::from(ROOT).join("trace"))
    }

    /// The cgroups in which processes began to run `file`, relative to the tree's root. Each was put there before, and neither it
    /// nor any child of it was moved later.
    pub fn born_in(&self, file: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(&self.0).unwrap();
        let (mut is_in, mut family, mut born) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        for event in text.lines().filter_map(parse) {
            match event {
                Event::Forks { parent, child } => {
                    match is_in.get(&parent).cloned() {
                        Some(cgroup) => is_in.insert(child, cgroup),
                        None => is_in.remove(&child),
                    };
                    family.remove(&child);
                    if family.contains(&parent) {
                        family.insert(child);
                    }
                }
                Event::Moves { pid, to } => {
                    assert!(
                        !family.contains(&pid),
                        "{pid} ran {file}, or descends from it, and was moved to {to}\n{text}"
                    );
                    is_in.insert(pid, to);
                }
                Event::Runs { pid, file: runs } if runs == file => {
                    let cgroup = is_in.get(&pid).unwrap_or_else(|| panic!("{pid} was put nowhere before\n{text}"));
                    born.insert(cgroup.clone());
                    family.insert(pid);
                }
                Event::Runs { .. } => {}
            }
        }
        assert!(!born.is_empty(), "nobody ran {file}\n{text}");
        born
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        write_to("tracing_on", "0");
    }
}

fn write_to(name: &str, text: &str) {
    write(&format!("{ROOT}/{name}"), text);
}

/// Parses a line such as `sh-71 [001] d..2. 9.5: cgroup_attach_task: dst_root=1 dst_id=9 dst_level=2 dst_path=/a/b pid=71 comm=sh`.
fn parse(line: &str) -> Option<Event> {
    let word = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    let number = |name: &str| word(name).and_then(|text| text.parse().ok());
    if line.contains(" sched_process_exec: ") {
        return Some(Event::Runs { pid: number("pid=")?, file: word("filename=")?.to_owned() });
    }
    if line.contains(" sched_process_fork: ") {
        return Some(Event::Forks { parent: number("pid=")?, child: number("child_pid=")? });
    }
    if line.contains(" cgroup_attach_task: ") {
        return Some(Event::Moves { pid: number("pid=")?, to: word("dst_path=")?.to_owned() });
    }
    None
}
