//! What has no place, why, and what it waits for.

use crate::agent::model::{
    ClientStatus, CsiClaim, CsiInfo, CsiNodeInfo, CsiTopology, CsiVolume, DynamicVolume, EvalStatus, Nanos, Trigger,
    VolumeCapability, VolumeState,
};
use crate::spec::{
    Constraint, CsiUse, HostNetwork, Job, Lifecycle, LifecycleHook, Network, NetworkMode, Operator, Pos, Volume,
};

use super::blocked::{Change, unblocks};
use super::fixture::{changed, constraint, job, network, task};
use super::simulation::{World, end};

/// The texts are those of a real agent.
#[test]
fn what_has_no_place_says_why_and_waits() {
    let no = |change: &dyn Fn(&mut Job)| {
        let mut job = job(1);
        change(&mut job);
        let plan = World::new().register(&job);
        let metric = plan.eval.failed["g"].clone();
        let blocked = plan.evals.iter().find(|eval| eval.id == plan.eval.blocked_eval).unwrap();
        assert_eq!((blocked.status, blocked.triggered_by), (EvalStatus::Blocked, Trigger::QueuedAllocs));
        assert_eq!(blocked.status_description, "created to place remaining allocations");
        let mut said: Vec<String> =
            metric.constraint_filtered.into_keys().chain(metric.dimension_exhausted.into_keys()).collect();
        said.push(metric.reasons.join("; "));
        said
    };
    let of_group = |c: Constraint| no(&move |job: &mut Job| job.groups[0].constraints.push(c.clone()));
    assert_eq!(
        of_group(constraint("${attr.kernel.name}", Operator::Equal, "plan9")),
        ["${attr.kernel.name} = plan9", "the constraint ${attr.kernel.name} = plan9 is not met: this node has linux"]
    );
    assert_eq!(
        no(&|job| job.groups[0].tasks[0].driver = "nope".to_owned()),
        ["missing drivers", "the driver nope is not there"]
    );
    let volume = || Volume { name: "v".to_owned(), source: "nov".to_owned(), ..Volume::default() };
    assert_eq!(
        no(&|job| job.groups[0].volumes.push(volume())),
        ["missing compatible host volumes", "the host volume nov is not configured on this node"]
    );
    assert_eq!(
        no(&|job| job.groups[0].tasks[0].resources.memory_mib = 5000),
        ["memory", "it asks for 5000 MiB of memory, and the node has 4000 left"]
    );
    assert_eq!(
        no(&|job| job.groups[0].tasks[0].resources.cpu_mhz = 5000),
        ["cpu", "it asks for 5000 MHz of cpu, and the node has 4000 left"]
    );
    assert_eq!(
        no(&|job| job.groups[0].tasks[0].resources.cores = 5),
        ["cores", "task t asks for 5 cores of its own, and 4 are free"]
    );
    assert_eq!(
        no(&|job| job.groups[0].scheduling.disk.size_mib = 20_000),
        ["disk", "it asks for 20000 MiB of disk, and the node has 10000 left"]
    );
    assert_eq!(
        no(&|job| job.scheduling.datacenters = vec!["zz*".to_owned()]),
        ["the job wants the data center zz*, and this node is in dc1"]
    );
    assert_eq!(
        no(&|job| job.scheduling.node_pool = "gpu".to_owned()),
        ["the job wants the node pool gpu, and this node is in default"]
    );
    let cni = |job: &mut Job| {
        let mut network = network(&[], 1);
        network.mode = NetworkMode::Cni("foo".to_owned());
        job.groups[0].network = Some(network);
    };
    assert_eq!(no(&cni), ["missing network", "the CNI network foo is not configured on this node"]);
    let public = |job: &mut Job| {
        let mut network = network(&[], 1);
        network.ports[0].host_network = Some(HostNetwork { name: "public".to_owned(), pos: Pos::default() });
        job.groups[0].network = Some(network);
    };
    assert_eq!(
        no(&public),
        [
            "missing host network \"public\" for port \"d0\"",
            "the port d0 wants the host network public, which is not configured on this node"
        ]
    );
}

#[test]
fn tasks_that_never_run_at_once_take_the_same_resources() {
    let add = |job: &mut Job, name: &str, (hook, sidecar): (LifecycleHook, bool)| {
        let mut task = task(name);
        (task.resources.cpu_mhz, task.resources.memory_mib) = (3000, 3000);
        task.lifecycle = Some(Lifecycle { hook, sidecar });
        job.groups[0].tasks.push(task);
    };
    let refused = |job: &Job| World::new().register(job).eval.failed.get("g").map(|metric| metric.reasons.join("; "));
    let mut job = job(1);
    (job.groups[0].tasks[0].resources.cpu_mhz, job.groups[0].tasks[0].resources.memory_mib) = (3000, 3000);
    add(&mut job, "before", (LifecycleHook::Prestart, false));
    add(&mut job, "after", (LifecycleHook::Poststop, false));
    assert_eq!(refused(&job), None);
    for (hook, sidecar) in [(LifecycleHook::Prestart, true), (LifecycleHook::Poststart, false)] {
        let mut beside = job.clone();
        add(&mut beside, "beside", (hook, sidecar));
        let why = refused(&beside);
        assert!(why.as_ref().is_some_and(|why| why.starts_with("it asks for 6000 MHz of cpu")), "{hook:?}: {why:?}");
    }
    // Cores are nobody else's meanwhile.
    job.groups[0].tasks[2].resources.cores = 2;
    assert_eq!(refused(&job).unwrap(), "it asks for 5000 MHz of cpu, and the node has 4000 left");
}

/// A volume that is ready, with one capability.
fn dynamic(access_mode: &str) -> DynamicVolume {
    let capability =
        VolumeCapability { access_mode: access_mode.to_owned(), attachment_mode: "file-system".to_owned() };
    DynamicVolume {
        namespace: "default".to_owned(),
        id: "1".to_owned(),
        name: "data".to_owned(),
        requested_capabilities: vec![capability],
        state: VolumeState::Ready,
        ..DynamicVolume::default()
    }
}

/// A job that uses it.
fn user(access_mode: &str, read_only: bool) -> Job {
    let mut job = job(1);
    let (name, source, access_mode) = ("v".to_owned(), "data".to_owned(), access_mode.to_owned());
    job.groups[0].volumes.push(Volume { name, source, read_only, access_mode, ..Volume::default() });
    job
}

fn offer(world: &mut World, volume: DynamicVolume) {
    world.node.host_volumes.insert(volume.name.clone(), ("/data".to_owned(), false));
    world.node.dynamic_volumes.insert(volume.name.clone(), volume.id.clone());
    world.volumes.push(volume);
}

#[test]
fn f1_a_dynamic_volume_is_used_only_as_it_may_be() {
    let why = |volume: DynamicVolume, job: &Job| {
        let mut world = World::new();
        offer(&mut world, volume);
        let plan = world.register(job);
        plan.eval.failed.get("g").map(|metric| {
            assert_eq!(metric.constraint_filtered.keys().collect::<Vec<_>>(), ["missing compatible host volumes"]);
            metric.reasons.join("; ")
        })
    };
    let (writer, reader) = ("single-node-writer", "single-node-reader-only");
    for (has, asks, read_only) in [
        (writer, "", false),
        (reader, "", true),
        (writer, writer, false),
        ("single-node-multi-writer", "single-node-multi-writer", false),
        ("single-node-multi-writer", "single-node-multi-writer", true),
        ("single-node-single-writer", "single-node-single-writer", false),
    ] {
        assert_eq!(why(dynamic(has), &user(asks, read_only)), None, "{has} {asks} {read_only}");
    }
    for (has, asks, read_only, expected) in [
        (
            writer,
            "",
            true,
            "has no capability single-node-reader-only with file-system; it has single-node-writer with file-system",
        ),
        (reader, "", false, "has no capability single-node-writer"),
        (writer, writer, true, "is used as single-node-writer; remove read_only"),
        (reader, reader, false, "is used as single-node-reader-only; add read_only = true"),
        (writer, "single-node-multi-writer", false, "has no capability single-node-multi-writer"),
    ] {
        let told = why(dynamic(has), &user(asks, read_only)).unwrap();
        assert!(told.starts_with("the host volume data ") && told.contains(expected), "{told}");
    }
    let other = DynamicVolume { namespace: "other".to_owned(), ..dynamic(writer) };
    let told = why(other, &user("", false)).unwrap();
    assert_eq!(told, "the host volume data is of the namespace other, and the job of default");
    let pending = DynamicVolume { state: VolumeState::Unavailable, ..dynamic(writer) };
    assert_eq!(why(pending, &user("", false)).unwrap(), "the host volume data is not ready");
}

#[test]
fn f1_a_volume_with_one_writer_goes_from_one_to_the_next() {
    let single = "single-node-single-writer";
    let mut world = World::new();
    offer(&mut world, dynamic(single));
    let mut two = user(single, false);
    two.groups[0].count = 2;
    let plan = world.register(&two);
    assert_eq!(
        plan.eval.failed["g"].reasons,
        ["the host volume data is used as single-node-single-writer, and web.g[0] writes to it already"]
    );
    world.settle();
    assert_eq!(world.live().len(), 1);
    // Its successor takes it over.
    two.groups[0].count = 1;
    world.register(&two);
    world.register(&changed(&two, "1"));
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v2"]);
    // Another job waits until the writer has ended.
    let mut other = World::beside();
    offer(&mut other, dynamic(single));
    other.writers = vec![("w".to_owned(), "db.g[0]".to_owned())];
    let plan = other.register(&user(single, false));
    assert!(plan.eval.failed["g"].reasons[0].contains("and db.g[0] writes to it already"));
    let blocked = other.evals.iter().find(|eval| eval.status == EvalStatus::Blocked).unwrap();
    assert!(unblocks(blocked, Change::AllocEnded) && unblocks(blocked, Change::NodeChanged));
    other.writers.clear();
    other.wake(Change::AllocEnded);
    assert_eq!(other.live().len(), 1);
}

/// A job that uses the CSI volume `data`.
fn csi_user(read_only: bool) -> Job {
    let mut job = user("", read_only);
    job.groups[0].volumes[0].csi = Some(CsiUse::default());
    job
}

/// A node with a plugin and a volume of it.
fn csi_world() -> World {
    let mut world = World::new();
    let zone = CsiTopology { segments: [("zone".to_owned(), "a".to_owned())].into() };
    let node = CsiNodeInfo { id: "n".to_owned(), max_volumes: 2, topology: Some(zone.clone()) };
    let info = CsiInfo { healthy: true, requires_controller: true, ..CsiInfo::default() };
    world.node.csi_nodes.insert("disk".to_owned(), CsiInfo { node: Some(node), ..info.clone() });
    world.node.csi_controllers.insert("disk".to_owned(), info);
    let capability =
        VolumeCapability { access_mode: "single-node-writer".to_owned(), attachment_mode: "file-system".to_owned() };
    let volume = CsiVolume {
        id: "data".to_owned(),
        plugin_id: "disk".to_owned(),
        topologies: vec![zone],
        requested_capabilities: vec![capability],
        ..CsiVolume::default()
    };
    world.csi.volumes.insert("data".to_owned(), (volume, Vec::new()));
    world
}

fn csi_claim(job: &str, access_mode: &str) -> CsiClaim {
    let (alloc_id, job_id, access_mode) = ("w".to_owned(), job.to_owned(), access_mode.to_owned());
    CsiClaim { alloc_id, job_id, writes: true, access_mode, attachment_mode: "file-system".to_owned() }
}

/// The texts are those of a real agent.
#[test]
fn f5_a_csi_volume_is_used_when_its_plugin_works_and_nobody_else_writes() {
    let why = |change: &dyn Fn(&mut World), read_only: bool| {
        let mut world = csi_world();
        change(&mut world);
        let plan = world.register(&csi_user(read_only));
        let said = plan.eval.failed.get("g").map(|metric| metric.constraint_filtered.keys().next().unwrap().clone());
        if let Some(said) = &said {
            let blocked = world.evals.iter().find(|eval| eval.status == EvalStatus::Blocked).unwrap();
            let is_missing = said.starts_with("missing") || said.starts_with("did");
            assert_eq!(unblocks(blocked, Change::AllocEnded), !is_missing);
            assert!(unblocks(blocked, Change::NodeChanged));
        }
        said
    };
    let used = |world: &mut World, by: CsiClaim| world.csi.volumes.get_mut("data").unwrap().1.push(by);
    assert_eq!(why(&|_| {}, false), None);
    assert_eq!(why(&|_| {}, true), None);
    let said = |change: &dyn Fn(&mut World), read_only: bool| why(change, read_only).unwrap();
    assert_eq!(said(&|world| _ = world.csi.volumes.remove("data"), false), "missing CSI Volume data");
    let gone = |world: &mut World| _ = world.node.csi_nodes.remove("disk");
    assert_eq!(said(&gone, false), "CSI plugin disk is missing from client n");
    let ill = |world: &mut World| world.node.csi_nodes.get_mut("disk").unwrap().healthy = false;
    assert_eq!(said(&ill, false), "CSI plugin disk is unhealthy on client n");
    let full = |world: &mut World| _ = world.csi.by_plugin.insert("disk".to_owned(), 2);
    assert_eq!(said(&full, false), "CSI plugin disk has the maximum number of volumes on client n");
    let elsewhere = |world: &mut World| {
        let zone = CsiTopology { segments: [("zone".to_owned(), "b".to_owned())].into() };
        world.csi.volumes.get_mut("data").unwrap().0.topologies = vec![zone];
    };
    assert_eq!(said(&elsewhere, false), "did not meet topology requirement");
    let uncontrolled = |world: &mut World| _ = world.node.csi_controllers.remove("disk");
    assert_eq!(said(&uncontrolled, false), "CSI volume data is unschedulable or is read-only");
    let reads = "CSI volume data is unschedulable or has exhausted its available reader claims";
    assert_eq!(said(&uncontrolled, true), reads);
    let read_by = |world: &mut World| used(world, csi_claim("db", "multi-node-reader-only"));
    assert_eq!(said(&read_by, false), "CSI volume data is unschedulable or is read-only");
    let written_by = |job: &'static str, mode: &'static str| move |world: &mut World| used(world, csi_claim(job, mode));
    let taken = "CSI volume data has exhausted its available writer claims";
    assert_eq!(said(&written_by("db", "single-node-writer"), false), taken);
    assert_eq!(why(&written_by("db", "single-node-writer"), true), None);
    assert_eq!(why(&written_by("db", "multi-node-multi-writer"), false), None);
    // The job's own ones may be about to end.
    assert_eq!(why(&written_by("web", "single-node-writer"), false), None);
}

#[test]
fn instances_that_have_to_be_apart_are_not_placed_together() {
    let mut world = World::new();
    let mut base = job(3);
    base.constraints.push(constraint("${attr.kernel.name}", Operator::DistinctProperty, "2"));
    let plan = world.register(&base);
    let metric = &plan.eval.failed["g"];
    let texts: Vec<&String> = metric.constraint_filtered.keys().collect();
    assert_eq!(texts, ["distinct_property: ${attr.kernel.name}=linux used by 2 allocs"]);
    assert_eq!(plan.eval.queued_allocations["g"], 1);
    let mut world = World::new();
    let mut base = job(3);
    base.groups[0].constraints.push(constraint("", Operator::DistinctHosts, "true"));
    let plan = world.register(&base);
    let metric = &plan.eval.failed["g"];
    assert!(metric.constraint_filtered.contains_key("distinct_hosts"));
    assert_eq!((plan.eval.queued_allocations["g"], metric.coalesced_failures), (2, 1));
    world.check_idempotent();
}

#[test]
fn what_was_told_to_stop_has_its_place_until_it_has_ended() {
    let mut large = job(1);
    large.groups[0].tasks[0].resources.memory_mib = 3000;
    let (mut web, mut db) = (World::new(), World::beside());
    web.register(&large);
    web.settle();
    web.stop();
    db.others = web.allocs.clone();
    let plan = db.register(&large);
    assert_eq!(plan.eval.failed["g"].reasons, ["it asks for 3000 MiB of memory, and the node has 1000 left"]);
    web.run_client();
    db.others = web.allocs.clone();
    db.wake(Change::AllocEnded);
    assert_eq!(db.live().len(), 1);
    // Its own successor waits for its end, and has its place; so has what is placed with the same decision.
    web.register(&large);
    web.settle();
    web.register(&changed(&large, "1"));
    assert_eq!(web.shown(), ["web.g[0] v3"]);
    web.settle();
    let mut other = large;
    other.groups[0].name = "h".to_owned();
    web.register(&other);
    assert_eq!(web.shown(), ["web.h[0] v4"]);
}

/// A real agent gives two allocations of one group the same fixed port; ours does not (hashicorp/nomad 18509).
#[test]
fn a_fixed_port_has_one_owner_who_is_named_and_goes_to_the_successor() {
    let mut world = World::new();
    let mut base = job(2);
    base.groups[0].network = Some(network(&[8080], 1));
    let plan = world.register(&base);
    let metric = &plan.eval.failed["g"];
    assert_eq!(metric.dimension_exhausted.keys().collect::<Vec<_>>(), ["network: reserved port collision p8080=8080"]);
    assert_eq!(metric.reasons, ["port 8080 is held by job web, task t"]);
    world.settle();
    base.groups[0].count = 1;
    world.register(&base);
    world.settle();
    world.register(&changed(&base, "1"));
    world.check();
    assert_eq!(world.shown(), ["web.g[0] v2"]);
    let ports: Vec<u16> = world.live()[0].allocated_resources.shared.ports.iter().map(|port| port.value).collect();
    assert_eq!(ports[0], 8080);
    assert_ne!(
        ports[1], world.allocs[0].allocated_resources.shared.ports[1].value,
        "a dynamic port is not given again"
    );
}

#[test]
fn a_port_that_something_else_has_is_not_given_away() {
    let mut world = World::new();
    world.taken = (20_000..20_008).chain([8080]).collect();
    let mut base = job(1);
    base.groups[0].network = Some(network(&[], 3));
    let plan = world.register(&base);
    let metric = &plan.eval.failed["g"];
    assert!(metric.dimension_exhausted.contains_key("network: dynamic port selection failed"));
    base.groups[0].network = Some(network(&[8080], 0));
    let plan = world.register(&base);
    assert_eq!(plan.eval.failed["g"].reasons, ["port 8080 is held by a program that is not an allocation"]);
    let blocked = world.evals.iter().find(|eval| eval.status == EvalStatus::Blocked).unwrap();
    assert!(unblocks(blocked, Change::PortFreed) && unblocks(blocked, Change::AllocEnded));
    world.taken.clear();
    world.wake(Change::PortFreed);
    assert_eq!(world.live().len(), 1);
    assert!(world.evals.iter().all(|eval| eval.status.is_terminal()), "what waited has ended");
}

#[test]
fn no_number_is_too_large_to_be_refused() {
    for (cpu, memory, disk) in [(u64::MAX, 1, 1), (u64::MAX / 2 + 1, 1, 1), (1, i64::MAX, 1), (1, 1, u64::MAX)] {
        let mut job = job(2);
        let (twin, group) = (job.groups[0].tasks[0].clone(), &mut job.groups[0]);
        group.tasks.push(crate::spec::Task { name: "u".to_owned(), ..twin });
        for task in &mut group.tasks {
            (task.resources.cpu_mhz, task.resources.memory_mib) = (cpu, memory);
        }
        group.scheduling.disk.size_mib = disk;
        let plan = World::new().register(&job);
        assert!(plan.allocs.is_empty(), "{cpu} {memory} {disk}");
        assert_eq!(plan.eval.failed["g"].nodes_exhausted, 1);
    }
}

#[test]
fn a_port_of_the_group_s_own_is_not_given_to_another_name_of_it() {
    let mut job = job(1);
    let mut network = network(&[20_000], 1);
    network.ports.reverse();
    job.groups[0].network = Some(network);
    let plan = World::new().register(&job);
    let ports: Vec<u16> = plan.allocs[0].allocated_resources.shared.ports.iter().map(|port| port.value).collect();
    assert_eq!(ports, [20_001, 20_000]);
}

/// More than the kernel gives a bridge ports fail on the node, one by one; here they wait by name, and go on when one has ended.
#[test]
fn what_the_bridge_has_no_room_for_waits_by_name() {
    let mut world = World::new();
    world.node.networks.push("bridge".to_owned());
    let most = u32::try_from(crate::net::MOST_ON_BRIDGE).unwrap();
    let mut base = job(most + 2);
    base.groups[0].network = Some(Network { mode: NetworkMode::Bridge, ..network(&[], 0) });
    let resources = &mut base.groups[0].tasks[0].resources;
    (resources.cpu_mhz, resources.memory_mib) = (0, 0);
    base.groups[0].scheduling.disk.size_mib = 0;
    let plan = world.register(&base);
    let metric = &plan.eval.failed["g"];
    assert_eq!(metric.dimension_exhausted.keys().collect::<Vec<_>>(), ["network: bridge is full"]);
    assert!(metric.reasons[0].starts_with("1023 allocations are on the bridge"), "{:?}", metric.reasons);
    assert_eq!((world.live().len(), plan.eval.queued_allocations["g"]), (1023, 2));
    // Who has ended makes room.
    for alloc in world.allocs.iter_mut().take(2) {
        end(alloc, ClientStatus::Complete, Nanos(1));
    }
    world.wake(Change::AllocEnded);
    assert_eq!(world.live().len(), 1023);
    // Another mode needs none.
    base.groups[0].network = Some(network(&[], 0));
    let plan = world.register(&base);
    assert!(plan.eval.failed.is_empty(), "{:?}", plan.eval.failed);
}
