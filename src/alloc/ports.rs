//! Allocation of host ports.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::node::Node;
use super::port_registry::{Held, Registry};
use crate::driver;
use crate::net::{self, Networks, Noted};
use crate::spec::IntoSet as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{AllocId, Group, Job, Network, Order as _, Port, Pos, interpolate};
use crate::sys::listeners;
use crate::sys::lock::lock;

/// Nomad's range of dynamic ports.
pub const DYNAMIC: RangeInclusive<u16> = 20_000..=32_000;
/// The name of the host network of a port that names none.
const DEFAULT: &str = "default";

/// A port of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct AllocPort {
    /// Its label in the job file.
    pub label: String,
    /// The host's port.
    pub value: u16,
    /// The port inside the task's network, where the job file names one.
    pub to: Option<u16>,
    /// The host's address.
    pub ip: IpAddr,
    /// The task whose network it belongs to; `None` means the group's network.
    pub task: Option<String>,
}

impl AllocPort {
    /// The port that the task should listen on, as Nomad reports it, even if its network is the host's.
    #[must_use]
    pub fn inside(&self) -> u16 {
        self.to.unwrap_or(self.value)
    }

    /// The port as drivers get it.
    pub(super) fn of_driver(&self) -> driver::Port {
        let AllocPort { label, value, to, ip, .. } = self;
        driver::Port { label: label.clone(), value: *value, to: to.unwrap_or(0), host_ip: Some(*ip) }
    }
}

/// Why a group cannot get its ports.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A fixed port is taken.
    #[error("{pos}: port {label:?}: {port} is not free: {holder}; stop that, or leave out `static`")]
    Taken {
        /// Its label.
        label: String,
        /// The port.
        port: u16,
        /// Its position in the job file.
        pos: Pos,
        /// The holder, as far as it can be found out.
        holder: String,
    },
    /// The whole dynamic range is taken.
    #[error("{pos}: port {label:?}: no port from {} to {} is free; give others with --dynamic-ports", range.start(), range.end())]
    Exhausted {
        /// Its label.
        label: String,
        /// Its position in the job file.
        pos: Pos,
        /// The range.
        range: RangeInclusive<u16>,
    },
    /// This machine has no such network.
    #[error("{pos}: port {label:?}: {network}")]
    NoSuchNetwork {
        /// The port's label.
        label: String,
        /// The position of the network's name in the job file.
        pos: Pos,
        /// The name and the fix.
        network: UnknownNetwork,
    },
    /// The address of a host network is none of this machine's.
    #[error("{pos}: port {label:?}: {ip} is not an address of this machine; give another one with --host-network")]
    NoSuchAddress {
        /// The port's label.
        label: String,
        /// Its position in the job file.
        pos: Pos,
        /// The address.
        ip: IpAddr,
    },
    /// The thread that chooses ports has panicked.
    #[error("choosing the ports failed unexpectedly")]
    Broken(#[source] io::Error),
    /// The port mappings of other networks cannot be listed.
    #[error("cannot look which ports lead into networks, in {}", path.display())]
    Networks {
        /// The directory of their records.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The machine's registry of ports cannot be used.
    #[error("cannot use the registry of ports in {}", path.display())]
    Registry {
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A host network without a configured address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no host network {0:?} here; say where it is with --host-network {0}=ADDRESS")]
pub struct UnknownNetwork(pub String);

/// The host networks that ports can be on: name to address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNetworks {
    all: BTreeMap<String, IpAddr>,
    configured: Vec<String>,
}

impl HostNetworks {
    /// These networks, and `loopback` unless it is among them.
    #[must_use]
    pub fn new(given: impl IntoIterator<Item = (String, IpAddr)>) -> HostNetworks {
        let mut networks = BTreeMap::from([("loopback".to_owned(), IpAddr::V4(Ipv4Addr::LOCALHOST))]);
        networks.extend(given);
        HostNetworks { all: networks, configured: Vec::new() }
    }

    /// The same, with the names that the operator has configured.
    #[must_use]
    pub fn with_configured(self, configured: Vec<String>) -> HostNetworks {
        HostNetworks { configured, ..self }
    }

    /// The address of a network by its name. `default` is the node's own address unless it was given.
    ///
    /// # Errors
    /// [`UnknownNetwork`].
    pub fn address(&self, name: &str, own: IpAddr) -> Result<IpAddr, UnknownNetwork> {
        let found = self.all.get(name).copied().or((name == DEFAULT).then_some(own));
        found.ok_or_else(|| UnknownNetwork(name.to_owned()))
    }
}

/// The host ports of the allocations of one process; with a registry, coordinated with all processes that use that registry.
#[derive(Debug, Clone)]
pub struct PortPool {
    dynamic: RangeInclusive<u16>,
    networks: HostNetworks,
    registry: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    registry: Option<Registry>,
}

impl Default for PortPool {
    /// A pool that is not coordinated with other processes.
    fn default() -> PortPool {
        PortPool { dynamic: DYNAMIC, networks: HostNetworks::default(), registry: None, state: Arc::default() }
    }
}

/// A requested port, and the task that it is for.
struct Ask<'a> {
    port: &'a Port,
    task: Option<&'a str>,
    ip: IpAddr,
}

impl PortPool {
    /// A pool that shares the machine's ports with all processes that use this registry, a directory that may not exist yet.
    #[must_use]
    pub fn of_machine(registry: PathBuf) -> PortPool {
        PortPool { registry: Some(registry), ..PortPool::default() }
    }

    /// The same with other host networks and another range of dynamic ports.
    #[must_use]
    pub fn with(self, networks: HostNetworks, dynamic: RangeInclusive<u16>) -> PortPool {
        PortPool { dynamic, networks, ..self }
    }

    /// The host networks by name.
    pub fn networks(&self) -> impl Iterator<Item = (&str, IpAddr)> {
        self.networks.all.iter().map(|(name, ip)| (name.as_str(), *ip))
    }

    /// The names of the networks that the operator has configured.
    #[must_use]
    pub fn configured(&self) -> &[String] {
        &self.networks.configured
    }

    /// The range of dynamic ports.
    #[must_use]
    pub fn dynamic(&self) -> RangeInclusive<u16> {
        self.dynamic.clone()
    }

    /// The holder of this port on any address of the machine: an allocation of another process, or a process that listens there.
    /// `None` if there is none; ports of this process are not considered.
    #[must_use]
    pub fn holder(&self, port: u16) -> Option<String> {
        match self.others() {
            Ok(others) => {
                if let Some((who, held)) = others.iter().find(|(_, held)| held.port == port) {
                    return Some(named(who, held, ""));
                }
            }
            // It is checked again when the port is allocated.
            Err(error) => tracing::warn!(error = super::chain::chain(&error), "cannot look who has which ports"),
        }
        let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if is_free(any, port) {
            return None;
        }
        let who = listeners::on(any, port);
        Some(who.map_or_else(
            || "a program that is not an allocation".to_owned(),
            |(pid, name)| format!("{name} (pid {pid})"),
        ))
    }

    /// The ports of all other processes.
    fn others(&self) -> Result<Vec<(String, Held)>, PortError> {
        let Some(path) = &self.registry else { return Ok(Vec::new()) };
        let failed = |source| PortError::Registry { path: path.clone(), source };
        let State { registry, .. } = &mut *lock(&self.state);
        let registry = match registry {
            Some(registry) => registry,
            None => registry.insert(Registry::open(path).map_err(failed)?),
        };
        registry.lock().and_then(|mut locked| locked.others()).map_err(failed)
    }

    /// Chooses a port for each label of a group (by its index) and its tasks: all or none. Waits while another process chooses.
    /// A port that is still mapped into one of `networks` is not chosen, whichever process made the mapping.
    ///
    /// # Errors
    /// [`PortError`].
    pub(super) fn allocate(
        &self,
        job: &Job,
        group: usize,
        alloc: &AllocId,
        node: &Node,
        networks: &Networks,
    ) -> Result<Vec<AllocPort>, PortError> {
        let group = &job.groups[group];
        let asks = self.asks(group, node)?;
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        let mut state = lock(&self.state);
        let held = |ask: &Ask<'_>, value| Held {
            ip: ask.ip,
            port: value,
            label: ask.port.label.clone(),
            job: job.id.clone(),
            group: group.name.clone(),
            alloc: alloc.to_string(),
        };
        let State { held: own, registry } = &mut *state;
        let Some(path) = &self.registry else {
            let chosen = choose_all(&asks, own, &[], &[], &BTreeMap::new(), &self.dynamic)?;
            own.extend(asks.iter().zip(&chosen).map(|(ask, value)| held(ask, *value)));
            return Ok(given(&asks, &chosen));
        };
        let failed = |source| PortError::Registry { path: path.clone(), source };
        let registry = match registry {
            Some(registry) => registry,
            None => registry.insert(Registry::open(path).map_err(failed)?),
        };
        let mut locked = registry.lock().map_err(failed)?;
        let others = locked.others().map_err(failed)?;
        let last_use = locked.last_use(&self.dynamic).map_err(failed)?;
        let noted = net::noted(&networks.run_dir);
        let left = noted.map_err(|source| PortError::Networks { path: networks.run_dir.clone(), source })?;
        let chosen = choose_all(&asks, own, &others, &left, &last_use, &self.dynamic)?;
        let before = own.len();
        own.extend(asks.iter().zip(&chosen).map(|(ask, value)| held(ask, *value)));
        if let Err(source) = locked.hold(own) {
            own.truncate(before);
            return Err(failed(source));
        }
        Ok(given(&asks, &chosen))
    }

    /// Registers ports that an allocation's owner chose for it, unless another process has one of them by now.
    ///
    /// # Errors
    /// [`PortError`].
    pub(super) fn take(&self, job: &Job, group: usize, alloc: &AllocId, ports: &[AllocPort]) -> Result<(), PortError> {
        let group = &job.groups[group];
        let networks = group.network.iter().chain(group.tasks.iter().filter_map(|task| task.network.as_ref()));
        let asked: Vec<&Port> = networks.flat_map(|network| &network.ports).collect();
        let others = if ports.is_empty() { Vec::new() } else { self.others()? };
        for AllocPort { label, value, ip, .. } in ports {
            let Some(asked) = asked.iter().find(|asked| asked.label == *label) else { continue };
            let same = |(_, held): &&(String, Held)| held.port == *value && held.ip == *ip;
            if let Some((who, held)) = others.iter().find(same).filter(|_| !asked.ignore_collision) {
                let (label, pos, holder) = (label.clone(), asked.pos.clone(), named(who, held, " has it"));
                return Err(PortError::Taken { label, port: *value, pos, holder });
            }
        }
        let failed = |source| PortError::Registry { path: self.registry.clone().unwrap_or_default(), source };
        self.claim(alloc, &job.id, &group.name, ports).map_err(failed)
    }

    /// Registers ports that an earlier process chose for an allocation.
    ///
    /// # Errors
    /// When the registry cannot be written; then other processes do not see these ports as taken.
    pub(super) fn claim(&self, alloc: &AllocId, job: &str, group: &str, ports: &[AllocPort]) -> io::Result<()> {
        if ports.is_empty() {
            return Ok(());
        }
        let mut state = lock(&self.state);
        let State { held: own, registry } = &mut *state;
        own.extend(ports.iter().map(|port| Held {
            ip: port.ip,
            port: port.value,
            label: port.label.clone(),
            job: job.to_owned(),
            group: group.to_owned(),
            alloc: alloc.to_string(),
        }));
        let Some(path) = &self.registry else { return Ok(()) };
        let registry = match registry {
            Some(registry) => registry,
            None => registry.insert(Registry::open(path)?),
        };
        registry.lock()?.hold(own)
    }

    /// Releases the ports of an allocation.
    ///
    /// # Errors
    /// When the registry cannot be written; then the ports stay taken until this process ends.
    pub(super) fn release(&self, alloc: &AllocId) -> io::Result<()> {
        let (mut state, alloc) = (lock(&self.state), alloc.to_string());
        let State { held, registry } = &mut *state;
        let freed: BTreeSet<u16> = held.iter().filter(|held| held.alloc == alloc).map(|held| held.port).into_set();
        if freed.is_empty() {
            return Ok(());
        }
        held.retain(|held| held.alloc != alloc);
        let Some(registry) = registry else { return Ok(()) };
        let mut locked = registry.lock()?;
        locked.used(&freed)?;
        locked.hold(held)
    }

    fn asks<'a>(&self, group: &'a Group, node: &Node) -> Result<Vec<Ask<'a>>, PortError> {
        let own = group.network.iter().map(|network| (None, network));
        let of_tasks = group.tasks.iter().filter_map(|task| Some((Some(&*task.name), task.network.as_ref()?)));
        let mut asks = Vec::new();
        for (task, Network { ports, .. }) in own.chain(of_tasks) {
            for port in ports {
                let (name, pos) = port.host_network.as_ref().map_or((DEFAULT, &port.pos), |n| (&n.name, &n.pos));
                let name = interpolate(name, &|key| node.lookup(key).map(str::to_owned));
                let ip = self.networks.address(&name, node.ip).map_err(|network| PortError::NoSuchNetwork {
                    label: port.label.clone(),
                    pos: pos.clone(),
                    network,
                })?;
                asks.push(Ask { port, task, ip });
            }
        }
        // Fixed ports come first, so that no dynamic port takes them.
        asks.order_by_key(|ask| ask.port.static_port.is_none());
        Ok(asks)
    }
}

fn given(asks: &[Ask<'_>], chosen: &[u16]) -> Vec<AllocPort> {
    let port = |(ask, value): (&Ask<'_>, &u16)| AllocPort {
        label: ask.port.label.clone(),
        value: *value,
        to: ask.port.to,
        ip: ask.ip,
        task: ask.task.map(str::to_owned),
    };
    asks.iter().zip(chosen).map(port).collect()
}

fn choose_all(
    asks: &[Ask<'_>],
    own: &[Held],
    others: &[(String, Held)],
    left: &[Noted],
    last_use: &BTreeMap<u16, u64>,
    range: &RangeInclusive<u16>,
) -> Result<Vec<u16>, PortError> {
    let mut chosen = Vec::new();
    let mut taken: BTreeSet<u16> =
        own.iter().chain(others.iter().map(|(_, held)| held)).map(|held| held.port).collect();
    taken.extend(left.iter().flat_map(Noted::ports).map(|(_, port)| port));
    // Sorted once for all dynamic ports, and only if there are any.
    let mut candidates: Option<std::vec::IntoIter<u16>> = None;
    for ask in asks {
        let port = if let Some(number) = ask.port.static_port {
            fixed(ask, number, own, others, left)?;
            number
        } else {
            let free = candidates.get_or_insert_with(|| least_recently_used(range, last_use).into_iter());
            free.find(|port| !taken.contains(port) && is_free(ask.ip, *port)).ok_or_else(|| PortError::Exhausted {
                label: ask.port.label.clone(),
                pos: ask.port.pos.clone(),
                range: range.clone(),
            })?
        };
        taken.insert(port);
        chosen.push(port);
    }
    Ok(chosen)
}

/// All ports of the range, the most recently used one last. Ports that were never used begin at a random one, so that two
/// processes without a common registry rarely choose the same.
fn least_recently_used(range: &RangeInclusive<u16>, last_use: &BTreeMap<u16, u64>) -> Vec<u16> {
    let count = u128::from(range.end() - range.start()) + 1;
    let start = u16::try_from(crate::sys::random::bits() % count).unwrap_or_default() + range.start();
    let mut ports: Vec<u16> = (start..=*range.end()).chain(*range.start()..start).collect();
    ports.order_by_key(|port| last_use.get(port).copied().unwrap_or(0));
    ports
}

/// Describes the holder of a port.
fn named(who: &str, Held { job, group, alloc, .. }: &Held, has: &str) -> String {
    let alloc = alloc.get(..8).unwrap_or(alloc);
    format!("job {job:?}, group {group:?}{has} (allocation {alloc}, {who})")
}

fn fixed(ask: &Ask<'_>, number: u16, own: &[Held], others: &[(String, Held)], left: &[Noted]) -> Result<(), PortError> {
    if ask.port.ignore_collision {
        return Ok(());
    }
    let (label, pos) = (ask.port.label.clone(), ask.port.pos.clone());
    let taken = |holder| PortError::Taken { label: label.clone(), port: number, pos: pos.clone(), holder };
    let same = |held: &Held| held.port == number && held.ip == ask.ip;
    if let Some(held) = own.iter().find(|held| same(held)) {
        return Err(taken(format!("group {:?} of this job has it, as port {:?}", held.group, held.label)));
    }
    if let Some((who, held)) = others.iter().find(|(_, held)| same(held)) {
        return Err(taken(named(who, held, " has it")));
    }
    // No process listens on a mapped port: packets are redirected before they reach a socket.
    if let Some(noted) = left.iter().find(|noted| noted.ports().any(|port| port == (ask.ip, number))) {
        let alloc = noted.id().get(..8).unwrap_or_else(|| noted.id());
        let dir = noted.record().parent().and_then(Path::parent).unwrap_or(noted.record()).display();
        return Err(taken(format!(
            "it still leads to allocation {alloc}, whose network was not removed (agentbin gc --data-dir {dir})"
        )));
    }
    match test_bind(ask.ip, number) {
        Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(PortError::NoSuchAddress { label: label.clone(), pos: pos.clone(), ip: ask.ip })
        }
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
            let who = listeners::on(ask.ip, number);
            Err(taken(who.map_or_else(|| e.to_string(), |(pid, name)| format!("{name} (pid {pid}) listens there"))))
        }
        // Whether the task may bind a privileged port depends on the task's own privileges.
        _ => Ok(()),
    }
}

/// Binds the port briefly, as TCP and as UDP: a task may use it for either.
fn test_bind(ip: IpAddr, port: u16) -> io::Result<()> {
    let _tcp = TcpListener::bind((ip, port))?;
    let _udp = UdpSocket::bind((ip, port))?;
    Ok(())
}

/// Whether a task could bind the port on any address of the machine, IPv4 and, if available, IPv6.
fn is_free(ip: IpAddr, port: u16) -> bool {
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED), ip];
    let is_taken = |ip| test_bind(ip, port).is_err_and(|e| e.kind() == io::ErrorKind::AddrInUse);
    !any.into_iter().any(is_taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::fake;
    use crate::spec::{HostNetwork, Pos};

    fn port(label: &str, static_port: Option<u16>) -> Port {
        Port { label: label.to_owned(), static_port, pos: Pos::default(), ..Port::default() }
    }

    fn on(network: &str, port: Port) -> Port {
        Port { host_network: Some(HostNetwork { name: network.to_owned(), pos: Pos::default() }), ..port }
    }

    /// A node whose address belongs to this machine.
    fn node() -> Node {
        Node { ip: Ipv4Addr::LOCALHOST.into(), ..(*fake::node()).clone() }
    }

    struct Asking(PortPool);

    impl Asking {
        /// Ports for a group of a new allocation; the second ones are the task's.
        fn of(&self, group: Vec<Port>, task: Vec<Port>) -> Result<(AllocId, Vec<AllocPort>), PortError> {
            let mut job = fake::job(vec![fake::task("web")]);
            job.groups[0].network = Some(Network { ports: group, ..Network::default() });
            job.groups[0].tasks[0].network = Some(Network { ports: task, ..Network::default() });
            let id = AllocId::new(crate::sys::random::uuid());
            let networks = Networks::new(PathBuf::from("/nonexistent"));
            self.0.allocate(&job, 0, &id, &node(), &networks).map(|ports| (id, ports))
        }

        fn one(&self, port: Port) -> Result<(AllocId, u16), PortError> {
            self.of(vec![port], Vec::new()).map(|(id, ports)| (id, ports[0].value))
        }
    }

    fn free_port() -> u16 {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn dynamic_ports_are_free_distinct_and_in_range() {
        let asking = Asking(PortPool::default());
        let (_, first) = asking.of(vec![port("a", None), port("b", None)], vec![port("c", None)]).unwrap();
        let (_, second) = asking.of(vec![port("a", None)], Vec::new()).unwrap();
        let all: BTreeSet<_> = first.iter().chain(&second).map(|port| port.value).collect();
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|p| DYNAMIC.contains(p)));
        let of_tasks: Vec<_> = first.iter().map(|port| port.task.as_deref()).collect();
        assert_eq!(of_tasks, [None, None, Some("web")]);
    }

    #[test]
    fn a_static_port_in_use_is_refused_with_its_holder_and_the_others_are_given_back() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let busy = listener.local_addr().unwrap().port();
        let asking = Asking(PortPool::default());
        let error = asking.of(vec![port("dyn", None), port("http", Some(busy))], Vec::new()).unwrap_err().to_string();
        let expected = format!("port \"http\": {busy} is not free: ");
        assert!(
            error.contains(&expected) && error.contains(&format!("(pid {}) listens", std::process::id())),
            "{error}"
        );
        assert!(asking.0.state.lock().unwrap().held.is_empty());
        drop(listener);
        let (id, _) = asking.one(port("http", Some(busy))).unwrap();
        let error = asking.one(port("http", Some(busy))).unwrap_err().to_string();
        assert!(error.contains("group \"group\" of this job has it, as port \"http\""), "{error}");
        let shared = Port { ignore_collision: true, ..port("http", Some(busy)) };
        let (sharer, _) = asking.one(shared).unwrap();
        asking.0.release(&sharer).unwrap();
        asking.0.release(&id).unwrap();
        asking.one(port("http", Some(busy))).unwrap();
    }

    #[test]
    fn a_port_that_was_chosen_for_an_allocation_is_taken_unless_another_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let pools = [0, 1].map(|_| PortPool::of_machine(dir.path().join("ports")));
        let number = free_port();
        let mut job = crate::alloc::fake::job(vec![crate::alloc::fake::task("web")]);
        job.groups[0].network = Some(Network { ports: vec![port("http", Some(number))], ..Network::default() });
        let chosen = [AllocPort {
            label: "http".to_owned(),
            value: number,
            to: None,
            ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            task: None,
        }];
        let [first, next] = [0, 1].map(|_| AllocId::new(uuid::Uuid::new_v4()));
        assert_eq!(pools[1].holder(number), None);
        pools[0].take(&job, 0, &first, &chosen).unwrap();
        // The owner chooses the ports of its own process itself, so a port of the same process is not refused.
        pools[0].take(&job, 0, &next, &chosen).unwrap();
        assert_eq!(pools[0].holder(number), None);
        let refused = pools[1].take(&job, 0, &first, &chosen).unwrap_err().to_string();
        assert!(refused.contains(&format!("{number} is not free: job \"job\", group \"group\" has it")), "{refused}");
        assert!(pools[1].holder(number).unwrap().starts_with("job \"job\", group \"group\" (allocation "));
        for alloc in [first, next] {
            assert!(pools[1].holder(number).is_some());
            pools[0].release(&alloc).unwrap();
        }
        assert_eq!(pools[1].holder(number), None);
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).unwrap();
        assert!(pools[1].holder(number).unwrap().contains(&format!("(pid {})", std::process::id())));
        drop(listener);
    }

    /// A socket on another address of the machine leaves this one free, as 127.0.0.53 does.
    #[test]
    fn a_static_port_is_that_of_one_address() {
        let other = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 53), 0)).unwrap();
        let number = other.local_addr().unwrap().port();
        let networks = [("other", [127, 0, 0, 53]), ("third", [127, 0, 0, 54]), ("doc", [192, 0, 2, 1])];
        let networks = HostNetworks::new(networks.map(|(name, ip)| (name.to_owned(), ip.into())));
        let asking = Asking(PortPool::default().with(networks, DYNAMIC));
        let (_, ports) =
            asking.of(vec![port("own", Some(number)), on("third", port("third", Some(number)))], Vec::new()).unwrap();
        let ips: Vec<_> = ports.iter().map(|port| port.ip.to_string()).collect();
        assert_eq!(ips, ["127.0.0.1", "127.0.0.54"]);
        assert!(asking.one(on("other", port("x", Some(number)))).is_err());
        let error = asking.one(on("doc", port("x", Some(number)))).unwrap_err().to_string();
        assert!(error.contains("192.0.2.1 is not an address of this machine"), "{error}");
        let error = asking.one(on("lan", port("x", None))).unwrap_err().to_string();
        assert!(error.contains("no host network \"lan\"") && error.contains("--host-network lan=ADDRESS"), "{error}");
        let error = asking.one(on("${meta.net}", port("x", None))).unwrap_err().to_string();
        assert!(error.contains("no host network \"${meta.net}\""), "{error}");
        assert_eq!(asking.of(vec![on("loopback", port("x", None))], Vec::new()).unwrap().1[0].ip, Ipv4Addr::LOCALHOST);
    }

    #[test]
    fn what_listens_on_any_address_keeps_a_dynamic_port_from_being_chosen() {
        let asked = free_port();
        let asking = Asking(PortPool::default().with(HostNetworks::default(), asked..=asked));
        let mut bound = 0;
        for listener in ["127.0.0.53", "::1", "0.0.0.0"] {
            let ip: IpAddr = listener.parse().unwrap();
            let Ok(_tcp) = TcpListener::bind((ip, asked)) else { continue };
            bound += 1;
            assert!(matches!(asking.one(port("x", None)), Err(PortError::Exhausted { .. })), "{listener}");
        }
        assert!(bound > 0, "nobody could listen on {asked}");
        let udp = UdpSocket::bind(("0.0.0.0", asked)).unwrap();
        let error = asking.one(port("x", None)).unwrap_err().to_string();
        assert!(error.contains(&format!("no port from {asked} to {asked} is free")), "{error}");
        drop(udp);
        assert_eq!(asking.one(port("x", None)).unwrap().1, asked);
    }

    #[test]
    fn j3_two_holders_of_one_registry_never_have_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let at = || Asking(PortPool::of_machine(dir.path().join("run/ports")));
        let number = free_port();
        let (one, other) = (at(), at());
        let (id, _) = one.one(port("http", Some(number))).unwrap();
        let error = other.one(port("web", Some(number))).unwrap_err().to_string();
        let expected = format!(
            "{number} is not free: job \"job\", group \"group\" has it (allocation {}, agentbin with pid {})",
            id.short(),
            std::process::id()
        );
        assert!(error.contains(&expected), "{error}");
        // All ports of the range, shared by both, are taken, and none twice.
        let few = (number.min(65_000)..=number.min(65_000) + 40).collect::<Vec<_>>();
        let range = few[0]..=few[40];
        let [one, other] = [one, other].map(|asking| Asking(asking.0.with(HostNetworks::default(), range.clone())));
        let taken = std::thread::scope(|scope| {
            let take = |asking: &'static str, pool: PortPool| {
                let asking = (asking, Asking(pool));
                scope.spawn(move || std::iter::from_fn(|| asking.1.one(port(asking.0, None)).ok()).collect::<Vec<_>>())
            };
            let threads = [take("one", one.0.clone()), take("other", other.0.clone())];
            threads.map(|thread| thread.join().unwrap()).concat()
        });
        let numbers: BTreeSet<u16> = taken.iter().map(|(_, port)| *port).collect();
        assert_eq!(numbers.len(), taken.len());
        assert!(numbers.len() > 20 && !numbers.contains(&number), "{numbers:?}");
        one.0.release(&id).unwrap();
        other.one(port("web", Some(number))).unwrap();
    }

    #[test]
    fn the_least_recently_used_is_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let range = 20_000..=20_004;
        let mut registry = Registry::open(dir.path()).unwrap();
        let order = [20_003, 20_000, 20_004, 20_001];
        for port in order {
            registry.lock().unwrap().used(&BTreeSet::from([port])).unwrap();
        }
        // Another process sees the same order.
        let mut other = Registry::open(dir.path()).unwrap();
        let last_use = other.lock().unwrap().last_use(&range).unwrap();
        let candidates = least_recently_used(&range, &last_use);
        assert_eq!((candidates[0], &candidates[1..]), (20_002, &order[..]), "what was never used comes first");
    }

    #[test]
    fn what_a_dead_process_had_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let number = free_port();
        let asking = Asking(PortPool::of_machine(dir.path().to_owned()));
        asking.one(port("http", Some(number))).unwrap();
        let own =
            std::fs::read_dir(dir.path()).unwrap().flatten().find(|e| e.file_name().to_string_lossy().contains('.'));
        let own = own.unwrap().path();
        let name = own.file_name().unwrap().to_str().unwrap().to_owned();
        let (owner, _) = name.split_once('.').unwrap();
        let mut words = owner.split('-');
        let (pid, _, namespace) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let other = Asking(PortPool::of_machine(dir.path().to_owned()));
        // A file of an earlier process with this pid, and one of a process in another pid namespace that no longer locks it.
        for dead in [format!("{pid}-1-{namespace}.0"), format!("{pid}-1-1.0")] {
            let dead = dir.path().join(dead);
            std::fs::copy(&own, &dead).unwrap();
            asking.0.release(&AllocId::new(crate::sys::random::uuid())).unwrap();
            assert!(other.one(port("http", Some(number))).is_err(), "the one that lives has it");
            assert!(!dead.exists(), "{}", dead.display());
        }
        std::fs::rename(&own, dir.path().join(format!("{pid}-1-{namespace}.0"))).unwrap();
        other.one(port("http", Some(number))).unwrap();
    }

    #[test]
    fn a_registry_of_others_is_not_believed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let asking = Asking(PortPool::of_machine(dir.path().to_owned()));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(asking.one(port("x", None)), Err(PortError::Registry { .. })));
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("lock")).unwrap();
        assert!(matches!(asking.one(port("x", None)), Err(PortError::Registry { .. })));
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        // An unreadable file does not keep other processes from their ports.
        let live = Asking(PortPool::of_machine(dir.path().to_owned()));
        live.one(port("x", None)).unwrap();
        for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
            if entry.file_name().to_string_lossy().contains('.') {
                std::fs::write(entry.path(), "{").unwrap();
            }
        }
        asking.one(port("x", None)).unwrap();
    }
}
