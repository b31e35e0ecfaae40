//! Faults at every step of the agent's CSI volumes (F7): the plugin's process, its task, an executor or the agent is killed there,
//! or an answer is lost, in each of the ways in which jobs use volumes. Afterwards nothing of any use is left, and no data is lost.
//! The default is a slice whose seed is printed; `AGENTBIN_FULL=1` has more than a thousand points.

#[path = "../support/agent.rs"]
mod agent;
#[path = "../support/csi_driver.rs"]
mod csi_driver;
#[path = "../support/engine.rs"]
mod engine;
mod load;
mod place;
#[path = "../support/random.rs"]
mod random;
mod ways;
#[path = "../support/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::process::Signal;
use serde_json::json;

use csi_driver::{binary, of_a_job};
use engine::TestEngine;
use place::{Kind, Place, nap};
use random::Random;
use ways::{WAYS, Way};
use world::{World, need_root};

/// Every step of a volume's life that the driver tells.
const STEPS: [(&str, &str); 18] = [
    ("ControllerPublishVolume", "begin"),
    ("ControllerPublishVolume", "end"),
    ("NodeStageVolume", "begin"),
    ("NodeStageVolume", "noted"),
    ("NodeStageVolume", "mounted"),
    ("NodeStageVolume", "end"),
    ("NodePublishVolume", "begin"),
    ("NodePublishVolume", "noted"),
    ("NodePublishVolume", "mounted"),
    ("NodePublishVolume", "end"),
    ("NodeUnpublishVolume", "begin"),
    ("NodeUnpublishVolume", "unmounted"),
    ("NodeUnpublishVolume", "end"),
    ("NodeUnstageVolume", "begin"),
    ("NodeUnstageVolume", "unmounted"),
    ("NodeUnstageVolume", "end"),
    ("ControllerUnpublishVolume", "begin"),
    ("ControllerUnpublishVolume", "end"),
];

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// The connection breaks instead of an answer.
    Lose,
    /// The plugin's process is killed.
    Die,
    /// The agent is killed, and another one started.
    Agent,
    /// The executors of the tasks that use volumes are killed.
    Users,
    /// The executor of the plugin's task is killed.
    Executor,
    /// The plugin's task is restarted by an order.
    Restart,
}

const ACTS: [Act; 6] = [Act::Lose, Act::Die, Act::Agent, Act::Users, Act::Executor, Act::Restart];

impl Place<'_> {
    fn strike(&self, act: Act) {
        match act {
            // By the driver itself.
            Act::Lose | Act::Die => {}
            Act::Agent => self.next_agent(Signal::KILL),
            Act::Users | Act::Executor => self.kill_executors(act == Act::Executor),
            Act::Restart => self.restart_plugin(),
        }
    }

    /// Goes one way with one fault at a step of it.
    fn point(&self, name: &str, way: Way, (call, step): (&str, &str), act: Act) {
        let told = format!("{act:?} at {step} of {call}, {name}");
        let calls = std::fs::File::options().write(true).open(self.driver.path("calls")).unwrap();
        calls.set_len(0).unwrap();
        let does = match (act, step) {
            (Act::Lose, _) => "lose",
            (Act::Die, _) => "die",
            // Before a call has its turn on the volume, the next one would overtake a delayed one, whose caller is dead.
            (Act::Agent, "begin") => "hang",
            _ => "delay",
        };
        self.driver.fault(&json!({ "call": call, "step": step, "do": does, "delay_ms": 500 }));
        let is_over = AtomicBool::new(false);
        let (struck, done) = std::thread::scope(|scope| {
            let striker = scope.spawn(|| {
                while self.driver.faults() == 0 {
                    if is_over.load(Ordering::Relaxed) {
                        return false;
                    }
                    nap();
                }
                self.strike(act);
                true
            });
            let done = catch_unwind(AssertUnwindSafe(|| way(self)));
            is_over.store(true, Ordering::Relaxed);
            (striker.join(), done)
        });
        let settled = done.and_then(|()| catch_unwind(AssertUnwindSafe(|| self.settle())));
        if let Err(panic) = settled {
            println!("{told}");
            resume_unwind(panic);
        }
        assert!(struck.is_ok_and(|struck| struck), "{told}: it did not come to that: {:?}", self.driver.calls());
        let refused = ["FailedPrecondition", "InvalidArgument", "AlreadyExists", "NotFound"];
        for entry in self.driver.entries() {
            let is_refused = refused.iter().any(|code| entry["code"] == **code);
            assert!(!is_refused && !entry["message"].to_string().contains("still"), "{told}: {entry}");
        }
    }
}

/// How many points are drawn: with full counts more than a thousand for the three kinds of plugins, else a few.
const FULL: usize = 400;
const SLICE: usize = 5;

/// Draws points, and goes through them.
fn sweep(test: &str, place: Place<'_>) {
    let mut points = Vec::new();
    for (name, way) in WAYS {
        for step in STEPS {
            // A container has no executor.
            let acts = ACTS.into_iter().filter(|act| place.kind != Kind::Docker || *act != Act::Executor);
            points.extend(acts.map(|act| (name, way, step, act)));
        }
    }
    let mut random = Random::new(test);
    let count = if std::env::var_os("AGENTBIN_FULL").is_some() { FULL } else { SLICE };
    let drawn = random.draw(points, count);
    for (number, (name, way, step, act)) in drawn.into_iter().enumerate() {
        place.point(name, way, step, act);
        if number % 50 == 49 {
            println!("{test}: {} points", number + 1);
            place.all_is_there();
        }
    }
    println!("{test}: {count} points");
    place.all_is_there();
    place.end();
}

#[test]
fn f7_faults_at_every_step_with_a_plugin_of_raw_exec() {
    need_root!();
    let test = "f7_faults_at_every_step_with_a_plugin_of_raw_exec";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    sweep(test, Place::start(&driver, Kind::RawExec, binary, None));
}

/// A data directory on a shared mount, in a mount namespace of this thread and of what it starts.
fn apart() -> World {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    let world = World::new();
    let data = world.data_dir();
    std::fs::create_dir(&data).unwrap();
    // Its files are seen from outside, too: others would take its sockets for those of a directory that is gone.
    mount(Some(&data), &data, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    world
}

#[test]
fn f7_faults_at_every_step_with_a_plugin_of_exec() {
    need_root!();
    let test = "f7_faults_at_every_step_with_a_plugin_of_exec";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(apart());
    sweep(test, Place::start(&driver, Kind::Exec, binary, None));
    umount2(&driver.world.data_dir(), MntFlags::MNT_DETACH).unwrap();
}

#[test]
fn f3_f7_faults_at_every_step_with_a_plugin_in_a_container() {
    need_root!();
    let test = "f3_f7_faults_at_every_step_with_a_plugin_in_a_container";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(apart());
    let engine = match TestEngine::with(&["--bridge=none"]) {
        Ok(engine) => engine,
        Err(reason) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{reason}");
            println!("SKIP: {test}: {reason}");
            return;
        }
    };
    let place = Place::start(&driver, Kind::Docker, binary, Some(&engine));
    let container = engine.docker(&["ps", "-q"]);
    let inside = engine.docker(&["exec", container.trim(), "ls", "/dev"]);
    for device in std::fs::read_dir("/dev").unwrap() {
        let name = device.unwrap().file_name().into_string().unwrap();
        assert!(inside.lines().any(|line| line == name), "/dev/{name} is not in the plugin's container: {inside}");
    }
    sweep(test, place);
    umount2(&driver.world.data_dir(), MntFlags::MNT_DETACH).unwrap();
}
