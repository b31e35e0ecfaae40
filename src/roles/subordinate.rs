//! The role `subordinate`: does one piece of work as root of a user namespace that its parent process maps.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;

use crate::container::{self, Work};
use crate::spec::Role;
use crate::spec::json;

/// Most failures that are reported.
const TOLD: usize = 100;

/// Does one piece of work as root of a user namespace that the parent process maps. Has no threads.
pub(super) fn run(args: &[OsString]) -> i32 {
    let work = args.first().and_then(|work| json::from_str::<Work>(work.to_str()?).ok());
    let (Some(work), 1) = (work, args.len()) else {
        return super::explain(Role::Subordinate, "expected what to do, as JSON");
    };
    if let Err(error) = container::become_mapped_root() {
        eprintln!("{error}");
        return 1;
    }
    let left = match work {
        Work::Nothing => Vec::new(),
        Work::Remove(dir) => remove(&dir),
    };
    let answered = json::to_vec(&left).map(|answer| std::io::stdout().lock().write_all(&answer));
    i32::from(!matches!(answered, Ok(Ok(()))))
}

fn remove(dir: &Path) -> Vec<String> {
    let errors = crate::alloc::remove_tree(dir);
    errors.iter().take(TOLD).map(|error| crate::alloc::chain(error)).collect()
}
