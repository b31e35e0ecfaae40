//! Job, groups and what belongs to them.

use std::time::Duration;

use super::base::Base;
use super::diag::did_you_mean;
use super::name::{LONGEST_NAME, check_name};
use super::restart::RestartFields;
use super::schema::{EPHEMERAL_DISK, GROUP, JOB, SCALING};
use super::section::{Expanded, Section, Sink};
use super::task::Surroundings;
use super::{network, placement, scheduling, service, task, volume};
use crate::spec::collections::BTreeMap;
use crate::spec::{Group, Job, JobType, Network, Pos, Service, Task};

const TYPES: [&str; 4] = ["service", "batch", "system", "sysbatch"];
/// MiB of a group's disk unless given.
const DEFAULT_DISK_MIB: u64 = 300;
/// Most tasks of one run: each has an executor, log files and a cgroup.
const MOST_TASKS: u64 = 1000;
/// Longest name of a job, namespace or region.
const LONGEST_ID: usize = 255;

/// Decodes the job block; what is wrong has been reported to the sink.
pub(super) fn decode(block: &Expanded<'_>, base_dir: Base<'_>, sink: &Sink) -> Option<Job> {
    let label = block.labels.first()?;
    let job = Section::open(format!("job \"{label}\""), block, &JOB, sink);
    check_name(&job, job.pos, "job", label, LONGEST_ID);
    let id = job.string("id").unwrap_or_else(|| label.clone());
    check_name(&job, job.pos_of("id"), "job", &id, LONGEST_ID);
    if id.is_empty() || id.contains([' ', '\0']) {
        job.error(job.pos_of("id"), "the job's id must not be empty or contain spaces; choose another id");
    }
    let name = job.string("name").unwrap_or_else(|| label.clone());
    check_name(&job, job.pos_of("name"), "job", &name, LONGEST_ID);
    let kind = match job.string("type").as_deref() {
        None | Some("service") => JobType::Service,
        Some("batch") => JobType::Batch,
        Some("system") => JobType::System,
        Some("sysbatch") => JobType::Sysbatch,
        Some(other) => {
            let message = format!(
                "unknown job type \"{other}\"{}; use service, batch, system or sysbatch",
                did_you_mean(other, TYPES)
            );
            job.error(job.pos_of("type"), message);
            JobType::Service
        }
    };
    let priority = job.int("priority", 1).unwrap_or(50);
    if priority > 100 {
        let message = format!("\"priority\" in {} must be at most 100, not {priority}", job.name);
        job.error(job.pos_of("priority"), message);
    }
    if matches!(kind, JobType::System | JobType::Sysbatch) {
        let message = format!("type {} has no effect with agentbin run: the job is started once, here", kind.as_str());
        sink.warn(job.pos_of("type"), message);
    }
    let constraints = placement::constraints(&job);
    let groups = groups(&job, &name, kind, base_dir);
    if groups.is_empty() {
        job.error(job.pos, format!("{} has no group; add group \"name\" {{ ... }}", job.name));
    }
    let region = job.string("region").unwrap_or_else(|| "global".to_owned());
    check_name(&job, job.pos_of("region"), "region", &region, LONGEST_ID);
    let namespace = job.string("namespace").unwrap_or_else(|| "default".to_owned());
    check_name(&job, job.pos_of("namespace"), "namespace", &namespace, LONGEST_ID);
    let before = job.scope.kept();
    let meta = job.strings("meta");
    let every_task = job.scope.kept() - before;
    let tasks = check_tasks(&job, &groups);
    let copies = tasks.min(MOST_TASKS).saturating_sub(1);
    sink.ok(job.scope.keep(every_task.saturating_mul(copies), job.pos));
    let scheduling = scheduling::of_job(&job);
    Some(Job { id, name, kind, region, namespace, priority, meta, constraints, scheduling, groups })
}

/// Counts the tasks of the whole job, which a run refuses when they are more than one process can look after.
fn check_tasks(job: &Section<'_>, groups: &[Group]) -> u64 {
    let mut all = 0u64;
    for group in groups {
        let tasks = group.tasks.len() as u64;
        let before = all;
        all = all.saturating_add(u64::from(group.count).saturating_mul(tasks.max(1)));
        if all > MOST_TASKS && before <= MOST_TASKS {
            let message = format!(
                "the job has {} tasks with group \"{}\" (count {} times {tasks}), and agentbin run looks after at most {MOST_TASKS}; \
                 lower count or split the job",
                all, group.name, group.count
            );
            // A cluster has more machines than one.
            job.refuse(&group.pos, message);
        }
    }
    all
}

/// Tasks right below the job become groups of their own, before the written ones.
fn groups(job: &Section<'_>, name: &str, kind: JobType, base_dir: Base<'_>) -> Vec<Group> {
    let lone = job.blocks_of("task").filter(|b| !b.labels.is_empty()).map(|block| {
        let (restart, prefix) = (RestartFields::default(), format!("{name}-{}", block.labels[0]));
        let around = Surroundings { kind, restart, disk_mib: DEFAULT_DISK_MIB, base_dir, prefix };
        let tasks = tasks(job, &mut std::iter::once(block), &around);
        network::check(job, None, &tasks);
        check_services(job, None, &[], &tasks);
        volume::check(job, &[], &tasks);
        Group {
            name: block.labels[0].clone(),
            count: 1,
            meta: BTreeMap::new(),
            constraints: Vec::new(),
            shutdown_delay: Duration::ZERO,
            network: None,
            volumes: Vec::new(),
            scheduling: scheduling::of_group(job, None, kind),
            services: Vec::new(),
            tasks,
            pos: block.pos.clone(),
        }
    });
    let written = job.blocks_of("group").filter(|b| !b.labels.is_empty()).map(|b| group(job, name, b, kind, base_dir));
    let groups: Vec<Group> = lone.chain(written).collect();
    let mut seen: BTreeMap<&str, &Pos> = BTreeMap::new();
    for group in &groups {
        if group.name.is_empty() {
            job.error(&group.pos, "the group's name must not be empty");
        }
        check_name(job, &group.pos, "group", &group.name, LONGEST_NAME);
        if let Some(first) = seen.insert(&group.name, &group.pos) {
            let message = format!("duplicate group \"{}\"; it stands in line {} already", group.name, first.line);
            job.error(&group.pos, message);
        }
    }
    groups
}

fn group(job: &Section<'_>, job_name: &str, block: &Expanded<'_>, kind: JobType, base_dir: Base<'_>) -> Group {
    let name = block.labels.first().cloned().unwrap_or_default();
    let before = block.scope.kept();
    let group = Section::open(format!("group \"{name}\""), block, &GROUP, job.sink);
    let least = group.child("scaling", &SCALING).and_then(|scaling| scaling.int("min", 0));
    let count = group.int("count", 0).or(least).unwrap_or(1);
    if count > 1 && kind == JobType::System {
        let message = format!("\"count\" in {} must be 1, because the job is a system job", group.name);
        group.error(group.pos_of("count"), message);
    }
    let constraints = placement::constraints(&group);
    let disk = group.child("ephemeral_disk", &EPHEMERAL_DISK);
    let disk_mib = disk.and_then(|d| d.int("size", 10)).unwrap_or(DEFAULT_DISK_MIB);
    let restart = RestartFields::of(&group);
    restart.policy(kind, &group);
    let around = Surroundings { kind, restart, disk_mib, base_dir, prefix: format!("{job_name}-{name}") };
    let tasks = tasks(&group, &mut group.blocks_of("task"), &around);
    let network = network::of_group(&group);
    network::check(&group, network.as_ref(), &tasks);
    let volumes = volume::of_group(&group, kind);
    volume::check(&group, &volumes, &tasks);
    let services = service::services(&group, &around.prefix);
    check_services(&group, network.as_ref(), &services, &tasks);
    let decoded = Group {
        name,
        count,
        meta: group.strings("meta"),
        constraints,
        shutdown_delay: group.duration("shutdown_delay").unwrap_or_default(),
        network,
        volumes,
        scheduling: scheduling::of_group(job, Some(&group), kind),
        services,
        tasks,
        pos: block.pos.clone(),
    };
    // Each allocation has a copy of all that; a job of too many is not run.
    let copies = u64::from(count).min(MOST_TASKS).saturating_sub(1);
    let size = group.scope.kept() - before;
    group.sink.ok(group.scope.keep(size.saturating_mul(copies), group.pos_of("count")));
    decoded
}

/// That what services name is there: those of the group, and those of each task.
fn check_services(group: &Section<'_>, network: Option<&Network>, services: &[Service], tasks: &[Task]) {
    service::check_names(group, None, services, network, tasks);
    for task in tasks {
        service::check_names(group, Some(task), &task.services, network, tasks);
    }
}

fn tasks<'e, 'a: 'e>(
    group: &Section<'_>,
    blocks: &mut dyn Iterator<Item = &'e Expanded<'a>>,
    around: &Surroundings<'_>,
) -> Vec<Task> {
    let tasks: Vec<_> = blocks.filter(|b| !b.labels.is_empty()).map(|b| task::decode(b, around, group.sink)).collect();
    let mut seen: BTreeMap<&str, &Pos> = BTreeMap::new();
    let mut leader: Option<&str> = None;
    for task in &tasks {
        if let Some(first) = seen.insert(&task.name, &task.pos) {
            let message = format!("duplicate task \"{}\"; it stands in line {} already", task.name, first.line);
            group.error(&task.pos, message);
        }
        if task.leader
            && let Some(first) = leader.replace(&task.name)
        {
            let message =
                format!("task \"{}\" cannot be the leader, because task \"{first}\" is; keep one leader", task.name);
            group.error(&task.pos, message);
        }
    }
    // A gateway of Consul's service mesh is a task that Nomad adds.
    let gateway = |b: &Expanded<'_>| {
        b.kind == "service"
            && b.body.blocks.iter().any(|c| c.kind == "connect" && c.body.blocks.iter().any(|g| g.kind == "gateway"))
    };
    if tasks.is_empty() && group.blocks().iter().any(gateway) {
        return tasks;
    }
    if tasks.is_empty() {
        group.error(group.pos, format!("{} has no task; add task \"name\" {{ ... }}", group.name));
    } else if tasks.iter().all(|t| t.lifecycle.is_some()) {
        let message = format!("{} must have at least one main task, one without a lifecycle block", group.name);
        group.error(group.pos, message);
    }
    tasks
}
