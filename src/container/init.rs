//! Pid 1 of a task with `init = true`: passes signals on to the command, reaps orphans, and ends with the command's status. It has
//! no descriptor, no environment and hardly any memory, and the user and the restrictions of the command.

use crate::sys::bare::{self, Releasable};
use crate::sys::{prctl, process};

/// Waits for the end of the command, a child of this process, which blocks all signals.
pub(super) fn run(command: i32) -> ! {
    prctl::set_name("init");
    process::hide_arguments("init");
    // ENOSYS, EPERM by the task's own filter: the descriptors stay open, and are none that the command does not have.
    let _ = process::close_all();
    let wait: fn(i32, &Releasable) -> ! = wait;
    wait(command, &Releasable::all_but(wait as usize))
}

/// Calls nothing that is not inlined, and reads nothing but its own frame, so that one or two pages of the program stay mapped.
#[inline(never)]
fn wait(command: i32, releasable: &Releasable) -> ! {
    releasable.release();
    let mut waits = false;
    loop {
        let (pid, status) = bare::reap(waits);
        if pid == command as isize {
            // As a shell has it: 128 and the number of the signal that ended it.
            let signal = status & 0x7f;
            bare::exit(if signal == 0 { status >> 8 & 0xff } else { 128 + signal });
        }
        if pid > 0 {
            continue;
        }
        if waits && pid < 0 {
            // By the same filter: nothing is left to wait with.
            bare::exit(1);
        }
        let signal = bare::next_signal();
        if signal == libc::SIGCHLD as isize {
            continue;
        }
        if signal > 0 {
            bare::signal_child(command, signal);
        } else if signal != -(libc::EINTR as isize) {
            // By the task's own filter. Orphans and the command's end can still be waited for.
            waits = true;
        }
    }
}
