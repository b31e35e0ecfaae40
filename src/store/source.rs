//! Reading: a snapshot, and what is common to it and to a change that is being made.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use redb::{ReadTransaction, TableDefinition};

use super::error::StoreError;

/// The name of a table.
pub type TableName = &'static str;
/// A table as the database has it.
pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

/// Some records of a table, in the order of their keys.
#[derive(Debug, Default)]
pub struct Page {
    /// Key and value.
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
    /// There may be more behind the last one.
    pub more: bool,
}

/// Bytes of a page, about; a single record may be longer.
const PAGE_BYTES: usize = 64 << 10;

impl Page {
    /// Adds a record, and says whether there is room for another one.
    pub(super) fn push(&mut self, key: Vec<u8>, value: Vec<u8>, bytes: &mut usize, most: usize) -> bool {
        *bytes += key.len() + value.len();
        self.records.push((key, value));
        self.records.len() < most && *bytes < PAGE_BYTES
    }
}

/// What can be read.
pub trait Source: Send + Sync {
    /// A record.
    ///
    /// # Errors
    /// [`StoreError`].
    fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// At most `most` records whose keys begin with `prefix`, behind the key `after`; fewer where they are long.
    ///
    /// # Errors
    /// [`StoreError`].
    fn page(&self, table: TableName, prefix: &[u8], after: Option<&[u8]>, most: usize) -> Result<Page, StoreError>;
}

/// Where a page begins.
pub(super) fn begin<'k>(prefix: &'k [u8], after: Option<&'k [u8]>) -> Bound<&'k [u8]> {
    after.map_or(Bound::Included(prefix), Bound::Excluded)
}

/// The database as it was at one moment. Cheap to clone.
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
