//! Mutexes, locked whether or not a holder has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks. That a thread or task panicked while it held the lock is told by its end already, and must not take down who
/// cleans up after it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
