//! Fifty tasks of all drivers as a job of the agent, one of the drivers behind a plugin, while what holds them is killed at random
//! instants. (A4, N5, N8) `AGENTBIN_KILLS=N` kills so often: large counts can be made in several runs.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use super::agent::{Agent, command};
use super::crowd::{
    ADOPTS, all_have_begun, assert_counted, class, executing, executors, firsts, job, kills, names, remove_parent,
};
use super::engine::TestEngine;
use super::plugin_dir::{plugins, processes};
use super::random::Random;
use super::world::{World, need_root};

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Agent,
    Executor,
    Plugin,
}

const VICTIMS: [&[Victim]; 8] = {
    use Victim::{Agent, Executor, Plugin};
    [
        &[Agent],
        &[Executor],
        &[Plugin],
        &[Agent, Executor],
        &[Executor, Agent],
        &[Executor, Executor],
        &[Plugin, Agent],
        &[Plugin, Executor],
    ]
};

/// Kills exactly this process, and waits until it has gone.
fn kill(pid: i32) {
    let Ok(pidfd) = agentbin::sys::process::open_pidfd(pid) else { return };
    let _gone_already = agentbin::sys::process::send_signal(pidfd.as_fd(), agentbin::spec::Signal::KILL);
    rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)], None).unwrap();
}

#[test]
fn a4_fifty_tasks_of_all_drivers_outlive_whoever_is_killed() {
    need_root!();
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
    let test = "a4_fifty_tasks_of_all_drivers_outlive_whoever_is_killed";
    let engine = match TestEngine::start() {
        Ok(engine) => engine,
        Err(why) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{why}");
            println!("SKIP: {test}: {why}");
            return;
        }
    };
    let (world, mut random) = (World::new(), Random::new(test));
    let dir = plugins(&world, "exec", Path::new(env!("CARGO_BIN_EXE_agentbin")));
    let parent = format!("fifty-{}", std::process::id());
    let start = || {
        let mut command = command(&world);
        let config = world.file("fifty.hcl", ADOPTS);
        command.arg("--config").arg(config).arg("--cgroup-parent").arg(&parent).arg("--plugin-dir").arg(&dir);
        Agent::start_command(&world, command.env("DOCKER_HOST", engine.endpoint()))
    };
    let mut agent = start();
    let asked = json!({ "JobHCL": job(&class(&world)), "Canonicalize": true });
    let parsed = agent.json("POST", "/v1/jobs/parse", &asked);
    agent.until("its drivers are there", || {
        let node = agent.get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
        let node = agent.get(&format!("/v1/node/{node}"));
        ["raw_exec", "exec", "java", "docker"].iter().all(|name| node["Drivers"][name]["Healthy"] == true).then_some(())
    });
    agent.register(&parsed);
    let alloc = agent.alloc("crowd", "running", "");
    let id = alloc["ID"].as_str().unwrap().to_owned();
    // A task has begun before the agent knows: its driver may not have said so yet.
    agent.until("all have begun, and the agent knows", || {
        let states = &agent.get(&format!("/v1/allocation/{id}"))["TaskStates"];
        let all_run = names().all(|(name, _)| states[&name]["State"] == "running");
        (all_run && all_have_begun(&firsts(&id))).then_some(())
    });
    let before = firsts(&id);

    let count = kills(8, 200);
    let (mut killed, mut total) = (BTreeMap::new(), 0);
    let mut written = BTreeSet::new();
    while total < count {
        let victims = VICTIMS[random.index(VICTIMS.len())];
        let path = format!("kept/{total}");
        let variable = json!({ "Path": path, "Items": { "number": total.to_string() } });
        agent.json("PUT", &format!("/v1/var/{path}"), &variable);
        written.insert(path);
        #[expect(clippy::disallowed_methods, reason = "a moment that is drawn")]
        std::thread::sleep(random.moment(Duration::from_millis(400)));
        let mut is_dead = false;
        for victim in victims {
            match victim {
                Victim::Agent => {
                    agent.child.kill().unwrap();
                    agent.child.wait().unwrap();
                    is_dead = true;
                }
                Victim::Executor => {
                    // They may be about to come back.
                    let all = executors(&world);
                    if !all.is_empty() {
                        kill(all[random.index(all.len())]);
                    }
                }
                Victim::Plugin => {
                    let is_plugin = |(_, words): &&(i32, Vec<String>)| !words.iter().any(|word| word == "executor");
                    processes(&dir).iter().filter(is_plugin).for_each(|(pid, _)| kill(*pid));
                }
            }
            *killed.entry(*victim).or_insert(0) += 1;
            total += 1;
        }
        if is_dead {
            agent = start();
        }
        let about = || format!("after {total} kills, the last of {victims:?}\n{}", agent.log());
        let seen = agent.get(&format!("/v1/allocation/{id}"));
        assert_eq!(seen["ClientStatus"], "running", "{}: {seen:#}", about());
        for (name, _) in names() {
            let task = &seen["TaskStates"][&name];
            assert!(task["State"] == "running" && task["Restarts"] == 0, "{}: {name}: {task:#}", about());
        }
        assert_eq!(firsts(&id), before, "{}", about());
    }
    agent.until("each executor is back", || (executors(&world).len() == executing()).then_some(()));
    let kept = agent.get("/v1/vars?prefix=kept/");
    let kept: BTreeSet<_> =
        kept.as_array().unwrap().iter().map(|one| one["Path"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kept, written, "what was acknowledged");
    assert_eq!(agent.allocs("crowd").len(), 1, "it was never placed again");

    agent.json("DELETE", "/v1/job/crowd", &Value::Null);
    agent.alloc("crowd", "complete", "");
    let logs = world.data_dir().join("alloc").join(&id).join("alloc/logs");
    let lines: usize = names().map(|(name, _)| assert_counted(&logs, &name)).sum();
    println!("{test}: {total} kills: {killed:?}; {lines} lines");
    agent.wind_up();
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    remove_parent(&parent);
}
