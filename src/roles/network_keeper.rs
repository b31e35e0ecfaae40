//! The role `network-keeper`: holds the network of an unprivileged user's allocation.

use std::ffi::OsString;

use crate::net::Keeper;
use crate::spec::Role;
use crate::spec::json;

/// Holds the network of a plain user's allocation until it is killed. Has no threads.
pub(super) fn run(args: &[OsString]) -> i32 {
    let keeper = args.first().and_then(|keeper| json::from_str::<Keeper>(keeper.to_str()?).ok());
    match (keeper, args.len()) {
        (Some(keeper), 1) => keeper.run(),
        _ => super::explain(Role::NetworkKeeper, "expected what to hold, as JSON"),
    }
}
