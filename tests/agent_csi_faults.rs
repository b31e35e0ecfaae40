//! Faults at every step of the agent's CSI volumes (F7): the plugin's process, its task, an executor or the agent is killed there,
//! or an answer is lost, in each of the ways in which jobs use volumes. Afterwards nothing of any use is left, and no data is lost.
//! The default is a slice whose seed is printed; `AGENTBIN_FULL=1` has every point.

#[path = "support/agent.rs"]
mod agent;
#[path = "support/csi_driver.rs"]
mod csi_driver;
#[path = "support/engine.rs"]
mod engine;
#[path = "support/random.rs"]
mod random;
#[path = "support/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use agent::{Agent, try_ask};
use csi_driver::{Driver, SHARED, SINGLE, binary, of_a_job};
use engine::{IMAGE, TestEngine};
use random::Random;
use world::{World, need_root, seconds};

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

/// Which driver runs the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    RawExec,
    Exec,
    Docker,
}

/// An agent on which the driver runs as the plugin `disk`, and what was written to volumes so far.
struct Place<'a> {
    driver: &'a Driver,
    kind: Kind,
    /// `None` while nobody is there.
    agent: Mutex<Option<Agent<'a>>>,
    /// The lines that tasks have said to be written, each with its volume.
    promised: Mutex<Vec<(String, String)>>,
    number: AtomicU32,
    /// The mount points of this world while no volume is used.
    quiet: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "other processes are looked at until a deadline")]
fn nap() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Some job with CSI volumes, the first of which is at /data, the second one at /data1.
struct Job<'x> {
    id: &'x str,
    kind: &'x str,
    volumes: &'x [(&'x str, &'x str)],
    group: &'x str,
    /// More of the block of every volume.
    volume: &'x str,
    tasks: &'x [&'x str],
    script: &'x str,
}

impl Default for Job<'_> {
    fn default() -> Self {
        Job {
            id: "job",
            kind: "batch",
            volumes: &[("one", SINGLE)],
            group: FAILS_AT_ONCE,
            volume: "",
            tasks: &["t"],
            script: HOLD,
        }
    }
}

const FAILS_AT_ONCE: &str = "restart {\n attempts = 0\n mode = \"fail\"\n }";
const OFTEN: &str = "restart {\n attempts = 1000\n interval = \"1h\"\n delay = \"0s\"\n mode = \"delay\"\n }";
/// Whoever has a volume looks whether it is still there.
const HOLD: &str = "trap 'exit 0' INT TERM; echo here > /data/here; echo up; \
                    while :; do [ -e /data/here ] || echo LOST; sleep 0.2 & wait $!; done";

impl Job<'_> {
    fn text(&self) -> String {
        let (mut volumes, mut mounts) = (String::new(), String::new());
        for (number, (source, access)) in self.volumes.iter().enumerate() {
            let at = if number == 0 { "/data".to_owned() } else { format!("/data{number}") };
            volumes += &format!(
                "volume \"v{number}\" {{\n type = \"csi\"\n source = \"{source}\"\n access_mode = \"{access}\"\n \
                 attachment_mode = \"file-system\"\n {}\n }}\n",
                self.volume
            );
            mounts += &format!("volume_mount {{\n volume = \"v{number}\"\n destination = \"{at}\"\n }}\n");
        }
        let task = |name: &&str| {
            format!(
                "task \"{name}\" {{\n driver = \"exec\"\n user = \"root\"\n kill_timeout = \"2s\"\n {mounts}\n \
                 config {{\n command = \"/bin/sh\"\n args = [\"-c\", <<EOT\n{}\nEOT\n ]\n }}\n \
                 resources {{\n cpu = 20\n memory = 32\n }}\n }}\n",
                self.script
            )
        };
        let tasks: String = self.tasks.iter().map(task).collect();
        format!(
            "job \"{}\" {{\n type = \"{}\"\n group \"g\" {{\n {}\n {volumes} {tasks} }}\n}}\n",
            self.id, self.kind, self.group
        )
    }
}

/// A script that has a line on the disk before it says so.
fn writes(line: &str) -> String {
    writes_at(line, "/data")
}

fn writes_at(line: &str, dir: &str) -> String {
    format!("echo {line} >> {dir}/log && sync {dir}/log && echo wrote {line}")
}

/// The job that is the plugin.
fn plugin_text(kind: Kind, dir: &Path, programs: &Path) -> String {
    let (dir, programs) = (dir.display(), programs.display());
    let args = |at: &str| {
        format!(
            "args = [\"--state\", \"{at}/state\", \"--log\", \"{at}/calls\", \"--faults\", \"{at}/faults\", \"--attach\"]"
        )
    };
    let mounts = |name: &str, more: &str| {
        format!("volume_mount {{\n volume = \"{name}\"\n destination = \"/{name}\"\n {more}\n }}\n")
    };
    let (driver, volumes, task, config) = match kind {
        Kind::RawExec => {
            let config = format!("command = \"{programs}/driver\"\n {}", args(&dir.to_string()));
            ("raw_exec", String::new(), String::new(), config)
        }
        Kind::Exec => {
            let volumes = "volume \"programs\" {\n type = \"host\"\n source = \"programs\"\n read_only = true\n }\n \
                           volume \"driver\" {\n type = \"host\"\n source = \"driver\"\n }\n";
            let task = mounts("programs", "read_only = true") + &mounts("driver", "");
            let config = format!(
                "command = \"/programs/driver\"\n cap_add = [\"sys_admin\", \"dac_override\"]\n seccomp = \"unconfined\"\n {}",
                args("/driver")
            );
            ("exec", volumes.to_owned(), task, config)
        }
        Kind::Docker => {
            let config = format!(
                "image = \"{IMAGE}\"\n network_mode = \"none\"\n privileged = true\n command = \"/programs/driver\"\n \
                 volumes = [\"{programs}:/programs:ro\", \"{dir}:/driver\"]\n {}",
                args("/driver")
            );
            ("docker", String::new(), String::new(), config)
        }
    };
    let user = if kind == Kind::Docker { "" } else { "user = \"root\"\n" };
    format!(
        "job \"plugin\" {{\n type = \"service\"\n group \"g\" {{\n {OFTEN}\n {volumes} task \"p\" {{\n driver = \"{driver}\"\n {user} \
         {task} csi_plugin {{\n id = \"disk\"\n type = \"monolith\"\n health_timeout = \"10s\"\n }}\n config {{\n {config}\n }}\n \
         resources {{\n cpu = 20\n memory = 64\n }}\n }}\n }}\n}}\n"
    )
}

impl<'a> Place<'a> {
    fn start(driver: &'a Driver, kind: Kind, binary: &Path, engine: Option<&TestEngine>) -> Place<'a> {
        let dir = driver.dir.path().canonicalize().unwrap();
        let programs = driver.world.path("programs");
        std::fs::create_dir(&programs).unwrap();
        world::copy_program(binary, &programs.join("driver"));
        let docker = engine.map(|engine| {
            format!(
                "plugin \"docker\" {{\n config {{\n endpoint = \"{}\"\n allow_privileged = true\n \
                 volumes {{\n enabled = true\n }}\n }}\n}}\n",
                engine.endpoint()
            )
        });
        let config = format!(
            "client {{\n host_volume \"programs\" {{\n path = \"{}\"\n read_only = true\n }}\n \
             host_volume \"driver\" {{\n path = \"{}\"\n }}\n}}\n\
             plugin \"exec\" {{\n config {{\n allow_caps = [\"sys_admin\", \"dac_override\"]\n }}\n}}\n{}",
            programs.display(),
            dir.display(),
            docker.unwrap_or_default(),
        );
        driver.world.file("more.hcl", &config);
        let mut place = Place {
            driver,
            kind,
            agent: Mutex::default(),
            promised: Mutex::default(),
            number: AtomicU32::new(0),
            quiet: Vec::new(),
        };
        *place.agent.lock().unwrap() = Some(place.agent());
        place.run_text(&plugin_text(kind, &dir, &programs));
        place.plugin_is_healthy();
        for (id, access) in [("one", SINGLE), ("data", SHARED), ("part[0]", SINGLE), ("part[1]", SINGLE)] {
            place.create(id, access, "");
        }
        if place.has_loops() {
            place.create("image", SINGLE, "loop");
        }
        place.quiet = place.mount_points();
        place
    }

    fn agent(&self) -> Agent<'a> {
        let config = self.driver.world.path("more.hcl");
        Agent::start_with(&self.driver.world, &["--config", config.to_str().unwrap()])
    }

    /// Another agent takes the place of one that ends so.
    fn next_agent(&self, signal: Signal) {
        let mut agent = self.agent.lock().unwrap();
        agent.take().unwrap().end(signal);
        *agent = Some(self.agent());
    }

    /// The loop devices of the host are those of its own processes.
    fn has_loops(&self) -> bool {
        self.kind == Kind::RawExec && Path::new("/dev/loop-control").exists()
    }

    fn create(&self, id: &str, access: &str, backend: &str) {
        let mut volume = json!({
            "ID": id, "Name": format!("volume-{id}"), "PluginID": "disk", "RequestedCapacityMin": 16 << 20,
            "RequestedCapabilities": [{ "AccessMode": access, "AttachmentMode": "file-system" }],
        });
        if !backend.is_empty() {
            volume["Parameters"] = json!({ "backend": backend });
            volume["MountOptions"] = json!({ "FSType": "ext4" });
        }
        self.insist("PUT", &format!("{}/create", path_of(id)), &json!({ "Volumes": [volume] }));
    }

    /// Asks until the answer is 200, however often the agent is killed meanwhile.
    #[track_caller]
    fn insist(&self, method: &str, path: &str, body: &Value) -> Value {
        let deadline = Instant::now() + seconds(120);
        loop {
            let answer = try_ask(&self.driver.world, method, path, &body.to_string());
            match &answer {
                Ok((200, text)) if text.is_empty() => return Value::Null,
                // What ends in the middle is asked for again.
                Ok((200, text)) => match serde_json::from_str(text) {
                    Ok(value) => return value,
                    Err(error) => assert!(Instant::now() < deadline, "{method} {path}: {error}: {text}"),
                },
                _ => assert!(Instant::now() < deadline, "{method} {path}: {answer:?}\n{}", self.story()),
            }
            nap();
        }
    }

    fn get(&self, path: &str) -> Value {
        self.insist("GET", path, &Value::Null)
    }

    #[track_caller]
    fn until<T>(&self, what: &str, mut is: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + seconds(120);
        loop {
            if let Some(found) = is() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}\n{}", self.story());
            nap();
        }
    }

    /// What a reader of a failure needs.
    fn story(&self) -> String {
        let log = std::fs::read_to_string(self.driver.world.path("agent.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(60).collect();
        let (_, allocs) =
            try_ask(&self.driver.world, "GET", "/v1/allocations?task_states=true", "").unwrap_or_default();
        let calls: Vec<String> = self.driver.entries().iter().map(Value::to_string).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        format!("{}\n{}\n{allocs}\nleft: {:?}", tail.join("\n"), calls.join("\n"), self.driver.left())
    }

    fn run_text(&self, text: &str) {
        let job = self.insist("PUT", "/v1/jobs/parse", &json!({ "JobHCL": text, "Canonicalize": true }));
        self.insist("PUT", "/v1/jobs", &json!({ "Job": job }));
    }

    fn run(&self, job: &Job<'_>) {
        self.run_text(&job.text());
    }

    fn line(&self) -> String {
        format!("line-{}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    fn allocs(&self, job: &str) -> Vec<Value> {
        let Value::Array(all) = self.get(&format!("/v1/job/{job}/allocations?all=true")) else { panic!() };
        all
    }

    /// An allocation whose tasks run, and which is not this one.
    fn running(&self, job: &str, but: &str) -> String {
        self.until(&format!("an allocation of {job} runs"), || {
            let is = |alloc: &Value| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run";
            let found = self.allocs(job).into_iter().find(|alloc| is(alloc) && alloc["ID"] != but)?;
            self.output(&id_of(&found), "t").contains("up").then(|| id_of(&found))
        })
    }

    fn output(&self, alloc: &str, task: &str) -> String {
        let path = format!("/v1/client/fs/logs/{alloc}?task={task}&type=stdout&plain=true&follow=false");
        match try_ask(&self.driver.world, "GET", &path, "") {
            Ok((200, text)) => text,
            _ => String::new(),
        }
    }

    /// A task of the job has said that its line is on this volume.
    fn wrote(&self, job: &str, volume: &str, line: &str) {
        let said = format!("wrote {line}\n");
        self.until(&format!("{job} has written {line}"), || {
            let mut outputs =
                self.allocs(job).into_iter().flat_map(|alloc| ["t", "u"].map(|task| self.output(&id_of(&alloc), task)));
            outputs.any(|text| text.contains(&said)).then_some(())
        });
        self.promised.lock().unwrap().push((volume.to_owned(), line.to_owned()));
    }

    fn has_ended(&self, job: &str) {
        self.until(&format!("{job} has ended"), || self.allocs(job).iter().all(is_over).then_some(()));
    }

    fn stop(&self, job: &str) {
        self.insist("DELETE", &format!("/v1/job/{job}"), &Value::Null);
        self.has_ended(job);
    }

    fn node(&self) -> String {
        id_of(&self.get("/v1/nodes")[0])
    }

    fn plugin_is_healthy(&self) {
        self.until("the plugin is healthy", || {
            let (status, text) = try_ask(&self.driver.world, "GET", "/v1/plugin/csi/disk", "").ok()?;
            let plugin: Value = serde_json::from_str(&text).ok()?;
            (status == 200 && plugin["NodesHealthy"] == 1 && plugin["ControllersHealthy"] == 1).then_some(())
        });
    }

    /// The mount points of this world, as this thread sees them.
    fn mount_points(&self) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let dir = self.driver.world.data_dir().display().to_string();
        let places = text.lines().filter_map(|line| line.split(' ').nth(4));
        let mut found: Vec<String> = places.filter(|place| place.starts_with(&dir)).map(str::to_owned).collect();
        found.sort();
        found
    }

    /// The executors of this world: of the plugin's task, or of the others.
    fn executors(&self, of_plugin: bool) -> Vec<Pid> {
        let alloc = self.driver.world.data_dir().join("alloc");
        let mut found = Vec::new();
        for process in procfs::process::all_processes().unwrap().flatten() {
            let Ok(words) = process.cmdline() else { continue };
            let [_, role, config] = &words[..] else { continue };
            let config = (role == "executor").then(|| serde_json::from_str::<Value>(config).ok()).flatten();
            let Some(log) = config.and_then(|config| config["LogFile"].as_str().map(str::to_owned)) else { continue };
            if Path::new(&log).starts_with(&alloc) && log.ends_with("/p-executor.out") == of_plugin {
                found.extend(Pid::from_raw(process.pid));
            }
        }
        found
    }

    fn strike(&self, act: Act) {
        match act {
            // By the driver itself.
            Act::Lose | Act::Die => {}
            Act::Agent => self.next_agent(Signal::KILL),
            Act::Users | Act::Executor => {
                for pid in self.executors(act == Act::Executor) {
                    // It may have ended.
                    let _gone = kill_process(pid, Signal::KILL);
                }
            }
            Act::Restart => self.restart_plugin(),
        }
    }

    fn restart_plugin(&self) {
        let plugin = self.until("the plugin's allocation is there", || {
            self.allocs("plugin").into_iter().find(|alloc| !is_over(alloc))
        });
        // Where it restarts at the moment, that is refused.
        let _refused =
            try_ask(&self.driver.world, "PUT", &format!("/v1/client/allocation/{}/restart", id_of(&plugin)), "{}");
    }

    /// Goes one way with one fault at a step of it.
    fn point(&self, name: &str, way: fn(&Place<'_>), (call, step): (&str, &str), act: Act) {
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

    /// All that is left is the plugin, and nobody has lost a volume.
    fn settle(&self) {
        let Value::Array(jobs) = self.get("/v1/jobs") else { panic!() };
        for job in jobs.iter().map(id_of).filter(|id| id != "plugin") {
            for alloc in self.allocs(&job) {
                let text = self.output(&id_of(&alloc), "t");
                assert!(!text.contains("LOST"), "a volume was taken away from {alloc:#}: {text}");
            }
            let job = job.replace('/', "%2F");
            self.insist("DELETE", &format!("/v1/job/{job}?purge=true"), &Value::Null);
        }
        self.until("only the plugin runs", || {
            let Value::Array(all) = self.get("/v1/allocations") else { panic!() };
            all.iter().all(|alloc| is_over(alloc) || alloc["JobID"] == "plugin").then_some(())
        });
        self.plugin_is_healthy();
        self.until("nothing of a volume's use is left", || self.driver.left().is_empty().then_some(()));
        assert_eq!(loops_of(self.driver.dir.path()), Vec::<String>::new());
        self.insist("PUT", "/v1/system/gc", &Value::Null);
        self.until("mounts are as before", || (self.mount_points() == self.quiet).then_some(()));
    }

    /// What tasks have said to be on a volume is there.
    fn all_is_there(&self) {
        let promised = std::mem::take(&mut *self.promised.lock().unwrap());
        let images: Vec<_> = promised.iter().filter(|(volume, _)| volume == "image").collect();
        if !images.is_empty() {
            self.run(&Job { volumes: &[("image", SINGLE)], script: "cat /data/log; echo all", ..Job::default() });
            let text = self.until("the image is read", || {
                let text = self.output(&id_of(self.allocs("job").first()?), "t");
                text.contains("all\n").then_some(text)
            });
            for (_, line) in images {
                assert!(text.lines().any(|found| found == line), "{line} is lost from the image: {text}");
            }
        }
        for (volume, line) in promised.iter().filter(|(volume, _)| volume != "image") {
            let external = self.get(&path_of(volume))["ExternalID"].as_str().unwrap().to_owned();
            let text = std::fs::read_to_string(self.driver.path("state/data").join(external).join("log")).unwrap();
            assert!(text.lines().any(|found| found == line), "{line} is lost from {volume}: {text}");
        }
        println!("{} lines are where tasks wrote them", promised.len());
    }

    fn end(self) {
        self.settle();
        self.insist("DELETE", "/v1/job/plugin", &Value::Null);
        self.agent.into_inner().unwrap().unwrap().wind_up();
    }
}

fn id_of(value: &Value) -> String {
    value["ID"].as_str().unwrap().to_owned()
}

fn is_over(alloc: &Value) -> bool {
    !matches!(alloc["ClientStatus"].as_str(), Some("pending" | "running"))
}

fn path_of(volume: &str) -> String {
    format!("/v1/volume/csi/{}", volume.replace('[', "%5B").replace(']', "%5D"))
}

/// The loop devices of files below this directory.
fn loops_of(dir: &Path) -> Vec<String> {
    let out = Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let dir = dir.canonicalize().unwrap().display().to_string();
    text.lines().map(str::trim).filter(|line| line.starts_with(&dir)).map(str::to_owned).collect()
}

/// The ways in which jobs use volumes; each begins and ends without any use.
const WAYS: [(&str, fn(&Place<'_>)); 20] = [
    ("a batch job", once),
    ("a batch job beside a service", beside),
    ("a service that is stopped", stopped),
    ("a service that is purged", purged),
    ("a service with another version", updated),
    ("an allocation that is restarted", restarted),
    ("a task that fails once", failing),
    ("an allocation that fails once", rescheduled),
    ("an allocation that is replaced", replaced),
    ("a node that is drained", drained),
    ("a job that waits for another one's end", succeeding),
    ("two tasks with one volume", two_tasks),
    ("one task with two volumes", two_volumes),
    ("a volume for each allocation", per_alloc),
    ("a service that is scaled", scaled),
    ("a dispatched job", dispatched),
    ("a sysbatch job", on_every_node),
    ("an agent that leaves", left),
    ("a plugin that is restarted below a service", below),
    ("a file system on a loop device", on_a_loop_device),
];

/// A batch job that writes a line to its volumes, and ends.
fn writer(place: &Place<'_>, id: &str, volumes: &[(&str, &str)], group: &str) {
    let line = place.line();
    place.run(&Job { id, volumes, group, script: &writes(&line), ..Job::default() });
    place.wrote(id, volumes[0].0, &line);
    place.has_ended(id);
}

fn service<'x>(id: &'x str, volumes: &'x [(&'x str, &'x str)]) -> Job<'x> {
    Job { id, kind: "service", volumes, group: RETRIED, ..Job::default() }
}

fn once(place: &Place<'_>) {
    writer(place, "once", &[("one", SINGLE)], RETRIED);
}

fn beside(place: &Place<'_>) {
    place.run(&service("holder", &[("data", SHARED)]));
    place.running("holder", "");
    writer(place, "once", &[("data", SHARED)], RETRIED);
    place.running("holder", "");
    place.stop("holder");
}

fn stopped(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    place.stop("web");
}

fn purged(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    place.insist("DELETE", "/v1/job/web?purge=true", &Value::Null);
    place.has_ended("web");
}

fn updated(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    let script = format!("{}; {HOLD}", writes("second"));
    place.run(&Job { script: &script, ..service("web", &[("one", SINGLE)]) });
    place.running("web", &first);
    place.stop("web");
}

fn restarted(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let alloc = place.running("web", "");
    let _refused = try_ask(&place.driver.world, "PUT", &format!("/v1/client/allocation/{alloc}/restart"), "{}");
    place.running("web", "");
    place.stop("web");
}

/// What may fail by a fault is tried again, with other allocations too.
const RETRIED: &str = "restart {\n attempts = 1\n delay = \"0s\"\n interval = \"1h\"\n mode = \"fail\"\n }\n \
                       reschedule {\n delay = \"5s\"\n delay_function = \"constant\"\n unlimited = true\n }";

fn failing(place: &Place<'_>) {
    let line = place.line();
    let script = format!("[ -e /data/{line} ] || {{ touch /data/{line}; exit 1; }}; {}", writes(&line));
    place.run(&Job { id: "fails", group: RETRIED, script: &script, ..Job::default() });
    place.wrote("fails", "one", &line);
    place.has_ended("fails");
}

fn rescheduled(place: &Place<'_>) {
    let line = place.line();
    let script = format!("[ -e /data/{line} ] || {{ touch /data/{line}; exit 1; }}; {}", writes(&line));
    let group = RETRIED.replace("attempts = 1", "attempts = 0");
    place.run(&Job { id: "fails", group: &group, script: &script, ..Job::default() });
    place.wrote("fails", "one", &line);
    place.has_ended("fails");
}

fn replaced(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    place.insist("PUT", &format!("/v1/allocation/{first}/stop"), &Value::Null);
    place.running("web", &first);
    place.stop("web");
}

fn drained(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    let first = place.running("web", "");
    let path = format!("/v1/node/{}/drain", place.node());
    place.insist("PUT", &path, &json!({ "DrainSpec": { "Deadline": 60_000_000_000_i64 } }));
    place.until("the node is drained", || {
        place.allocs("web").iter().chain(&place.allocs("plugin")).all(is_over).then_some(())
    });
    place.insist("PUT", &path, &json!({ "DrainSpec": null, "MarkEligible": true }));
    place.running("web", &first);
    place.stop("web");
}

fn succeeding(place: &Place<'_>) {
    place.run(&service("web", &[("one", SINGLE)]));
    place.running("web", "");
    let line = place.line();
    place.run(&Job { id: "next", group: RETRIED, script: &writes(&line), ..Job::default() });
    place.stop("web");
    place.wrote("next", "one", &line);
    place.has_ended("next");
}

fn two_tasks(place: &Place<'_>) {
    let line = place.line();
    place.run(&Job {
        id: "two",
        volumes: &[("data", SHARED)],
        group: RETRIED,
        tasks: &["t", "u"],
        script: &writes(&line),
        ..Job::default()
    });
    place.wrote("two", "data", &line);
    place.has_ended("two");
}

fn two_volumes(place: &Place<'_>) {
    let (first, second) = (place.line(), place.line());
    let script = format!("{} && {}", writes(&first), writes_at(&second, "/data1"));
    let volumes = [("one", SINGLE), ("data", SHARED)];
    place.run(&Job { id: "two", volumes: &volumes, group: RETRIED, script: &script, ..Job::default() });
    place.wrote("two", "one", &first);
    place.wrote("two", "data", &second);
    place.has_ended("two");
}

fn per_alloc(place: &Place<'_>) {
    let line = place.line();
    let group = format!("count = 2\n {RETRIED}");
    let script = writes(&format!("{line}-$NOMAD_ALLOC_INDEX"));
    let volumes = [("part", SINGLE)];
    place.run(&Job {
        id: "each",
        volumes: &volumes,
        group: &group,
        volume: "per_alloc = true",
        script: &script,
        ..Job::default()
    });
    for number in 0..2 {
        place.wrote("each", &format!("part[{number}]"), &format!("{line}-{number}"));
    }
    place.has_ended("each");
}

fn scaled(place: &Place<'_>) {
    for count in [3, 1] {
        let group = format!("count = {count}\n {RETRIED}");
        place.run(&Job { group: &group, ..service("web", &[("data", SHARED)]) });
        place.until("so many run", || {
            let runs = |alloc: &&Value| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run";
            (place.allocs("web").iter().filter(runs).count() == count).then_some(())
        });
    }
    place.running("web", "");
    place.stop("web");
}

fn dispatched(place: &Place<'_>) {
    let script = writes("$NOMAD_META_line");
    let text =
        Job { id: "param", volumes: &[("data", SHARED)], group: RETRIED, script: &script, ..Job::default() }.text();
    place.run_text(&text.replace("group \"g\"", "parameterized {\n meta_required = [\"line\"]\n }\n group \"g\""));
    let lines = [place.line(), place.line()];
    let children = lines.each_ref().map(|line| {
        let body = json!({ "Meta": { "line": line } });
        place.insist("PUT", "/v1/job/param/dispatch", &body)["DispatchedJobID"].as_str().unwrap().replace('/', "%2F")
    });
    for (child, line) in children.iter().zip(&lines) {
        place.wrote(child, "data", line);
        place.has_ended(child);
    }
}

fn on_every_node(place: &Place<'_>) {
    let line = place.line();
    let group = RETRIED.split(" reschedule").next().unwrap();
    place.run(&Job {
        id: "all",
        kind: "sysbatch",
        group,
        volumes: &[("data", SHARED)],
        script: &writes(&line),
        ..Job::default()
    });
    place.wrote("all", "data", &line);
    place.has_ended("all");
}

fn left(place: &Place<'_>) {
    place.run(&service("web", &[("data", SHARED)]));
    place.running("web", "");
    place.next_agent(Signal::TERM);
    place.running("web", "");
    place.stop("web");
}

fn below(place: &Place<'_>) {
    place.run(&service("holder", &[("data", SHARED)]));
    place.running("holder", "");
    place.restart_plugin();
    writer(place, "once", &[("data", SHARED)], RETRIED);
    place.running("holder", "");
    place.stop("holder");
}

fn on_a_loop_device(place: &Place<'_>) {
    let volume = [(if place.has_loops() { "image" } else { "one" }, SINGLE)];
    place.run(&service("web", &volume));
    place.running("web", "");
    place.stop("web");
    writer(place, "once", &volume, RETRIED);
}

/// So many points, or all of them.
fn sweep(test: &str, place: Place<'_>, count: usize) {
    let mut points = Vec::new();
    for (name, way) in WAYS {
        for step in STEPS {
            // A container has no executor.
            let acts = ACTS.into_iter().filter(|act| place.kind != Kind::Docker || *act != Act::Executor);
            points.extend(acts.map(|act| (name, way, step, act)));
        }
    }
    let mut random = Random::new(test);
    let count = if std::env::var_os("AGENTBIN_FULL").is_some() { points.len() } else { count };
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
    sweep(test, Place::start(&driver, Kind::RawExec, binary, None), 5);
}

/// A data directory on a shared mount, in a mount namespace of this thread and of what it starts.
fn apart() -> World {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_PRIVATE | MsFlags::MS_REC, None::<&str>).unwrap();
    let world = World::new();
    let data = world.data_dir();
    std::fs::create_dir(&data).unwrap();
    mount(Some("data"), &data, Some("tmpfs"), MsFlags::empty(), Some("mode=0711,size=256m")).unwrap();
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
    world
}

#[test]
fn f7_faults_at_every_step_with_a_plugin_of_exec() {
    need_root!();
    let test = "f7_faults_at_every_step_with_a_plugin_of_exec";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(apart());
    sweep(test, Place::start(&driver, Kind::Exec, binary, None), 5);
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
    sweep(test, Place::start(&driver, Kind::Docker, binary, Some(&engine)), 5);
    umount2(&driver.world.data_dir(), MntFlags::MNT_DETACH).unwrap();
}
