//! The services of this machine: one directory for all processes of a user, changed under one lock.
//!
//! Each process has a file, named after it, with its registrations. The file of a dead process is ignored and removed by the
//! next process that reads the directory. Waiting for a change uses inotify for the files, and pidfds for the ends of processes.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::sockets::Owner;
use crate::spec::CheckStatus;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::json;
use crate::spec::{IntoSet as _, Order as _};
use crate::sys::lock::lock;
use crate::sys::owned::{self, OwnDir};
use crate::sys::task::boxed;
use crate::sys::time;
use crate::sys::watch::register;

/// Held while the registry is written.
const LOCK: &str = "lock";
/// Eight bytes: the index of the last change.
const INDEX: &str = "index";
/// A file that is being written, before it is renamed.
const NEW: &str = "new";
/// How long other processes may hold the lock, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The format version of a process's file.
const VERSION: u32 = 1;
/// Longest file of a process that is written or read, in bytes.
const LONGEST: u64 = 16 << 20;
/// Bytes of all files that are read.
const MOST: u64 = 64 << 20;
/// How often the registry is read if changes cannot be watched.
const UNHEARD: Duration = Duration::from_secs(5);

/// An instance of a service: the fields of Nomad's API and some of our own.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Registration {
    /// Unique: `_nomad-task-<allocation>-<task>-<service>-<port>`.
    #[serde(rename = "ID")]
    pub id: String,
    /// The name under which it is looked up.
    pub service_name: String,
    /// The job's namespace.
    pub namespace: String,
    /// The machine's id.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The machine's datacenter.
    pub datacenter: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// In the order of the job file.
    pub tags: Vec<String>,
    /// Its address.
    pub address: String,
    /// Its port; 0 if it has none.
    pub port: u16,
    /// The index of its registration.
    pub create_index: u64,
    /// The index of its last change.
    pub modify_index: u64,
    /// The machine's name.
    pub node_name: String,
    /// The group.
    pub task_group: String,
    /// Its task; empty for a service of the group.
    pub task_name: String,
    /// `nomad` or `consul`, as the job file says.
    pub provider: String,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// More addresses, by their purpose.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Consul's weights, passing and warning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<(u32, u32)>,
    /// The worst status of its checks.
    pub status: CheckStatus,
    /// Its checks.
    pub checks: Vec<CheckReport>,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckReport {
    /// Unique among all.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name in the job file.
    pub name: String,
    /// `tcp`, `http`, `grpc`, `script`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// How it counts for the allocation's health: `require_healthy`, `ignore_warnings` or `ignore`.
    pub on_update: String,
    /// See [`CheckStatus`].
    pub status: CheckStatus,
    /// HTTP status of the answer, for an HTTP check; 0 for none.
    pub status_code: u16,
    /// The output, shortened.
    pub output: String,
    /// When it was probed (RFC 3339); empty before the first probe. In the registry, the probe that changed the status.
    pub timestamp: String,
}

impl Registration {
    /// Sets the status to the worst of the checks; a service without checks passes.
    pub(super) fn settle(&mut self) {
        self.status = self.checks.iter().map(|check| check.status).max().unwrap_or(CheckStatus::Passing);
    }
}

/// The content of a process's file.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Holder {
    version: u32,
    services: Vec<Registration>,
}

/// The services of this process, and of all other processes of this machine that use the same directory; without a directory,
/// its own only.
#[derive(Debug, Clone, Default)]
pub struct Services(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    dir: Option<PathBuf>,
    own: Mutex<Own>,
    /// Held while the file is written.
    writing: Mutex<Writing>,
    /// Counts changes, as far as they are watched.
    changes: watch::Sender<u64>,
    /// The task that watches for changes of others; ends with this value.
    watcher: Mutex<JoinSet<()>>,
}

/// What this process has registered.
#[derive(Debug, Default)]
struct Own {
    by_id: BTreeMap<String, Registration>,
    /// The ids whose change has no index yet.
    changed: BTreeSet<String>,
    /// Counts the changes.
    version: u64,
    /// The last index, if there is no directory.
    index: u64,
}

#[derive(Debug, Default)]
struct Writing {
    /// The version of the file's content.
    written: u64,
    /// The name of this process's file.
    name: Option<String>,
    /// That file, locked as long as this process lives: the only sign of life that is visible in another pid namespace.
    file: Option<File>,
}

/// All that is registered, and what could not be read.
#[derive(Debug, Default)]
pub struct Listed {
    /// By name, then by id.
    pub services: Vec<Registration>,
    /// Errors of files that are not trusted, or cannot be read.
    pub errors: Vec<io::Error>,
}

impl Services {
    /// The services of this machine, in this directory, which is created when something is registered.
    pub(super) fn of_machine(dir: PathBuf) -> Services {
        Services(Arc::new(Inner { dir: Some(dir), ..Inner::default() }))
    }

    /// Changes what this process has registered, and publishes it. Blocks on files: call it on a thread that may block.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to the directory; other processes do not see the change then.
    pub(super) fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Registration>)) -> io::Result<()> {
        let version = {
            let own = &mut *lock(&self.0.own);
            let before = own.by_id.clone();
            change(&mut own.by_id);
            if own.by_id == before {
                return Ok(());
            }
            let is_new = |(id, now): &(&String, &Registration)| before.get(*id) != Some(*now);
            own.changed.extend(own.by_id.iter().filter(is_new).map(|(id, _)| id.clone()));
            own.version += 1;
            if self.0.dir.is_none() {
                own.index += 1;
                let index = own.index;
                own.give_index(index);
            }
            own.version
        };
        let written = self.0.dir.as_ref().map_or(Ok(()), |dir| self.write(dir, version));
        self.0.changes.send_modify(|count| *count += 1);
        written
    }

    /// Writes the current registrations, unless another thread has since this version.
    fn write(&self, dir: &Path, version: u64) -> io::Result<()> {
        let writing = &mut *lock(&self.0.writing);
        if writing.written >= version {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let dir = OwnDir::open(dir)?;
        let _held = held(&dir)?;
        let name = match &writing.name {
            Some(name) => name.clone(),
            None => new_name()?,
        };
        let (services, version) = {
            let own = &mut *lock(&self.0.own);
            if !own.changed.is_empty() || !own.by_id.is_empty() || writing.file.is_some() {
                let index = next_index(&dir)?;
                own.give_index(index);
            }
            (own.by_id.values().cloned().collect::<Vec<_>>(), own.version)
        };
        if services.is_empty() {
            if writing.file.is_some() {
                remove(&dir, &name)?;
            }
            *writing = Writing { written: version, ..Writing::default() };
            return Ok(());
        }
        let bytes = json::to_vec(&Holder { version: VERSION, services })?;
        if bytes.len() as u64 > LONGEST {
            let text = format!("the services of one process have more than {} MiB", LONGEST >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let file = open(&dir, NEW, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all_at(&bytes, 0)?;
        rustix::fs::renameat(&dir, NEW, &dir, name.as_str())?;
        *writing = Writing { written: version, name: Some(name), file: Some(file) };
        Ok(())
    }

    /// Whether each change has been written and has its index.
    #[cfg(test)]
    pub(super) fn is_written(&self) -> bool {
        lock(&self.0.own).changed.is_empty()
    }

    /// What this process has registered, by id.
    #[must_use]
    pub fn own(&self) -> Vec<Registration> {
        lock(&self.0.own).by_id.values().cloned().collect()
    }

    /// Changes whenever [`Services::own`] does; subscribe before reading that.
    #[must_use]
    pub fn own_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// All services that are registered on this machine; the files of dead processes are removed.
    ///
    /// # Errors
    /// When the directory cannot be listed, or others may write to it; when `/proc` cannot be read.
    pub fn list(&self) -> io::Result<Listed> {
        let mut listed = Listed::default();
        let own = self.own();
        let name = lock(&self.0.writing).name.clone();
        // First, because the stable sort keeps them before those of other processes.
        listed.services = own;
        if let Some(path) = &self.0.dir {
            let Some(dir) = opened(path)? else { return Ok(listed) };
            let mut left = MOST;
            for (owner, file) in files(&dir)? {
                if Some(&file) == name.as_ref() || is_over(&dir, owner, &file)? {
                    continue;
                }
                match read(&dir, &file, &mut left) {
                    Ok(services) => listed.services.extend(services),
                    // The process has just ended.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => listed.errors.push(error),
                }
            }
        }
        listed.services.order_by(|a, b| (&a.service_name, &a.id).cmp(&(&b.service_name, &b.id)));
        // The file of this process may already contain its own registrations, too.
        listed.services.dedup_by(|later, earlier| later.id == earlier.id);
        Ok(listed)
    }

    /// Changes whenever the result of [`Services::list`] may have changed; subscribe before reading that. Needs a tokio runtime.
    pub fn changes(&self) -> watch::Receiver<u64> {
        let mut watcher = lock(&self.0.watcher);
        if let (true, Some(dir)) = (watcher.is_empty(), &self.0.dir) {
            watcher.spawn(boxed(look_out(dir.clone(), self.0.changes.clone())));
        }
        self.0.changes.subscribe()
    }
}

impl Own {
    fn give_index(&mut self, index: u64) {
        for id in std::mem::take(&mut self.changed) {
            if let Some(registration) = self.by_id.get_mut(&id) {
                registration.modify_index = index;
                if registration.create_index == 0 {
                    registration.create_index = index;
                }
            }
        }
    }
}

fn new_name() -> io::Result<String> {
    use std::sync::atomic::{AtomicU32, Ordering};
    /// One process may have several files.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    Ok(format!("{}.{}", Owner::this()?.name(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn opened(path: &Path) -> io::Result<Option<OwnDir>> {
    match OwnDir::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn open(dir: &OwnDir, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
    owned::check(&file, &dir.path().join(name))?;
    Ok(file)
}

fn remove(dir: &OwnDir, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Locks the directory until the returned file is dropped; waits for other processes for a limited time.
fn held(dir: &OwnDir) -> io::Result<File> {
    let file = open(dir, LOCK, OFlags::RDWR | OFlags::CREATE)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                // The kernel has no event for a released lock.
                rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], Some(&AGAIN)))?;
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                let (path, seconds) = (dir.path().join(LOCK), PATIENCE.as_secs());
                let text = format!(
                    "another process has held the lock {} for {seconds} seconds; end that process (fuser names it)",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            locked => {
                locked?;
                return Ok(file);
            }
        }
    }
}

/// The index of the change that is being made; the caller holds the lock.
fn next_index(dir: &OwnDir) -> io::Result<u64> {
    let file = open(dir, INDEX, OFlags::RDWR | OFlags::CREATE)?;
    let mut bytes = [0; 8];
    let read = file.read_at(&mut bytes, 0)?;
    let next = if read == bytes.len() { u64::from_le_bytes(bytes).saturating_add(1) } else { 1 };
    file.write_all_at(&next.to_le_bytes(), 0)?;
    Ok(next)
}

/// The files of processes, and the processes that own them.
fn files(dir: &OwnDir) -> io::Result<Vec<(Owner, String)>> {
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let owner = name.split_once('.').and_then(|(owner, _)| Owner::parse(owner));
        found.extend(owner.map(|owner| (owner, name.to_owned())));
    }
    found.order_by(|one, other| one.1.cmp(&other.1));
    Ok(found)
}

/// Whether the process has died; if so, its file is removed.
fn is_over(dir: &OwnDir, owner: Owner, name: &str) -> io::Result<bool> {
    let pid_namespace = time::pid_namespace()?;
    if owner.is_of(pid_namespace) {
        let over = owner.is_dead(pid_namespace)?;
        return if over { remove(dir, name).map(|()| true) } else { Ok(false) };
    }
    // A file that its owner is just replacing is unlocked too, but then the owner holds the directory's lock, so that is checked
    // first.
    let held = open(dir, LOCK, OFlags::RDWR | OFlags::CREATE)?;
    let is_free = |file: &File, how| rustix::fs::flock(file, how).is_ok();
    let over = is_free(&held, FlockOperation::NonBlockingLockExclusive)
        && dir.file(name.as_ref()).is_ok_and(|file| is_free(&file, FlockOperation::NonBlockingLockShared));
    if over {
        remove(dir, name)?;
    }
    Ok(over)
}

fn read(dir: &OwnDir, name: &str, left: &mut u64) -> io::Result<Vec<Registration>> {
    let named = |error: io::Error| {
        if owned::is_untrusted(&error) || error.kind() == io::ErrorKind::NotFound {
            return error;
        }
        io::Error::new(error.kind(), format!("{}: {error}", dir.path().join(name).display()))
    };
    let bytes = dir.read(name.as_ref(), LONGEST.min(*left)).map_err(named)?;
    *left -= (bytes.len() as u64).min(*left);
    let holder: Holder = json::from_slice(&bytes).map_err(|error| named(error.into()))?;
    if holder.version != VERSION {
        let text = format!("version {}, which this release does not know", holder.version);
        return Err(named(io::Error::new(io::ErrorKind::InvalidData, text)));
    }
    Ok(holder.services)
}

/// Notifies about each change in the directory, and about the ends of processes that have files there, until all receivers are
/// gone.
async fn look_out(dir: PathBuf, changes: watch::Sender<u64>) {
    loop {
        let watched = watch_for(&dir);
        // Changes before the watch began are seen by those who read the directory now.
        changes.send_modify(|count| *count += 1);
        match watched {
            Ok(watched) => watched.changed().await,
            Err(error) => {
                tracing::debug!(%error, dir = %dir.display(), "changes of services are looked for every few seconds");
                tokio::time::sleep(UNHEARD).await;
            }
        }
    }
}

/// The sources of the next change.
struct Watched {
    directory: AsyncFd<Arc<OwnedFd>>,
    owners: Vec<AsyncFd<Arc<OwnedFd>>>,
    /// Some of the processes cannot be watched.
    is_partial: bool,
}

fn watch_for(path: &Path) -> io::Result<Watched> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let dir = OwnDir::open(path)?;
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&fd, path, WatchFlags::MOVED_TO | WatchFlags::DELETE)?;
    let directory = register(Arc::new(fd), Interest::READABLE)?;
    let (pid_namespace, own) = (time::pid_namespace()?, Owner::this()?);
    let (mut owners, mut is_partial) = (Vec::new(), false);
    let all: BTreeSet<String> = files(&dir)?.into_iter().map(|(owner, _)| owner.name()).into_set();
    for owner in all.iter().filter_map(|name| Owner::parse(name)).filter(|owner| *owner != own) {
        let pidfd = if owner.is_of(pid_namespace) { owner.pidfd() } else { Err(io::ErrorKind::Unsupported.into()) };
        match pidfd.and_then(|pidfd| register(Arc::new(pidfd), Interest::READABLE)) {
            // It has died meanwhile, and another process has its pid.
            Ok(_) if owner.is_dead(pid_namespace)? => {}
            Ok(pidfd) => owners.push(pidfd),
            Err(_) if owner.is_dead(pid_namespace)? => {}
            Err(_) => is_partial = true,
        }
    }
    Ok(Watched { directory, owners, is_partial })
}

impl Watched {
    async fn changed(&self) {
        let dies = std::future::poll_fn(|context| {
            let ready = self.owners.iter().any(|owner| owner.poll_read_ready(context).is_ready());
            if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        let unheard =
            async { if self.is_partial { tokio::time::sleep(UNHEARD).await } else { std::future::pending().await } };
        tokio::select! {
            _ = self.directory.readable() => {}
            () = dies => {}
            () = unheard => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(id: &str, name: &str) -> Registration {
        Registration { id: id.to_owned(), service_name: name.to_owned(), ..Registration::default() }
    }

    fn add(services: &Services, id: &str, name: &str) {
        services.change(|all| drop(all.insert(id.to_owned(), registration(id, name)))).unwrap();
    }

    fn names(services: &Services) -> Vec<String> {
        services.list().unwrap().services.into_iter().map(|service| service.service_name).collect()
    }

    fn own_file(dir: &Path) -> PathBuf {
        let files = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
        files.into_iter().find(|path| path.extension().is_some()).unwrap()
    }

    #[test]
    fn j3_two_holders_see_each_others_and_indexes_grow() {
        let dir = tempfile::tempdir().unwrap();
        let at = || Services::of_machine(dir.path().join("run/services"));
        let (one, other) = (at(), at());
        assert_eq!(names(&one), [""; 0]);
        add(&one, "a", "web");
        add(&other, "b", "db");
        assert_eq!(names(&one), ["db", "web"]);
        assert_eq!(names(&other), ["db", "web"]);
        one.change(|all| all.get_mut("a").unwrap().port = 7).unwrap();
        let listed = other.list().unwrap().services;
        let indexes: Vec<_> = listed.iter().map(|s| (s.create_index, s.modify_index, s.port)).collect();
        assert_eq!(indexes, [(2, 2, 0), (1, 3, 7)]);
        one.change(BTreeMap::clear).unwrap();
        assert_eq!(names(&other), ["db"]);
    }

    #[test]
    fn j3_what_a_dead_process_had_is_not_shown_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let services = Services::of_machine(dir.path().to_owned());
        add(&services, "a", "web");
        let own = own_file(dir.path());
        let name = own.file_name().unwrap().to_str().unwrap().to_owned();
        let mut words = name.split_once('.').unwrap().0.split('-');
        let (pid, _, namespace) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        // A file of an earlier process with this pid, and one of a process in another pid namespace that no longer locks it.
        for dead in [format!("{pid}-1-{namespace}.0"), format!("{pid}-1-1.0")] {
            let dead = dir.path().join(dead);
            std::fs::copy(&own, &dead).unwrap();
            assert_eq!(names(&services), ["web"]);
            assert!(!dead.exists(), "{}", dead.display());
        }
    }

    /// A writer has unlocked its old file before its new one is renamed.
    #[test]
    fn j3_what_is_just_written_elsewhere_is_not_taken_for_dead() {
        let dir = tempfile::tempdir().unwrap();
        let services = Services::of_machine(dir.path().to_owned());
        add(&services, "a", "web");
        let own = own_file(dir.path());
        let elsewhere = dir.path().join("1-1-1.0");
        std::fs::write(&elsewhere, std::fs::read_to_string(&own).unwrap().replace("\"a\"", "\"b\"")).unwrap();
        std::fs::set_permissions(&elsewhere, own.metadata().unwrap().permissions()).unwrap();
        let writing = held(&OwnDir::open(dir.path()).unwrap()).unwrap();
        assert_eq!(names(&services), ["web", "web"]);
        drop(writing);
        assert_eq!(names(&services), ["web"]);
        assert!(!elsewhere.exists());
    }

    #[test]
    fn j3_what_two_files_have_is_listed_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |port: u16| {
            let services = Services::of_machine(dir.path().to_owned());
            let registered = Registration { port, ..registration("a", "web") };
            services.change(|all| drop(all.insert("a".to_owned(), registered))).unwrap();
            services
        };
        for (port, services) in &[(1, at(1)), (2, at(2))] {
            let listed = services.list().unwrap().services;
            assert_eq!(listed.iter().map(|service| service.port).collect::<Vec<_>>(), [*port], "its own");
        }
    }

    #[test]
    fn j3_a_registry_of_others_is_not_believed() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let (services, live) =
            (Services::of_machine(dir.path().to_owned()), Services::of_machine(dir.path().to_owned()));
        add(&live, "a", "web");
        let own = own_file(dir.path());
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        chmod(&own, 0o666);
        let listed = services.list().unwrap();
        assert_eq!(listed.services, []);
        assert!(listed.errors[0].to_string().contains("others may write to"), "{:?}", listed.errors);
        chmod(&own, 0o600);
        assert_eq!(names(&services), ["web"]);
        for wrong in ["{", "{\"version\":2,\"services\":[]}"] {
            std::fs::write(&own, wrong).unwrap();
            let listed = services.list().unwrap();
            assert_eq!((listed.services.len(), listed.errors.len()), (0, 1), "{wrong}");
        }
        std::fs::File::create(&own).unwrap().set_len(LONGEST + 1).unwrap();
        assert_eq!(services.list().unwrap().errors.len(), 1, "too long");
        chmod(dir.path(), 0o777);
        assert!(services.list().is_err());
        assert!(services.change(|all| drop(all.insert("b".to_owned(), registration("b", "b")))).is_err());
        chmod(dir.path(), 0o700);
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("new")).unwrap();
        assert!(services.change(|all| drop(all.insert("c".to_owned(), registration("c", "c")))).is_err());
    }

    #[tokio::test]
    async fn j3_changes_of_others_and_their_deaths_are_heard() {
        let dir = tempfile::tempdir().unwrap();
        let (services, other) =
            (Services::of_machine(dir.path().to_owned()), Services::of_machine(dir.path().to_owned()));
        let mut changes = services.changes();
        let heard = async |changes: &mut watch::Receiver<u64>, wanted: &[&str]| {
            let until = async {
                while names(&services) != wanted {
                    changes.changed().await.unwrap();
                }
            };
            tokio::time::timeout(Duration::from_mins(1), until).await.expect("the change is heard of");
        };
        add(&other, "a", "web");
        heard(&mut changes, &["web"]).await;
        // When a process ends, the registrations in its file disappear.
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let process = crate::sys::time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        let own = own_file(dir.path());
        let namespace = own.file_name().unwrap().to_str().unwrap().split(['-', '.']).nth(2).unwrap().to_owned();
        let file = format!("{:x}-{:x}-{namespace}.0", process.pid, process.start_ticks);
        let text = std::fs::read_to_string(&own).unwrap().replace("\"a\"", "\"b\"");
        std::fs::write(dir.path().join("other"), text).unwrap();
        std::fs::rename(dir.path().join("other"), dir.path().join(&file)).unwrap();
        heard(&mut changes, &["web", "web"]).await;
        child.kill().unwrap();
        child.wait().unwrap();
        heard(&mut changes, &["web"]).await;
        assert!(!dir.path().join(file).exists());
    }
}
