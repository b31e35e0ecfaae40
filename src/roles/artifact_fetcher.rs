//! The role `artifact-fetcher`: fetches one artifact for its parent process.

use std::ffi::OsString;

use crate::artifact;
use crate::spec::Role;

/// Fetches one artifact for the parent process, which sends its description through the other end of our standard output.
pub(super) fn run(args: &[OsString]) -> i32 {
    let given = args.first().filter(|_| args.len() == 1).and_then(|given| given.to_str());
    match given.map(artifact::fetch_as_told) {
        Some(Some(status)) => status,
        _ => super::explain(Role::ArtifactFetcher, "expected its surroundings, as JSON"),
    }
}
