//! Fifty tasks of all drivers in one run, one of the drivers behind a plugin, while what holds them is killed at random instants.
//! (A4, N5) `AGENTBIN_KILLS=N` kills so often: large counts can be made in several runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::crowd::{ADOPTS, all_have_begun, class, executing, executors, firsts, job, kills, names, remove_parent};
use super::engine::TestEngine;
use super::plugin_dir::{plugins, processes};
use super::random::Random;
use super::world::{Out, World, need_root};
use super::{assert_counted, kill, kill_supervisor, kinds, pause, task, view, wait_until};

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Client,
    Supervisor,
    Executor,
    Plugin,
}

const VICTIMS: [&[Victim]; 9] = {
    use Victim::{Client, Executor, Plugin, Supervisor};
    [
        &[Client],
        &[Supervisor],
        &[Executor],
        &[Plugin],
        &[Supervisor, Executor],
        &[Executor, Supervisor],
        &[Executor, Executor],
        &[Plugin, Supervisor],
        &[Plugin, Executor],
    ]
};

#[test]
fn a4_fifty_tasks_of_all_drivers_outlive_whoever_is_killed() {
    need_root!();
    kinds::boot();
    let test = "a4_fifty_tasks_of_all_drivers_outlive_whoever_is_killed";
    let engine = match TestEngine::start() {
        Ok(engine) => engine,
        Err(why) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{why}");
            println!("SKIP: {test}: {why}");
            return;
        }
    };
    let (world, mut random) = (World::new(), Random::new("crowd"));
    let dir = plugins(&world, "exec", Path::new(env!("CARGO_BIN_EXE_agentbin")));
    let file = world.file("crowd.nomad.hcl", &job(&class(&world)));
    let parent = format!("crowd-{}", std::process::id());
    let config = world.file("fifty.hcl", ADOPTS);
    let mut first = world.command(&["--detach", "--quiet", "--cgroup-parent", &parent]);
    first.arg("--plugin-dir").arg(&dir).arg("--config").arg(config).arg(file);
    let out: Out = first.env("DOCKER_HOST", engine.endpoint()).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    let id = out.stdout.trim().to_owned();
    let before = firsts(&id);
    assert!(all_have_begun(&before), "{before:?}");
    let count = kills(12, 2000);
    let mut killed = BTreeMap::new();
    let mut total = 0;
    while total < count {
        let victims = VICTIMS[random.index(VICTIMS.len())];
        // A command that takes the run up, if nobody has it.
        let mut client = world.client(&["ps", "--json"]);
        let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        pause(random.moment(Duration::from_millis(400)));
        for victim in victims {
            match victim {
                Victim::Client => kill(i32::try_from(client.id()).unwrap()),
                Victim::Supervisor => kill_supervisor(&world),
                Victim::Executor => {
                    // They may be about to come back.
                    let all = executors(&world);
                    if !all.is_empty() {
                        kill(all[random.index(all.len())]);
                    }
                }
                // It may be about to come back.
                Victim::Plugin => {
                    let is_plugin = |(_, words): &&(i32, Vec<String>)| !words.iter().any(|word| word == "executor");
                    processes(&dir).iter().filter(is_plugin).for_each(|(pid, _)| kill(*pid));
                }
            }
            *killed.entry(*victim).or_insert(0) += 1;
            total += 1;
        }
        let _ended = client.wait();
        let seen = view(&world);
        let about = || format!("after {total} kills, the last of {victims:?}");
        assert_eq!(seen["status"], "running", "{}: {seen:#}", about());
        for (name, _) in names() {
            let task = task(&seen, &name);
            assert_eq!((&task["state"], &task["restarts"]), (&"running".into(), &0.into()), "{}: {task:#}", about());
        }
        let now = firsts(&id);
        if now != before {
            // What becomes of it.
            pause(Duration::from_secs(3));
            let later: Vec<_> = before.iter().filter(|first| now.get(first.0) != Some(first.1)).collect();
            let states: Vec<_> = later.iter().map(|(name, _)| task(&view(&world), name).to_string()).collect();
            panic!("{}: not there: {later:?}; now {:?}; {states:#?}", about(), firsts(&id) == before);
        }
        if total % 100 < 2 {
            println!("{total} kills: {killed:?}");
        }
    }
    // Each comes back by itself.
    wait_until(|| executors(&world).len() == executing());
    for (name, _) in names() {
        assert!(assert_counted(&world, &id, &name) > 0);
    }
    world.done(&["stop", "crowd"]);
    for (name, _) in names() {
        assert_counted(&world, &id, &name);
    }
    println!("{test}: {total} kills: {killed:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    wait_until(|| processes(&dir).is_empty());
    world.assert_clean();
    remove_parent(&parent);
}
