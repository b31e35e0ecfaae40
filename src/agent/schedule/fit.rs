//! The node's free resources: CPU, cores, memory, disk, ports, and ports of the bridge.

use crate::agent::model::{AllocatedPort, AllocatedResources, AllocatedShared, AllocatedTask, Allocation, Nanos, Node};
use crate::net::MOST_ON_BRIDGE;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Group, Network, NetworkMode, interpolate};
use crate::spec::{IntoMap as _, Order as _};

use super::feasible::{No, host_address, lookup};

/// The holder of a port.
#[derive(Debug, Clone)]
struct Holder {
    alloc: String,
    ip: String,
    who: String,
}

/// The node's resources in use. What an allocation has is free when it has ended, except for its successor, which waits for its
/// end. CPU, memory and disk of one that this decision stops are free for what else it places; ports (also of the bridge) and cores
/// are not.
pub(super) struct Usage<'a> {
    node: &'a Node,
    outside: &'a dyn Fn(u16) -> Option<String>,
    last_used: &'a dyn Fn(u16) -> Nanos,
    counted: BTreeSet<String>,
    cpu_mhz: i64,
    memory_mb: i64,
    disk_mb: i64,
    cores: BTreeMap<u16, Vec<String>>,
    ports: BTreeMap<u16, Vec<Holder>>,
    /// Those on the built-in bridge.
    on_bridge: BTreeSet<String>,
    /// Ports of the dynamic range that no allocation has, the one that was used longest ago last; made when one is needed.
    unused: Option<Vec<u16>>,
}

impl<'a> Usage<'a> {
    pub(super) fn new(
        node: &'a Node,
        outside: &'a dyn Fn(u16) -> Option<String>,
        last_used: &'a dyn Fn(u16) -> Nanos,
    ) -> Usage<'a> {
        Usage {
            node,
            outside,
            last_used,
            counted: BTreeSet::new(),
            cpu_mhz: 0,
            memory_mb: 0,
            disk_mb: 0,
            cores: BTreeMap::new(),
            ports: BTreeMap::new(),
            on_bridge: BTreeSet::new(),
            unused: None,
        }
    }

    /// Adds an allocation whose processes may exist, also where it has been told to stop.
    pub(super) fn add(&mut self, alloc: &Allocation) {
        if alloc.client_status.is_terminal() {
            return;
        }
        let has = &alloc.allocated_resources;
        if self.counted.insert(alloc.id.clone()) {
            let (cpu, memory) = has.most();
            self.cpu_mhz = self.cpu_mhz.saturating_add(cpu);
            self.memory_mb = self.memory_mb.saturating_add(memory);
            self.disk_mb = self.disk_mb.saturating_add(number(has.shared.disk_mb));
        }
        for core in has.tasks.values().flat_map(|task| &task.reserved_cores) {
            self.cores.entry(*core).or_default().push(alloc.id.clone());
        }
        if has.shared.on_bridge {
            self.on_bridge.insert(alloc.id.clone());
        }
        for port in &has.shared.ports {
            let holder = Holder { alloc: alloc.id.clone(), ip: port.host_ip.clone(), who: who(alloc) };
            self.ports.entry(port.value).or_default().push(holder);
        }
    }

    /// This decision stops an allocation.
    pub(super) fn release(&mut self, alloc: &Allocation) {
        if self.counted.remove(&alloc.id) {
            let (cpu, memory) = alloc.allocated_resources.most();
            self.cpu_mhz = self.cpu_mhz.saturating_sub(cpu);
            self.memory_mb = self.memory_mb.saturating_sub(memory);
            self.disk_mb -= number(alloc.allocated_resources.shared.disk_mb);
        }
    }

    /// The resources that an allocation of a group gets when it replaces `previous`.
    pub(super) fn fit(&mut self, group: &Group, previous: Option<&Allocation>) -> Result<AllocatedResources, No> {
        let on_bridge = self.takes_bridge(group, previous)?;
        let ports = self.take_ports(group, previous)?;
        let tasks = self.take_tasks(group, previous)?;
        let disk_mb = group.scheduling.disk.size_mib;
        let has = AllocatedResources { tasks, shared: AllocatedShared { disk_mb, ports, on_bridge } };
        let (cpu, memory) = has.most();
        let own = previous.filter(|previous| self.counted.contains(&previous.id));
        let (own_cpu, own_memory) = own.map_or((0, 0), |own| own.allocated_resources.most());
        let own_disk = own.map_or(0, |own| number(own.allocated_resources.shared.disk_mb));
        let node = &self.node.resources;
        let left = |total: i64, reserved: i64, used: i64| total.saturating_sub(reserved).saturating_sub(used);
        let (total_cpu, reserved_cpu) = (number(node.cpu_mhz), number(node.reserved_cpu_mhz));
        for (what, unit, total, left, asked) in [
            ("cpu", "MHz", total_cpu, left(total_cpu, reserved_cpu, self.cpu_mhz - own_cpu), cpu),
            (
                "memory",
                "MiB",
                node.memory_mb,
                left(node.memory_mb, node.reserved_memory_mb, self.memory_mb - own_memory),
                memory,
            ),
            (
                "disk",
                "MiB",
                node.disk_mb,
                left(node.disk_mb, node.reserved_disk_mb, self.disk_mb - own_disk),
                number(disk_mb),
            ),
        ] {
            // A resource whose total is unknown is not checked.
            if total > 0 && asked > left {
                let reason = format!("it asks for {asked} {unit} of {what}, and the node has {} left", left.max(0));
                let of_task = |(name, task): (&String, &AllocatedTask)| {
                    let asked = match what {
                        "cpu" => AllocatedTask { cpu_shares: task.cpu_shares, ..AllocatedTask::default() },
                        "memory" => AllocatedTask { memory_mb: task.memory_mb, ..AllocatedTask::default() },
                        _ => return None,
                    };
                    Some((name.clone(), asked))
                };
                return Err(No {
                    asked: has.tasks.iter().filter_map(of_task).into_map(),
                    ..No::exhausted(what, reason)
                });
            }
        }
        Ok(has)
    }

    /// How full the node is with `has` in place of the replaced allocation, from 0 to 1, by Borg's "best fit" rule.
    pub(super) fn fullness(&self, has: &AllocatedResources, replaced: Option<&Allocation>) -> f64 {
        let node = &self.node.resources;
        let own = replaced.filter(|replaced| self.counted.contains(&replaced.id));
        let (own_cpu, own_memory) = own.map_or((0, 0), |own| own.allocated_resources.most());
        let (cpu, memory) = has.most();
        let free = |total: i64, used: i64| if total > 0 { 1.0 - used as f64 / total as f64 } else { 1.0 };
        let cpu = free(number(node.cpu_mhz) - number(node.reserved_cpu_mhz), self.cpu_mhz - own_cpu + cpu);
        let memory = free(node.memory_mb - node.reserved_memory_mb, self.memory_mb - own_memory + memory);
        (20.0 - 10_f64.powf(cpu) - 10_f64.powf(memory)).clamp(0.0, 18.0) / 18.0
    }

    /// Whether a group needs a port of the built-in bridge, which has so many.
    fn takes_bridge(&self, group: &Group, previous: Option<&Allocation>) -> Result<bool, No> {
        if group.network.as_ref().is_none_or(|network| network.mode != NetworkMode::Bridge) {
            return Ok(false);
        }
        let own = previous.filter(|previous| self.on_bridge.contains(&previous.id));
        let others = self.on_bridge.len() - usize::from(own.is_some());
        if others < MOST_ON_BRIDGE {
            return Ok(true);
        }
        let reason = format!(
            "{others} allocations are on the bridge of mode bridge, which takes no more; stop some, or use another network mode"
        );
        Err(No::exhausted("network: bridge is full", reason))
    }

    fn take_tasks(&self, group: &Group, previous: Option<&Allocation>) -> Result<BTreeMap<String, AllocatedTask>, No> {
        let node = &self.node.resources;
        let mut taken = BTreeSet::new();
        let mut tasks = BTreeMap::new();
        for task in &group.tasks {
            let wants = task.resources.cores as usize;
            let is_free = |core: &&u16| {
                let holders = self.cores.get(core).map_or(&[][..], Vec::as_slice);
                !taken.contains(*core) && holders.iter().all(|id| previous.is_some_and(|previous| previous.id == *id))
            };
            let cores: Vec<u16> = node.reservable_cores.iter().filter(is_free).take(wants).copied().collect();
            if cores.len() < wants {
                let reason =
                    format!("task {} asks for {wants} cores of its own, and {} are free", task.name, cores.len());
                return Err(No::exhausted("cores", reason));
            }
            taken.extend(cores.iter().copied());
            let of_cores = node.cpu_mhz / u64::from(node.cores.max(1)) * u64::from(task.resources.cores);
            let has = AllocatedTask {
                cpu_shares: if wants > 0 { of_cores } else { task.resources.cpu_mhz },
                reserved_cores: cores,
                // Secrets lie in memory.
                memory_mb: task.resources.memory_mib + i64::from(task.resources.secrets_mib),
                memory_max_mb: task.resources.memory_max_mib,
                lifecycle: task.lifecycle,
            };
            tasks.insert(task.name.clone(), has);
        }
        Ok(tasks)
    }

    /// The ports of the group, then those of its tasks' own networks, in the order of the job file.
    fn take_ports(&mut self, group: &Group, previous: Option<&Allocation>) -> Result<Vec<AllocatedPort>, No> {
        let networks: Vec<&Network> =
            group.network.iter().chain(group.tasks.iter().filter_map(|task| task.network.as_ref())).collect();
        let fixed: Vec<u16> =
            networks.iter().flat_map(|network| &network.ports).filter_map(|port| port.static_port).collect();
        let mut taken: Vec<AllocatedPort> = Vec::new();
        for port in networks.iter().flat_map(|network| &network.ports) {
            let find = |key: &str| lookup(self.node, key);
            let name = port.host_network.as_ref().map_or(String::new(), |host| interpolate(&host.name, &find));
            let ip = host_address(self.node, &name).unwrap_or_default();
            let value = match port.static_port {
                Some(value) => {
                    let is_twice = taken.iter().any(|other| other.value == value && other.host_ip == ip);
                    let problem = if is_twice {
                        Some("twice in this group".to_owned())
                    } else {
                        self.holder(value, &ip, previous, port.ignore_collision)
                    };
                    if let Some(holder) = problem {
                        let label = &port.label;
                        return Err(No::exhausted(
                            format!("network: reserved port collision {label}={value}"),
                            format!("port {value} is held by {holder}"),
                        ));
                    }
                    value
                }
                None => self.dynamic(&taken, &fixed)?,
            };
            taken.push(AllocatedPort { label: port.label.clone(), value, to: port.to.unwrap_or(0), host_ip: ip });
        }
        Ok(taken)
    }

    /// The holder of a fixed port that an allocation replacing `previous` cannot get.
    fn holder(&self, port: u16, ip: &str, previous: Option<&Allocation>, shares: bool) -> Option<String> {
        if self.node.resources.reserved_ports.contains(&port) {
            return Some("the node's configuration, which reserves it".to_owned());
        }
        if shares {
            return None;
        }
        let is_previous = |holder: &Holder| previous.is_some_and(|previous| previous.id == holder.alloc);
        let holders = self.ports.get(&port).map_or(&[][..], Vec::as_slice);
        let mut on_address = holders.iter().filter(|holder| holder.ip == ip);
        if let Some(holder) = on_address.clone().find(|holder| !is_previous(holder)) {
            return Some(holder.who.clone());
        }
        let is_own = on_address.any(is_previous);
        if is_own || !holders.is_empty() { None } else { (self.outside)(port) }
    }

    /// The port of the dynamic range that was used longest ago, and is none of the group's fixed ones.
    fn dynamic(&mut self, taken: &[AllocatedPort], fixed: &[u16]) -> Result<u16, No> {
        let node = &self.node.resources;
        let (first, last) = (node.min_dynamic_port, node.max_dynamic_port);
        let unused = self.unused.get_or_insert_with(|| {
            let is_out = |port: &u16| !self.ports.contains_key(port) && !node.reserved_ports.contains(port);
            let mut unused: Vec<u16> = (first..=last).filter(is_out).collect();
            unused.order_by_key(|port| std::cmp::Reverse(((self.last_used)(*port), *port)));
            unused
        });
        let mut busy = Vec::new();
        let mut found = None;
        while let Some(port) = unused.pop() {
            let is_had = taken.iter().any(|other| other.value == port) || self.ports.contains_key(&port);
            if !is_had && !fixed.contains(&port) && (self.outside)(port).is_none() {
                found = Some(port);
                break;
            }
            busy.push(port);
        }
        // A group that is then not placed gives its port back with the next one that is.
        unused.extend(busy.into_iter().rev());
        found.ok_or_else(|| {
            No::exhausted(
                "network: dynamic port selection failed",
                format!("no port from {first} to {last} is free; stop something, or make the range larger"),
            )
        })
    }
}

fn number(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

fn who(alloc: &Allocation) -> String {
    let mut tasks = alloc.allocated_resources.tasks.keys();
    let part = match (tasks.next(), tasks.next()) {
        (Some(task), None) => format!("task {task}"),
        _ => format!("group {}", alloc.task_group),
    };
    let stops =
        if alloc.desired_status == crate::agent::model::DesiredStatus::Run { "" } else { ", which is stopping" };
    format!("job {}, {part}{stops}", alloc.job_id)
}
