//! Services and checks of real job files (J3), and templates that see them (J4), by the real binary. Each test has an empty
//! `/run`, so that it sees no services but its own.

#[path = "support/wire.rs"]
mod wire;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value as Json;
use world::{Out, Running, World, need_root, plain_user, seconds, signal, wait_for_text, wait_within};

/// A machine of the test's own, as far as services go.
struct Site {
    world: World,
}

fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + seconds(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        #[expect(clippy::disallowed_methods, reason = "another process's state is looked for until a deadline")]
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
}

impl Site {
    fn new() -> Site {
        Site::with(CloneFlags::CLONE_NEWNS)
    }

    /// With a network of its own, too, whose address is 198.51.100.7.
    fn with_network() -> Site {
        let site = Site::with(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET);
        wire::make();
        site
    }

    fn with(namespaces: CloneFlags) -> Site {
        unshare(namespaces).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
        Site { world: World::new() }
    }

    fn start(&self, name: &str, job: &str, args: &[&str]) -> Running {
        let file = self.world.file(&format!("{name}.nomad.hcl"), job);
        let mut command = self.world.command(args);
        command.arg(file);
        World::start_command(command)
    }

    fn services(&self) -> Vec<Json> {
        let out = self.world.agentbin(&["services", "--json"]);
        assert_eq!(out.status, 0, "{out:?}");
        serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"))
    }

    fn names(&self) -> Vec<String> {
        self.services().iter().map(|service| text(service, "ServiceName")).collect()
    }

    fn wait_for_names(&self, wanted: &[&str]) {
        until(&format!("{wanted:?}"), || (self.names() == wanted).then_some(()));
    }

    /// The instance of this name, once its status is this.
    fn wait_for_status(&self, name: &str, status: &str) -> Json {
        until(&format!("{name} {status}"), || {
            self.services().into_iter().find(|s| text(s, "ServiceName") == name && text(s, "Status") == status)
        })
    }

    fn stop(&self, mut run: Running) -> Out {
        signal(&run.child, "SIGTERM");
        let out = run.finish();
        self.wait_for_names(&[]);
        self.world.assert_clean();
        out
    }
}

fn text(json: &Json, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}

/// A group of one task, a shell with this script; `around` stands in the group and `inside` in the task.
fn group(name: &str, driver: &str, around: &str, inside: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap().replace("${", "$${");
    format!(
        "group \"{name}\" {{\n{around}\n task \"{name}\" {{\n driver = \"{driver}\"\n kill_signal = \"SIGTERM\"\n kill_timeout = \"1s\"\n{inside}\n \
         config {{\n command = \"/bin/sh\"\n args = [\"-c\", {script}]\n }}\n }}\n}}\n"
    )
}

fn job(id: &str, groups: &[String]) -> String {
    format!("job \"{id}\" {{\n{}}}\n", groups.concat())
}

const NO_RESTART: &str = "restart {\n attempts = 0\n mode = \"fail\"\n}\n";
const HTTP: &str = "network {\n port \"http\" {}\n}\n";
/// Serves what is in `www`.
const SERVE: &str = "mkdir -p www && echo pong > www/index.html && exec busybox httpd -f -p $NOMAD_PORT_http -h www";

fn asked(address: &str) -> Option<String> {
    let out = Command::new("curl").args(["-sf", "-m", "5", &format!("http://{address}/")]).output().unwrap();
    out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
}

fn address(service: &Json) -> String {
    format!("{}:{}", text(service, "Address"), service["Port"])
}

#[test]
fn j3_two_groups_find_each_other_by_templates() {
    need_root!();
    let site = Site::new();
    let template = |name: &str| {
        format!(
            "template {{\n destination = \"local/peers\"\n change_mode = \"noop\"\n data = \"{{{{ range nomadService \\\"{name}\\\" }}}}{{{{ .Address }}}}:{{{{ .Port }}}} {{{{ .Tags }}}} {{{{ .JobID }}}}{{{{ end }}}}\"\n}}"
        )
    };
    let web = "service {\n name = \"${JOB}-web\"\n provider = \"nomad\"\n port = \"http\"\n tags = [\"a\", \"${NOMAD_GROUP_NAME}\"]\n meta {\n x = \"${NOMAD_ALLOC_INDEX}\"\n }\n \
               check {\n type = \"http\"\n path = \"/\"\n interval = \"1s\"\n timeout = \"5s\"\n }\n}\n";
    let server = group(
        "server",
        "raw_exec",
        &format!("{HTTP}{web}"),
        &template("pair-client-client"),
        &format!("cd local; (until grep -q pair peers; do sleep 0.1; done; echo met $(cat peers)) & {SERVE}"),
    );
    let client = group(
        "client",
        "raw_exec",
        "",
        &format!("service {{\n port = 7\n}}\n{}", template("pair-web")),
        "cd local; until grep -q pair peers; do sleep 0.1; done; echo found $(cat peers); curl -sf http://$(cut -d' ' -f1 peers)/; sleep 1000",
    );
    let run = site.start("pair", &job("pair", &[server, client]), &[]);
    wait_for_text(&run.stdout, "[a server] pair");
    wait_for_text(&run.stdout, "client | pong");
    wait_for_text(&run.stdout, "server | met ");
    let stderr = String::from_utf8_lossy(&run.stderr.lock().unwrap()).into_owned();
    assert_eq!(stderr.matches("there is no Consul here").count(), 1, "{stderr}");
    let web = site.wait_for_status("pair-web", "passing");
    assert_eq!(text(&web, "ID"), format!("_nomad-task-{}-group-server-pair-web-http", text(&web, "AllocID")));
    for (key, value) in [("JobID", "pair"), ("Namespace", "default"), ("Datacenter", "dc1"), ("Provider", "nomad")] {
        assert_eq!(text(&web, key), value, "{key}");
    }
    assert!(
        web["CreateIndex"].as_u64() > Some(0) && web["ModifyIndex"].as_u64() > web["CreateIndex"].as_u64(),
        "{web}"
    );
    assert_eq!(web["Meta"]["x"], "0");
    let shown = site.world.agentbin(&["services", "pair-web"]);
    let line = format!("pair-web  {}", address(&web));
    assert!(shown.stdout.contains(&line) && shown.stdout.contains("nomad: http ok: GET http://"), "{shown:?}");
    let missing = site.world.agentbin(&["services", "pair-wob"]);
    assert!(missing.status == 125 && missing.stderr.contains("did you mean \"pair-web\"?"), "{missing:?}");
    site.stop(run);
}

#[test]
fn j3_an_http_check_that_fails_restarts_the_task_within_its_policy() {
    need_root!();
    let site = Site::new();
    let service = "service {\n name = \"web\"\n provider = \"nomad\"\n port = \"http\"\n check {\n name = \"alive\"\n type = \"http\"\n path = \"/health\"\n interval = \"1s\"\n timeout = \"5s\"\n \
                   check_restart {\n limit = 2\n grace = \"1s\"\n }\n }\n}\n";
    let restart = "restart {\n attempts = 3\n interval = \"10m\"\n delay = \"0s\"\n mode = \"fail\"\n}\n";
    // Good from its second start on.
    let script = format!("echo begin; mkdir -p www; [ ! -e again ] || echo ok > www/health; touch again; {SERVE}");
    let run = site.start(
        "restarts",
        &job("restarts", &[group("web", "raw_exec", &format!("{HTTP}{restart}"), service, &script)]),
        &[],
    );
    let web = site.wait_for_status("web", "passing");
    assert_eq!(web["Checks"][0]["StatusCode"], 200, "{web}");
    let stderr = String::from_utf8_lossy(&run.stderr.lock().unwrap()).into_owned();
    assert_eq!(stderr.matches("Restart Signaled: healthcheck: check \"alive\" unhealthy").count(), 1, "{stderr}");
    assert!(stderr.contains(": Restarting: Task restarting in 0s"), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&run.stdout.lock().unwrap()), "begin\nbegin\n");
    assert_eq!(text(&web, "ID"), format!("_nomad-task-{}-web-web-http", text(&web, "AllocID")));
    site.stop(run);

    // One that does not get better fails, and so does the run, however well it takes its signal.
    let script = "trap 'kill $!; exit 0' TERM; mkdir -p www; busybox httpd -f -p $NOMAD_PORT_http -h www & wait";
    let restart = "restart {\n attempts = 1\n interval = \"10m\"\n delay = \"0s\"\n mode = \"fail\"\n}\n";
    let text = job("worse", &[group("web", "raw_exec", &format!("{HTTP}{restart}"), service, script)]);
    let out = site.start("worse", &text, &[]).finish();
    assert_eq!(out.status, 125, "{out:?}");
    assert!(out.stderr.contains("Exceeded allowed attempts 1"), "{out:?}");
    site.world.assert_clean();
}

#[test]
fn j3_a_script_check_runs_inside_the_task() {
    need_root!();
    let site = Site::new();
    let service = "service {\n name = \"${BASE}\"\n provider = \"nomad\"\n check {\n name = \"there\"\n type = \"script\"\n command = \"/bin/sh\"\n args = [\"-c\", \"cat $${NOMAD_TASK_DIR}/ok || exit 2\"]\n \
                   interval = \"1s\"\n timeout = \"5s\"\n }\n}\n";
    let run = site.start("script", &job("script", &[group("web", "exec", NO_RESTART, service, "sleep 1000")]), &[]);
    let web = site.wait_for_status("script-web-web", "critical");
    let output = text(&web["Checks"][0], "Output");
    assert!(output.contains("/local/ok") && output.ends_with("exit code 2"), "{output}");
    let made = site.world.agentbin(&["exec", "script", "/bin/sh", "-c", "echo well > /local/ok"]);
    assert_eq!(made.status, 0, "{made:?}");
    let web = site.wait_for_status("script-web-web", "passing");
    assert_eq!(text(&web["Checks"][0], "Output"), "well");
    let status = site.world.agentbin(&["status", "--json", "script"]);
    let status: Json = serde_json::from_str(&status.stdout).unwrap();
    let check = &status[0]["services"][0]["checks"][0];
    assert_eq!((text(check, "name"), text(check, "status")), ("there".to_owned(), "passing".to_owned()), "{status}");
    site.stop(run);
}

#[test]
fn j3_checks_look_inside_the_network_of_the_allocation() {
    need_root!();
    let site = Site::with_network();
    let network = "network {\n mode = \"bridge\"\n port \"http\" {\n to = 8080\n }\n}\n";
    let service = |name: &str, more: &str| {
        format!(
            "service {{\n name = \"{name}\"\n provider = \"nomad\"\n port = \"http\"\n{more}\n check {{\n type = \"tcp\"\n interval = \"1s\"\n timeout = \"5s\"\n }}\n}}\n"
        )
    };
    let around = [network, &service("mapped", ""), &service("own", "address_mode = \"alloc\"")].concat();
    let script = "exec busybox httpd -f -p 8080";
    let run = site.start("bridge", &job("bridge", &[group("web", "raw_exec", &around, "", script)]), &[]);
    let mapped = site.wait_for_status("mapped", "passing");
    assert_eq!(text(&mapped, "Address"), "198.51.100.7");
    assert!(mapped["Port"].as_u64() >= Some(20_000), "{mapped}");
    let own = site.wait_for_status("own", "passing");
    assert!(text(&own, "Address").starts_with("10.126.") && own["Port"] == 8080, "{own}");
    // Asked where nobody is: the address of the check is the allocation's, not the machine's.
    assert!(text(&mapped["Checks"][0], "Output").contains(&format!("nomad: tcp ok: {}:8080", text(&own, "Address"))));
    site.stop(run);

    let loopback = "network {\n mode = \"none\"\n port \"http\" {\n to = 8080\n }\n}\n";
    let around = [loopback, &service("lonely", "")].concat();
    let run = site.start("none", &job("none", &[group("web", "raw_exec", &around, "", script)]), &[]);
    let lonely = site.wait_for_status("lonely", "passing");
    assert_eq!(text(&lonely["Checks"][0], "Output"), "nomad: tcp ok: 127.0.0.1:8080");
    site.stop(run);
}

#[test]
fn j3_a_grpc_check_asks_the_health_service() {
    need_root!();
    let site = Site::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (health, service) = tonic_health::server::health_reporter();
    let set = |status| runtime().block_on(health.set_service_status("web", status));
    set(tonic_health::ServingStatus::Serving);
    let listener = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        runtime().block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
        });
    });
    let service = format!(
        "service {{\n name = \"web\"\n provider = \"nomad\"\n port = {port}\n check {{\n type = \"grpc\"\n grpc_service = \"web\"\n interval = \"1s\"\n timeout = \"5s\"\n }}\n}}\n"
    );
    let run = site.start("grpc", &job("grpc", &[group("web", "raw_exec", NO_RESTART, &service, "sleep 1000")]), &[]);
    site.wait_for_status("web", "passing");
    set(tonic_health::ServingStatus::NotServing);
    let web = site.wait_for_status("web", "critical");
    assert!(text(&web["Checks"][0], "Output").contains("NOT_SERVING"), "{web}");
    site.stop(run);
}

#[test]
fn j3_services_are_withdrawn_before_the_kill_and_the_task_still_answers() {
    need_root!();
    let site = Site::new();
    let service = |name: &str| format!("service {{\n name = \"{name}\"\n provider = \"nomad\"\n port = \"http\"\n}}\n");
    let around = [HTTP, NO_RESTART, "shutdown_delay = \"6s\"\n", &service("of-group")].concat();
    let inside = ["shutdown_delay = \"60s\"\n", &service("of-task")].concat();
    let mut run = site.start("drains", &job("drains", &[group("web", "raw_exec", &around, &inside, SERVE)]), &[]);
    site.wait_for_names(&["of-group", "of-task"]);
    let address = address(&site.services()[0]);
    until("an answer", || asked(&address));
    signal(&run.child, "SIGTERM");
    // First the group's, then its delay; then the task's, and its delay.
    site.wait_for_names(&["of-task"]);
    assert_eq!(asked(&address).as_deref(), Some("pong\n"), "in the group's delay");
    site.wait_for_names(&[]);
    assert_eq!(asked(&address).as_deref(), Some("pong\n"), "in the task's delay");
    wait_for_text(&run.stderr, "Waiting for shutdown_delay of 1m0s before killing the task.");
    let stderr = String::from_utf8_lossy(&run.stderr.lock().unwrap()).into_owned();
    assert!(stderr.contains("Killing") && !stderr.contains("Terminated"), "{stderr}");
    signal(&run.child, "SIGTERM");
    run.finish();
    site.world.assert_clean();

    // One that ends by itself takes its service along.
    let go = site.world.path("go");
    let script = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let around = [HTTP, NO_RESTART, &service("of-group")].concat();
    let text = job("ends", &[group("web", "raw_exec", &around, &service("of-task"), &script)]);
    let mut run = site.start("ends", &text.replacen('{', "{\n type = \"batch\"\n", 1), &[]);
    site.wait_for_names(&["of-group", "of-task"]);
    std::fs::write(go, "").unwrap();
    assert_eq!(run.finish().status, 0);
    assert_eq!(site.names(), [""; 0]);
}

#[test]
fn j3_runs_see_each_others_services_and_a_killed_one_has_none() {
    need_root!();
    let site = Site::new();
    let service = |name: &str| format!("service {{\n name = \"{name}\"\n provider = \"nomad\"\n port = 7\n}}\n");
    let peers = "template {\n destination = \"local/peers\"\n change_mode = \"noop\"\n data = \"{{ range nomadServices }}{{ .Name }},{{ end }}\"\n}\n";
    let watching = "while :; do [ \"$(cat local/peers)\" = \"$last\" ] || { last=$(cat local/peers); echo \"now $last\"; }; sleep 0.1; done";
    let one = site.start(
        "one",
        &job("one", &[group("one", "raw_exec", NO_RESTART, &[&*service("one"), peers].concat(), watching)]),
        &["--quiet"],
    );
    wait_for_text(&one.stdout, "now one,");
    let mut other = site.start(
        "two",
        &job("two", &[group("two", "raw_exec", NO_RESTART, &service("two"), "sleep 1000")]),
        &["--quiet"],
    );
    wait_for_text(&one.stdout, "now one,two,");
    site.wait_for_names(&["one", "two"]);
    other.child.kill().unwrap();
    wait_within(&mut other.child, seconds(60));
    assert_eq!(site.names(), ["one"], "its task still runs, and nobody looks after it");
    until("the template without it", || {
        String::from_utf8_lossy(&one.stdout.lock().unwrap()).ends_with("now one,\n").then_some(())
    });
    assert_eq!(site.world.agentbin(&["gc"]).status, 0);
    site.stop(one);
}

/// Ends exactly the process that looks after the only run in the background, and waits until it has gone.
fn kill_supervisor(world: &World) {
    let runs = std::fs::read_dir(world.data_dir().join("runs")).unwrap().flatten();
    let lock = runs.map(|e| e.path()).find(|path| path.extension().is_some_and(|end| end == "lock")).unwrap();
    let pid: i32 = std::fs::read_to_string(lock).unwrap().trim().parse().unwrap();
    let words = procfs::process::Process::new(pid).unwrap().cmdline().unwrap();
    assert!(words.iter().any(|word| *word == world.data_dir().to_str().unwrap()), "{words:?}");
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL).unwrap();
    rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)], None).unwrap();
}

/// What the registry holds goes with the supervisor, and comes back with the next one: nothing is done to a task for that.
#[test]
fn j3_services_of_a_run_are_registered_again_when_its_supervisor_was_killed() {
    need_root!();
    let site = Site::new();
    let web = "service {\n name = \"web\"\n provider = \"nomad\"\n port = \"http\"\n check {\n type = \"http\"\n path = \"/\"\n interval = \"1s\"\n timeout = \"5s\"\n success_before_passing = 3\n }\n}\n";
    let own = "service {\n name = \"own\"\n provider = \"nomad\"\n port = 7\n}\n";
    let peers = "template {\n destination = \"local/peers\"\n change_mode = \"signal\"\n change_signal = \"SIGHUP\"\n data = \"{{ range nomadService \\\"web\\\" }}{{ .Name }},{{ end }}{{ range nomadService \\\"other\\\" }}{{ .Name }},{{ end }}\"\n}\n";
    let script = "trap 'echo now $(cat local/peers)' HUP; while :; do sleep 0.05; done";
    let groups = [
        group("server", "raw_exec", &[HTTP, web].concat(), "", SERVE),
        group("client", "exec", "", &[own, peers].concat(), script),
    ];
    let file = site.world.file("kept.nomad.hcl", &job("kept", &groups));
    let out = site.world.run(&["--detach", "--quiet", file.to_str().unwrap()]);
    assert_eq!(out.status, 0, "{out:?}");
    let log = || {
        let allocs = std::fs::read_dir(site.world.data_dir().join("alloc")).unwrap().flatten();
        let logs = allocs.map(|alloc| alloc.path().join("alloc/logs/client.stdout.0"));
        let text = logs.filter_map(|log| std::fs::read_to_string(log).ok()).collect::<String>();
        // A task that is slow to take a signal reads what the next one is for, and then the same again.
        let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
        lines.dedup();
        lines.concat()
    };
    // It may have seen both already when it began; what comes later it is told.
    let other = "service {\n name = \"other\"\n provider = \"nomad\"\n port = 7\n}\n";
    let mut first = site.start("one", &job("one", &[group("one", "raw_exec", "", other, "sleep 1000")]), &["--quiet"]);
    until("the other service", || log().ends_with("now web,other,\n").then_some(()));
    let seen = log();
    let before = site.wait_for_status("web", "passing");

    for _ in 0..2 {
        kill_supervisor(&site.world);
        site.wait_for_names(&["other", "own", "web"]);
        let again = site.wait_for_status("web", "passing");
        for key in ["ID", "Address", "Port", "JobID", "AllocID"] {
            assert_eq!(again[key], before[key], "{key}");
        }
        assert!(again["CreateIndex"].as_u64() > before["CreateIndex"].as_u64(), "it is a new registration: {again}");
        assert_eq!(asked(&address(&again)).unwrap(), "pong\n");
    }
    // It is followed on, and what happened between was nothing to it.
    signal(&first.child, "SIGTERM");
    first.finish();
    let expected = format!("{seen}now web,\n");
    until("a line about the template without it", || (log().len() >= expected.len()).then_some(()));
    assert_eq!(log(), expected);
    let data_dir = site.world.data_dir();
    let out = site.world.agentbin(&["stop", "--data-dir", data_dir.to_str().unwrap(), "kept"]);
    assert_eq!(out.status, 0, "{out:?}");
    site.wait_for_names(&[]);
    site.world.assert_clean();
}

#[test]
fn j3_what_another_user_has_written_is_not_believed() {
    need_root!();
    let site = Site::new();
    let dir = Path::new("/run/agentbin/services");
    std::fs::create_dir_all(dir).unwrap();
    for dir in ["/run/agentbin", "/run/agentbin/services"] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let own = procfs::process::Process::myself().unwrap().stat().unwrap();
    let namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino();
    let file = dir.join(format!("{:x}-{:x}-{namespace:x}.0", own.pid, own.starttime));
    std::fs::write(&file, r#"{"version": 1, "services": [{"ID": "x", "ServiceName": "planted", "Port": 1}]}"#).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(site.names(), ["planted"], "of this user it is believed");
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    let out = site.world.agentbin(&["services", "--json"]);
    assert!(out.status == 0 && out.stdout == "[]\n", "{out:?}");
    assert!(out.stderr.contains("belongs to user 65534"), "{out:?}");
    std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    std::os::unix::fs::chown(dir, Some(65534), None).unwrap();
    let out = site.world.agentbin(&["services"]);
    assert!(out.status == 125 && out.stderr.contains("belongs to user 65534"), "{out:?}");
}

#[test]
fn j3_plain_users_have_a_registry_of_their_own() {
    need_root!();
    let site = Site::new();
    let uid = plain_user(0);
    let service = "service {\n name = \"mine\"\n provider = \"nomad\"\n port = \"http\"\n check {\n type = \"http\"\n path = \"/\"\n interval = \"1s\"\n timeout = \"5s\"\n }\n}\n";
    let around = [HTTP, NO_RESTART].concat();
    let file = site.world.file("plain.nomad.hcl", &job("plain", &[group("web", "raw_exec", &around, service, SERVE)]));
    let mut command = site.world.command_as(uid, &["run"]);
    command.arg(file);
    let mut run = World::start_command(command);
    let listed = until("a service that passes", || {
        let out: Out = site.world.command_as(uid, &["services", "--json"]).output().unwrap().into();
        let all: Vec<Json> = serde_json::from_str(&out.stdout).ok()?;
        all.into_iter().find(|service| text(service, "Status") == "passing")
    });
    assert_eq!(text(&listed, "ServiceName"), "mine");
    assert_eq!(site.names(), [""; 0], "root does not see them");
    signal(&run.child, "SIGTERM");
    run.finish();
    let out: Out = site.world.command_as(uid, &["services", "--json"]).output().unwrap().into();
    assert_eq!(out.stdout, "[]\n", "{out:?}");
}
