//! Records that outlive the process: tables of bytes by key over one embedded database, with snapshots for readers and one
//! writer, and files that are replaced in one step. Never knows what the bytes mean.
//!
//! A change is made on a [`Draft`]: it reads what is there with its own writes over it, and is either taken as a whole or
//! dropped. Drafts that come while the disk is busy are committed together, by one sync. A change is acknowledged, and seen
//! by others, once it is on the disk.

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
pub use file::{DirLock, read_or_make, write_atomically};
pub use redb::StorageBackend;
pub use source::{Page, Snapshot, Source, TableName};
pub use writer::{Done, Verdict};

use database::Base;
use writer::Writer;

/// The database's file.
const FILE: &str = "state.redb";
/// Who has it open.
const LOCK: &str = "state.lock";

/// An open database. The last clone that is dropped closes it.
#[derive(Debug, Clone)]
pub struct Store {
    // Before what it works on: it ends first.
    writer: Arc<Writer>,
    base: Arc<Base>,
}

impl Store {
    /// Opens the database in this directory, which is made where it is missing (0700), and so is the database.
    ///
    /// # Errors
    /// [`StoreError::Held`] when another process has it, [`StoreError::Newer`] when a newer program wrote it, else what is
    /// wrong with it by name.
    pub fn open(dir: &Path, schema: Schema) -> Result<Store, StoreError> {
        let dir = file::own_dir(dir)?;
        let lock = DirLock::take(&dir, LOCK)?;
        let path = dir.path().join(FILE);
        let dir = Arc::new(dir);
        let make = move || {
            let file = dir.lock_file(FILE.as_ref())?;
            // The entry of a file that was just made.
            file::sync(&dir)?;
            FileBackend::new(file).map_err(io::Error::other)
        };
        Store::start(Base::open(make, &path, schema, Some(lock))?)
    }

    /// Opens a database on something else than a file: `make` is called again after an error of input or output.
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

    /// What is there now.
    ///
    /// # Errors
    /// [`StoreError`]; after an error of input or output until the writer has opened the database again, which this asks for.
    pub fn snapshot(&self) -> Result<Snapshot, StoreError> {
        self.base.snapshot().inspect_err(|_| self.writer.nudge())
    }

    /// Has `work` make a change, on the writer's thread. What it returns is told whether the change is on the disk.
    ///
    /// `soon` lets the change wait some milliseconds for others that are committed with it.
    pub async fn submit(
        &self,
        soon: bool,
        work: impl FnOnce(Result<&Arc<Draft>, StoreError>) -> Verdict + Send + 'static,
    ) {
        self.writer.submit(soon, Box::new(work)).await;
    }

    /// Has `work` make a change and waits for it, on this thread: for the start, when nobody else writes.
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

    /// Has `work` write directly, without holding what it writes in memory; the same holds for its verdict. Nothing else is
    /// committed together with it.
    pub async fn submit_bulk(&self, work: impl FnOnce(Result<&Bulk, StoreError>) -> Verdict + Send + 'static) {
        self.writer.submit_bulk(Box::new(work)).await;
    }
}
