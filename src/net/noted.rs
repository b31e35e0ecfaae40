//! Notes about existing networks, for clean-ups that no longer have the allocation's record, and to find out whether a port is
//! still mapped into a network.
//!
//! One file for each network, named by the allocation's id. It is written before anything is made, and removed when the network
//! is disconnected; the allocation's record is written earlier, and removed later.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use super::users::Pasta;
use super::{Error, Mapping, Network, keeper, replaced};
use crate::spec::json;
use crate::spec::{Order as _, ProcessId};
use crate::sys::owned::OwnDir;
use crate::sys::time;

/// The format version that is written; other versions are left alone.
const VERSION: u32 = 1;
/// Longest note that is read, in bytes: a result of plugins, and all ports of a machine.
const LONGEST: u64 = 16 << 20;

/// A network that exists, perhaps partially.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Noted {
    version: u32,
    /// The process that made it.
    owner: ProcessId,
    /// The pid namespace in which its pid is valid.
    pid_namespace: u64,
    network: Network,
}

fn dir(run_dir: &Path) -> PathBuf {
    run_dir.join("networks")
}

/// Writes the note of a network, or updates it.
pub(super) fn write(network: &Network) -> Result<(), Error> {
    let dir = dir(&network.run_dir);
    let write = || {
        let owner = time::own()?;
        let noted = Noted { version: VERSION, owner, pid_namespace: time::pid_namespace()?, network: network.clone() };
        replaced::replace(&dir, &network.id, &json::to_vec(&noted)?)
    };
    write().map_err(Error::system("note the network in", &dir))
}

/// Removes the note of a network that is disconnected.
pub(super) fn remove(network: &Network) -> Result<(), Error> {
    let dir = dir(&network.run_dir);
    replaced::remove(&dir, &network.id).map_err(Error::system("remove the note of the network in", &dir))
}

/// All networks with notes in this directory; see [`Networks::run_dir`](super::Networks::run_dir). A file that is not a valid note
/// is skipped.
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
            // The file may just have been removed.
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

    /// The file of its allocation's record, if that still exists; it describes the same network.
    #[must_use]
    pub fn record(&self) -> &Path {
        &self.network.record
    }

    fn pasta(&self) -> Option<&Pasta> {
        self.network.users.as_ref()?.pasta.as_ref()
    }

    /// The name of the CNI network that it is connected to, or of the program that connects a plain user's; `none` if there is none.
    #[must_use]
    pub fn name(&self) -> &str {
        let other = if self.pasta().is_some() { keeper::PROGRAM } else { "none" };
        self.network.connection.as_ref().map_or(other, |connection| &connection.list.name)
    }

    /// Whether it is connected to the built-in bridge.
    #[must_use]
    pub const fn is_on_bridge(&self) -> bool {
        self.network.subnet.is_some()
    }

    /// Its address, once it is connected.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        if let Some(users) = &self.network.users {
            return users.status().address;
        }
        self.network.connection.as_ref()?.status().ok()?.address
    }

    /// Its IPv6 address, once it is connected, if it has one.
    #[must_use]
    pub fn address_ipv6(&self) -> Option<Ipv6Addr> {
        self.network.connection.as_ref()?.status().ok()?.address_ipv6
    }

    /// Ports of the host that are, or may be, mapped into it.
    #[must_use]
    pub fn mappings(&self) -> &[Mapping] {
        let other = self.pasta().map_or(&[][..], |pasta| &pasta.mappings);
        self.network.connection.as_ref().map_or(other, |connection| &connection.mappings)
    }

    /// The same: addresses and ports of the host.
    pub fn ports(&self) -> impl Iterator<Item = (IpAddr, u16)> {
        self.mappings().iter().map(|mapping| (mapping.ip, mapping.host))
    }

    /// Whether the process that made it is dead, and no record exists by which it will be removed.
    ///
    /// # Errors
    /// When `/proc`, or the directory of the record, cannot be read.
    pub fn is_abandoned(&self) -> io::Result<bool> {
        // A process of another pid namespace, which may also see other directories, is assumed to live.
        if self.pid_namespace != time::pid_namespace()? || time::is_alive(&self.owner)? {
            return Ok(false);
        }
        Ok(!self.record().try_exists()?)
    }

    /// Removes the network. Every step is tried.
    pub fn remove(&self) -> Vec<Error> {
        [self.network.disconnect(), self.network.remove_namespace()].into_iter().filter_map(Result::err).collect()
    }
}
