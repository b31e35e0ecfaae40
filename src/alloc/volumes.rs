//! Directories of the host that tasks mount. Each is opened once, when the operator configures it, and only that directory is
//! ever mounted: a task that can write to one of its parent directories cannot substitute another one.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use procfs::process::{MountOptFields, Process};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::env::TaskEnv;
use super::error::SetupError;
use crate::spec::collections::BTreeMap;
use crate::spec::{Mount, Overlap, Propagation, Task, Volume, VolumeMount, no_destination, overlaps};
use crate::sys::lock::lock;
use crate::sys::path::{mount_of, open_resolved};

/// Pause between two checks whether a task whose volumes are being found is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// A directory of the host.
#[derive(Debug)]
pub struct HostVolume {
    /// Kept open, so that its inode number is not reused; not that of a CSI volume, which could not be unmounted then.
    dir: Option<OwnedFd>,
    /// The path without symbolic links.
    path: PathBuf,
    identity: (u64, u64),
    read_only: bool,
}

impl HostVolume {
    /// Opens a directory, following symbolic links in its path. `read_only`: no task may write to it.
    ///
    /// # Errors
    /// When it does not exist, is not a directory, or its path is not UTF-8; what `open(2)` says.
    pub fn open(path: &Path, read_only: bool) -> io::Result<HostVolume> {
        let dir = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let real = rustix::fs::readlinkat(CWD, format!("/proc/self/fd/{}", dir.as_raw_fd()), Vec::new())?;
        let real = PathBuf::from(OsString::from_vec(real.into_bytes()));
        // Executors and container engines get the path as text.
        if real.to_str().is_none() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "its path is not UTF-8 text"));
        }
        let volume =
            HostVolume { identity: identity(&rustix::fs::fstat(&dir)?), dir: Some(dir), path: real, read_only };
        volume.check()?;
        Ok(volume)
    }

    /// Opens what a CSI plugin has mounted: exactly at this path, a directory or, for a raw device, anything else.
    ///
    /// # Errors
    /// When it is something else, or a link; what `openat2(2)` says.
    pub(super) fn open_exactly(path: &Path, read_only: bool, is_device: bool) -> io::Result<HostVolume> {
        let stat = rustix::fs::fstat(&open_resolved(path)?)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_dir == is_device {
            let text = if is_device { "a directory, and no device" } else { "no directory" };
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(HostVolume { identity: identity(&stat), dir: None, path: path.to_owned(), read_only })
    }

    /// Its path, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether tasks may not write to it.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Checks that it is still the directory at its path.
    fn check(&self) -> io::Result<()> {
        let found = open_resolved(&self.path)?;
        if identity(&rustix::fs::fstat(&found)?) == self.identity {
            return Ok(());
        }
        Err(io::Error::other("somebody has put another directory there since the run began"))
    }

    /// The mount of it at this path of a task, writable.
    ///
    /// # Errors
    /// When it is another directory now, or when mounts would not propagate.
    pub(super) fn bind(&self, task_path: &str, propagation: Propagation) -> Result<Mount, String> {
        let shown = self.path.display();
        self.check().map_err(|error| format!("{shown}: {error}"))?;
        if let Some(problem) = self.closed(propagation).map_err(|error| format!("{shown}: {error}"))? {
            return Err(problem);
        }
        Ok(Mount {
            task_path: task_path.to_owned(),
            host_path: self.path.clone(),
            propagation,
            identity: Some(self.identity),
            ..Mount::default()
        })
    }

    /// Why mounts do not propagate as `propagation` demands; `None` if they do.
    fn closed(&self, propagation: Propagation) -> io::Result<Option<String>> {
        if propagation == Propagation::Private {
            return Ok(None);
        }
        let mount = match &self.dir {
            Some(dir) => mount_of(dir.as_fd())?,
            None => mount_of(open_resolved(&self.path)?.as_fd())?,
        };
        let mounts = Process::myself().and_then(|own| own.mountinfo()).map_err(io::Error::other)?;
        let Some(found) = mounts.into_iter().find(|found| u64::try_from(found.mnt_id) == Ok(mount)) else {
            return Ok(None);
        };
        let is_shared = found.opt_fields.iter().any(|field| matches!(field, MountOptFields::Shared(_)));
        let is_slave = found.opt_fields.iter().any(|field| matches!(field, MountOptFields::Master(_)));
        if is_shared || is_slave && propagation == Propagation::HostToTask {
            return Ok(None);
        }
        let (name, place) = (propagation.name(), found.mount_point.display());
        Ok(Some(format!(
            "propagation_mode \"{name}\" has no effect, because the file system at {place} is mounted privately; run \
             mount --make-shared {place}, or use private"
        )))
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The volumes of this machine, by the name that groups use as their source.
#[derive(Debug, Clone, Default)]
pub struct HostVolumes {
    configured: BTreeMap<String, Arc<HostVolume>>,
    /// Those that come and go while this process runs. All clones share them.
    dynamic: Arc<Mutex<BTreeMap<String, Arc<HostVolume>>>>,
}

impl HostVolumes {
    /// Adds a volume, replacing one of the same name.
    pub fn add(&mut self, name: String, volume: HostVolume) {
        self.configured.insert(name, Arc::new(volume));
    }

    /// Adds a dynamic volume, which takes precedence over a configured one of the same name.
    pub(super) fn offer(&self, name: &str, volume: HostVolume) {
        lock(&self.dynamic).insert(name.to_owned(), Arc::new(volume));
    }

    /// Removes a dynamic volume.
    pub(super) fn withdraw(&self, name: &str) {
        lock(&self.dynamic).remove(name);
    }

    /// Those that the operator has configured, by their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HostVolume)> {
        self.configured.iter().map(|(name, volume)| (name.as_str(), &**volume))
    }

    /// The volume of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Arc<HostVolume>> {
        let dynamic = lock(&self.dynamic).get(name).cloned();
        dynamic.or_else(|| self.configured.get(name).cloned())
    }

    /// Finds the volume for allocation number `index` of the group that declares `volume`.
    ///
    /// # Errors
    /// The reason and the fix.
    pub fn find(&self, volume: &Volume, index: u32) -> Result<Arc<HostVolume>, String> {
        let source = volume.source_of(index);
        let found = self.get(&source).ok_or_else(|| {
            format!(
                "there is no host volume \"{source}\" here; say which directory it is with --volume {source}=PATH, or with \
                 host_volume \"{source}\" {{ path = \"PATH\" }} in the client block of a --config file"
            )
        })?;
        if found.read_only && !volume.read_only {
            return Err(format!(
                "host volume \"{source}\" is read-only, and this volume is not; add read_only = true, or give the host volume \
                 as a writable one"
            ));
        }
        Ok(found)
    }
}

/// The volumes of one allocation.
#[derive(Debug, Clone, Default)]
pub(super) struct AllocVolumes {
    pub(super) volumes: Vec<Volume>,
    pub(super) host: HostVolumes,
    /// Its CSI volumes, by the group's names.
    pub(super) csi: HostVolumes,
    pub(super) index: u32,
}

impl AllocVolumes {
    /// As [`AllocVolumes::mounts`], on a thread that is abandoned once the task is not wanted any more: a network file system whose
    /// server does not answer blocks every access for ever. Nothing has been made by then.
    pub(super) async fn find(
        &self,
        task: &Task,
        env: &TaskEnv,
        driver_mounts: bool,
        cancel: &AtomicBool,
    ) -> Result<Vec<Mount>, SetupError> {
        let Some(first) = task.volume_mounts.first() else { return Ok(Vec::new()) };
        let (volumes, of_task, env) = (self.clone(), task.clone(), env.clone());
        let found = wanted(cancel, move || volumes.mounts(&of_task, &env, driver_mounts)).await;
        found.unwrap_or_else(|problem| {
            Err(SetupError::Volume { pos: first.pos.clone(), volume: first.volume.clone(), problem })
        })
    }

    /// The mounts of a task. `driver_mounts`: its driver supports them.
    ///
    /// # Errors
    /// [`SetupError::Volume`].
    pub(super) fn mounts(&self, task: &Task, env: &TaskEnv, driver_mounts: bool) -> Result<Vec<Mount>, SetupError> {
        let mut mounts: Vec<Mount> = Vec::new();
        for mount in &task.volume_mounts {
            let volume = env.interpolate(&mount.volume);
            let error =
                |problem: String| SetupError::Volume { pos: mount.pos.clone(), volume: volume.clone(), problem };
            if !driver_mounts {
                return Err(error(no_mounts(&task.driver, "host volumes")));
            }
            mounts.push(self.mount(mount, &volume, env).map_err(error)?);
        }
        let places: Vec<_> = mounts.iter().map(|mount| (&*mount.task_path, mount.propagation)).collect();
        if let Some(overlap) = overlaps(&places).first() {
            let (number, problem) = match *overlap {
                Overlap::Same(number, other) => {
                    (number, format!("volume {:?} is mounted there already", task.volume_mounts[other].volume))
                }
                Overlap::Leaks(number, other) => {
                    let other = &task.volume_mounts[other].volume;
                    (number, format!("it lies in volume {other:?}, and one of the two is bidirectional"))
                }
            };
            let VolumeMount { volume, pos, .. } = &task.volume_mounts[number];
            let problem = format!("{:?}: {problem}; choose another destination", mounts[number].task_path);
            return Err(SetupError::Volume { pos: pos.clone(), volume: volume.clone(), problem });
        }
        Ok(mounts)
    }

    fn mount(&self, mount: &VolumeMount, name: &str, env: &TaskEnv) -> Result<Mount, String> {
        let volume = self.volumes.iter().find(|volume| volume.name == name);
        let volume = volume.ok_or_else(|| format!("the group has no volume {name:?}; name one of its volumes"))?;
        let host = if volume.csi.is_some() {
            self.csi.get(name).ok_or("it is a CSI volume that is not mounted")?
        } else {
            self.host.find(volume, self.index)?
        };
        let task_path = env.interpolate(&mount.destination);
        if let Some(reason) = no_destination(&task_path) {
            return Err(format!("the destination {task_path:?} {reason}"));
        }
        let readonly = host.read_only || volume.read_only || mount.read_only;
        if readonly && mount.propagation == Propagation::Bidirectional {
            return Err(
                "a bidirectional mount must be writable, and this one is read-only; use host-to-task".to_owned()
            );
        }
        let bound = host.bind(&task_path, mount.propagation)?;
        Ok(Mount { readonly, selinux_label: mount.selinux_label.clone(), ..bound })
    }
}

/// The result of `look`, unless it is cancelled; then why not.
async fn wanted<T: Send + 'static>(
    cancel: &AtomicBool,
    look: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (tell, mut told) = oneshot::channel();
    let looking = std::thread::Builder::new().name("volumes".to_owned()).spawn(move || {
        // The receiver may be gone.
        let _ = tell.send(look());
    });
    looking.map_err(|error| format!("cannot start a thread: {error}"))?;
    loop {
        match timeout(LOOK, &mut told).await {
            Ok(found) => return found.map_err(|_| "the thread that looks for it has ended".to_owned()),
            Err(_) if cancel.load(Ordering::Relaxed) => {
                return Err("its file system does not answer, and the task is not wanted any more".to_owned());
            }
            Err(_) => {}
        }
    }
}

/// Why a task of this driver cannot mount volumes of this kind.
#[must_use]
pub fn no_mounts(driver: &str, what: &str) -> String {
    format!(
        "task driver {driver:?} does not support {what}: its tasks see all files of the host; use driver = \"exec\", or \
         remove volume_mount and name the directory itself"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::fake;
    use crate::spec::Group;

    fn task_with(mounts: Vec<VolumeMount>) -> (Group, Task) {
        let volume = |name: &str, per_alloc| Volume {
            name: name.to_owned(),
            source: name.to_owned(),
            per_alloc,
            ..Volume::default()
        };
        let mut job = fake::job(vec![Task { volume_mounts: mounts, ..fake::task("web") }]);
        job.groups[0].volumes = vec![volume("data", false), volume("own", true)];
        let group = job.groups.remove(0);
        let task = group.tasks[0].clone();
        (group, task)
    }

    fn mount(volume: &str, destination: &str) -> VolumeMount {
        VolumeMount { volume: volume.to_owned(), destination: destination.to_owned(), ..VolumeMount::default() }
    }

    fn mounts(host: &HostVolumes, wanted: Vec<VolumeMount>) -> Result<Vec<Mount>, String> {
        let (group, task) = task_with(wanted);
        let job = fake::job(vec![task.clone()]);
        let env = TaskEnv::build(&crate::alloc::env::Source {
            job: &job,
            group: &group,
            parent: "",
            task: &task,
            alloc: &crate::spec::AllocId::new(crate::sys::random::uuid()),
            index: 1,
            alloc_dir: Path::new("/data"),
            isolation: crate::driver::FsIsolation::Image,
            cgroup_parent: Path::new(""),
            ports: &[],
            network: None,
            node: &fake::node(),
            host: &BTreeMap::new(),
            denied: &[],
        });
        AllocVolumes { volumes: group.volumes.clone(), host: host.clone(), index: 1, ..AllocVolumes::default() }
            .mounts(&task, &env, true)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn f1_names_and_places_may_refer_to_the_task_and_any_of_three_makes_it_read_only() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("there")).unwrap();
        std::os::unix::fs::symlink("there", real.join("link")).unwrap();
        for (host_ro, mount_ro) in [(false, false), (false, true)] {
            let mut host = HostVolumes::default();
            for name in ["data", "own[1]"] {
                host.add(name.to_owned(), HostVolume::open(&real.join("link"), host_ro).unwrap());
            }
            let wanted = vec![
                VolumeMount { read_only: mount_ro, ..mount("data", "${NOMAD_TASK_DIR}/x") },
                mount("own", "/own/${NOMAD_ALLOC_INDEX}"),
            ];
            let made = mounts(&host, wanted).unwrap();
            assert_eq!((&*made[0].task_path, &*made[1].task_path), ("/local/x", "/own/1"));
            assert_eq!((made[0].readonly, made[1].readonly), (mount_ro, false));
            assert_eq!(made[0].host_path, real.join("there"), "links of the operator are followed once");
            assert!(made[0].identity.is_some() && made[0].identity == made[1].identity);
        }
        let mut host = HostVolumes::default();
        host.add("data".to_owned(), HostVolume::open(&real, true).unwrap());
        let (mut group, _) = task_with(vec![mount("data", "/data")]);
        let find = |group: &Group| host.find(&group.volumes[0], 0).map(|found| found.is_read_only());
        assert!(find(&group).unwrap_err().contains("add read_only = true"));
        group.volumes[0].read_only = true;
        assert_eq!(find(&group), Ok(true));
    }

    #[test]
    fn f1_what_cannot_be_mounted_is_told_with_the_fix() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        let mut host = HostVolumes::default();
        for name in ["data", "own[0]"] {
            host.add(name.to_owned(), HostVolume::open(&real, false).unwrap());
        }
        let unknown = mount("data", "/${NOMAD_SHORT_DC}/x");
        for (wanted, why) in [
            (
                vec![mount("own", "/x")],
                "no host volume \"own[1]\" here; say which directory it is with --volume own[1]=PATH",
            ),
            (vec![mount("nope", "/x")], "the group has no volume \"nope\""),
            (vec![mount("data", "/")], "the task's whole root"),
            (vec![mount("data", "/${NOMAD_TASK_NAME}/../x")], "\"/web/../x\" holds \"..\""),
            (vec![mount("data", "/a/"), mount("data", "/a")], "\"/a\": volume \"data\" is mounted there already"),
        ] {
            let error = mounts(&host, wanted).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(mounts(&host, vec![unknown]).is_ok(), "what stays unknown is text");
        for name in ["missing", "file"] {
            std::fs::write(real.join("file"), "").unwrap();
            assert!(HostVolume::open(&real.join(name), false).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn f1_a_file_system_that_does_not_answer_is_not_waited_for() {
        let (answer, question) = std::sync::mpsc::channel::<()>();
        let found = wanted(&AtomicBool::new(true), move || question.recv().is_ok()).await;
        assert!(found.is_err_and(|error| error.contains("does not answer")));
        drop(answer);
        assert_eq!(wanted(&AtomicBool::new(false), || 7).await, Ok(7));
    }

    /// D96: a task that may write above a volume replaces it by a symbolic link, or by another directory.
    #[test]
    fn d96_what_is_exchanged_is_not_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        for name in ["data", "other"] {
            std::fs::create_dir(real.join(name)).unwrap();
        }
        let mut host = HostVolumes::default();
        host.add("data".to_owned(), HostVolume::open(&real.join("data"), false).unwrap());
        assert!(mounts(&host, vec![mount("data", "/x")]).is_ok());
        std::fs::rename(real.join("data"), real.join("gone")).unwrap();
        let refused = || mounts(&host, vec![mount("data", "/x")]).unwrap_err();
        assert!(refused().contains("No such file"), "{}", refused());
        std::os::unix::fs::symlink("gone", real.join("data")).unwrap();
        assert!(refused().contains("symbolic links"), "{}", refused());
        std::fs::remove_file(real.join("data")).unwrap();
        std::fs::rename(real.join("other"), real.join("data")).unwrap();
        assert!(refused().contains("another directory"), "{}", refused());
    }
}
