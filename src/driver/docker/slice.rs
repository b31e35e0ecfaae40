//! The slice of a container whose engine asks systemd for its cgroup. It exists for one task of an allocation, so that what the
//! kernel kills there for lack of memory is counted for that task, also when the container's own cgroup is gone.
//!
//! All are below [`SHARED`], and not in the slice above the cgroups of other tasks: systemd takes the controllers from the children of
//! a slice when the last of its own units there ends, and with them the tasks' limits. Source: systemd.slice(5), systemd.unit(5).

use std::fmt::Write as _;

use super::container::{hex, safe_name};
use sha2::Digest as _;

/// The slice of all containers.
pub(super) const SHARED: &str = "agentbin.slice";
/// Longest name of a task that is part of a slice's name, escaped; systemd's names have at most 255 bytes.
const LONGEST: usize = 128;

/// The slice of a task's containers. Different tasks have different ones.
pub(super) fn of(alloc_id: &str, task: &str) -> String {
    let (alloc, name) = (escaped(&alloc_id.replace('-', "")), escaped(&safe_name(task)));
    let name = if name.len() > LONGEST { hex(&sha2::Sha256::digest(&name)) } else { name };
    format!("agentbin-{alloc}_{name}.slice")
}

/// Letters and digits stay; a dash would be a level of slices.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        // Writing to a string does not fail.
        let _ =
            if byte.is_ascii_alphanumeric() { write!(out, "{}", char::from(byte)) } else { write!(out, "_{byte:02x}") };
        out
    })
}

/// The path of a slice's cgroup: each dash in its name is a level.
pub(super) fn path(slice: &str) -> String {
    let Some(name) = slice.trim_matches('/').strip_suffix(".slice").filter(|name| !name.starts_with('-')) else {
        return slice.to_owned();
    };
    let above = name.match_indices('-').map(|(at, _)| format!("{}.slice/", &name[..at]));
    above.chain([format!("{name}.slice")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOC: &str = "0a1b2c3d-0000-4000-8000-00000000000a";

    #[test]
    fn c2_each_task_has_a_slice_of_its_own() {
        assert_eq!(of(ALLOC, "web"), "agentbin-0a1b2c3d00004000800000000000000a_web.slice");
        assert_eq!(of(ALLOC, "web-api"), "agentbin-0a1b2c3d00004000800000000000000a_web_2dapi.slice");
        let names = ["a-b", "a_b", "a.b", "a b", "ab", "a_2db", "A-b", "ä", &"x".repeat(300), &"x".repeat(301), "\\"];
        let slices = names.map(|name| of(ALLOC, name));
        for (at, slice) in slices.iter().enumerate() {
            assert!(slice.len() <= 255 && slice.bytes().filter(|b| *b == b'-').count() == 1, "{slice}");
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            assert!(slice.bytes().all(plain) && !slices[..at].contains(slice), "{slice}");
        }
        // As the names of their containers.
        assert_eq!(of(ALLOC, "a/b"), of(ALLOC, "a_b"));
    }

    #[test]
    fn c2_a_slice_is_below_those_that_its_name_begins_with() {
        for (slice, path) in [
            ("agentbin.slice", "agentbin.slice"),
            ("agentbin-1_web.slice", "agentbin.slice/agentbin-1_web.slice"),
            ("a-b-c.slice", "a.slice/a-b.slice/a-b-c.slice"),
            ("/a-b.slice", "a.slice/a-b.slice"),
            ("-.slice", "-.slice"),
            ("/other-path", "/other-path"),
        ] {
            assert_eq!(super::path(slice), path);
        }
    }
}
