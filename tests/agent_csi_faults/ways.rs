//! The ways in which jobs use volumes.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::agent::try_ask;
use crate::csi_driver::{SHARED, SINGLE};
use crate::place::{HOLD, Job, Place, RETRIED, is_over, writes, writes_at};

/// Uses volumes in some way.
pub type Way = fn(&Place<'_>);

/// The ways in which jobs use volumes; each begins and ends without any use.
pub const WAYS: [(&str, Way); 20] = [
    ("a batch job", once),
    ("a batch job beside a service", beside),
    ("a service that is stopped", stopped),
    ("a service that is purged", purged),
    ("a service with another version", updated),
    ("an allocation that is restarted", restarted),
    ("a task that fails once", failing),
    ("an allocation that fails once", rescheduled),
    ("an allocation that is replaced", replaced),
    ("a node that is drained", drained),
    ("a job that waits for another one's end", succeeding),
    ("two tasks with one volume", two_tasks),
    ("one task with two volumes", two_volumes),
    ("a volume for each allocation", per_alloc),
    ("a service that is scaled", scaled),
    ("a dispatched job", dispatched),
    ("a sysbatch job", on_every_node),
    ("an agent that leaves", left),
    ("a plugin that is restarted below a service", below),
    ("a file system on a loop device", on_a_loop_device),
];

/// A batch job that writes a line to its volumes, and ends.
fn writer(place: &Place<'_>, id: &str, volumes: &[(&str, &str)]) {
    let line = place.line();
    place.run(&Job { id, volumes, group: RETRIED, script: &writes(&line), ..Job::default() });
    place.wrote(id, volumes[0].0, &line);
    place.has_ended(id);
}

fn service<'x>(id: &'x str, volumes: &'x [(&'x str, &'x str)]) -> Job<'x> {
    Job { id, kind: "service", volumes, group: RETRIED, ..Job::default() }
}

fn once(place: &Place<'_>) {
    writer(place, "once", &[("one", SINGLE)]);
}

fn beside(place: &Place<'_>) {
    place.run(&service("holder", &[("data", SHARED)]));
    place.running("holder", "");
    writer(place, "once", &[("data", SHARED)]);
    place.running("holder", "");
    place.stop("holder");
}

fn stopped(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    place.stop("web");
}

fn purged(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    place.insist("DELETE", "/v1/job/web?purge=true", &Value::Null);
    place.has_ended("web");
}

fn updated(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    let script = format!("{}; {HOLD}", writes("second"));
    place.run(&Job { script: &script, ..service("web", &[("one", SINGLE)]) });
    place.running("web", &first);
    place.stop("web");
}

fn restarted(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let alloc = place.running("web", "");
    let _refused = try_ask(&place.driver.world, "PUT", &format!("/v1/client/allocation/{alloc}/restart"), "{}");
    place.running("web", "");
    place.stop("web");
}

fn failing(place: &Place<'_>) {
    let line = place.line();
    let script = format!("[ -e /data/{line} ] || {{ touch /data/{line}; exit 1; }}; {}", writes(&line));
    place.run(&Job { id: "fails", group: RETRIED, script: &script, ..Job::default() });
    place.wrote("fails", "one", &line);
    place.has_ended("fails");
}

fn rescheduled(place: &Place<'_>) {
    let line = place.line();
    let script = format!("[ -e /data/{line} ] || {{ touch /data/{line}; exit 1; }}; {}", writes(&line));
    let group = RETRIED.replace("attempts = 1", "attempts = 0");
    place.run(&Job { id: "fails", group: &group, script: &script, ..Job::default() });
    place.wrote("fails", "one", &line);
    place.has_ended("fails");
}

fn replaced(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    place.insist("PUT", &format!("/v1/allocation/{first}/stop"), &Value::Null);
    place.running("web", &first);
    place.stop("web");
}

fn drained(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    let path = format!("/v1/node/{}/drain", place.node());
    place.insist("PUT", &path, &json!({ "DrainSpec": { "Deadline": 60_000_000_000_i64 } }));
    place.until("the node is drained", || {
        place.allocs("web").iter().chain(&place.allocs("plugin")).all(is_over).then_some(())
    });
    place.insist("PUT", &path, &json!({ "DrainSpec": null, "MarkEligible": true }));
    place.running("web", &first);
    place.stop("web");
}

fn succeeding(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    let line = place.line();
    place.run(&Job { id: "next", group: RETRIED, script: &writes(&line), ..Job::default() });
    place.stop("web");
    place.wrote("next", "one", &line);
    place.has_ended("next");
}

fn two_tasks(place: &Place<'_>) {
    let line = place.line();
    place.run(&Job {
        id: "two",
        volumes: &[("data", SHARED)],
        group: RETRIED,
        tasks: &["t", "u"],
        script: &writes(&line),
        ..Job::default()
    });
    place.wrote("two", "data", &line);
    place.has_ended("two");
}

fn two_volumes(place: &Place<'_>) {
    let (first, second) = (place.line(), place.line());
    let script = format!("{} && {}", writes(&first), writes_at(&second, "/data1"));
    let volumes = [("one", SINGLE), ("data", SHARED)];
    place.run(&Job { id: "two", volumes: &volumes, group: RETRIED, script: &script, ..Job::default() });
    place.wrote("two", "one", &first);
    place.wrote("two", "data", &second);
    place.has_ended("two");
}

fn per_alloc(place: &Place<'_>) {
    let line = place.line();
    let group = format!("count = 2\n {RETRIED}");
    let script = writes(&format!("{line}-$NOMAD_ALLOC_INDEX"));
    let volumes = [("part", SINGLE)];
    place.run(&Job {
        id: "each",
        volumes: &volumes,
        group: &group,
        volume: "per_alloc = true",
        script: &script,
        ..Job::default()
    });
    for number in 0..2 {
        place.wrote("each", &format!("part[{number}]"), &format!("{line}-{number}"));
    }
    place.has_ended("each");
}

fn scaled(place: &Place<'_>) {
    for count in [3, 1] {
        let group = format!("count = {count}\n {RETRIED}");
        place.run(&Job { group: &group, ..service("web", &[("data", SHARED)]) });
        place.until("so many run", || {
            let runs = |alloc: &&Value| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run";
            (place.allocs("web").iter().filter(runs).count() == count).then_some(())
        });
    }
    place.running("web", "");
    place.stop("web");
}

fn dispatched(place: &Place<'_>) {
    let script = writes("$NOMAD_META_line");
    let text =
        Job { id: "param", volumes: &[("data", SHARED)], group: RETRIED, script: &script, ..Job::default() }.text();
    place.run_text(&text.replace("group \"g\"", "parameterized {\n meta_required = [\"line\"]\n }\n group \"g\""));
    let lines = [place.line(), place.line()];
    let children = lines.each_ref().map(|line| {
        let body = json!({ "Meta": { "line": line } });
        place.insist("PUT", "/v1/job/param/dispatch", &body)["DispatchedJobID"].as_str().unwrap().replace('/', "%2F")
    });
    for (child, line) in children.iter().zip(&lines) {
        place.wrote(child, "data", line);
        place.has_ended(child);
    }
}

fn on_every_node(place: &Place<'_>) {
    let line = place.line();
    let group = RETRIED.split(" reschedule").next().unwrap();
    place.run(&Job {
        id: "all",
        kind: "sysbatch",
        group,
        volumes: &[("data", SHARED)],
        script: &writes(&line),
        ..Job::default()
    });
    place.wrote("all", "data", &line);
    place.has_ended("all");
}

fn left(place: &Place<'_>) {
    place.run(&service("web", &[("data", SHARED)]));
    place.running("web", "");
    place.next_agent(Signal::TERM);
    place.running("web", "");
    place.stop("web");
}

fn below(place: &Place<'_>) {
    place.run(&service("holder", &[("data", SHARED)]));
    place.running("holder", "");
    place.restart_plugin();
    writer(place, "once", &[("data", SHARED)]);
    place.running("holder", "");
    place.stop("holder");
}

fn on_a_loop_device(place: &Place<'_>) {
    let volume = [(if place.has_loops() { "image" } else { "one" }, SINGLE)];
    place.run(&service("web", &volume));
    place.running("web", "");
    place.stop("web");
    writer(place, "once", &volume);
}
