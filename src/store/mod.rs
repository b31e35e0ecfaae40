//! Persistent records: tables of bytes by key in one embedded database, with snapshots for readers and one writer, and files
//! that are replaced atomically. Never knows what the bytes mean.
//!
//! A change is made on a [`Draft`], which reads the stored records overlaid with its own writes, and is committed as a whole or
//! dropped. Drafts that arrive while the disk is busy are committed together, with one sync. A change is acknowledged, and
//! visible to others, once it is on the disk.

mod again;
mod bulk;
mod database;
mod draft;
mod error;
mod file;
mod source;
mod writer;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};

use redb::backends::FileBackend;

pub use bulk::Bulk;
pub use database::{Schema, Upgrade};
pub use draft::Draft;
pub use error::StoreError;
pub(crate) use file::UNFINISHED;
pub use file::{DirLock, read_or_make, write_atomically};
pub use redb::StorageBackend;
pub use source::{Page, Snapshot, Source, TableName};
pub use writer::{Done, Verdict};

use database::Base;
use writer::Writer;

/// The database's file.
const FILE: &str = "state.redb";
/// The lock file.
const LOCK: &str = "state.lock";

/// An open database, which is closed when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Store {
    // Declared first, so that it is dropped before the database that it works on.
    writer: Arc<Writer>,
    base: Arc<Base>,
}

impl Store {
    /// Opens the database in this directory; both are created if they are missing, the directory with mode 0700.
    ///
    /// # Errors
    /// [`StoreError::Held`] when another process has it open, [`StoreError::Newer`] when a newer program wrote it, else the
    /// specific error.
    pub fn open(dir: &Path, schema: Schema) -> Result<Store, StoreError> {
        let dir = file::own_dir(dir)?;
        let lock = DirLock::take(&dir, LOCK)?;
        let path = dir.path().join(FILE);
        let dir = Arc::new(dir);
        let make = move || {
            let file = dir.lock_file(FILE.as_ref())?;
            // Syncs the directory entry of a new file.
            file::sync(&dir)?;
            FileBackend::new(file).map_err(io::Error::other)
        };
        Store::start(Base::open(make, &path, schema, Some(lock))?)
    }

    /// Opens a database on another backend than a file: `make` is called again after an I/O error.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on<B, F>(make: F, schema: Schema) -> Result<Store, StoreError>
    where
        B: StorageBackend,
        F: Fn() -> io::Result<B> + Send + Sync + 'static,
    {
        Store::start(Base::open(make, Path::new(FILE), schema, None)?)
    }

    fn start(base: Base) -> Result<Store, StoreError> {
        let base = Arc::new(base);
        let writer = Arc::new(Writer::start(&base)?);
        Ok(Store { writer, base })
    }

    /// A snapshot of the committed records.
    ///
    /// # Errors
    /// [`StoreError`]; after an I/O error until the writer has reopened the database, which this call requests.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.base.snapshot().inspect_err(|_| self.writer.nudge())
    }

    /// Runs `work` on the writer's thread to make a change. The callback in its verdict is called with the result of the
    /// commit.
    ///
    /// `soon` lets the change wait some milliseconds to be committed together with others.
    pub async fn submit(
        &self,
        soon: bool,
        work: impl FnOnce(Result<&Arc<Draft>, StoreError>) -> Verdict + Send + 'static,
    ) {
        self.writer.submit(soon, Box::new(work)).await;
    }

    /// Runs `work` and waits for its commit on this thread: for startup, when there are no other writers.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn write_now(&self, work: impl FnOnce(&Draft) + Send + 'static) -> Result<(), StoreError> {
        let (sender, receiver) = mpsc::channel();
        let submitted = self.writer.submit_now(Box::new(move |draft| {
            let _ = draft.map(|draft| work(draft));
            Verdict::Keep(Box::new(move |result| drop(sender.send(result))))
        }));
        let lost = || StoreError::Closed { path: self.base.path().to_path_buf() };
        if !submitted {
            return Err(lost());
        }
        receiver.recv().unwrap_or_else(|_| Err(lost()))
    }

    /// The directory of the database.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.base.path().parent().unwrap_or(Path::new(""))
    }

    /// Copies the database as it was last committed to another directory, for a program that is to be tried on it. Changes wait
    /// meanwhile.
    ///
    /// # Errors
    /// What creating the directory or copying the file says.
    pub async fn copy(&self, to: &Path) -> Result<(), StoreError> {
        let (from, to) = (self.dir().to_owned(), to.to_owned());
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // On the writer's thread: nothing is committed while the file is read. What is not committed yet is in pages of the file
        // that the last commit does not use.
        let work = move |_: Result<&Arc<Draft>, StoreError>| {
            // Nobody waits for it any more: then it is as good.
            let _ = sender.send(copy(&from, &to));
            Verdict::Drop(Box::new(|_| {}))
        };
        self.submit(false, work).await;
        let lost = || StoreError::Closed { path: self.base.path().to_path_buf() };
        receiver.await.unwrap_or_else(|_| Err(lost()))
    }

    /// Runs `work` to write directly to the transaction, without buffering in memory; the same holds for its verdict. It is not
    /// committed together with other changes.
    pub async fn submit_bulk(&self, work: impl FnOnce(Result<&Bulk, StoreError>) -> Verdict + Send + 'static) {
        self.writer.submit_bulk(Box::new(work)).await;
    }
}

/// Copies the database in `from` to the directory `to`, which is created if it is missing. What another process writes to it
/// meanwhile may be copied in part: opening the copy finds that.
///
/// # Errors
/// What creating the directory or copying the file says.
pub fn copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    let dir = file::own_dir(to)?;
    let doing = format!("copy {} to {}", from.join(FILE).display(), to.display());
    std::fs::copy(from.join(FILE), dir.path().join(FILE)).map(drop).map_err(StoreError::io(doing))
}
