//! The node as it is kept: what the machine is, looked at again and again, and what an operator decides of it.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, now};
use super::engine::Described;
use super::model::{
    CsiInfo, DrainStatus, DriverInfo, DynamicVolume, Eligibility, Evaluation, LastDrain, Node, NodeEvent, NodeStatus,
    Stamp, Trigger,
};
use super::schedule;
use super::state::{Change, StateError};
use super::volumes::lay;
use crate::spec::JobType;
use crate::spec::collections::BTreeMap;

/// How long drivers have to answer before the agent begins without them.
pub(super) const AT_START: Duration = Duration::from_millis(20);
/// How often the machine is looked at.
const AGAIN: Duration = Duration::from_secs(30);
/// After this time what the start or a look needed is released.
const SETTLED: Duration = Duration::from_secs(2);
/// Events that are kept.
const EVENTS: usize = 10;

/// Notes an event of the node.
pub(super) fn event(node: &mut Node, subsystem: &str, message: &str, details: BTreeMap<String, String>) {
    if node.events.len() >= EVENTS {
        node.events.remove(0);
    }
    node.events.push(NodeEvent {
        message: message.to_owned(),
        subsystem: subsystem.to_owned(),
        details,
        timestamp: Stamp(Some(now())),
        create_index: 0,
    });
}

/// Notes what became of the drain that began at this moment. Who ends it without a word leaves what was said before.
pub(super) fn note_drain(
    node: &mut Node,
    started_at: Stamp,
    status: DrainStatus,
    meta: &BTreeMap<String, String>,
    accessor: &str,
) {
    let known = node.last_drain.take().filter(|last| last.started_at == started_at);
    let mut last = known.unwrap_or_else(|| LastDrain { started_at, ..LastDrain::default() });
    (last.updated_at, last.status) = (Stamp(Some(now())), status);
    if !meta.is_empty() {
        last.meta.clone_from(meta);
    }
    if !accessor.is_empty() {
        accessor.clone_into(&mut last.accessor_id);
    }
    node.last_drain = Some(last);
    node.status_updated_at = now().0 / 1_000_000_000;
}

/// Looks at the machine for ever, and writes down what has changed.
pub(super) async fn run(core: Arc<Core>) {
    let plugins = core.engine.csi_plugins();
    let mut registered = plugins.changes();
    let mut pause = if core.late.borrow().is_empty() { AGAIN } else { Duration::ZERO };
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The sender lives as long as the plugins.
            _ = registered.changed() => {}
            // What a look needed, and what requests have needed since the last time, is given back.
            never = crate::sys::pages::rest_after(SETTLED) => match never {},
        }
        pause = AGAIN;
        if let Err(error) = look(&core, None).await {
            tracing::error!(error = crate::alloc::chain(&error), "cannot describe the node");
        }
    }
}

/// Looks once. What blocked evaluations wait for may be a port that no allocation has, so that they are tried in any case.
///
/// What was known of drivers that do not answer within the patience stays.
pub(super) async fn look(core: &Arc<Core>, patience: Option<Duration>) -> Result<(), StateError> {
    let seen = core.engine.describe(patience).await;
    let view = core.state.read()?;
    let (known, volumes) = (view.node()?, view.volumes().all()?);
    drop(view);
    let late = seen.late.clone();
    if known.as_ref().is_none_or(|known| merged(known, &seen, &volumes).is_some()) {
        let shared = Arc::clone(core);
        let (index, evals) = core.state.change(move |change| keep(&shared, change, seen)).await?;
        for eval in &evals {
            core.broker.put(eval);
        }
        core.broker.unblock(schedule::Change::NodeChanged, index);
    }
    core.broker.unblock(schedule::Change::PortFreed, core.state.index());
    core.late.send_replace(late);
    Ok(())
}

fn keep(core: &Core, change: &mut Change<'_>, seen: Described) -> Result<Vec<Evaluation>, StateError> {
    let volumes = change.volumes().all()?;
    let Some(known) = change.node()? else {
        let mut node = Node {
            status: NodeStatus::Ready,
            status_description: String::new(),
            scheduling_eligibility: Eligibility::Eligible,
            status_updated_at: now().0 / 1_000_000_000,
            ..seen.node
        };
        node.drivers.values_mut().for_each(|driver| driver.update_time = Stamp(Some(now())));
        lay(&mut node, &volumes);
        event(&mut node, "Cluster", "Node registered", BTreeMap::new());
        change.put_node(node)?;
        return Ok(Vec::new());
    };
    let Some(node) = merged(&known, &seen, &volumes) else { return Ok(Vec::new()) };
    change.put_node(node)?;
    // Jobs that run wherever they may, may run here now.
    let mut wanted = Vec::new();
    for job in change.jobs(None, "") {
        let job = job?;
        let kind = core.jobs.of(&job).map_or(JobType::Service, |job| job.kind);
        if !job.stop && schedule::is_evaluated(kind, schedule::Change::NodeChanged) {
            wanted.push(core.evaluation_of(&job, Trigger::NodeUpdate));
        }
    }
    for eval in &wanted {
        change.put_eval(eval.clone())?;
    }
    Ok(wanted)
}

/// The node with what was seen; `None` where nothing has changed.
fn merged(known: &Node, seen: &Described, volumes: &[DynamicVolume]) -> Option<Node> {
    let Described { node: seen, late } = seen;
    let mut node = Node {
        drivers: BTreeMap::new(),
        dynamic_meta: known.dynamic_meta.clone(),
        drain_strategy: known.drain_strategy.clone(),
        last_drain: known.last_drain.clone(),
        scheduling_eligibility: known.scheduling_eligibility,
        status: NodeStatus::Ready,
        status_description: String::new(),
        status_updated_at: known.status_updated_at,
        events: known.events.clone(),
        create_index: known.create_index,
        modify_index: known.modify_index,
        ..seen.clone()
    };
    node.lay_meta();
    lay(&mut node, volumes);
    for (name, driver) in &seen.drivers {
        let old = known.drivers.get(name);
        let is_same = |old: &&DriverInfo| DriverInfo { update_time: old.update_time, ..driver.clone() } == **old;
        let update_time = old.filter(is_same).map_or(Stamp(Some(now())), |old| old.update_time);
        let was = old.map(|old| (old.detected, old.healthy));
        if was.is_some_and(|was| was != (driver.detected, driver.healthy)) {
            let message = match (driver.detected, driver.healthy) {
                (_, true) => "Healthy",
                (true, false) => "Unhealthy",
                (false, _) => "Not detected",
            };
            let text = if driver.health_description.is_empty() { message } else { &driver.health_description };
            let details = BTreeMap::from([("driver".to_owned(), name.clone())]);
            event(&mut node, "Driver", text, details);
        }
        node.drivers.insert(name.clone(), DriverInfo { update_time, ..driver.clone() });
    }
    for name in late {
        let of_driver = format!("driver.{name}");
        let is_of =
            |key: &str| key.strip_prefix(&of_driver).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let attributes = known.attributes.iter().filter(|(key, _)| is_of(key));
        node.attributes.extend(attributes.map(|(key, value)| (key.clone(), value.clone())));
        node.drivers.extend(known.drivers.get(name).map(|driver| (name.clone(), driver.clone())));
    }
    let mut told = Vec::new();
    for (kind, seen, known, all) in [
        ("controller", &seen.csi_controllers, &known.csi_controllers, &mut node.csi_controllers),
        ("node", &seen.csi_nodes, &known.csi_nodes, &mut node.csi_nodes),
    ] {
        for (id, info) in seen {
            let old = known.get(id);
            let is_same = |old: &&CsiInfo| CsiInfo { update_time: old.update_time, ..info.clone() } == **old;
            let update_time = old.filter(is_same).map_or(Stamp(Some(now())), |old| old.update_time);
            let health = (info.healthy, &info.health_description);
            if old.is_some_and(|old| (old.healthy, &old.health_description) != health) {
                told.push((info.health_description.clone(), id.clone(), kind));
            }
            all.insert(id.clone(), CsiInfo { update_time, ..info.clone() });
        }
    }
    for (text, plugin, kind) in told {
        let details = BTreeMap::from([("plugin".to_owned(), plugin), ("type".to_owned(), kind.to_owned())]);
        event(&mut node, "CSI", &text, details);
    }
    (node != *known).then_some(node)
}
