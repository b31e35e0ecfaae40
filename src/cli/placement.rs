//! Whether a job's constraints allow this machine.

use std::path::Path;

use serde_json::Value as Json;

use super::plugins::{Asked, Given, Wanted};
use crate::alloc::Machine;
use crate::alloc::machine;
use crate::driver::Fingerprint;
use crate::jobspec::{Diagnostic, Parsed};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, Order as _};

/// Most unmet constraints that are reported.
const MOST_SAID: usize = 50;
/// The prefix of a driver's name in references to node attributes.
const DRIVER: &str = "attr.driver.";

/// Refuses each constraint that this machine does not meet. Nothing on the machine is made or changed.
///
/// # Errors
/// When its cgroups cannot be inspected; as [`Asked::start`].
pub(super) fn check(
    parsed: &mut Parsed,
    data_dir: Option<&Path>,
    cgroup_parent: Option<&Path>,
    given: &Given<'_>,
) -> anyhow::Result<()> {
    let mut wanted = BTreeSet::new();
    let mut has_any = false;
    for constraint in parsed.job.all_constraints() {
        has_any = true;
        add_drivers(&constraint.attribute, &mut wanted);
        add_drivers(&constraint.value, &mut wanted);
    }
    if !has_any {
        return Ok(());
    }
    let mut node = machine::look(data_dir, cgroup_parent)?;
    node.meta.extend(given.config.meta.clone());
    if !wanted.is_empty() {
        let (drivers, settings) = machine::drivers_to_ask(cgroup_parent)?;
        let asked = Asked::start(given, &Wanted::These(wanted.clone()), &settings, drivers)?;
        node.add_drivers(&asked.hear(machine::fingerprints(&asked.drivers, &wanted)));
    }
    let lookup = |key: &str| node.lookup(key).map(str::to_owned);
    let unmet = parsed.job.unmet(&lookup).take(MOST_SAID).map(|(pos, why)| Diagnostic::new(pos, why));
    parsed.refusals.extend(unmet.collect::<Vec<_>>());
    parsed.refusals.order_by_key(|refusal| (refusal.pos.line, refusal.pos.column));
    Ok(())
}

/// Fingerprints the drivers that the job refers to (`${attr.driver.docker.version}`). Not the others: a Java runtime is slow to
/// report its version.
pub(super) async fn ask_drivers(job: &Job, machine: &Machine) -> BTreeMap<String, Fingerprint> {
    let wanted = wanted(job);
    if wanted.is_empty() { BTreeMap::new() } else { machine::fingerprints(&machine.drivers, &wanted).await }
}

/// The drivers of a job's tasks, and those that it refers to.
pub(super) fn drivers(job: &Job) -> BTreeSet<String> {
    let tasks = job.groups.iter().flat_map(|group| &group.tasks);
    tasks.map(|task| task.driver.clone()).chain(wanted(job)).collect()
}

/// The drivers that the job refers to in interpolated values.
fn wanted(job: &Job) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    for network in job.groups.iter().filter_map(|group| group.network.as_ref()) {
        let dns = network.dns.iter().flat_map(|dns| dns.servers.iter().chain(&dns.searches).chain(&dns.options));
        let texts = network.cni_args.values().chain(dns).chain([&network.hostname]);
        texts.for_each(|text| add_drivers(text, &mut wanted));
    }
    for task in job.groups.iter().flat_map(|group| &group.tasks) {
        let env = task.env.iter().flat_map(|(key, value)| [key, value]);
        let templates = task.templates.iter().map(|template| &template.destination);
        let artifacts = task.artifacts.iter().flat_map(|artifact| [&artifact.source, &artifact.destination]);
        let details =
            task.artifacts.iter().flat_map(|artifact| artifact.options.values().chain(artifact.headers.values()));
        let texts = env.chain(templates).chain(artifacts).chain(details).chain([&task.user]);
        texts.for_each(|text| add_drivers(text, &mut wanted));
        for (key, value) in &task.config.values {
            add_drivers(key, &mut wanted);
            add_drivers_of(value, &mut wanted);
        }
    }
    wanted
}

fn add_drivers_of(value: &Json, wanted: &mut BTreeSet<String>) {
    match value {
        Json::String(text) => add_drivers(text, wanted),
        Json::Array(items) => items.iter().for_each(|item| add_drivers_of(item, wanted)),
        Json::Object(members) => members.iter().for_each(|(key, value)| {
            add_drivers(key, wanted);
            add_drivers_of(value, wanted);
        }),
        _ => {}
    }
}

/// The drivers whose attributes a text refers to.
fn add_drivers(text: &str, wanted: &mut BTreeSet<String>) {
    for (at, _) in text.match_indices(DRIVER) {
        let rest = &text[at + DRIVER.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(rest.len());
        wanted.insert(rest[..end].to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_drivers_that_are_named_are_asked() {
        let mut wanted = BTreeSet::new();
        add_drivers(
            "${attr.driver.docker} ${attr.driver.raw_exec.version} ${attr.kernel.name} attr.driver.",
            &mut wanted,
        );
        add_drivers_of(&serde_json::json!({"a": [{"b": "${attr.driver.java.vm}"}, 1]}), &mut wanted);
        assert_eq!(wanted.iter().map(String::as_str).collect::<Vec<_>>(), ["", "docker", "java", "raw_exec"]);
    }
}
