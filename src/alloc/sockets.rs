//! The directory of the sockets of one owner's helpers. A killed helper cannot remove its socket, and if it was killed early,
//! its socket's name is recorded nowhere; so the directory is removed as a whole when its owner is dead. It is named after its
//! owner.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};

use crate::sys::owned::OwnDir;
use crate::sys::{processes, time};

/// How often removing a directory is retried if a helper that is just ending had created its socket in it.
const TRIES: u32 = 5;

/// The name of the control socket of a run.
pub(super) const CONTROL: &str = "control.sock";

/// The owner of a directory: process, start time and pid namespace. Not a lock: a child that the owner has just forked would
/// still hold the lock for a moment after the owner's death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pid: i32,
    start_ticks: u64,
    pid_namespace: u64,
}

impl Owner {
    pub(super) fn this() -> io::Result<Owner> {
        let process = time::own()?;
        let pid_namespace = time::pid_namespace()?;
        Ok(Owner { pid: process.pid, start_ticks: process.start_ticks, pid_namespace })
    }

    /// The name of its directory. Socket paths are limited to 108 bytes, so it is short.
    pub(super) fn name(self) -> String {
        format!("{:x}-{:x}-{:x}", self.pid, self.start_ticks, self.pid_namespace)
    }

    pub(super) fn parse(name: &str) -> Option<Owner> {
        let mut numbers = name.split('-').map(|n| u64::from_str_radix(n, 16));
        let (pid, start_ticks, pid_namespace) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let owner = Owner { pid: i32::try_from(pid).ok()?, start_ticks, pid_namespace };
        (owner.name() == name).then_some(owner)
    }

    /// Whether its pid is valid in this pid namespace.
    pub(super) const fn is_of(self, pid_namespace: u64) -> bool {
        self.pid_namespace == pid_namespace
    }

    /// A pidfd, readable once the process has ended. The pid may belong to another process by now: check `is_dead` afterwards.
    pub(super) fn pidfd(self) -> io::Result<OwnedFd> {
        crate::sys::process::open_pidfd(self.pid)
    }

    /// Whether the process is dead; a process of another pid namespace is assumed to live.
    pub(super) fn is_dead(self, pid_namespace: u64) -> io::Result<bool> {
        let lives = |s: processes::Stat| s.start_ticks == self.start_ticks && !s.ended;
        Ok(self.pid_namespace == pid_namespace && !processes::stat(self.pid)?.is_some_and(lives))
    }
}

/// A directory for the sockets of this process; removed when dropped.
#[derive(Debug)]
pub struct SocketDir(PathBuf);

impl SocketDir {
    /// Creates the directory of this process in `base`, which is created if it is missing, accessible to this user only.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to `base`; when `/proc` cannot be read.
    pub fn create(base: &Path) -> io::Result<SocketDir> {
        let name = Owner::this()?.name();
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        OwnDir::open(base)?.make_new(name.as_ref(), 0o700)?;
        Ok(SocketDir(base.join(name)))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directories in `base` whose owners are dead.
    ///
    /// # Errors
    /// What the file system says; a missing `base` has none.
    pub fn abandoned(base: &Path) -> io::Result<Vec<PathBuf>> {
        SocketDir::with_owners(base, true)
    }

    /// The directories in `base` whose owners are not known to be dead.
    ///
    /// # Errors
    /// As [`SocketDir::abandoned`].
    pub fn live(base: &Path) -> io::Result<Vec<PathBuf>> {
        SocketDir::with_owners(base, false)
    }

    fn with_owners(base: &Path, dead: bool) -> io::Result<Vec<PathBuf>> {
        let own = match OwnDir::open(base) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let entries = std::fs::read_dir(base)?;
        let pid_namespace = time::pid_namespace()?;
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if let Some(owner) = entry.file_name().to_str().and_then(Owner::parse)
                && owner.is_dead(pid_namespace)? == dead
                && own.enter(&entry.file_name()).is_ok()
            {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// Removes a directory with the sockets in it; a missing directory is not an error.
    ///
    /// # Errors
    /// What the file system says; a directory that contains anything else stays.
    pub fn remove(path: &Path) -> io::Result<()> {
        let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        let mut tries = TRIES;
        loop {
            let entries = match std::fs::read_dir(path) {
                Err(e) if gone(&e) => return Ok(()),
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type().is_ok_and(|t| t.is_socket())
                    && let Err(e) = std::fs::remove_file(entry.path())
                    && !gone(&e)
                {
                    return Err(e);
                }
            }
            match std::fs::remove_dir(path) {
                Err(e) if gone(&e) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty && tries > 0 => tries -= 1,
                other => return other,
            }
        }
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        // What cannot be removed is found by the next clean-up.
        let _ = SocketDir::remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_folder_goes_with_its_owner_or_after_him() {
        let base = tempfile::tempdir().unwrap();
        let below = base.path().join("agentbin");
        let ours = SocketDir::create(&below).unwrap();
        drop(UnixListener::bind(ours.path().join("x")).unwrap());
        let me = Owner::this().unwrap();
        assert_eq!(Owner::parse(&me.name()), Some(me));
        let dead = below.join(Owner { start_ticks: me.start_ticks + 1, ..me }.name());
        let elsewhere = below.join(Owner { start_ticks: me.start_ticks + 1, pid_namespace: 1, ..me }.name());
        for dir in [&dead, &elsewhere, &below.join("strange"), &below.join("1-2-x")] {
            std::fs::create_dir(dir).unwrap();
        }
        drop(UnixListener::bind(dead.join("x")).unwrap());
        assert_eq!(SocketDir::abandoned(&below).unwrap(), [dead.as_path()]);
        let mut live = SocketDir::live(&below).unwrap();
        live.sort();
        let mut expected = [ours.path().to_owned(), elsewhere.clone()];
        expected.sort();
        assert_eq!(live, expected);
        SocketDir::remove(&dead).unwrap();
        SocketDir::remove(&dead).unwrap();
        let path = ours.path().to_owned();
        drop(ours);
        assert!(!path.exists() && !dead.exists() && elsewhere.exists() && below.join("strange").exists());
        assert_eq!(SocketDir::abandoned(&below.join("none")).unwrap().len(), 0);
        std::fs::write(elsewhere.join("file"), "").unwrap();
        assert!(SocketDir::remove(&elsewhere).is_err(), "what is not a socket is not ours");
    }
}
