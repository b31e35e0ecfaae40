//! Reading: snapshots, and the interface that they share with changes in progress.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadTransaction, TableDefinition};

use super::error::StoreError;

/// The name of a table.
pub type TableName = &'static str;
/// A table of the database.
pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Some records of a table, in the order of their keys.
#[derive(Debug, Default)]
pub struct Page {
    /// Key and value.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether there may be more records after the last one.
    pub more: bool,
}

/// Approximate size of a page, in bytes; a single record may be larger.
const PAGE_BYTES: usize = 64 << 10;

impl Page {
    /// Adds a record, and returns whether there is space for another one.
    pub(super) fn push(&mut self, key: Vec<u8>, value: Vec<u8>, bytes: &mut usize, most: usize) -> bool {
        *bytes += key.len() + value.len();
        self.records.push((key, value));
        self.records.len() < most && *bytes < PAGE_BYTES
    }
}

/// An object that records can be read from.
pub trait Source: Send + Sync {
    /// A record.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// At most `most` records whose keys begin with `prefix` and follow the key `after`; fewer if they are large.
    ///
    /// # Errors
    /// [`StoreError`].
    fn page(&self, table: TableName, prefix: &[u8], after: Option<&[u8]>, most: usize) -> Result<Page, StoreError>;
}

/// The lower bound of a page.
pub(super) fn begin<'k>(prefix: &'k [u8], after: Option<&'k [u8]>) -> Bound<&'k [u8]> {
    after.map_or(Bound::Included(prefix), Bound::Excluded)
}

/// The database at one point in time. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    transaction: Arc<ReadTransaction>,
    path: Arc<Path>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Snapshot {
    pub(super) fn new(transaction: ReadTransaction, path: Arc<Path>) -> Snapshot {
        Snapshot { transaction: Arc::new(transaction), path }
    }

    fn failed<E: Into<redb::Error>>(&self) -> impl Fn(E) -> StoreError {
        let path = self.path.to_path_buf();
        move |error| StoreError::Database { doing: "read", path: path.clone(), source: Arc::new(error.into()) }
    }
}

impl Source for Snapshot {
    fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let table = self.transaction.open_table(Definition::new(table)).map_err(self.failed())?;
        let found = table.get(key).map_err(self.failed())?;
        Ok(found.map(|value| value.value().to_vec()))
    }

    fn page(&self, table: TableName, prefix: &[u8], after: Option<&[u8]>, most: usize) -> Result<Page, StoreError> {
        let table = self.transaction.open_table(Definition::new(table)).map_err(self.failed())?;
        let range = table.range::<&[u8]>((begin(prefix, after), Bound::Unbounded)).map_err(self.failed())?;
        let (mut page, mut bytes) = (Page::default(), 0);
        for record in range {
            let (key, value) = record.map_err(self.failed())?;
            if !key.value().starts_with(prefix) {
                return Ok(page);
            }
            if !page.push(key.value().to_vec(), value.value().to_vec(), &mut bytes, most) {
                page.more = true;
                return Ok(page);
            }
        }
        Ok(page)
    }
}
