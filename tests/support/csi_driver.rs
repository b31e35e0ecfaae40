//! The CSI driver of `tests/csi`, started by a test or as a task, and job files with its volumes.
#![allow(dead_code, reason = "every test program uses a part")]

#[path = "csi_binary.rs"]
mod csi_binary;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agentbin::csi::{Capability, Client, NewVolume};
use agentbin::spec::MountOptions;
use serde_json::Value;

pub use csi_binary::binary;

use crate::world::secrets::Watch;
use crate::world::{self, Out, World, seconds};

/// A driver that is started again whenever it dies.
pub struct Driver {
    pub world: World,
    /// Its own files, apart from those of runs.
    pub dir: tempfile::TempDir,
    pub child: Arc<Mutex<Option<Child>>>,
    pub ends: Arc<AtomicBool>,
    pub keeper: Option<JoinHandle<()>>,
    /// Fails the test if a secret is where others could read it.
    watch: Watch,
}

impl Driver {
    pub fn start(binary: &'static Path, more: &[&str]) -> Driver {
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
        let watch = Watch::start(&[&world.path(""), dir.path()]);
        Driver { world, dir, child, ends, keeper: Some(keeper), watch }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn stop(&mut self) {
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
    pub fn create(&self, name: &str, access: &str) -> String {
        create_at(&self.path("csi.sock"), name, access)
    }

    pub fn args(&self, id: &str) -> [String; 4] {
        let plugin = format!("disk={}", self.path("csi.sock").display());
        ["--csi-plugin".to_owned(), plugin, "--csi-volume".to_owned(), format!("data=disk:{id}")]
    }

    pub fn entries(&self) -> Vec<Value> {
        let log = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The calls on volumes that the driver has begun.
    pub fn calls(&self) -> Vec<String> {
        let name = |entry: &Value| entry["call"].as_str().unwrap().to_owned();
        let begun: Vec<String> = self.entries().iter().filter(|entry| entry["phase"] == "begin").map(name).collect();
        begun.into_iter().filter(|call| call.ends_with("tageVolume") || call.ends_with("ublishVolume")).collect()
    }

    pub fn fault(&self, fault: &Value) {
        let _ = std::fs::remove_file(self.path("faults.seen"));
        std::fs::write(self.path("faults"), fault.to_string()).unwrap();
    }

    pub fn faults(&self) -> usize {
        self.entries().iter().filter(|entry| entry["phase"] == "fault").count()
    }

    /// Waits until one more fault has happened.
    pub fn wait_for_fault(&self, before: usize) {
        let deadline = Instant::now() + seconds(60);
        while self.faults() == before {
            assert!(Instant::now() < deadline, "it did not come to the fault: {:?}", self.calls());
            #[expect(clippy::disallowed_methods, reason = "the driver's log is looked at until a deadline")]
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What is left of any use of a volume: mounts, records of ours, what the driver takes for used.
    pub fn left(&self) -> Vec<String> {
        let mut left = self.mounts();
        for name in ["csi/volumes/disk", "csi/mounts/disk/staging", "csi/mounts/disk/per-alloc"] {
            let entries = std::fs::read_dir(self.world.data_dir().join(name)).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        for entry in std::fs::read_dir(self.path("state/volumes")).into_iter().flatten().flatten() {
            // What the driver writes at this moment is complete, and has its name, in the next one.
            let path = entry.path();
            let Some(text) = std::fs::read(&path).ok().filter(|_| path.extension().is_none_or(|it| it != "new")) else {
                left.push(format!("{} changes", path.display()));
                continue;
            };
            let volume: Value = serde_json::from_slice(&text).unwrap();
            for used in ["Attached", "Staged", "Published"] {
                if volume.get(used).is_some_and(|used| used.as_object().is_some_and(|all| !all.is_empty())) {
                    left.push(format!("{used}: {volume}"));
                }
            }
        }
        left
    }

    /// The mounts of volumes, as this thread sees them.
    pub fn mounts(&self) -> Vec<String> {
        let text = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let dir = self.world.data_dir().join("csi").display().to_string();
        let places = text.lines().filter_map(|line| line.split(' ').nth(4));
        places.filter(|place| place.starts_with(&dir)).map(str::to_owned).collect()
    }

    pub fn run(&self, job: &str, id: &str) -> Out {
        self.world.run_text(job, &self.args(id).each_ref().map(String::as_str))
    }

    pub fn start_run(&self, name: &str, job: &str, id: &str) -> world::Running {
        let file = self.world.file(name, job);
        let args = self.args(id);
        self.world.start(&[&args.each_ref().map(String::as_str)[..], &[file.to_str().unwrap()]].concat())
    }

    #[track_caller]
    pub fn clean(&self) {
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
        let shown = self.watch.end();
        if !std::thread::panicking() {
            assert!(shown.is_empty(), "a secret is shown: {shown:#?}");
        }
    }
}

pub fn create_at(socket: &Path, name: &str, access: &str) -> String {
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

pub const SHARED: &str = "multi-node-multi-writer";
pub const SINGLE: &str = "single-node-writer";

/// A batch job with one task that runs a shell script with the volume at /data.
pub fn job(access: &str, volume: &str, mount: &str, script: &str) -> String {
    format!(
        "job \"csi\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n \
         volume \"v\" {{\n type = \"csi\"\n source = \"data\"\n access_mode = \"{access}\"\n attachment_mode = \"file-system\"\n {volume}\n }}\n \
         task \"t\" {{\n driver = \"exec\"\n user = \"root\"\n volume_mount {{\n volume = \"v\"\n destination = \"/data\"\n {mount}\n }}\n \
         config {{\n command = \"/bin/sh\"\n args = [\"-c\", <<EOT\n{script}\nEOT\n ]\n }}\n }}\n }}\n}}\n"
    )
}

/// A job with one task that is the plugin `disk`.
pub fn plugin_job(driver: &str, command: &str, args: &str, more: &str) -> String {
    format!(
        "job \"plugin\" {{\n type = \"service\"\n group \"g\" {{\n restart {{\n attempts = 1\n delay = \"0s\"\n interval = \"1h\"\n mode = \"fail\"\n }}\n \
         {more}\n task \"p\" {{\n driver = \"{driver}\"\n user = \"root\"\n csi_plugin {{\n id = \"disk\"\n type = \"monolith\"\n health_timeout = \"2s\"\n }}\n \
         config {{\n command = \"{command}\"\n args = [{args}]\n }}\n }}\n }}\n}}\n"
    )
}

/// A driver that is a task of a run, not started yet.
pub fn of_a_job(world: World) -> Driver {
    of_a_job_at(world, tempfile::tempdir().unwrap())
}

pub fn of_a_job_at(world: World, dir: tempfile::TempDir) -> Driver {
    let watch = Watch::start(&[&world.path(""), dir.path()]);
    Driver { world, dir, child: Arc::default(), ends: Arc::default(), keeper: None, watch }
}

impl Driver {
    /// The sockets of plugins that are tasks.
    pub fn sockets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.world.data_dir().join("csi/sockets")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join("csi.sock")).collect()
    }

    pub fn registered(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.world.data_dir().join("csi/plugins")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().display().to_string()).collect()
    }
}
