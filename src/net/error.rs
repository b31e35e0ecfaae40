//! Why a network cannot be made.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use super::Subnet;

/// Why a network cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plain user asks for one.
    #[error("it needs root: run agentbin as root, or use mode \"host\"")]
    NeedsRoot,
    /// A file of ours, or a namespace.
    #[error("cannot {action} {}", path.display())]
    System {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others change it, or it may not be locked.
    #[error("cannot lock the network {name:?}")]
    Locked {
        /// Its name.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// Nobody has configured it.
    #[error("there is no CNI network {name:?} in {}{others}; write a conflist of that name, or say where it is with --cni-config-dir", dir.display())]
    NoSuchNetwork {
        /// Its name.
        name: String,
        /// Where it was looked for.
        dir: PathBuf,
        /// What is there instead, and files that cannot be read; empty, or beginning with what separates it.
        others: String,
    },
    /// What is there is no network configuration.
    #[error("{} is no CNI configuration: {reason}", path.display())]
    BadConfig {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A plugin that a network needs is in none of the directories.
    #[error(
        "the CNI plugin {plugin:?} is not in {dirs}; install it (Debian, Fedora: containernetworking-plugins), or say where it is with --cni-path"
    )]
    NoPlugin {
        /// Its type.
        plugin: String,
        /// The directories, with colons between them.
        dirs: String,
    },
    /// A program that the built-in network needs is in no usual directory.
    #[error("{program} is not installed; the network of mode \"bridge\" needs it (package {program})")]
    NoProgram {
        /// Its name.
        program: &'static str,
    },
    /// Another interface has an address in the subnet.
    #[error(
        "the bridge's subnet {subnet} is in use: {interface} has the address {address}; give another one with --bridge-network-subnet"
    )]
    SubnetTaken {
        /// The subnet.
        subnet: Subnet,
        /// The interface.
        interface: String,
        /// Its address.
        address: IpAddr,
    },
    /// The bridge is there with another subnet, and allocations use it.
    #[error(
        "allocations use the bridge with the subnet {made}, so it cannot have {asked}: give --bridge-network-subnet {made}, or stop \
         them (agentbin ps; what killed runs left: agentbin gc)"
    )]
    OtherSubnet {
        /// The one that is asked for.
        asked: Subnet,
        /// The one that it has.
        made: String,
    },
    /// As many allocations are on the bridge as it takes.
    #[error(
        "the bridge is full: its {most} allocations are all that {subnet}, on one bridge, has room for (never more than {}); stop some \
         (agentbin ps; what killed runs left: agentbin gc), or use another network",
        super::MOST_ON_BRIDGE
    )]
    Full {
        /// How many.
        most: usize,
        /// The bridge's subnet.
        subnet: Subnet,
    },
    /// Something cannot be said in `CNI_ARGS`.
    #[error("the argument {name:?} for CNI plugins {why}")]
    BadArgument {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// An interface of the bridge's name is there, and none of ours.
    #[error("there is an interface {0:?} that agentbin did not make; rename or remove it")]
    NotOurs(String),
    /// A plugin, or another program, did not do what it was asked.
    #[error("{program}{of}: {reason}")]
    Failed {
        /// Its name.
        program: String,
        /// What it was asked; empty, or beginning with a space.
        of: String,
        /// What it says, or how it ended.
        reason: String,
    },
    /// A plugin answers what does not read as a result.
    #[error("the result of CNI network {network:?} cannot be used: {reason}")]
    BadResult {
        /// The network.
        network: String,
        /// Why not.
        reason: String,
    },
}

impl Error {
    pub(super) fn system(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::System { action, path, source }
    }
}
