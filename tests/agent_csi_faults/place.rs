//! An agent on which the driver of the tests is a CSI plugin, and jobs that use its volumes.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::agent::{Agent, try_ask};
use crate::csi_driver::{Driver, SHARED, SINGLE};
use crate::engine::{IMAGE, TestEngine};
use crate::world::{self, seconds};

/// Which driver runs the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    RawExec,
    Exec,
    Docker,
}

/// An agent on which the driver runs as the plugin `disk`, and what was written to volumes so far.
pub struct Place<'a> {
    pub driver: &'a Driver,
    pub kind: Kind,
    /// `None` while nobody is there.
    pub agent: Mutex<Option<Agent<'a>>>,
    /// The lines that tasks have said to be written, each with its volume.
    pub promised: Mutex<Vec<(String, String)>>,
    pub number: AtomicU32,
    /// The mount points of this world while no volume is used.
    pub quiet: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "other processes are looked at until a deadline")]
pub fn nap() {
    std::thread::sleep(Duration::from_millis(20));
}

/// Some job with CSI volumes, the first of which is at /data, the second one at /data1.
pub struct Job<'x> {
    pub id: &'x str,
    pub kind: &'x str,
    pub volumes: &'x [(&'x str, &'x str)],
    pub group: &'x str,
    /// More of the block of every volume.
    pub volume: &'x str,
    pub tasks: &'x [&'x str],
    pub script: &'x str,
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

pub const FAILS_AT_ONCE: &str = "restart {\n attempts = 0\n mode = \"fail\"\n }";
pub const OFTEN: &str = "restart {\n attempts = 1000\n interval = \"1h\"\n delay = \"0s\"\n mode = \"delay\"\n }";
/// What may fail by a fault is tried again, with other allocations too.
pub const RETRIED: &str = "restart {\n attempts = 1\n delay = \"0s\"\n interval = \"1h\"\n mode = \"fail\"\n }\n \
                           reschedule {\n attempts = 0\n delay = \"5s\"\n delay_function = \"constant\"\n unlimited = true\n }";
/// Whoever has a volume looks whether it is still there.
pub const HOLD: &str = "trap 'exit 0' INT TERM; echo here > /data/here; echo up; \
                    while :; do [ -e /data/here ] || echo LOST; sleep 0.2 & wait $!; done";

impl Job<'_> {
    pub fn text(&self) -> String {
        let (mut volumes, mut mounts) = (String::new(), String::new());
        for (number, (source, access)) in self.volumes.iter().enumerate() {
            let at = if number == 0 { "/data".to_owned() } else { format!("/data{number}") };
            let volume = format!(
                "volume \"v{number}\" {{\n type = \"csi\"\n source = \"{source}\"\n access_mode = \"{access}\"\n \
                 attachment_mode = \"file-system\"\n {}\n }}\n",
                self.volume
            );
            let mount = format!("volume_mount {{\n volume = \"v{number}\"\n destination = \"{at}\"\n }}\n");
            volumes.push_str(&volume);
            mounts.push_str(&mount);
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
pub fn writes(line: &str) -> String {
    writes_at(line, "/data")
}

pub fn writes_at(line: &str, dir: &str) -> String {
    format!("echo {line} >> {dir}/log && sync {dir}/log && echo wrote {line}")
}

/// The job that is the plugin.
pub fn plugin_text(kind: Kind, dir: &Path, programs: &Path) -> String {
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
            // An engine that lacks a capability cannot start privileged containers.
            let has_all = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_RESOURCE).unwrap();
            let rights = if has_all {
                "privileged = true"
            } else {
                "cap_add = [\"sys_admin\"]\n security_opt = [\"seccomp=unconfined\", \"apparmor=unconfined\"]"
            };
            let config = format!(
                "image = \"{IMAGE}\"\n network_mode = \"none\"\n {rights}\n command = \"/programs/driver\"\n \
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
    pub fn start(driver: &'a Driver, kind: Kind, binary: &Path, engine: Option<&TestEngine>) -> Place<'a> {
        let dir = driver.dir.path().canonicalize().unwrap();
        let programs = driver.world.path("programs");
        std::fs::create_dir(&programs).unwrap();
        world::copy_program(binary, &programs.join("driver"));
        let docker = engine.map(|engine| {
            format!(
                "plugin \"docker\" {{\n config {{\n endpoint = \"{}\"\n allow_privileged = true\n allow_caps = [\"all\"]\n \
                 volumes {{\n enabled = true\n }}\n }}\n}}\n",
                engine.endpoint()
            )
        });
        let config = format!(
            "client {{\n host_volume \"programs\" {{\n path = \"{}\"\n read_only = true\n }}\n \
             host_volume \"driver\" {{\n path = \"{}\"\n }}\n}}\n\
             plugin \"exec\" {{\n config {{\n allow_caps = [\"all\"]\n }}\n}}\n{}",
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

    pub fn agent(&self) -> Agent<'a> {
        let config = self.driver.world.path("more.hcl");
        Agent::start_with(&self.driver.world, &["--config", config.to_str().unwrap()])
    }

    /// Another agent takes the place of one that ends so.
    pub fn next_agent(&self, signal: Signal) {
        let mut agent = self.agent.lock().unwrap();
        agent.take().unwrap().end(signal);
        *agent = Some(self.agent());
    }

    /// The loop devices of the host are those of its own processes.
    pub fn has_loops(&self) -> bool {
        self.kind == Kind::RawExec && Path::new("/dev/loop-control").exists()
    }

    pub fn create(&self, id: &str, access: &str, backend: &str) {
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
    pub fn insist(&self, method: &str, path: &str, body: &Value) -> Value {
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

    pub fn get(&self, path: &str) -> Value {
        self.insist("GET", path, &Value::Null)
    }

    #[track_caller]
    pub fn until<T>(&self, what: &str, mut is: impl FnMut() -> Option<T>) -> T {
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
    pub fn story(&self) -> String {
        let log = std::fs::read_to_string(self.driver.world.path("agent.log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(60).collect();
        let (_, allocs) =
            try_ask(&self.driver.world, "GET", "/v1/allocations?task_states=true", "").unwrap_or_default();
        let calls: Vec<String> = self.driver.entries().iter().map(Value::to_string).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let mut said = String::new();
        for alloc in serde_json::from_str::<Vec<Value>>(&allocs).unwrap_or_default() {
            for task in alloc["TaskStates"].as_object().into_iter().flat_map(|tasks| tasks.keys()) {
                for kind in ["stdout", "stderr"] {
                    let text = self.log_of(&id_of(&alloc), task, kind);
                    let end: Vec<&str> = text.lines().rev().take(10).collect();
                    let told = format!("{} {task} {kind}: {end:?}\n", alloc["Name"]);
                    said.push_str(&told);
                }
            }
        }
        format!(
            "{}\n{}\n{allocs}\n{said}left: {:?}\nmounts: {:?}",
            tail.join("\n"),
            calls.join("\n"),
            self.driver.left(),
            self.mount_points()
        )
    }

    pub fn run_text(&self, text: &str) {
        let job = self.insist("PUT", "/v1/jobs/parse", &json!({ "JobHCL": text, "Canonicalize": true }));
        self.insist("PUT", "/v1/jobs", &json!({ "Job": job }));
    }

    pub fn run(&self, job: &Job<'_>) {
        self.run_text(&job.text());
    }

    pub fn line(&self) -> String {
        format!("line-{}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    pub fn allocs(&self, job: &str) -> Vec<Value> {
        let Value::Array(all) = self.get(&format!("/v1/job/{job}/allocations?all=true")) else { panic!() };
        all
    }

    /// An allocation whose tasks run, and which is not this one.
    pub fn running(&self, job: &str, but: &str) -> String {
        self.until(&format!("an allocation of {job} runs"), || {
            let is = |alloc: &Value| alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run";
            let found = self.allocs(job).into_iter().find(|alloc| is(alloc) && alloc["ID"] != but)?;
            self.output(&id_of(&found), "t").contains("up").then(|| id_of(&found))
        })
    }

    pub fn output(&self, alloc: &str, task: &str) -> String {
        self.log_of(alloc, task, "stdout")
    }

    fn log_of(&self, alloc: &str, task: &str, kind: &str) -> String {
        let path = format!("/v1/client/fs/logs/{alloc}?task={task}&type={kind}&plain=true&follow=false");
        match try_ask(&self.driver.world, "GET", &path, "") {
            Ok((200, text)) => text,
            _ => String::new(),
        }
    }

    /// A task of the job has said that its line is on this volume.
    pub fn wrote(&self, job: &str, volume: &str, line: &str) {
        let said = format!("wrote {line}\n");
        self.until(&format!("{job} has written {line}"), || {
            let mut outputs =
                self.allocs(job).into_iter().flat_map(|alloc| ["t", "u"].map(|task| self.output(&id_of(&alloc), task)));
            outputs.any(|text| text.contains(&said)).then_some(())
        });
        self.promised.lock().unwrap().push((volume.to_owned(), line.to_owned()));
    }

    pub fn has_ended(&self, job: &str) {
        self.until(&format!("{job} has ended"), || self.allocs(job).iter().all(is_over).then_some(()));
    }

    pub fn stop(&self, job: &str) {
        self.insist("DELETE", &format!("/v1/job/{job}"), &Value::Null);
        self.has_ended(job);
    }

    pub fn node(&self) -> String {
        id_of(&self.get("/v1/nodes")[0])
    }

    pub fn plugin_is_healthy(&self) {
        self.until("the plugin is healthy", || {
            let (status, text) = try_ask(&self.driver.world, "GET", "/v1/plugin/csi/disk", "").ok()?;
            let plugin: Value = serde_json::from_str(&text).ok()?;
            (status == 200 && plugin["NodesHealthy"] == 1 && plugin["ControllersHealthy"] == 1).then_some(())
        });
    }

    /// The mount points of this world, as this thread sees them; those of one allocation look like another's.
    pub fn mount_points(&self) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let dir = self.driver.world.data_dir().display().to_string();
        let places = text.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| place.starts_with(&dir));
        let is_alloc = |part: &&str| part.len() == 36 && part.matches('-').count() == 4;
        let plain = |place: &str| {
            place.split('/').map(|part| if is_alloc(&part) { "ALLOC" } else { part }).collect::<Vec<_>>().join("/")
        };
        let mut found: Vec<String> = places.map(plain).collect();
        found.sort();
        found
    }

    /// Kills the executor of the plugin's task, or those of the others.
    pub fn kill_executors(&self, of_plugin: bool) {
        for (_, pid) in self.driver.world.executors().into_iter().filter(|(task, _)| (task == "p") == of_plugin) {
            // It may have ended.
            let _gone = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }

    pub fn restart_plugin(&self) {
        let plugin = self.until("the plugin's allocation is there", || {
            self.allocs("plugin").into_iter().find(|alloc| !is_over(alloc))
        });
        // Where it restarts at the moment, that is refused.
        let _refused =
            try_ask(&self.driver.world, "PUT", &format!("/v1/client/allocation/{}/restart", id_of(&plugin)), "{}");
    }

    /// All that is left is the plugin, and nobody has lost a volume.
    pub fn settle(&self) {
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
        self.until(&format!("mounts are as before: {:?}", self.quiet), || {
            (self.mount_points() == self.quiet).then_some(())
        });
    }

    /// What tasks have said to be on a volume is there.
    pub fn all_is_there(&self) {
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

    pub fn end(self) {
        self.settle();
        self.insist("DELETE", "/v1/job/plugin", &Value::Null);
        self.agent.into_inner().unwrap().unwrap().wind_up();
    }
}

pub fn id_of(value: &Value) -> String {
    value["ID"].as_str().unwrap().to_owned()
}

pub fn is_over(alloc: &Value) -> bool {
    !matches!(alloc["ClientStatus"].as_str(), Some("pending" | "running"))
}

pub fn path_of(volume: &str) -> String {
    format!("/v1/volume/csi/{}", volume.replace('[', "%5B").replace(']', "%5D"))
}

/// The loop devices of files below this directory.
pub fn loops_of(dir: &Path) -> Vec<String> {
    let out = Command::new("losetup").args(["--list", "--noheadings", "--output", "BACK-FILE"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let dir = dir.canonicalize().unwrap().display().to_string();
    text.lines().map(str::trim).filter(|line| line.starts_with(&dir)).map(str::to_owned).collect()
}
