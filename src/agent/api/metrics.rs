//! Numbers for monitoring, under Nomad's names, as JSON or for Prometheus.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal};
use crate::agent::model::{ClientStatus, Eligibility, EvalStatus, JobStatus};
use crate::spec::json::json;

/// Number of restarts of a task; the only counter.
const RESTARTS: &str = "nomad.client.allocs.restart";

/// One number; a counter only grows.
struct Gauge {
    is_counter: bool,
    name: &'static str,
    labels: Vec<(&'static str, String)>,
    value: f64,
}

pub(super) async fn metrics(call: Call) -> Result<Answer, Refusal> {
    let gauges = gauges(&call)?;
    if call.query.text("format") == Some("prometheus") {
        return Ok(Answer::Text("text/plain; version=0.0.4; charset=utf-8", prometheus(&gauges).into_bytes()));
    }
    let labels = |gauge: &Gauge| -> Map<String, Value> {
        gauge.labels.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect()
    };
    let (counters, gauges): (Vec<_>, Vec<_>) = gauges.iter().partition(|gauge| gauge.is_counter);
    let gauge = |gauge: &&Gauge| json!({"Name": gauge.name, "Value": gauge.value, "Labels": labels(gauge)});
    let gauges: Vec<Value> = gauges.iter().map(gauge).collect();
    // Totals since the allocation was created, as one sample. Clients in Go take no fraction for a count.
    let counter = |of: &&Gauge| {
        json!({
            "Name": of.name, "Count": of.value as u64, "Sum": of.value, "Rate": 0, "Min": of.value, "Max": of.value, "Mean": of.value, "Stddev": 0,
            "Labels": labels(of),
        })
    };
    let counters: Vec<Value> = counters.iter().map(counter).collect();
    let now =
        humantime::format_rfc3339_seconds(SystemTime::now()).to_string().replace('T', " ").replace('Z', " +0000 UTC");
    Ok(Answer::of(json!({
        "Timestamp": now, "Gauges": gauges, "PrecisionGauges": [], "Points": [], "Counters": counters, "Samples": [],
    })))
}

fn gauges(call: &Call) -> Result<Vec<Gauge>, Refusal> {
    let view = call.api.state.read()?;
    let host = ("host", call.api.about.name.clone());
    let mut all = Vec::new();
    let mut add = |name: &'static str, labels: Vec<(&'static str, String)>, value: f64| {
        let labels = std::iter::once(host.clone()).chain(labels).collect();
        all.push(Gauge { is_counter: name == RESTARTS, name, labels, value });
    };
    let mut allocs = [0_u32; 6];
    let (mut cpu, mut memory, mut disk) = (0, 0, 0);
    for alloc in view.allocs("") {
        let alloc = alloc?;
        let labels = |task: &String| {
            vec![
                ("alloc_id", alloc.id.clone()),
                ("job", alloc.job_id.clone()),
                ("namespace", alloc.namespace.clone()),
                ("task", task.clone()),
                ("task_group", alloc.task_group.clone()),
            ]
        };
        for (task, state) in &alloc.task_states {
            add(RESTARTS, labels(task), state.restarts as f64);
        }
        if !alloc.is_terminal() {
            for (task, has) in &alloc.allocated_resources.tasks {
                add("nomad.client.allocs.cpu.allocated", labels(task), has.cpu_shares as f64);
                add("nomad.client.allocs.memory.allocated", labels(task), (has.memory_mb << 20) as f64);
            }
        }
        allocs[alloc.client_status as usize] += 1;
        if !alloc.is_terminal() {
            let has = &alloc.allocated_resources;
            let (most_cpu, most_memory) = has.most();
            cpu += most_cpu;
            memory += most_memory;
            disk += has.shared.disk_mb;
        }
    }
    let count = |status: ClientStatus| f64::from(allocs[status as usize]);
    add("nomad.client.allocations.pending", vec![], count(ClientStatus::Pending));
    add("nomad.client.allocations.running", vec![], count(ClientStatus::Running));
    add(
        "nomad.client.allocations.terminal",
        vec![],
        [ClientStatus::Complete, ClientStatus::Failed, ClientStatus::Lost].map(count).iter().sum(),
    );
    if let Some(node) = view.node()? {
        let eligibility = match node.scheduling_eligibility {
            Eligibility::Eligible => "eligible",
            Eligibility::Ineligible => "ineligible",
        };
        let labels = || {
            vec![
                ("node_id", node.id.clone()),
                ("datacenter", node.datacenter.clone()),
                ("node_class", if node.node_class.is_empty() { "none".to_owned() } else { node.node_class.clone() }),
                ("node_pool", node.node_pool.clone()),
                ("node_scheduling_eligibility", eligibility.to_owned()),
                ("node_status", "ready".to_owned()),
            ]
        };
        let has = &node.resources;
        let free = |has: f64, used: f64| (has - used).max(0.0);
        add("nomad.client.allocated.cpu", labels(), cpu as f64);
        add("nomad.client.unallocated.cpu", labels(), free(has.cpu_mhz as f64, cpu as f64));
        add("nomad.client.allocated.memory", labels(), memory as f64);
        add("nomad.client.unallocated.memory", labels(), free(has.memory_mb as f64, memory as f64));
        add("nomad.client.allocated.disk", labels(), disk as f64);
        add("nomad.client.unallocated.disk", labels(), free(has.disk_mb as f64, disk as f64));
    }
    let mut jobs = [0_u32; 3];
    for job in view.jobs(None, "") {
        let job = job?;
        jobs[job.status as usize] += 1;
        if let Some(summary) = view.summary(&job.key)? {
            for (group, n) in &summary.summary {
                let labels = || {
                    vec![
                        ("exported_job", job.key.id.clone()),
                        ("namespace", job.key.namespace.clone()),
                        ("task_group", group.clone()),
                    ]
                };
                for (name, value) in [
                    ("nomad.nomad.job_summary.queued", n.queued),
                    ("nomad.nomad.job_summary.complete", n.complete),
                    ("nomad.nomad.job_summary.failed", n.failed),
                    ("nomad.nomad.job_summary.running", n.running),
                    ("nomad.nomad.job_summary.starting", n.starting),
                    ("nomad.nomad.job_summary.lost", n.lost),
                    ("nomad.nomad.job_summary.unknown", n.unknown),
                ] {
                    add(name, labels(), f64::from(value));
                }
            }
        }
    }
    for (name, status) in [
        ("nomad.nomad.job_status.pending", JobStatus::Pending),
        ("nomad.nomad.job_status.running", JobStatus::Running),
        ("nomad.nomad.job_status.dead", JobStatus::Dead),
    ] {
        add(name, vec![], f64::from(jobs[status as usize]));
    }
    let mut evals = [0_u32; 5];
    for eval in view.evals("") {
        evals[eval?.status as usize] += 1;
    }
    add("nomad.nomad.broker.total_pending", vec![], f64::from(evals[EvalStatus::Pending as usize]));
    add("nomad.nomad.blocked_evals.total_blocked", vec![], f64::from(evals[EvalStatus::Blocked as usize]));
    add("nomad.runtime.index", vec![], view.index()? as f64);
    let uptime = call.api.about.started.elapsed().unwrap_or_default();
    add("nomad.uptime", vec![], uptime.as_secs_f64());
    Ok(all)
}

/// The text format of Prometheus: all lines of a name together, names and values as its grammar has them.
fn prometheus(gauges: &[Gauge]) -> String {
    let mut out = String::new();
    let mut names: Vec<&str> = Vec::new();
    for gauge in gauges {
        if !names.contains(&gauge.name) {
            names.push(gauge.name);
        }
    }
    for name in names {
        let flat = name.replace(['.', '-'], "_");
        let kind = if name == RESTARTS { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {flat} {flat}\n# TYPE {flat} {kind}");
        for gauge in gauges.iter().filter(|gauge| gauge.name == name) {
            let label = |(key, value): &(&str, String)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{key}=\"{value}\"")
            };
            let labels: Vec<String> = gauge.labels.iter().map(label).collect();
            let _ = writeln!(out, "{flat}{{{}}} {}", labels.join(","), gauge.value);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_each_name_once_with_quoted_labels() {
        let gauge = |name, job: &str, value| Gauge {
            is_counter: false,
            name,
            labels: vec![("exported_job", job.to_owned())],
            value,
        };
        let text = prometheus(&[gauge("a.b", "x", 1.0), gauge("c", "y", 2.5), gauge("a.b", "q\"\\\n", 3.0)]);
        let expected = "# HELP a_b a_b\n# TYPE a_b gauge\na_b{exported_job=\"x\"} 1\na_b{exported_job=\"q\\\"\\\\\\n\"} 3\n# HELP c c\n# TYPE c gauge\nc{exported_job=\"y\"} 2.5\n";
        assert_eq!(text, expected);
    }
}
