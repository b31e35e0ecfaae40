//! Kills everything that a task without a cgroup has started: all descendants of this process, which inherits orphans.
//!
//! A process that forks and exits at once has a new pid each time it is listed. Two facts make it killable: a child of ours that
//! has ended keeps its process group id in use until we reap it, and the kernel kills a group atomically, forks included; and as
//! long as any process of the task lives, one is a child of ours.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getpgid, getsid};

use crate::spec::Signal;
use crate::sys;

/// Rounds of killing before control returns to the event loop, which reaps ended children.
const BLOWS: usize = 50;
/// The pause for that; there is no event for the end of a killed process that is not watched.
const TURN: Duration = Duration::from_millis(1);
/// The pause when no descriptor is free to read `/proc` with: others will be closed.
const FAMINE: Duration = Duration::from_millis(20);

/// Kills until this process has no living descendants.
///
/// # Errors
/// TIMEDOUT at the deadline; the last error of `/proc` if it could not be read until then.
pub(super) async fn kill_descendants(deadline: Instant) -> io::Result<()> {
    loop {
        let struck = strike();
        if struck.as_ref().is_ok_and(|left| !*left) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return struck.and(Err(io::ErrorKind::TimedOut.into()));
        }
        tokio::time::sleep(if struck.is_ok() { TURN } else { FAMINE }).await;
    }
}

/// One series of rounds. Returns true when processes may be left.
fn strike() -> io::Result<bool> {
    let mut left = true;
    for _ in 0..BLOWS {
        let children = sys::processes::own_children()?;
        let mut lives = false;
        for pid in &children {
            match sys::processes::stat(*pid)? {
                Some(child) if child.ended => kill_group_of(*pid),
                Some(child) => {
                    lives = true;
                    kill(&child);
                }
                None => {}
            }
        }
        // A process that lives now descends from one that has ended since the first listing, and would be new in the second.
        left = lives || sys::processes::own_children()? != children;
        if !left {
            break;
        }
    }
    Ok(left)
}

fn kill(process: &sys::processes::Stat) {
    let Ok(pidfd) = sys::process::open_pidfd(process.pid) else { return };
    // The pid may have been reused between listing and opening, so the start time is compared.
    let same = |now: sys::processes::Stat| now.start_ticks == process.start_ticks;
    if sys::processes::stat(process.pid).is_ok_and(|now| now.is_some_and(same)) {
        let _ended = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
    }
}

/// Kills the process group of a child that has ended and was not reaped, unless it may contain processes of others.
fn kill_group_of(child: i32) {
    let child = Pid::from_raw(child);
    let (Ok(group), Ok(session)) = (getpgid(Some(child)), getsid(Some(child))) else { return };
    let (Ok(own_group), Ok(own_session)) = (getpgid(None), getsid(None)) else { return };
    // All members of a session descend from its leader: from a child of ours, or from this process.
    let of_the_task = session != own_session || session == Pid::this();
    if group != own_group && group.as_raw() > 1 && of_the_task {
        let _nobody_is_left = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
}
