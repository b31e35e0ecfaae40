//! Runs a program with a deadline and limited output.

use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::lock::{Locked, cancelled};
use crate::spec::Signal;
use crate::sys::{children, process};

/// Most bytes that a program may write, in total.
const MOST: usize = 1 << 20;
/// The PATH for programs and for plugins, independent of the environment of this process.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How soon a program is killed after it was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The result of a program.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
}

impl Output {
    /// How it ended, and what it wrote to stderr.
    #[must_use]
    pub fn reason(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("it ended with status {code}"),
            (None, signal) => format!("it was killed by signal {}", signal.unwrap_or(0)),
        };
        if text.trim().is_empty() { how } else { format!("{how}: {}", text.trim()) }
    }
}

/// The path of a program.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| path.is_file())
}

/// Runs a program to its end. Kills it, with the processes that it started, at the deadline or when it is cancelled. It reads
/// `input`. The first of `words` is its `argv[0]`: one file may be several programs.
///
/// Its standard input is the locked file: if this process is killed, the program goes on, and the next process waits for the
/// lock until the program has ended.
pub(super) fn run(
    locked: &mut Locked,
    program: &Path,
    words: &[&str],
    env: &[(&str, &str)],
    input: &[u8],
    patience: Duration,
) -> io::Result<Output> {
    let deadline = Instant::now() + patience;
    let mut file = locked.file();
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(input)?;
    file.rewind()?;
    let mut command = Command::new(program);
    command.arg0(words.first().copied().unwrap_or_default()).args(words.iter().skip(1));
    command.env_clear().env("PATH", PATH).envs(env.iter().copied()).process_group(0);
    command.stdin(file.try_clone()?).stdout(Stdio::piped()).stderr(Stdio::piped());
    if locked.is_cancelled() {
        return Err(cancelled());
    }
    let mut own = children::spawn(&mut command)?;
    let pid = own.0.id().cast_signed();
    let outcome = read(&mut own.0, pid, deadline, locked);
    if outcome.is_err() {
        // It leads a process group and is not reaped yet, so its pid cannot be reused.
        let _gone = process::signal_group(pid, Signal::KILL);
    }
    let status = own.0.wait()?;
    // The input may be secret, and is not read again.
    file.set_len(0)?;
    let (stdout, stderr) = outcome?;
    Ok(Output { status, stdout, stderr })
}

/// Reads its output until the program has ended.
fn read(
    child: &mut std::process::Child,
    pid: i32,
    deadline: Instant,
    locked: &Locked,
) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let pidfd = process::open_pidfd(pid)?;
    let mut pipes: [(Option<OwnedFd>, Vec<u8>); 2] =
        [(child.stdout.take().map(Into::into), Vec::new()), (child.stderr.take().map(Into::into), Vec::new())];
    loop {
        let has_ended = is_ready(&pidfd, Instant::now())?;
        let mut watched: Vec<PollFd<'_>> =
            pipes.iter().flat_map(|(fd, _)| fd).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if !has_ended {
            watched.push(PollFd::new(&pidfd, PollFlags::IN));
        }
        // When it has ended, all of its output is in the pipe; other processes that still have the pipe open are not waited for.
        let left = if has_ended { Duration::ZERO } else { deadline.saturating_duration_since(Instant::now()) };
        if !has_ended && locked.is_cancelled() {
            return Err(cancelled());
        }
        let ready = match poll(&mut watched, Some(&timespec(left.min(LOOK_EVERY)))) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if ready == 0 && has_ended {
            let [(_, stdout), (_, stderr)] = pipes;
            return Ok((stdout, stderr));
        }
        if ready == 0 && left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it was killed because it did not end in time"));
        }
        for (pipe, text) in &mut pipes {
            let Some(fd) = pipe else { continue };
            if !is_ready(&*fd, Instant::now())? {
                continue;
            }
            let mut piece = [0; 16 << 10];
            match std::fs::File::from(fd.try_clone()?).read(&mut piece)? {
                0 => *pipe = None,
                count => text.extend_from_slice(&piece[..count]),
            }
        }
        if pipes.iter().map(|(_, text)| text.len()).sum::<usize>() > MOST {
            return Err(io::Error::other(format!("it was killed because it wrote more than {MOST} bytes")));
        }
    }
}

/// Whether a descriptor has something to read, or is the pidfd of a process that has ended, before the deadline.
pub(super) fn is_ready(fd: impl AsFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = timespec(deadline.saturating_duration_since(Instant::now()));
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    let tv_sec = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec, tv_nsec: i64::from(duration.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use rustix::fs::FlockOperation;

    use super::*;
    use crate::net::lock::lock;

    fn shell(locked: &mut Locked, script: &str, patience: Duration) -> io::Result<Output> {
        run(locked, Path::new("/bin/sh"), &["sh", "-c", script], &[("WHO", "me")], b"given", patience)
    }

    #[test]
    fn a_program_gets_its_input_and_says_how_it_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut locked = lock(dir.path(), "x").unwrap();
        let long = Duration::from_mins(1);
        // Each gets the whole input, and only the given environment.
        for _ in 0..2 {
            let out = shell(&mut locked, "cat; echo $WHO; env | grep -c .", long).unwrap();
            assert!(out.status.success() && out.stdout.starts_with(b"givenme\n"), "{out:?}");
        }
        let out = shell(&mut locked, "echo no >&2; exit 3", long).unwrap();
        assert_eq!(out.reason(), "it ended with status 3: no");
        assert_eq!(shell(&mut locked, "kill -9 $$", long).unwrap().reason(), "it was killed by signal 9");
        // Another process that has the pipe open is not waited for.
        let out = shell(&mut locked, "sleep 1000 0</dev/null & echo $!", long).unwrap();
        let left: i32 = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
        process::send_signal(process::open_pidfd(left).unwrap().as_fd(), Signal::KILL).unwrap();
        assert!(run(&mut locked, Path::new("/nonexistent"), &["x"], &[], b"", long).is_err());
        let out = run(&mut locked, Path::new("/bin/sh"), &["called", "-c", "echo $0"], &[], b"", long).unwrap();
        assert_eq!(out.stdout, b"called\n");
        assert_eq!(locked.file().metadata().unwrap().len(), 0);
    }

    #[test]
    fn neither_time_nor_output_is_without_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut locked = lock(dir.path(), "x").unwrap();
        let began = Instant::now();
        let error = shell(&mut locked, "sleep 1000", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let error = shell(&mut locked, "yes", Duration::from_mins(10)).unwrap_err();
        assert!(error.to_string().contains("wrote more than"), "{error}");
        assert!(began.elapsed() < Duration::from_mins(5));
        // Processes that it had started are gone, too, and with them the lock.
        drop(locked);
        drop(lock(dir.path(), "x").unwrap());
    }

    #[test]
    fn the_lock_is_held_until_the_last_program_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let locked = lock(dir.path(), "x").unwrap();
        // It ends when its other pipe is closed.
        let mut program = Command::new("sh");
        program.args(["-c", "cat <&2; :"]).stdin(locked.file().try_clone().unwrap());
        let (read, write) = io::pipe().unwrap();
        let mut goes_on = program.stderr(read).spawn().unwrap();
        drop((program, locked));
        let (began, waits) = std::sync::mpsc::channel();
        let path = dir.path().to_owned();
        let other = std::thread::spawn(move || {
            began.send(()).unwrap();
            drop(lock(&path, "x").unwrap());
        });
        waits.recv().unwrap();
        let file = File::open(dir.path().join("lock/x")).unwrap();
        let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(held, Err(rustix::io::Errno::WOULDBLOCK), "the program has it");
        assert!(!other.is_finished());
        drop(write);
        other.join().unwrap();
        goes_on.wait().unwrap();
    }
}
