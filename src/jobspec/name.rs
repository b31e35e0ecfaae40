//! Names of tasks, groups, ports and volumes.

use super::section::Section;
use crate::spec::{Pos, is_unprintable};

/// Longest name of a task, group or port, in bytes.
pub(super) const LONGEST_NAME: usize = 128;

/// Refuses a name that a terminal would not show as it is, or that would make a longer file name than there may be: a
/// task's log files and cgroup have its name in theirs.
pub(super) fn check_name(section: &Section<'_>, pos: &Pos, what: &str, name: &str, most: usize) {
    if let Some(c) = name.chars().find(|c| is_unprintable(*c)) {
        let message = format!("the {what}'s name \"{name}\" must not contain the character U+{:04X}", u32::from(c));
        section.error(pos, message);
    } else if name.len() > most {
        let message = format!("the {what}'s name has {} bytes; at most {most} are possible", name.len());
        section.error(pos, message);
    }
}
