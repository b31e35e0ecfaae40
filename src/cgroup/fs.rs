//! The mounted trees, their directories and files; nothing here knows the meaning of limits.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::fs::{Access, AtFlags, Dir as ReadDir, FileType, Mode, OFlags, XattrFlags};

use super::error::{Error, Result};
use super::regime::{Hierarchy, Mounts, Regime, scan};
use crate::spec::Order as _;
use crate::sys::path::Root;

/// Controllers that a v2 task cgroup needs for its limits and stats.
pub(super) const V2_REQUIRED: [&str; 3] = ["cpu", "memory", "pids"];
/// Controllers that are enabled where the kernel has them.
const V2_OPTIONAL: [&str; 2] = ["cpuset", "io"];
/// Tries that fit into a second on an idle machine.
const TRIES: u32 = 50;
/// Marks a directory that we made and that is not a task's own, so that we may remove it again.
const MARKS: [&str; 2] = ["trusted.agentbin", "user.agentbin"];

/// Longer than `memory.stat`, the longest file that is read for stats.
const LONGEST_FIGURES: usize = 8192;

/// Longest value of a mark.
const MARK_LENGTH: usize = 4096;

/// Names of the marks that announce, on the directory above, that we are about to make and mark the directory `name`.
fn announcements(name: &OsStr) -> [Vec<u8>; 2] {
    MARKS.map(|mark| [mark.as_bytes(), b".", name.as_bytes()].concat())
}

/// The cgroup trees of this machine, or of a test. Cheap to clone; holds one descriptor per tree.
#[derive(Debug, Clone)]
pub struct CgroupFs {
    regime: Regime,
    trees: Vec<Arc<Tree>>,
    beside: Option<PathBuf>,
}

/// A mounted tree and its open root.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) hierarchy: Hierarchy,
    root: Root,
}

impl CgroupFs {
    /// Determines the regime of the cgroup root `root` (`/sys/fs/cgroup`) from `/proc/self/mountinfo`.
    ///
    /// v1 without root's privileges counts as off: every write there needs them.
    ///
    /// # Errors
    /// [`Error::Io`] when mountinfo cannot be read or a tree cannot be opened.
    pub fn detect(root: &Path) -> Result<CgroupFs> {
        let file = Path::new("/proc/self/mountinfo");
        let text = std::fs::read(file).map_err(|e| Error::io("read", file, e))?;
        let mounts = scan(&String::from_utf8_lossy(&text), root);
        if mounts.regime == Regime::V1 && !rustix::process::geteuid().is_root() {
            return Ok(CgroupFs::off());
        }
        CgroupFs::open(mounts)
    }

    /// Opens trees that were found earlier, or that a test made.
    ///
    /// # Errors
    /// [`Error::Io`] when the root of a tree cannot be opened.
    pub fn open(mounts: Mounts) -> Result<CgroupFs> {
        let open = |hierarchy: Hierarchy| {
            let path = &hierarchy.mount_point;
            let root = Root::open(path).map_err(|e| Error::io("open", path, e))?;
            Ok(Arc::new(Tree { hierarchy, root }))
        };
        let mut trees = mounts.hierarchies.into_iter().map(open).collect::<Result<Vec<_>>>()?;
        // The freezer comes first, so that a process that is in any of a task's v1 cgroups is also in the freezer's, which the kill
        // reads first.
        trees.order_by_key(|t| !t.hierarchy.has("freezer"));
        Ok(CgroupFs { regime: mounts.regime, trees, beside: mounts.beside })
    }

    /// A unified tree whose root is `root`: the mount point, or a cgroup below it that was delegated to us.
    ///
    /// # Errors
    /// [`Error::Io`] when `root` cannot be opened.
    pub fn v2(root: &Path) -> Result<CgroupFs> {
        let hierarchy = Hierarchy { controllers: Vec::new(), mount_point: root.to_owned() };
        CgroupFs::open(Mounts { regime: Regime::V2, hierarchies: vec![hierarchy], beside: None })
    }

    /// No cgroup trees.
    #[must_use]
    pub fn off() -> CgroupFs {
        CgroupFs { regime: Regime::Off, trees: Vec::new(), beside: None }
    }

    /// The unified tree beside those of v1, which has no controllers; `None` elsewhere.
    ///
    /// # Errors
    /// [`Error::Io`] when its root cannot be opened.
    pub fn unified_beside(&self) -> Result<Option<CgroupFs>> {
        self.beside.as_deref().map(CgroupFs::v2).transpose()
    }

    /// The regime.
    #[must_use]
    pub fn regime(&self) -> Regime {
        self.regime
    }

    /// The mounted trees: v1 the freezer first, v2 exactly one, off none.
    pub fn hierarchies(&self) -> impl Iterator<Item = &Hierarchy> {
        self.trees.iter().map(|t| &t.hierarchy)
    }

    /// Those of cpu, memory, pids, cpuset and io that are not available for tasks here. v1 calls the last one `blkio`.
    ///
    /// # Errors
    /// [`Error::Io`] when `cgroup.controllers` of the v2 root cannot be read.
    pub fn missing_controllers(&self) -> Result<Vec<&'static str>> {
        let all = V2_REQUIRED.into_iter().chain(V2_OPTIONAL);
        match self.regime {
            Regime::Off => Ok(all.collect()),
            Regime::V1 => Ok(all.filter(|c| self.v1(if *c == "io" { "blkio" } else { c }).is_none()).collect()),
            Regime::V2 => {
                let have = self.trees[0].dir(Path::new("."))?.read("cgroup.controllers")?;
                Ok(all.filter(|c| !have.split_whitespace().any(|h| h == *c)).collect())
            }
        }
    }

    /// Turns a path from a host, absolute below one of these trees or relative, into the relative path that
    /// [`TaskCgroup::create`](super::TaskCgroup::create) takes. On v1 the path may begin with any controller's directory.
    ///
    /// # Errors
    /// [`Error::BadPath`] when it is in none of the trees, is a root, or leaves it with `..`.
    pub fn relative(&self, path: &Path) -> Result<PathBuf> {
        let inner = if path.is_absolute() {
            let inside = self.trees.iter().find_map(|t| t.strip(path));
            inside.ok_or_else(|| Error::BadPath(path.to_owned()))?
        } else {
            path.to_owned()
        };
        checked(&inner)
    }

    pub(super) fn trees(&self) -> &[Arc<Tree>] {
        &self.trees
    }

    pub(super) fn v1(&self, controller: &str) -> Option<&Arc<Tree>> {
        self.trees.iter().find(|t| t.hierarchy.has(controller))
    }
}

impl Tree {
    /// Opens the directory `relative` to access its files.
    pub(super) fn dir(&self, relative: &Path) -> Result<Dir> {
        let path = self.path(relative);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.root.open_beneath(relative, flags, Mode::empty()) {
            Ok(fd) => Ok(Dir { fd, path }),
            Err(e) => Err(Error::io("open", &path, e)),
        }
    }

    /// An `O_PATH` descriptor of the directory, as `CLONE_INTO_CGROUP` needs it.
    pub(super) fn handle(&self, relative: &Path) -> Result<OwnedFd> {
        let open = self.root.open_beneath(relative, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        open.map_err(|e| Error::io("open", &self.path(relative), e))
    }

    /// A descriptor of the directory for calls that do not accept `O_PATH`, such as `bpf(2)`.
    pub(super) fn descriptor(&self, relative: &Path) -> Result<OwnedFd> {
        self.dir(relative).map(|dir| dir.fd)
    }

    pub(super) fn path(&self, relative: &Path) -> PathBuf {
        self.hierarchy.mount_point.join(relative)
    }

    /// `path` without the mount point as prefix; a v1 mount `cpu,cpuacct` is also known as `cpu` and as `cpuacct`.
    pub(super) fn strip(&self, path: &Path) -> Option<PathBuf> {
        let mount_point = &self.hierarchy.mount_point;
        let aliases = self.hierarchy.controllers.iter().map(|c| mount_point.with_file_name(c));
        std::iter::once(mount_point.clone()).chain(aliases).find_map(|p| path.strip_prefix(p).ok().map(Path::to_owned))
    }

    /// Whether `dir` is the root of this tree, no matter by which path it was opened.
    pub(super) fn is_root(&self, dir: &Dir) -> Result<bool> {
        let stat = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map_err(|e| Error::io("stat", &dir.path, e));
        let (root, this) = (stat(self.root.as_fd())?, stat(dir.fd.as_fd())?);
        Ok((root.st_dev, root.st_ino) == (this.st_dev, this.st_ino))
    }

    /// Creates the directory and its parents; true when the last one is new.
    ///
    /// Another process may remove the same parents because they were empty: then this starts again at the top, for `patience` and
    /// so many times as fit into it.
    pub(super) fn make(&self, relative: &Path, patience: Duration) -> Result<bool> {
        let mut backoff = Backoff::race(patience);
        loop {
            match self.try_make(relative) {
                Err(e) if e.is_race() && backoff.wait() => {}
                result => return result,
            }
        }
    }

    fn try_make(&self, relative: &Path) -> Result<bool> {
        let cpuset = self.hierarchy.has("cpuset");
        let unified = self.hierarchy.controllers.is_empty();
        let mut parent = self.dir(Path::new("."))?;
        let mut components = relative.components().peekable();
        let mut made = false;
        while let Some(component) = components.next() {
            if unified {
                parent.enable_controllers()?;
            }
            let name = component.as_os_str();
            made = if components.peek().is_some() { parent.make_parent(name)? } else { parent.make_child(name)? };
            let dir = parent.child(name)?;
            if cpuset {
                dir.inherit_cpuset(&parent)?;
            }
            parent = dir;
        }
        Ok(made)
    }
}

/// `path`, if it consists of one or more plain names without control characters.
pub(super) fn checked(path: &Path) -> Result<PathBuf> {
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    // `a/./b` and `a//b` have only plain components, and are rebuilt without the other parts.
    let clean: PathBuf = path.components().collect();
    // The kernel refuses a newline, but only after the directories above are made.
    let short = clean.as_os_str().len() < 4000 && !clean.as_os_str().as_bytes().iter().any(u8::is_ascii_control);
    if plain && short && !clean.as_os_str().is_empty() { Ok(clean) } else { Err(Error::BadPath(path.to_owned())) }
}

/// A cgroup directory that is read for stats: of many tasks at once, so with as few system calls as possible.
pub(super) struct Figures {
    fd: OwnedFd,
    path: PathBuf,
}

impl Figures {
    pub(super) fn open(tree: &Tree, relative: &Path) -> Result<Figures> {
        Ok(Figures { fd: tree.handle(relative)?, path: tree.path(relative) })
    }

    /// The text of a file, or `None` where there is none. The kernel returns such a file whole in the first read whose buffer is
    /// large enough.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let failed = |e: std::io::Error| Error::io("read", &self.path.join(name), e);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => return Ok(None),
            opened => opened.map_err(|e| Error::io("open", &self.path.join(name), e))?,
        };
        let mut text = Vec::with_capacity(LONGEST_FIGURES);
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut text)));
        if read.map_err(|e| failed(e.into()))? == LONGEST_FIGURES {
            File::from(file).read_to_end(&mut text).map_err(failed)?;
        }
        let malformed = |_| Error::Malformed { path: self.path.join(name), text: "what is not text".to_owned() };
        String::from_utf8(text).map(Some).map_err(malformed)
    }

    /// The text of a file that every cgroup has.
    pub(super) fn always(&self, name: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| Error::io("open", &self.path.join(name), rustix::io::Errno::NOENT))
    }

    /// The number in a file that contains nothing else.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let malformed = |_| Error::Malformed { path: self.path.join(name), text: text.trim().to_owned() };
        text.trim().parse().map(Some).map_err(malformed)
    }
}

/// An open cgroup directory; `path` is for messages only.
#[derive(Debug)]
pub(super) struct Dir {
    fd: OwnedFd,
    pub(super) path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    fn file(&self, name: &str, flags: OFlags) -> Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(File::from(fd)),
            Err(e) => Err(Error::io("open", &self.path.join(name), e)),
        }
    }

    /// An open file, for repeated reads and for `poll(2)`.
    pub(super) fn watch(&self, name: &str) -> Result<File> {
        self.file(name, OFlags::RDONLY)
    }

    pub(super) fn read(&self, name: &str) -> Result<String> {
        let mut text = String::new();
        let read = self.file(name, OFlags::RDONLY)?.read_to_string(&mut text);
        read.map_err(|e| Error::io("read", &self.path.join(name), e))?;
        Ok(text)
    }

    /// The text, or `None` where this kernel or this cgroup has no such file.
    pub(super) fn read_if_there(&self, name: &str) -> Result<Option<String>> {
        match self.read(name) {
            Err(e) if e.is_gone() => Ok(None),
            result => result.map(Some),
        }
    }

    /// Fails as opening it would where there is no such file.
    pub(super) fn look_for(&self, name: &str) -> Result<()> {
        let there = rustix::fs::accessat(&self.fd, name, Access::EXISTS, AtFlags::empty());
        there.map_err(|e| Error::io("open", &self.path.join(name), e))
    }

    pub(super) fn write(&self, name: &str, value: &str) -> Result<()> {
        let mut file = self.file(name, OFlags::WRONLY | OFlags::TRUNC)?;
        file.write_all(value.as_bytes()).map_err(|source| Error::Write {
            value: value.to_owned(),
            path: self.path.join(name),
            source,
        })
    }

    /// Writes values one by one, as each write is a separate command. A value for which the kernel returns the errno `tolerated` is
    /// skipped.
    pub(super) fn write_each(&self, name: &str, values: impl Iterator<Item = String>, tolerated: i32) -> Result<()> {
        let mut file = self.file(name, OFlags::WRONLY)?;
        for value in values {
            match file.write_all(value.as_bytes()) {
                Err(source) if source.raw_os_error() != Some(tolerated) => {
                    return Err(Error::Write { value, path: self.path.join(name), source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes where the file exists; false where it does not.
    pub(super) fn write_if_there(&self, name: &str, value: &str) -> Result<bool> {
        match self.write(name, value) {
            Err(e) if e.is_gone() => Ok(false),
            result => result.map(|()| true),
        }
    }

    pub(super) fn child(&self, name: &OsStr) -> Result<Dir> {
        let path = self.path.join(name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Dir { fd, path }),
            Err(e) => Err(Error::io("open", &path, e)),
        }
    }

    /// Returns from a child to its parent; holding one descriptor at a time keeps a tree of any depth within our limit of
    /// descriptors.
    fn up(&self) -> Result<Dir> {
        let mut dir = self.child(OsStr::new(".."))?;
        dir.path.pop();
        dir.path.pop();
        Ok(dir)
    }

    /// Creates a parent of task cgroups and marks it. If this process is killed in between, the announcement on the directory above
    /// remains.
    fn make_parent(&self, name: &OsStr) -> Result<bool> {
        if rustix::fs::accessat(&self.fd, name, Access::EXISTS, AtFlags::empty()).is_ok() {
            return Ok(false);
        }
        let announced = announcements(name);
        let _announced =
            announced.iter().any(|a| rustix::fs::fsetxattr(&self.fd, a, b"1", XattrFlags::empty()).is_ok());
        let made = self.make_child(name);
        if matches!(made, Ok(true)) {
            self.child(name)?.mark_as_ours();
        }
        for announced in &announced {
            let _gone = rustix::fs::fremovexattr(&self.fd, announced);
        }
        made
    }

    pub(super) fn make_child(&self, name: &OsStr) -> Result<bool> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(e) => Err(Error::io("create", &self.path.join(name), e)),
        }
    }

    fn remove_child(&self, name: &OsStr) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(Error::io("remove", &self.path.join(name), e)),
        }
    }

    /// Names of the child cgroups.
    pub(super) fn children(&self) -> Result<Vec<OsString>> {
        let failed = |e| Error::io("list", &self.path, e);
        let mut names = Vec::new();
        // kernfs counts one link per child, which is cheaper to read than the list of all files.
        if rustix::fs::fstat(&self.fd).map_err(failed)?.st_nlink == 2 {
            return Ok(names);
        }
        for entry in ReadDir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == FileType::Directory && name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// The results of `visit` for this cgroup and all below it, parents first; empty when it is gone.
    ///
    /// If another process removes the directory that the walk is in, the walk starts again, so that no sibling is left out.
    pub(super) fn collect<T>(&self, visit: impl Fn(&Dir) -> Result<T>) -> Result<Vec<T>> {
        let mut restarts = 100;
        loop {
            match self.walk(&visit) {
                Err(e) if e.is_gone() && restarts > 0 => restarts -= 1,
                result => return result,
            }
        }
    }

    fn walk<T>(&self, visit: &impl Fn(&Dir) -> Result<T>) -> Result<Vec<T>> {
        let gone = |e: &Error| e.is_gone();
        let mut here = match self.child(OsStr::new(".")) {
            Err(e) if gone(&e) => return Ok(Vec::new()),
            result => result?,
        };
        here.path.clone_from(&self.path);
        let mut found = vec![visit(&here)?];
        let mut pending = vec![here.children()?];
        while let Some(level) = pending.last_mut() {
            let Some(name) = level.pop() else {
                pending.pop();
                if !pending.is_empty() {
                    here = here.up()?;
                }
                continue;
            };
            match here.child(&name) {
                Ok(dir) => here = dir,
                Err(e) if gone(&e) => continue,
                Err(e) => return Err(e),
            }
            found.push(visit(&here)?);
            pending.push(here.children()?);
        }
        Ok(found)
    }

    /// Processes directly in this cgroup; 0 stands for one outside our pid namespace.
    pub(super) fn pids(&self) -> Result<Vec<i32>> {
        let text = match self.read("cgroup.procs") {
            Err(e) if e.is_gone() => return Ok(Vec::new()),
            // A threaded v2 cgroup only lists threads.
            Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => self.read("cgroup.threads")?,
            result => result?,
        };
        let parse = |line: &str| {
            let malformed = || Error::Malformed { path: self.path.join("cgroup.procs"), text: line.to_owned() };
            line.trim().parse().map_err(|_| malformed())
        };
        text.lines().map(parse).collect()
    }

    /// Processes in this cgroup and below, each once, ascending.
    pub(super) fn pids_recursive(&self) -> Result<Vec<i32>> {
        let mut pids = self.collect(Dir::pids)?.concat();
        pids.order_by(Ord::cmp);
        pids.dedup();
        Ok(pids)
    }

    /// Removes all cgroups below this one, deepest first. A busy one is retried until `backoff` expires.
    pub(super) fn remove_children(&self, backoff: &mut Backoff) -> Result<()> {
        let mut here = self.child(OsStr::new("."))?;
        here.path.clone_from(&self.path);
        let mut names = Vec::new();
        loop {
            if let Some(name) = here.children()?.pop() {
                // A process that still runs in there may keep making new ones.
                if backoff.expired() {
                    return Err(Error::io("remove", &here.path.join(name), rustix::io::Errno::BUSY));
                }
                match here.child(&name) {
                    Ok(dir) => here = dir,
                    Err(e) if e.is_gone() => continue,
                    Err(e) => return Err(e),
                }
                names.push(name);
                continue;
            }
            let Some(name) = names.pop() else { return Ok(()) };
            here = here.up()?;
            match here.remove_child(&name) {
                Err(e) if e.is_race() && backoff.wait() => {}
                result => result?,
            }
        }
    }

    /// Removes the child `name` and all below it. A busy one is retried until `backoff` expires.
    pub(super) fn remove_tree(&self, name: &OsStr, backoff: &mut Backoff) -> Result<()> {
        loop {
            // The plain rmdir first: a task seldom has cgroups of its own.
            match self.remove_child(name) {
                Err(e) if e.is_race() => match self.child(name) {
                    Ok(dir) if !dir.children()?.is_empty() => dir.remove_children(backoff)?,
                    Err(gone) if gone.is_gone() => return Ok(()),
                    _ if backoff.wait() => {}
                    _ => return Err(e),
                },
                result => return result,
            }
        }
    }

    /// Removes the child `name` if we made it as a parent and it is empty; false when it has to stay.
    pub(super) fn remove_marked(&self, name: &OsStr) -> Result<bool> {
        match self.child(name) {
            Ok(dir) if !dir.is_marked() && !self.announces(name) => return Ok(false),
            Err(e) if e.is_gone() => return Ok(true),
            dir => dir?,
        };
        match self.remove_child(name) {
            Err(e) if matches!(e.errno(), Some(libc::EBUSY | libc::ENOTEMPTY)) => Ok(false),
            result => {
                result?;
                for announced in announcements(name) {
                    let _gone = rustix::fs::fremovexattr(&self.fd, announced);
                }
                Ok(true)
            }
        }
    }

    fn announces(&self, name: &OsStr) -> bool {
        announcements(name).iter().any(|a| rustix::fs::fgetxattr(&self.fd, a, &mut [0u8; 8][..]).is_ok())
    }

    /// Stores a value on the directory, under the first of the names that the kernel accepts.
    pub(super) fn set_mark(&self, names: &[&str], value: &[u8]) -> Result<()> {
        let set = |name: &&str| rustix::fs::fsetxattr(&self.fd, *name, value, XattrFlags::empty());
        let mut result = Err(rustix::io::Errno::TOOBIG);
        let names = if value.len() > MARK_LENGTH { &[] } else { names };
        for name in names {
            result = set(name);
            if result.is_ok() {
                break;
            }
        }
        result.map_err(|e| Error::io("mark", &self.path, e))
    }

    /// The value that is stored under one of the names.
    pub(super) fn mark(&self, names: &[&str]) -> Option<Vec<u8>> {
        names.iter().find_map(|name| {
            let mut value = vec![0; MARK_LENGTH];
            let length = rustix::fs::fgetxattr(&self.fd, *name, value.as_mut_slice()).ok()?;
            value.truncate(length);
            Some(value)
        })
    }

    pub(super) fn remove_mark(&self, names: &[&str]) {
        for name in names {
            let _not_there = rustix::fs::fremovexattr(&self.fd, *name);
        }
    }

    /// If no mark can be set the directory is never removed, which is the lesser harm.
    fn mark_as_ours(&self) {
        let _marked = self.set_mark(&MARKS, b"1");
    }

    fn is_marked(&self) -> bool {
        self.mark(&MARKS).is_some()
    }

    /// v1: an empty cpuset accepts no process (ENOSPC), so cpus and memory nodes are copied from the parent.
    fn inherit_cpuset(&self, parent: &Dir) -> Result<()> {
        for name in ["cpuset.cpus", "cpuset.mems"] {
            if self.read(name)?.trim().is_empty() {
                self.write(name, parent.read(name)?.trim())?;
            }
        }
        if self.read_if_there("cgroup.clone_children")?.is_some_and(|v| v.trim() != "0") {
            self.write("cgroup.clone_children", "0")?;
        }
        Ok(())
    }

    /// v2: enables the controllers for the children of this cgroup. Writes nothing if all are enabled already, because in a
    /// delegated tree that may not be permitted.
    fn enable_controllers(&self) -> Result<()> {
        let available = self.read("cgroup.controllers")?;
        let enabled = self.read("cgroup.subtree_control")?;
        let has = |list: &str, name: &str| list.split_whitespace().any(|c| c == name);
        let missing = |name: &&str| has(&available, name) && !has(&enabled, name);
        let required: Vec<_> = V2_REQUIRED.into_iter().filter(missing).collect();
        let optional: Vec<_> = V2_OPTIONAL.into_iter().filter(missing).collect();
        let all: Vec<_> = required.iter().chain(&optional).map(|c| format!("+{c}")).collect();
        if all.is_empty() || self.write("cgroup.subtree_control", &all.join(" ")).is_ok() {
            return Ok(());
        }
        // The kernel takes all or nothing.
        for controller in required {
            self.write("cgroup.subtree_control", &format!("+{controller}"))?;
        }
        for controller in optional {
            let _optional = self.write("cgroup.subtree_control", &format!("+{controller}"));
        }
        Ok(())
    }

    /// v2: a cgroup whose children have controllers cannot contain processes.
    pub(super) fn disable_controllers(&self) -> Result<()> {
        let enabled = self.read("cgroup.subtree_control")?;
        let off: Vec<_> = enabled.split_whitespace().map(|c| format!("-{c}")).collect();
        if off.is_empty() { Ok(()) } else { self.write("cgroup.subtree_control", &off.join(" ")) }
    }
}

/// Growing pauses where the kernel provides no event: 50 us, doubled up to 20 ms, none after the deadline.
pub(super) struct Backoff {
    deadline: Instant,
    pause: Duration,
    /// Pauses that there are also after the deadline.
    least: u32,
}

impl Backoff {
    pub(super) fn until(deadline: Instant) -> Backoff {
        Backoff { deadline, pause: Duration::from_micros(50), least: 0 }
    }

    /// For a race with other processes, which some try wins: as many as fit into that time on an idle machine. On a loaded one few
    /// do, and all may be lost.
    pub(super) fn race(patience: Duration) -> Backoff {
        Backoff { least: TRIES, ..Backoff::until(Instant::now() + patience) }
    }

    pub(super) fn expired(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Pauses and returns true, or returns false when the deadline has passed.
    #[expect(clippy::disallowed_methods, reason = "the kernel has no event for what is awaited; there is a deadline")]
    pub(super) fn wait(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let pause = match (self.least, left.is_zero()) {
            (0, true) => return false,
            (0, false) => self.pause.min(left),
            _ => self.pause,
        };
        self.least = self.least.saturating_sub(1);
        std::thread::sleep(pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(20));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_race_is_tried_often_enough_also_when_no_time_is_left() {
        let mut race = Backoff::race(Duration::ZERO);
        assert_eq!((0..200).filter(|_| race.wait()).count(), TRIES as usize);
        assert!(!Backoff::until(Instant::now()).wait());
    }
}
