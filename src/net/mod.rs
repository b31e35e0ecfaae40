//! Networks of allocations: a namespace for each, and its connection. Never knows tasks; the caller gives it its directory.
//!
//! ```text
//! Networks::plan ─▶ a Network, which says all that will be made: written down by the caller before anything is
//! Network::make ─▶ a note of it (`noted`) ─▶ namespace (unless a driver makes it) ─▶ ADD of each CNI plugin ─▶ rules (`guard`) ─▶
//! what the kernel remembers of a former owner (`conntrack`) ─▶ Status; a failed ADD needs a DEL
//! Network::remove ─▶ DEL with the same arguments and the kept result ─▶ `conntrack` ─▶ rules ─▶ the bridge after the last one ─▶
//! the note ─▶ namespace
//! ```
//!
//! A plain user's network is neither a bridge nor a CNI network: its namespace is in a user namespace, processes of ours hold both
//! (`keeper`), and the program pasta connects it (`users`).
//!
//! A network is changed by one process at a time. The lock is also held by the plugins that it starts: if the process is killed,
//! the next one waits until its plugins have ended.

mod bridge;
mod builtin;
mod cni;
mod conntrack;
mod error;
mod examine;
mod forward;
mod guard;
mod keeper;
mod lease;
mod link;
mod lock;
mod namespace;
mod netlink;
mod noted;
mod program;
mod replaced;
mod resolver;
mod rules;
mod users;
mod watch;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use error::Error;
pub use examine::Finding;
pub use keeper::Keeper;
pub use namespace::socket_in;
pub use noted::{Noted, all as noted};
pub use program::Output;
pub(crate) use resolver::host_resolv_conf;
pub use resolver::servers_behind_stub;
pub use users::{MoreIds, is_keeper, join};
pub use watch::FirewallWatch;

use builtin::Member;
use cni::{Caller, Connection, List};
use lease::By;
use users::Users;

/// The usual directory of CNI configurations, the same as Nomad's.
const CONFIG_DIR: &str = "/opt/cni/config";
/// The usual directories of CNI plugins: installed by hand, as for Nomad, and by a distribution's package.
const PLUGIN_DIRS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// How long one call of a plugin, or of another program, may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// Most bytes of all arguments for plugins together: half of what the kernel accepts as one environment variable.
const LONGEST_ARGS: usize = 64 << 10;
/// Most allocations on one bridge: as many ports as the kernel has numbers for.
pub const MOST_ON_BRIDGE: usize = 1023;
/// Precedes the job's arguments: plugins then ignore arguments that they do not know.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown=true";

/// A network in CIDR notation, with space for at least two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Subnet {
    base: IpAddr,
    prefix: u8,
}

impl Subnet {
    /// The default subnet of the built-in bridge: private, and not a default of Nomad, Docker or podman.
    pub const DEFAULT: Subnet = Subnet { base: IpAddr::V4(Ipv4Addr::new(10, 126, 64, 0)), prefix: 20 };

    /// Parses an IPv4 network.
    ///
    /// # Errors
    /// How to write it.
    pub fn v4(text: &str) -> Result<Subnet, String> {
        Subnet::parse::<Ipv4Addr>(text, 8..=29, "4")
    }

    /// Parses an IPv6 network.
    ///
    /// # Errors
    /// How to write it.
    pub fn v6(text: &str) -> Result<Subnet, String> {
        let subnet = Subnet::parse::<Ipv6Addr>(text, 8..=125, "6")?;
        // Up to 00ff: loopback, IPv4 in IPv6 and the like; from fe00: addresses of one link, and multicast.
        match subnet.base {
            IpAddr::V6(ip) if !(0x100..0xfe00).contains(&ip.segments()[0]) => {
                Err("its addresses are not routed; use a part of fd00::/8, or a network that is routed to this machine"
                    .to_owned())
            }
            _ => Ok(subnet),
        }
    }

    fn parse<A: FromStr + Into<IpAddr>>(
        text: &str,
        lengths: RangeInclusive<u8>,
        family: &str,
    ) -> Result<Subnet, String> {
        let read =
            text.split_once('/').and_then(|(base, prefix)| Some((base.parse::<A>().ok()?, prefix.parse().ok()?)));
        let Some((base, prefix)) = read.filter(|(_, prefix)| lengths.contains(prefix)) else {
            let (least, most) = (lengths.start(), lengths.end());
            return Err(format!(
                "write it as ADDRESS/LENGTH, an IPv{family} network with a length from {least} to {most}"
            ));
        };
        let given = Subnet { base: base.into(), prefix };
        let subnet = Subnet { base: given.at(0), prefix };
        if subnet == given { Ok(subnet) } else { Err(format!("the network is {subnet}")) }
    }

    /// How many addresses it has, as a power of two.
    fn space(self) -> u32 {
        let width = if self.base.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        width.saturating_sub(u32::from(self.prefix))
    }

    /// The address with this number.
    fn at(self, number: u128) -> IpAddr {
        let mask = u128::MAX.checked_shl(self.space()).unwrap_or_default();
        let bits = bits(self.base) & mask | number & !mask;
        match self.base {
            IpAddr::V4(_) => Ipv4Addr::from_bits(bits as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(bits).into(),
        }
    }

    /// How many addresses allocations can have: all but the first two and the last one.
    fn addresses(self) -> u128 {
        (1_u128 << self.space().min(Ipv6Addr::BITS - 1)).saturating_sub(3)
    }

    /// How many allocations can have an address in it and a port of one bridge.
    fn room(self) -> usize {
        usize::try_from(self.addresses()).map_or(MOST_ON_BRIDGE, |most| most.min(MOST_ON_BRIDGE))
    }

    /// The address of the bridge itself.
    fn gateway(self) -> IpAddr {
        self.at(1)
    }

    /// The addresses for allocations, each once, beginning with the one after `last`, if that is one of them.
    fn after(self, last: Option<IpAddr>) -> impl Iterator<Item = IpAddr> {
        let (first, count) = (bits(self.base) + 2, self.addresses());
        let last = last.filter(|last| self.contains(*last)).and_then(|last| bits(last).checked_sub(first));
        let start = last.map_or(0, |last| last + 1);
        (0..count).map(move |step| self.at(2 + (start % count + step) % count))
    }

    fn contains(self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.base.is_ipv4() && Subnet { base: ip, ..self }.at(0) == self.base
    }

    /// The option that sets it.
    const fn option(self) -> &'static str {
        if self.base.is_ipv4() { "--bridge-network-subnet" } else { "--bridge-network-subnet-ipv6" }
    }
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// The subnets of the built-in bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnets {
    /// The one of IPv4.
    pub v4: Subnet,
    /// The one of IPv6, if allocations get such addresses.
    pub v6: Option<Subnet>,
}

impl Subnets {
    fn all(self) -> impl Iterator<Item = Subnet> {
        [self.v4].into_iter().chain(self.v6)
    }

    /// Whether an address can be an allocation's, or the bridge's.
    fn contain(self, ip: IpAddr) -> bool {
        self.all().any(|subnet| subnet.contains(ip))
    }

    fn room(self) -> usize {
        self.all().map(Subnet::room).min().unwrap_or_default()
    }

    /// Parses what `Display` writes.
    fn parse(text: &str) -> Option<Subnets> {
        let (v4, v6) = text.split_once(' ').map_or((text, None), |(v4, v6)| (v4, Some(v6)));
        Some(Subnets { v4: Subnet::v4(v4).ok()?, v6: v6.map(Subnet::v6).transpose().ok()? })
    }

    /// The options that set them.
    fn options(self) -> String {
        let mut options = format!("{} {}", self.v4.option(), self.v4);
        match self.v6 {
            Some(v6) => options.extend([" ", v6.option(), " ", &v6.to_string()]),
            None => options.push_str(" and no --bridge-network-subnet-ipv6"),
        }
        options
    }
}

impl fmt::Display for Subnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.v4)?;
        self.v6.map_or(Ok(()), |v6| write!(f, " {v6}"))
    }
}

/// A port of the host that is mapped into the namespace.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mapping {
    /// The host's port.
    pub host: u16,
    /// The port inside.
    pub inside: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The host's address.
    pub ip: IpAddr,
}

/// The network as an allocation sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Status {
    /// The interface inside; empty if there is loopback only.
    pub interface: String,
    /// Its address: of IPv4, if it has one.
    pub address: Option<IpAddr>,
    /// Its IPv6 address.
    #[serde(default)]
    pub address_ipv6: Option<Ipv6Addr>,
    /// Name servers of the network.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
    /// Why its tasks can send with others' addresses: the rules against it, which the built-in bridge has, could not be made.
    #[serde(default)]
    pub unguarded: Option<String>,
}

/// What an allocation is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Nothing: loopback only.
    None,
    /// The built-in bridge.
    Bridge,
    /// A CNI network by its name.
    Cni(&'a str),
}

/// A request for a network.
#[derive(Debug)]
pub struct Wish<'a> {
    /// The allocation's id, which plugins get as the container id.
    pub id: &'a str,
    /// See [`Kind`].
    pub kind: Kind<'a>,
    /// The driver that makes the namespace; `None` means it is made here.
    pub driver: Option<&'a str>,
    /// Ports of the host that are mapped inside.
    pub mappings: Vec<Mapping>,
    /// Names and values for the plugins; see [`is_sayable`].
    pub args: Vec<(String, String)>,
    /// The file of the allocation's record: while it exists, the network will be removed according to it.
    pub record: PathBuf,
}

/// How networks are made on this machine.
#[derive(Debug, Clone)]
pub struct Networks {
    /// For namespaces, leases and locks; accessible to root only, and gone after a reboot.
    pub run_dir: PathBuf,
    /// CNI configurations.
    pub config_dir: PathBuf,
    /// CNI plugins: the first directory that has one wins.
    pub plugin_dirs: Vec<PathBuf>,
    /// The subnets of the built-in bridge.
    pub subnets: Subnets,
    /// See [`Networks::watch`]; of a value and its clones.
    pub(crate) is_watched: Arc<AtomicBool>,
}

impl Networks {
    /// The default settings, with this directory for what is made; see [`Networks::run_dir`].
    #[must_use]
    pub fn new(run_dir: PathBuf) -> Networks {
        let plugin_dirs = PLUGIN_DIRS.map(PathBuf::from).into();
        let subnets = Subnets { v4: Subnet::DEFAULT, v6: None };
        let config_dir = PathBuf::from(CONFIG_DIR);
        Networks { run_dir, config_dir, plugin_dirs, subnets, is_watched: Arc::default() }
    }

    /// The names of the CNI networks that are configured here; unreadable files are skipped.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        cni::names(&self.config_dir)
    }

    /// What tells about firewalls of others, for whoever is to look after the packets of the bridge: the first that asks. `None` if
    /// somebody does already, or the kernel does not tell this user.
    #[must_use]
    pub fn watch(&self) -> Option<FirewallWatch> {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return None;
        }
        let watch = FirewallWatch::open(self.run_dir.clone());
        watch.inspect_err(|error| tracing::debug!(%error, "the kernel tells nothing about firewalls")).ok()
    }

    /// Why tasks on the built-in bridge cannot be kept from sending with others' addresses, and the fix; `None` if they can.
    #[must_use]
    pub fn cannot_guard() -> Option<(String, &'static str)> {
        guard::lack()
    }

    /// Checks whether a network can be made, and plans it; nothing is made yet.
    ///
    /// # Errors
    /// [`Error`].
    pub fn plan(&self, wish: Wish<'_>) -> Result<Network, Error> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Network {
                id: wish.id.to_owned(),
                namespace: namespace::path(&self.run_dir, wish.id),
                driver: None,
                run_dir: self.run_dir.clone(),
                users: Some(users::plan(self, &wish)?),
                record: wish.record,
                subnet: None,
                subnet_ipv6: None,
                connection: None,
            });
        }
        let subnets = matches!(wish.kind, Kind::Bridge).then_some(self.subnets);
        if let Some(subnets) = subnets {
            check_mappings(subnets, &wish.mappings)?;
        }
        let list = match wish.kind {
            Kind::None => None,
            Kind::Cni(name) => Some(cni::find(&self.config_dir, name)?),
            Kind::Bridge if !bridge::has_plugins(&self.plugin_dirs) => Some(List::without_plugins(lease::NAME)),
            Kind::Bridge => {
                let broken = |reason| Error::BadConfig { path: PathBuf::from(lease::NAME), reason };
                Some(bridge::list(&self.run_dir, self.subnets).map_err(broken)?)
            }
        };
        let args = args(&wish.args)?;
        let dirs = self.plugin_dirs.clone();
        let connection = list.map(|list| Connection { list, dirs, args, mappings: wish.mappings, result: None });
        connection.as_ref().map_or(Ok(()), Connection::check)?;
        if let (Some(subnets), Some(connection)) = (subnets, &connection) {
            bridge::check(&self.run_dir, subnets, connection.by())?;
        }
        Ok(Network {
            id: wish.id.to_owned(),
            namespace: if wish.driver.is_some() { PathBuf::new() } else { namespace::path(&self.run_dir, wish.id) },
            driver: wish.driver.map(str::to_owned),
            run_dir: self.run_dir.clone(),
            record: wish.record,
            subnet: subnets.map(|subnets| subnets.v4),
            subnet_ipv6: subnets.and_then(|subnets| subnets.v6),
            connection,
            users: None,
        })
    }
}

/// Checks that packets for the mapped ports can reach an allocation on the bridge.
fn check_mappings(subnets: Subnets, mappings: &[Mapping]) -> Result<(), Error> {
    let no_way = mappings.iter().find_map(|mapping| match mapping.ip {
        IpAddr::V6(ip) if ip.is_loopback() || subnets.v6.is_none() && !ip.is_unspecified() => Some(ip),
        _ => None,
    });
    no_way.map_or(Ok(()), |ip| Err(Error::NoWay { ip }))
}

/// Whether an argument's name, or its value, can be passed to CNI plugins.
#[must_use]
pub fn is_sayable(text: &str) -> bool {
    !text.contains([';', '=', '\0'])
}

/// The `CNI_ARGS` for ADD and DEL. Invalid values are refused now: a network connected with them could never be disconnected.
fn args(wanted: &[(String, String)]) -> Result<String, Error> {
    let mut all = IGNORE_UNKNOWN.to_owned();
    for (name, value) in wanted {
        if !is_sayable(name) || !is_sayable(value) {
            let why = "has \";\", \"=\" or a NUL in it, which cannot be said to them; take it out".to_owned();
            return Err(Error::BadArgument { name: name.clone(), why });
        }
        all.extend([";", name, "=", value]);
    }
    let longest = wanted.iter().max_by_key(|(name, value)| name.len() + value.len());
    match longest {
        Some((name, _)) if all.len() > LONGEST_ARGS => {
            let why = format!("makes all of them longer than {LONGEST_ARGS} bytes; shorten it");
            Err(Error::BadArgument { name: name.clone(), why })
        }
        _ => Ok(all),
    }
}

/// Everything that exists, or may exist, of an allocation's network.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Network {
    id: String,
    /// Empty until its driver has made it.
    namespace: PathBuf,
    driver: Option<String>,
    run_dir: PathBuf,
    /// See [`Wish::record`].
    record: PathBuf,
    /// The subnet of the built-in bridge, if it is used.
    subnet: Option<Subnet>,
    /// Its subnet of IPv6, if it has one.
    #[serde(default)]
    subnet_ipv6: Option<Subnet>,
    connection: Option<Connection>,
    /// Set for a plain user's network, which has none of the three above.
    #[serde(default)]
    users: Option<Users>,
}

impl Network {
    fn subnets(&self) -> Option<Subnets> {
        self.subnet.map(|v4| Subnets { v4, v6: self.subnet_ipv6 })
    }

    /// The file of the namespace; empty until its driver has made it.
    #[must_use]
    pub fn namespace(&self) -> &Path {
        &self.namespace
    }

    /// The driver that makes, and removes, the namespace.
    #[must_use]
    pub fn driver(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// Whether it is on the built-in bridge.
    #[must_use]
    pub const fn is_bridge(&self) -> bool {
        self.subnet.is_some()
    }

    /// Whether it is a plain user's, whose namespaces only the processes can enter that know how ([`join`]).
    #[must_use]
    pub const fn is_users(&self) -> bool {
        self.users.is_some()
    }

    /// Makes the namespace, unless a driver does, after writing the note. `more` are further ids for a plain user's network, which is
    /// connected, too.
    ///
    /// # Errors
    /// [`Error`]; then there is no namespace.
    pub fn make_namespace(&self, more: Option<MoreIds<'_>>) -> Result<(), Error> {
        noted::write(self)?;
        match &self.users {
            Some(users) => users.make(&self.namespace, more),
            None if self.driver.is_some() => Ok(()),
            None => namespace::make(&self.namespace),
        }
    }

    /// Sets the namespace that its driver has made.
    pub fn made_by_driver(&mut self, namespace: PathBuf) {
        self.namespace = namespace;
    }

    /// Connects the namespace. Waits while others change the network. Setting `cancel` cancels it.
    ///
    /// # Errors
    /// [`Error`]; what was done by then is undone by [`Network::disconnect`]. With [`Error::Locked`] nothing was done.
    pub fn connect(&mut self, cancel: &Arc<AtomicBool>) -> Result<Status, Error> {
        let subnets = self.subnets();
        let Some(connection) = &mut self.connection else {
            return Ok(self.users.as_ref().map(Users::status).unwrap_or_default());
        };
        let mut locked = take_lock(&self.run_dir, &connection.list.name, cancel)?;
        let connected = match subnets {
            Some(subnets) => bridge::prepare(&mut locked, &self.run_dir, subnets, connection.by(), PATIENCE),
            None => Ok(()),
        };
        let table = guard::table(&self.record, &self.id);
        let (id, namespace, run_dir) = (&*self.id, &*self.namespace, &*self.run_dir);
        let by = connection.by();
        let member = subnets.map(|subnets| Member { id, namespace, table: &table, run_dir, subnets });
        let added = connected.and_then(|()| match &member {
            Some(member) if by == By::Builtin => {
                connection.result = Some(member.add()?);
                Ok(())
            }
            _ => connection.add(&mut locked, &Caller { id, namespace, patience: PATIENCE }),
        });
        let status = added.and_then(|()| connection.status());
        let status = status.and_then(|mut status| {
            if let Some(member) = &member {
                let wire = wire(connection)?;
                status.unguarded = bridge::make_rules(&mut locked, member, by, &connection.mappings, &wire, PATIENCE)?;
                // When its ports are mapped: a datagram that comes before would be led to nobody, and the next ones, too.
                forget(&self.id, &wire.addresses, &connection.mappings)?;
            }
            Ok(status)
        });
        drop(locked);
        status.and_then(|status| noted::write(self).map(|()| status))
    }

    /// The network was never connected, so there is nothing to disconnect.
    pub fn was_not_connected(&mut self) {
        self.connection = None;
    }

    /// Disconnects the namespace from its network, before it is removed. An unconnected one counts as disconnected.
    ///
    /// # Errors
    /// [`Error`]; then it has to be tried again.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.disconnect_unless(&Arc::default())
    }

    /// The same, but setting `cancel` cancels it.
    ///
    /// # Errors
    /// [`Error`]; then it has to be tried again.
    pub fn disconnect_unless(&self, cancel: &Arc<AtomicBool>) -> Result<(), Error> {
        if self.users.is_some() {
            users::end(&self.namespace)?;
        }
        let Some(connection) = &self.connection else { return noted::remove(self) };
        // For a namespace that is gone, plugins get an empty path, even if its file still exists.
        let namespace = if namespace::is_there(&self.namespace) { &*self.namespace } else { Path::new("") };
        let mut locked = take_lock(&self.run_dir, &connection.list.name, cancel)?;
        let table = guard::table(&self.record, &self.id);
        let addresses = self.addresses(connection)?;
        let caller = Caller { id: &self.id, namespace, patience: PATIENCE };
        let Some(subnets) = self.subnets() else {
            self.del(connection, &mut locked, &caller)?;
            return noted::remove(self);
        };
        let (id, run_dir) = (&*self.id, &*self.run_dir);
        let member = Member { id, namespace, table: &table, run_dir, subnets };
        let unshared = if connection.by() == By::Builtin {
            let unshared = member.remove()?;
            forget(id, &addresses, &[])?;
            unshared
        } else {
            self.del(connection, &mut locked, &caller)?;
            forget(id, &addresses, &[])?;
            member.remove_rules()?
        };
        bridge::remove_if_unused(&mut locked, run_dir, unshared, PATIENCE)?;
        noted::remove(self)
    }

    /// Its addresses on the built-in bridge: those of its result, and those that are taken in its name, as who took them may have been
    /// killed before there was a result.
    fn addresses(&self, connection: &Connection) -> Result<Vec<IpAddr>, Error> {
        let Some(subnets) = self.subnets() else { return Ok(Vec::new()) };
        let (own, others): (Vec<_>, Vec<_>) =
            lease::taken(&self.run_dir)?.into_iter().partition(|(_, path)| lease::is_of(path, &self.id));
        let mut former = wire(connection).map_or(Vec::new(), |wire| wire.addresses);
        // Another allocation has what was given back before a reboot, or before the process was killed that did it.
        former.retain(|ip| others.iter().all(|(taken, _)| taken != ip));
        let mut all: Vec<IpAddr> = own.into_iter().map(|(address, _)| address).chain(former).collect();
        // The record that the result was read from may be manipulated.
        all.retain(|ip| subnets.contain(*ip));
        Ok(all)
    }

    /// Calls the plugins, once more if ports are still mapped.
    fn del(&self, connection: &Connection, locked: &mut lock::Locked, caller: &Caller<'_>) -> Result<(), Error> {
        connection.del(locked, caller)?;
        let Some(subnets) = self.subnets() else { return Ok(()) };
        if !connection.has_mappings() || !bridge::has_ports(locked, &self.id, subnets, PATIENCE)? {
            return Ok(());
        }
        connection.del(locked, caller)?;
        if bridge::has_ports(locked, &self.id, subnets, PATIENCE)? {
            let reason = "it says that it is done, and iptables has rules of the ports left".to_owned();
            return Err(Error::Failed { program: "CNI plugin portmap".to_owned(), of: " (DEL)".to_owned(), reason });
        }
        Ok(())
    }

    /// Removes the namespace, unless a driver does; one that is gone counts as removed.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn remove_namespace(&self) -> Result<(), Error> {
        if self.driver.is_some() || self.users.is_some() {
            // A plain user's is gone when it is disconnected.
            return Ok(());
        }
        namespace::remove(&self.namespace).map_err(Error::system("remove the network namespace", &self.namespace))
    }

    /// Whether it can be the network of the allocation with this id: the record that it was read from may be manipulated.
    #[must_use]
    pub fn is_of(&self, id: &str) -> bool {
        let own = self.driver.is_some() || self.namespace == namespace::path(&self.run_dir, id);
        self.id == id && own && self.run_dir.is_absolute() && !self.run_dir.iter().any(|name| name == "..")
    }
}

/// The allocation's veth pair, from the result of the built-in bridge.
fn wire(connection: &Connection) -> Result<guard::Wire, Error> {
    let reason = "it does not say which interfaces are the two ends".to_owned();
    let wire = connection.result.as_ref().and_then(guard::Wire::of);
    wire.ok_or(Error::BadResult { network: connection.list.name.clone(), reason })
}

fn forget(whose: &str, addresses: &[IpAddr], mappings: &[Mapping]) -> Result<(), Error> {
    let forgotten = conntrack::forget(addresses, mappings, PATIENCE);
    forgotten.map_err(Error::system("make the kernel forget the connections of", whose))
}

/// Runs another program of the operator as CNI plugins are run: without an environment but `env` and a PATH, with a limit of its
/// output, killed with what it has started when it takes longer than `patience`. Where `lock` is given (a directory of this process
/// and a name), programs of the same lock run one after the other, also those of a process that was killed.
///
/// # Errors
/// What starting it says; when it took too long or wrote too much.
pub fn run_program(
    lock: Option<(&Path, &str)>,
    program: &Path,
    words: &[&str],
    env: &[(&str, &str)],
    patience: Duration,
) -> std::io::Result<Output> {
    let mut locked = match lock {
        Some((dir, name)) => lock::lock_unless(dir, name, &Arc::default())?,
        None => lock::nobodys()?,
    };
    program::run(&mut locked, program, words, env, b"", patience)
}

fn take_lock(run_dir: &Path, network: &str, cancel: &Arc<AtomicBool>) -> Result<lock::Locked, Error> {
    let locked = lock::lock_unless(run_dir, network, cancel);
    locked.map_err(|source| Error::Locked { name: network.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_said_as_they_are_or_not_at_all() {
        let of =
            |name: &str, value: &str| args(&[(name.to_owned(), value.to_owned()), ("B".to_owned(), String::new())]);
        assert_eq!(of("A", "b c").unwrap(), "IgnoreUnknown=true;A=b c;B=");
        let long = "x".repeat(LONGEST_ARGS);
        for (name, value) in
            [("A", "b;c"), ("A", "b=c"), ("A", "b\0"), ("A;", "b"), ("A=", "b"), ("A\0", "b"), ("A", &long)]
        {
            let error = of(name, value).unwrap_err();
            assert!(matches!(&error, Error::BadArgument { name: named, .. } if named == name), "{error}");
        }
    }

    #[test]
    fn an_address_that_another_allocation_has_by_now_is_not_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let result = serde_json::json!({
            "interfaces": [{ "name": "veth0" }, { "name": "eth0", "mac": "0a:58:0a:00:00:02", "sandbox": "/ns" }],
            "ips": [{ "interface": 1, "address": "10.0.0.2/24" }, { "interface": 1, "address": "192.0.2.1/24" }],
        });
        let connection = Connection {
            list: List::without_plugins(lease::NAME),
            dirs: Vec::new(),
            args: String::new(),
            mappings: Vec::new(),
            result: Some(result),
        };
        let network = Network {
            id: "a".to_owned(),
            namespace: PathBuf::new(),
            driver: None,
            run_dir: dir.path().to_owned(),
            record: PathBuf::new(),
            subnet: Subnet::v4("10.0.0.0/24").ok(),
            subnet_ipv6: None,
            connection: Some(connection.clone()),
            users: None,
        };
        let own = || network.addresses(&connection).unwrap().iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(own(), ["10.0.0.2"], "what is not in the subnet was never its own");
        let leases = lease::leases(dir.path());
        std::fs::create_dir_all(&leases).unwrap();
        std::fs::write(leases.join("10.0.0.2"), "b\r\neth0").unwrap();
        assert_eq!(own(), [""; 0]);
        std::fs::write(leases.join("10.0.0.3"), "a\r\neth0").unwrap();
        assert_eq!(own(), ["10.0.0.3"]);
    }

    #[test]
    fn subnets_are_networks() {
        let subnet = Subnet::v4("10.0.16.0/20").unwrap();
        assert_eq!(subnet.to_string(), "10.0.16.0/20");
        for (ip, inside) in [
            ("10.0.16.0", true),
            ("10.0.31.255", true),
            ("10.0.32.0", false),
            ("10.0.15.255", false),
            ("::a00:1000", false),
        ] {
            assert_eq!(subnet.contains(ip.parse().unwrap()), inside, "{ip}");
        }
        assert_eq!(Subnet::v4(&Subnet::DEFAULT.to_string()), Ok(Subnet::DEFAULT));
        for (subnet, room) in [("10.0.0.0/29", 5), ("10.0.0.0/24", 253), ("10.0.0.0/22", 1021), ("10.0.0.0/21", 1023)] {
            assert_eq!(Subnet::v4(subnet).unwrap().room(), room, "{subnet}");
        }
        for (subnet, room) in [("fd00::8/125", 5), ("fd00::/120", 253), ("fd00::/64", 1023), ("fd00::/8", 1023)] {
            let subnet = Subnet::v6(subnet).unwrap();
            assert_eq!(subnet.room(), room, "{subnet}");
            assert!(subnet.contains(subnet.gateway()) && !subnet.contains("2001:db8::1".parse().unwrap()), "{subnet}");
        }
        let subnet = Subnet::v6("fd00::8/125").unwrap();
        let last = Some("fd00::d".parse().unwrap());
        let all: Vec<String> = subnet.after(last).map(|ip| ip.to_string()).collect();
        assert_eq!(all, ["fd00::e", "fd00::a", "fd00::b", "fd00::c", "fd00::d"]);
        for unknown in [None, Some("fd00:7::ffff:d"), Some("fd00::9"), Some("10.0.0.3")] {
            let first = subnet.after(unknown.map(|ip: &str| ip.parse().unwrap())).next();
            assert_eq!(first, Some("fd00::a".parse().unwrap()), "{unknown:?}");
        }
        assert_eq!(subnet.gateway().to_string(), "fd00::9");
        for wrong in ["fd00::", "fd00::/126", "fd00::/7", "10.0.0.0/24", "/64", ""] {
            assert!(Subnet::v6(wrong).unwrap_err().starts_with("write it as"), "{wrong}");
        }
        assert_eq!(Subnet::v6("fd00::1/64"), Err("the network is fd00::/64".to_owned()));
        for wrong in ["fe80::/64", "ff05::/64", "::/64", "::ffff:0:0/96", "64:ff9b::/96", "fec0::/64"] {
            assert!(Subnet::v6(wrong).unwrap_err().contains("fd00::/8"), "{wrong}");
        }
    }

    #[test]
    fn a_bridge_has_one_subnet_or_two() {
        for (text, options) in [
            ("10.0.0.0/24", "--bridge-network-subnet 10.0.0.0/24 and no --bridge-network-subnet-ipv6"),
            ("10.0.0.0/24 fd00::/64", "--bridge-network-subnet 10.0.0.0/24 --bridge-network-subnet-ipv6 fd00::/64"),
        ] {
            let subnets = Subnets::parse(text).unwrap();
            assert_eq!((subnets.to_string(), subnets.options()), (text.to_owned(), options.to_owned()));
        }
        assert_eq!(Subnets::parse("10.0.0.0/20 fd00::8/125").unwrap().room(), 5, "the smaller one counts");
        for wrong in ["", "10.0.0.0/24 ", "fd00::/64", "10.0.0.0/24 fd00::/64 x"] {
            assert_eq!(Subnets::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn subnets_wrongly_written_are_refused() {
        for wrong in ["10.0.0.0", "10.0.0.0/31", "10.0.0.0/0", "10.0.0.1/24", "fd00::/64", "/24", ""] {
            assert!(Subnet::v4(wrong).is_err(), "{wrong}");
        }
    }
}
