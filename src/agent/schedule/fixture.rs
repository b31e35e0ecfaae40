//! Jobs, nodes and allocations for tests.

use std::time::Duration;

use crate::agent::model::{
    DriverInfo, Eligibility, EvalStatus, Evaluation, JobKey, JobStatus, JobVersion, Nanos, Node, NodeResources,
    NodeStatus, Trigger,
};
use crate::jobspec::GroupChange;
use crate::spec::collections::BTreeMap;
use crate::spec::{
    Constraint, DriverConfig, Group, GroupScheduling, Job, JobScheduling, JobType, LogConfig, LogKeeping, Network,
    Operator, Port, Pos, RestartMode, RestartPolicy, Task, TaskResources, Update,
};

pub(super) const SECOND: i64 = 1_000_000_000;

/// A service `web` with one group `g` of one task `t`, and short times.
pub(super) fn job(count: u32) -> Job {
    of_kind(JobType::Service, count)
}

pub(super) fn of_kind(kind: JobType, count: u32) -> Job {
    Job {
        id: "web".to_owned(),
        name: "web".to_owned(),
        kind,
        region: "global".to_owned(),
        namespace: "default".to_owned(),
        priority: 50,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        scheduling: JobScheduling::default(),
        groups: vec![group(kind, "g", count)],
    }
}

pub(super) fn group(kind: JobType, name: &str, count: u32) -> Group {
    let mut scheduling = GroupScheduling::of(kind);
    if kind == JobType::System {
        scheduling.update = Some(Update::default());
    }
    Group {
        name: name.to_owned(),
        count,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        shutdown_delay: Duration::ZERO,
        network: None,
        volumes: Vec::new(),
        services: Vec::new(),
        scheduling,
        tasks: vec![task("t")],
        pos: Pos::default(),
    }
}

pub(super) fn task(name: &str) -> Task {
    let restart = RestartPolicy {
        attempts: 0,
        interval: Duration::from_mins(1),
        delay: Duration::from_secs(1),
        mode: RestartMode::Fail,
        render_templates: false,
    };
    Task {
        name: name.to_owned(),
        driver: "raw_exec".to_owned(),
        config: DriverConfig::default(),
        env: BTreeMap::new(),
        user: String::new(),
        resources: TaskResources { cpu_mhz: 100, cores: 0, memory_mib: 100, memory_max_mib: 0, secrets_mib: 0 },
        network: None,
        logs: LogConfig { max_files: 10, max_file_size_mib: 10, disabled: false, keeping: LogKeeping::default() },
        kill_signal: None,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay: Duration::ZERO,
        restart,
        lifecycle: None,
        leader: false,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        templates: Vec::new(),
        artifacts: Vec::new(),
        volume_mounts: Vec::new(),
        dispatch_payload: None,
        csi_plugin: None,
        services: Vec::new(),
        pos: Pos::default(),
    }
}

/// A network with these fixed ports, and so many others.
pub(super) fn network(fixed: &[u16], dynamic: usize) -> Network {
    let fixed =
        fixed.iter().map(|port| Port { label: format!("p{port}"), static_port: Some(*port), ..Port::default() });
    let dynamic = (0..dynamic).map(|n| Port { label: format!("d{n}"), ..Port::default() });
    Network { ports: fixed.chain(dynamic).collect(), ..Network::default() }
}

pub(super) fn version(number: u64) -> JobVersion {
    JobVersion {
        key: JobKey { namespace: "default".to_owned(), id: "web".to_owned() },
        version: number,
        spec: serde_json::Map::new(),
        stop: false,
        stable: false,
        status: JobStatus::Pending,
        status_description: String::new(),
        parent_id: String::new(),
        dispatched: false,
        payload: String::new(),
        dispatch_idempotency_token: String::new(),
        submit_time: Nanos(0),
        version_tag: None,
        create_index: 1,
        modify_index: 1,
        job_modify_index: 1,
    }
}

pub(super) fn node() -> Node {
    let driver = DriverInfo { detected: true, healthy: true, ..DriverInfo::default() };
    Node {
        id: "n".to_owned(),
        name: "node".to_owned(),
        datacenter: "dc1".to_owned(),
        node_class: String::new(),
        node_pool: "default".to_owned(),
        http_addr: String::new(),
        tls_enabled: false,
        attributes: BTreeMap::from([
            ("kernel.name".to_owned(), "linux".to_owned()),
            ("unique.network.ip-address".to_owned(), "10.0.0.1".to_owned()),
        ]),
        meta: BTreeMap::new(),
        static_meta: BTreeMap::new(),
        dynamic_meta: BTreeMap::new(),
        resources: NodeResources {
            cpu_mhz: 4000,
            cores: 4,
            reservable_cores: vec![0, 1, 2, 3],
            memory_mb: 4000,
            disk_mb: 10_000,
            min_dynamic_port: 20_000,
            max_dynamic_port: 20_009,
            ..NodeResources::default()
        },
        drivers: BTreeMap::from([("raw_exec".to_owned(), driver)]),
        host_volumes: BTreeMap::new(),
        csi_controllers: BTreeMap::new(),
        csi_nodes: BTreeMap::new(),
        dynamic_volumes: BTreeMap::new(),
        configured_networks: Vec::new(),
        host_networks: BTreeMap::new(),
        networks: Vec::new(),
        drain_strategy: None,
        last_drain: None,
        scheduling_eligibility: Eligibility::Eligible,
        status: NodeStatus::Ready,
        status_description: String::new(),
        status_updated_at: 0,
        events: Vec::new(),
        create_index: 1,
        modify_index: 1,
    }
}

pub(super) fn evaluation(id: &str, kind: JobType, why: Trigger) -> Evaluation {
    Evaluation {
        id: id.to_owned(),
        namespace: "default".to_owned(),
        priority: 50,
        kind,
        triggered_by: why,
        job_id: "web".to_owned(),
        job_modify_index: 0,
        node_id: String::new(),
        deployment_id: String::new(),
        status: EvalStatus::Pending,
        status_description: String::new(),
        wait: Nanos(0),
        wait_until_nanos: Nanos(0),
        next_eval: String::new(),
        previous_eval: String::new(),
        blocked_eval: String::new(),
        failed: BTreeMap::new(),
        plan_annotations: BTreeMap::new(),
        queued_allocations: BTreeMap::new(),
        snapshot_index: 0,
        create_index: 0,
        modify_index: 0,
        create_time: Nanos(0),
        modify_time: Nanos(0),
    }
}

/// What a new version does to the allocations of a group, for jobs that were never written down: `jobspec::group_change` has the
/// whole rule.
pub(super) fn change(old: Option<&Job>, new: Option<&Job>, name: &str) -> GroupChange {
    let seen = |job: Option<&Job>| {
        let group = job?.groups.iter().find(|group| group.name == name)?;
        let task = |task: &Task| format!("{:?}", (&task.name, &task.driver, &task.config, &task.env, &task.resources));
        let tasks: Vec<String> = group.tasks.iter().map(task).collect();
        Some((tasks, format!("{:?}", (&group.network, &group.volumes, &group.scheduling.disk, &job?.meta))))
    };
    if old == new {
        GroupChange::None
    } else if seen(old).is_some() && seen(old) == seen(new) {
        GroupChange::InPlace
    } else {
        GroupChange::Destructive
    }
}

/// The same job with another environment, which takes new processes.
pub(super) fn changed(job: &Job, value: &str) -> Job {
    let mut job = job.clone();
    job.groups[0].tasks[0].env.insert("X".to_owned(), value.to_owned());
    job
}

pub(super) fn constraint(attribute: &str, operator: Operator, value: &str) -> Constraint {
    Constraint { attribute: attribute.to_owned(), operator, value: value.to_owned(), pos: Pos::default() }
}
