//! What there is of networks, noted beside them: for whoever comes when nobody has the allocation's record any more, and for
//! whoever looks whether a port still leads into one.
//!
//! One file for each network, named by the allocation's id. It is there before anything is made, and goes when the network is
//! disconnected; a record of the allocation is there before it, and longer.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustix::fs::AtFlags;

use super::lock::own_dir;
use super::{Error, Mapping, Network};
use crate::spec::json;
use crate::spec::{Order as _, ProcessId};
use crate::sys::owned::OwnDir;
use crate::sys::time;

/// The format that is written; others are left alone.
const VERSION: u32 = 1;
/// Longest note that is read, in bytes: a result of plugins, and all ports of a machine.
const LONGEST: u64 = 16 << 20;

/// A network that there is, or that may be there in part.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Noted {
    version: u32,
    /// The process that made it.
    owner: ProcessId,
    /// The pid namespace in which that has its number.
    pid_namespace: u64,
    network: Network,
}

fn dir(run_dir: &Path) -> PathBuf {
    run_dir.join("networks")
}

fn temporary(id: &str) -> String {
    format!(".{id}.tmp")
}

/// Notes a network, or more of it.
pub(super) fn write(network: &Network) -> Result<(), Error> {
    let dir = dir(&network.run_dir);
    let write = || {
        let owner = time::own()?;
        let noted = Noted { version: VERSION, owner, pid_namespace: time::pid_namespace()?, network: network.clone() };
        let (own, temporary) = (own_dir(&dir)?, temporary(&network.id));
        let mut file = own.lock_file(temporary.as_ref())?;
        file.set_len(0)?;
        file.write_all(&json::to_vec(&noted)?)?;
        Ok(rustix::fs::renameat(&own, &temporary, &own, &network.id)?)
    };
    write().map_err(Error::system("note the network in", &dir))
}

/// Forgets a network that is disconnected.
pub(super) fn remove(network: &Network) -> Result<(), Error> {
    let dir = dir(&network.run_dir);
    let remove = || {
        let own = match OwnDir::open(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for name in [&network.id, &temporary(&network.id)] {
            match rustix::fs::unlinkat(&own, name, AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    remove().map_err(Error::system("remove the note of the network in", &dir))
}

/// All networks that are noted in this directory; see [`Networks::run_dir`](super::Networks::run_dir). What cannot be read as a
/// note is passed over.
///
/// # Errors
/// When the directory cannot be listed, or others may write to it.
pub fn all(run_dir: &Path) -> io::Result<Vec<Noted>> {
    let own = match OwnDir::open(&dir(run_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(&own)? {
        let entry = entry?;
        let Ok(id) = entry.file_name().to_str() else { continue };
        if id.starts_with('.') {
            continue;
        }
        let read = own.read(id.as_ref(), LONGEST).and_then(|bytes| Ok(json::from_slice::<Noted>(&bytes)?));
        match read {
            Ok(noted) if noted.is_valid(run_dir, id) => found.push(noted),
            Ok(_) => tracing::debug!(id, "the note is another network's"),
            // It may just have been removed.
            Err(error) => tracing::debug!(id, %error, "cannot read the note of a network"),
        }
    }
    found.order_by(|one, other| one.id().cmp(other.id()));
    Ok(found)
}

impl Noted {
    fn is_valid(&self, run_dir: &Path, id: &str) -> bool {
        self.version == VERSION && self.network.run_dir == run_dir && self.network.is_of(id)
    }

    /// The allocation's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.network.id
    }

    /// The file of the record of its allocation, which says the same, where it is still there.
    #[must_use]
    pub fn record(&self) -> &Path {
        &self.network.record
    }

    /// What connects it, by the name that plugins know; `none` where nothing does.
    #[must_use]
    pub fn name(&self) -> &str {
        self.network.connection.as_ref().map_or("none", |connection| &connection.list.name)
    }

    /// Whether that is the built-in bridge.
    #[must_use]
    pub const fn is_on_bridge(&self) -> bool {
        self.network.subnet.is_some()
    }

    /// Its address, once it is connected.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.network.connection.as_ref()?.status().ok()?.address
    }

    /// Ports of the host that lead, or may lead, into it.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        self.network.connection.as_ref().map_or(&[], |connection| &connection.mappings)
    }

    /// The same: addresses and ports of the host.
    pub fn ports(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.mappings().iter().map(|mapping| (mapping.ip, mapping.host))
    }

    /// Whether whoever made it is dead, and nobody has a record by which it will be removed.
    ///
    /// # Errors
    /// When `/proc`, or the place of the record, cannot be read.
    pub fn is_abandoned(&self) -> io::Result<bool> {
        // In another pid namespace, or where its directories are others, it may well live.
        if self.pid_namespace != time::pid_namespace()? || time::is_alive(&self.owner)? {
            return Ok(false);
        }
        Ok(!self.record().try_exists()?)
    }

    /// Removes it. Every step is tried.
    pub fn remove(&self) -> Vec<Error> {
        [self.network.disconnect(), self.network.remove_namespace()].into_iter().filter_map(Result::err).collect()
    }
}
