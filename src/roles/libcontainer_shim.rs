//! The role `libcontainer-shim`: becomes the task.

use std::ffi::OsString;

use crate::container;
use crate::spec::Role;

/// Becomes the task. A failure is reported to the executor through their pipe, so nothing is printed.
pub(super) fn run(args: &[OsString]) -> i32 {
    match container::shim(args.first().and_then(|arg| arg.to_str()).unwrap_or_default()) {
        Some(_told) => 1,
        None => super::explain(Role::Shim, "no executor at the other end"),
    }
}
