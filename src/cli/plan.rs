//! `agentbin plan`: what a job file would change of what runs here under the name of its job. Never starts or ends anything.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::Value as Json;

use super::complain;
use super::runs::is_dead;
use crate::alloc::control::{Answers, reach};
use crate::alloc::{Record, chain, machine};
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;
use crate::spec::{AllocId, Job, escaped, json};

/// Exit status where the file changes something, as of `nomad job plan`.
const CHANGES: i32 = 1;

/// What becomes of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// None of it runs.
    New,
    /// It runs as the file says.
    Unchanged,
    /// It runs with another count.
    Count,
    /// It runs with another definition.
    Differs,
    /// What runs was started in the foreground, where no definition is kept.
    Unknown,
    /// It runs and is not in the file.
    NotInFile,
}

impl Change {
    const fn word(self) -> &'static str {
        match self {
            Change::New => "new",
            Change::Unchanged => "unchanged",
            Change::Count => "count",
            Change::Differs => "differs",
            Change::Unknown => "unknown",
            Change::NotInFile => "not in the file",
        }
    }
}

/// A group of the file or of what runs.
#[derive(Debug)]
struct Group {
    name: String,
    change: Change,
    /// How many allocations run.
    running: u32,
    /// How many the file wants.
    wanted: u32,
}

/// The difference between a job file and what runs.
#[derive(Debug)]
pub(super) struct Plan {
    job: String,
    groups: Vec<Group>,
}

impl Plan {
    /// Compares a job with the allocations of its name that run here.
    ///
    /// # Errors
    /// When it cannot be seen what runs.
    pub(super) async fn of(given: Option<&Path>, job: &Job) -> anyhow::Result<Plan> {
        let data_dir = machine::existing_data_dir(given)?;
        let bases = machine::socket_bases(data_dir.as_deref());
        let Answers { runs, errors, .. } =
            reach(&bases).await.with_context(|| format!("cannot look for runs in {bases:?}"))?;
        for error in &errors {
            complain(&chain(error));
        }
        let mut running: BTreeMap<String, Vec<Option<Job>>> = BTreeMap::new();
        // A job of the agent is another one, whatever its name.
        for run in runs.into_iter().map(|reached| reached.run).filter(|run| !run.agent) {
            if given.is_some() && data_dir.as_ref() != Some(&run.data_dir) {
                continue;
            }
            for alloc in run.allocs.iter().filter(|alloc| alloc.job == job.id && !alloc.stopping && !is_dead(alloc)) {
                let kept = AllocId::parse(&alloc.id).map(|id| Record::job_of(&run.data_dir, &id)).transpose();
                let kept = kept.unwrap_or_else(|error| {
                    complain(&format!(
                        "what allocation {} was started with cannot be read: {}",
                        alloc.id,
                        chain(&error)
                    ));
                    None
                });
                running.entry(alloc.group.clone()).or_default().push(kept.flatten());
            }
        }
        Ok(Plan::between(job, running))
    }

    fn between(job: &Job, mut running: BTreeMap<String, Vec<Option<Job>>>) -> Plan {
        let of_file = |group: &crate::spec::Group| {
            let runs = running.remove(&group.name).unwrap_or_default();
            let count = u32::try_from(runs.len()).unwrap_or(u32::MAX);
            let wanted = definition(job, &group.name);
            let change = if runs.is_empty() {
                Change::New
            } else if runs.iter().any(|kept| kept.as_ref().is_some_and(|kept| definition(kept, &group.name) != wanted))
            {
                Change::Differs
            } else if runs.iter().any(Option::is_none) {
                Change::Unknown
            } else if count != group.count {
                Change::Count
            } else {
                Change::Unchanged
            };
            Group { name: group.name.clone(), change, running: count, wanted: group.count }
        };
        let mut groups: Vec<Group> = job.groups.iter().map(of_file).collect();
        groups.extend(running.into_iter().map(|(name, runs)| Group {
            name,
            change: Change::NotInFile,
            running: u32::try_from(runs.len()).unwrap_or(u32::MAX),
            wanted: 0,
        }));
        Plan { job: job.id.clone(), groups }
    }

    pub(super) fn json(&self) -> Json {
        let group = |group: &Group| {
            json!({
                "group": group.name,
                "change": group.change.word(),
                "running": group.running,
                "wanted": group.wanted,
            })
        };
        self.groups.iter().map(group).collect()
    }

    /// What the file changes, for people.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let job = escaped(&self.job);
        let _ = if self.groups.iter().all(|group| group.running == 0) {
            writeln!(out, "nothing runs here as job {job}")
        } else {
            writeln!(out, "beside what runs here as job {job}, which run does not replace: agentbin stop {job} ends it")
        };
        for Group { name, change, running, wanted } in &self.groups {
            let _ = write!(out, "  group {}: ", escaped(name));
            let _ = match change {
                Change::New => writeln!(out, "new, {wanted} to be started"),
                Change::Unchanged => writeln!(out, "unchanged, {running} running"),
                Change::Count => writeln!(out, "count {wanted}, {running} running"),
                Change::Differs => writeln!(out, "its definition has changed, {running} running"),
                Change::Unknown => {
                    writeln!(out, "{running} running in the foreground, where no definition is kept to compare with")
                }
                Change::NotInFile => writeln!(out, "not in the file, {running} running"),
            };
        }
        out
    }

    /// The exit status: 0 if the file changes nothing.
    pub(super) fn status(&self) -> i32 {
        if self.groups.iter().all(|group| group.change == Change::Unchanged) { 0 } else { CHANGES }
    }
}

/// A group with what it has from its job, but for its count and for where it stands in the file; `None` if there is none.
fn definition(job: &Job, group: &str) -> Option<Json> {
    let found = job.groups.iter().find(|found| found.name == group)?;
    let alone = Job { groups: vec![crate::spec::Group { count: 1, ..found.clone() }], ..job.clone() };
    // All values of a job can be written.
    json::to_value(&alone).ok().map(without_positions)
}

fn without_positions(value: Json) -> Json {
    let is_pos = |value: &Json| {
        let parts = value.as_array().map(Vec::as_slice);
        matches!(parts, Some([Json::String(_), Json::Number(_), Json::Number(_)]))
    };
    match value {
        Json::Object(members) => {
            let kept = members.into_iter().filter(|(key, value)| !(key.ends_with("pos") && is_pos(value)));
            // Of a config block the values are the job's, and the positions are beside them.
            let kept = kept.filter(|(key, _)| key != "positions");
            let kept =
                kept.map(|(key, value)| if key == "values" { (key, value) } else { (key, without_positions(value)) });
            Json::Object(kept.collect())
        }
        Json::Array(items) => items.into_iter().map(without_positions).collect(),
        other => other,
    }
}
