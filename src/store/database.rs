//! The database: opens it with its schema, and reopens it after an I/O error.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadableDatabase as _, StorageBackend, TableHandle as _};

use super::again::{Doubt, Doubted};
use super::draft::{Draft, Open};
use super::error::StoreError;
use super::file::DirLock;
use super::source::{Definition, Snapshot, Source as _, TableName};

/// Size of the database's cache, in bytes: the agent's memory is small, and the kernel caches the file's pages anyway.
const CACHE: usize = 512 << 10;
/// A file of at least this length that is mostly empty is compacted when it is opened.
const COMPACT_FROM: u64 = 16 << 20;

/// Table of metadata about the database.
const META: TableName = "meta";
/// The schema's version, 4 bytes, big-endian.
const SCHEMA: &[u8] = b"schema";
/// The version of the program that last wrote it.
const WRITER: &[u8] = b"writer";

/// One schema upgrade: the version that it starts from, and the function.
pub type Upgrade = (u32, fn(&Draft) -> Result<(), StoreError>);

/// The tables, and the upgrades from older schemas.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Its version, from 1. Any change in the bytes of a table or in their meaning requires a new version.
    pub version: u32,
    /// The tables.
    pub tables: &'static [TableName],
    /// The upgrades, each to the next version.
    pub upgrades: &'static [Upgrade],
}

/// Opens the database and returns the length of its file.
type Opener = Box<dyn Fn() -> Result<(Database, u64), redb::Error> + Send + Sync>;

/// The open database.
pub(super) struct Base {
    opener: Opener,
    /// `None` while it is being reopened.
    current: RwLock<Option<Database>>,
    path: Arc<Path>,
    // Dropped after the database: another process may open it only once it is closed.
    _lock: Option<DirLock>,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Base {
    /// Opens or creates it.
    pub(super) fn open<B, F>(make: F, path: &Path, schema: Schema, held: Option<DirLock>) -> Result<Base, StoreError>
    where
        B: StorageBackend,
        F: Fn() -> io::Result<B> + Send + Sync + 'static,
    {
        let doubt = Doubt::default();
        let opener: Opener = Box::new(move || {
            let backend = make().and_then(|made| Doubted::new(made, &doubt)).map_err(redb::Error::Io)?;
            let length = backend.len().map_err(redb::Error::Io)?;
            let database = Database::builder().set_cache_size(CACHE).create_with_backend(backend)?;
            Ok((database, length))
        });
        let path: Arc<Path> = Arc::from(path);
        let (mut database, length) = opener().map_err(|error| failed("open", &path, error))?;
        if length > COMPACT_FROM {
            compact(&mut database, length).map_err(|error| failed("make smaller", &path, error))?;
        }
        let base = Base { opener, current: RwLock::new(Some(database)), path, _lock: held };
        base.settle(schema)?;
        Ok(base)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A snapshot of the committed records.
    pub(super) fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let database = current.as_ref().ok_or_else(|| self.closed())?;
        let transaction = database.begin_read().map_err(|error| failed("read", &self.path, error))?;
        Ok(Snapshot::new(transaction, Arc::clone(&self.path)))
    }

    /// Begins a transaction. Called only on the writer's thread.
    pub(super) fn begin(&self) -> Result<Open, StoreError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let database = current.as_ref().ok_or_else(|| self.closed())?;
        let transaction = database.begin_write().map_err(|error| failed("write to", &self.path, error))?;
        Ok(Open::new(transaction, Arc::clone(&self.path)))
    }

    /// Closes and reopens it: after an I/O error the library does not trust its state in memory.
    pub(super) fn reopen(&self) -> Result<(), StoreError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // It has to be closed before it is opened.
        drop(current.take());
        *current = Some((self.opener)().map_err(|error| failed("open", &self.path, error))?.0);
        Ok(())
    }

    /// Creates the tables of a new database, upgrades an old one, refuses a newer one.
    fn settle(&self, schema: Schema) -> Result<(), StoreError> {
        let found = self.version(schema)?;
        if found == Some(schema.version) {
            return Ok(());
        }
        let open = self.begin()?;
        open.with("write to", |transaction| -> Result<(), redb::Error> {
            for table in schema.tables.iter().chain([&META]) {
                transaction.open_table(Definition::new(table))?;
            }
            Ok(())
        })?;
        for from in found.unwrap_or(schema.version)..schema.version {
            let too_old = || StoreError::TooOld { path: self.path.to_path_buf(), found: from, known: schema.version };
            let (_, step) = schema.upgrades.iter().find(|(start, _)| *start == from).ok_or_else(too_old)?;
            let draft = Draft::new(open.clone());
            step(&draft)?;
            draft.apply()?;
        }
        let draft = Draft::new(open.clone());
        draft.put(META, SCHEMA, schema.version.to_be_bytes().to_vec());
        draft.put(META, WRITER, env!("CARGO_PKG_VERSION").as_bytes().to_vec());
        draft.apply()?;
        open.finish(true)
    }

    /// The version of the stored schema; `None` for a new database.
    fn version(&self, schema: Schema) -> Result<Option<u32>, StoreError> {
        let snapshot = {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            let database = current.as_ref().ok_or_else(|| self.closed())?;
            let transaction = database.begin_read().map_err(|error| failed("read", &self.path, error))?;
            let names = transaction.list_tables().map_err(|error| failed("read", &self.path, error))?;
            let (mut tables, mut meta) = (0_u32, false);
            for name in names {
                tables += 1;
                meta |= name.name() == META;
            }
            if tables == 0 {
                return Ok(None);
            }
            if !meta {
                let reason = "it has tables, but none that says what they are".to_owned();
                return Err(StoreError::Foreign { path: self.path.to_path_buf(), reason });
            }
            Snapshot::new(transaction, Arc::clone(&self.path))
        };
        let number = snapshot.get(META, SCHEMA)?.and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let Some(found) = number else {
            let reason = "it does not say which schema it has".to_owned();
            return Err(StoreError::Foreign { path: self.path.to_path_buf(), reason });
        };
        if found > schema.version {
            let by = snapshot.get(META, WRITER)?.unwrap_or_default();
            let by = String::from_utf8_lossy(&by).into_owned();
            return Err(StoreError::Newer { path: self.path.to_path_buf(), found, known: schema.version, by });
        }
        Ok(Some(found))
    }

    fn closed(&self) -> StoreError {
        StoreError::Closed { path: self.path.to_path_buf() }
    }
}

fn failed(doing: &'static str, path: &Path, error: impl Into<redb::Error>) -> StoreError {
    StoreError::Database { doing, path: path.to_path_buf(), source: Arc::new(error.into()) }
}

/// Compacts the file: the space of removed records is reused, but otherwise never returned to the file system.
fn compact(database: &mut Database, length: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let stats = transaction.stats()?;
    transaction.abort()?;
    if stats.stored_bytes() + stats.metadata_bytes() < length / 4 {
        database.compact()?;
    }
    Ok(())
}
