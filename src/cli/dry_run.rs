//! `run --dry-run` and `plan`: what would run here, with its ports, directories and volumes. Nothing is started or made.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::Value as Json;

use super::config::Operator;
use super::drivers::{self, check};
use super::output::json_text;
use super::plan::Plan;
use super::plugins::{self, Asked, Wanted};
use super::shown::Texts;
use super::{RunArgs, networks, policy, print, volumes};
use crate::alloc::machine::{self, Seen};
use crate::alloc::{CsiVolumes, HostVolumes};
use crate::spec::json::json;
use crate::spec::{Group, Job, Lifecycle, LifecycleHook, NetworkMode, Port, Task, escaped, shown_source};

/// How many allocations of a group are listed individually.
const MOST_SHOWN: u32 = 20;

/// Prints what a run would do, after all checks that a run makes before it starts, and what that changes.
///
/// # Errors
/// What would prevent the job from being started.
pub(super) fn run(
    args: &RunArgs,
    job: &Job,
    with_payload: bool,
    operator: &Operator,
    texts: &Texts,
    plan: Option<&Plan>,
) -> anyhow::Result<i32> {
    let mut seen = machine::peek(args.data_dir.as_deref(), args.cgroup_parent.as_deref())?;
    seen.node.meta.extend(operator.config.meta.clone());
    let plugin_dir = plugins::dir(args.plugin_dir.as_deref(), &operator.config);
    let given =
        plugins::Given { dir: plugin_dir.as_deref(), config: &operator.config, quiet: args.quiet, outlive: false };
    let asked =
        Asked::start(&given, &Wanted::These(drivers::drivers(job)), &seen.settings, std::mem::take(&mut seen.drivers))?;
    policy::demand(args, &operator.config, job, &asked.drivers, &asked.plugins)?;
    check(job, &asked.drivers, texts)?;
    let networks = operator.config.networks(machine::networks(&seen.data_dir));
    networks::plan(job, &networks::settings(networks, args), texts)?;
    let csi = volumes::csi_volumes(args.data_dir.as_deref(), &args.csi);
    let view = View { args, job, with_payload, operator, seen: &seen, csi };
    let shown = if args.json {
        let mut object = view.json();
        if let Some(plan) = plan {
            object["changes"] = plan.json();
        }
        json_text(&object) + "\n"
    } else {
        view.table() + &plan.map(Plan::text).unwrap_or_default()
    };
    print(shown.as_bytes())?;
    Ok(plan.map_or(0, Plan::status))
}

struct View<'a> {
    args: &'a RunArgs,
    job: &'a Job,
    /// Whether it gets a payload.
    with_payload: bool,
    operator: &'a Operator,
    seen: &'a Seen,
    csi: CsiVolumes,
}

/// Ports, each with the task that it belongs to.
fn ports(group: &Group) -> impl Iterator<Item = (Option<&str>, &Port)> {
    let own = group.network.iter().flat_map(|network| network.ports.iter().map(|port| (None, port)));
    let tasks = group.tasks.iter().flat_map(|task| {
        let ports = task.network.iter().flat_map(|network| &network.ports);
        ports.map(|port| (Some(&*task.name), port))
    });
    own.chain(tasks)
}

fn network_mode(group: &Group) -> String {
    group.network.as_ref().map_or(NetworkMode::Host, |network| network.mode.clone()).to_string()
}

fn lifecycle(lifecycle: Option<Lifecycle>) -> String {
    let Some(Lifecycle { hook, sidecar }) = lifecycle else { return "main".to_owned() };
    let hook = match hook {
        LifecycleHook::Prestart => "prestart",
        LifecycleHook::Poststart => "poststart",
        LifecycleHook::Poststop => "poststop",
    };
    if sidecar { format!("{hook} sidecar") } else { hook.to_owned() }
}

impl View<'_> {
    /// The host's address of a port, if it is known before the start.
    fn address(&self, port: &Port) -> Option<IpAddr> {
        let name = port.host_network.as_ref().map_or("default", |network| &network.name);
        self.operator.networks.address(name, self.seen.node.ip).ok()
    }

    fn dynamic(&self) -> String {
        format!("{}-{}", self.args.dynamic_ports.start(), self.args.dynamic_ports.end())
    }

    fn json(&self) -> Json {
        json!({
            "job": self.job.id,
            "type": self.job.kind.as_str(),
            "data_dir": self.seen.data_dir,
            "groups": self.job.groups.iter().map(|group| self.group_json(group)).collect::<Vec<_>>(),
        })
    }

    fn group_json(&self, group: &Group) -> Json {
        let port = |(task, port): (Option<&str>, &Port)| {
            json!({
                "label": port.label,
                "task": task,
                "address": self.address(port),
                "host_port": port.static_port,
                "dynamic_range": port.static_port.is_none().then(|| self.dynamic()),
                "to": port.to,
            })
        };
        let task = |task: &Task| {
            json!({
                "name": task.name,
                "driver": task.driver,
                "config": task.config.values,
                "user": task.user,
                "lifecycle": lifecycle(task.lifecycle),
                "leader": task.leader,
                "cpu_mhz": task.resources.cpu_mhz,
                "cores": task.resources.cores,
                "memory_mib": task.resources.memory_mib,
                "memory_max_mib": task.resources.memory_max_mib,
                "dispatch_payload": task.dispatch_payload.as_ref().filter(|_| self.with_payload).map(|file| format!("local/{file}")),
                "templates": task.templates.iter().map(|template| &template.destination).collect::<Vec<_>>(),
                "artifacts": task.artifacts.iter()
                    .map(|artifact| json!({"source": shown_source(&artifact.source), "destination": artifact.destination}))
                    .collect::<Vec<_>>(),
            })
        };
        let mounts = mounts(group, &self.operator.volumes, &self.csi, group.count);
        json!({
            "name": group.name,
            "count": group.count,
            "network_mode": network_mode(group),
            "ports": ports(group).map(port).collect::<Vec<_>>(),
            "volume_mounts": mounts.iter().map(Mounted::json).collect::<Vec<_>>(),
            "tasks": group.tasks.iter().map(task).collect::<Vec<_>>(),
        })
    }

    fn table(&self) -> String {
        let mut out = String::new();
        let Job { id, kind, groups, .. } = self.job;
        let (id, dir) = (escaped(id), self.seen.data_dir.join("alloc").display().to_string());
        let _ = writeln!(
            out,
            "job {id} ({}), with its files below {}; nothing has been started\n",
            kind.as_str(),
            escaped(&dir)
        );
        for group in groups {
            let times = if group.count == 1 { String::new() } else { format!(" ({} times)", group.count) };
            let mode = network_mode(group);
            let mode = if mode == "host" { String::new() } else { format!(", network mode {}", escaped(&mode)) };
            let _ = writeln!(out, "group {}{times}{mode}", escaped(&group.name));
            let rows = group.tasks.iter().map(|task| {
                let resources = task.resources;
                let cpu = match resources.cores {
                    0 => format!("{} MHz", resources.cpu_mhz),
                    cores => format!("{cores} cores"),
                };
                let memory = match resources.memory_max_mib {
                    0 => format!("{} MiB", resources.memory_mib),
                    -1 => format!("{} MiB, more if there is", resources.memory_mib),
                    most => format!("{} to {most} MiB", resources.memory_mib),
                };
                let user = if task.user.is_empty() { "-".to_owned() } else { task.user.clone() };
                let what =
                    ["command", "image", "jar_path", "class"].into_iter().find_map(|key| task.config.values.get(key));
                let what = what.and_then(Json::as_str).unwrap_or("-").to_owned();
                vec![task.name.clone(), task.driver.clone(), what, lifecycle(task.lifecycle), user, cpu, memory]
            });
            write_table(&mut out, &["TASK", "DRIVER", "RUNS", "WHEN", "USER", "CPU", "MEMORY"], rows.collect());
            let rows = ports(group).map(|(task, port)| {
                let host =
                    port.static_port.map_or_else(|| format!("one of {}", self.dynamic()), |port| port.to_string());
                let address = self.address(port).map_or_else(|| "-".to_owned(), |ip| ip.to_string());
                let to = port.to.map_or_else(|| "the same".to_owned(), |to| to.to_string());
                vec![port.label.clone(), address, host, to, task.unwrap_or("-").to_owned()]
            });
            write_table(&mut out, &["PORT", "ADDRESS", "HOST PORT", "TO", "OF TASK"], rows.collect());
            let mounts = mounts(group, &self.operator.volumes, &self.csi, group.count.min(MOST_SHOWN));
            let rows = mounts.iter().map(Mounted::row);
            write_table(
                &mut out,
                &["VOLUME", "DIRECTORY", "TASK", "DESTINATION", "MODE", "PROPAGATION"],
                rows.collect(),
            );
            let files = group.tasks.iter().flat_map(|task| {
                let row = |from: String, to: &String| vec![task.name.clone(), from, to.clone()];
                let artifacts = task
                    .artifacts
                    .iter()
                    .map(move |artifact| row(shown_source(&artifact.source), &artifact.destination));
                let templates = task.templates.iter();
                let payload = task.dispatch_payload.iter().filter(|_| self.with_payload);
                let payload = payload.map(move |file| row("the payload".to_owned(), &format!("local/{file}")));
                payload
                    .chain(artifacts)
                    .chain(templates.map(move |t| row("a template".to_owned(), &t.destination)))
                    .collect::<Vec<_>>()
            });
            write_table(&mut out, &["TASK", "FILE", "DESTINATION"], files.collect());
        }
        out
    }
}

/// A directory that a task would see.
struct Mounted {
    source: String,
    path: String,
    task: String,
    destination: String,
    read_only: bool,
    propagation: &'static str,
}

impl Mounted {
    fn json(&self) -> Json {
        let Mounted { source, path, task, destination, read_only, propagation } = self;
        json!({
            "volume": source, "path": path, "task": task, "destination": destination, "read_only": read_only,
            "propagation_mode": propagation,
        })
    }

    fn row(&self) -> Vec<String> {
        let mode = if self.read_only { "read-only" } else { "writable" };
        let Mounted { source, path, task, destination, propagation, .. } = self;
        [source, path, task, destination, mode, *propagation].map(str::to_owned).to_vec()
    }
}

/// The mounts of the tasks of the first `count` allocations; those that depend on a task's environment are missing.
fn mounts(group: &Group, host: &HostVolumes, csi: &CsiVolumes, count: u32) -> Vec<Mounted> {
    let mut out = Vec::new();
    for task in &group.tasks {
        for mount in &task.volume_mounts {
            let Some(volume) = group.volumes.iter().find(|volume| volume.name == mount.volume) else { continue };
            for index in 0..if volume.per_alloc { count } else { count.min(1) } {
                let (path, is_read_only) = if volume.csi.is_some() {
                    let Ok((found, _)) = csi.find(volume, index) else { continue };
                    (format!("{}:{}", found.plugin, found.id), found.read_only)
                } else {
                    let Ok(found) = host.find(volume, index) else { continue };
                    (found.path().display().to_string(), found.is_read_only())
                };
                out.push(Mounted {
                    source: volume.source_of(index),
                    path,
                    task: task.name.clone(),
                    destination: mount.destination.clone(),
                    read_only: is_read_only || volume.read_only || mount.read_only,
                    propagation: mount.propagation.name(),
                });
            }
        }
    }
    out
}

/// Writes rows below their headings, with an empty line after them; nothing if there are no rows.
fn write_table(out: &mut String, heads: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads)
        .chain(rows)
        .map(|row: Vec<String>| row.iter().map(|cell| escaped(cell).into_owned()).collect())
        .collect();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, " {cell:<width$} ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push('\n');
}
