//! A small world that plans are applied to: a state, a client whose tasks do what a test says, and the invariants that hold after
//! each decision.

use crate::agent::schedule::CsiState;
use std::cell::Cell;
use std::sync::Arc;

use crate::agent::model::{
    Allocation, ClientStatus, Deployment, DeploymentHealth, DesiredStatus, DynamicVolume, EvalStatus, Evaluation,
    JobVersion, Nanos, Node, Stamp, TaskState, TaskStateName, Trigger,
};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, JobType, Volume};

use super::blocked::{Change, is_evaluated, unblocks};
use super::deploy::{DeploymentInput, DeploymentStep, deployment_step};
use super::fixture::{SECOND, change, evaluation, node, version};
use super::input::{Input, Plan};
use super::ports::PortHistory;
use super::reconcile::reconcile;

/// Steps after which a world has to stand still.
const MOST_STEPS: usize = 400;

pub(super) struct World {
    pub(super) node: Node,
    pub(super) versions: Vec<(JobVersion, Arc<Job>)>,
    pub(super) is_purged: bool,
    pub(super) allocs: Vec<Allocation>,
    pub(super) others: Vec<Allocation>,
    pub(super) deployments: Vec<Deployment>,
    pub(super) evals: Vec<Evaluation>,
    pub(super) taken: BTreeSet<u16>,
    pub(super) volumes: Vec<DynamicVolume>,
    /// Ids and names of allocations of other jobs that write to all of them.
    pub(super) writers: Vec<(String, String)>,
    pub(super) csi: CsiState,
    pub(super) now: Nanos,
    /// New allocations of these versions fail as soon as they run.
    pub(super) broken: BTreeSet<u64>,
    /// Allocations of these versions end well as soon as they run.
    pub(super) ending: BTreeSet<u64>,
    /// Only somebody says what is healthy.
    pub(super) is_manual: bool,
    index: u64,
    ids: Cell<u64>,
    /// What ids begin with.
    prefix: &'static str,
}

impl World {
    pub(super) fn new() -> World {
        World {
            node: node(),
            versions: Vec::new(),
            is_purged: false,
            allocs: Vec::new(),
            others: Vec::new(),
            deployments: Vec::new(),
            evals: Vec::new(),
            taken: BTreeSet::new(),
            volumes: Vec::new(),
            writers: Vec::new(),
            csi: CsiState::default(),
            now: Nanos(1_000 * SECOND),
            broken: BTreeSet::new(),
            ending: BTreeSet::new(),
            is_manual: false,
            index: 10,
            ids: Cell::new(0),
            prefix: "id",
        }
    }

    /// The same machine as another job has it, whose ids are others.
    pub(super) fn beside() -> World {
        World { prefix: "other", ..World::new() }
    }

    fn id(&self) -> String {
        self.ids.set(self.ids.get() + 1);
        format!("{}{:05}", self.prefix, self.ids.get())
    }

    fn next_index(&mut self) -> u64 {
        self.index += 1;
        self.index
    }

    pub(super) fn newest(&self) -> Option<&(JobVersion, Arc<Job>)> {
        self.versions.last()
    }

    fn kind(&self) -> JobType {
        self.newest().map_or(JobType::Service, |(_, job)| job.kind)
    }

    /// A new version is registered, and decided.
    pub(super) fn register(&mut self, job: &Job) -> Plan {
        self.put_version(job, false);
        self.evaluate(Trigger::JobRegister)
    }

    fn put_version(&mut self, job: &Job, stop: bool) {
        let index = self.next_index();
        let mut new = version(self.versions.len() as u64);
        let created = self.newest().map_or(index, |(version, _)| version.create_index);
        (new.create_index, new.job_modify_index, new.modify_index, new.stop) = (created, index, index, stop);
        // A job that is stopped is the same version but for that, as a real agent has it.
        new.stable = stop && self.newest().is_some_and(|(version, _)| version.stable);
        // What two versions are compared by.
        new.spec.insert("Spec".to_owned(), format!("{:?}", job.groups).into());
        self.versions.push((new, Arc::new(job.clone())));
    }

    pub(super) fn stop(&mut self) -> Plan {
        let job = self.newest().map(|(_, job)| Arc::clone(job));
        self.put_version(&job.expect("there is a job"), true);
        self.evaluate(Trigger::JobDeregister)
    }

    pub(super) fn plan(&self, eval: &Evaluation) -> Plan {
        let history = PortHistory::of(self.allocs.iter().chain(&self.others));
        let known = |number: u64| {
            self.versions.iter().find(|(version, _)| version.version == number).map(|(_, job)| Arc::clone(job))
        };
        let blocked: Vec<Evaluation> =
            self.evals.iter().filter(|eval| eval.status == EvalStatus::Blocked).cloned().collect();
        let writers = |volume: &DynamicVolume| {
            let is_it = |of: &Volume, alloc: &Allocation| !of.read_only && of.source_of(alloc.index()) == volume.name;
            let writes = |alloc: &&Allocation| {
                let job = known(alloc.job_version).filter(|_| !alloc.client_status.is_terminal());
                let groups = job.iter().flat_map(|job| &job.groups).filter(|group| group.name == alloc.task_group);
                groups.flat_map(|group| &group.volumes).any(|of| is_it(of, alloc))
            };
            let own = self.allocs.iter().filter(writes).map(|alloc| (alloc.id.clone(), alloc.name.clone()));
            own.chain(self.writers.iter().cloned()).collect()
        };
        reconcile(&Input {
            eval,
            job: self.newest().filter(|_| !self.is_purged).map(|(version, job)| (version, job)),
            version: &known,
            change: &|old, group| change(known(old).as_deref(), self.newest().map(|(_, job)| &**job), group),
            allocs: &self.allocs,
            others: &self.others,
            deployment: self.deployments.last(),
            blocked: &blocked,
            node: &self.node,
            volumes: &self.volumes,
            csi: &self.csi,
            writers: &writers,
            holder: &|port| self.taken.contains(&port).then(|| "a program that is not an allocation".to_owned()),
            last_used: &|port| history.last(port),
            now: self.now,
            id: &|| self.id(),
        })
    }

    pub(super) fn evaluate(&mut self, why: Trigger) -> Plan {
        let eval = evaluation(&self.id(), self.kind(), why);
        self.decide(&eval)
    }

    fn decide(&mut self, eval: &Evaluation) -> Plan {
        let ids = self.ids.get();
        let plan = self.plan(eval);
        // The same call twice says the same.
        self.ids.set(ids);
        assert_eq!(self.plan(eval), plan);
        self.check_numbers(&plan);
        self.apply(&plan);
        self.check();
        plan
    }

    fn apply(&mut self, plan: &Plan) {
        let index = self.next_index();
        for alloc in &plan.allocs {
            let mut alloc = alloc.clone();
            alloc.modify_index = index;
            match self.allocs.iter_mut().find(|old| old.id == alloc.id) {
                Some(old) => *old = alloc,
                None => self.allocs.push(Allocation { create_index: index, ..alloc }),
            }
        }
        plan.deployments.iter().for_each(|deployment| self.put_deployment(deployment.clone()));
        for eval in plan.evals.iter().chain([&plan.eval]) {
            match self.evals.iter_mut().find(|old| old.id == eval.id) {
                Some(old) => *old = eval.clone(),
                None => self.evals.push(eval.clone()),
            }
        }
        if plan.stable
            && let Some((version, _)) = self.versions.last_mut()
        {
            version.stable = true;
        }
    }

    fn put_deployment(&mut self, deployment: Deployment) {
        match self.deployments.iter_mut().find(|old| old.id == deployment.id) {
            Some(old) => *old = deployment,
            None => self.deployments.push(deployment),
        }
    }

    /// The numbers of a plan are those of what it does.
    fn check_numbers(&self, plan: &Plan) {
        let is_system = !matches!(self.kind(), JobType::Service | JobType::Batch);
        let old = |id: &str| self.allocs.iter().find(|alloc| alloc.id == id);
        let new = plan.allocs.iter().filter(|alloc| old(&alloc.id).is_none()).count() as u64;
        let waits = if is_system && plan.eval.queued_allocations.values().all(|queued| *queued == 0) {
            plan.eval.failed.len() as u64
        } else {
            plan.eval.queued_allocations.values().map(|queued| u64::from(*queued)).sum()
        };
        let sum = |f: &dyn Fn(&crate::agent::model::DesiredUpdates) -> u64| plan.desired.values().map(f).sum::<u64>();
        let mut wanted = sum(&|desired| desired.place + desired.canary + desired.destructive_update + desired.migrate);
        if is_system {
            if self.kind() == JobType::System {
                wanted -= sum(&|desired| desired.destructive_update);
            }
            // Moved away from a node that takes nothing.
            assert!(new + waits <= wanted, "{new} {waits} {wanted}");
        } else {
            // Counted as moved, and only stopped.
            let is_ended = |alloc: &&Allocation| {
                let asked = alloc.desired_transition;
                (asked.migrate_disable_placement == Some(true) || asked.reschedule == Some(true))
                    && alloc.desired_status != DesiredStatus::Run
                    && old(&alloc.id).is_some_and(|old| old.desired_status == DesiredStatus::Run)
            };
            if self.kind() == JobType::Batch {
                wanted -= plan.allocs.iter().filter(is_ended).count() as u64;
            }
            assert_eq!(new + waits, wanted, "{:?} {:?}", plan.desired, plan.eval.queued_allocations);
        }
        let is_in_place = |alloc: &&Allocation| {
            old(&alloc.id)
                .is_some_and(|old| old.job_version != alloc.job_version && alloc.desired_status == DesiredStatus::Run)
        };
        assert_eq!(plan.allocs.iter().filter(is_in_place).count() as u64, sum(&|desired| desired.in_place_update));
        let ids: BTreeSet<&str> = plan.allocs.iter().map(|alloc| alloc.id.as_str()).collect();
        assert_eq!(ids.len(), plan.allocs.len());
    }

    /// What holds after each decision.
    pub(super) fn check(&self) {
        self.check_counts();
        self.check_ports();
        let live = || self.allocs.iter().chain(&self.others).filter(|alloc| !alloc.is_terminal());
        let tasks = || live().flat_map(|alloc| alloc.allocated_resources.tasks.values());
        let most: Vec<(i64, i64)> = live().map(|alloc| alloc.allocated_resources.most()).collect();
        assert!(most.iter().map(|(_, memory)| memory).sum::<i64>() <= self.node.resources.memory_mb);
        assert!(most.iter().map(|(cpu, _)| cpu).sum::<i64>() <= self.node.resources.cpu_mhz as i64);
        let cores: Vec<u16> = tasks().flat_map(|task| task.reserved_cores.clone()).collect();
        assert_eq!(cores.iter().collect::<BTreeSet<_>>().len(), cores.len(), "two owners of a core");
    }

    fn check_counts(&self) {
        let Some((version, job)) = self.newest() else { return };
        let canaries: BTreeSet<&String> = self
            .deployments
            .last()
            .into_iter()
            .flat_map(|deployment| deployment.task_groups.values())
            .filter(|part| !part.promoted)
            .flat_map(|part| &part.placed_canaries)
            .collect();
        let mut counts: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        let mut names = BTreeSet::new();
        for alloc in self.allocs.iter().filter(|alloc| !alloc.is_terminal()) {
            let count = counts.entry(&alloc.task_group).or_default();
            if canaries.contains(&alloc.id) {
                count.1 += 1;
            } else {
                count.0 += 1;
                assert!(names.insert(&alloc.name), "{} is there twice", alloc.name);
            }
        }
        for (name, (live, tried)) in counts {
            let group = job.groups.iter().find(|group| group.name == name && !version.stop && !self.is_purged);
            let wanted = group.map_or(0, |group| group.count);
            let canaries = group.and_then(|group| group.scheduling.update.as_ref()).map_or(0, |update| update.canary);
            assert!(live <= wanted, "{live} of {wanted} of {name}");
            assert!(tried <= canaries, "{tried} canaries of {canaries}");
        }
    }

    /// One that is to run owns a port; beside it only what it takes the place of.
    fn check_ports(&self) {
        let mut owners: BTreeMap<(&str, u16), Vec<&Allocation>> = BTreeMap::new();
        for alloc in self.allocs.iter().chain(&self.others).filter(|alloc| !alloc.client_status.is_terminal()) {
            for port in &alloc.allocated_resources.shared.ports {
                owners.entry((port.host_ip.as_str(), port.value)).or_default().push(alloc);
            }
        }
        for ((_, port), owners) in owners {
            let (wanted, stopping): (Vec<&Allocation>, Vec<&Allocation>) =
                owners.into_iter().partition(|alloc| alloc.desired_status == DesiredStatus::Run);
            assert!(wanted.len() <= 1, "two owners of port {port}");
            let mut known: BTreeSet<&str> = wanted.iter().map(|alloc| alloc.previous_allocation.as_str()).collect();
            for alloc in stopping.iter().rev() {
                let is_known = wanted.is_empty() || known.contains(alloc.id.as_str());
                assert!(is_known, "port {port} is still held by {}", alloc.id);
                known.insert(&alloc.previous_allocation);
            }
        }
    }

    /// The client does what is wanted of it.
    pub(super) fn run_client(&mut self) -> bool {
        let (now, mut changed, mut wakes, mut failures) = (self.now, false, false, 0);
        for at in 0..self.allocs.len() {
            let previous = self.allocs[at].previous_allocation.clone();
            let waits = self.allocs.iter().any(|other| other.id == previous && !other.client_status.is_terminal());
            let alloc = &mut self.allocs[at];
            if alloc.client_status.is_terminal() || (alloc.desired_status == DesiredStatus::Run && waits) {
                continue;
            }
            if alloc.desired_status != DesiredStatus::Run {
                end(alloc, ClientStatus::Complete, now);
                (changed, wakes) = (true, true);
            } else if alloc.client_status == ClientStatus::Pending {
                alloc.client_status = ClientStatus::Running;
                alloc.task_states = BTreeMap::from([("t".to_owned(), running(now))]);
                changed = true;
            } else if self.broken.contains(&alloc.job_version) {
                end(alloc, ClientStatus::Failed, now);
                say(alloc, false, now);
                failures += 1;
                (changed, wakes) = (true, true);
            } else if self.ending.contains(&alloc.job_version) {
                end(alloc, ClientStatus::Complete, now);
                (changed, wakes) = (true, true);
            } else if !self.is_manual
                && alloc.deployment_status.as_ref().is_none_or(|status| status.healthy.is_none())
                && !alloc.deployment_id.is_empty()
            {
                say(alloc, true, now);
                changed = true;
            }
        }
        if failures > 0 {
            self.evaluate(Trigger::AllocFailure);
        }
        if wakes {
            self.wake(Change::AllocEnded);
        }
        changed
    }

    /// Something happened that others wait for.
    pub(super) fn wake(&mut self, change: Change) {
        let woken: Vec<Evaluation> = self.evals.iter().filter(|eval| unblocks(eval, change)).cloned().collect();
        for eval in woken {
            self.decide(&eval);
        }
        if is_evaluated(self.kind(), change) {
            self.evaluate(Trigger::NodeUpdate);
        }
    }

    /// The deployment's next step.
    pub(super) fn run_deployment(&mut self) -> bool {
        let Some(deployment) = self.deployments.last() else { return false };
        let versions: Vec<JobVersion> = self.versions.iter().map(|(version, _)| version.clone()).collect();
        let own = self.versions.iter().find(|(version, _)| version.version == deployment.job_version);
        let job = own.map(|(_, job)| &**job);
        let input = DeploymentInput { deployment, versions: &versions, allocs: &self.allocs, job, now: self.now };
        let step = deployment_step(&input);
        let changed = step.deployment.is_some() || !step.allocs.is_empty();
        self.carry_out(step);
        changed
    }

    pub(super) fn carry_out(&mut self, step: DeploymentStep) {
        for changed in step.allocs {
            if let Some(alloc) = self.allocs.iter_mut().find(|alloc| alloc.id == changed.id) {
                *alloc = changed;
            }
        }
        if let Some(deployment) = step.deployment {
            self.put_deployment(deployment);
        }
        if let Some(number) = step.revert {
            let old =
                self.versions.iter().find(|(version, _)| version.version == number).map(|(_, job)| Arc::clone(job));
            self.put_version(&old.expect("a stable version is kept"), false);
        }
        if step.evaluate {
            self.evaluate(Trigger::DeploymentWatcher);
        }
    }

    /// Evaluations whose time has come.
    fn run_followups(&mut self) -> bool {
        let is_due = |eval: &&Evaluation| eval.status == EvalStatus::Pending && eval.wait_until_nanos <= self.now;
        let due: Vec<Evaluation> = self.evals.iter().filter(is_due).cloned().collect();
        for eval in &due {
            self.decide(eval);
        }
        !due.is_empty()
    }

    /// Until nothing happens by itself any more, without that time passes.
    pub(super) fn settle(&mut self) {
        for _ in 0..MOST_STEPS {
            let changed = [self.run_client(), self.run_deployment(), self.run_followups()];
            if changed == [false; 3] {
                return;
            }
        }
        panic!("it never ends: {:#?}", self.deployments.last());
    }

    /// Nothing that a second look would change.
    pub(super) fn check_idempotent(&mut self) {
        let plan = self.evaluate(Trigger::JobRegister);
        let again = self.plan(&evaluation("again", self.kind(), Trigger::JobRegister));
        assert_eq!((again.allocs, again.deployments), (Vec::new(), Vec::new()), "after {plan:#?}");
    }

    pub(super) fn live(&self) -> Vec<&Allocation> {
        self.allocs.iter().filter(|alloc| !alloc.is_terminal()).collect()
    }

    /// `name version` of what is live, sorted.
    pub(super) fn shown(&self) -> Vec<String> {
        let mut shown: Vec<String> =
            self.live().iter().map(|alloc| format!("{} v{}", alloc.name, alloc.job_version)).collect();
        shown.sort();
        shown
    }

    pub(super) fn deployment(&self) -> (String, String) {
        let deployment = self.deployments.last().expect("there is a deployment");
        let status = serde_json::to_value(deployment.status).expect("a word");
        (status.as_str().unwrap_or_default().to_owned(), deployment.status_description.clone())
    }
}

pub(super) fn end(alloc: &mut Allocation, status: ClientStatus, now: Nanos) {
    alloc.client_status = status;
    alloc.modify_time = now;
    for task in alloc.task_states.values_mut() {
        task.state = TaskStateName::Dead;
        task.failed = status == ClientStatus::Failed;
        task.finished_at = Stamp(Some(now));
    }
}

fn running(now: Nanos) -> TaskState {
    TaskState { state: TaskStateName::Running, started_at: Stamp(Some(now)), ..TaskState::default() }
}

fn say(alloc: &mut Allocation, healthy: bool, now: Nanos) {
    if alloc.deployment_id.is_empty() {
        return;
    }
    let canary = alloc.deployment_status.as_ref().is_some_and(|status| status.canary);
    let timestamp = Stamp(Some(now));
    alloc.deployment_status = Some(DeploymentHealth { healthy: Some(healthy), timestamp, canary, modify_index: 0 });
}
