//! A configuration of a plugin that was refused: no task is started with another one in its place.

use std::sync::Mutex;

use super::DriverError;
use crate::sys::lock::lock;
use crate::sys::mutant;

/// Why the last configuration was refused, if it was. What stood before it, or a driver's own defaults, may let through what the
/// operator wanted to forbid.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<Option<String>>);

impl Refused {
    /// Passes on what became of a configuration, and keeps it in mind.
    pub(super) fn note<T>(&self, read: Result<T, DriverError>) -> Result<T, DriverError> {
        *lock(&self.0) = read.as_ref().err().map(ToString::to_string);
        read
    }

    /// Why no task can be started.
    pub(super) fn why(&self) -> Option<String> {
        let why = lock(&self.0).clone().filter(|_| !mutant::on("d97"))?;
        Some(format!("the configuration of the plugin was refused: {why}"))
    }

    /// # Errors
    /// [`DriverError::Config`] as long as no configuration has been taken since.
    pub(super) fn check(&self) -> Result<(), DriverError> {
        self.why().map_or(Ok(()), |why| Err(DriverError::Config(why)))
    }
}
