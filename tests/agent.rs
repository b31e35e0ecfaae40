//! The agent as a program: jobs over its API and by the real `nomad` command, its death and its return. (A4, J4, J6, N8)

#[path = "support/agent.rs"]
mod agent;
#[path = "support/crowd.rs"]
mod crowd;
#[path = "support/engine.rs"]
mod engine;
#[path = "agent/fifty.rs"]
mod fifty;
#[path = "support/plugin_dir.rs"]
mod plugin_dir;
#[path = "support/random.rs"]
mod random;
#[path = "support/world.rs"]
mod world;

use std::io::{BufRead as _, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use agent::{
    Agent, CONFIG, WAITS, command, command_of, job, lives, nomad, nomad_says, own_command, own_memory, pid_of, socket,
};
use world::{World, need_root, seconds};

#[test]
fn a_service_is_registered_runs_is_updated_stopped_and_forgotten() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let registered = agent.register(&job("web", "service", WAITS, json!({})));
    assert_ne!(registered["EvalID"], "");
    let first = agent.alloc("web", "running", "");
    agent.until("its output is there", || agent.output(&first, "t").contains("up").then_some(()));
    assert_eq!(agent.get("/v1/job/web")["Status"], "running");

    agent.register(&job("web", "service", &format!("echo second; {WAITS}"), json!({})));
    let second = agent.alloc("web", "running", first["ID"].as_str().unwrap());
    let whole = agent.get(&format!("/v1/allocation/{}", second["ID"].as_str().unwrap()));
    assert_eq!(whole["PreviousAllocation"], first["ID"]);
    agent.until("its output is there", || agent.output(&second, "t").starts_with("second").then_some(()));
    let old = agent.until("the old one has ended", || {
        agent.allocs("web").into_iter().find(|alloc| alloc["ID"] == first["ID"] && alloc["ClientStatus"] == "complete")
    });
    assert_eq!(old["DesiredStatus"], "stop");
    assert!(agent.output(&old, "t").contains("up"), "logs of what has ended are kept");

    agent.json("DELETE", "/v1/job/web", &Value::Null);
    agent.until("the job is dead", || (agent.get("/v1/job/web")["Status"] == "dead").then_some(()));
    assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
    assert_eq!(agent.ask("GET", "/v1/job/web", "").0, 404);
    let left: Vec<_> = std::fs::read_dir(world.data_dir().join("alloc")).unwrap().collect();
    assert_eq!(left.len(), 0, "{left:?}");
    assert!(agent.end(Signal::TERM).success());
    world.assert_clean();
}

#[test]
fn a_batch_job_completes_and_one_that_fails_is_placed_again() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    agent.register(&job("once", "batch", "echo done", json!({})));
    let done = agent.alloc("once", "complete", "");
    assert_eq!(agent.output(&done, "t"), "done\n");
    agent.until("the job is dead", || (agent.get("/v1/job/once")["Status"] == "dead").then_some(()));
    let policy = json!({ "Attempts": 1, "Interval": 3_600_000_000_000_i64, "Delay": 5_000_000_000_i64,
        "DelayFunction": "constant", "MaxDelay": 0, "Unlimited": false });
    agent.register(&job("bad", "batch", "exit 3", json!({ "ReschedulePolicy": policy })));
    let allocs = agent.until("it was tried twice", || {
        let allocs = agent.allocs("bad");
        let failed = allocs.iter().filter(|alloc| alloc["ClientStatus"] == "failed").count();
        (failed == 2).then_some(allocs)
    });
    let event = |alloc: &Value| alloc["TaskStates"]["t"]["Events"].to_string();
    assert!(allocs.iter().all(|alloc| event(alloc).contains("\"exit_code\":\"3\"")), "{allocs:#?}");
    for id in ["once", "bad"] {
        agent.json("DELETE", &format!("/v1/job/{id}?purge=true"), &Value::Null);
    }
    assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
    let _status = agent.end(Signal::TERM);
}

/// The agent is killed, comes again, is asked to end, and comes again: the task is the same process all along.
#[test]
fn tasks_outlive_the_agent_however_it_ends() {
    need_root!();
    let world = World::new();
    let mut agent = Agent::start(&world);
    let script = format!("echo pid $$; {WAITS}");
    agent.register(&job("web", "service", &script, json!({})));
    let alloc = agent.alloc("web", "running", "");
    let pid = pid_of(&agent, &alloc, "t");
    for signal in [Signal::KILL, Signal::TERM] {
        let _status = agent.end(signal);
        assert!(lives(&pid), "{signal:?}");
        agent = Agent::start(&world);
        let again = agent.alloc("web", "running", "");
        assert_eq!(again["ID"], alloc["ID"]);
        assert_eq!((&again["TaskStates"]["t"]["Restarts"], agent.allocs("web").len()), (&json!(0), 1));
        assert_eq!(pid_of(&agent, &alloc, "t"), pid);
    }
    // What ended while no agent was there is seen to have ended.
    let _status = agent.end(Signal::KILL);
    let number = Pid::from_raw(pid.parse().unwrap()).unwrap();
    kill_process(number, Signal::KILL).unwrap();
    let agent = Agent::start(&world);
    let ended = agent.until("its end is known", || {
        agent.allocs("web").into_iter().find(|found| found["ID"] == alloc["ID"] && found["ClientStatus"] == "failed")
    });
    assert!(ended["TaskStates"]["t"]["Events"].to_string().contains("\"signal\":\"9\""), "{ended:#}");
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

/// The agent executes itself once more for a heap without caches: with the same process, name and file, also after another agent has
/// handed over to it, and what it starts has the environment that somebody gave to the agent.
#[test]
fn n8_the_heap_of_the_agent_is_its_own_matter() {
    need_root!();
    for given in [None, Some("glibc.malloc.perturb=0")] {
        let world = World::new();
        let mut start = command(&world);
        start.env_remove("GLIBC_TUNABLES");
        start.envs(given.map(|given| ("GLIBC_TUNABLES", given)));
        let agent = Agent::start_command(&world, &mut start);
        let pid = agent.child.id();
        let has_small_heap = || {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap();
            // glibc ends each setting that it has read.
            let mut entries = environment.split(|byte| *byte == 0);
            entries.any(|entry| entry.ends_with(b"glibc.malloc.tcache_count=0"))
        };
        for name in ["first", "handed-over"] {
            assert!(has_small_heap());
            assert_eq!(std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "agentbin\n");
            let script = format!("env | grep -e GLIBC_TUNABLES -e AGENTBIN_HEAP; {WAITS}");
            agent.register(&job(name, "service", &script, json!({})));
            let alloc = agent.alloc(name, "running", "");
            let text = agent.until("the environment is told", || {
                Some(said(&agent, &alloc, "t")).filter(|text| text.ends_with("up\n"))
            });
            assert_eq!(text, given.map_or("up\n".into(), |given| format!("GLIBC_TUNABLES={given}\nup\n")));
            if name == "first" {
                assert_eq!(agent.ask("PUT", "/v1/agentbin/upgrade", "").0, 200, "{}", agent.log());
                agent.until("it has handed over", || {
                    Some(()).filter(|()| has_taken_over(pid) && agent.get("/v1/status/leader").is_string())
                });
            }
            agent.json("DELETE", &format!("/v1/job/{name}?purge=true"), &Value::Null);
        }
        agent.wind_up();
    }
}

/// The state is lost while tasks run, one has ended and a job was stopped: with `--adopt-records` all of it goes on.
#[test]
fn n8_without_its_state_an_agent_goes_on_with_the_records() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let script = format!("echo pid $$; {WAITS}");
    let mut web = job("web", "service", &script, json!({ "Count": 2 }));
    agent.register(&web);
    // The second version changes nothing that the tasks see: they go on, and belong to it.
    web["Priority"] = json!(60);
    agent.register(&web);
    agent.json("PUT", "/v1/namespace", &json!({ "Name": "apps" }));
    let mut once = job("once", "batch", "echo ran >> $NOMAD_ALLOC_DIR/ran; echo ran", json!({}));
    once["Namespace"] = json!("apps");
    agent.register(&once);
    agent.register(&job("gone", "service", &script, json!({})));
    let done = agent.until("the batch job is done", || {
        let Value::Array(all) = agent.get("/v1/allocations?namespace=apps") else { panic!() };
        all.into_iter().find(|alloc| alloc["ClientStatus"] == "complete")
    });
    let gone = agent.alloc("gone", "running", "");
    agent.json("DELETE", "/v1/job/gone", &Value::Null);
    agent.alloc("gone", "complete", "");
    let run = |agent: &Agent<'_>| {
        agent.until("both run in their version", || {
            let all = agent.allocs("web");
            let is = |a: &Value| a["ClientStatus"] == "running" && a["JobVersion"] == 1;
            (all.len() == 2 && all.iter().all(is)).then_some(all)
        })
    };
    let before = run(&agent);
    let pids: Vec<String> = before.iter().map(|alloc| pid_of(&agent, alloc, "t")).collect();
    let _status = agent.end(Signal::KILL);
    std::fs::rename(world.data_dir().join("server"), world.path("lost")).unwrap();

    // Without being told so, an agent touches none of it and says what to do.
    let agent = Agent::start(&world);
    assert_eq!(agent.get("/v1/jobs"), json!([]));
    assert!(agent.log().contains("start the agent once with --adopt-records"), "{}", agent.log());
    assert!(pids.iter().all(|pid| lives(pid)));
    let _status = agent.end(Signal::TERM);

    for _ in 0..2 {
        let agent = Agent::start_with(&world, &["--adopt-records"]);
        let after = run(&agent);
        for (alloc, pid) in before.iter().zip(&pids) {
            let same = after.iter().find(|same| same["ID"] == alloc["ID"]).unwrap_or_else(|| panic!("{after:#?}"));
            assert_eq!((&same["Name"], &same["NodeID"]), (&alloc["Name"], &alloc["NodeID"]));
            assert_eq!((&same["TaskStates"]["t"]["Restarts"], &pid_of(&agent, alloc, "t")), (&json!(0), pid));
        }
        let known = agent.get("/v1/job/web");
        assert_eq!((&known["Version"], &known["Priority"]), (&json!(1), &json!(60)));
        assert_eq!(agent.get("/v1/job/gone")["Stop"], true);
        let ended = agent.alloc("gone", "complete", "");
        assert_eq!(ended["ID"], gone["ID"]);
        let once = agent.until("the batch job is done again", || {
            let job = agent.get("/v1/job/once?namespace=apps");
            (job["Status"] == "dead").then_some(job)
        });
        assert_eq!(once["Stop"], false);
        let Value::Array(all) = agent.get("/v1/allocations?namespace=apps") else { panic!() };
        assert_eq!((all.len(), &all[0]["ID"], &all[0]["ClientStatus"]), (1, &done["ID"], &json!("complete")));
        let _status = agent.end(Signal::KILL);
    }

    // Decisions are made as before: one of two stays, and a stop ends it.
    let agent = Agent::start(&world);
    web["TaskGroups"][0]["Count"] = json!(1);
    agent.register(&web);
    agent.until("one has ended", || pids.iter().filter(|pid| lives(pid)).count().eq(&1).then_some(()));
    assert_eq!(agent.get("/v1/job/web")["Version"], 2);
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.until("the other one has ended", || pids.iter().all(|pid| !lives(pid)).then_some(()));
    agent.wind_up();
}

#[test]
fn a_second_agent_on_the_same_data_directory_says_who_has_it() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let out = command(&world).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains(&format!("process {}", agent.child.id())), "{told}");
}

#[test]
fn an_allocation_is_stopped_without_its_shutdown_delay() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let mut slow = job("web", "service", WAITS, json!({ "ShutdownDelay": 600_000_000_000_i64 }));
    slow["TaskGroups"][0]["Tasks"][0]["ShutdownDelay"] = 600_000_000_000_i64.into();
    agent.register(&slow);
    let first = agent.alloc("web", "running", "");
    let id = first["ID"].as_str().unwrap();
    agent.json("PUT", &format!("/v1/allocation/{id}/stop?no_shutdown_delay=true"), &json!({}));
    agent.until("it has ended", || {
        agent.allocs("web").into_iter().find(|alloc| alloc["ID"] == first["ID"] && alloc["ClientStatus"] == "complete")
    });
    // Also one whose delay has begun.
    let second = agent.alloc("web", "running", id);
    let id = second["ID"].as_str().unwrap();
    agent.json("PUT", &format!("/v1/allocation/{id}/stop"), &json!({}));
    agent.until("it is being stopped", || {
        (agent.get(&format!("/v1/allocation/{id}"))["DesiredStatus"] == "stop").then_some(())
    });
    agent.json("PUT", &format!("/v1/allocation/{id}/stop?no_shutdown_delay=true"), &json!({}));
    agent.until("it has ended, too", || {
        (agent.get(&format!("/v1/allocation/{id}"))["ClientStatus"] == "complete").then_some(())
    });
    agent.alloc("web", "running", id);
    agent.json("DELETE", "/v1/job/web?purge=true&no_shutdown_delay=true", &Value::Null);
    agent.wind_up();
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

/// A service whose check finds out whether somebody listens on a port.
fn with_service(id: &str, port: u16, tags: &[&str], kill_timeout: i64) -> Value {
    let mut job = job(
        id,
        "service",
        &format!("echo pid $$; {WAITS}"),
        json!({
            "Services": [{ "Name": id, "Provider": "nomad", "PortLabel": port.to_string(), "Tags": tags, "Checks": [{
                "Name": "alive", "Type": "tcp", "Interval": 1_000_000_000_i64, "Timeout": 1_000_000_000_i64,
            }] }],
            "Update": { "HealthCheck": "checks", "MinHealthyTime": 0, "HealthyDeadline": 80_000_000_000_i64,
                "ProgressDeadline": 90_000_000_000_i64 },
        }),
    );
    job["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = kill_timeout.into();
    job
}

/// Services and checks are told; a change of tags reaches what runs; nothing is written without a change; a killed agent's services
/// stay until it is known what became of their tasks.
#[test]
fn services_are_registered_checked_updated_in_place_and_outlive_the_agent() {
    need_root!();
    let world = World::new();
    let mut agent = Agent::start(&world);
    let port = free_port();
    agent.register(&with_service("web", port, &["first"], 2_000_000_000));
    let alloc = agent.alloc("web", "running", "");
    let id = alloc["ID"].as_str().unwrap().to_owned();
    let pid = pid_of(&agent, &alloc, "t");
    let service = |agent: &Agent<'_>| agent.get("/v1/service/web").as_array().unwrap().clone();
    let found = agent.until("it is registered", || Some(service(&agent)).filter(|found| found.len() == 1));
    assert_eq!(
        (&found[0]["AllocID"], &found[0]["Port"], &found[0]["Tags"][0]),
        (&json!(id), &json!(port), &json!("first"))
    );
    let check = |agent: &Agent<'_>| {
        let checks = agent.get(&format!("/v1/client/allocation/{id}/checks"));
        checks.as_object().unwrap().values().next().cloned().unwrap_or_default()
    };
    agent.until("its check fails", || (check(&agent)["Status"] == "failure").then_some(()));
    // Nobody listens: as long as that is so, it is not healthy.
    let deployment = |agent: &Agent<'_>| agent.get("/v1/job/web/deployment");
    assert_eq!(deployment(&agent)["Status"], "running");
    let listener = std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    agent.until("it is healthy", || (deployment(&agent)["Status"] == "successful").then_some(()));
    assert_eq!(
        (&check(&agent)["Status"], &check(&agent)["Service"], &check(&agent)["Group"]),
        (&json!("success"), &json!("web"), &json!("web.g[0]"))
    );
    if let Some(nomad) = nomad() {
        for (args, expected) in [
            (&["service", "list"][..], "[first]"),
            (&["service", "info", "web"], &port.to_string()),
            (&["alloc", "checks", &id], "success"),
        ] {
            let (done, text) = nomad_says(&nomad, &world, args);
            assert!(done && text.contains(expected), "nomad {args:?}: {text}");
        }
    }

    // Only tags and the kill timeout: the same process, told otherwise.
    agent.register(&with_service("web", port, &["second"], 3_000_000_000));
    agent.until("its tags are the new ones", || (service(&agent)[0]["Tags"][0] == "second").then_some(()));
    let same = agent.alloc("web", "running", "");
    assert_eq!((&same["ID"], &same["JobVersion"]), (&json!(id), &json!(1)));
    agent.until("the new version is healthy", || {
        let newest = deployment(&agent);
        (newest["JobVersion"] == 1 && newest["Status"] == "successful").then_some(())
    });
    // With a check that fails it is not healthy, whatever the one before found.
    let mut broken = with_service("web", port, &["second"], 3_000_000_000);
    broken["TaskGroups"][0]["Services"][0]["Checks"][0]["PortLabel"] = json!(free_port().to_string());
    agent.register(&broken);
    agent.until("the new check fails", || (check(&agent)["Status"] == "failure").then_some(()));
    let newest = deployment(&agent);
    assert_eq!((&newest["JobVersion"], &newest["Status"]), (&json!(2), &json!("running")));
    agent.register(&with_service("web", port, &["second"], 3_000_000_000));
    agent.until("it is healthy again", || {
        let newest = deployment(&agent);
        (newest["JobVersion"] == 3 && newest["Status"] == "successful").then_some(())
    });
    // Its check goes on, and what it finds again and again is not written down.
    let before = (service(&agent), agent.get(&format!("/v1/allocation/{id}"))["ModifyIndex"].clone());
    let time = |agent: &Agent<'_>| check(agent)["Timestamp"].as_i64().unwrap();
    let start = time(&agent);
    agent.until("it was checked again", || (time(&agent) >= start + 3).then_some(()));
    let after = (service(&agent), agent.get(&format!("/v1/allocation/{id}"))["ModifyIndex"].clone());
    assert_eq!(before, after);

    let _status = agent.end(Signal::KILL);
    agent = Agent::start(&world);
    assert_eq!(service(&agent), before.0, "it was never away");
    agent.until("it is checked by the next agent", || (check(&agent)["Status"] == "success").then_some(()));
    assert_eq!(service(&agent), before.0);
    assert_eq!(pid_of(&agent, &alloc, "t"), pid);
    assert_eq!(agent.allocs("web").len(), 1);

    // Killed again, and the task with it: what is not there any more is not told.
    let _status = agent.end(Signal::KILL);
    kill_process(Pid::from_raw(pid.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    agent = Agent::start(&world);
    agent.until("the old registration is gone", || {
        service(&agent).iter().all(|found| found["AllocID"] != json!(id)).then_some(())
    });
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.until("nothing is registered", || service(&agent).is_empty().then_some(()));
    drop(listener);
    agent.wind_up();
}

/// What two agents and a run do not know of each other stands in the machine's registry: one has a port, and the others say who.
#[test]
fn a_port_has_one_holder_on_the_machine_who_is_named() {
    need_root!();
    let (world, other) = (World::new(), World::new());
    let port = free_port();
    let network = json!({ "Networks": [{ "ReservedPorts": [{ "Label": "http", "Value": port }] }] });
    let mut agent = Agent::start(&world);
    // It listens nowhere, and has the port all the same.
    agent.register(&job("first", "service", WAITS, network.clone()));
    let alloc = agent.alloc("first", "running", "");
    let second = Agent::start(&other);
    second.register(&job("second", "service", WAITS, network.clone()));
    let refusal = |second: &Agent<'_>| {
        let evals = second.get("/v1/job/second/evaluations");
        let blocked = evals.as_array().unwrap().iter().find(|eval| eval["Status"] == "blocked").cloned()?;
        Some(second.get(&format!("/v1/evaluation/{}", blocked["ID"].as_str().unwrap())).to_string())
    };
    let told = second.until("it is blocked", || refusal(&second));
    assert!(told.contains(&format!("reserved port collision http={port}")), "{told}");
    assert_eq!(second.allocs("second").len(), 0);
    let file = world.file(
        "run.hcl",
        &format!(
            "job \"third\" {{\n  group \"g\" {{\n    network {{\n      port \"http\" {{\n        static = {port}\n      }}\n    }}\n    \
             task \"t\" {{\n      driver = \"raw_exec\"\n      config {{\n        command = \"/bin/true\"\n      }}\n    }}\n  }}\n}}\n"
        ),
    );
    let run = |world: &World| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.arg("run").arg("--data-dir").arg(world.path("run")).arg(&file);
        let out = command.stdin(Stdio::null()).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (done, text) = run(&world);
    assert!(!done && text.contains("job \"first\", group \"g\" has it"), "{text}");

    // The next agent has it again.
    let _status = agent.end(Signal::KILL);
    agent = Agent::start(&world);
    assert_eq!(agent.alloc("first", "running", "")["ID"], alloc["ID"]);
    let (done, text) = run(&world);
    assert!(!done && text.contains("job \"first\", group \"g\" has it"), "{text}");

    // Free again when it has ended, although what is left of it is kept.
    agent.json("DELETE", "/v1/job/first", &Value::Null);
    agent.until("the first one has ended", || {
        agent.allocs("first").iter().all(|alloc| alloc["ClientStatus"] == "complete").then_some(())
    });
    second.json("PUT", "/v1/job/second/evaluate", &json!({ "JobID": "second" }));
    second.alloc("second", "running", "");
    second.json("DELETE", "/v1/job/second", &Value::Null);
    second.until("it has ended", || {
        second.allocs("second").iter().all(|alloc| alloc["ClientStatus"] == "complete").then_some(())
    });
    for (agent, world) in [(agent, &world), (second, &other)] {
        assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
        let _status = agent.end(Signal::TERM);
        world.assert_clean();
    }
}

#[test]
fn a_dispatched_job_gets_its_payload_and_metadata() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let script = "cat local/in/data; echo; echo $NOMAD_META_color ${NOMAD_META_size-unset} of $NOMAD_JOB_PARENT_ID";
    let mut parent = job("work", "batch", script, json!({}));
    parent["ParameterizedJob"] = json!({ "Payload": "required", "MetaRequired": ["color"], "MetaOptional": ["size"] });
    parent["TaskGroups"][0]["Tasks"][0]["DispatchPayload"] = json!({ "File": "in/data" });
    agent.register(&parent);
    // "hello"
    let given = json!({ "Payload": "aGVsbG8=", "Meta": { "color": "green" } });
    let child = agent.json("PUT", "/v1/job/work/dispatch", &given);
    let child = child["DispatchedJobID"].as_str().unwrap().replace('/', "%2F");
    let done = agent.alloc(&child, "complete", "");
    assert_eq!(agent.output(&done, "t"), "hello\ngreen of work\n");
    if let Some(nomad) = nomad() {
        let file = world.file("payload", "by the command");
        let file = file.to_str().unwrap();
        let (done, text) = nomad_says(&nomad, &world, &["job", "dispatch", "-meta", "color=red", "work", file]);
        assert!(done && text.contains("finished with status \"complete\""), "{text}");
    }
    agent.until("both have ended", || {
        agent.get("/v1/allocations").as_array().unwrap().iter().all(|a| a["ClientStatus"] == "complete").then_some(())
    });
    agent.json("DELETE", "/v1/job/work?purge=true", &Value::Null);
    assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
    let _status = agent.end(Signal::TERM);
    world.assert_clean();
}

/// J4: a template asks for the variables of its job; it waits for what is missing, and a change reaches the task.
#[test]
fn variables_reach_templates_and_their_changes_tasks() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let put = |path: &str, word: &str| {
        let variable = json!({ "Namespace": "default", "Path": path, "Items": { "word": word } });
        agent.json("PUT", &format!("/v1/var/{path}"), &variable);
    };
    // Nobody's job may read this one.
    put("others/own", "hidden");
    let text = r#"{{ with nomadVar "nomad/jobs/web" }}{{ .word }}{{ end }} {{ key "nomad/jobs/web/g/t/word" }} {{ nomadVarExists "others/own" }}"#;
    let mut web = job("web", "service", "cat local/words; exec sleep 1000", json!({}));
    web["TaskGroups"][0]["Tasks"][0]["Templates"] =
        json!([{ "EmbeddedTmpl": text, "DestPath": "local/words", "ChangeMode": "restart", "Splay": 0 }]);
    agent.register(&web);
    put("nomad/jobs/web", "one");
    let waits = agent.until("it waits for what is missing", || {
        let alloc = agent.allocs("web").into_iter().next()?;
        let alloc = agent.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().unwrap()));
        let events = alloc["TaskStates"]["t"]["Events"].to_string();
        events.contains("kv.block(nomad/jobs/web/g/t/word)").then_some((alloc, events))
    });
    let (alloc, events) = waits;
    assert!(events.contains("`nomad var put`") && !events.contains("--kv"), "{events}");
    put("nomad/jobs/web/g/t", "more");
    let words = |expected: &str| {
        agent.until(expected, || (said(&agent, &alloc, "t") == expected).then_some(()));
    };
    words("one more false");
    put("nomad/jobs/web", "two");
    words("one more falsetwo more false");
    // An agent that comes back finds them as they are, and does nothing to the task. The state has the restart a moment after the
    // task has written.
    let starts = |alloc: &Value| alloc["TaskStates"]["t"]["Restarts"].clone();
    let restarted = || agent.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().unwrap()));
    agent.until("the restart is counted", || (starts(&restarted()) == 1).then_some(()));
    let _status = agent.end(Signal::KILL);
    let agent = Agent::start(&world);
    let now = agent.alloc("web", "running", "");
    assert_eq!(starts(&agent.get(&format!("/v1/allocation/{}", now["ID"].as_str().unwrap()))), 1);
    assert_eq!(said(&agent, &alloc, "t"), "one more falsetwo more false");
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

#[test]
fn an_allocation_that_runs_too_long_is_ended_and_has_failed() {
    need_root!();
    let world = World::new();
    let mut agent = Agent::start(&world);
    let policy = json!({ "Attempts": 0, "Interval": 0, "Unlimited": false });
    let group = json!({ "MaxRunDuration": 6_000_000_000_i64, "ReschedulePolicy": policy });
    agent.register(&job("long", "batch", WAITS, group));
    let alloc = agent.alloc("long", "running", "");
    // Whoever comes then goes on with the same time.
    let _status = agent.end(Signal::KILL);
    agent = Agent::start(&world);
    let failed = agent.alloc("long", "failed", "");
    assert_eq!(failed["ID"], alloc["ID"]);
    assert!(failed["ClientDescription"].to_string().contains("max_run_duration"), "{failed:#}");
    agent.json("DELETE", "/v1/job/long?purge=true", &Value::Null);
    assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
    let _status = agent.end(Signal::TERM);
    world.assert_clean();
}

/// What a task has said, or nothing before its start.
fn said(agent: &Agent<'_>, alloc: &Value, task: &str) -> String {
    let id = alloc["ID"].as_str().unwrap();
    let path = format!("/v1/client/fs/logs/{id}?task={task}&type=stdout&plain=true&follow=false");
    Some(agent.ask("GET", &path, "")).filter(|(status, _)| *status == 200).map(|(_, text)| text).unwrap_or_default()
}

#[test]
fn all_tasks_restart_also_those_that_have_ended() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let mut both = job("web", "service", "trap '' INT TERM; echo main; while :; do sleep 1; done", json!({}));
    // It takes all of its time to end.
    both["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = 5_000_000_000_i64.into();
    let mut first = both["TaskGroups"][0]["Tasks"][0].clone();
    first["Name"] = "first".into();
    first["Lifecycle"] = json!({ "Hook": "prestart", "Sidecar": false });
    first["Config"]["args"] = json!(["-c", "echo prepared"]);
    both["TaskGroups"][0]["Tasks"].as_array_mut().unwrap().push(first);
    agent.register(&both);
    let alloc = agent.alloc("web", "running", "");
    let id = alloc["ID"].as_str().unwrap();
    agent.until("it runs", || (said(&agent, &alloc, "t") == "main\n").then_some(()));
    let restart = json!({ "AllTasks": true });
    agent.json("PUT", &format!("/v1/client/allocation/{id}/restart"), &restart);
    agent.until("both ran again", || {
        (said(&agent, &alloc, "t") == "main\nmain\n" && said(&agent, &alloc, "first") == "prepared\nprepared\n")
            .then_some(())
    });
    // Without that, only what runs.
    agent.json("PUT", &format!("/v1/client/allocation/{id}/restart"), &json!({}));
    agent.until("it ran again", || (said(&agent, &alloc, "t") == "main\n".repeat(3)).then_some(()));
    assert_eq!(said(&agent, &alloc, "first"), "prepared\nprepared\n");

    // Killed while the task takes its time to end, the next agent does what the last one was told.
    let mut order = UnixStream::connect(socket(&world)).unwrap();
    let body = restart.to_string();
    write!(
        order,
        "PUT /v1/client/allocation/{id}/restart HTTP/1.1\r\nHost: agent\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    agent.until("the task is told to end", || {
        let now = agent.get(&format!("/v1/allocation/{id}"));
        let events = now["TaskStates"]["t"]["Events"].as_array().unwrap().clone();
        events.last().is_some_and(|event| event["Type"] == "Restart Signaled").then_some(())
    });
    let _status = agent.end(Signal::KILL);
    let agent = Agent::start(&world);
    agent.until("both ran again", || {
        (said(&agent, &alloc, "t") == "main\n".repeat(4) && said(&agent, &alloc, "first") == "prepared\n".repeat(3))
            .then_some(())
    });
    let now = agent.get(&format!("/v1/allocation/{id}"));
    assert_eq!((&now["ClientStatus"], agent.allocs("web").len()), (&json!("running"), 1));
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

#[test]
fn a_sticky_disk_goes_on_in_the_next_allocation() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let script = |count: u32| {
        format!(
            "echo {count} >> local/mine; echo {count} >> ../alloc/data/all; cat local/mine ../alloc/data/all; {WAITS}"
        )
    };
    let disk = json!({ "EphemeralDisk": { "Sticky": true, "SizeMB": 300 } });
    agent.register(&job("web", "service", &script(1), disk.clone()));
    let first = agent.alloc("web", "running", "");
    agent.until("it has written", || (said(&agent, &first, "t") == "1\n1\nup\n").then_some(()));
    agent.register(&job("web", "service", &script(2), disk));
    let second = agent.alloc("web", "running", first["ID"].as_str().unwrap());
    agent.until("it goes on", || (said(&agent, &second, "t") == "1\n2\n1\n2\nup\n").then_some(()));
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

#[test]
fn the_real_command_runs_looks_and_executes() {
    need_root!();
    let Some(nomad) = nomad() else {
        println!("SKIP: the_real_command_runs_looks_and_executes: nomad is not installed; scripts/nomad builds it");
        return;
    };
    let world = World::new();
    let agent = Agent::start(&world);
    let file = world.file(
        "hello.nomad.hcl",
        "job \"hello\" {\n  group \"g\" {\n    update {\n      min_healthy_time = \"0s\"\n    }\n    task \"t\" {\n      \
         driver = \"raw_exec\"\n      config {\n        command = \"/bin/sh\"\n        args = [\"-c\", \"echo hello; exec \
         sleep 1000\"]\n      }\n      resources {\n        cpu = 20\n        memory = 32\n      }\n    }\n  }\n}\n",
    );
    let run = |args: &[&str]| {
        let mut command = Command::new(&nomad);
        command.args(args).env("NOMAD_ADDR", format!("unix://{}", socket(&world).display())).stdin(Stdio::null());
        let out = command.env_remove("NOMAD_TOKEN").output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success(), "nomad {args:?}: {}: {text}\n{}", out.status, agent.log());
        text
    };
    let told = run(&["job", "run", file.to_str().unwrap()]);
    assert!(told.contains("finished with status \"complete\"") && told.contains("successful"), "{told}");
    let alloc = agent.alloc("hello", "running", "");
    let id = alloc["ID"].as_str().unwrap();
    assert!(run(&["job", "status", "hello"]).contains(&id[..8]));
    assert!(run(&["alloc", "status", id]).contains("running"));
    assert_eq!(run(&["alloc", "logs", id]), "hello\n");
    assert_eq!(run(&["alloc", "exec", id, "/bin/echo", "inside"]), "inside\n");
    assert!(run(&["node", "status"]).contains("ready"));
    assert!(run(&["job", "stop", "hello"]).contains("finished with status \"complete\""));
    agent.until("it has ended", || (agent.get("/v1/job/hello")["Status"] == "dead").then_some(()));
    assert_eq!(agent.ask("PUT", "/v1/system/gc", "").0, 200);
    let _status = agent.end(Signal::TERM);
    world.assert_clean();
}

/// A job of the driver exec whose group has the volume `data`, with these members, at `/data`.
fn with_volume(id: &str, script: &str, more: Value) -> Value {
    let mut volume = json!({ "Name": "v", "Type": "host", "Source": "data" });
    let Value::Object(more) = more else { panic!() };
    volume.as_object_mut().unwrap().extend(more);
    let mut job = job(id, "service", script, json!({ "Volumes": { "v": volume } }));
    let task = &mut job["TaskGroups"][0]["Tasks"][0];
    (task["Driver"], task["User"]) = ("exec".into(), "root".into());
    task["VolumeMounts"] = json!([{ "Volume": "v", "Destination": "/data" }]);
    job
}

/// A plugin that kills the agent when it creates its first volume, before it answers.
const KILLER: &str = r#"#!/bin/sh
top="$DHV_PLUGIN_DIR/.."
case "$1" in
fingerprint) echo '{"version": "0.1.0"}' ;;
create)
  mkdir -p "$DHV_VOLUMES_DIR/$DHV_VOLUME_ID"
  echo "$DHV_VOLUME_ID" >>"$top/creates"
  if [ ! -e "$top/killed" ]; then
    : >"$top/killed"
    kill -9 $PPID
  fi
  echo "{\"path\": \"$DHV_VOLUMES_DIR/$DHV_VOLUME_ID\", \"bytes\": 4096}" ;;
delete) rm -rf "$DHV_CREATED_PATH" ;;
esac
"#;

#[test]
fn f1_a_volume_outlives_kills_and_updates_and_is_deleted_when_nobody_uses_it() {
    need_root!();
    let world = World::new();
    let plugins = world.data_dir().join("host_volume_plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    std::fs::write(plugins.join("killer"), KILLER).unwrap();
    std::fs::set_permissions(plugins.join("killer"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let agent = Agent::start(&world);
    let node = agent.get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    let attributes = agent.get(&format!("/v1/node/{node}"))["Attributes"].clone();
    assert_eq!(attributes["plugins.host_volume.killer.version"], "0.1.0", "{}", agent.log());
    assert_eq!(attributes["plugins.host_volume.mkdir.version"], "0.0.1");
    let body = json!({ "Volume": { "Name": "data", "PluginID": "killer" } }).to_string();
    let mut stream = UnixStream::connect(socket(&world)).unwrap();
    let length = body.len();
    let head = format!("PUT /v1/volume/host/create HTTP/1.1\r\nHost: agent\r\nContent-Length: {length}\r\n\r\n{body}");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _broken = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "it was killed: {}", String::from_utf8_lossy(&answer));
    assert!(!agent.end(Signal::KILL).success());

    let agent = Agent::start(&world);
    let volumes = agent.get("/v1/volumes?type=host");
    assert_eq!((&volumes[0]["State"], volumes.as_array().unwrap().len()), (&json!("ready"), 1), "{}", agent.log());
    let id = volumes[0]["ID"].as_str().unwrap().to_owned();
    let path = format!("/v1/volume/host/{id}");
    let created = std::fs::read_to_string(world.data_dir().join("creates")).unwrap();
    assert_eq!(created, format!("{id}\n{id}\n"), "it was asked again for the same one");
    let shown = agent.get(&path);
    let dir = PathBuf::from(shown["HostPath"].as_str().unwrap());
    assert_eq!((dir.is_dir(), &shown["CapacityBytes"]), (true, &json!(4096)));

    let script = |number: u32| format!("cat /data/kept; echo {number} >>/data/kept; {WAITS}");
    let sticky = json!({ "Sticky": true });
    agent.register(&with_volume("web", &script(1), sticky.clone()));
    let first = agent.alloc("web", "running", "");
    agent.until("it has written", || said(&agent, &first, "t").ends_with("up\n").then_some(()));
    let (status, why) = agent.ask("DELETE", &path, "");
    assert!(status == 500 && why.contains("in use by allocations") && why.contains("web.g[0]"), "{status} {why}");
    agent.register(&with_volume("web", &script(2), sticky));
    let second = agent.alloc("web", "running", first["ID"].as_str().unwrap());
    agent.until("it reads", || (said(&agent, &second, "t") == "1\nup\n").then_some(()));
    let claims = agent.get("/v1/volumes/claims");
    assert_eq!((&claims[0]["AllocID"], claims.as_array().unwrap().len()), (&second["ID"], 1));
    let _killed = agent.end(Signal::KILL);

    let agent = Agent::start(&world);
    assert_eq!(agent.alloc("web", "running", "")["ID"], second["ID"]);
    assert_eq!(agent.get(&path)["Allocations"][0]["ID"], second["ID"]);
    // Its tasks find it again, too.
    let alloc = second["ID"].as_str().unwrap();
    agent.json("PUT", &format!("/v1/client/allocation/{alloc}/restart"), &json!({ "AllTasks": true }));
    agent.until("it reads again", || (said(&agent, &second, "t") == "1\nup\n1\n2\nup\n").then_some(()));
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.until("nobody uses it", || (agent.get(&path)["Allocations"] == json!([])).then_some(()));
    assert_eq!(std::fs::read_to_string(dir.join("kept")).unwrap(), "1\n2\n2\n");
    agent.json("DELETE", &path, &Value::Null);
    assert!(!dir.exists() && agent.ask("GET", &path, "").0 == 404);
    agent.wind_up();
}

#[test]
fn f1_a_volume_is_read_only_where_its_group_says_so_and_waits_for_its_one_writer() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let modes = ["single-node-single-writer", "single-node-reader-only"];
    let capabilities = modes.map(|mode| json!({ "AccessMode": mode, "AttachmentMode": "file-system" }));
    let volume = json!({ "Volume": { "Name": "data", "RequestedCapabilities": capabilities } });
    let made = agent.json("PUT", "/v1/volume/host/create", &volume);
    let id = made["Volume"]["ID"].as_str().unwrap().to_owned();
    let one = json!({ "AccessMode": "single-node-single-writer" });
    agent.register(&with_volume("writer", &format!("echo w >/data/kept; {WAITS}"), one.clone()));
    let writer = agent.alloc("writer", "running", "");
    agent.until("it has written", || said(&agent, &writer, "t").contains("up").then_some(()));
    let reads = format!("cat /data/kept; echo r >>/data/kept || echo refused; {WAITS}");
    agent.register(&with_volume("reader", &reads, json!({ "ReadOnly": true })));
    let reader = agent.alloc("reader", "running", "");
    agent.until("it reads", || said(&agent, &reader, "t").contains("w\nrefused\nup").then_some(()));
    let next = agent.register(&with_volume("next", WAITS, one));
    let eval = next["EvalID"].as_str().unwrap();
    agent.until("it waits", || {
        let failed = agent.get(&format!("/v1/evaluation/{eval}"))["FailedTGAllocs"]["g"].clone();
        (failed["ConstraintFiltered"]["missing compatible host volumes"] == 1).then_some(())
    });
    agent.json("DELETE", "/v1/job/writer?purge=true", &Value::Null);
    agent.alloc("next", "running", "");
    for id in ["reader", "next"] {
        agent.json("DELETE", &format!("/v1/job/{id}?purge=true"), &Value::Null);
    }
    let path = format!("/v1/volume/host/{id}");
    agent.until("it is deleted", || (agent.ask("DELETE", &path, "").0 == 200).then_some(()));
    agent.wind_up();
}

/// J7: an action of a task runs in it, a job is scaled within its bounds, a system job runs once here, and `identity` is accepted.
#[test]
fn j7_actions_scaling_and_kinds_of_jobs_by_the_real_command() {
    need_root!();
    let Some(nomad) = nomad() else {
        println!(
            "SKIP: j7_actions_scaling_and_kinds_of_jobs_by_the_real_command: nomad is not installed; scripts/nomad builds it"
        );
        return;
    };
    let world = World::new();
    let agent = Agent::start(&world);
    let run = |args: &[&str]| {
        let (fine, text) = nomad_says(&nomad, &world, args);
        assert!(fine, "nomad {args:?}: {text}\n{}", agent.log());
        text
    };
    let refused = |args: &[&str], expected: &str| {
        let (fine, text) = nomad_says(&nomad, &world, args);
        assert!(!fine && text.contains(expected), "nomad {args:?}: {text}");
    };
    let text = r#"
job "KIND" {
  type = "KIND"
  group "g" {
    SCALING
    task "t" {
      driver = "raw_exec"
      identity {
        env = true
      }
      action "greet" {
        command = "/bin/sh"
        args    = ["-c", "echo good morning from $NOMAD_TASK_NAME; exit 3"]
      }
      config {
        command = "/bin/sh"
        args    = ["-c", "SCRIPT"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
"#;
    for (kind, script, scaling, status) in [
        (
            "service",
            "exec sleep 1000",
            "update {\n min_healthy_time = \"0s\"\n}\nscaling {\n min = 1\n max = 2\n}",
            "running",
        ),
        ("system", "exec sleep 1000", "", "running"),
        ("sysbatch", "echo once", "", "complete"),
    ] {
        let text = text.replace("KIND", kind).replace("SCRIPT", script).replace("SCALING", scaling);
        let file = world.file(&format!("{kind}.nomad.hcl"), &text);
        run(&["job", "run", "-detach", file.to_str().unwrap()]);
        agent.alloc(kind, status, "");
        assert_eq!(agent.allocs(kind).len(), 1, "{kind}");
    }
    let id = agent.allocs("service")[0]["ID"].as_str().unwrap().to_owned();
    let of = ["-i=false", "-t=false", "-job", "service", "-alloc", &id, "-group", "g", "-task", "t"];
    let (fine, told) = nomad_says(&nomad, &world, &[&["action"], &of[..], &["greet"]].concat());
    assert!(!fine && told.contains("good morning from t"), "{told}");
    refused(&[&["action"], &of[..], &["none"]].concat(), "not found");
    agent.until("its deployment is done", || {
        (agent.get("/v1/job/service/deployment")["Status"] == "successful").then_some(())
    });
    run(&["job", "scale", "-detach", "service", "g", "2"]);
    agent.until("there are two", || {
        let runs = |alloc: &&Value| alloc["ClientStatus"] == "running";
        (agent.allocs("service").iter().filter(runs).count() == 2).then_some(())
    });
    refused(&["job", "scale", "-detach", "service", "g", "3"], "2");
    for kind in ["service", "system", "sysbatch"] {
        run(&["job", "stop", "-detach", "-purge", kind]);
    }
    agent.wind_up();
}

#[test]
fn f1_the_real_command_makes_shows_and_removes_volumes() {
    need_root!();
    let Some(nomad) = nomad() else {
        println!(
            "SKIP: f1_the_real_command_makes_shows_and_removes_volumes: nomad is not installed; scripts/nomad builds it"
        );
        return;
    };
    let world = World::new();
    let agent = Agent::start(&world);
    let run = |args: &[&str]| {
        let (fine, text) = nomad_says(&nomad, &world, args);
        assert!(fine, "nomad {args:?}: {text}\n{}", agent.log());
        text
    };
    let refused = |args: &[&str], expected: &str| {
        let (fine, text) = nomad_says(&nomad, &world, args);
        assert!(!fine && text.contains(expected), "nomad {args:?}: {text}");
    };
    let example = world.path("example.hcl");
    let init = ["volume", "init", "-type", "host", example.to_str().unwrap()];
    assert!(run(&init).contains("Example volume specification"));
    refused(&init, "already exists");
    // Its id is nobody's.
    refused(&["volume", "create", example.to_str().unwrap()], "volume does not exist");

    let file = world.file(
        "data.hcl",
        "type = \"host\"\nname = \"data\"\nplugin_id = \"mkdir\"\ncapacity_max = \"1GiB\"\n\
         capability {\n  access_mode = \"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n\
         constraint {\n  attribute = \"${attr.kernel.name}\"\n  value = \"linux\"\n}\n\
         parameters {\n  mode = \"0750\"\n}\n",
    );
    let file = file.to_str().unwrap();
    assert!(run(&["volume", "create", file]).contains("Created host volume data with ID "));
    refused(&["volume", "create", file], "it has a volume of this name already");
    let shown = agent.get("/v1/volumes?type=host")[0].clone();
    let (id, node) = (shown["ID"].as_str().unwrap(), shown["NodeID"].as_str().unwrap());
    assert!(run(&["volume", "create", "-id", &id[..8], file]).contains(id), "it is the same one");
    let listed = run(&["volume", "status", "-type", "host"]);
    assert!(listed.contains(&id[..8]) && listed.contains("mkdir") && listed.contains("ready"), "{listed}");
    let one = run(&["volume", "status", "-type", "host", "data"]);
    assert!(one.contains(id) && one.contains("single-node-writer") && one.contains("Host Path"), "{one}");
    assert!(run(&["volume", "status", &id[..8]]).contains(id), "found without its type");
    assert!(run(&["volume", "status"]).contains("No CSI volumes"));
    refused(&["volume", "status", "-type", "host", "none"], "no volumes with prefix or ID \"none\" found");
    assert!(run(&["node", "status", "-verbose", &node[..8]]).contains(id), "the node has it");

    let srv = world.path("srv");
    let registered = world.file(
        "srv.hcl",
        &format!("type = \"host\"\nname = \"srv\"\nnode_id = \"{node}\"\nhost_path = \"{}\"\n", srv.display()),
    );
    let registered = registered.to_str().unwrap();
    refused(&["volume", "register", registered], "cannot use the directory");
    std::fs::create_dir(&srv).unwrap();
    assert!(run(&["volume", "register", registered]).contains("Registered host volume srv with ID "));

    let job = world.file(
        "job.hcl",
        "job \"web\" {\n  group \"g\" {\n    volume \"v\" {\n      type = \"host\"\n      source = \"data\"\n      sticky = \
         true\n    }\n    update {\n      min_healthy_time = \"0s\"\n    }\n    task \"t\" {\n      driver = \"exec\"\n      user = \
         \"root\"\n      volume_mount {\n        volume = \"v\"\n        destination = \"/data\"\n      }\n      config {\n        \
         command = \"/bin/sh\"\n        args = [\"-c\", \"echo hello >/data/kept; exec sleep 1000\"]\n      }\n      resources {\n        \
         cpu = 20\n        memory = 32\n      }\n    }\n  }\n}\n",
    );
    let told = run(&["job", "run", job.to_str().unwrap()]);
    assert!(told.contains("successful"), "{told}");
    let alloc = agent.alloc("web", "running", "")["ID"].as_str().unwrap().to_owned();
    assert!(run(&["volume", "status", "-type", "host", id]).contains(&alloc[..8]));
    let delete = ["volume", "delete", "-type", "host", id];
    refused(&delete, "in use by allocations");
    let claims = run(&["volume", "claim", "list"]);
    assert!(claims.contains("web") && claims.contains("data"), "{claims}");
    let claim = agent.get("/v1/volumes/claims")[0]["ID"].as_str().unwrap().to_owned();
    run(&["volume", "claim", "delete", "-y", &claim]);
    refused(&["volume", "claim", "delete", "-y", &claim], "not found");
    run(&["job", "stop", "-purge", "web"]);
    agent.until("nobody uses it", || {
        (agent.get(&format!("/v1/volume/host/{id}"))["Allocations"] == json!([])).then_some(())
    });
    assert!(run(&delete).contains("Successfully deleted volume"));
    refused(&delete, "no such volume");
    run(&["volume", "delete", "-type", "host", "srv"]);
    assert!(srv.is_dir(), "nobody deletes what was only registered");
    assert!(run(&["volume", "status", "-type", "host"]).contains("No dynamic host volumes"));
    agent.wind_up();
}

/// A connection that is being made.
fn connecting(port: u16) -> std::net::TcpStream {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    match connect(&socket, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => socket.into(),
        Err(error) => panic!("connect: {error}"),
    }
}

/// Ten thousand connections, each with as much of a header as it gets rid of, and never its end: the agent stays small, its task
/// goes on, and who comes by the socket is answered.
#[test]
fn ten_thousand_connections_take_little_of_the_agent_and_nothing_of_its_tasks() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    need_root!();
    let world = World::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let agent = Agent::start_with(&world, &["--listen", &format!("tcp://127.0.0.1:{port}")]);
    agent.register(&job("web", "service", &format!("echo pid $$; {WAITS}"), json!({})));
    let alloc = agent.alloc("web", "running", "");
    let pid = pid_of(&agent, &alloc, "t");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
    let count = limit.maximum.map_or(10_000, |most| most.saturating_sub(200).min(10_000));
    assert!(count >= 1000, "{count} descriptors are too few for this test");
    let head = format!("GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {}", "x".repeat(60_000));
    let mut open: Vec<_> = (0..count).map(|_| (connecting(port), 0)).collect();
    let mut most = 0;
    for _ in 0..20 {
        for (socket, written) in &mut open {
            // Of one that is not accepted yet, or was closed, nothing is taken.
            *written += socket.write(&head.as_bytes()[*written..]).unwrap_or(0);
        }
        // Answered after what was sent before has been read.
        agent.get("/v1/jobs");
        most = most.max(own_memory(&agent));
    }
    println!("{count} connections: {most} KiB");
    assert!(open.iter().filter(|(_, written)| *written == head.len()).count() >= 100, "nobody was accepted");
    assert!(most <= 40 << 10, "{most} KiB");
    assert!(lives(&pid));
    drop(open);
    let token = std::fs::read_to_string(world.data_dir().join("token")).unwrap();
    agent.until("it answers over TCP again", || {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(seconds(60))).unwrap();
        let host = "Host: 127.0.0.1\r\nConnection: close";
        let asked = format!("GET /v1/jobs HTTP/1.1\r\n{host}\r\nX-Nomad-Token: {}\r\n\r\n", token.trim());
        stream.write_all(asked.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    });
    assert_eq!(agent.alloc("web", "running", "")["ID"], alloc["ID"]);
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

/// N8: the session of a client that has vanished, and answers no ping, ends within half a minute, with its process.
#[test]
fn n8_the_session_of_a_vanished_client_ends() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    agent.register(&job("web", "service", WAITS, json!({})));
    let alloc = agent.alloc("web", "running", "");
    let mut client = UnixStream::connect(socket(&world)).unwrap();
    client.set_read_timeout(Some(seconds(90))).unwrap();
    let path = format!("/v1/client/allocation/{}/exec?task=t&tty=false", alloc["ID"].as_str().unwrap());
    let head = format!(
        "GET {path}&command=%5B%22sleep%22%2C%224711%22%5D HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    );
    client.write_all(head.as_bytes()).unwrap();
    let is_it = |process: &procfs::process::Process| {
        process.cmdline().is_ok_and(|words| words.last().is_some_and(|word| word == "4711"))
    };
    let sleeps = || procfs::process::all_processes().unwrap().flatten().any(|process| is_it(&process));
    let mut said = vec![0; 12];
    client.read_exact(&mut said).unwrap();
    assert_eq!(said, b"HTTP/1.1 101");
    agent.until("the command runs", || sleeps().then_some(()));
    client.read_to_end(&mut said).unwrap();
    agent.until("the command has ended", || (!sleeps()).then_some(()));
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

/// N8: who follows the agent's log gets the level that was asked for, whatever the agent itself writes.
#[test]
fn n8_the_log_is_followed_at_a_level_of_its_own() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let mut follower = UnixStream::connect(socket(&world)).unwrap();
    follower.set_read_timeout(Some(seconds(60))).unwrap();
    follower.write_all(b"GET /v1/agent/monitor?log_level=debug&plain=true HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut follower = std::io::BufReader::new(follower);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert_ne!(follower.read_line(&mut line).unwrap(), 0);
    }
    // What the agent says of it at its own level is nothing.
    UnixStream::connect(socket(&world)).unwrap().write_all(b"nonsense\r\n\r\n").unwrap();
    while !line.contains("[DEBUG]") {
        line.clear();
        assert_ne!(follower.read_line(&mut line).unwrap(), 0);
    }
    assert!(!agent.log().contains("[DEBUG]"), "{}", agent.log());
    drop(follower);
    agent.wind_up();
}

/// A4, P3: the agent's driver plugins run tasks, which outlive a killed agent with its plugins, and are found again.
#[test]
fn a4_tasks_of_a_driver_plugin_outlive_the_agent() {
    need_root!();
    let example = Path::new(env!("CARGO_BIN_EXE_agentbin")).with_file_name("examples").join("external_driver");
    if !example.exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{} is missing", example.display());
        println!(
            "SKIP: a4_tasks_of_a_driver_plugin_outlive_the_agent: the example is not built: cargo build --examples"
        );
        return;
    }
    let world = World::new();
    let dir = world.path("plugins");
    std::fs::create_dir(&dir).unwrap();
    world::copy_program(&example, &dir.join("script"));
    let with = ["--plugin-dir", dir.to_str().unwrap()];
    let agent = Agent::start_with(&world, &with);
    let nodes = agent.get("/v1/nodes");
    let node = agent.get(&format!("/v1/node/{}", nodes[0]["ID"].as_str().unwrap()));
    assert_eq!(node["Drivers"]["script"]["Healthy"], true, "{node}");
    let script = "echo pid $$; trap 'exit 0' INT TERM; while :; do sleep 1 & wait $!; done";
    let mut plugged = job("plugged", "service", "", json!({}));
    let task = &mut plugged["TaskGroups"][0]["Tasks"][0];
    task["Driver"] = "script".into();
    task["Config"] = json!({ "text": script });
    agent.register(&plugged);
    let alloc = agent.alloc("plugged", "running", "");
    agent.until("its output is there", || agent.output(&alloc, "t").contains("pid ").then_some(()));
    agent.end(Signal::KILL);

    let agent = Agent::start_with(&world, &with);
    let again = agent.alloc("plugged", "running", "");
    assert_eq!(again["ID"], alloc["ID"]);
    let states = &again["TaskStates"]["t"];
    assert_eq!((&states["State"], &states["Restarts"]), (&"running".into(), &0.into()), "{states}");
    assert_eq!(agent.output(&again, "t").matches("pid ").count(), 1, "{}", agent.log());
    agent.json("DELETE", "/v1/job/plugged", &Value::Null);
    agent.wind_up();
}

/// An agent whose program is at a path of its own, where another file can be put. `AGENTBIN_BEFORE` is the program of an earlier
/// commit, if the agent is to be that one before it is upgraded.
struct Upgrading<'a> {
    world: &'a World,
    program: PathBuf,
}

impl<'a> Upgrading<'a> {
    fn new(world: &'a World) -> Upgrading<'a> {
        let bin = world.path("bin");
        std::fs::create_dir(&bin).unwrap();
        let upgrading = Upgrading { world, program: bin.join("agentbin") };
        let before = std::env::var("AGENTBIN_BEFORE");
        upgrading.put_link(before.as_deref().unwrap_or(env!("CARGO_BIN_EXE_agentbin")));
        upgrading
    }

    /// As a package manager does it: the new file takes the place of the old one at once.
    fn put(&self, next: &Path) {
        std::fs::rename(next, &self.program).unwrap();
    }

    fn put_program(&self) {
        self.put_link(env!("CARGO_BIN_EXE_agentbin"));
    }

    fn put_link(&self, to: &str) {
        let next = self.program.with_extension("new");
        std::os::unix::fs::symlink(to, &next).unwrap();
        self.put(&next);
    }

    fn put_script(&self, text: &str) {
        use std::os::unix::fs::PermissionsExt as _;
        let next = self.program.with_extension("new");
        std::fs::write(&next, text).unwrap();
        std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o755)).unwrap();
        self.put(&next);
    }

    fn start(&self, args: &[&str]) -> Agent<'a> {
        Agent::start_command(self.world, command_of(&self.program, self.world).args(args))
    }

    fn upgrade(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(["agent", "upgrade", "--socket"]).arg(socket(self.world)).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Whether it was upgraded, and what was said.
    fn upgraded(&self) -> (bool, String) {
        let out = self.upgrade().output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        (out.status.success(), said)
    }
}

/// Whether this process is an agent that has taken over from another program.
fn has_taken_over(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().windows(9).any(|w| w == b"--inherit")
}

/// One request over TCP or the socket, on a connection of its own; the first line of its answer.
fn first_line(mut stream: impl std::io::Read + std::io::Write, token: &str) -> std::io::Result<String> {
    let asked =
        format!("GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Nomad-Token: {token}\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

/// Ends the threads of a test, also when it fails.
struct SetAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// N8: under a load of connects by both kinds of sockets, none is refused and each request answered; the task, its job, the token
/// and what is known of both stay; who follows an output is told; and so a second time.
#[test]
fn n8_an_upgrade_refuses_no_connect_and_keeps_all() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    need_root!();
    let world = World::new();
    let upgrading = Upgrading::new(&world);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let agent = upgrading.start(&["--listen", &format!("tcp://127.0.0.1:{port}")]);
    agent.register(&job("web", "service", &format!("echo pid $$; {WAITS}"), json!({})));
    let mut inner =
        job("inner", "service", "trap 'echo signalled' USR1; echo pid $$; while :; do sleep 0.1; done", json!({}));
    inner["TaskGroups"][0]["Tasks"][0]["Driver"] = "exec".into();
    agent.register(&inner);
    let isolated = agent.alloc("inner", "running", "");
    let alloc = agent.alloc("web", "running", "");
    let pid = pid_of(&agent, &alloc, "t");
    let token = std::fs::read_to_string(world.data_dir().join("token")).unwrap().trim().to_owned();
    let index = agent.get("/v1/job/web")["JobModifyIndex"].clone();

    let mut following = UnixStream::connect(socket(&world)).unwrap();
    following.set_read_timeout(Some(seconds(60))).unwrap();
    let id = alloc["ID"].as_str().unwrap();
    let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&follow=true&origin=start");
    following.write_all(format!("GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n").as_bytes()).unwrap();

    let (done, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for by_tcp in [false, true, false, true] {
            let (world, token, done, answered) = (&world, &token, &done, &answered);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let line = if by_tcp {
                        let stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connect was refused");
                        stream.set_read_timeout(Some(seconds(60))).unwrap();
                        first_line(stream, token)
                    } else {
                        let stream = UnixStream::connect(socket(world)).expect("a connect was refused");
                        stream.set_read_timeout(Some(seconds(60))).unwrap();
                        first_line(stream, token)
                    };
                    let line = line.expect("a request was not answered");
                    assert_eq!(line, "HTTP/1.1 200 OK");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _done = SetAtEnd(&done);
        for round in ["first", "second"] {
            upgrading.put_program();
            let before = answered.load(Ordering::Relaxed);
            let (upgraded, said) = upgrading.upgraded();
            assert!(upgraded && said.contains("upgraded to agentbin"), "{round}: {said}\n{}", agent.log());
            assert!(has_taken_over(agent.child.id()), "{round}");
            agent.until("there are further answers", || (answered.load(Ordering::Relaxed) > before + 8).then_some(()));
        }
    });
    let mut told = String::new();
    following.read_to_string(&mut told).unwrap();
    assert!(told.contains("connect again") && told.ends_with("0\r\n\r\n"), "{told}");

    let again = agent.alloc("web", "running", "");
    assert_eq!((&again["ID"], agent.allocs("web").len()), (&alloc["ID"], 1));
    assert_eq!((&again["TaskStates"]["t"]["Restarts"], pid_of(&agent, &again, "t")), (&json!(0), pid.clone()));
    assert_eq!(agent.get("/v1/job/web")["JobModifyIndex"], index);
    assert!(!world.data_dir().join("upgrade").exists(), "the copy of the state is left");
    // The executors of the program before do what is asked of them.
    for (alloc, driver) in [(&alloc, "raw_exec"), (&isolated, "exec")] {
        let id = alloc["ID"].as_str().unwrap();
        let told = own_command(&world, &["alloc", "exec", id, "echo", "here"], "");
        assert!(told.status == 0 && told.stdout.starts_with("here "), "{driver}: {told:?}\n{}", agent.log());
        let stats = agent.get(&format!("/v1/client/allocation/{id}/stats"));
        assert!(stats["ResourceUsage"]["MemoryStats"]["RSS"].as_u64().unwrap() > 0, "{driver}: {stats:#}");
    }
    let id = isolated["ID"].as_str().unwrap();
    agent.json("PUT", &format!("/v1/client/allocation/{id}/signal"), &json!({ "Signal": "SIGUSR1" }));
    agent.until("the signal is there", || agent.output(&isolated, "t").contains("signalled").then_some(()));
    assert_eq!(agent.get(&format!("/v1/allocation/{id}"))["TaskStates"]["t"]["Restarts"], 0);
    agent.json("DELETE", "/v1/job/inner?purge=true", &Value::Null);
    // What the program before started is ended, and leaves nothing of this process's children.
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.until("the task has ended", || (!lives(&pid)).then_some(()));
    let own = agent.child.id();
    agent.until("no child that has ended is left", || {
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        children.trim().is_empty().then_some(())
    });
    agent.wind_up();
}

/// N8: whatever is wrong with the new file, the agent stays as it is, and says to whom asked why.
#[test]
fn n8_a_file_that_cannot_take_over_leaves_the_agent_as_it_is() {
    need_root!();
    let world = World::new();
    let upgrading = Upgrading::new(&world);
    let agent = upgrading.start(&[]);
    agent.register(&job("web", "service", &format!("echo pid $$; {WAITS}"), json!({})));
    let alloc = agent.alloc("web", "running", "");
    let pid = pid_of(&agent, &alloc, "t");
    let real = env!("CARGO_BIN_EXE_agentbin");
    let refused = |why: &str| {
        let (upgraded, said) = upgrading.upgraded();
        assert!(!upgraded && said.contains("not upgraded") && said.contains(why), "{why}: {said}");
        assert!(agent.log().contains(why), "{}", agent.log());
        assert!(!has_taken_over(agent.child.id()));
        assert!(!world.data_dir().join("upgrade").exists(), "the copy of the state is left");
        assert_eq!(agent.alloc("web", "running", "")["ID"], alloc["ID"]);
    };
    // A text, which is taken for a script.
    upgrading.put_script("no program");
    refused("not found");
    upgrading.put_script("#!/bin/sh\necho a library is missing >&2\nexit 127\n");
    refused("a library is missing");
    std::fs::remove_file(&upgrading.program).unwrap();
    refused("No such file");
    // One that does not know what this one hands on, as an older release.
    upgrading.put_script("#!/bin/sh\nfor word; do [ \"$word\" != --check-state ] || set -- agent --no-such-flag; done\nexec REAL \"$@\"\n".replace("REAL", real).as_str());
    refused("--no-such-flag");
    // One that cannot read the state: only the copy is looked at.
    upgrading.put_script(
        "#!/bin/sh\nfor copy; do :; done\necho garbage >\"$copy/state.redb\"\nexec REAL \"$@\"\n"
            .replace("REAL", real)
            .as_str(),
    );
    refused("upgrade/state.redb");
    // A configuration with a mistake.
    upgrading.put_program();
    world.file("agent.hcl", "client {\n  host_volumes \"x\" {}\n}\n");
    refused("agent.hcl:2: unsupported key");
    world.file("agent.hcl", CONFIG);
    // By hand, beside the agent that has the state open.
    let checked = |text: &str| {
        world.file("agent.hcl", text);
        let mut check = Command::new(real);
        check
            .args(["agent", "--check", "--data-dir"])
            .arg(world.data_dir())
            .arg("--config")
            .arg(world.path("agent.hcl"));
        let out = check.output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (done, said) = checked(CONFIG);
    assert!(done, "{said}");
    let (done, said) = checked("nonsense {}\n");
    assert!(!done && said.contains("nonsense"), "{said}");
    world.file("agent.hcl", CONFIG);
    // By a signal there is only the log.
    agent.signal(Signal::USR2);
    agent.until("it is upgraded", || has_taken_over(agent.child.id()).then_some(()));
    agent.until("it says so", || agent.log().contains("has taken over").then_some(()));
    assert_eq!(pid_of(&agent, &agent.alloc("web", "running", ""), "t"), pid);
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

/// N8: the agent is killed at each step of an upgrade, and the next one finds all: the task was never touched.
#[test]
fn n8_an_agent_that_is_killed_at_any_step_of_an_upgrade_comes_back() {
    need_root!();
    let world = World::new();
    let upgrading = Upgrading::new(&world);
    let mut agent = upgrading.start(&[]);
    agent.register(&job("web", "service", &format!("echo pid $$; {WAITS}"), json!({})));
    let alloc = agent.alloc("web", "running", "");
    let pid = pid_of(&agent, &alloc, "t");
    let trial = world.path("trial");
    let hangs = format!("#!/bin/sh\necho $$ >{0}.new\nmv {0}.new {0}\nexec sleep 1000\n", trial.display());
    for step in ["the new program is tried", "the answer is there", "the new program begins", "it has begun"] {
        let own = agent.child.id();
        let is_tried = step == "the new program is tried";
        if is_tried {
            upgrading.put_script(&hangs);
        } else {
            upgrading.put_program();
        }
        let mut asked = upgrading.upgrade().spawn().unwrap();
        let deadline = Instant::now() + seconds(60);
        let mut tried = String::new();
        loop {
            let reached = match step {
                "the new program is tried" => {
                    tried = std::fs::read_to_string(&trial).unwrap_or_default();
                    !tried.is_empty()
                }
                "the answer is there" => agent.log().contains("another program takes over"),
                "the new program begins" => has_taken_over(own),
                _ => asked.try_wait().unwrap().is_some(),
            };
            if reached {
                break;
            }
            assert!(Instant::now() < deadline, "{step}: {}", agent.log());
        }
        let _status = agent.end(Signal::KILL);
        let _told = asked.wait_with_output().unwrap();
        assert!(lives(&pid), "{step}");
        upgrading.put_program();
        std::fs::remove_file(world.path("agent.log")).unwrap();
        agent = upgrading.start(&[]);
        let again = agent.alloc("web", "running", "");
        assert_eq!((&again["ID"], agent.allocs("web").len()), (&alloc["ID"], 1), "{step}");
        assert_eq!(
            (&again["TaskStates"]["t"]["Restarts"], pid_of(&agent, &again, "t")),
            (&json!(0), pid.clone()),
            "{step}"
        );
        assert!(!world.data_dir().join("upgrade").exists(), "{step}: the copy of the state is left");
        if is_tried {
            assert!(!lives(tried.trim()), "the trial goes on without its agent");
        }
    }
    agent.json("DELETE", "/v1/job/web?purge=true", &Value::Null);
    agent.wind_up();
}

/// N8: a signal that asks for the end while the agent hands over is not lost.
#[test]
fn n8_an_agent_that_hands_over_can_be_ended() {
    need_root!();
    let world = World::new();
    let upgrading = Upgrading::new(&world);
    let mut agent = upgrading.start(&[]);
    // The agent waits some seconds for the end of this request.
    let mut slow = UnixStream::connect(socket(&world)).unwrap();
    slow.write_all(b"PUT /v1/jobs HTTP/1.1\r\nHost: agent\r\nContent-Length: 100\r\n\r\n{").unwrap();
    agent.get("/v1/jobs");
    agent.signal(Signal::USR2);
    agent.until("it hands over", || agent.log().contains("another program takes over").then_some(()));
    agent.signal(Signal::TERM);
    world::wait_within(&mut agent.child, seconds(60));
    let status = agent.child.wait().unwrap();
    assert!(status.success() && !agent.log().contains("has taken over"), "{status}: {}", agent.log());
    world.assert_clean();
}

/// The status and the answer of one request with a token.
fn asked_with(mut stream: impl std::io::Read + std::io::Write, ask: (&str, &str, &str), token: &str) -> (u16, String) {
    let (method, path, body) = ask;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nX-Nomad-Token: {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// N8: tokens by the command line: their secrets are kept nowhere, each does what its role may, and a revoked one does nothing; the
/// group of the socket has its role, and nobody else comes in.
#[test]
fn n8_tokens_and_the_group_of_the_socket_have_their_roles() {
    need_root!();
    let world = World::new();
    let (member, stranger) = (world::plain_user(0), world::plain_user(1));
    let volume = world.path("volume");
    std::fs::create_dir(&volume).unwrap();
    let rules = |role: &str| {
        format!(
            "{CONFIG}client {{\n  host_volume \"data\" {{\n    path = \"{}\"\n  }}\n}}\napi {{\n  socket_group = \"{member}\"\n  \
             socket_role = \"{role}\"\n  submit_volumes = [\"data\"]\n}}\n",
            volume.display()
        )
    };
    let more = world.file("rules.hcl", &rules("submit"));
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("tcp://127.0.0.1:{port}");
    let with = ["--config", more.to_str().unwrap(), "--listen", listen.as_str()];
    let agent = Agent::start_with(&world, &with);
    let at = socket(&world);
    let token = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_agentbin"))
            .arg("token")
            .args(args)
            .arg("--socket")
            .arg(&at)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned(), said)
    };
    let made = |role: &str| {
        let (done, secret, said) = token(&["create", "--role", role, "--name", role, "--ttl", "1h"]);
        assert!(done, "{said}");
        (secret.trim().to_owned(), said.trim().rsplit(' ').next().unwrap().to_owned())
    };
    let tokens = ["read", "submit", "manage"].map(made);
    let (_, list, _) = token(&["list"]);
    for ((secret, accessor), role) in tokens.iter().zip(["read", "submit", "manage"]) {
        assert!(list.lines().any(|line| line.contains(accessor) && line.contains(role)), "{list}");
        assert!(!list.contains(secret));
        for file in ["state.redb", "state.key"] {
            let kept = std::fs::read(world.data_dir().join("server").join(file)).unwrap();
            assert!(!kept.windows(secret.len()).any(|w| w == secret.as_bytes()), "{file} has a secret");
        }
    }
    assert!(!token(&["create", "--role", "root"]).0);

    let tcp = || std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let register =
        |job: &Value, token: &str| asked_with(tcp(), ("PUT", "/v1/jobs", &json!({ "Job": job }).to_string()), token);
    let isolated = |volume: &str| {
        let mut isolated = job("isolated", "service", WAITS, json!({}));
        isolated["TaskGroups"][0]["Tasks"][0]["Driver"] = "exec".into();
        isolated["TaskGroups"][0]["Volumes"] = json!({ "v": { "Name": "v", "Type": "host", "Source": volume } });
        isolated
    };
    let [read, submit, manage] = tokens.clone().map(|(secret, _)| secret);
    for (secret, isolated_job, other_volume, raw) in
        [(&read, 403, 403, 403), (&submit, 200, 403, 403), (&manage, 200, 200, 200)]
    {
        assert_eq!(asked_with(tcp(), ("GET", "/v1/jobs", ""), secret).0, 200);
        let told = [isolated("data"), isolated("other"), job("raw", "batch", "true", json!({}))]
            .map(|job| register(&job, secret));
        assert_eq!(told.clone().map(|(status, _)| status), [isolated_job, other_volume, raw], "{told:?}");
    }
    let (status, text) = register(&job("raw", "batch", "true", json!({})), &submit);
    assert!(status == 403 && text.contains("the driver raw_exec needs the role manage"), "{text}");
    let accessor = &tokens[2].1;
    assert!(token(&["revoke", accessor]).0);
    let (done, _, said) = token(&["revoke", accessor]);
    assert!(!done && said.contains("404"), "{said}");
    assert_eq!(asked_with(tcp(), ("GET", "/v1/jobs", ""), &manage).0, 403);

    // Members of the group have its role, others do not come in.
    let by = |user: u32| {
        let out = world.command_as(user, &["token", "list", "--socket"]).arg(&at).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (done, said) = by(member);
    assert!(!done && said.contains("the agent says 403"), "{said}");
    let (done, said) = by(stranger);
    assert!(!done && said.contains("Permission denied") && !said.contains("403"), "{said}");
    world.file("rules.hcl", &rules("manage"));
    let out =
        Command::new(env!("CARGO_BIN_EXE_agentbin")).args(["agent", "upgrade", "--socket"]).arg(&at).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (done, said) = by(member);
    assert!(done, "{said}");
    assert!(!by(stranger).0);
    for id in ["isolated", "raw"] {
        agent.json("DELETE", &format!("/v1/job/{id}?purge=true"), &Value::Null);
    }
    agent.wind_up();
}

fn pem(what: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

type Authority = rcgen::CertifiedIssuer<'static, rcgen::KeyPair>;

/// A certificate of an authority for `localhost`, and its key, in files of the world.
fn certificate(world: &World, name: &str, authority: &Authority) -> (PathBuf, PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let signed = params.signed_by(&key, authority).unwrap();
    let certificate = world.file(&format!("{name}.pem"), &pem("CERTIFICATE", signed.der()));
    (certificate, world.file(&format!("{name}.key"), &pem("PRIVATE KEY", &key.serialize_der())))
}

fn authority() -> Authority {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap()
}

/// The status of a request over TLS to `localhost`; an error where the two do not accept each other.
fn over_tls(port: u16, ca: &Path, own: Option<&(PathBuf, PathBuf)>, token: &str) -> std::io::Result<String> {
    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    let name = ServerName::try_from("localhost").unwrap();
    let connection = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    let tcp = std::net::TcpStream::connect(("127.0.0.1", port))?;
    tcp.set_read_timeout(Some(seconds(60)))?;
    first_line(rustls::StreamOwned::new(connection, tcp), token)
}

/// N8: beyond loopback there is only TLS, by Nomad's words; whoever has no certificate is refused where the agent asks for one, a
/// token is needed in any case, and an upgrade changes none of that.
#[test]
fn n8_beyond_loopback_there_is_only_tls() {
    need_root!();
    let world = World::new();
    let port = free_port();
    let everywhere = format!("tcp://0.0.0.0:{port}");
    let listen = ["--listen", everywhere.as_str()];
    let out = command(&world).args(listen).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("beyond this machine the API needs TLS"), "{said}");
    let out = command(&world).args(listen).arg("--check").output().unwrap();
    assert!(!out.status.success(), "the check does not see it");

    let (ours, other) = (authority(), authority());
    let ca = world.file("ca.pem", &pem("CERTIFICATE", ours.der()));
    let (server, key) = certificate(&world, "server", &ours);
    let client = certificate(&world, "client", &ours);
    let foreign = certificate(&world, "foreign", &other);
    let tls = |verify: bool| {
        format!(
            "tls {{\n  http = true\n  cert_file = \"{}\"\n  key_file = \"{}\"\n  ca_file = \"{}\"\n  \
             verify_https_client = {verify}\n}}\nadvertise {{\n  http = \"localhost\"\n}}\n",
            server.display(),
            key.display(),
            ca.display()
        )
    };
    let file = world.file("tls.hcl", &tls(false));
    let with = ["--config", file.to_str().unwrap(), listen[0], listen[1]];
    let agent = Agent::start_with(&world, &with);
    // The socket is there before the agent answers, and the token between the two.
    let node = agent.get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    let node = agent.get(&format!("/v1/node/{node}"));
    let token = std::fs::read_to_string(world.data_dir().join("token")).unwrap().trim().to_owned();
    // Clients of the socket go on with the socket.
    assert_eq!((&node["HTTPAddr"], &node["TLSEnabled"]), (&json!(""), &json!(true)));
    assert_eq!(over_tls(port, &ca, None, &token).unwrap(), "HTTP/1.1 200 OK");
    assert_eq!(over_tls(port, &ca, None, "").unwrap(), "HTTP/1.1 403 Forbidden");
    let foreign_ca = world.file("foreign-ca.pem", &pem("CERTIFICATE", other.der()));
    over_tls(port, &foreign_ca, None, &token).unwrap_err();
    // Without TLS nothing is answered.
    let plain = first_line(std::net::TcpStream::connect(("127.0.0.1", port)).unwrap(), &token);
    assert!(!plain.unwrap_or_default().contains("HTTP"));

    world.file("tls.hcl", &tls(true));
    let upgrade = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        let out = command.args(["agent", "upgrade", "--socket"]).arg(socket(&world)).output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    let (done, said) = upgrade();
    assert!(done, "{said}");
    over_tls(port, &ca, None, &token).unwrap_err();
    over_tls(port, &ca, Some(&foreign), &token).unwrap_err();
    assert_eq!(over_tls(port, &ca, Some(&client), &token).unwrap(), "HTTP/1.1 200 OK");
    if let Some(nomad) = nomad() {
        let status = |vars: &[(&str, &Path)]| {
            let mut command = Command::new(&nomad);
            command.args(["node", "status"]).env("NOMAD_ADDR", format!("https://localhost:{port}"));
            command.env("NOMAD_TOKEN", &token).envs(vars.iter().copied()).stdin(Stdio::null());
            let out = command.output().unwrap();
            (
                out.status.success(),
                format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)),
            )
        };
        let own = [("NOMAD_CLIENT_CERT", client.0.as_path()), ("NOMAD_CLIENT_KEY", client.1.as_path())];
        let (done, told) = status(&[("NOMAD_CACERT", ca.as_path()), own[0], own[1]]);
        assert!(done && told.contains("ready"), "{told}");
        assert!(!status(&[("NOMAD_CACERT", ca.as_path())]).0);
        assert!(!status(&own).0);
    }
    // With the certificate gone there is no upgrade, and none without TLS.
    std::fs::remove_file(&server).unwrap();
    let (done, said) = upgrade();
    assert!(!done && said.contains("server.pem"), "{said}");
    world.file("tls.hcl", "");
    let (done, said) = upgrade();
    assert!(!done && said.contains("needs TLS"), "{said}");
    assert_eq!(over_tls(port, &ca, Some(&client), &token).unwrap(), "HTTP/1.1 200 OK");
    let _status = agent.end(Signal::TERM);
    world.assert_clean();
}

/// A stream of a task's whole output, which ends with the task.
fn followed(world: &World, alloc: &Value) -> UnixStream {
    let mut stream = UnixStream::connect(socket(world)).unwrap();
    stream.set_read_timeout(Some(seconds(120))).unwrap();
    let id = alloc["ID"].as_str().unwrap();
    let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&plain=true&follow=true&origin=start");
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: agent\r\n\r\n").as_bytes()).unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Compares a stream with what `seq` prints; the number of its bytes.
fn same_as_seq(last: &str, mut stream: UnixStream) -> u64 {
    let mut seq = Command::new("seq").args(["1", last]).stdout(Stdio::piped()).spawn().unwrap();
    let mut expected = seq.stdout.take().unwrap();
    let (mut found, mut wanted, mut total) = (vec![0; 1 << 16], vec![0; 1 << 16], 0);
    loop {
        let read = stream.read(&mut found).unwrap();
        if read == 0 {
            break;
        }
        expected.read_exact(&mut wanted[..read]).expect("there is more than the task has printed");
        assert!(found[..read] == wanted[..read], "something else at {total}");
        total += read as u64;
    }
    assert_eq!(expected.read(&mut wanted).unwrap(), 0, "something is missing after {total}");
    assert!(seq.wait().unwrap().success());
    total
}

/// D5: a reader that reads nothing while another one follows costs the agent no memory and the other one nothing, and gets all in the
/// end: 64 MB, with `AGENTBIN_FULL` a gigabyte.
#[test]
fn d5_a_stalled_reader_gets_all_as_the_others_do() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let (last, least) = match std::env::var_os("AGENTBIN_FULL") {
        Some(_) => ("112000000", 1_000_000_000),
        None => ("8500000", 64_000_000),
    };
    // It begins when both look.
    let go = world.path("go");
    let script = format!("echo 1; until [ -e {} ]; do sleep 0.05; done; exec seq 2 {last}", go.display());
    let mut long = job("long", "batch", &script, json!({ "EphemeralDisk": { "SizeMB": 2500 } }));
    long["TaskGroups"][0]["Tasks"][0]["LogConfig"] = json!({ "MaxFiles": 200, "MaxFileSizeMB": 10 });
    agent.register(&long);
    let alloc = agent.alloc("long", "running", "");
    agent.until("its output is there", || agent.output(&alloc, "t").starts_with('1').then_some(()));
    let (stalled, reading) = (followed(&world, &alloc), followed(&world, &alloc));
    std::fs::write(&go, "").unwrap();
    let read = same_as_seq(last, reading);
    let memory = own_memory(&agent);
    println!("{read} bytes; the agent has {memory} KiB");
    assert!(read >= least && memory <= 40 << 10, "{read} bytes, {memory} KiB");
    assert_eq!(same_as_seq(last, stalled), read);
    agent.json("DELETE", "/v1/job/long?purge=true", &Value::Null);
    agent.wind_up();
}

/// SIGHUP reads `log_level` again.
#[test]
fn the_log_level_changes_while_the_agent_runs() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    // What is not a request is worth a line of the level debug.
    let disturb = || UnixStream::connect(socket(&world)).unwrap().write_all(b"no request\r\n\r\n").unwrap();
    disturb();
    agent.get("/v1/jobs");
    assert!(!agent.log().contains("[DEBUG]"), "{}", agent.log());
    world.file("agent.hcl", &format!("{CONFIG}log_level = \"debug\"\n"));
    agent.signal(Signal::HUP);
    agent.until("it says more", || {
        disturb();
        agent.log().contains("[DEBUG]").then_some(())
    });
    world.file("agent.hcl", &format!("{CONFIG}log_level = \"loud\"\n"));
    agent.signal(Signal::HUP);
    agent.until("a mistake changes nothing", || agent.log().contains("the configuration is not changed").then_some(()));
    let _status = agent.end(Signal::TERM);
}

/// Signals do not delay the messages of the watchdog, and each step of an upgrade sends one.
#[test]
fn the_watchdog_is_told_whatever_else_happens() {
    need_root!();
    let world = World::new();
    let at = world.path("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    manager.set_read_timeout(Some(seconds(60))).unwrap();
    let next = || {
        let mut text = [0; 256];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).trim().to_owned()
    };
    let mut started = command(&world);
    let agent = Agent::start_command(&world, started.env("NOTIFY_SOCKET", &at).env("WATCHDOG_USEC", "1000000"));
    let (began, mut told) = (Instant::now(), 0);
    while told < 3 {
        match next().as_str() {
            "WATCHDOG=1" => told += 1,
            "READY=1" => agent.signal(Signal::HUP),
            _ => {}
        }
        assert!(began.elapsed() < seconds(60), "{told}");
    }
    while next() != "READY=1" {}
    agent.signal(Signal::USR2);
    while next() != "RELOADING=1" {}
    assert_eq!([next(), next(), next()], ["WATCHDOG=1", "WATCHDOG=1", "READY=1"], "{}", agent.log());
    let _status = agent.end(Signal::TERM);
}

#[test]
fn p1_commands_about_runs_find_the_allocations_of_the_agent() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    agent.register(&job("web", "service", WAITS, json!({})));
    agent.register(&job("once", "batch", "echo done", json!({})));
    let alloc = agent.alloc("web", "running", "");
    let once = agent.alloc("once", "complete", "");
    let id = alloc["ID"].as_str().unwrap();
    let listed = world.done(&["ps"]);
    let line = listed.lines().find(|line| line.starts_with(&id[..8])).unwrap_or_else(|| panic!("{listed}"));
    assert!(line.contains("web") && line.contains("g[0]") && line.contains("1/1") && line.ends_with("agent"), "{line}");
    assert!(!listed.contains("once"), "it has ended: {listed}");
    assert!(world.done(&["ps", "--all"]).lines().any(|line| line.contains("once") && line.contains("complete")));
    let described = world.done(&["status", "web"]);
    assert!(described.contains(&format!("process {}", agent.child.id())) && described.contains("Agent"), "{described}");
    assert_eq!((world.done(&["logs", "web"]).as_str(), world.done(&["logs", "once"]).as_str()), ("up\n", "done\n"));
    assert_eq!(world.done(&["logs", "-f", once["ID"].as_str().unwrap()]), "done\n", "its end is the end of its output");
    assert_eq!(world.done(&["exec", "web", "sh", "-c", "echo job $NOMAD_JOB_ID"]), "job web\n");
    assert!(world.done(&["top", "--once"]).lines().any(|line| line.contains("web")));
    assert!(world.done(&["stats", "web"]).contains(&id[..8]));
    world.done(&["restart", "web"]);
    agent.until("it was started again", || (agent.output(&alloc, "t") == "up\nup\n").then_some(()));

    // Another one would be started in its place.
    let out = world.ask(&["stop", "web"]);
    assert!(out.status == 125 && out.stderr.contains("agentbin job stop web"), "{out:?}");
    assert_eq!(agent.alloc("web", "running", "")["ID"], id);

    drop(agent);
    let out = world.ask(&["ps"]);
    assert!(!(out.stdout.clone() + &out.stderr).contains("web"), "its tasks are the next agent's: {out:?}");
    let agent = Agent::start(&world);
    agent.until("the next one tells of it", || world.done(&["ps"]).contains("agent").then_some(()));
    for id in ["web", "once"] {
        agent.json("DELETE", &format!("/v1/job/{id}?purge=true"), &Value::Null);
    }
    agent.wind_up();
}

/// Who does not have Nomad's command gives the agent jobs with our own.
#[test]
fn p1_jobs_of_the_agent_are_run_shown_and_stopped() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let socket = socket(&world).display().to_string();
    let ask = |args: &[&str]| -> world::Out {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(args).arg("--socket").arg(&socket).stdin(Stdio::null()).output().unwrap().into()
    };
    let file = |name: &str, kind: &str, script: &str, more: &str| {
        let update = "update {\n      min_healthy_time = \"100ms\"\n      healthy_deadline = \"2s\"\n      progress_deadline = \"3s\"\n    }";
        let update = if kind == "service" { update } else { "" };
        let text = format!(
            "variable \"word\" {{\n  default = \"none\"\n}}\njob \"{name}\" {{\n  type = \"{kind}\"\n  {more}\n  group \"g\" {{\n    \
             {update}\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n    \
             task \"t\" {{\n      driver = \"raw_exec\"\n      kill_timeout = \"1s\"\n      config {{\n        command = \"/bin/sh\"\n        \
             args = [\"-c\", \"{script}\", \"sh\", var.word]\n      }}\n    }}\n  }}\n}}\n"
        );
        world.file(&format!("{name}.nomad.hcl"), &text).display().to_string()
    };
    let web = file("web", "service", "echo $1; exec sleep 1000", "");
    let out = ask(&["job", "run", "-var", "word=up", &web]);
    assert_eq!(out.status, 0, "{out:?}");
    assert!(out.stderr.contains("g: 1 of 1 healthy") && out.stdout.contains("running"), "{out:?}");
    let alloc = agent.alloc("web", "running", "");
    let id = alloc["ID"].as_str().unwrap();
    assert_eq!(agent.output(&alloc, "t"), "up\n");
    let submitted = agent.get("/v1/job/web/submission?version=0");
    assert_eq!((&submitted["Format"], &submitted["VariableFlags"]["word"]), (&json!("hcl2"), &json!("up")));
    assert_eq!(submitted["Source"].as_str().unwrap(), std::fs::read_to_string(&web).unwrap());

    let listed = ask(&["job", "status"]).stdout;
    assert!(listed.lines().any(|line| line.starts_with("web  ") && line.contains("running")), "{listed}");
    let shown = ask(&["job", "status", "we"]).stdout;
    for part in [&id[..8], "successful", "Namespace  default", "g      0       0         1"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let data_dir = world.data_dir().display().to_string();
    let of_alloc = |word: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(["alloc", word, "-data-dir", &data_dir, &id[..8]]).args(more).stdin(Stdio::null());
        world::Out::from(command.output().unwrap())
    };
    assert!(of_alloc("status", &[]).stdout.contains(id));
    assert_eq!(of_alloc("logs", &[]).stdout, "up\n");
    assert_eq!(of_alloc("exec", &["sh", "-c", "echo $NOMAD_JOB_ID -data-dir"]).stdout, "web -data-dir\n");

    // One that is stopped is replaced.
    let out = ask(&["alloc", "stop", &id[..8]]);
    assert_eq!(out.status, 0, "{out:?}");
    let next = agent.alloc("web", "running", id);
    assert_ne!(next["ID"], alloc["ID"]);

    // The flag names the namespace, or the job file does.
    agent.json("PUT", "/v1/namespace", &json!({ "Name": "apps" }));
    // What is JSON is seen in the text, as where the job is read.
    let api = world.file("api.nomad", &job("api", "batch", "true", json!({})).to_string()).display().to_string();
    assert_eq!(ask(&["job", "run", &api]).status, 0);
    assert_eq!(agent.get("/v1/job/api/submission?version=0")["Format"], "json");
    let out = ask(&["job", "run", "-namespace", "apps", "-detach", &web]);
    assert!(out.status == 0 && out.stdout.trim().len() == 36, "{out:?}");
    assert_eq!(agent.get("/v1/job/web?namespace=apps")["Namespace"], "apps");
    let out = ask(&["job", "run", &file("once", "batch", "true", "namespace = \"apps\"")]);
    assert!(out.status == 0 && !out.stdout.contains("pending"), "{out:?}");
    assert!(ask(&["job", "status", "-namespace", "apps"]).stdout.contains("once"));
    assert!(!ask(&["job", "status"]).stdout.contains("once"));
    assert_eq!(ask(&["job", "stop", "-purge", "-namespace", "apps", "web", "once"]).status, 0);

    // What cannot be placed, is not healthy, or is not a job is said, with Nomad's status.
    let far = "constraint {\n    attribute = \"${node.unique.name}\"\n    value     = \"elsewhere\"\n  }";
    let out = ask(&["job", "run", &file("far", "service", "true", far)]);
    assert!(out.status == 2 && out.stderr.contains("not placed") && out.stderr.contains("elsewhere"), "{out:?}");
    assert!(ask(&["job", "status", "far"]).stdout.contains("elsewhere"));
    // Of a task that ends at once a busy machine may see that it ran for long enough.
    let bad = file("bad", "service", "true", "");
    let text = std::fs::read_to_string(&bad).unwrap().replace("/bin/sh", "/no/such/program");
    std::fs::write(&bad, text).unwrap();
    let out = ask(&["job", "run", &bad]);
    assert!(out.status == 1 && out.stderr.contains("0 of 1 healthy"), "{out:?}");
    let out = ask(&["job", "run", &world.file("no.nomad.hcl", "job \"no\" {").display().to_string()]);
    assert!(out.status == 1 && out.stderr.contains("no.nomad.hcl:1"), "{out:?}");
    let out = ask(&["job", "status", "nobody"]);
    assert!(out.status == 1 && out.stderr.contains("no job \"nobody\""), "{out:?}");
    let out =
        Command::new(env!("CARGO_BIN_EXE_agentbin")).args(["job", "status", "--socket", "/nowhere"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.code() == Some(1) && said.contains("no agent answers there"), "{said}");
    let clock = file("clock", "batch", "true", "periodic {\n    crons = [\"0 4 1 1 *\"]\n  }");
    let out = ask(&["job", "run", &clock]);
    assert!(out.status == 0 && out.stderr.contains("starts when its clock says so"), "{out:?}");

    let out = ask(&["job", "stop", "web", "bad", "far", "clock"]);
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(agent.get("/v1/job/web")["Stop"], true);
    let ended = |alloc: &Value| alloc["ClientStatus"] != "running" && alloc["ClientStatus"] != "pending";
    assert!(agent.allocs("web").iter().all(ended), "it returns when they have ended");
    assert_eq!(ask(&["job", "stop", "--purge", "web"]).status, 0);
    assert_eq!(agent.ask("GET", "/v1/job/web", "").0, 404);
    agent.wind_up();
}

/// The rest of Nomad's commands that ask one agent: of versions and deployments, evaluations, variables, namespaces, the node.
#[test]
fn p1_the_agent_is_ruled_by_commands_of_its_own() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let run = |args: &[&str], input: &str| own_command(&world, args, input);
    let done = |args: &[&str]| -> String {
        let out = run(args, "");
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    };
    let refused = |args: &[&str], why: &str| {
        let out = run(args, "");
        assert!(out.status == 1 && out.stderr.contains(why) && out.stdout.is_empty(), "{args:?}: {out:?}");
    };
    let file = |count: u32, word: &str| {
        let text = format!(
            "job \"web\" {{\n  update {{\n    min_healthy_time = \"0s\"\n    canary = 1\n  }}\n  group \"g\" {{\n    count = {count}\n    task \"t\" {{\n      \
             driver = \"raw_exec\"\n      config {{\n        command = \"/bin/sh\"\n        args = [\"-c\", \"exec sleep 1000\", \
             \"{word}\"]\n      }}\n      resources {{\n        cpu = 20\n        memory = 32\n      }}\n    }}\n  }}\n}}\n"
        );
        world.file("web.nomad.hcl", &text).display().to_string()
    };

    // A plan says what would happen, and that it would.
    let out = run(&["job", "plan", &file(1, "one")], "");
    assert!(out.status == 1 && out.stdout.contains("+ job \"web\"") && out.stdout.contains("1 start"), "{out:?}");
    assert!(agent.get("/v1/jobs").as_array().unwrap().is_empty(), "a plan registers nothing");
    done(&["job", "run", &file(1, "one")]);
    let out = done(&["job", "plan", &file(1, "one")]);
    assert!(out.contains("nothing changes") && out.contains("job modify index "), "{out}");
    let out = run(&["job", "plan", &file(2, "one")], "");
    assert!(out.status == 1 && out.stdout.contains("+/- Count: \"1\" => \"2\""), "{out:?}");
    let out = run(&["job", "plan", &world.file("no.nomad.hcl", "job \"no\" {").display().to_string()], "");
    assert!(out.status == 255 && out.stderr.contains("no.nomad.hcl:1"), "{out:?}");

    // Counts, versions, canaries.
    done(&["job", "scale", "web", "2"]);
    assert_eq!(agent.get("/v1/job/web")["TaskGroups"][0]["Count"], 2);
    refused(&["job", "scale", "web", "x", "1"], "x");
    refused(&["job", "scale", "web", "many"], "is not a count");
    refused(&["job", "scale", "nobody", "1"], "no job \"nobody\"");
    done(&["job", "run", &file(2, "two")]);
    let list = done(&["deployment", "list"]);
    let id = list.lines().find(|line| line.contains("running")).and_then(|line| line.split(' ').next()).unwrap();
    let shown = done(&["deployment", "status", id]);
    assert!(shown.contains("1 of 1 canaries") && shown.contains("Job          web"), "{shown}");
    done(&["deployment", "pause", id]);
    assert!(done(&["deployment", "status", id]).contains("paused"));
    done(&["deployment", "resume", id]);
    done(&["job", "promote", "web"]);
    assert!(done(&["deployment", "status", id]).contains("successful"));
    refused(&["deployment", "promote", id], "deployment");
    refused(&["deployment", "fail", "nothing"], "no deployment \"nothing\"");
    assert_eq!(done(&["job", "history", "web"]).lines().count(), 4, "a title and three versions");
    refused(&["job", "revert", "web", "77"], "77");
    assert_eq!(run(&["job", "revert", "-detach", "web", "1"], "").stdout.trim().len(), 36);
    let deployed = || agent.get("/v1/job/web/deployment")["JobVersion"] == 3;
    agent.until("the old version is a new one", || deployed().then_some(()));
    let newest = agent.get("/v1/job/web/deployment")["ID"].as_str().unwrap().to_owned();
    done(&["deployment", "fail", &newest]);
    assert!(done(&["deployment", "status", &newest]).contains("failed"));
    let inspected: Value = serde_json::from_str(&done(&["job", "inspect", "web"])).unwrap();
    assert_eq!((&inspected["Job"]["ID"], &inspected["Job"]["Version"]), (&json!("web"), &json!(3)));

    // Jobs that others start, and evaluations.
    let mut param = job("param", "batch", "cat local/in; echo $NOMAD_META_who", json!({}));
    param["ParameterizedJob"] = json!({ "Payload": "required", "MetaRequired": ["who"] });
    param["TaskGroups"][0]["Tasks"][0]["DispatchPayload"] = json!({ "File": "in" });
    agent.register(&param);
    let out = run(&["job", "dispatch", "-meta", "who=me", "param", "-"], "given ");
    let child = out.stdout.lines().next().unwrap_or_default().to_owned();
    assert!(out.status == 0 && child.starts_with("param/dispatch-"), "{out:?}");
    let encoded = child.replace('/', "%2F");
    agent.until("it has ended", || (agent.get(&format!("/v1/job/{encoded}"))["Status"] == "dead").then_some(()));
    let allocs = agent.get(&format!("/v1/job/{encoded}/allocations"));
    assert_eq!(agent.output(&allocs[0], "t"), "given me\n");
    refused(&["job", "dispatch", "-meta", "who", "param"], "give KEY=VALUE");
    refused(&["job", "dispatch", "param", "/no/such/file"], "/no/such/file");
    let mut clock = job("clock", "batch", "true", json!({}));
    clock["Periodic"] = json!({ "Enabled": true, "Spec": "0 4 1 1 *", "SpecType": "cron" });
    agent.register(&clock);
    done(&["job", "periodic", "force", "clock"]);
    let launched = agent.get("/v1/jobs?prefix=clock%2F");
    assert_eq!(launched.as_array().unwrap().len(), 1);
    refused(&["job", "periodic", "force", "web"], "periodic");
    let eval = run(&["job", "eval", "-detach", "web"], "").stdout;
    let shown = done(&["eval", "status", eval.trim()]);
    assert!(shown.contains("Job           web") && shown.contains("Triggered by"), "{shown}");
    assert!(done(&["eval", "list", "-job", "web"]).lines().count() > 3);
    assert!(done(&["eval", "list", "-json"]).contains("\"TriggeredBy\""));
    refused(&["eval", "status", "nothing"], "no evaluation \"nothing\"");

    // Variables and namespaces.
    done(&["namespace", "apply", "-description", "of apps", "apps"]);
    assert!(done(&["namespace", "list"]).contains("of apps"));
    assert_eq!(run(&["var", "put", "-namespace", "apps", "db/main", "user=me", "password=-"], "pa ss\n").status, 0);
    assert_eq!(done(&["var", "get", "-namespace", "apps", "-item", "password", "db/main"]), "pa ss\n");
    let whole: Value = serde_json::from_str(&done(&["var", "get", "-namespace", "apps", "db/main"])).unwrap();
    assert_eq!(whole["Items"], json!({ "user": "me", "password": "pa ss" }));
    assert!(done(&["var", "list", "-namespace", "apps", "db"]).contains("db/main"));
    refused(&["var", "get", "db/main"], "variable not found");
    refused(&["var", "get", "-namespace", "apps", "-item", "x", "db/main"], "it has password, user");
    refused(&["var", "put", "db/main", "user"], "give KEY=VALUE");
    refused(&["var", "put", "db/main", "user=-", "password=-"], "only one value can be -");
    done(&["var", "purge", "-namespace", "apps", "db/main"]);
    assert_eq!(done(&["var", "list", "-namespace", "apps"]).lines().count(), 1);
    done(&["namespace", "delete", "apps"]);
    refused(&["namespace", "delete", "apps"], "namespace not found");

    // The node.
    done(&["node", "eligibility", "-disable"]);
    let out = run(&["job", "scale", "web", "3"], "");
    assert!(out.status == 2 && out.stderr.contains("not placed"), "{out:?}");
    done(&["node", "eligibility", "-enable"]);
    agent.until("what waited is placed", || {
        (agent.get("/v1/job/web/summary")["Summary"]["g"]["Queued"] == 0).then_some(())
    });
    // As with Nomad, what a drain has stopped below canaries that wait does not come back.
    let is_healthy = || agent.get("/v1/job/web/deployment")["TaskGroups"]["g"]["HealthyAllocs"] == 1;
    agent.until("its canary is healthy", || is_healthy().then_some(()));
    done(&["job", "promote", "web"]);
    assert_eq!(run(&["node", "drain"], "").status, 125, "one of the two");
    done(&["node", "drain", "-enable", "-deadline", "2s"]);
    let runs = |alloc: &Value| alloc["ClientStatus"] == "running";
    assert!(!agent.allocs("web").iter().any(runs), "it waits");
    done(&["node", "drain", "-disable"]);
    agent.until("it runs again", || agent.allocs("web").iter().any(runs).then_some(()));
    done(&["system", "reconcile", "summaries"]);
    done(&["job", "stop", "-purge", "web", "param", "clock", &child]);
    let forced = launched[0]["ID"].as_str().unwrap();
    done(&["job", "stop", "-purge", forced]);
    agent.until("nothing runs", || (!agent.allocs("web").iter().any(runs)).then_some(()));
    done(&["system", "gc"]);
    agent.wind_up();
}

/// Files of allocations, services, tags of versions, restarts, host volumes, and the agent as a whole, by commands of our own.
#[test]
fn p1_the_agent_is_looked_into_by_commands_of_its_own() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    let run = |args: &[&str], input: &str| own_command(&world, args, input);
    let done = |args: &[&str]| -> String {
        let out = run(args, "");
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    };
    let refused = |args: &[&str], why: &str| {
        let out = run(args, "");
        assert!(out.status == 1 && out.stderr.contains(why) && out.stdout.is_empty(), "{args:?}: {out:?}");
    };

    // Files.
    let lines =
        "i=1; while [ $i -le 4000 ]; do echo line $i; i=$((i+1)); done > local/many; printf 'no end' >> local/many";
    let mut web = with_service("web", free_port(), &["first", "second"], 2_000_000_000);
    web["TaskGroups"][0]["Count"] = 2.into();
    web["TaskGroups"][0]["Services"][0]["Checks"] = json!([]);
    web["TaskGroups"][0]["Update"]["HealthCheck"] = "task_states".into();
    web["TaskGroups"][0]["Tasks"][0]["Config"]["args"][1] = format!("{lines}; echo pid $$; {WAITS}").into();
    agent.register(&web);
    agent.until("both have written", || {
        let all = agent.allocs("web");
        let is_up = |one: &Value| one["ClientStatus"] == "running" && agent.output(one, "t").contains("up");
        (all.len() == 2 && all.iter().all(is_up)).then_some(())
    });
    let listed = done(&["job", "allocs", "web"]);
    assert_eq!(listed.lines().filter(|line| line.contains("running")).count(), 2, "{listed}");
    let id = listed.lines().nth(1).and_then(|line| line.split(' ').next()).unwrap().to_owned();
    let top = done(&["alloc", "fs", &id]);
    assert!(top.lines().any(|line| line.starts_with("drwx") && line.ends_with(" t/")), "{top}");
    assert!(done(&["alloc", "fs", "-job", "web", "t/local"]).contains(" many"));
    let whole = done(&["alloc", "fs", &id, "t/local/many"]);
    assert!(whole.starts_with("line 1\n") && whole.ends_with("line 4000\nno end"), "{}", whole.len());
    assert_eq!(done(&["alloc", "fs", "-n", "2", &id, "t/local/many"]), "line 4000\nno end");
    assert_eq!(done(&["alloc", "fs", "-c", "3", &id, "t/local/many"]), "end");
    assert_eq!(done(&["alloc", "fs", "-tail", &id, "t/local/many"]).lines().count(), 10);
    assert_eq!(done(&["alloc", "fs", "-n", "3999", &id, "t/local/many"]).lines().next(), Some("line 3"));
    assert_eq!(done(&["alloc", "fs", "-n", "99999", &id, "t/local/many"]), whole);
    assert_eq!(done(&["alloc", "fs", "-n", "0", &id, "t/local/many"]), "");
    let stat = done(&["alloc", "fs", "-stat", &id, "t/local/many"]);
    assert!(stat.contains(&format!("Size      {}", whole.len())), "{stat}");
    refused(&["alloc", "fs", &id, "t/local/none"], "none");
    refused(&["alloc", "fs", "-f", &id, "t/local"], "t/local is a directory");
    refused(&["alloc", "fs", "nothing"], "no allocation \"nothing\"");
    // One that grows, whose name an attacker chose, until the file is gone.
    let dir = world.data_dir().join("alloc").join(agent.allocs("web")[0]["ID"].as_str().unwrap()).join("t/local");
    std::fs::write(dir.join("grows\"}{"), "first\n").unwrap();
    let full = agent.allocs("web")[0]["ID"].as_str().unwrap().to_owned();
    let mut follower = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    follower.args(["alloc", "fs", "-f", &full, "t/local/grows\"}{", "-socket"]).arg(socket(&world));
    let mut follower = follower.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut heard = std::io::BufReader::new(follower.stdout.take().unwrap());
    let mut line = String::new();
    heard.read_line(&mut line).unwrap();
    let mut grows = std::fs::OpenOptions::new().append(true).open(dir.join("grows\"}{")).unwrap();
    grows.write_all(b"second\n").unwrap();
    heard.read_line(&mut line).unwrap();
    assert_eq!(line, "first\nsecond\n");
    // An open file keeps the mount below it.
    drop(grows);
    follower.kill().unwrap();
    follower.wait().unwrap();

    // Services.
    let services = agent.until("both are registered", || {
        let text = done(&["service", "info", "web"]);
        (text.lines().count() == 3).then_some(text)
    });
    assert!(services.contains("first,second") && services.contains(&id), "{services}");
    assert!(done(&["service", "list"]).contains("first,second"));
    assert!(done(&["service", "list", "-json"]).contains("\"ServiceName\": \"web\""));
    refused(&["service", "info", "wev"], "did you mean \"web\"");
    let instance = services.lines().nth(1).and_then(|line| line.split_whitespace().last()).unwrap();
    refused(&["service", "delete", "web", "nothing"], "service registration not found");
    done(&["service", "delete", "web", instance]);

    // Restarts, in place and by new allocations.
    let pids = || -> Vec<String> { agent.allocs("web").iter().map(|alloc| pid_of(&agent, alloc, "t")).collect() };
    let before = pids();
    let out = done(&["job", "restart", "-batch-size", "50%", "web"]);
    assert_eq!(out.lines().filter(|line| line.ends_with(" restarted")).count(), 2, "{out}");
    assert!(before.iter().all(|pid| !lives(pid)), "{before:?}");
    assert!(agent.allocs("web").iter().all(|alloc| alloc["TaskStates"]["t"]["Restarts"] == 1));
    let out = done(&["job", "restart", "-reschedule", "-group", "g", "web"]);
    assert_eq!(out.lines().filter(|line| line.contains(" replaced by ")).count(), 2, "{out}");
    assert_eq!(agent.allocs("web").iter().filter(|alloc| alloc["ClientStatus"] == "running").count(), 2);
    refused(&["job", "restart", "-group", "x", "web"], "no allocation of \"x\"");
    refused(&["job", "restart", "-task", "x", "web"], "has a task \"x\"");
    refused(&["job", "restart", "-batch-size", "0", "web"], "give a number, or 1% to 100%");

    // Names of versions.
    done(&["job", "tag", "apply", "-name", "good", "-description", "it works", "web"]);
    assert!(done(&["job", "history", "web"]).contains("good"));
    web["TaskGroups"][0]["Count"] = 1.into();
    agent.register(&web);
    done(&["job", "revert", "web", "good"]);
    assert_eq!(agent.get("/v1/job/web")["TaskGroups"][0]["Count"], 2);
    refused(&["job", "revert", "web", "bad"], "no version with the tag \"bad\"");
    done(&["job", "tag", "unset", "-name", "good", "web"]);
    assert!(!done(&["job", "history", "web"]).contains("good"));
    refused(&["job", "tag", "unset", "-name", "good", "web"], "good");
    assert!(done(&["job", "deployments", "web"]).lines().count() > 2);

    // Volumes of this machine.
    let spec = "type = \"host\"\nname = \"data\"\nplugin_id = \"mkdir\"\ncapability {\n  access_mode = \"single-node-writer\"\n  \
                attachment_mode = \"file-system\"\n}\nparameters {\n  mode = \"0750\"\n}\n";
    let file = world.file("volume.hcl", spec).display().to_string();
    let volume = done(&["volume", "create", &file]).trim().to_owned();
    let listed = done(&["volume", "status"]);
    assert!(listed.contains("host") && listed.contains("mkdir") && listed.contains("ready"), "{listed}");
    let shown = done(&["volume", "status", "-type", "host", &volume[..8]]);
    assert!(shown.contains(&volume) && shown.contains("Name       data"), "{shown}");
    let wrong = world.file("wrong.hcl", &spec.replace("plugin_id", "plugin")).display().to_string();
    refused(&["volume", "create", &wrong], "wrong.hcl:3: unsupported key \"plugin\"");
    refused(&["volume", "create", "/no/such/file"], "/no/such/file");
    done(&["volume", "delete", &volume]);
    refused(&["volume", "delete", &volume], "no volume");
    // Examples are what `volume create` takes.
    for kind in ["host", "csi"] {
        let example = world.path(&format!("example-{kind}.hcl")).display().to_string();
        let init = ["volume", "init", "-type", kind, &example];
        assert_eq!(world.agentbin(&init).stdout, format!("{example}\n"));
        let again = world.agentbin(&init);
        assert!(again.status == 1 && again.stderr.contains("File exists"), "{again:?}");
        if kind == "csi" {
            refused(&["volume", "create", &example], "no CSI plugin named: plugin");
            continue;
        }
        // A claim on it.
        let volume = done(&["volume", "create", &example]).trim().to_owned();
        let mut keeper = job("keeper", "service", "exec sleep 1000", json!({}));
        keeper["TaskGroups"][0]["Volumes"] =
            json!({ "v": { "Name": "v", "Type": "host", "Source": "data", "Sticky": true } });
        agent.register(&keeper);
        agent.alloc("keeper", "running", "");
        let listed = done(&["volume", "claim", "list"]);
        assert!(listed.contains("keeper") && listed.contains(&volume[..8]), "{listed}");
        let claims: Value = serde_json::from_str(&done(&["volume", "claim", "list", "-json"])).unwrap();
        let claim = claims[0]["ID"].as_str().unwrap();
        refused(&["volume", "claim", "delete", "none"], "there is no claim \"none\"");
        done(&["volume", "claim", "delete", &claim[..8]]);
        assert_eq!(done(&["volume", "claim", "list"]).lines().count(), 1);
        done(&["job", "stop", "keeper"]);
        done(&["volume", "delete", &volume]);
        done(&["job", "stop", "-purge", "keeper"]);
    }
    assert_eq!(done(&["volume", "status"]).lines().count(), 1);
    assert_eq!(done(&["plugin", "status"]).lines().count(), 1);

    // The agent as a whole.
    let jobs: Value = serde_json::from_str(&done(&["operator", "api", "/v1/jobs"])).unwrap();
    assert_eq!(jobs[0]["ID"], "web");
    assert_eq!(done(&["operator", "api", "-filter", "ID == \"other\"", "/v1/jobs"]), "[]");
    refused(&["operator", "api", "/v1/job/none"], "404: job not found");
    refused(&["operator", "api", "v1/jobs"], "write it as /v1/jobs");
    refused(&["operator", "api", "/v1/jobs HTTP/1.0"], "characters that a path cannot have");
    let out = run(&["operator", "api", "-d", "-", "/v1/validate/job"], "{\"Job\":{\"ID\":\"x\"}}");
    assert!(out.status == 0 && out.stdout.contains("\"ValidationErrors\""), "{out:?}");
    // As ssh and terminals do it, standard input may be neither a file nor a pipe.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"{\"Job\":{\"ID\":\"x\"}}").unwrap();
    drop(ours);
    let mut call = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    call.args(["operator", "api", "-d", "-", "/v1/validate/job", "-socket"]).arg(socket(&world));
    let out: world::Out = call.stdin(std::os::fd::OwnedFd::from(theirs)).output().unwrap().into();
    assert!(out.status == 0 && out.stdout.contains("\"ValidationErrors\""), "{out:?}");
    assert!(done(&["operator", "metrics"]).contains("\"Gauges\""));
    assert!(done(&["operator", "metrics", "-format", "prometheus"]).contains("# TYPE "));
    done(&["operator", "scheduler", "set-config", "-memory-oversubscription=true"]);
    let config = done(&["operator", "scheduler", "get-config"]);
    assert!(
        config.contains("Memory Oversubscription  yes") && config.contains("Pause Eval Broker        no"),
        "{config}"
    );
    refused(&["operator", "scheduler", "set-config"], "nothing to change");
    let snapshot = world.path("state.snap").display().to_string();
    done(&["operator", "snapshot", "save", &snapshot]);
    assert_eq!(std::fs::metadata(&snapshot).unwrap().permissions().mode() & 0o777, 0o600);
    let inspected = world.agentbin(&["operator", "snapshot", "inspect", &snapshot]);
    assert!(inspected.status == 0 && inspected.stdout.contains("\njobs "), "{inspected:?}");
    assert!(inspected.stdout.contains(env!("CARGO_PKG_VERSION")), "{inspected:?}");
    let mut damaged = std::fs::read(&snapshot).unwrap();
    let last = damaged.len() - 12;
    damaged[last] ^= 1;
    for (bytes, why) in
        [(&damaged[..], "cannot be used"), (&damaged[..last / 2], "cannot be used"), (b"{}", "cannot be used")]
    {
        let copy = world.path("damaged.snap");
        std::fs::write(&copy, bytes).unwrap();
        let out = world.agentbin(&["operator", "snapshot", "inspect", copy.to_str().unwrap()]);
        assert!(out.status == 1 && out.stderr.contains(why) && out.stdout.is_empty(), "{out:?}");
    }
    done(&["job", "stop", "-purge", "web"]);
    done(&["operator", "snapshot", "restore", &snapshot]);
    assert_eq!(agent.get("/v1/job/web")["ID"], "web");
    refused(&["operator", "snapshot", "restore", &file], "snapshot");
    refused(&["operator", "snapshot", "save", "/no/such/dir/x"], "/no/such/dir");
    let left = std::fs::read_dir(Path::new(&snapshot).parent().unwrap()).unwrap().flatten();
    assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("state.snap.")));
    done(&["job", "stop", "-purge", "web"]);
    agent.wind_up();
}

#[test]
fn p1_commands_about_runs_tell_the_jobs_of_the_agent_apart() {
    need_root!();
    let world = World::new();
    let agent = Agent::start(&world);
    agent.json("PUT", "/v1/namespace", &json!({ "Name": "other" }));
    let mut other = job("web", "service", WAITS, json!({}));
    other["Namespace"] = "other".into();
    agent.register(&job("web", "service", WAITS, json!({})));
    agent.register(&other);
    agent.register(&job("api", "service", WAITS, json!({})));
    agent.until("all run", || (world.done(&["ps"]).matches("1/1").count() == 3).then_some(()));
    // A job of two namespaces, and a task of three jobs.
    for word in ["web", "t"] {
        let out = world.ask(&["restart", word]);
        assert!(out.status == 125 && out.stderr.contains("give the id of one"), "{word}: {out:?}");
    }
    assert!(world.done(&["restart", "api"]).starts_with("restarted "));
    let out = world.ask(&["stop", "web"]);
    assert!(
        out.stderr.contains("agentbin job stop web") && out.stderr.contains("stop -namespace other web"),
        "{out:?}"
    );

    // One of its tasks has failed, and the other takes its time to end: it runs until then.
    let task = |name: &str, script: &str| {
        json!({
            "Name": name, "Driver": "raw_exec", "Config": { "command": "/bin/sh", "args": ["-c", script] },
            "Resources": { "CPU": 20, "MemoryMB": 32 }, "KillTimeout": 3_600_000_000_000_i64,
        })
    };
    let last = format!("trap '' INT TERM; while ! [ -e {} ]; do sleep 0.1; done", world.path("end").display());
    let tasks = json!({ "Tasks": [task("fails", "sleep 0.5; exit 1"), task("lasts", &last)] });
    agent.register(&job("slow", "batch", "", tasks));
    let line = || world.done(&["ps"]).lines().find(|line| line.contains("slow")).map(str::to_owned);
    agent.until("it is still there when one has failed", || line().filter(|line| line.contains("1/2")));
    std::fs::write(world.path("end"), "").unwrap();
    agent.until("it is not when both have ended", || line().is_none().then_some(()));
    for (id, namespace) in [("web", "default"), ("web", "other"), ("api", "default"), ("slow", "default")] {
        agent.json("DELETE", &format!("/v1/job/{id}?purge=true&namespace={namespace}"), &Value::Null);
    }
    agent.wind_up();
}
