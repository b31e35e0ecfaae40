//! Ends what a task without a cgroup has started: everything that descends from this process, which inherits orphans.
//!
//! A process that forks and ends at once is another one whenever somebody looks. Two things hold it: a child of ours that
//! has ended keeps the number of its group until we reap it, and the kernel kills a group as one, forks included; and as
//! long as anything of the task lives, a child of ours does.

use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::unistd::{Pid, getpgid, getsid};

use crate::spec::Signal;
use crate::sys;

/// Blows that are struck before the event loop has its turn, in which ended children are reaped.
const BLOWS: usize = 50;
/// What that turn may take; nothing tells when the kernel is done with a killed process that is not watched.
const TURN: Duration = Duration::from_millis(1);
/// With no descriptor to read `/proc` with: others will be closed.
const FAMINE: Duration = Duration::from_millis(20);

/// Kills until nothing lives that descends from this process.
///
/// # Errors
/// TIMEDOUT at the deadline; what `/proc` said last when it could not be read until then.
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

/// True when something may be left.
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
        // Whoever lives now has come from one that has ended since the first look, and would be new in the second.
        left = lives || sys::processes::own_children()? != children;
        if !left {
            break;
        }
    }
    Ok(left)
}

fn kill(process: &sys::processes::Stat) {
    let Ok(pidfd) = sys::process::open_pidfd(process.pid) else { return };
    // The number may have passed on between the listing and the opening; whom it names now is looked up.
    let same = |now: sys::processes::Stat| now.start_ticks == process.start_ticks;
    if sys::processes::stat(process.pid).is_ok_and(|now| now.is_some_and(same)) {
        let _ended = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
    }
}

/// Kills the group of a child that has ended and was not reaped, unless others than the task may be in it.
fn kill_group_of(child: i32) {
    let child = Pid::from_raw(child);
    let (Ok(group), Ok(session)) = (getpgid(Some(child)), getsid(Some(child))) else { return };
    let (Ok(own_group), Ok(own_session)) = (getpgid(None), getsid(None)) else { return };
    // Whoever is in a session came there by descent from its leader: from one of ours, or from this process.
    let of_the_task = session != own_session || session == Pid::this();
    if group != own_group && group.as_raw() > 1 && of_the_task {
        let _nobody_is_left = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
    }
}
