//! Users that stand in no file: `getent(1)` of the host asks whatever else knows them (LDAP, sssd, systemd).

use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sys::children;

/// Where distributions have it. Not searched for in PATH.
const PROGRAMS: [&str; 2] = ["/usr/bin/getent", "/bin/getent"];
/// How long an answer may take, from the start of the program to its end.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read: a user in very many groups.
const LONGEST: u64 = 1 << 20;

/// What the host's databases say of the user `name`, as text of a passwd and of a group file in which only that user and
/// the user's groups stand (groups without names).
///
/// # Errors
/// `NotFound` where there is no `getent` or nobody knows the user; `TimedOut`; what starting the program says.
pub fn ask_host(name: &str) -> io::Result<(String, String)> {
    // A number would be answered, and is not a name.
    let is_name = !name.is_empty() && !name.contains([':', ',', '\n', '\0']) && name.parse::<u32>().is_err();
    if !is_name {
        return Err(io::ErrorKind::NotFound.into());
    }
    let program = PROGRAMS.into_iter().map(Path::new).find(|program| program.exists());
    let program = program.ok_or(io::ErrorKind::NotFound)?;
    let passwd = run(program, "passwd", name)?;
    // A database that knows no further groups says so by failing.
    let groups = run(program, "initgroups", name).unwrap_or_default();
    Ok((passwd, group_lines(&groups, name)))
}

/// `name gid gid...` as lines of a group file.
fn group_lines(answer: &str, name: &str) -> String {
    let ids = answer.split_ascii_whitespace().skip(1).filter(|id| id.parse::<u32>().is_ok());
    ids.flat_map(|id| [":x:", id, ":", name, "\n"]).collect()
}

fn run(program: &Path, database: &str, name: &str) -> io::Result<String> {
    let deadline = Instant::now() + DEADLINE;
    let mut command = Command::new(program);
    command.args([database, "--", name]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut own = children::spawn(&mut command)?;
    let child = &mut own.0;
    let read = child.stdout.take().ok_or_else(|| io::ErrorKind::BrokenPipe.into()).and_then(|out| read(out, deadline));
    if read.is_err() {
        // It may have ended meanwhile.
        let _ = child.kill();
    }
    // Its output has ended, so that it is ending, too, or it was killed.
    let status = child.wait()?;
    let text = read?;
    if status.success() { Ok(text) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// All that is written until the other end is closed.
fn read(mut out: std::process::ChildStdout, deadline: Instant) -> io::Result<String> {
    let (mut text, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            other => other?,
        };
        let length = out.read(&mut piece)?;
        if length == 0 {
            return String::from_utf8(text).map_err(|_| io::ErrorKind::InvalidData.into());
        }
        text.extend_from_slice(&piece[..length]);
        if text.len() as u64 > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_the_host_is_known_and_a_number_is_none() {
        let (passwd, groups) = ask_host("root").unwrap();
        assert!(passwd.starts_with("root:") && passwd.contains(":0:0:"), "{passwd}");
        assert!(groups.lines().all(|line| line.starts_with(":x:") && line.ends_with(":root")), "{groups}");
        for name in ["", "0", "no-such-user-of-any-database", "root:x", "-h", "--help", "root\n"] {
            assert!(ask_host(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn groups_are_read_as_getent_prints_them() {
        assert_eq!(group_lines("bob                   100 27 x -1\n", "bob"), ":x:100:bob\n:x:27:bob\n");
        assert_eq!(group_lines("", "bob"), "");
    }
}
