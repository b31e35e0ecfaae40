//! Random numbers without a descriptor: they are available even when the process has no descriptor left.

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits. `getrandom(2)`, which does not fail once the machine has started.
#[must_use]
pub fn bits() -> u128 {
    let mut bytes = [0; 16];
    match rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())) {
        Ok(16) => u128::from_ne_bytes(bytes),
        // A filter denies the call; this fallback reads a file.
        _ => uuid::Uuid::new_v4().as_u128(),
    }
}

/// A random UUID, version 4.
#[must_use]
pub fn uuid() -> uuid::Uuid {
    uuid::Builder::from_random_bytes(bits().to_ne_bytes()).into_uuid()
}
