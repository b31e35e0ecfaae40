//! Mutexes, locked whether or not a holder has panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the mutex even if it is poisoned: the panic of the thread or task that held it is reported elsewhere, and must not also
/// take down the code that cleans up after it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
