//! Translates a launch into a plain process: the host's files, the task's directory as working directory.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::ExecutorError;
use crate::container::{Config, Guard, Ids, Lookup, Refusal, Seen, Trusted, executable_mode, host_user, leads_nowhere};
use crate::spec::{LaunchSpec, Neighbours, OwnNamespaces};
use crate::sys::mutant;
use crate::sys::path::Root;

/// The shim's configuration for a task that shares the host's files.
///
/// # Errors
/// [`ExecutorError::CommandNotFound`], [`ExecutorError::Invalid`] for an unknown user or bad working directory.
pub(super) fn config(spec: &LaunchSpec) -> Result<Config, ExecutorError> {
    let host_ids = host_user(&spec.user);
    if !spec.user.is_empty() && host_ids.is_none() {
        let user = &spec.user;
        return Err(ExecutorError::Invalid(format!("failed to identify user {user}: unknown user {user}")));
    }
    let uid = host_ids.as_ref().map_or_else(|| rustix::process::geteuid().as_raw(), |ids| ids.uid);
    let writers = Writers::of(&spec.task_dir, host_ids.as_ref(), neighbours(spec));
    let program = find_program(&spec.command, &spec.task_dir, Some(uid), writers.as_ref())?;
    Ok(config_of(spec, host_ids, &program))
}

/// Which other users may write to a program; `None` where that does not matter.
pub(super) fn neighbours(spec: &LaunchSpec) -> Option<Neighbours> {
    (!spec.allow_writable_programs).then_some(spec.neighbours)
}

/// Who may write to a program, and who can reach it.
pub(super) struct Writers {
    guard: Guard,
    trusted: Trusted,
    /// The task's user.
    uid: u32,
}

impl Writers {
    /// For a task of this user; `None` where that does not matter.
    pub(super) fn of(task_dir: &Path, ids: Option<&Ids>, neighbours: Option<Neighbours>) -> Option<Writers> {
        let trusted = Trusted::of(ids, None);
        let uid = ids.map_or_else(|| rustix::process::geteuid().as_raw(), |ids| ids.uid);
        Some(Writers { guard: Guard::look(task_dir, &trusted, neighbours?), trusted, uid })
    }

    fn check(&self, path: &Path, file: &OwnedFd) -> Result<Seen, Refusal> {
        Lookup::on_host(&self.guard, self.trusted.clone()).check(path, file)
    }
}

/// The shim's configuration for this program.
pub(super) fn config_of(spec: &LaunchSpec, host_ids: Option<Ids>, program: &Path) -> Config {
    let work_dir = if spec.work_dir.is_empty() { spec.task_dir.clone() } else { spec.work_dir.clone().into() };
    Config {
        command: program.to_string_lossy().into_owned(),
        args: spec.args.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        host_ids,
        init: false,
        host_users: spec.host_users,
        neighbours: neighbours(spec),
        guard: None,
        work_dir,
        root: None,
        // No restriction was requested: the task has the capabilities that its user has.
        capabilities: if spec.user.is_empty() || spec.user == "root" { own_capabilities() } else { Vec::new() },
        no_new_privs: spec.no_new_privs,
        seccomp: spec.seccomp.clone(),
        limits: spec.limits.clone(),
        own: OwnNamespaces::default(),
        user_namespace: false,
        id_range: None,
        unveil: Vec::new(),
        oom_score_adj: spec.oom_score_adj,
        network_namespace: network_namespace(spec),
        rootless: None,
        outlives: spec.outlive.is_some(),
        session: None,
    }
}

fn own_capabilities() -> Vec<String> {
    let permitted = caps::read(None, caps::CapSet::Permitted).unwrap_or_default();
    permitted.iter().map(ToString::to_string).collect()
}

pub(super) fn network_namespace(spec: &LaunchSpec) -> Option<PathBuf> {
    (!spec.network_namespace.as_os_str().is_empty()).then(|| spec.network_namespace.clone())
}

/// Finds an absolute path that exists; then searches in Nomad's order: the task's `local` directory, its directory, the executor's
/// PATH. A file in the task's directory that is reached without a link is made executable for everybody; a file elsewhere only for
/// its owner, and only where the task's user `uid` could have done that too (`None` never): naming a file of the host must not give
/// anybody access to it. Refused if it is below the allocation's directory and another user could write to it.
pub(super) fn find_program(
    command: &str,
    task_dir: &Path,
    uid: Option<u32>,
    writers: Option<&Writers>,
) -> Result<PathBuf, ExecutorError> {
    let not_found = || ExecutorError::CommandNotFound(format!("binary {command:?} could not be found"));
    if command.is_empty() {
        return Err(not_found());
    }
    let host = match Path::new(command) {
        path if path.is_absolute() => rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok(),
        _ => None,
    };
    let early = host.as_ref().filter(|file| is_plain(file) && !mutant::on("d02"));
    if let Some(file) = early {
        return use_host_file(command, file, uid, writers);
    }
    if let Some(found) = find_in_task_dir(command, task_dir, writers)? {
        return Ok(found);
    }
    if let Some(file) = &host {
        return use_host_file(command, file, uid, writers);
    }
    if Path::new(command).is_absolute() {
        return Err(not_found());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let candidates = || std::env::split_paths(&path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(command));
    candidates().find(|candidate| is_executable_file(candidate)).ok_or_else(|| {
        // As in shells, a file that exists but cannot be executed is a different error from a missing one.
        match candidates().find(|candidate| candidate.is_file()) {
            Some(file) => ExecutorError::NotExecutable(format!("{} is not executable", file.display())),
            None => not_found(),
        }
    })
}

fn refused(path: &Path, refusal: &Refusal) -> ExecutorError {
    ExecutorError::NotExecutable(format!("{}: {refusal}", path.display()))
}

/// Uses the file that an absolute command names.
fn use_host_file(
    command: &str,
    file: &OwnedFd,
    uid: Option<u32>,
    writers: Option<&Writers>,
) -> Result<PathBuf, ExecutorError> {
    let path = PathBuf::from(command);
    let seen = writers.map(|writers| writers.check(&path, file)).transpose().map_err(|e| refused(&path, &e))?;
    // A link that a task may have planted must not make a file executable.
    let linked = seen.is_some_and(|seen| seen.linked);
    let changes = uid.filter(|_| !linked);
    changes.map_or(Ok(()), |uid| make_executable_for(file, uid)).map_err(|e| not_executable(&path, &e))?;
    Ok(path)
}

fn find_in_task_dir(
    command: &str,
    task_dir: &Path,
    writers: Option<&Writers>,
) -> Result<Option<PathBuf>, ExecutorError> {
    let failed = |path: &Path, error: &io::Error| {
        ExecutorError::System(format!("look for the command at {}: {error}", path.display()))
    };
    let root = match Root::open(task_dir) {
        Ok(root) => root,
        Err(error) if leads_nowhere(&error) => return Ok(None),
        Err(error) => return Err(failed(task_dir, &error)),
    };
    let bare = command.trim_start_matches('/');
    for relative in [Path::new("local").join(bare), PathBuf::from(bare)] {
        // Links are resolved inside the directory, never to a file of the host.
        let path = task_dir.join(&relative);
        let file = match root.open_in_root(&relative, OFlags::PATH, Mode::empty()) {
            Ok(file) => file,
            Err(error) if leads_nowhere(&error) => continue,
            // Does not fall back to the host's file.
            Err(error) => return Err(failed(&path, &error)),
        };
        if !is_plain(&file) {
            continue;
        }
        match writers.map(|writers| writers.check(&path, &file)) {
            // An absolute link, which the kernel would resolve to a file of the host.
            Some(Err(Refusal::Elsewhere)) => continue,
            Some(Err(refusal)) => return Err(refused(&path, &refusal)),
            Some(Ok(_)) | None => {}
        }
        let linked = !mutant::on("d05") && !is_itself(&root, &relative, &file);
        if !linked {
            let wanted = |file: &OwnedFd| match writers.filter(|_| !mutant::on("d82")) {
                Some(writers) => Ok(executable_mode(&rustix::fs::fstat(file)?, writers.uid) & 0o555),
                None => Ok(0o555),
            };
            wanted(&file)
                .and_then(|mode| add_mode(&file, mode))
                .map_err(|e: io::Error| not_executable(&relative, &e))?;
        }
        return Ok(Some(path));
    }
    Ok(None)
}

/// Whether the path leads to the file without a link, and without leaving the task's own file system.
fn is_itself(root: &Root, relative: &Path, file: &OwnedFd) -> bool {
    let identity = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    let plain = root.open_same_mount(relative, OFlags::PATH, Mode::empty());
    plain.is_ok_and(|plain| identity(&plain).is_ok_and(|one| identity(file) == Ok(one)))
}

fn is_plain(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile)
}

fn is_executable_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn not_executable(path: &Path, error: &io::Error) -> ExecutorError {
    ExecutorError::NotExecutable(format!("make {} executable: {error}", path.display()))
}

/// The owner of a program may make it executable, and so may root; this does it for them. A file that does not begin like a program
/// is not changed.
fn make_executable_for(file: &OwnedFd, uid: u32) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    if is_plain(file) && stat.st_mode & 0o111 == 0 && (uid == 0 || uid == stat.st_uid) {
        let mut begin = Vec::new();
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::File::open(name)?.take(4).read_to_end(&mut begin)?;
        if begin.starts_with(b"#!") || begin == b"\x7fELF" {
            return add_mode(file, 0o500);
        }
    }
    Ok(())
}

/// A file with a second hard link may also belong to another user: it is not changed, and the kernel decides whether it is
/// executable.
fn add_mode(file: &OwnedFd, wanted: u32) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let mode = stat.st_mode;
    if mode & wanted == wanted || (stat.st_nlink > 1 && !mutant::on("b16")) {
        return Ok(());
    }
    // fchmod fails on an O_PATH descriptor; its procfs name refers to the same file.
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    if mutant::on("b16-race") {
        let name = std::fs::read_link(&name)?;
        mutant::linger();
        return std::fs::set_permissions(name, std::fs::Permissions::from_mode((mode | wanted) & 0o7777));
    }
    std::fs::set_permissions(name, std::fs::Permissions::from_mode((mode | wanted) & 0o7777))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: PathBuf, mode: u32) -> PathBuf {
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// B1, `TestUniversalExecutor_LookupPath` and `_MakeExecutable`.
    #[test]
    fn programs_are_found_in_nomads_order() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("local")).unwrap();
        let in_root = touch(dir.path().join("tool"), 0o610);
        assert_eq!(find_program("tool", dir.path(), None, None), Ok(in_root.clone()));
        assert_eq!(in_root.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        let in_local = touch(dir.path().join("local/tool"), 0o600);
        assert_eq!(find_program("tool", dir.path(), None, None), Ok(in_local));
        assert_eq!(find_program("/bin/sh", dir.path(), None, None), Ok("/bin/sh".into()));
        assert!(find_program("sh", dir.path(), None, None).unwrap().ends_with("sh"));
        for missing in ["no-such-command-here", "/no/such/file", "", "./tool-x"] {
            assert!(
                matches!(find_program(missing, dir.path(), None, None), Err(ExecutorError::CommandNotFound(_))),
                "{missing}"
            );
        }
    }

    /// `TestExecutor_Start_NonExecutableBinaries`, outside the task's directory: does what the task's user could have done, and
    /// gives no other user access.
    #[test]
    fn host_files_become_executable_for_their_owner_only() {
        let (dir, task) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let script = touch(dir.path().join("script"), 0o600);
        let owner = std::os::unix::fs::MetadataExt::uid(&script.metadata().unwrap());
        let command = script.to_str().unwrap();
        let mode = || script.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(find_program(command, task.path(), Some(owner + 1), None), Ok(script.clone()));
        assert_eq!(mode(), 0o600, "not the task's to change");
        assert_eq!(find_program(command, task.path(), Some(owner), None), Ok(script.clone()));
        assert_eq!(mode(), 0o700);
        let data = dir.path().join("data");
        std::fs::write(&data, "root:x:0:0").unwrap();
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_program(data.to_str().unwrap(), task.path(), Some(owner), None), Ok(data.clone()));
        assert_eq!(data.metadata().unwrap().permissions().mode() & 0o7777, 0o644, "no program");
    }

    /// D29: a planted link does not make a file of the host executable.
    #[test]
    fn links_out_of_the_task_folder_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let host = touch(dir.path().join("secret"), 0o600);
        let task = dir.path().join("task");
        std::fs::create_dir(&task).unwrap();
        std::os::unix::fs::symlink("../secret", task.join("evil")).unwrap();
        std::os::unix::fs::symlink(&host, task.join("evil2")).unwrap();
        assert!(find_program("evil", &task, None, None).is_err());
        assert!(find_program("evil2", &task, None, None).is_err());
        assert_eq!(host.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }
}
