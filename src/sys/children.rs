//! Programs that this process starts and waits for itself, told apart from the orphans that it inherits.

use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::Mutex;

use super::lock::lock;

/// Process ids of those that run, or have ended and were not reaped yet.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Keeps a program on the list. To be dropped when the program was waited for, or is nobody's concern any more.
#[derive(Debug)]
pub struct Listed(u32);

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&RUNNING).remove(&self.0);
    }
}

/// A program that this process has started. To be waited for before it is dropped: until then it is no orphan.
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

/// Starts a program in some other way: `spawn` does it, and `id` is its process id, which is there as long as nobody has waited
/// for it. What is returned besides is to be kept as long as the program is waited for.
///
/// # Errors
/// What `spawn` says.
pub fn list<C>(
    spawn: impl FnOnce() -> io::Result<C>,
    id: impl FnOnce(&C) -> Option<u32>,
) -> io::Result<(C, Option<Listed>)> {
    // Nobody can ask about a child before it is listed.
    let mut running = lock(&RUNNING);
    let child = spawn()?;
    let listed = id(&child).map(|pid| {
        running.insert(pid);
        Listed(pid)
    });
    Ok((child, listed))
}

/// Whether a child of this process is such a program. To be asked after the child was seen.
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
        // Other tests list programs of theirs meanwhile, but nobody the first process, or this one.
        assert!(is_own(pid) && !is_own(1) && !is_own(std::process::id().cast_signed()) && !is_own(-1));
        own.0.wait().unwrap();
        assert!(is_own(pid));
        drop(own);
        assert!(!is_own(pid));
    }
}
