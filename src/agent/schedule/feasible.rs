//! Whether the node is one that a group may run on, apart from how full it is.

use super::input::CsiState;
use crate::agent::model::{
    AllocatedTask, CsiTopology, DynamicVolume, Eligibility, Node, NodeStatus, VolumeCapability, VolumeState, may_write,
};
use crate::spec::collections::BTreeMap;
use crate::spec::{Constraint, Group, Job, NetworkMode, Operator, Volume, interpolate};

/// Nomad's word for a host volume that is not there, or not to be had in this way.
pub(super) const VOLUMES: &str = "missing compatible host volumes";

/// Why a group is not placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct No {
    pub(super) kind: Kind,
    /// In words, by name.
    pub(super) reason: String,
    /// By task, what it asks for of what is used up.
    pub(super) asked: BTreeMap<String, AllocatedTask>,
}

/// The same in the words of Nomad's metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// The node is none of those that are asked.
    Unavailable,
    Filtered(String),
    Exhausted(String),
}

impl No {
    fn unavailable(reason: String) -> No {
        No { kind: Kind::Unavailable, reason, asked: BTreeMap::new() }
    }

    pub(super) fn filtered(what: impl Into<String>, reason: String) -> No {
        No { kind: Kind::Filtered(what.into()), reason, asked: BTreeMap::new() }
    }

    pub(super) fn exhausted(what: impl Into<String>, reason: String) -> No {
        No { kind: Kind::Exhausted(what.into()), reason, asked: BTreeMap::new() }
    }
}

/// The value of `node.*`, `attr.*` or `meta.*`.
pub(super) fn lookup(node: &Node, key: &str) -> Option<String> {
    match key {
        "node.unique.id" => Some(node.id.clone()),
        "node.unique.name" => Some(node.name.clone()),
        "node.datacenter" => Some(node.datacenter.clone()),
        "node.class" => Some(node.node_class.clone()),
        "node.pool" => Some(node.node_pool.clone()),
        _ => {
            let attribute = key.strip_prefix("attr.").and_then(|key| node.attributes.get(key));
            attribute.or_else(|| key.strip_prefix("meta.").and_then(|key| node.meta.get(key))).cloned()
        }
    }
}

/// Why nothing of a job is placed on the node.
pub(super) fn unavailable(node: &Node, job: &Job) -> Option<No> {
    closed(node).or_else(|| elsewhere(node, job)).map(No::unavailable)
}

/// Why the node takes nothing at all.
pub(super) fn closed(node: &Node) -> Option<String> {
    if node.status != NodeStatus::Ready {
        return Some("the node is not ready".to_owned());
    }
    if node.drain_strategy.is_some() {
        return Some("the node is being drained".to_owned());
    }
    if node.scheduling_eligibility != Eligibility::Eligible {
        let how = "agentbin node eligibility -enable";
        return Some(format!("the node is marked as ineligible; {how} makes it eligible"));
    }
    None
}

/// Why the node is none of those that the job asks for.
pub(super) fn elsewhere(node: &Node, job: &Job) -> Option<String> {
    let scheduling = &job.scheduling;
    if !scheduling.datacenters.iter().any(|pattern| is_like(pattern, &node.datacenter)) {
        let wanted = scheduling.datacenters.join(", ");
        return Some(format!("the job wants the data center {wanted}, and this node is in {}", node.datacenter));
    }
    let pool = if scheduling.node_pool.is_empty() { "default" } else { &scheduling.node_pool };
    (pool != "all" && pool != node.node_pool)
        .then(|| format!("the job wants the node pool {pool}, and this node is in {}", node.node_pool))
}

/// Whether a text matches a pattern whose stars stand for any text.
#[must_use]
pub fn is_like(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Live allocations of the job, and of the group, beside the one to be placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neighbours {
    pub(super) of_job: u64,
    pub(super) of_group: u64,
}

/// Why allocation number `index` of a group is not placed on the node: in the order in which Nomad looks, all there is.
pub(super) fn filtered(
    node: &Node,
    job: &Job,
    group: &Group,
    index: u32,
    neighbours: Neighbours,
    dynamic: &Volumes<'_>,
) -> Vec<No> {
    let find = |key: &str| lookup(node, key);
    let mut found = Vec::new();
    let of_tasks = group.tasks.iter().flat_map(|task| &task.constraints);
    let plain = |constraint: &&Constraint| !constraint.operator.is_distinct();
    found.extend(job.constraints.iter().filter(plain).filter_map(|constraint| unmet(constraint, &find)));
    found.extend(group.tasks.iter().filter_map(|task| driver(node, &task.driver)));
    found.extend(group.constraints.iter().chain(of_tasks).filter(plain).filter_map(|c| unmet(c, &find)));
    found.extend(volumes(node, group, index, dynamic));
    found.extend(networks(node, group, &find));
    let distinct = |constraints: &[Constraint], here: u64, whose: &str| {
        let unmet = constraints.iter().filter(|constraint| constraint.operator.is_distinct());
        unmet
            .filter(|constraint| !constraint.is_met(here + 1, &find))
            .map(|c| apart(c, here, whose, &find))
            .collect::<Vec<_>>()
    };
    found.extend(distinct(&job.constraints, neighbours.of_job, "job"));
    found.extend(distinct(&group.constraints, neighbours.of_group, "group"));
    found
}

fn unmet(constraint: &Constraint, find: &dyn Fn(&str) -> Option<String>) -> Option<No> {
    if constraint.is_met(1, find) {
        return None;
    }
    let Constraint { attribute, operator, value, .. } = constraint;
    let has = match attribute.strip_prefix("${").and_then(|key| key.strip_suffix('}')) {
        Some(key) => find(key).map_or_else(|| "has none".to_owned(), |value| format!("has {value}")),
        None => "cannot change that".to_owned(),
    };
    let text = format!("{attribute} {operator} {value}");
    let reason = format!("the constraint {} is not met: this node {has}", text.trim_end());
    Some(No::filtered(text, reason))
}

/// Why a constraint is not met on this node, in words.
#[must_use]
pub fn unmet_on(node: &Node, constraint: &Constraint) -> Option<String> {
    unmet(constraint, &|key| lookup(node, key)).map(|no| no.reason)
}

fn apart(constraint: &Constraint, here: u64, whose: &str, find: &dyn Fn(&str) -> Option<String>) -> No {
    let attribute = &constraint.attribute;
    if constraint.operator == Operator::DistinctHosts {
        let reason = format!("distinct_hosts: the one node has an allocation of the {whose} already");
        return No::filtered("distinct_hosts", reason);
    }
    let key = attribute.strip_prefix("${").and_then(|key| key.strip_suffix('}')).unwrap_or(attribute);
    let Some(value) = find(key) else {
        return No::filtered(
            format!("missing property \"{attribute}\""),
            format!("distinct_property wants {attribute}, which this node has not"),
        );
    };
    let text = format!("distinct_property: {attribute}={value} used by {here} allocs");
    No::filtered(text.clone(), text)
}

fn driver(node: &Node, name: &str) -> Option<No> {
    let info = node.drivers.get(name);
    if info.is_some_and(|driver| driver.detected && driver.healthy) {
        return None;
    }
    let state = match info {
        Some(driver) if driver.detected => "is not healthy",
        _ => "is not there",
    };
    let why = info.map_or("", |driver| &driver.health_description);
    let why = if why.is_empty() { String::new() } else { format!(": {why}") };
    Some(No::filtered("missing drivers", format!("the driver {name} {state}{why}")))
}

fn volumes(node: &Node, group: &Group, index: u32, dynamic: &Volumes<'_>) -> Vec<No> {
    let refused = |volume: &Volume| {
        let source = volume.source_of(index);
        if volume.csi.is_some() {
            let text = csi(node, &source, volume.read_only, dynamic)?;
            return Some(No::filtered(text.clone(), text));
        }
        let is_dynamic = |known: &&DynamicVolume| known.name == source;
        let known = dynamic.all.iter().find(is_dynamic);
        // A configured one takes the place of a dynamic one that is not available.
        let known =
            known.filter(|_| node.dynamic_volumes.contains_key(&source) || !node.host_volumes.contains_key(&source));
        let why = match (known, node.host_volumes.get(&source)) {
            (Some(known), _) => dynamic.refuse(known, volume)?,
            (None, None) => "is not configured on this node".to_owned(),
            (None, Some((_, true))) if !volume.read_only => {
                "is read-only on this node; add read_only = true to the volume".to_owned()
            }
            (None, Some(_)) => return None,
        };
        Some(No::filtered(VOLUMES, format!("the host volume {source} {why}")))
    };
    group.volumes.iter().filter_map(refused).collect()
}

/// Why a CSI volume cannot be used, in Nomad's words.
fn csi(node: &Node, source: &str, read_only: bool, volumes: &Volumes<'_>) -> Option<String> {
    let Some((volume, users)) = volumes.csi.volumes.get(source) else {
        return Some(format!("missing CSI Volume {source}"));
    };
    let (plugin, id) = (&volume.plugin_id, &node.id);
    let Some(info) = node.csi_nodes.get(plugin) else {
        return Some(format!("CSI plugin {plugin} is missing from client {id}"));
    };
    if !info.healthy {
        return Some(format!("CSI plugin {plugin} is unhealthy on client {id}"));
    }
    let own = info.node.as_ref();
    let used = volumes.csi.by_plugin.get(plugin).copied().unwrap_or(0);
    // A volume that is there already takes no place.
    if users.is_empty() && own.is_some_and(|own| used >= own.max_volumes) {
        return Some(format!("CSI plugin {plugin} has the maximum number of volumes on client {id}"));
    }
    let topology = own.and_then(|own| own.topology.as_ref());
    let is_here = |wanted: &CsiTopology| topology.is_some_and(|here| here.contains(wanted));
    if !volume.topologies.is_empty() && !volume.topologies.iter().any(is_here) {
        return Some("did not meet topology requirement".to_owned());
    }
    let controller = || node.csi_controllers.get(plugin).is_some_and(|controller| controller.healthy);
    let works = !info.requires_controller || controller();
    if read_only {
        let text = "is unschedulable or has exhausted its available reader claims";
        return (!works).then(|| format!("CSI volume {source} {text}"));
    }
    // It is used as its first user does.
    let mode = users.first().map(|first| &*first.access_mode);
    if !works || !mode.map_or_else(|| volume.is_writable(), may_write) {
        return Some(format!("CSI volume {source} is unschedulable or is read-only"));
    }
    let is_exclusive =
        matches!(mode, Some("single-node-writer" | "single-node-single-writer" | "multi-node-single-writer"));
    // The job's own allocations may be about to end.
    let is_taken = is_exclusive && users.iter().any(|user| user.writes && user.job_id != volumes.job);
    is_taken.then(|| format!("CSI volume {source} has exhausted its available writer claims"))
}

/// The dynamic volumes, for one placement.
pub(super) struct Volumes<'a> {
    /// The job's namespace.
    pub(super) namespace: &'a str,
    /// The job's id.
    pub(super) job: &'a str,
    pub(super) all: &'a [DynamicVolume],
    pub(super) csi: &'a CsiState,
    /// The name of an allocation that writes to a volume, if one does.
    pub(super) writer: &'a dyn Fn(&DynamicVolume) -> Option<String>,
}

impl Volumes<'_> {
    /// Why a group cannot use a volume so.
    fn refuse(&self, known: &DynamicVolume, wanted: &Volume) -> Option<String> {
        if known.namespace != self.namespace {
            return Some(format!("is of the namespace {}, and the job of {}", known.namespace, self.namespace));
        }
        if known.state != VolumeState::Ready || known.deleting {
            return Some("is not ready".to_owned());
        }
        let usual = if wanted.read_only { "single-node-reader-only" } else { "single-node-writer" };
        let or = |text: &'_ str, usual: &str| if text.is_empty() { usual.to_owned() } else { text.to_owned() };
        let wish = VolumeCapability {
            access_mode: or(&wanted.access_mode, usual),
            attachment_mode: or(&wanted.attachment_mode, "file-system"),
        };
        if !known.requested_capabilities.contains(&wish) {
            let text = |of: &VolumeCapability| format!("{} with {}", of.access_mode, of.attachment_mode);
            let has: Vec<String> = known.requested_capabilities.iter().map(text).collect();
            return Some(format!("has no capability {}; it has {}", text(&wish), has.join(", ")));
        }
        let mode = &wish.access_mode;
        match (mode.as_str(), wanted.read_only) {
            ("single-node-reader-only", false) => {
                Some(format!("is used as {mode}; add read_only = true to the volume"))
            }
            ("single-node-writer", true) => Some(format!("is used as {mode}; remove read_only from the volume")),
            ("single-node-single-writer", _) => {
                (self.writer)(known).map(|writer| format!("is used as {mode}, and {writer} writes to it already"))
            }
            _ => None,
        }
    }
}

fn networks(node: &Node, group: &Group, find: &dyn Fn(&str) -> Option<String>) -> Vec<No> {
    let mut found = Vec::new();
    let own = group.network.as_ref();
    let mode = own.map(|network| &network.mode);
    let has = |name: &str| node.networks.iter().any(|network| network == name);
    let missing = match mode {
        Some(NetworkMode::Bridge) if !has("bridge") => {
            Some("the network mode bridge does not work on this node".to_owned())
        }
        Some(NetworkMode::Cni(name)) if !has(name) && !has(&format!("cni/{name}")) => {
            Some(format!("the CNI network {name} is not configured on this node"))
        }
        _ => None,
    };
    found.extend(missing.map(|reason| No::filtered("missing network", reason)));
    let of_tasks = group.tasks.iter().filter_map(|task| task.network.as_ref());
    for port in own.into_iter().chain(of_tasks).flat_map(|network| &network.ports) {
        let Some(wanted) = &port.host_network else { continue };
        let name = interpolate(&wanted.name, find);
        if host_address(node, &name).is_none() {
            let label = &port.label;
            found.push(No::filtered(
                format!("missing host network \"{name}\" for port \"{label}\""),
                format!("the port {label} wants the host network {name}, which is not configured on this node"),
            ));
        }
    }
    found
}

/// The address of a network of the host; the empty name and `default` are the node's own.
pub(super) fn host_address(node: &Node, name: &str) -> Option<String> {
    if let Some(address) = node.host_networks.get(name) {
        return Some(address.clone());
    }
    let own = || node.attributes.get("unique.network.ip-address").cloned().unwrap_or_default();
    matches!(name, "" | "default").then(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_of_a_pattern_stand_for_any_text() {
        for (pattern, text, expected) in [
            ("*", "dc1", true),
            ("dc1", "dc1", true),
            ("dc1", "dc10", false),
            ("dc*", "dc10", true),
            ("*c*0", "dc10", true),
            ("d*1*0*", "dc10", true),
            ("d*0*1", "dc10", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(is_like(pattern, text), expected, "{pattern} {text}");
        }
    }
}
