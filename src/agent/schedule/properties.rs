//! J6: whatever happens in whatever order: the counts hold, a port has one owner also among jobs, a plan's numbers are what then
//! happens, a second look changes nothing, and what goes on by itself comes to an end.

use std::time::Duration;

use proptest::prelude::*;

use crate::agent::model::{ClientStatus, DesiredStatus, DrainSpec, Eligibility, Trigger};
use crate::spec::{Job, JobType};

use super::blocked::Change;
use super::deploy::{DeploymentInput, fail_deployment, pause_deployment, promote_deployment};
use super::drain::drain_strategy;
use super::fixture::{group, network, of_kind};
use super::simulation::{World, end};

#[derive(Debug, Clone)]
enum Op {
    Register { count: u32, env: u8, timeout: u8, canary: u32, parallel: u32, second: bool, flags: u8 },
    Stop,
    Break(bool),
    End(usize, ClientStatus),
    AllocStop(usize),
    Drain(bool),
    Take(u16, bool),
    Promote,
    Pause(bool),
    Fail,
    Wait(u64),
    Client,
    Deployment,
}

fn op() -> impl Strategy<Value = Op> {
    let register = (0..6u32, 0..3u8, 0..3u8, 0..3u32, 1..4u32, any::<bool>(), 0..32u8).prop_map(
        |(count, env, timeout, canary, parallel, second, flags)| Op::Register {
            count,
            env,
            timeout,
            canary,
            parallel,
            second,
            flags,
        },
    );
    let status = prop_oneof![Just(ClientStatus::Failed), Just(ClientStatus::Complete), Just(ClientStatus::Lost)];
    prop_oneof![
        6 => register,
        1 => Just(Op::Stop),
        1 => any::<bool>().prop_map(Op::Break),
        3 => (0..8usize, status).prop_map(|(at, status)| Op::End(at, status)),
        2 => (0..8usize).prop_map(Op::AllocStop),
        1 => any::<bool>().prop_map(Op::Drain),
        2 => (20_000..20_010u16, any::<bool>()).prop_map(|(port, taken)| Op::Take(port, taken)),
        2 => Just(Op::Promote),
        1 => any::<bool>().prop_map(Op::Pause),
        1 => Just(Op::Fail),
        2 => (1..2000u64).prop_map(Op::Wait),
        4 => Just(Op::Client),
        4 => Just(Op::Deployment),
    ]
}

fn spec(kind: JobType, op: &Op) -> Option<Job> {
    let Op::Register { count, env, timeout, canary, parallel, second, flags } = op else { return None };
    let mut job = of_kind(kind, *count);
    if *second {
        job.groups.push(group(kind, "h", (*count).min(2)));
    }
    for group in &mut job.groups {
        let task = &mut group.tasks[0];
        task.env.insert("X".to_owned(), env.to_string());
        task.kill_timeout = Duration::from_secs(u64::from(*timeout) + 1);
        task.resources.cores = u32::from(flags & 1);
        let fixed: &[u16] = if flags & 2 > 0 && group.name == "g" { &[20_004] } else { &[] };
        group.network = Some(network(fixed, usize::from(flags & 4 > 0)));
        if let Some(update) = &mut group.scheduling.update {
            (update.canary, update.max_parallel) = (*canary, *parallel);
            (update.auto_promote, update.auto_revert) = (flags & 8 > 0, flags & 16 > 0);
        }
    }
    Some(job)
}

fn command(world: &mut World, op: &Op) {
    let versions: Vec<_> = world.versions.iter().map(|(version, _)| version.clone()).collect();
    let Some(deployment) = world.deployments.last().cloned() else { return };
    let (allocs, now) = (&world.allocs, world.now);
    let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
    let step = match op {
        Op::Promote => promote_deployment(&input, None),
        Op::Pause(pause) => pause_deployment(&input, *pause),
        _ => fail_deployment(&input),
    };
    if let Ok(step) = step {
        world.carry_out(step);
    }
}

fn step(world: &mut World, kind: JobType, op: &Op) {
    match op {
        Op::Register { .. } => {
            if let Some(job) = spec(kind, op) {
                world.register(&job);
            }
        }
        _ if world.versions.is_empty() => {}
        Op::Stop => {
            world.stop();
        }
        Op::Break(broken) => {
            let newest = world.versions.len() as u64 - 1;
            if *broken {
                world.broken.insert(newest)
            } else {
                world.broken.remove(&newest)
            };
        }
        Op::End(at, status) => {
            let now = world.now;
            let mut live = world.allocs.iter_mut().filter(|alloc| alloc.client_status == ClientStatus::Running);
            if let Some(alloc) = live.nth(*at) {
                end(alloc, *status, now);
                world.evaluate(Trigger::AllocFailure);
                world.wake(Change::AllocEnded);
            }
        }
        Op::AllocStop(at) => {
            let mut live = world.allocs.iter_mut().filter(|alloc| !alloc.is_terminal());
            if let Some(alloc) = live.nth(*at) {
                alloc.desired_transition.migrate = Some(true);
                world.evaluate(Trigger::AllocStop);
            }
        }
        Op::Drain(true) => {
            world.node.drain_strategy = Some(drain_strategy(DrainSpec::default(), world.now));
            world.node.scheduling_eligibility = Eligibility::Ineligible;
            let live = world.allocs.iter_mut().filter(|alloc| !alloc.is_terminal());
            live.for_each(|alloc| alloc.desired_transition.migrate = Some(true));
            world.evaluate(Trigger::NodeDrain);
        }
        Op::Drain(false) => {
            world.node.drain_strategy = None;
            world.node.scheduling_eligibility = Eligibility::Eligible;
            world.wake(Change::NodeEligible);
        }
        Op::Take(port, true) => {
            world.taken.insert(*port);
        }
        Op::Take(port, false) => {
            world.taken.remove(port);
            world.wake(Change::PortFreed);
        }
        Op::Promote | Op::Pause(_) | Op::Fail => command(world, op),
        Op::Wait(seconds) => world.now = world.now.plus(Duration::from_secs(*seconds)),
        Op::Client => {
            world.run_client();
        }
        Op::Deployment => {
            world.run_deployment();
        }
    }
    world.check();
}

/// After everything that stands in the way is gone, there is what the job says.
fn is_reached(world: &mut World) {
    world.broken.clear();
    world.taken.clear();
    step(world, JobType::Service, &Op::Drain(false));
    world.settle();
    let Some((version, job)) = world.newest().cloned() else { return };
    let mut last = (*job).clone();
    last.groups[0].tasks[0].env.insert("X".to_owned(), "last".to_owned());
    for group in &mut last.groups {
        group.network = None;
        group.tasks[0].resources.cores = 0;
        if let Some(update) = &mut group.scheduling.update {
            update.canary = 0;
        }
    }
    if version.stop {
        assert!(world.live().is_empty());
        return;
    }
    world.register(&last);
    world.settle();
    world.check_idempotent();
    let newest = world.versions.len() as u64 - 1;
    for group in &last.groups {
        let wanted = if job.kind == JobType::System { group.count.min(1) } else { group.count };
        let is_there = |alloc: &&crate::agent::model::Allocation| {
            alloc.task_group == group.name
                && alloc.job_version == newest
                && alloc.desired_status == DesiredStatus::Run
                && matches!(alloc.client_status, ClientStatus::Running | ClientStatus::Complete)
        };
        let there = world.allocs.iter().filter(is_there).count() as u32;
        assert_eq!(there, wanted, "{} of {}", group.name, world.shown().join(", "));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_invariants_hold_and_it_ends(
        kind in kind(),
        ops in prop::collection::vec(op(), 1..25),
    ) {
        let mut world = World::new();
        for op in &ops {
            step(&mut world, kind, op);
            if matches!(op, Op::Register { .. }) {
                world.check_idempotent();
            }
        }
        world.settle();
        is_reached(&mut world);
    }

    /// Neither takes what the other one has, whatever happens to which of them, and what one leaves the other one gets.
    #[test]
    fn two_jobs_share_one_machine(
        kinds in [kind(), kind()],
        ops in prop::collection::vec((0..2usize, op()), 1..30),
    ) {
        let mut worlds = [World::new(), World::beside()];
        for (at, op) in &ops {
            look_around(&mut worlds, *at);
            step(&mut worlds[*at], kinds[*at], op);
            look_around(&mut worlds, 1 - at);
            if !worlds[1 - at].versions.is_empty() {
                worlds[1 - at].wake(Change::AllocEnded);
            }
        }
        for at in [0, 1, 0] {
            look_around(&mut worlds, at);
            worlds[at].settle();
        }
        look_around(&mut worlds, 1);
        step(&mut worlds[1], kinds[1], &Op::Stop);
        worlds[1].settle();
        look_around(&mut worlds, 0);
        is_reached(&mut worlds[0]);
    }
}

fn kind() -> impl Strategy<Value = JobType> {
    prop_oneof![
        4 => Just(JobType::Service), 2 => Just(JobType::Batch), 1 => Just(JobType::System), 1 => Just(JobType::Sysbatch)
    ]
}

/// What the other job has now.
fn look_around(worlds: &mut [World; 2], at: usize) {
    worlds[at].others = worlds[1 - at].allocs.clone();
}

/// A slice by default; `AGENTBIN_FULL=1` for many.
fn cases() -> u32 {
    if std::env::var_os("AGENTBIN_FULL").is_some() { 20_000 } else { 300 }
}
