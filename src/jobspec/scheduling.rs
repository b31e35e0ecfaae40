//! What a job says to whoever schedules it: how its allocations are replaced, updated, repeated and started by a clock.

use std::time::Duration;

use super::diag::did_you_mean;
use super::schema::{DISPATCH_PAYLOAD, EPHEMERAL_DISK, PARAMETERIZED, PERIODIC, RESCHEDULE, UPDATE};
use super::section::Section;
use crate::spec::collections::BTreeMap;
use crate::spec::{
    DelayFunction, EphemeralDisk, GroupScheduling, HealthCheck, JobScheduling, JobType, Parameterized, PayloadRule,
    Periodic, Pos, Reschedule, Update,
};

/// MiB of the smallest disk.
const LEAST_DISK_MIB: i128 = 10;

const HEALTH_CHECKS: [(&str, HealthCheck); 3] =
    [("checks", HealthCheck::Checks), ("task_states", HealthCheck::TaskStates), ("manual", HealthCheck::Manual)];
const DELAY_FUNCTIONS: [(&str, DelayFunction); 3] = [
    ("constant", DelayFunction::Constant),
    ("exponential", DelayFunction::Exponential),
    ("fibonacci", DelayFunction::Fibonacci),
];
const PAYLOADS: [(&str, PayloadRule); 3] =
    [("optional", PayloadRule::Optional), ("required", PayloadRule::Required), ("forbidden", PayloadRule::Forbidden)];

/// What the job's block says.
pub(super) fn of_job(job: &Section<'_>) -> JobScheduling {
    let default = JobScheduling::default();
    JobScheduling {
        datacenters: job.texts("datacenters").filter(|d| !d.is_empty()).unwrap_or(default.datacenters),
        node_pool: job.string("node_pool").filter(|p| !p.is_empty()).unwrap_or(default.node_pool),
        all_at_once: job.bool("all_at_once").unwrap_or(default.all_at_once),
        periodic: job.child("periodic", &PERIODIC).map(|section| periodic(&section)),
        parameterized: job.child("parameterized", &PARAMETERIZED).map(|section| parameterized(&section)),
    }
}

/// What a group's block says, or for lone tasks nothing, over what the job's says for all of them.
pub(super) fn of_group(job: &Section<'_>, group: Option<&Section<'_>>, kind: JobType) -> GroupScheduling {
    let updates = matches!(kind, JobType::Service | JobType::System);
    let update = [Some(job), group].into_iter().flatten().fold(updates.then(Update::default), |below, owner| {
        owner.child("update", &UPDATE).map(|section| update(&section, below.clone())).or(below)
    });
    let reschedule = [Some(job), group].into_iter().flatten().fold(Reschedule::of(kind), |below, owner| {
        match (owner.child("reschedule", &RESCHEDULE), below) {
            (Some(section), Some(below)) => Some(reschedule(&section, &below)),
            (_, below) => below,
        }
    });
    GroupScheduling {
        update: update.filter(|u| u.max_parallel > 0),
        reschedule,
        disk: group
            .and_then(|g| g.child("ephemeral_disk", &EPHEMERAL_DISK))
            .map_or_else(Default::default, |d| disk(&d)),
        max_run_duration: group.and_then(|g| g.duration("max_run_duration")).filter(|d| !d.is_zero()),
    }
}

/// That a task says of each resource once how it is scaled; the label of a block is the resource.
pub(super) fn check_scaling(task: &Section<'_>) {
    let mut seen: BTreeMap<String, &Pos> = BTreeMap::new();
    for block in task.blocks_of("scaling") {
        let label = block.labels.first().map(|label| label.to_lowercase()).unwrap_or_default();
        if !matches!(label.as_str(), "cpu" | "mem") {
            continue;
        }
        if let Some(first) = seen.get(&label) {
            let message = format!(
                "Duplicate scaling \"{label}\" block in {}; it stands in line {} already",
                task.name, first.line
            );
            task.error(block.pos, message);
        } else {
            seen.insert(label, block.pos);
        }
    }
}

/// The file that gets the payload of a dispatched job.
pub(super) fn dispatch_payload(task: &Section<'_>) -> Option<String> {
    task.child("dispatch_payload", &DISPATCH_PAYLOAD)?.string("file").filter(|file| !file.is_empty())
}

fn update(section: &Section<'_>, below: Option<Update>) -> Update {
    let below = below.unwrap_or_default();
    let time = |key: &str, below: Duration| section.duration(key).unwrap_or(below);
    Update {
        stagger: time("stagger", below.stagger),
        max_parallel: section.int("max_parallel", 0).unwrap_or(below.max_parallel),
        health_check: word(section, "health_check", &HEALTH_CHECKS).unwrap_or(below.health_check),
        min_healthy_time: time("min_healthy_time", below.min_healthy_time),
        healthy_deadline: time("healthy_deadline", below.healthy_deadline),
        progress_deadline: time("progress_deadline", below.progress_deadline),
        auto_revert: section.bool("auto_revert").unwrap_or(below.auto_revert),
        auto_promote: section.bool("auto_promote").unwrap_or(below.auto_promote),
        canary: section.int("canary", 0).unwrap_or(below.canary),
    }
}

fn reschedule(section: &Section<'_>, below: &Reschedule) -> Reschedule {
    let time = |key: &str, below: Duration| section.duration(key).unwrap_or(below);
    Reschedule {
        // Nomad takes a negative number for none.
        attempts: section
            .int::<i64>("attempts", i128::from(i64::MIN))
            .map_or(below.attempts, |given| u32::try_from(given.max(0)).unwrap_or(u32::MAX)),
        interval: time("interval", below.interval),
        delay: time("delay", below.delay),
        delay_function: word(section, "delay_function", &DELAY_FUNCTIONS).unwrap_or(below.delay_function),
        max_delay: time("max_delay", below.max_delay),
        unlimited: section.bool("unlimited").unwrap_or(below.unlimited),
    }
}

fn disk(section: &Section<'_>) -> EphemeralDisk {
    let default = EphemeralDisk::default();
    EphemeralDisk {
        sticky: section.bool("sticky").unwrap_or(default.sticky),
        migrate: section.bool("migrate").unwrap_or(default.migrate),
        size_mib: section.int("size", LEAST_DISK_MIB).unwrap_or(default.size_mib),
    }
}

fn periodic(section: &Section<'_>) -> Periodic {
    let one = section.string("cron").filter(|spec| !spec.is_empty());
    let pos = section.pos_of(if one.is_some() { "cron" } else { "crons" }).clone();
    Periodic {
        enabled: section.bool("enabled").unwrap_or(true),
        specs: one.into_iter().chain(section.texts("crons").unwrap_or_default()).collect(),
        prohibit_overlap: section.bool("prohibit_overlap").unwrap_or(false),
        time_zone: section.string("time_zone").filter(|zone| !zone.is_empty()).unwrap_or_else(|| "UTC".to_owned()),
        pos,
        time_zone_pos: section.pos_of("time_zone").clone(),
    }
}

fn parameterized(section: &Section<'_>) -> Parameterized {
    let names = |key: &str| section.texts(key).unwrap_or_default().into_iter().collect();
    Parameterized {
        payload: word(section, "payload", &PAYLOADS).unwrap_or_default(),
        meta_required: names("meta_required"),
        meta_optional: names("meta_optional"),
        pos: section.pos.clone(),
    }
}

/// The meaning of one of a few words.
fn word<T: Copy>(section: &Section<'_>, key: &str, words: &[(&str, T)]) -> Option<T> {
    let given = section.string(key).filter(|given| !given.is_empty())?;
    let found = words.iter().find(|(word, _)| *word == given).map(|(_, meaning)| *meaning);
    if found.is_none() {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let hint = did_you_mean(&given, known.iter().copied());
        let message = format!("unknown {key} \"{given}\" in {}{hint}; use one of {}", section.name, known.join(", "));
        section.error(section.pos_of(key), message);
    }
    found
}
