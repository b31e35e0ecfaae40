//! From a launch to a plain process: the host's files, the task's folder as working directory.

use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};

use super::ExecutorError;
use crate::container::{Config, Ids, lookup_user};
use crate::spec::{LaunchSpec, OwnNamespaces};
use crate::sys::mutant;
use crate::sys::path::Root;

/// What the shim is told for a task that shares the host's files.
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
    let program = find_program(&spec.command, &spec.task_dir, Some(uid))?;
    Ok(config_of(spec, host_ids, &program))
}

/// What the shim of this program was told.
pub(super) fn config_of(spec: &LaunchSpec, host_ids: Option<Ids>, program: &Path) -> Config {
    let work_dir = if spec.work_dir.is_empty() { spec.task_dir.clone() } else { spec.work_dir.clone().into() };
    Config {
        command: program.to_string_lossy().into_owned(),
        args: spec.args.clone(),
        env: spec.env.clone(),
        user: spec.user.clone(),
        host_ids,
        work_dir,
        root: None,
        // Nobody asked for fewer: whoever the task runs as has what that user has.
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

/// The user as the host knows it; an empty name is nobody in particular.
pub(super) fn host_user(name: &str) -> Option<Ids> {
    if name.is_empty() {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
    let group = std::fs::read_to_string("/etc/group").unwrap_or_default();
    lookup_user(&passwd, &group, name)
}

/// Nomad's order: the task's `local` folder, its folder, an absolute path that exists, the executor's PATH. Made
/// executable for everybody where it lies in the task's folder; elsewhere only for its owner, and only where the user
/// `uid` of the task could have done that too (`None` for nobody): naming a file of the host opens it to nobody.
pub(super) fn find_program(command: &str, task_dir: &Path, uid: Option<u32>) -> Result<PathBuf, ExecutorError> {
    let not_found = || ExecutorError::CommandNotFound(format!("binary {command:?} could not be found"));
    if command.is_empty() {
        return Err(not_found());
    }
    if let Ok(root) = Root::open(task_dir) {
        let bare = command.trim_start_matches('/');
        for relative in [Path::new("local").join(bare), PathBuf::from(bare)] {
            // Links lead to places inside the folder, never to a file of the host that would be made executable.
            if let Ok(file) = root.open_in_root(&relative, OFlags::PATH, Mode::empty()) {
                if !is_plain(&file) {
                    continue;
                }
                add_mode(&file, 0o555).map_err(|e| not_executable(&relative, &e))?;
                return Ok(task_dir.join(relative));
            }
        }
    }
    if Path::new(command).is_absolute() {
        let path = PathBuf::from(command);
        let file = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(|_| not_found())?;
        uid.map_or(Ok(()), |uid| make_executable_for(&file, uid)).map_err(|e| not_executable(&path, &e))?;
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(command))
        .find(|candidate| is_executable_file(candidate))
        .ok_or_else(not_found)
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

/// Whoever owns a program may make it executable, and so may root; this does it for them. What does not begin like a
/// program is left as it is.
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

/// A file with a second name may be somebody else's, too: it stays as it is, and whether it is executed is the kernel's say.
fn add_mode(file: &OwnedFd, wanted: u32) -> io::Result<()> {
    let stat = rustix::fs::fstat(file)?;
    let mode = stat.st_mode;
    if mode & wanted == wanted || (stat.st_nlink > 1 && !mutant::on("b16")) {
        return Ok(());
    }
    // An O_PATH descriptor takes no fchmod; its procfs name means the very same file.
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
        assert_eq!(find_program("tool", dir.path(), None), Ok(in_root.clone()));
        assert_eq!(in_root.metadata().unwrap().permissions().mode() & 0o7777, 0o755);
        let in_local = touch(dir.path().join("local/tool"), 0o600);
        assert_eq!(find_program("tool", dir.path(), None), Ok(in_local));
        assert_eq!(find_program("/bin/sh", dir.path(), None), Ok("/bin/sh".into()));
        assert!(find_program("sh", dir.path(), None).unwrap().ends_with("sh"));
        for missing in ["no-such-command-here", "/no/such/file", "", "./tool-x"] {
            assert!(
                matches!(find_program(missing, dir.path(), None), Err(ExecutorError::CommandNotFound(_))),
                "{missing}"
            );
        }
    }

    /// `TestExecutor_Start_NonExecutableBinaries`, outside the task's folder: what the task's user could do is done, and
    /// nothing is opened to anybody else.
    #[test]
    fn host_files_become_executable_for_their_owner_only() {
        let (dir, task) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let script = touch(dir.path().join("script"), 0o600);
        let owner = std::os::unix::fs::MetadataExt::uid(&script.metadata().unwrap());
        let command = script.to_str().unwrap();
        let mode = || script.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(find_program(command, task.path(), Some(owner + 1)), Ok(script.clone()));
        assert_eq!(mode(), 0o600, "not the task's to change");
        assert_eq!(find_program(command, task.path(), Some(owner)), Ok(script.clone()));
        assert_eq!(mode(), 0o700);
        let data = dir.path().join("data");
        std::fs::write(&data, "root:x:0:0").unwrap();
        std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find_program(data.to_str().unwrap(), task.path(), Some(owner)), Ok(data.clone()));
        assert_eq!(data.metadata().unwrap().permissions().mode() & 0o7777, 0o644, "no program");
    }

    /// D29: a planted link makes no file of the host executable.
    #[test]
    fn links_out_of_the_task_folder_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let host = touch(dir.path().join("secret"), 0o600);
        let task = dir.path().join("task");
        std::fs::create_dir(&task).unwrap();
        std::os::unix::fs::symlink("../secret", task.join("evil")).unwrap();
        std::os::unix::fs::symlink(&host, task.join("evil2")).unwrap();
        assert!(find_program("evil", &task, None).is_err());
        assert!(find_program("evil2", &task, None).is_err());
        assert_eq!(host.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }
}
