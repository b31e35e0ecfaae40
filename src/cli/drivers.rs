//! The drivers that a job needs, and what they say of its tasks before a start.

use std::sync::Arc;

use anyhow::bail;
use serde_json::Value as Json;

use super::shown::Texts;
use crate::alloc::chain;
use crate::driver::Driver;
use crate::jobspec;
use crate::spec::Job;
use crate::spec::collections::{BTreeMap, BTreeSet};

/// The prefix of a driver's name in references to node attributes.
const DRIVER: &str = "attr.driver.";

/// The drivers of a job's tasks, and those that it refers to.
pub(super) fn drivers(job: &Job) -> BTreeSet<String> {
    let tasks = job.groups.iter().flat_map(|group| &group.tasks);
    tasks.map(|task| task.driver.clone()).chain(wanted(job)).collect()
}

/// The drivers that the job refers to in interpolated values.
pub(super) fn wanted(job: &Job) -> BTreeSet<String> {
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
pub(super) fn add_drivers(text: &str, wanted: &mut BTreeSet<String>) {
    for (at, _) in text.match_indices(DRIVER) {
        let rest = &text[at + DRIVER.len()..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-').unwrap_or(rest.len());
        wanted.insert(rest[..end].to_owned());
    }
}

/// The message about a driver that does not exist.
pub(super) fn unknown_driver(name: &str, drivers: &BTreeMap<String, Arc<dyn Driver>>) -> String {
    let known = drivers.keys().cloned().collect::<Vec<_>>().join(", ");
    let hint = jobspec::did_you_mean(name, drivers.keys().map(String::as_str));
    format!("unknown driver {name:?}{hint}; known are {known}")
}

/// Every mistake that can be found before anything starts.
pub(super) fn check(job: &Job, drivers: &BTreeMap<String, Arc<dyn Driver>>, texts: &Texts) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for task in job.groups.iter().flat_map(|g| &g.tasks) {
        match drivers.get(&task.driver) {
            None => problems.push(format!("{}: {}", task.pos, unknown_driver(&task.driver, drivers))),
            Some(driver) => problems.extend(driver.validate(&task.config).err().map(|e| chain(&e))),
        }
    }
    if !problems.is_empty() {
        bail!("{}", texts.explain_lines(&problems.join("\n")));
    }
    Ok(())
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
