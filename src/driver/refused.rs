//! Remembers that a plugin's configuration was refused: then no task is started with another configuration in its place.

use std::sync::Mutex;

use super::DriverError;
use crate::sys::lock::lock;
use crate::sys::mutant;

/// Why the last configuration was refused, if it was. The previous configuration, or a driver's defaults, may allow what the
/// operator wanted to forbid.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<Option<String>>);

impl Refused {
    /// Records the outcome of reading a configuration and passes it on.
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
    /// [`DriverError::Config`] until a configuration is accepted.
    pub(super) fn check(&self) -> Result<(), DriverError> {
        self.why().map_or(Ok(()), |why| Err(DriverError::Config(why)))
    }
}
