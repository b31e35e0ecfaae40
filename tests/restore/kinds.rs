//! What is taken up again with more to it than a process: networks, cores, other users' tasks, containers.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::engine::TestEngine;
use super::wire;
use super::world::{Out, World, need_root, plain_user};
use super::{
    COUNTER, Json, assert_counted_in, detach, executors, kill, kill_supervisor, kill_supervisor_of, lines, lines_below,
    shells, supervisor, task, view, wait_for, wait_until,
};

/// Gives this thread a network and a `/run` of its own, as after a start of the machine.
pub fn boot() {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), Some("mode=755")).unwrap();
    wire::make();
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
}

/// Changes the record of the only allocation, so that it is one of an earlier boot.
fn age(world: &World, id: &str) {
    let path = world.data_dir().join(format!("alloc/{id}.json"));
    let mut record: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["owner"]["boot_id"] = "an earlier one".into();
    std::fs::write(&path, record.to_string()).unwrap();
}

/// Names of what belongs to a network of ours now.
fn networks() -> Vec<String> {
    let dirs = ["netns", "networks", "leases/agentbin"].map(|name| format!("/run/agentbin/network/{name}"));
    let entries = dirs.iter().flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten().flatten());
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| !name.starts_with("last_reserved_ip") && name != "lock").collect()
}

#[test]
fn a4_a_network_is_kept_and_made_anew_after_a_restart_of_the_machine() {
    need_root!();
    boot();
    let world = World::new();
    let job = r#"
job "net" {
  group "g" {
    network {
      mode = "bridge"
      port "http" { to = 8080 }
    }
    task "web" {
      driver       = "raw_exec"
      kill_timeout = "1s"
      config {
        command = "/bin/sh"
        args    = ["-c", "cd local; echo pong > index.html; exec busybox httpd -f -p 8080"]
      }
    }
  }
}
"#;
    let id = detach(&world, job, &[]);
    let port = |view: &Json| view["ports"][0]["value"].as_u64().unwrap();
    let first = port(&view(&world));
    let answers = || {
        let url = format!("http://198.51.100.7:{first}/index.html");
        let out = Command::new("curl").args(["-sf", "-m", "5", &url]).output().unwrap();
        out.stdout == b"pong\n"
    };
    let namespace = || world.done(&["exec", &id, "readlink", "/proc/self/ns/net"]);
    wait_until(answers);
    let made = namespace();
    assert_ne!(made.trim(), std::fs::read_link("/proc/thread-self/ns/net").unwrap().to_str().unwrap());
    let there = networks();
    kill_supervisor(&world);
    assert!(answers(), "its tasks go on");
    world.done(&["gc"]);
    assert!(answers() && networks() == there, "it is wanted back");
    let seen = view(&world);
    assert_eq!((task(&seen, "web")["restarts"].as_u64(), port(&seen)), (Some(0), first), "{seen:#}");
    assert_eq!(namespace(), made);
    world.done(&["restart", &id]);
    wait_until(answers);
    assert_eq!(namespace(), made);

    kill_supervisor(&world);
    executors(&world).into_values().for_each(kill);
    shells_of(&id).into_iter().for_each(kill);
    boot();
    age(&world, &id);
    wait_for(&world, "web", |task| task["state"] == "running");
    wait_until(answers);
    assert_ne!(namespace(), made);
    assert_eq!(networks().len(), there.len(), "{:?}", networks());
    world.done(&["stop", "net"]);
    assert_eq!(networks(), [""; 0]);
    let rules = Command::new("iptables-save").output().unwrap();
    assert!(!String::from_utf8_lossy(&rules.stdout).contains(&id), "{rules:?}");
    world.assert_clean();
}

/// All processes that say that they are of this allocation.
fn shells_of(id: &str) -> Vec<i32> {
    let of = |process: &procfs::process::Process| {
        process.environ().is_ok_and(|env| env.values().any(|value| value.to_str() == Some(id)))
    };
    procfs::process::all_processes().unwrap().flatten().filter(of).map(|process| process.pid).collect()
}

#[test]
fn a4_cores_stay_their_tasks() {
    need_root!();
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("SKIP: a4_cores_stay_their_tasks: one core");
        return;
    }
    let world = World::new();
    let task_of = |name: &str, driver: &str, resources: &str| {
        format!(
            "task \"{name}\" {{\ndriver = \"{driver}\"\nkill_timeout = \"1s\"\nresources {{\nmemory = 32\n{resources}\n}}\n\
             config {{\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{COUNTER}\"]\n}}\n}}\n"
        )
    };
    let tasks = task_of("own", "exec", "cores = 1") + &task_of("other", "raw_exec", "cpu = 100");
    let id = detach(&world, &format!("job \"cores\" {{\ngroup \"g\" {{\n{tasks}}}\n}}\n"), &[]);
    let list = |name: &str| {
        let out = world.done(&["exec", "--task", name, &id, "grep", "Cpus_allowed_list", "/proc/self/status"]);
        out.split_whitespace().last().unwrap().parse::<agentbin::spec::CpuSet>().unwrap()
    };
    let own = list("own");
    let check = || {
        assert_eq!(list("own"), own);
        assert!(!own.is_within(&list("other")), "{own} {}", list("other"));
    };
    check();
    for _ in 0..2 {
        let before = shells(&world);
        kill_supervisor(&world);
        world.done(&["gc"]);
        check();
        assert_eq!(shells(&world), before);
        world.done(&["restart", "--task", "own", &id]);
        wait_for(&world, "own", |task| task["state"] == "running");
        check();
    }
    // Killed between two starts it has them still.
    kill_supervisor(&world);
    kill(executors(&world)["own"]);
    check();
    world.done(&["stop", "cores"]);
    world.assert_clean();
}

#[test]
fn a4_a_plain_users_run_is_taken_up() {
    need_root!();
    let (world, user) = (World::new(), plain_user(1));
    let job = format!(
        "job \"plain\" {{\ngroup \"g\" {{\ntask \"a\" {{\ndriver = \"raw_exec\"\nkill_timeout = \"1s\"\n\
         config {{\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{COUNTER}\"]\n}}\n}}\n}}\n}}\n"
    );
    let file = world.file("plain.nomad.hcl", &job);
    let said = |args: &[&str], mark: &str| -> String {
        let out: Out = world.command_as(user, args).env("MARK", mark).output().unwrap().into();
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    };
    let id = said(&["run", "--detach", "--quiet", file.to_str().unwrap()], "first");
    let id = id.trim();
    let data_dir = world.path("home/.local/state/agentbin");
    let pids = || {
        let own = shells_of(id).into_iter().filter(|pid| {
            let process = procfs::process::Process::new(*pid).and_then(|process| process.cmdline());
            process.is_ok_and(|words| words.iter().any(|word| word == COUNTER))
        });
        own.min()
    };
    let before = pids();
    assert!(before.is_some());
    let record = data_dir.join(format!("alloc/{id}.json"));
    for _ in 0..3 {
        kill_supervisor_of(&data_dir);
        // The superuser's commands do not believe what others may have written.
        let out: Output =
            Command::new(env!("CARGO_BIN_EXE_agentbin")).args(["ps", "--data-dir"]).arg(&data_dir).output().unwrap();
        assert!(!String::from_utf8_lossy(&out.stdout).contains(id), "{out:?}");
        let seen: Json = serde_json::from_str(&said(&["ps", "--json"], "second")).unwrap();
        assert_eq!((&seen[0]["id"], &seen[0]["status"]), (&Json::from(id), &"running".into()), "{seen:#}");
        assert_eq!(task(&seen[0], "a")["restarts"], 0);
        assert_eq!(pids(), before);
        assert_eq!(record.metadata().unwrap().uid(), user);
        // It is as the first one, whoever has started it.
        let pid = supervisor(&data_dir).unwrap();
        let env = procfs::process::Process::new(pid).and_then(|process| process.environ()).unwrap();
        assert_eq!(env[std::ffi::OsStr::new("MARK")], "first");
    }
    assert!(assert_counted_in(&lines_below(&data_dir, id, "a"), "a") > 0);
    said(&["stop", "plain"], "second");
    assert_counted_in(&lines_below(&data_dir, id, "a"), "a");
    world.assert_clean();
}

#[test]
fn a4_a_container_is_found_where_its_engine_was() {
    need_root!();
    boot();
    let engine = match TestEngine::start() {
        Ok(engine) => engine,
        Err(why) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{why}");
            println!("SKIP: a4_a_container_is_found_where_its_engine_was: {why}");
            return;
        }
    };
    let world = World::new();
    let script = COUNTER.replace("sleep 0.01", "/bin/busybox sleep 0.05");
    let job = format!(
        "job \"container\" {{\ngroup \"g\" {{\ntask \"a\" {{\ndriver = \"docker\"\nkill_timeout = \"1s\"\n\
         config {{\nimage = \"busybox:test\"\nnetwork_mode = \"none\"\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{script}\"]\n}}\n}}\n}}\n}}\n"
    );
    let file = world.file("container.nomad.hcl", &job);
    // The engine leaves the cgroup above those of its containers in trees that are not ours: no other test is to stumble over it.
    let parent = format!("restore-{}", std::process::id());
    let mut first = world.command(&["--detach", "--quiet", "--cgroup-parent", &parent, file.to_str().unwrap()]);
    let out: Out = first.env("DOCKER_HOST", engine.endpoint()).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    let id = out.stdout.trim().to_owned();
    let containers = || engine.docker(&["ps", "-q", "--no-trunc"]);
    let before = containers();
    assert_eq!(before.lines().count(), 1, "{before}");
    for round in 0..4 {
        kill_supervisor(&world);
        if round == 1 {
            // Lines that come meanwhile.
            let read = lines(&world, &id, "a").len();
            let printed = || engine.docker(&["logs", before.trim()]).lines().count();
            wait_until(|| printed() > read + 20);
        }
        // This command knows of no engine.
        let seen = view(&world);
        assert_eq!(task(&seen, "a")["restarts"], 0, "{seen:#}");
        assert_eq!(containers(), before);
    }
    let read = lines(&world, &id, "a").len();
    wait_until(|| lines(&world, &id, "a").len() > read + 20);
    assert_counted_in(&lines(&world, &id, "a"), "a");
    assert_eq!(world.done(&["exec", &id, "/bin/busybox", "echo", "here"]), "here\n");

    // It ends while nobody looks: its end is seen, and another one takes its place.
    kill_supervisor(&world);
    engine.docker(&["kill", before.trim()]);
    let seen = wait_for(&world, "a", |task| task["state"] == "running" && task["restarts"] == 1);
    let events = seen["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["details"]["exit_code"] == "137"), "{events:#?}");
    wait_until(|| containers() != before && containers().lines().count() == 1);
    kill_supervisor(&world);
    let mut gc = world.client(&["gc", "--abandoned"]);
    let out: Out = gc.env("DOCKER_HOST", engine.endpoint()).output().unwrap().into();
    assert_eq!(out.status, 0, "{out:?}");
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
    assert_eq!(world.ask(&["ps", "--json"]).stdout.trim(), "[]");
    world.assert_clean();
    for tree in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let _none_there = std::fs::remove_dir(tree.path().join(&parent));
    }
}
