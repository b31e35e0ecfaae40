//! Services of allocations whose tasks are scripts.

use std::path::PathBuf;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::alloc::control::TaskLife;
use crate::alloc::fake::{self, Act, FakeDriver, task};
use crate::alloc::owner::Owner as RunOwner;
use crate::alloc::place::Machine;
use crate::alloc::run::Alloc;
use crate::alloc::{Assignment, Stop};
use crate::spec::{HttpCheck, Job, OnUpdate, Pos, RestartMode, RestartPolicy, ServiceProvider};

fn machine(data: &tempfile::TempDir, scripts: &[(&str, &[Act])]) -> (Arc<Machine>, Arc<FakeDriver>) {
    let driver = FakeDriver::new(scripts);
    (Arc::new(machine_of(data, &driver, RunOwner::default())), driver)
}

/// Another process on the same data directory.
fn machine_of(data: &tempfile::TempDir, driver: &Arc<FakeDriver>, owner: RunOwner) -> Machine {
    let path = data.path().canonicalize().unwrap();
    let node = super::super::Node { ip: Ipv4Addr::LOCALHOST.into(), ..(*fake::node()).clone() };
    let services = Services::of_machine(path.join("run/services"));
    Machine { node: Arc::new(node), services, ..fake::machine(&path, driver, owner) }
}

fn service(name: &str, port: u16) -> Service {
    Service {
        name: name.to_owned(),
        provider: ServiceProvider::Nomad,
        port: port.to_string(),
        tags: vec!["${TASKGROUP}-${NOMAD_ALLOC_INDEX}".to_owned()],
        canary_tags: Vec::new(),
        meta: BTreeMap::new(),
        canary_meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        address: String::new(),
        address_mode: AddressMode::Auto,
        task: String::new(),
        enable_tag_override: false,
        cluster: String::new(),
        kind: String::new(),
        weights: None,
        on_update: OnUpdate::RequireHealthy,
        checks: vec![Check {
            name: "alive".to_owned(),
            kind: CheckKind::Tcp,
            port: String::new(),
            address_mode: None,
            interval: Duration::from_millis(20),
            timeout: Duration::from_secs(10),
            initial_status: None,
            success_before_passing: 0,
            failures_before_critical: 0,
            failures_before_warning: None,
            restart: None,
            on_update: OnUpdate::RequireHealthy,
            notes: String::new(),
            pos: Pos::default(),
        }],
        pos: Pos::default(),
    }
}

/// A name whose references have something else than letters, digits and dashes is found before the task starts.
#[tokio::test]
async fn j3_a_task_with_a_service_whose_name_is_none_does_not_start() {
    let data = tempfile::tempdir().unwrap();
    let (machine, driver) = machine(&data, &[("web", &[Act::UntilStopped(0)])]);
    let names = [("${JOB}-${NOMAD_META_who}", "(job-a b)"), ("${TASK}-", "(web-)"), ("-${BASE}", "(-job-")];
    for (name, expected) in names {
        let mut web = task("web");
        web.services = vec![service(name, 7)];
        web.meta.insert("who".to_owned(), "a b".to_owned());
        let (mut alloc, control) = set_up(&machine, &Arc::new(fake::job(vec![web]))).await;
        let (sender, _events) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(Stop::No);
        let result = alloc.run(stop.subscribe(), sender).await;
        assert!(result.tasks[0].failed, "{result:?}");
        let told = control.tasks()[0].events.iter().map(|event| event.message.clone()).collect::<Vec<_>>().join("\n");
        assert!(told.contains(&format!("service {expected}")) && told.contains("failed validation"), "{told}");
        assert_eq!(alloc.destroy().await.len(), 0);
    }
    assert_eq!(driver.log(), [""; 0]);
}

#[test]
fn j3_keys_of_services_have_references_as_well() {
    let (offers, owner) = offers(Vec::new(), None);
    let pair = || BTreeMap::from([("${TASK}_k".to_owned(), "${TASK}_v".to_owned())]);
    let mut web = Service { meta: pair(), tagged_addresses: pair(), ..service("web", 7) };
    web.checks[0].kind = CheckKind::Http(HttpCheck {
        tls: false,
        tls_skip_verify: false,
        tls_server_name: String::new(),
        path: "/".to_owned(),
        method: "GET".to_owned(),
        headers: BTreeMap::from([("X-${TASK}".to_owned(), vec!["${TASK}".to_owned()])]),
        body: String::new(),
    });
    let registration = offers.registration(&owner, &web).unwrap();
    for found in [registration.meta, registration.tagged_addresses] {
        assert_eq!(found, BTreeMap::from([("web_k".to_owned(), "web_v".to_owned())]));
    }
    let Ok(Probe::Http(_, http)) = offers.probe(&owner, &web, &web.checks[0]) else { panic!() };
    assert_eq!(http.headers, [("X-web".to_owned(), "web".to_owned())]);
}

/// The only allocation of a job, set up, and its control.
async fn set_up(machine: &Arc<Machine>, job: &Arc<Job>) -> (Alloc, Arc<Control>) {
    let mut alloc = Alloc::new(machine, job, Assignment::new(job, 0, 0));
    alloc.set_up().await.unwrap();
    let control = alloc.control();
    (alloc, control)
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), what).await.expect("it comes")
}

#[tokio::test]
async fn j3_health_follows_the_checks_and_all_is_withdrawn_in_the_end() {
    let data = tempfile::tempdir().unwrap();
    let (machine, _) = machine(&data, &[("web", &[Act::UntilStopped(0)])]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut job =
        fake::job(vec![crate::spec::Task { services: vec![service("of-task", address.port())], ..task("web") }]);
    job.groups[0].services = vec![service("of-group", address.port())];
    let (mut alloc, control) = set_up(&machine, &Arc::new(job)).await;
    let mut health = control.health();
    assert_eq!((health.borrow().checks, health.borrow().since), (2, None));
    let (sender, _events) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(Stop::No);
    let look = async {
        within(health.wait_for(|health| health.since.is_some())).await.unwrap();
        let view = control.view();
        let seen: Vec<_> = view.services.iter().map(|s| (&*s.name, &*s.status, s.port, &*s.tags[0])).collect();
        let port = address.port();
        assert_eq!(seen, [("of-group", "passing", port, "group-0"), ("of-task", "passing", port, "group-0")]);
        drop(listener);
        within(health.wait_for(|health| health.since.is_none())).await.unwrap();
        within(health.wait_for(|health| health.healthy == 0)).await.unwrap();
        let again = TcpListener::bind(address).await.unwrap();
        within(health.wait_for(|health| health.since.is_some())).await.unwrap();
        let listed = machine.services.list().unwrap().services;
        assert_eq!(listed.len(), 2);
        assert!(listed.iter().all(|s| s.modify_index >= s.create_index && s.create_index > 0), "{listed:?}");
        stop.send_replace(Stop::Gracefully);
        again
    };
    let (_, _again) = tokio::join!(alloc.run(stop.subscribe(), sender), look);
    assert_eq!(machine.services.list().unwrap().services, []);
    assert_eq!(control.view().services, []);
    assert_eq!(alloc.destroy().await.len(), 0);
}

#[tokio::test]
async fn j3_a_check_of_the_group_restarts_its_task_and_counts() {
    let data = tempfile::tempdir().unwrap();
    let (machine, driver) = machine(&data, &[("web", &[Act::UntilStopped(0)]), ("side", &[Act::UntilStopped(0)])]);
    // No process listens there any more.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut web = task("web");
    let (interval, delay, mode) = (Duration::from_mins(10), Duration::ZERO, RestartMode::Fail);
    web.restart = RestartPolicy { attempts: 1, interval, delay, mode, render_templates: false };
    let mut job = fake::job(vec![web, task("side")]);
    let mut offered = service("web", port);
    offered.task = "web".to_owned();
    offered.checks[0].restart = Some(CheckRestart { limit: 3, grace: Duration::ZERO, ignore_warnings: false });
    job.groups[0].services = vec![offered];
    let assignment = Assignment::new(&job, 0, 0);
    let mut alloc = Alloc::new(&machine, &Arc::new(job), assignment);
    alloc.set_up().await.unwrap();
    let (sender, mut events) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(Stop::No);
    let result = within(alloc.run(stop.subscribe(), sender)).await;
    let starts = |name: &str| driver.log().iter().filter(|line| **line == format!("start {name}")).count();
    assert_eq!((starts("web"), starts("side")), (2, 1), "{:?}", driver.log());
    let failure = result.first_failure.unwrap();
    assert_eq!(failure.task, "web");
    assert!(
        matches!(&failure.outcome, crate::alloc::Outcome::Error(e) if e.message.contains("unhealthy")),
        "{failure:?}"
    );
    let mut signaled = Vec::new();
    while let Ok(event) = events.try_recv() {
        if event.event.kind == crate::spec::EventKind::RestartSignaled {
            signaled.push(event.event.message);
        }
    }
    assert_eq!(signaled, ["healthcheck: check \"alive\" unhealthy"; 2]);
    assert_eq!(alloc.destroy().await.len(), 0);
}

/// A later version of the job is applied to a running allocation: unchanged services go on, with the results of their checks,
/// and so does the task, which is finally stopped according to the new version.
#[tokio::test]
async fn j3_an_update_in_place_changes_registrations_and_restarts_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (machine, driver) = machine(&data, &[("web", &[Act::UntilStopped(0)])]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut job = fake::job(vec![crate::spec::Task { services: vec![service("of-task", port)], ..task("web") }]);
    let mut again = job.clone();
    job.groups[0].services = vec![service("same", port), service("gone", port)];
    let mut changed = service("of-task", port);
    changed.tags = vec!["new".to_owned()];
    again.groups[0].tasks[0].services = vec![changed];
    again.groups[0].tasks[0].kill_timeout = Duration::from_secs(77);
    again.groups[0].services = vec![service("same", port), service("more", port)];
    let (mut alloc, control) = set_up(&machine, &Arc::new(job)).await;
    let mut health = control.health();
    let (sender, _events) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(Stop::No);
    let look = async {
        within(health.wait_for(|health| health.since.is_some())).await.unwrap();
        assert!(control.has_announced());
        let index = |name: &str| {
            let own = machine.services.own();
            own.into_iter().find(|s| s.service_name == name).map(|s| (s.create_index, s.modify_index))
        };
        let mut changes = machine.services.own_changes();
        let passes = |service: &Registration| service.status == CheckStatus::Passing;
        while !(machine.services.own().iter().all(passes) && machine.services.is_written()) {
            within(changes.changed()).await.unwrap();
        }
        let (same, of_task) = (index("same").unwrap(), index("of-task").unwrap());
        control.update(&Arc::new(again));
        assert!(!control.has_announced(), "the new ones are not registered yet");
        let is_new = |services: &[Registration]| {
            let mut found: Vec<_> = services.iter().map(|s| (&*s.service_name, &*s.tags[0])).collect();
            found.sort_unstable();
            found == [("more", "group-0"), ("of-task", "new"), ("same", "group-0")]
        };
        while !is_new(&machine.services.own()) {
            within(changes.changed()).await.unwrap();
        }
        let own = machine.services.own();
        let of_name = |name: &str| own.iter().find(|s| s.service_name == name).unwrap();
        assert_eq!(of_name("of-task").status, CheckStatus::Passing, "what its check has found is known");
        assert_eq!(of_name("of-task").create_index, of_task.0);
        assert_eq!(index("same"), Some(same), "it was not touched");
        within(health.wait_for(|health| health.healthy == 3)).await.unwrap();
        assert!(control.has_announced());
        stop.send_replace(Stop::Gracefully);
    };
    tokio::join!(alloc.run(stop.subscribe(), sender), look);
    let log = driver.log();
    assert_eq!(log.iter().filter(|line| *line == "start web").count(), 1, "{log:?}");
    assert!(log.iter().any(|line| line.starts_with("stop web") && line.ends_with("77s")), "{log:?}");
    assert_eq!(machine.services.own(), []);
    assert_eq!(alloc.destroy().await.len(), 0);
}

/// A healthy task is not restarted because of the initial status of its check, and an update in place keeps the last one.
#[tokio::test]
async fn j3_a_status_that_was_not_found_restarts_nothing() {
    let data = tempfile::tempdir().unwrap();
    let (machine, driver) = machine(&data, &[("web", &[Act::UntilStopped(0)])]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut offered = service("web", listener.local_addr().unwrap().port());
    let check = &mut offered.checks[0];
    (check.initial_status, check.success_before_passing) = (Some(CheckStatus::Critical), 5);
    check.restart = Some(CheckRestart { limit: 1, grace: Duration::ZERO, ignore_warnings: false });
    let mut job = fake::job(vec![task("web")]);
    job.groups[0].services = vec![offered];
    let mut again = job.clone();
    again.groups[0].services[0].tags = vec!["new".to_owned()];
    let (mut alloc, control) = set_up(&machine, &Arc::new(job)).await;
    let mut health = control.health();
    let (sender, _events) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(Stop::No);
    let look = async {
        let since = within(health.wait_for(|health| health.since.is_some())).await.unwrap().since;
        control.update(&Arc::new(again));
        let mut changes = machine.services.own_changes();
        while machine.services.own()[0].tags != ["new"] {
            within(changes.changed()).await.unwrap();
        }
        let time = || control.services()[0].checks[0].timestamp.clone();
        let before = time();
        within(async {
            while time() == before {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        assert_eq!(control.health().borrow().since, since);
        stop.send_replace(Stop::Gracefully);
    };
    tokio::join!(alloc.run(stop.subscribe(), sender), look);
    assert_eq!(driver.log().iter().filter(|line| *line == "start web").count(), 1, "{:?}", driver.log());
    assert_eq!(alloc.destroy().await.len(), 0);
}

#[tokio::test]
async fn j3_a_canary_has_its_own_tags_until_it_is_promoted() {
    let data = tempfile::tempdir().unwrap();
    let (machine, _) = machine(&data, &[("web", &[Act::UntilStopped(0)])]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut offered = service("web", listener.local_addr().unwrap().port());
    offered.canary_tags = vec!["canary-${NOMAD_ALLOC_INDEX}".to_owned()];
    let mut job = fake::job(vec![task("web")]);
    job.groups[0].services = vec![offered];
    let job = Arc::new(job);
    let (mut alloc, control) = set_up(&machine, &job).await;
    control.set_canary(true);
    let (sender, _events) = mpsc::unbounded_channel();
    let stop = watch::Sender::new(Stop::No);
    let look = async {
        let mut health = control.health();
        let since = within(health.wait_for(|health| health.since.is_some())).await.unwrap().since;
        assert_eq!(machine.services.own()[0].tags, ["canary-0"]);
        let mut changes = machine.services.own_changes();
        control.set_canary(false);
        control.update(&job);
        while machine.services.own()[0].tags != ["group-0"] {
            within(changes.changed()).await.unwrap();
        }
        assert_eq!(control.health().borrow().since, since, "its check goes on");
        stop.send_replace(Stop::Gracefully);
    };
    tokio::join!(alloc.run(stop.subscribe(), sender), look);
    assert_eq!(alloc.destroy().await.len(), 0);
}

/// A process that exits withdraws its registrations, and the next owner of the tasks registers them again.
#[tokio::test]
async fn j3_who_leaves_withdraws_and_who_comes_registers_again() {
    let data = tempfile::tempdir().unwrap();
    let driver = FakeDriver::new(&[("web", &[Act::UntilStopped(0)])]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut job = fake::job(vec![crate::spec::Task { services: vec![service("of-task", port)], ..task("web") }]);
    job.groups[0].services = vec![service("of-group", port)];
    let mut machine = Arc::new(machine_of(&data, &driver, RunOwner::Agent));
    let assignment = Assignment::new(&job, 0, 0);
    let mut alloc = Alloc::new(&machine, &Arc::new(job), assignment);
    let mut first = None;
    for is_last in [false, false, true] {
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(Stop::No);
        let look = async {
            within(control.health().wait_for(|health| health.since.is_some())).await.unwrap();
            let listed = machine.services.list().unwrap().services;
            if is_last {
                stop.send_replace(Stop::Gracefully);
            } else {
                assert!(control.leave());
            }
            listed.into_iter().map(|s| (s.id, s.service_name, s.address, s.port)).collect::<Vec<_>>()
        };
        let (result, listed) = tokio::join!(alloc.run(stop.subscribe(), sender), look);
        assert_eq!(result.left, !is_last);
        assert_eq!(listed.len(), 2, "{listed:?}");
        assert_eq!(*first.get_or_insert_with(|| listed.clone()), listed, "they are the same as before");
        assert_eq!(machine.services.list().unwrap().services, [], "nothing stale");
        assert_eq!(control.view().services, []);
        if is_last {
            break;
        }
        machine = Arc::new(machine_of(&data, &driver, RunOwner::Agent));
        let record = machine.records.owned_by_agent().unwrap().remove(0).unwrap();
        alloc = Alloc::restore(&machine, record).unwrap();
    }
    assert_eq!(driver.log().iter().filter(|line| *line == "start web").count(), 1, "{:?}", driver.log());
    assert_eq!(alloc.destroy().await.len(), 0);
}

/// An owner is killed between an end that a check has requested and the reaction to it: the next owner's restart counts.
#[tokio::test]
async fn j3_a_restart_that_a_check_wanted_is_decided_by_the_next_owner() {
    for attempts in [0, 1] {
        let data = tempfile::tempdir().unwrap();
        let driver = FakeDriver::new(&[("web", &[Act::UntilStopped(0)])]);
        let mut web = task("web");
        let (interval, delay, mode) = (Duration::from_mins(10), Duration::ZERO, RestartMode::Fail);
        web.restart = RestartPolicy { attempts, interval, delay, mode, render_templates: false };
        let job = fake::job(vec![web]);
        let mut machine = Arc::new(machine_of(&data, &driver, RunOwner::Agent));
        let assignment = Assignment::new(&job, 0, 0);
        let mut alloc = Alloc::new(&machine, &Arc::new(job), assignment);
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let stop = watch::Sender::new(Stop::No);
        let leave = async {
            within(control.settled()).await;
            control.leave();
        };
        let (left, ()) = tokio::join!(alloc.run(stop.subscribe(), sender), leave);
        assert!(left.left);
        let path = data.path().join("alloc").join(format!("{}.json", alloc.id()));
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let state = &mut record["restore"]["tasks"][0];
        state["undecided"] = "unhealthy".into();
        state["exit"] = serde_json::json!({ "exit_code": 0, "signal": 0, "oom_killed": false, "core_dumped": false });
        state["finished"] = state["started"].clone();
        std::fs::write(&path, record.to_string()).unwrap();

        machine = Arc::new(machine_of(&data, &driver, RunOwner::Agent));
        let record = machine.records.owned_by_agent().unwrap().remove(0).unwrap();
        let mut alloc = Alloc::restore(&machine, record).unwrap();
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let look = async {
            let mut changes = control.subscribe();
            let is_over = |task: &crate::alloc::control::TaskNow| {
                task.state == TaskLife::Dead || (task.state == TaskLife::Running && task.restarts == 1)
            };
            while !control.tasks().iter().all(is_over) {
                assert!(within(changes.next()).await);
            }
            stop.send_replace(Stop::Gracefully);
        };
        let (result, ()) = tokio::join!(alloc.run(stop.subscribe(), sender), look);
        let starts = driver.log().iter().filter(|line| *line == "start web").count();
        assert_eq!((result.tasks[0].failed, starts), (attempts == 0, 1 + attempts as usize), "{:?}", driver.log());
        assert_eq!(alloc.destroy().await.len(), 0);
    }
}

fn offers(ports: Vec<AllocPort>, network: Option<(Status, PathBuf)>) -> (Offers, Owner) {
    let names = crate::alloc::control::Names {
        id: crate::spec::AllocId::parse("0f2c1f7e-0000-4000-8000-000000000000").unwrap(),
        name: String::new(),
        namespace: String::new(),
        job: String::new(),
        group: String::new(),
        index: 0,
        dir: PathBuf::new(),
        logs: PathBuf::new(),
    };
    let job = fake::job(vec![task("web")]);
    let env = TaskEnv::build(&Source {
        job: &job,
        group: &job.groups[0],
        parent: "",
        task: &job.groups[0].tasks[0],
        alloc: &names.id,
        index: 0,
        alloc_dir: std::path::Path::new("/a"),
        isolation: FsIsolation::None,
        cgroup_parent: std::path::Path::new(""),
        ports: &ports,
        network: None,
        node: &fake::node(),
        host: &BTreeMap::new(),
        denied: &[],
    });
    let offers = Offers {
        registry: Services::default(),
        control: Arc::new(Control::new(names, SystemTime::now(), false, std::iter::empty())),
        common: Registration::default(),
        services: Vec::new(),
        env: Box::new(|| None),
        tasks: job.groups[0].tasks.iter().map(TaskOffer::of).collect(),
        host: Ipv4Addr::new(192, 0, 2, 7).into(),
        has_network: !ports.is_empty() || network.is_some(),
        ports,
        network,
        of_group: Mutex::default(),
        is_over: watch::Sender::new(true),
    };
    (offers, Owner { task: Some((0, "web".to_owned())), env, driver: None })
}

#[test]
fn j3_the_job_in_a_name_is_the_jobs_name() {
    let (offers, owner) = offers(Vec::new(), None);
    assert_eq!(offers.said(&owner, "${JOB} ${BASE}"), "job job--web");
}

#[test]
fn j3_addresses_are_those_of_nomads_modes() {
    let port = AllocPort {
        label: "http".to_owned(),
        value: 20_123,
        to: Some(80),
        ip: Ipv4Addr::new(192, 0, 2, 9).into(),
        task: None,
    };
    let v6 = "fd00::5".parse().unwrap();
    let status =
        Status { address: Some(Ipv4Addr::new(10, 0, 0, 5).into()), address_ipv6: Some(v6), ..Status::default() };
    let (offers, mut owner) = offers(vec![port], Some((status, PathBuf::from("/ns"))));
    let located = |owner: &Owner, mode, port: &str| {
        offers.locate(owner, mode, port).map_or_else(|why| why, |(ip, port)| format!("{ip}:{port}"))
    };
    use AddressMode::{Alloc, AllocIpv6, Auto, Driver, Host};
    for (mode, label, expected) in [
        (Auto, "http", "192.0.2.9:20123"),
        (Host, "http", "192.0.2.9:20123"),
        (Host, "7", "192.0.2.7:7"),
        (Host, "", "192.0.2.7:0"),
        (Alloc, "http", "10.0.0.5:80"),
        (Alloc, "8080", "10.0.0.5:8080"),
        (AllocIpv6, "http", "fd00::5:80"),
        (AllocIpv6, "8080", "fd00::5:8080"),
    ] {
        assert_eq!(located(&owner, mode, label), expected, "{mode:?} {label}");
    }
    let (bare, of_bare) = super::tests::offers(Vec::new(), None);
    assert_eq!(bare.locate(&of_bare, Auto, ""), Ok((String::new(), 0)), "it is nowhere");
    assert_eq!(bare.locate(&of_bare, Auto, "7"), Ok(("192.0.2.7".to_owned(), 7)));
    let status = Status { address: Some(Ipv4Addr::new(10, 0, 0, 5).into()), ..Status::default() };
    let (without, of_without) = super::tests::offers(Vec::new(), Some((status, PathBuf::from("/ns"))));
    let why = without.locate(&of_without, AllocIpv6, "80").unwrap_err();
    assert!(why.contains("\"alloc_ipv6\" needs a network of the group with an IPv6 address"), "{why}");
    assert!(located(&owner, Host, "htp").contains("there is no port \"htp\""));
    assert!(located(&owner, Driver, "http").contains("needs a driver that gives its task an address"));
    let port_map = BTreeMap::from([("http".to_owned(), 8000)]);
    owner.driver = Some(DriverNetwork { port_map, ip: "172.17.0.2".to_owned(), auto_advertise: false });
    assert_eq!(located(&owner, Driver, "http"), "172.17.0.2:8000");
    assert_eq!(located(&owner, Driver, "9"), "172.17.0.2:9");
    assert_eq!(located(&owner, Auto, "http"), "192.0.2.9:20123");
    owner.driver.as_mut().unwrap().auto_advertise = true;
    assert_eq!(located(&owner, Auto, "http"), "172.17.0.2:8000");

    // A check connects from inside the network if there is one, unless its address mode says otherwise.
    let mut named = service("web", 1);
    named.port = "http".to_owned();
    let target = |service: &Service, mode| {
        let check = Check { address_mode: mode, ..service.checks[0].clone() };
        let target = offers.target(&owner, service, &check).unwrap();
        (target.address, target.way)
    };
    assert_eq!(target(&named, None), ("10.0.0.5:80".to_owned(), Way::Within(PathBuf::from("/ns"))));
    assert_eq!(target(&named, Some(AllocIpv6)), ("[fd00::5]:80".to_owned(), Way::Within(PathBuf::from("/ns"))));
    assert_eq!(target(&named, Some(Host)), ("192.0.2.9:20123".to_owned(), Way::Host));
    assert_eq!(target(&named, Some(Driver)), ("172.17.0.2:8000".to_owned(), Way::Host));
    let elsewhere = Service { address: "web-${NOMAD_ALLOC_INDEX}.example".to_owned(), ..named };
    assert_eq!(target(&elsewhere, None), ("web-0.example:20123".to_owned(), Way::Host));
    assert_eq!(target(&elsewhere, Some(Host)), ("192.0.2.9:20123".to_owned(), Way::Host));
    let numbered = Service { address_mode: Driver, ..service("web", 9) };
    assert_eq!(target(&numbered, None), ("172.17.0.2:9".to_owned(), Way::Host));
}
