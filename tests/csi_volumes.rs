//! CSI volumes of job files, and plugins that are tasks (F1, F3, F4, F5, F7): the real binary and a real driver (`tests/csi`) on the real kernel.

#[path = "support/csi_driver.rs"]
mod csi_driver;
#[path = "support/engine.rs"]
mod engine;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use csi_driver::{Driver, SHARED, SINGLE, binary, create_at, job, of_a_job, of_a_job_at, plugin_job};
use engine::{IMAGE, TestEngine};
use nix::mount::{MsFlags, mount};
use serde_json::json;
use world::secrets::SECRET;
use world::{Out, World, need_root, seconds, signal, wait_for_text};

fn fine(out: &Out) {
    assert_eq!(out.status, 0, "{out:?}");
}

/// Refused before anything is started.
#[track_caller]
fn refused(driver: &Driver, job: &str, args: &[&str], why: &str) {
    let out = driver.world.run_text(job, args);
    assert!(out.status == 125 && out.stderr.contains(why), "wanted {why:?}: {out:?}");
    assert!(!out.stderr.contains("Task received"), "{out:?}");
    assert_eq!((driver.world.allocations(), driver.calls().len()), (0, 0));
}

#[test]
fn f7_a_task_has_its_volume_and_all_is_undone_in_reverse() {
    need_root!();
    let Some(binary) = binary("f7_a_task_has_its_volume_and_all_is_undone_in_reverse") else { return };
    let driver = Driver::start(binary, &["--attach"]);
    let id = driver.create("one", SINGLE);
    let options = format!("mount_options {{\n mount_flags = [\"password=fl4g-{SECRET}\"]\n }}");
    let out = driver.run(&job(SINGLE, &options, "", "echo kept > /data/file; ls -d /data; mount"), &id);
    fine(&out);
    let expected = [
        "ControllerPublishVolume",
        "NodeStageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
        "ControllerUnpublishVolume",
    ];
    assert_eq!(driver.calls(), expected);
    let stage = driver.entries().into_iter().find(|entry| entry["call"] == "NodeStageVolume").unwrap();
    assert_eq!((&stage["mode"], &stage["flags"]), (&json!("SINGLE_NODE_WRITER"), &json!(1)));
    assert!(!format!("{out:?}").contains(SECRET), "{out:?}");
    driver.clean();
    // The data stays; each place can make it read-only.
    for (volume, mount) in [("", "read_only = true"), ("read_only = true", "")] {
        let out = driver.run(&job(SINGLE, volume, mount, "cat /data/file; touch /data/x && exit 3; exit 0"), &id);
        fine(&out);
        assert!(out.stdout.contains("kept") && out.stderr.contains("Read-only file system"), "{out:?}");
    }
    // A task that fails, and one that cannot be started.
    let failing = driver.run(&job(SINGLE, "", "", "exit 7"), &id);
    assert_eq!(failing.status, 7, "{failing:?}");
    let broken = driver.run(&job(SINGLE, "", "", "true").replace("/bin/sh", "/no/such/program"), &id);
    assert_eq!(broken.status, 127, "{broken:?}");
    driver.clean();
    // A later kind of use is another one, and its steps are, too.
    fine(&driver.run(&job(SHARED, "", "", "cat /data/file"), &id));
    driver.clean();
}

#[test]
fn f1_what_cannot_be_had_of_a_plugin_is_refused_before_anything_starts() {
    need_root!();
    let Some(binary) = binary("f1_what_cannot_be_had_of_a_plugin_is_refused_before_anything_starts") else { return };
    let driver = Driver::start(binary, &[]);
    let id = driver.create("one", SINGLE);
    let args = driver.args(&id);
    let [plugin_flag, plugin, volume_flag, volume] = args.each_ref().map(String::as_str);
    let plain = job(SINGLE, "", "", "true");
    let given = [plugin_flag, plugin, volume_flag, volume];
    refused(
        &driver,
        &plain,
        &[],
        "there is no CSI volume \"data\" here; say which one it is with --csi-volume data=PLUGIN:ID",
    );
    refused(&driver, &plain, &[volume_flag, volume], "say where it listens with --csi-plugin disk=SOCKET");
    let gone = format!("disk={}", driver.path("gone.sock").display());
    refused(&driver, &plain, &[plugin_flag, &gone, volume_flag, volume], "start the plugin, or name the socket");
    let file = format!("disk={}", driver.world.file("file", "").display());
    refused(&driver, &plain, &[plugin_flag, &file, volume_flag, volume], "this is not a socket");
    let long = format!("disk=/{}", "x".repeat(107));
    refused(&driver, &plain, &[plugin_flag, &long, volume_flag, volume], "at most 107 bytes, and this one has 108");
    refused(
        &driver,
        &job("single-writer", "", "", ""),
        &given,
        "unknown volume access mode \"single-writer\"; use one of",
    );
    let readers = job("single-node-reader-only", "", "", "true");
    refused(&driver, &readers, &given, "is for readers; add read_only = true");
    let closed = format!("{volume}:ro");
    refused(&driver, &plain, &[plugin_flag, plugin, volume_flag, &closed], "CSI volume \"data\" is read-only");
    let raw = plain.replace("\"exec\"", "\"raw_exec\"");
    refused(&driver, &raw, &given, "task driver \"raw_exec\" does not support CSI volumes");
    driver.clean();
    // What only the plugin knows.
    let unknown = driver.args("00000000000000000000000000000000");
    let out = driver.world.run_text(&plain, &unknown.each_ref().map(String::as_str));
    assert!(out.status == 125 && out.stderr.contains("NotFound") && out.stderr.contains("volume \"v\""), "{out:?}");
    driver.clean();
}

#[test]
fn f7_runs_share_a_volume_and_the_last_one_unstages_it() {
    need_root!();
    let Some(binary) = binary("f7_runs_share_a_volume_and_the_last_one_unstages_it") else { return };
    let driver = Driver::start(binary, &["--attach"]);
    let id = driver.create("one", SHARED);
    let waits = |name: &str| {
        job(SHARED, "", "", &format!("echo {name}; while [ ! -e /data/{name} ]; do sleep 0.05; done; rm /data/{name}"))
    };
    let mut first = driver.start_run("one.hcl", &waits("first"), &id);
    wait_for_text(&first.stdout, "first");
    let mut second = driver.start_run("two.hcl", &waits("second"), &id);
    wait_for_text(&second.stdout, "second");
    // Whoever wants it in another way has to wait.
    let out = driver.run(&job(SINGLE, "", "", "true"), &id);
    assert!(out.status == 125 && out.stderr.contains("uses it as multi-node-multi-writer file-system"), "{out:?}");
    fine(&driver.run(&job(SHARED, "", "", "touch /data/first"), &id));
    fine(&first.finish());
    assert_eq!(driver.calls().iter().filter(|call| *call == "NodeUnstageVolume").count(), 0);
    fine(&driver.run(&job(SHARED, "", "", "touch /data/second"), &id));
    fine(&second.finish());
    let count = |name: &str| driver.calls().iter().filter(|call| *call == name).count();
    let counts = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"].map(count);
    assert_eq!(counts, [1, 4, 4, 1], "{:?}", driver.calls());
    driver.clean();
}

/// Every step of a volume's life: the answer is lost, the driver dies, the run is killed, alone and beside another user of the volume.
#[test]
fn f7_whatever_is_killed_or_lost_at_a_step_nothing_is_left_and_nothing_is_taken_away() {
    need_root!();
    let Some(binary) = binary("f7_whatever_is_killed_or_lost_at_a_step") else { return };
    let steps = [
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
    let driver = Driver::start(binary, &["--attach"]);
    let id = driver.create("one", SHARED);
    fine(&driver.run(&job(SHARED, "", "", "echo kept > /data/file"), &id));
    let reads = job(SHARED, "", "", "cat /data/file");
    let mut number = 0;
    for shared in [false, true] {
        let mut holder = shared.then(|| {
            let script = "echo ready; while [ ! -e /data/go ]; do sleep 0.05; done; rm /data/go; cat /data/file";
            let holder = driver.start_run("holder.hcl", &job(SHARED, "", "", script), &id);
            wait_for_text(&holder.stdout, "ready");
            holder
        });
        let of_users = |call: &str| matches!(call, "NodePublishVolume" | "NodeUnpublishVolume");
        for (call, step) in steps.into_iter().filter(|(call, _)| !shared || of_users(call)) {
            number += 1;
            let acts = ["lose", "die", "code", "kill"];
            let is_full = std::env::var_os("AGENTBIN_FULL").is_some();
            for act in acts
                .into_iter()
                .enumerate()
                .filter(|(at, _)| is_full || *at == 3 || *at == number % 3)
                .map(|(_, act)| act)
            {
                let told = format!("{act} at {step} of {call}, shared: {shared}");
                // Before a call has its turn on the volume, the next one would overtake a delayed one, whose caller is dead.
                let act_of_driver = match (act, step) {
                    ("kill", "begin") => "hang",
                    ("kill", _) => "delay",
                    _ => act,
                };
                let fault =
                    json!({"call": call, "step": step, "do": act_of_driver, "code": "INTERNAL", "delay_ms": 700});
                let before = driver.faults();
                driver.fault(&fault);
                if act == "kill" {
                    let mut run = driver.start_run("job.hcl", &reads, &id);
                    driver.wait_for_fault(before);
                    signal(&run.child, "KILL");
                    run.child.wait().unwrap();
                } else {
                    let out = driver.run(&reads, &id);
                    assert_eq!(driver.faults(), before + 1, "{told}: {out:?}");
                    let is_refused = act == "code" && !call.contains("Un");
                    // What cannot be undone is told, and done by the clean-up.
                    let is_left = act == "code" && call.contains("Un");
                    let expected = if is_refused || is_left { 125 } else { 0 };
                    assert_eq!(out.status, expected, "{told}: {out:?}");
                    assert!(is_refused || out.stdout.contains("kept"), "{told}: {out:?}");
                }
                let gc = driver.world.agentbin(&["gc"]);
                assert_eq!(gc.status, 0, "{told}: {gc:?}");
                if shared {
                    assert_eq!(driver.mounts().len(), 2, "{told}: {:?}", driver.mounts());
                } else {
                    assert_eq!(driver.left(), Vec::<String>::new(), "{told}");
                }
            }
        }
        if let Some(holder) = &mut holder {
            std::fs::remove_file(driver.path("faults")).unwrap();
            fine(&driver.run(&job(SHARED, "", "", "touch /data/go"), &id));
            let out = holder.finish();
            assert!(out.status == 0 && out.stdout.contains("kept"), "{out:?}");
        }
    }
    driver.clean();
}

/// The plugin is gone when a killed run is cleaned up: its volume stays recorded until the plugin is back.
#[test]
fn f7_a_volume_whose_plugin_is_gone_is_released_when_it_is_back() {
    need_root!();
    let Some(binary) = binary("f7_a_volume_whose_plugin_is_gone_is_released_when_it_is_back") else { return };
    let mut driver = Driver::start(binary, &[]);
    let id = driver.create("one", SINGLE);
    let mut run = driver.start_run("job.hcl", &job(SINGLE, "", "", "echo up; sleep 600"), &id);
    wait_for_text(&run.stdout, "up");
    signal(&run.child, "KILL");
    run.child.wait().unwrap();
    driver.stop();
    let began = Instant::now();
    let gc = driver.world.agentbin(&["gc"]);
    let told = format!("{gc:?}");
    assert!(gc.status != 0 && told.contains("does not listen at") && told.contains("then run agentbin gc"), "{told}");
    assert!(began.elapsed() < seconds(20), "a plugin that is not there is not waited for");
    assert_eq!((driver.world.allocations(), driver.mounts().len()), (1, 2));
    let again = Command::new(binary)
        .args(["--state", driver.path("state").to_str().unwrap()])
        .args(["--endpoint", &format!("unix://{}", driver.path("csi.sock").display())])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    *driver.child.lock().unwrap() = Some(again);
    let deadline = Instant::now() + seconds(20);
    while std::os::unix::net::UnixStream::connect(driver.path("csi.sock")).is_err() {
        assert!(Instant::now() < deadline);
        #[expect(clippy::disallowed_methods, reason = "a server comes up until a deadline; there is no event")]
        std::thread::sleep(Duration::from_millis(10));
    }
    let gc = driver.world.agentbin(&["gc"]);
    assert_eq!(gc.status, 0, "{gc:?}");
    driver.clean();
}

/// A run in the background whose supervisor is killed has its volume all the time.
#[test]
fn f7_a_volume_stays_below_a_task_whose_supervisor_is_killed() {
    need_root!();
    let Some(binary) = binary("f7_a_volume_stays_below_a_task_whose_supervisor_is_killed") else { return };
    let driver = Driver::start(binary, &["--attach"]);
    let id = driver.create("one", SINGLE);
    let args = driver.args(&id);
    let file = driver.world.file("job.hcl", &job(SINGLE, "", "", "while :; do date > /data/alive; sleep 0.1; done"));
    let out = driver
        .world
        .run(&[&["--detach", "--quiet"], &args.each_ref().map(String::as_str)[..], &[file.to_str().unwrap()]].concat());
    fine(&out);
    let alloc = out.stdout.lines().next().unwrap().to_owned();
    for _ in 0..2 {
        let ours = driver.world.data_dir().display().to_string();
        let supervisors: Vec<i32> = procfs::process::all_processes()
            .unwrap()
            .flatten()
            .filter(|process| {
                let words = process.cmdline().unwrap_or_default();
                words.iter().any(|word| word.contains("supervise")) && words.iter().any(|word| word.contains(&ours))
            })
            .map(|process| process.pid)
            .collect();
        for pid in supervisors {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        let listed = driver.world.agentbin(&["ps"]);
        assert!(listed.status == 0 && listed.stdout.contains(&alloc[..8]), "{out:?}: {listed:?}");
        assert_eq!(driver.mounts().len(), 2);
    }
    let count = |name: &str| driver.calls().iter().filter(|call| *call == name).count();
    assert_eq!([count("NodeStageVolume"), count("NodePublishVolume"), count("NodeUnpublishVolume")], [1, 1, 0]);
    let stopped = driver.world.agentbin(&["stop", &alloc]);
    fine(&stopped);
    driver.clean();
    assert_eq!([count("NodeUnpublishVolume"), count("NodeUnstageVolume")], [1, 1]);
}

/// In a thread of its own, whose mount namespace nobody shares.
#[test]
fn f2_the_mounts_of_a_csi_volume_travel_as_asked() {
    need_root!();
    let Some(binary) = binary("f2_the_mounts_of_a_csi_volume_travel_as_asked") else { return };
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    let world = World::new();
    let shared = world.path("data");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o711)).unwrap();
    mount(Some("csi"), &shared, Some("tmpfs"), MsFlags::empty(), Some("mode=0711,size=64m")).unwrap();
    mount(None::<&str>, &shared, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let mut child = Command::new(binary)
        .args(["--state", &at("state"), "--endpoint", &format!("unix://{}", at("csi.sock"))])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let driver = of_a_job_at(world, dir);
    let id = driver.create("one", SINGLE);
    let class = driver.world.file(
        "Mounts.java",
        "class Mounts {
    public static void main(String[] none) throws Exception {
        System.out.println(java.nio.file.Files.readString(java.nio.file.Path.of(\"/proc/self/mountinfo\")));
    }
}
",
    );
    let javac = Command::new("javac").arg("-d").arg(class.parent().unwrap()).arg(&class).status();
    assert!(javac.is_ok_and(|status| status.success()), "javac");
    let class = class.with_extension("class").display().to_string();
    let engine = match TestEngine::with(&["--bridge=none"]) {
        Ok(engine) => Some(engine),
        Err(reason) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{reason}");
            println!("SKIP: f2_the_mounts_of_a_csi_volume_travel_as_asked: docker: {reason}");
            None
        }
    };
    for (kind, level) in
        [("exec", "default"), ("exec", "strict"), ("java", "default"), ("java", "strict"), ("docker", "default")]
    {
        if kind == "docker" && engine.is_none() {
            continue;
        }
        for (mode, expected) in [("private", ""), ("host-to-task", "master:"), ("bidirectional", "shared:")] {
            let text = job(SINGLE, "", &format!("propagation_mode = \"{mode}\""), "");
            let (task, _) = text.split_once(" config {").unwrap();
            let (task, level_key) =
                (task.replace("\"exec\"", &format!("\"{kind}\"")), format!("isolation = \"{level}\""));
            let config = match kind {
                "exec" => {
                    format!("config {{\n command = \"/bin/cat\"\n args = [\"/proc/self/mountinfo\"]\n {level_key}\n }}")
                }
                "java" => format!(
                    "artifact {{\n source = \"{class}\"\n }}\n config {{\n class = \"Mounts\"\n class_path = \
                     \"${{NOMAD_TASK_DIR}}\"\n {level_key}\n }}"
                ),
                _ => format!(
                    "config {{\n image = \"{IMAGE}\"\n network_mode = \"none\"\n command = \"/bin/cat\"\n args = \
                     [\"/proc/self/mountinfo\"]\n }}"
                ),
            };
            let file = driver.world.file("job.nomad.hcl", &format!("{task}{config}\n }}\n }}\n}}\n"));
            let mut command = driver.world.command(&driver.args(&id).each_ref().map(String::as_str));
            if let Some(engine) = &engine {
                command.env("DOCKER_HOST", engine.endpoint());
            }
            let out: Out = command.arg(file).output().unwrap().into();
            fine(&out);
            let line = out.stdout.lines().find(|line| line.contains(" /data ")).unwrap_or_default();
            let fields: Vec<&str> = line.split(' ').skip(6).take_while(|field| *field != "-").collect();
            let is_so =
                if expected.is_empty() { fields.is_empty() } else { fields.iter().any(|f| f.starts_with(expected)) };
            assert!(is_so && !line.is_empty(), "{kind}: {mode} at {level}: {line}");
        }
    }
    assert_eq!(driver.mounts(), Vec::<String>::new());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn f3_a_task_is_the_plugin_of_other_runs() {
    need_root!();
    let Some(binary) = binary("f3_a_task_is_the_plugin_of_other_runs") else { return };
    let driver = of_a_job(World::new());
    let at = |name: &str| driver.path(name).display().to_string();
    let args = format!("\"--state\", \"{}\", \"--log\", \"{}\", \"--attach\"", at("state"), at("calls"));
    let text = plugin_job("raw_exec", binary.to_str().unwrap(), &args, "");
    let file = driver.world.file("plugin.hcl", &text);
    let mut plugin = driver.world.start(&[file.to_str().unwrap()]);
    wait_for_text(&plugin.stderr, "plugin: disk");
    let socket = driver.sockets().remove(0);
    let id = create_at(&socket, "one", SHARED);
    let volume = format!("data=disk:{id}");
    let run = |script: &str| driver.world.run_text(&job(SHARED, "", "", script), &["--csi-volume", &volume]);
    fine(&run("echo kept > /data/file"));
    assert_eq!(driver.calls().len(), 6, "{:?}", driver.calls());
    // A plugin that is killed is started again and registered again; whoever has a volume meanwhile keeps it.
    let waits =
        job(SHARED, "", "", "echo up; while [ ! -e /data/go ]; do sleep 0.05; done; rm /data/go; cat /data/file");
    let waits = driver.world.file("waits.hcl", &waits);
    let mut holder = driver.world.start(&["--csi-volume", &volume, waits.to_str().unwrap()]);
    wait_for_text(&holder.stdout, "up");
    let entries = driver.entries();
    let pid = i32::try_from(entries.last().unwrap()["pid"].as_i64().unwrap()).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
    let deadline = Instant::now() + seconds(30);
    let healthy = || String::from_utf8_lossy(&plugin.stderr.lock().unwrap()).matches("plugin: disk").count();
    while healthy() < 2 {
        assert!(Instant::now() < deadline, "the plugin does not come back");
        #[expect(clippy::disallowed_methods, reason = "another process writes to its stderr, until a deadline")]
        std::thread::sleep(Duration::from_millis(20));
    }
    fine(&run("touch /data/go"));
    let out = holder.finish();
    assert!(out.status == 0 && out.stdout.contains("kept"), "{out:?}");
    assert_eq!(driver.left(), Vec::<String>::new());
    assert_eq!(driver.registered().len(), 1);
    signal(&plugin.child, "INT");
    plugin.finish();
    assert!(driver.registered().is_empty() && driver.sockets().is_empty());
    let out = run("true");
    assert!(out.status == 125 && out.stderr.contains("no CSI plugin \"disk\" runs here"), "{out:?}");
    driver.clean();
}

#[test]
fn f3_a_plugin_that_is_not_healthy_in_time_is_restarted_and_one_that_is_killed_is_forgotten() {
    need_root!();
    let test = "f3_a_plugin_that_is_not_healthy_in_time_is_restarted_and_one_that_is_killed_is_forgotten";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let out = driver.world.run_text(&plugin_job("raw_exec", "/bin/sleep", "\"600\"", ""), &[]);
    assert!(out.status != 0 && out.stderr.matches("Error: no answer to Probe at").count() == 2, "{out:?}");
    assert!(out.stderr.contains("CSI plugin did not become healthy before 2s"), "{out:?}");
    driver.world.assert_clean();
    assert!(driver.registered().is_empty() && driver.sockets().is_empty());
    let args = format!("\"--state\", \"{}\"", driver.path("state").display());
    let file = driver.world.file("plugin.hcl", &plugin_job("raw_exec", binary.to_str().unwrap(), &args, ""));
    let mut plugin = driver.world.start(&[file.to_str().unwrap()]);
    wait_for_text(&plugin.stderr, "plugin: disk");
    assert_eq!(driver.registered().len(), 1);
    signal(&plugin.child, "KILL");
    plugin.child.wait().unwrap();
    let gc = driver.world.agentbin(&["gc"]);
    assert_eq!(gc.status, 0, "{gc:?}");
    assert!(driver.registered().is_empty() && driver.sockets().is_empty(), "{gc:?}");
    driver.clean();
    let strict =
        driver.world.run_text(&plugin_job("exec", "/bin/sleep", "\"600\"", ""), &["--isolation-minimum", "default"]);
    assert!(strict.status == 125 && strict.stderr.contains("\"bidirectional\" is looser"), "{strict:?}");
}

/// In a thread of its own, whose mount namespace nobody shares.
#[test]
fn f3_an_isolated_plugin_mounts_on_the_host() {
    need_root!();
    let Some(binary) = binary("f3_an_isolated_plugin_mounts_on_the_host") else { return };
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    let world = World::new();
    let programs = world.path("programs");
    std::fs::create_dir(&programs).unwrap();
    world::copy_program(binary, &programs.join("driver"));
    let config = "plugin \"exec\" {\n config {\n allow_caps = [\"sys_admin\", \"dac_override\"]\n }\n}\n";
    let config = world.file("agent.hcl", config);
    let more = "volume \"programs\" {\n type = \"host\"\n source = \"programs\"\n read_only = true\n }";
    let text = plugin_job("exec", "/programs/driver", "\"--state\", \"/local/state\"", more);
    let text = text.replace(
        "config {",
        "volume_mount {\n volume = \"programs\"\n destination = \"/programs\"\n read_only = true\n }\n config {",
    );
    let text =
        text.replace("args =", "cap_add = [\"sys_admin\", \"dac_override\"]\n seccomp = \"unconfined\"\n args =");
    let file = world.file("plugin.hcl", &text);
    let given = format!("programs={}:ro", programs.display());
    let args = ["--volume", &given, "--config", config.to_str().unwrap(), file.to_str().unwrap()];
    let data = world.data_dir();
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o711)).unwrap();
    mount(Some("csi"), &data, Some("tmpfs"), MsFlags::empty(), Some("mode=0711,size=64m")).unwrap();
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    let out = world.run(&args);
    assert!(out.status == 125 && out.stderr.contains("is mounted privately; run mount --make-shared"), "{out:?}");
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    let driver = of_a_job(world);
    let mut plugin = driver.world.start(&args);
    wait_for_text(&plugin.stderr, "plugin: disk");
    let id = create_at(&driver.sockets().remove(0), "one", SINGLE);
    let volume = format!("data=disk:{id}");
    let run = |script: &str| driver.world.run_text(&job(SINGLE, "", "", script), &["--csi-volume", &volume]);
    fine(&run("echo kept > /data/file"));
    let out = run("cat /data/file");
    assert_eq!((out.status, &*out.stdout), (0, "kept\n"), "{out:?}");
    assert_eq!(driver.mounts(), Vec::<String>::new());
    signal(&plugin.child, "INT");
    plugin.finish();
    assert!(driver.registered().is_empty() && driver.sockets().is_empty());
}
