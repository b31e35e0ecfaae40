//! Turns what is wanted into allocations, as far as the node has what they need.

use std::sync::Arc;

use crate::agent::model::{
    AllocMetric, AllocatedResources, Allocation, ClientStatus, DeploymentGroup, DeploymentHealth, DesiredStatus,
    DesiredTransition, DynamicVolume, EvalStatus, Evaluation, Nanos, Scores, Stamp, Trigger,
};
use crate::spec::Order as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{self, Group, Job};

use super::decision::{Decision, Placement, Stop};
use super::feasible::{Kind, Neighbours, No, Volumes, filtered, unavailable};
use super::fit::Usage;
use super::input::Input;
use super::names::name;
use super::{reschedule, texts};

/// Longest time between two replacements that one evaluation makes.
const BATCH: std::time::Duration = std::time::Duration::from_secs(5);
/// Reasons that are told of one group.
const MOST_REASONS: usize = 10;

/// What comes of a plan, group by group.
pub(super) struct Placing<'a> {
    input: &'a Input<'a>,
    usage: Usage<'a>,
    /// Allocations as they are to be, by id.
    pub(super) changed: BTreeMap<String, Allocation>,
    /// Ids of new ones in their order.
    pub(super) new: Vec<String>,
    pub(super) failed: BTreeMap<String, AllocMetric>,
    pub(super) queued: BTreeMap<String, u32>,
    pub(super) followups: Vec<Evaluation>,
    /// Those that are to stop, or were before.
    stopped: BTreeSet<String>,
}

impl<'a> Placing<'a> {
    pub(super) fn new(input: &'a Input<'a>) -> Placing<'a> {
        let mut usage = Usage::new(input.node, input.holder, input.last_used);
        let mut stopped = BTreeSet::new();
        for alloc in input.others.iter().chain(input.allocs) {
            usage.add(alloc);
            if alloc.desired_status != DesiredStatus::Run {
                stopped.insert(alloc.id.clone());
            }
        }
        Placing {
            input,
            usage,
            changed: BTreeMap::new(),
            new: Vec::new(),
            failed: BTreeMap::new(),
            queued: BTreeMap::new(),
            followups: Vec::new(),
            stopped,
        }
    }

    fn change(&mut self, alloc: &Allocation) -> &mut Allocation {
        let now = self.input.now;
        let changed = self.changed.entry(alloc.id.clone()).or_insert_with(|| alloc.clone());
        changed.modify_time = now;
        changed
    }

    pub(super) fn stop(&mut self, stop: &Stop<'_>) {
        self.usage.release(stop.alloc);
        self.stopped.insert(stop.alloc.id.clone());
        let changed = self.change(stop.alloc);
        changed.desired_status = DesiredStatus::Stop;
        stop.why.clone_into(&mut changed.desired_description);
    }

    /// Whether an allocation could go on as one of this version of its group.
    pub(super) fn stays_feasible(&self, job: &Job, group: &Group, alloc: &Allocation) -> bool {
        let neighbours = self.neighbours(job, group, Some(alloc));
        let writer = |volume: &DynamicVolume| self.writer(job, Some(alloc), volume);
        filtered(self.input.node, job, group, alloc.index(), neighbours, &self.volumes(&writer)).is_empty()
    }

    pub(super) fn update_in_place(&mut self, alloc: &Allocation, version: u64, deployment: Option<&str>) {
        let eval = self.input.eval.id.clone();
        let changed = self.change(alloc);
        changed.job_version = version;
        changed.eval_id = eval;
        if let Some(id) = deployment {
            id.clone_into(&mut changed.deployment_id);
            changed.deployment_status = None;
        }
    }

    /// Failed allocations that are replaced later: those that are close to each other by one evaluation.
    pub(super) fn postpone(&mut self, later: &[(&'a Allocation, Nanos)]) {
        let mut later = later.to_vec();
        later.order_by_key(|(alloc, due)| (*due, alloc.index()));
        let mut open: Option<(Nanos, String)> = None;
        for (alloc, due) in later {
            let id = match &open {
                Some((first, id)) if due <= first.plus(BATCH) => id.clone(),
                _ => {
                    let eval = self.followup(due);
                    let id = eval.id.clone();
                    open = Some((due, id.clone()));
                    self.followups.push(eval);
                    id
                }
            };
            self.change(alloc).followup_eval_id = id;
        }
    }

    fn followup(&self, due: Nanos) -> Evaluation {
        Evaluation {
            status: EvalStatus::Pending,
            status_description: texts::DELAYED.to_owned(),
            triggered_by: Trigger::AllocReschedule,
            wait_until_nanos: due,
            ..following(self.input)
        }
    }

    /// Places what a group wants; whatever is not placed is queued. Answers how many spare updates were made.
    pub(super) fn place(
        &mut self,
        decision: &Decision<'a>,
        group: &str,
        specs: &dyn Fn(u64) -> Option<Arc<Job>>,
        deployment: Option<&str>,
        part: Option<&mut DeploymentGroup>,
    ) -> u64 {
        let mut part = part;
        let (mut done, mut spare) = (0, 0);
        // One that replaces nothing fails as the one before.
        let mut is_full = false;
        self.queued.entry(group.to_owned()).or_default();
        for placement in &decision.placements {
            if placement.is_spare {
                if done < decision.limit
                    && let Ok(alloc) = self.try_one(placement, group, specs)
                {
                    self.take(alloc, placement, deployment, part.as_deref_mut());
                    (done, spare) = (done + 1, spare + 1);
                }
                continue;
            }
            let placed = if is_full && placement.previous.is_none() {
                Err(Vec::new())
            } else {
                self.try_one(placement, group, specs)
            };
            match placed {
                Ok(alloc) => {
                    let is_limited = placement.is_update || (placement.previous.is_none() && !placement.is_canary);
                    done += usize::from(is_limited);
                    self.take(alloc, placement, deployment, part.as_deref_mut());
                }
                Err(why) => {
                    is_full |= placement.previous.is_none();
                    self.refuse(group, why);
                }
            }
        }
        spare
    }

    /// Those that are there beside what is placed in the place of another one.
    fn neighbours(&self, job: &Job, group: &Group, replaced: Option<&Allocation>) -> Neighbours {
        let mut counted = job.constraints.iter().chain(&group.constraints);
        if !counted.any(|constraint| constraint.operator.is_distinct()) {
            // Nobody asks, and a job may have thousands.
            return Neighbours { of_job: 0, of_group: 0 };
        }
        let is_there = |alloc: &&Allocation| {
            let is_replaced = replaced.is_some_and(|replaced| replaced.id == alloc.id);
            !alloc.client_status.is_terminal() && !self.stopped.contains(&alloc.id) && !is_replaced
        };
        let new = self.new.iter().filter_map(|id| self.changed.get(id));
        let (mut of_job, mut of_group) = (0, 0);
        for alloc in self.input.allocs.iter().chain(new).filter(is_there) {
            of_job += 1;
            of_group += u64::from(alloc.task_group == group.name);
        }
        Neighbours { of_job, of_group }
    }

    fn volumes<'b>(&'b self, writer: &'b dyn Fn(&DynamicVolume) -> Option<String>) -> Volumes<'b> {
        Volumes {
            namespace: &self.input.eval.namespace,
            job: &self.input.eval.job_id,
            all: self.input.volumes,
            csi: self.input.csi,
            writer,
        }
    }

    /// Who writes to a volume beside an allocation that is placed in the place of another one.
    fn writer(&self, job: &Job, replaced: Option<&Allocation>, volume: &DynamicVolume) -> Option<String> {
        let is_there = |id: &str| !self.stopped.contains(id) && replaced.is_none_or(|replaced| replaced.id != id);
        let old = (self.input.writers)(volume).into_iter().find(|(id, _)| is_there(id));
        let new = || {
            let writes = |alloc: &&Allocation| {
                let group = job.groups.iter().find(|group| group.name == alloc.task_group);
                let is_it = |of: &spec::Volume| of.csi.is_none() && of.source_of(alloc.index()) == volume.name;
                is_there(&alloc.id)
                    && group.is_some_and(|group| group.volumes.iter().any(|of| !of.read_only && is_it(of)))
            };
            let found = self.new.iter().filter_map(|id| self.changed.get(id)).find(writes);
            found.map(|alloc| alloc.name.clone())
        };
        old.map(|(_, name)| name).or_else(new).filter(|_| volume.namespace == self.input.eval.namespace)
    }

    fn try_one(
        &mut self,
        placement: &Placement<'a>,
        group: &str,
        specs: &dyn Fn(u64) -> Option<Arc<Job>>,
    ) -> Result<Allocation, Vec<No>> {
        let spec = specs(placement.version).ok_or_else(Vec::new)?;
        let group = spec.groups.iter().find(|known| known.name == group).ok_or_else(Vec::new)?;
        if let Some(no) = unavailable(self.input.node, &spec) {
            return Err(vec![no]);
        }
        let replaced = placement.previous.filter(|_| placement.replaces.is_some());
        let neighbours = self.neighbours(&spec, group, replaced);
        let writer = |volume: &DynamicVolume| self.writer(&spec, replaced, volume);
        let refused = filtered(self.input.node, &spec, group, placement.index, neighbours, &self.volumes(&writer));
        if !refused.is_empty() {
            return Err(refused);
        }
        let allocated_resources = self.usage.fit(group, placement.previous).map_err(|no| vec![no])?;
        let scores = self.scores(placement, group, &allocated_resources);
        let Input { eval, node, now, .. } = self.input;
        let policy = group.scheduling.reschedule.as_ref();
        Ok(Allocation {
            id: (self.input.id)(),
            namespace: eval.namespace.clone(),
            eval_id: eval.id.clone(),
            name: name(&eval.job_id, &group.name, placement.index),
            node_id: node.id.clone(),
            node_name: node.name.clone(),
            job_id: eval.job_id.clone(),
            job_version: placement.version,
            job_create_index: self.input.job.map_or(0, |(version, _)| version.create_index),
            task_group: group.name.clone(),
            allocated_resources,
            metrics: AllocMetric {
                nodes_evaluated: 1,
                nodes_available: BTreeMap::from([(node.datacenter.clone(), 1)]),
                scores: Some(scores),
                ..AllocMetric::default()
            },
            desired_status: DesiredStatus::Run,
            desired_description: String::new(),
            desired_transition: DesiredTransition::default(),
            client_status: ClientStatus::Pending,
            client_description: String::new(),
            task_states: BTreeMap::new(),
            deployment_id: String::new(),
            deployment_status: None,
            followup_eval_id: String::new(),
            previous_allocation: placement.previous.map(|previous| previous.id.clone()).unwrap_or_default(),
            next_allocation: String::new(),
            reschedule_tracker: match placement.previous {
                Some(previous) if placement.is_rescheduled => Some(reschedule::tracker(policy, previous, *now)),
                // An update begins anew; what is moved goes on.
                Some(previous) if !placement.is_update => previous.reschedule_tracker.clone(),
                _ => None,
            },
            network_status: None,
            create_index: 0,
            modify_index: 0,
            alloc_modify_index: 0,
            create_time: *now,
            modify_time: *now,
        })
    }

    /// How well the node suits a new allocation.
    fn scores(&self, placement: &Placement<'a>, group: &Group, has: &AllocatedResources) -> Scores {
        let replaced = placement.previous.filter(|_| placement.replaces.is_some());
        let is_there = |alloc: &&Allocation| {
            let is_replaced = replaced.is_some_and(|replaced| replaced.id == alloc.id);
            let is_of_group = alloc.task_group == group.name;
            is_of_group && !alloc.client_status.is_terminal() && !self.stopped.contains(&alloc.id) && !is_replaced
        };
        let new = self.new.iter().filter_map(|id| self.changed.get(id));
        let others = self.input.allocs.iter().chain(new).filter(is_there).count();
        Scores {
            binpack: self.usage.fullness(has, replaced),
            job_anti_affinity: if others > 0 { -((others + 1) as f64) / f64::from(group.count.max(1)) } else { 0.0 },
            node_affinity: 0.0,
            node_reschedule_penalty: if placement.is_rescheduled { -1.0 } else { 0.0 },
        }
    }

    fn take(
        &mut self,
        mut alloc: Allocation,
        placement: &Placement<'a>,
        deployment: Option<&str>,
        part: Option<&mut DeploymentGroup>,
    ) {
        if let Some(previous) = placement.previous {
            if let Some(why) = placement.replaces {
                self.stop(&Stop { alloc: previous, why });
            }
            self.change(previous).next_allocation.clone_from(&alloc.id);
        }
        let is_newest = self.input.job.is_some_and(|(newest, _)| newest.version == placement.version);
        if let (Some(id), Some(part), true) = (deployment, part, is_newest) {
            id.clone_into(&mut alloc.deployment_id);
            part.placed_allocs += 1;
            if placement.is_canary {
                part.placed_canaries.push(alloc.id.clone());
                let status =
                    DeploymentHealth { healthy: None, timestamp: Stamp::default(), canary: true, modify_index: 0 };
                alloc.deployment_status = Some(status);
            }
        }
        self.usage.add(&alloc);
        self.new.push(alloc.id.clone());
        self.changed.insert(alloc.id.clone(), alloc);
    }

    fn refuse(&mut self, group: &str, why: Vec<No>) {
        *self.queued.entry(group.to_owned()).or_default() += 1;
        if let Some(metric) = self.failed.get_mut(group) {
            metric.coalesced_failures += 1;
            return;
        }
        let mut metric = AllocMetric::default();
        let available = BTreeMap::from([(self.input.node.datacenter.clone(), 1)]);
        match why.first().map(|no| &no.kind) {
            None | Some(Kind::Unavailable) => {}
            Some(Kind::Filtered(what)) => {
                (metric.nodes_evaluated, metric.nodes_filtered, metric.nodes_available) = (1, 1, available);
                metric.constraint_filtered.insert(what.clone(), 1);
            }
            Some(Kind::Exhausted(what)) => {
                (metric.nodes_evaluated, metric.nodes_exhausted, metric.nodes_available) = (1, 1, available);
                metric.dimension_exhausted.insert(what.clone(), 1);
                metric.resources_exhausted = why.first().map(|no| no.asked.clone()).unwrap_or_default();
            }
        }
        metric.reasons = why.into_iter().map(|no| no.reason).take(MOST_REASONS).collect();
        self.failed.insert(group.to_owned(), metric);
    }
}

/// An evaluation of the same job that follows the one that is decided.
pub(super) fn following(input: &Input<'_>) -> Evaluation {
    Evaluation {
        id: (input.id)(),
        node_id: String::new(),
        deployment_id: String::new(),
        status_description: String::new(),
        wait: Nanos(0),
        wait_until_nanos: Nanos(0),
        next_eval: String::new(),
        previous_eval: input.eval.id.clone(),
        blocked_eval: String::new(),
        failed: BTreeMap::new(),
        plan_annotations: BTreeMap::new(),
        queued_allocations: BTreeMap::new(),
        create_index: 0,
        modify_index: 0,
        create_time: input.now,
        modify_time: input.now,
        ..input.eval.clone()
    }
}
