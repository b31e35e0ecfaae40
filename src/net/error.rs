//! Why a network cannot be made.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use super::{Subnet, Subnets};

/// Why a network cannot be made or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A user other than root asks for a CNI network.
    #[error("it needs root: run agentbin as root, or use mode \"bridge\" or \"host\"")]
    NeedsRoot,
    /// A user other than root asks for a network that a driver makes.
    #[error(
        "driver {driver:?} makes the group's network in namespaces that a plain user cannot enter or connect: run agentbin as root, put \
         its tasks into a group of their own, or use mode \"host\""
    )]
    DriverNeedsRoot {
        /// The driver.
        driver: String,
    },
    /// A user other than root asks for IPv6.
    #[error(
        "without root, a group's network has IPv4 only: {}",
        address.map_or_else(|| "take --bridge-network-subnet-ipv6 out".to_owned(), |ip| format!("give its ports another host_network than the one with {ip}"))
    )]
    UsersIpv6 {
        /// The host's address of a port, if that is the reason.
        address: Option<IpAddr>,
    },
    /// A port of an address of IPv6 that cannot be mapped into the bridge.
    #[error(
        "a port of {ip} cannot be mapped: {}, or give the port another host_network",
        if ip.is_loopback() {
            "packets from there stay on this machine's own loopback; use its address on another interface"
        } else {
            "allocations have IPv4 addresses only; give --bridge-network-subnet-ipv6"
        }
    )]
    NoWay {
        /// The host's address of the port.
        ip: Ipv6Addr,
    },
    /// A plain user's network cannot be made or connected: which step, and why.
    #[error("{0}")]
    Users(String),
    /// The device for interfaces of programs cannot be opened.
    #[error("{path} cannot be opened, by which pasta makes an interface (as root: modprobe tun; chmod 666 {path})")]
    NoTunnels {
        /// Its path.
        path: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A file of ours, or a namespace, cannot be used.
    #[error("cannot {action} {}", path.display())]
    System {
        /// The action that failed.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process is changing it, or it cannot be locked.
    #[error("cannot lock the network {name:?}")]
    Locked {
        /// Its name.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// It is not configured.
    #[error("there is no CNI network {name:?} in {}{others}; write a conflist of that name, or say where it is with --cni-config-dir", dir.display())]
    NoSuchNetwork {
        /// Its name.
        name: String,
        /// The directory that was searched.
        dir: PathBuf,
        /// The networks that exist, and files that cannot be read; empty, or beginning with a separator.
        others: String,
    },
    /// The file is not a network configuration.
    #[error("{} is not a CNI configuration: {reason}", path.display())]
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
    #[error("{program} is not installed; the network of mode \"bridge\" needs it (package {package})")]
    NoProgram {
        /// Its name.
        program: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// The kernel has not what the built-in network makes its rules by.
    #[error(
        "the kernel has no nf_tables, which the network of mode \"bridge\" needs: load the module nf_tables (CONFIG_NF_TABLES), or install \
         the CNI plugins (Debian, Fedora: containernetworking-plugins) and iptables"
    )]
    NoTables,
    /// The kernel does not take rules of the built-in network, or does not tell of them.
    #[error("cannot {what} by nf_tables")]
    Rules {
        /// What could not be done.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// Another interface has an address in the subnet.
    #[error(
        "the bridge's subnet {subnet} is in use: {interface} has the address {address}; give another one with {}",
        subnet.option()
    )]
    SubnetTaken {
        /// The subnet.
        subnet: Subnet,
        /// The interface.
        interface: String,
        /// Its address.
        address: IpAddr,
    },
    /// The bridge exists with another subnet, and allocations use it.
    #[error(
        "allocations use the bridge with the subnet {made}, so it cannot have {asked}: give {options}, or stop them (agentbin ps; what killed \
         runs left: agentbin gc)"
    )]
    OtherSubnet {
        /// The requested subnets.
        asked: Subnets,
        /// The subnets of the bridge.
        made: String,
        /// The options that ask for those.
        options: String,
    },
    /// The kernel has no IPv6.
    #[error(
        "this machine has no IPv6, which --bridge-network-subnet-ipv6 needs: boot it without ipv6.disable=1 and with the module ipv6, or \
         take the option out"
    )]
    NoIpv6,
    /// A router has announced itself to the machine, which would lose it.
    #[error(
        "the machine would lose its IPv6 default route at {interface}, which a router has announced, because net.ipv6.conf.all.forwarding \
         would be set: set net.ipv6.conf.{interface}.accept_ra = 2, or net.ipv6.conf.all.forwarding = 1 yourself"
    )]
    WouldLoseRoute {
        /// Where the route leads out.
        interface: String,
    },
    /// The bridge has the maximum number of allocations.
    #[error(
        "the bridge is full: its {most} allocations are all that {subnets}, on one bridge, has room for (never more than {}); stop some \
         (agentbin ps; what killed runs left: agentbin gc), or use another network",
        super::MOST_ON_BRIDGE
    )]
    Full {
        /// How many.
        most: usize,
        /// The bridge's subnets.
        subnets: Subnets,
    },
    /// A value cannot be passed in `CNI_ARGS`.
    #[error("the argument {name:?} for CNI plugins {why}")]
    BadArgument {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// An interface with the bridge's name exists, and we have not made it.
    #[error("there is an interface {0:?} that agentbin did not make; rename or remove it")]
    NotOurs(String),
    /// A plugin, or another program, failed.
    #[error("{program}{of}: {reason}")]
    Failed {
        /// Its name.
        program: String,
        /// The arguments or command; empty, or beginning with a space.
        of: String,
        /// Its message, or its exit status.
        reason: String,
    },
    /// The output of a plugin cannot be parsed as a result.
    #[error("the result of CNI network {network:?} cannot be used: {reason}")]
    BadResult {
        /// The network.
        network: String,
        /// Why not.
        reason: String,
    },
}

impl Error {
    /// What is wrong, and why.
    pub(super) fn with_cause(&self) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("{self}{cause}")
    }

    pub(super) fn system(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::System { action, path, source }
    }
}
