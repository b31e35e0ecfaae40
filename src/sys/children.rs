//! Programs that this process starts and waits for itself, as opposed to the orphans that it inherits.

use std::io;
use std::process::{Child, Command};
use std::sync::Mutex;

use super::lock::lock;
use crate::spec::collections::BTreeSet;

/// Process ids of those that run, or have ended and were not reaped yet.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Keeps a program on the list. Drop it when the program was waited for, or no longer has to be distinguished from an orphan.
#[derive(Debug)]
pub struct Listed(u32);

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&RUNNING).remove(&self.0);
    }
}

/// A program that this process has started. Wait for it before dropping this value: only until then it counts as our own.
#[derive(Debug)]
pub struct Own(pub Child, #[expect(dead_code, reason = "it is dropped")] Listed);

/// Starts a program.
///
/// # Errors
/// What starting a process says.
pub fn spawn(command: &mut Command) -> io::Result<Own> {
    let (child, listed) = list(|| command.spawn(), |child| Some(child.id()))?;
    let listed = listed.ok_or(io::ErrorKind::NotFound)?;
    Ok(Own(child, listed))
}

/// Starts a program in some other way: `spawn` starts it, and `id` returns its process id, as long as it was not waited for. Keep
/// the second return value until the program was waited for.
///
/// # Errors
/// What `spawn` says.
pub fn list<C>(
    spawn: impl FnOnce() -> io::Result<C>,
    id: impl FnOnce(&C) -> Option<u32>,
) -> io::Result<(C, Option<Listed>)> {
    // Holds the lock, so that no child can be looked up before it is listed.
    let mut running = lock(&RUNNING);
    let child = spawn()?;
    let listed = id(&child).map(|pid| {
        running.insert(pid);
        Listed(pid)
    });
    Ok((child, listed))
}

/// Whether a child of this process is such a program. Call it after the child was seen.
#[must_use]
pub fn is_own(pid: i32) -> bool {
    u32::try_from(pid).is_ok_and(|pid| lock(&RUNNING).contains(&pid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_own_until_it_is_dropped() {
        let mut own = spawn(&mut Command::new("true")).unwrap();
        let pid = own.0.id().cast_signed();
        // Other tests list their programs meanwhile, but never pid 1 or this process.
        assert!(is_own(pid) && !is_own(1) && !is_own(std::process::id().cast_signed()) && !is_own(-1));
        own.0.wait().unwrap();
        assert!(is_own(pid));
        drop(own);
        assert!(!is_own(pid));
    }
}
