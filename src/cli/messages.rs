//! The file in which a supervisor keeps its messages once its caller has left.

use std::sync::OnceLock;
use std::time::SystemTime;

use crate::alloc::Messages;
use crate::alloc::control::timestamp;

/// Most bytes of a supervisor's messages that are kept.
const MOST_MESSAGES: u64 = 1 << 20;
/// The file for the messages of this process, once it is a supervisor that its caller has left.
pub(super) static MESSAGES: OnceLock<Messages> = OnceLock::new();

/// The prefix of a message: the time, if it goes to the file of messages; `None` if that is full.
pub(super) fn when() -> Option<String> {
    let Some(messages) = MESSAGES.get() else { return Some(String::new()) };
    let is_full = messages.size().is_ok_and(|size| size >= MOST_MESSAGES);
    (!is_full).then(|| timestamp(SystemTime::now()) + " ")
}

/// The run has ended: an empty file of messages is removed.
pub(super) fn tidy() {
    if let Some(Err(error)) = MESSAGES.get().map(Messages::tidy) {
        tracing::debug!(%error, "an empty file of messages is left");
    }
}
