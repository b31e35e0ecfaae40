//! Fetches an artifact's source into a task's directory: a local path is copied as it is, everything else is downloaded.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::artifact::{Copy, escapes};
use super::dir::Owner;
use super::dir::{AllocDir, remove_tree};
use crate::artifact::{FetchError, Limits, Order, Staging, Surroundings, Target};
use crate::spec::collections::BTreeMap;
use crate::spec::{ArtifactMode, Getter, Source};

/// Time between two events about a download's progress.
const EACH: Duration = Duration::from_secs(5);

/// What is fetched from where to where; all values are interpolated.
pub(super) struct Download {
    pub(super) source: String,
    pub(super) options: BTreeMap<String, String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) insecure: bool,
    /// See [`Artifact`](crate::spec::Artifact).
    pub(super) base_dir: PathBuf,
    pub(super) stays_in_base_dir: bool,
    pub(super) dir: AllocDir,
    pub(super) task: String,
    pub(super) destination: String,
    pub(super) mode: ArtifactMode,
    pub(super) owner: Option<Owner>,
}

/// Why fetching an artifact failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The action that failed.
    pub(super) action: String,
    pub(super) source: io::Error,
}

impl From<(String, io::Error)> for Failure {
    fn from((action, source): (String, io::Error)) -> Failure {
        Failure { action, source }
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Failure {
        Failure { action: error.message.clone(), source: io::Error::other(error) }
    }
}

impl Download {
    /// Runs on this thread; setting `cancel` stops it with `Interrupted`. `progress` is called from time to time with the progress.
    pub(super) fn run(self, cancel: &AtomicBool, progress: &mut dyn FnMut(String)) -> Result<(), Failure> {
        let wrong =
            |reason: String| Failure::from((reason.clone(), io::Error::new(io::ErrorKind::InvalidInput, reason)));
        let source = Source::parse(&self.source, &self.options).map_err(wrong)?;
        let mut file = None;
        if let Getter::File(path) = &source.getter {
            let copy = Copy {
                base_dir: self.base_dir.clone(),
                source: path.into(),
                stays_in_base_dir: self.stays_in_base_dir,
                dir: self.dir.clone(),
                task: self.task.clone(),
                destination: self.destination.clone(),
                mode: self.mode,
                owner: self.owner,
            };
            let as_it_is = source.archive.is_none() && source.checksum.is_none();
            file = if as_it_is { None } else { copy.open_file()? };
            if file.is_none() && source.checksum.is_some() {
                return Err(wrong("a checksum is for one file, and this is a directory; remove it".to_owned()));
            }
            if file.is_none() {
                return Ok(copy.run(cancel)?);
            }
        }
        let located = self.dir.locate(&self.task, &self.destination);
        let (top, below) = located.map_err(|error| Failure::from((escapes(&self.destination), error)))?;
        let staging = Staging::new(self.dir.path())?;
        let order = Order {
            source,
            mode: self.mode,
            headers: self.headers,
            insecure: self.insecure,
            limits: Limits::DEFAULT,
            file,
        };
        let mut last = Instant::now();
        let mut tell = |bytes: u64, total: Option<u64>| {
            if last.elapsed() >= EACH {
                last = Instant::now();
                progress(far(bytes, total));
            }
        };
        let target = Target { top, below, mode: self.mode, owner: self.owner.map(|Owner { uid, gid }| (uid, gid)) };
        let fetched = order.fetch(&staging, &Surroundings::of_this_process(), cancel, &mut tell);
        let placed = fetched.and_then(|fetched| fetched.map_or(Ok(false), |fetched| fetched.place(&target, cancel)));
        let unwanted = || Failure::from(("was not wanted any more".to_owned(), io::ErrorKind::Interrupted.into()));
        let result = placed.map_err(Failure::from).and_then(|placed| placed.then_some(()).ok_or_else(unwanted));
        // What cannot be removed here is removed with the allocation's directory, which reports the error.
        drop(remove_tree(staging.path()));
        result
    }
}

/// `12.5 MiB of 40.0 MiB`.
fn far(bytes: u64, total: Option<u64>) -> String {
    let size = |bytes: u64| {
        let tenths = bytes.saturating_mul(10) >> 20;
        format!("{}.{} MiB", tenths / 10, tenths % 10)
    };
    total.map_or_else(|| size(bytes), |total| format!("{} of {}", size(bytes), size(total)))
}

#[cfg(test)]
mod tests {
    use super::far;

    #[test]
    fn how_far_it_is_has_one_decimal() {
        assert_eq!(far(1 << 19, Some(3 << 20)), "0.5 MiB of 3.0 MiB");
        assert_eq!(far(0, None), "0.0 MiB");
    }
}
