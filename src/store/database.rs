//! The database itself: opened with its schema, opened again after an error of input or output.

use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use redb::{Database, ReadableDatabase as _, StorageBackend, TableHandle as _};

use super::again::{Doubt, Doubted};
use super::draft::{Draft, Open};
use super::error::StoreError;
use super::file::DirLock;
use super::source::{Definition, Snapshot, Source as _, TableName};

/// Bytes of the database's cache: the agent's memory is small, and the kernel has the file's pages anyway.
const CACHE: usize = 512 << 10;
/// A file of this length that is mostly empty is made smaller when it is opened.
const COMPACT_FROM: u64 = 16 << 20;

/// About the database itself.
const META: TableName = "meta";
/// The schema's number, 4 bytes, big-endian.
const SCHEMA: &[u8] = b"schema";
/// The version of the program that wrote it last.
const WRITER: &[u8] = b"writer";

/// One step from a schema to the next: the number that it starts from, and what it does.
pub type Upgrade = (u32, fn(&Draft) -> Result<(), StoreError>);

/// Which tables there are, and how older ones become these.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Its number, from 1. Other bytes in a table, or another meaning of them, are another number.
    pub version: u32,
    /// The tables.
    pub tables: &'static [TableName],
    /// The steps, each to the next number.
    pub upgrades: &'static [Upgrade],
}

/// Opens it, and says how long the file is.
type Opener = Box<dyn Fn() -> Result<(Database, u64), redb::Error> + Send + Sync>;

/// The open database.
pub(super) struct Base {
    opener: Opener,
    /// `None` while it is opened again.
    current: RwLock<Option<Database>>,
    path: Arc<Path>,
    // After the database: others may have it only once it is closed.
    _lock: Option<DirLock>,
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Base").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Base {
    /// Opens or makes it.
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

    /// What is committed now.
    pub(super) fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let database = current.as_ref().ok_or_else(|| self.closed())?;
        let transaction = database.begin_read().map_err(|error| failed("read", &self.path, error))?;
        Ok(Snapshot::new(transaction, Arc::clone(&self.path)))
    }

    /// A transaction. Only the writer's thread asks.
    pub(super) fn begin(&self) -> Result<Open, StoreError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        let database = current.as_ref().ok_or_else(|| self.closed())?;
        let transaction = database.begin_write().map_err(|error| failed("write to", &self.path, error))?;
        Ok(Open::new(transaction, Arc::clone(&self.path)))
    }

    /// Closes it and opens it again: after an error of input or output the library trusts nothing that it has in memory.
    pub(super) fn reopen(&self) -> Result<(), StoreError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        // Closed before it is opened.
        drop(current.take());
        *current = Some((self.opener)().map_err(|error| failed("open", &self.path, error))?.0);
        Ok(())
    }

    /// Makes the tables of a new database, upgrades an old one, refuses a newer one.
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

    /// The schema that is there; `None` for a new database.
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

/// What was removed leaves room in the file, which is used again but never given back by itself.
fn compact(database: &mut Database, length: u64) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let stats = transaction.stats()?;
    transaction.abort()?;
    if stats.stored_bytes() + stats.metadata_bytes() < length / 4 {
        database.compact()?;
    }
    Ok(())
}
