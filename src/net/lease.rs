//! The built-in network: its name, what connects allocations to its bridge, and the leases of its addresses.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::Error;
use crate::sys::owned;

/// Name of the network and of its bridge.
pub(super) const NAME: &str = "agentbin";
/// Longest file of a lease that is read, in bytes: an id and the name of an interface.
const LONGEST_LEASE: u64 = 1 << 10;

/// What connects allocations to the bridge. One bridge may have allocations of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The reference plugins, which need `iptables`.
    Plugins,
    /// `builtin`, which needs `nf_tables` of the kernel.
    Builtin,
}

/// The directory with one file for each address that is in use, named after the address.
pub(super) fn leases(run_dir: &Path) -> PathBuf {
    run_dir.join("leases").join(NAME)
}

/// The addresses that are taken, each with its file.
pub(super) fn taken(run_dir: &Path) -> Result<Vec<(IpAddr, PathBuf)>, Error> {
    let dir = leases(run_dir);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::system("list", &dir))?,
    };
    let mut taken = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::system("list", &dir))?;
        let address = entry.file_name().to_str().and_then(|name| name.parse().ok());
        taken.extend(address.map(|address| (address, entry.path())));
    }
    Ok(taken)
}

/// Whether the file of an address says that it is this allocation's. An empty one, whose process was killed before it wrote, is
/// anybody's: nothing has its address.
pub(super) fn is_of(path: &Path, id: &str) -> bool {
    owned::read(path, LONGEST_LEASE)
        .is_ok_and(|text| text.is_empty() || text.split(|byte| *byte == b'\r').next() == Some(id.as_bytes()))
}
