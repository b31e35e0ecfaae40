//! CSI volumes of job files, and plugins that are tasks (F1, F3, F4, F5, F7): the real binary and a real driver (`tests/csi`) on the real kernel.

#[path = "support/agent.rs"]
mod agent;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agent::{Agent, nomad, nomad_says};
use agentbin::csi::{Capability, Client, NewVolume};
use agentbin::spec::MountOptions;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};
use world::{Out, World, need_root, seconds, signal, wait_for_text};

/// The driver, built once; `None` where there is no Go.
fn binary(test: &str) -> Option<&'static Path> {
    static BINARY: OnceLock<Option<(tempfile::TempDir, PathBuf)>> = OnceLock::new();
    let built = BINARY.get_or_init(|| {
        Command::new("go").arg("version").output().ok()?;
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("driver");
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/csi");
        let go = Command::new("go").args(["build", "-o"]).arg(&binary).arg(".").current_dir(module).output().unwrap();
        assert!(go.status.success(), "{}", String::from_utf8_lossy(&go.stderr));
        Some((dir, binary))
    });
    if built.is_none() {
        assert!(std::env::var_os("CI").is_none(), "needs Go");
        println!("SKIP: {test}: needs Go");
    }
    built.as_ref().map(|(_, binary)| &**binary)
}

/// A driver that is started again whenever it dies.
struct Driver {
    world: World,
    /// Its own files, apart from those of runs.
    dir: tempfile::TempDir,
    child: Arc<Mutex<Option<Child>>>,
    ends: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Driver {
    fn start(binary: &'static Path, more: &[&str]) -> Driver {
        let (world, dir) = (World::new(), tempfile::tempdir().unwrap());
        let at = |name: &str| dir.path().join(name).display().to_string();
        let mut args = vec!["--endpoint".to_owned(), format!("unix://{}", at("csi.sock"))];
        args.extend(["--state".to_owned(), at("state"), "--log".to_owned(), at("calls")]);
        args.extend(["--faults".to_owned(), at("faults")]);
        args.extend(more.iter().map(|&one| one.to_owned()));
        let (child, ends) = (Arc::<Mutex<Option<Child>>>::default(), Arc::<AtomicBool>::default());
        let keeper = std::thread::spawn({
            let (child, ends) = (Arc::clone(&child), Arc::clone(&ends));
            move || {
                while !ends.load(Ordering::Relaxed) {
                    let started = Command::new(binary).args(&args).stdout(Stdio::null()).spawn().unwrap();
                    *child.lock().unwrap() = Some(started);
                    while matches!(child.lock().unwrap().as_mut().map(|child| child.try_wait().unwrap()), Some(None)) {
                        #[expect(clippy::disallowed_methods, reason = "the lock is free for whoever kills the child")]
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        });
        Driver { world, dir, child, ends, keeper: Some(keeper) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(child) = self.child.lock().unwrap().as_mut() {
            // It may have died by itself.
            let _ = child.kill();
        }
        if let Some(keeper) = self.keeper.take() {
            keeper.join().unwrap();
        }
    }

    /// A volume that the driver has made, by its id.
    fn create(&self, name: &str, access: &str) -> String {
        create_at(&self.path("csi.sock"), name, access)
    }

    fn args(&self, id: &str) -> [String; 4] {
        let plugin = format!("disk={}", self.path("csi.sock").display());
        ["--csi-plugin".to_owned(), plugin, "--csi-volume".to_owned(), format!("data=disk:{id}")]
    }

    fn entries(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The calls on volumes that the driver has begun.
    fn calls(&self) -> Vec<String> {
        let name = |entry: &Value| entry["call"].as_str().unwrap().to_owned();
        let begun: Vec<String> = self.entries().iter().filter(|entry| entry["phase"] == "begin").map(name).collect();
        begun.into_iter().filter(|call| call.ends_with("tageVolume") || call.ends_with("ublishVolume")).collect()
    }

    fn fault(&self, fault: &Value) {
        let _ = std::fs::remove_file(self.path("faults.seen"));
        std::fs::write(self.path("faults"), fault.to_string()).unwrap();
    }

    fn faults(&self) -> usize {
        self.entries().iter().filter(|entry| entry["phase"] == "fault").count()
    }

    /// Waits until one more fault has happened.
    fn wait_for_fault(&self, before: usize) {
        let deadline = Instant::now() + seconds(60);
        while self.faults() == before {
            assert!(Instant::now() < deadline, "it did not come to the fault: {:?}", self.calls());
            #[expect(clippy::disallowed_methods, reason = "the driver's log is looked at until a deadline")]
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is left of any use of a volume: mounts, records of ours, what the driver takes for used.
    fn left(&self) -> Vec<String> {
        let mut left = self.mounts();
        for name in ["csi/volumes/disk", "csi/mounts/disk/staging", "csi/mounts/disk/per-alloc"] {
            let entries = std::fs::read_dir(self.world.data_dir().join(name)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        for entry in std::fs::read_dir(self.path("state/volumes")).unwrap().flatten() {
            let volume: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
            for used in ["Attached", "Staged", "Published"] {
                if volume.get(used).is_some_and(|used| used.as_object().is_some_and(|all| !all.is_empty())) {
                    left.push(format!("{used}: {volume}"));
                }
            }
        }
        left
    }

    /// The mounts of volumes, as this thread sees them.
    fn mounts(&self) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let dir = self.world.data_dir().join("csi").display().to_string();
        let places = text.lines().filter_map(|line| line.split(' ').nth(4));
        places.filter(|place| place.starts_with(&dir)).map(str::to_owned).collect()
    }

    fn run(&self, job: &str, id: &str) -> Out {
        self.world.run_text(job, &self.args(id).each_ref().map(String::as_str))
    }

    fn start_run(&self, name: &str, job: &str, id: &str) -> world::Running {
        let file = self.world.file(name, job);
        let args = self.args(id);
        self.world.start(&[&args.each_ref().map(String::as_str)[..], &[file.to_str().unwrap()]].concat())
    }

    #[track_caller]
    fn clean(&self) {
        let deadline = Instant::now() + seconds(20);
        while !self.left().is_empty() {
            assert!(Instant::now() < deadline, "left: {:?}", self.left());
            #[expect(clippy::disallowed_methods, reason = "what is left is looked at until a deadline")]
            std::thread::sleep(Duration::from_millis(20));
        }
        self.world.assert_clean();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

fn create_at(socket: &Path, name: &str, access: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let capability = Capability::from_words(access, "file-system", MountOptions::default()).unwrap();
        let new = NewVolume {
            name: name.to_owned(),
            capacity: (1 << 20, 0),
            capabilities: vec![capability],
            ..NewVolume::default()
        };
        Client::new(socket).unwrap().create_volume(&new).await.unwrap().id
    })
}

const SHARED: &str = "multi-node-multi-writer";
const SINGLE: &str = "single-node-writer";

/// A batch job with one task that runs a shell script with the volume at /data.
fn job(access: &str, volume: &str, mount: &str, script: &str) -> String {
    format!(
        "job \"csi\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n \
         volume \"v\" {{\n type = \"csi\"\n source = \"data\"\n access_mode = \"{access}\"\n attachment_mode = \"file-system\"\n {volume}\n }}\n \
         task \"t\" {{\n driver = \"exec\"\n user = \"root\"\n volume_mount {{\n volume = \"v\"\n destination = \"/data\"\n {mount}\n }}\n \
         config {{\n command = \"/bin/sh\"\n args = [\"-c\", <<EOT\n{script}\nEOT\n ]\n }}\n }}\n }}\n}}\n"
    )
}

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
    let options = "mount_options {\n mount_flags = [\"password=fl4g-s3cret\"]\n }";
    let out = driver.run(&job(SINGLE, options, "", "echo kept > /data/file; ls -d /data; mount"), &id);
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
    assert!(!format!("{out:?}").contains("s3cret"), "{out:?}");
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
    refused(&driver, &plain, &[plugin_flag, &file, volume_flag, volume], "this is no socket");
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
        assert!(listed.status == 0 && listed.stdout.contains(&alloc[..8]), "{listed:?}");
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
    let driver = Driver { world, dir, child: Arc::default(), ends: Arc::default(), keeper: None };
    let id = driver.create("one", SINGLE);
    for level in ["default", "strict"] {
        for (mode, expected) in [("private", ""), ("host-to-task", "master:"), ("bidirectional", "shared:")] {
            let mode_key = format!("propagation_mode = \"{mode}\"");
            let text = job(SINGLE, "", &mode_key, "grep ' /data ' /proc/self/mountinfo");
            let text = text.replace("command =", &format!("isolation = \"{level}\"\n command ="));
            let out = driver.run(&text, &id);
            fine(&out);
            let line = out.stdout.lines().find(|line| line.contains(" /data ")).unwrap_or_default();
            let fields: Vec<&str> = line.split(' ').skip(6).take_while(|field| *field != "-").collect();
            let is_so =
                if expected.is_empty() { fields.is_empty() } else { fields.iter().any(|f| f.starts_with(expected)) };
            assert!(is_so, "{mode} at {level}: {line}");
        }
    }
    assert_eq!(driver.mounts(), Vec::<String>::new());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A job with one task that is the plugin `disk`.
fn plugin_job(driver: &str, command: &str, args: &str, more: &str) -> String {
    format!(
        "job \"plugin\" {{\n type = \"service\"\n group \"g\" {{\n restart {{\n attempts = 1\n delay = \"0s\"\n interval = \"1h\"\n mode = \"fail\"\n }}\n \
         {more}\n task \"p\" {{\n driver = \"{driver}\"\n user = \"root\"\n csi_plugin {{\n id = \"disk\"\n type = \"monolith\"\n health_timeout = \"2s\"\n }}\n \
         config {{\n command = \"{command}\"\n args = [{args}]\n }}\n }}\n }}\n}}\n"
    )
}

/// A driver that is a task of a run, not started yet.
fn of_a_job(world: World) -> Driver {
    Driver { world, dir: tempfile::tempdir().unwrap(), child: Arc::default(), ends: Arc::default(), keeper: None }
}

impl Driver {
    /// The sockets of plugins that are tasks.
    fn sockets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.world.data_dir().join("csi/sockets")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("csi.sock")).collect()
    }

    fn registered(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.world.data_dir().join("csi/plugins")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    }
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

/// The parts of the agent's tests: the agent, the `nomad` command, and the driver as a task of a job.
struct Cluster<'a> {
    agent: Option<Agent<'a>>,
    driver: &'a Driver,
    nomad: PathBuf,
}

impl<'a> Cluster<'a> {
    /// An agent on which the driver runs as the plugin `disk`.
    fn start(test: &str, driver: &'a Driver, binary: &Path, more: &str) -> Option<Cluster<'a>> {
        let Some(nomad) = nomad() else {
            println!("SKIP: {test}: nomad is not installed; scripts/nomad builds it");
            return None;
        };
        let cluster = Cluster { agent: Some(Agent::start(&driver.world)), driver, nomad };
        let at = |name: &str| driver.path(name).display().to_string();
        let args = format!("\"--state\", \"{}\", \"--log\", \"{}\"{more}", at("state"), at("calls"));
        let text = plugin_job("raw_exec", binary.to_str().unwrap(), &args, "");
        cluster.run_job("plugin.hcl", &text);
        cluster.until("the plugin is healthy", &["plugin", "status", "disk"], "Nodes Healthy        = 1");
        Some(cluster)
    }

    fn agent(&self) -> &Agent<'a> {
        self.agent.as_ref().unwrap()
    }

    /// Another agent process takes the place of one that is killed.
    fn kill_and_restart(&mut self) {
        self.agent.take().unwrap().end(rustix::process::Signal::KILL);
        self.agent = Some(Agent::start(&self.driver.world));
    }

    fn says(&self, args: &[&str]) -> (bool, String) {
        nomad_says(&self.nomad, &self.driver.world, args)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let (fine, text) = self.says(args);
        assert!(fine, "nomad {args:?}: {text}\n{}", self.agent().log());
        text
    }

    #[track_caller]
    fn refused(&self, args: &[&str], expected: &str) {
        let (fine, text) = self.says(args);
        assert!(!fine && text.contains(expected), "nomad {args:?} should say {expected:?}: {text}");
    }

    /// Waits until a command says something.
    #[track_caller]
    fn until(&self, what: &str, args: &[&str], expected: &str) -> String {
        self.agent().until(what, || {
            let (_, text) = self.says(args);
            text.contains(expected).then_some(text)
        })
    }

    fn run_job(&self, name: &str, text: &str) {
        let file = self.driver.world.file(name, text);
        self.run(&["job", "run", "-detach", file.to_str().unwrap()]);
    }

    fn file(&self, name: &str, text: &str) -> String {
        self.driver.world.file(name, text).display().to_string()
    }
}

/// The specification of a volume of the plugin `disk`.
fn volume_file(id: &str, capacity: &str, access: &str, more: &str) -> String {
    format!(
        "type = \"csi\"\nid = \"{id}\"\nname = \"volume-{id}\"\nplugin_id = \"disk\"\ncapacity_min = \"{capacity}\"\n\
         capability {{\n access_mode = \"{access}\"\n attachment_mode = \"file-system\"\n}}\n\
         secrets {{\n token = \"t0ken-of-a-volume\"\n}}\nmount_options {{\n mount_flags = [\"password=fl4g-of-a-volume\"]\n}}\n{more}"
    )
}

/// A service that keeps its volume until it is stopped.
fn holder(id: &str, access: &str, script: &str) -> String {
    let waits = format!("trap 'exit 0' INT TERM; {script}; echo up; while :; do sleep 1 & wait $!; done");
    let text = job(access, "", "", &waits).replace("job \"csi\"", &format!("job \"{id}\""));
    text.replace("type = \"batch\"", "type = \"service\"")
}

#[test]
fn f7_the_real_command_makes_uses_expands_and_deletes_a_volume() {
    need_root!();
    let test = "f7_the_real_command_makes_uses_expands_and_deletes_a_volume";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, ", \"--attach\"") else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SINGLE, ""));
    let other = cluster.file("other.hcl", &volume_file("data", "1MiB", SINGLE, "").replace("\"disk\"", "\"none\""));
    assert!(cluster.run(&["volume", "status", "-type", "csi"]).contains("No CSI volumes"));
    cluster.refused(&["volume", "create", &other], "no CSI plugin named: none could be found");
    let created = cluster.run(&["volume", "create", &file]);
    assert!(created.contains("Created external volume") && created.contains("with ID data"), "{created}");
    let shown = cluster.run(&["volume", "status", "-type", "csi", "data"]);
    for line in
        ["Schedulable          = true", "Nodes Expected       = 1", "Capacity             = 1.0 MiB", "[REDACTED]"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }

    // One writes, the other one waits for the end of that, and the plugin is asked once for each step.
    let steps = ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
    cluster.run_job("one.hcl", &holder("one", SINGLE, "echo kept > /data/file"));
    let one = cluster.agent().alloc("one", "running", "");
    assert_eq!(driver.calls(), steps);
    let short = &one["ID"].as_str().unwrap()[..8];
    let shown = cluster.run(&["volume", "status", "-type", "csi", "data"]);
    assert!(shown.contains(short) && shown.contains("Access Mode          = single-node-writer"), "{shown}");
    let listed = cluster.run(&["volume", "status", "-type", "csi"]);
    assert!(listed.contains("single-node-writer") && listed.contains("disk"), "{listed}");
    cluster.refused(&["volume", "deregister", "data"], "volume in use: data");
    let forced = cluster.agent().ask("DELETE", "/v1/volume/csi/data?force=true", "");
    assert_eq!(forced, (500, "volume in use: data".to_owned()));
    cluster.refused(&["volume", "delete", "data"], "volume in use: data");
    cluster.run_job("two.hcl", &holder("two", SINGLE, "cat /data/file"));
    let blocked = "CSI volume data has exhausted its available writer claims";
    cluster.until("the second job waits", &["job", "status", "two"], blocked);
    cluster.kill_and_restart();
    cluster.agent().alloc("one", "running", "");
    assert_eq!(driver.calls(), steps, "the volume stays where it is");
    cluster.run(&["job", "stop", "-detach", "one"]);
    let two = cluster.agent().alloc("two", "running", "");
    cluster.agent().until("the second job reads what the first one wrote", || {
        cluster.agent().output(&two, "t").contains("kept").then_some(())
    });
    let undone = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"];
    assert_eq!(driver.calls(), [&steps[..], &undone, &steps].concat());

    // It grows while it is used, is copied, and is deleted when nobody uses it.
    let larger = cluster.file("data.hcl", &volume_file("data", "2MiB", SINGLE, ""));
    cluster.run(&["volume", "create", &larger]);
    assert!(cluster.run(&["volume", "status", "-type", "csi", "data"]).contains("= 2.0 MiB"));
    let count = |call: &str| driver.entries().iter().filter(|e| e["call"] == call && e["phase"] == "begin").count();
    assert_eq!((count("ControllerExpandVolume"), count("NodeExpandVolume")), (1, 0), "a directory has no file system");
    let renamed = cluster.file("renamed.hcl", &volume_file("data", "2MiB", SINGLE, "").replace("volume-data", "x"));
    cluster.refused(&["volume", "register", &renamed], "volume name cannot be updated");
    let taken = cluster.run(&["volume", "snapshot", "create", "data", "snap"]);
    let snapshot = taken.lines().nth(1).and_then(|line| line.split_whitespace().next()).unwrap().to_owned();
    let list = cluster.run(&["volume", "snapshot", "list", "-plugin", "disk"]);
    assert!(list.contains(&snapshot), "{list} {taken}");
    let copy =
        cluster.file("copy.hcl", &volume_file("copy", "2MiB", SINGLE, &format!("snapshot_id = \"{snapshot}\"\n")));
    cluster.run(&["volume", "create", &copy]);
    cluster.run(&["volume", "delete", "copy"]);
    cluster.run(&["volume", "snapshot", "delete", "disk", &snapshot]);
    cluster.refused(&["volume", "snapshot", "delete", "none", &snapshot], "no such plugin");
    let verbose = cluster.run(&["volume", "status", "-type", "csi", "-verbose"]);
    assert!(verbose.contains("external volumes") || verbose.contains("External ID"), "{verbose}");
    cluster.run(&["job", "stop", "-detach", "two"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    let node = cluster.agent().get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    cluster.run(&["volume", "detach", "data", &node[..8]]);
    cluster.run(&["volume", "delete", "data"]);
    cluster.refused(&["volume", "delete", "data"], "data");
    assert_eq!(std::fs::read_dir(driver.path("state/volumes")).unwrap().count(), 0);
    assert_eq!(driver.left(), Vec::<String>::new());

    // No secret is where others could read it.
    let world = &driver.world;
    let out = Command::new("grep")
        .args(["-r", "-l", "-a", "-E", "t0ken-of-a-volume|fl4g-of-a-volume", "-s"])
        .arg(world.data_dir())
        .output();
    assert_eq!(String::from_utf8_lossy(&out.unwrap().stdout), "");
    assert!(!cluster.agent().log().contains("of-a-volume"));
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

#[test]
fn f7_plugins_end_last() {
    need_root!();
    let Some(binary) = binary("f7_plugins_end_last") else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start("f7_plugins_end_last", &driver, binary, "") else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SHARED, ""));
    cluster.run(&["volume", "create", &file]);
    for id in ["one", "two"] {
        cluster.run_job(&format!("{id}.hcl"), &holder(id, SHARED, "true"));
        cluster.agent().alloc(id, "running", "");
    }
    let node = cluster.agent().get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    cluster.run(&["node", "drain", "-enable", "-yes", "-deadline", "60s", &node]);
    assert_eq!(driver.left(), Vec::<String>::new());
    let calls = driver.calls();
    let count = |name: &str| calls.iter().filter(|call| *call == name).count();
    let counts = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"].map(count);
    assert_eq!(counts, [1, 2, 2, 1], "{calls:?}");
    for id in ["one", "two", "plugin"] {
        cluster.run(&["job", "stop", "-detach", id]);
    }
    cluster.run(&["volume", "deregister", "data"]);
    cluster.agent.take().unwrap().wind_up();
}

#[test]
fn f7_the_file_system_of_a_volume_grows_below_its_task() {
    need_root!();
    let test = "f7_the_file_system_of_a_volume_grows_below_its_task";
    let Some(binary) = binary(test) else { return };
    if !Path::new("/dev/loop-control").exists() {
        assert!(std::env::var_os("CI").is_none(), "needs loop devices");
        println!("SKIP: {test}: needs loop devices");
        return;
    }
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, "") else { return };
    let spec = |size: &str| {
        volume_file("data", size, SINGLE, "parameters {\n backend = \"loop\"\n}\n")
            .replace("mount_flags", "fs_type = \"ext4\"\n mount_flags")
            .replace("password=fl4g-of-a-volume", "noatime")
    };
    let file = cluster.file("data.hcl", &spec("16MiB"));
    cluster.run(&["volume", "create", &file]);
    cluster.run_job("one.hcl", &holder("one", SINGLE, "stat -f -c 'blocks %b' /data"));
    let one = cluster.agent().alloc("one", "running", "");
    let file = cluster.file("data.hcl", &spec("32MiB"));
    // The kernel grows a mounted file system only for who has this capability.
    let may_grow = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_RESOURCE).unwrap();
    if may_grow {
        cluster.run(&["volume", "create", &file]);
    } else {
        cluster.refused(&["volume", "create", &file], "unable to expand volume: NodeExpandVolume of ");
    }
    let count = |call: &str| driver.entries().iter().filter(|e| e["call"] == call && e["phase"] == "begin").count();
    assert_eq!((count("ControllerExpandVolume"), count("NodeExpandVolume")), (1, 1));
    let id = one["ID"].as_str().unwrap();
    let larger = cluster.run(&["alloc", "exec", "-task", "t", id, "stat", "-f", "-c", "blocks %b", "/data"]);
    let blocks = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("blocks "));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let before = blocks(&cluster.agent().output(&one, "t"));
    assert_eq!(blocks(&larger) > before * 3 / 2, may_grow, "{before} {larger}");
    cluster.run(&["job", "stop", "-detach", "one"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    cluster.run(&["volume", "delete", "data"]);
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}
