//! A change in progress: its writes overlay the stored records until it is committed or dropped.

use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redb::{ReadableTable as _, WriteTransaction};

use super::error::StoreError;
use super::source::{Definition, Page, Source, TableName, begin};
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;

/// The transaction that the drafts of a batch share, until it is committed.
#[derive(Clone)]
pub(super) struct Open {
    transaction: Arc<Mutex<Option<WriteTransaction>>>,
    path: Arc<Path>,
}

impl Open {
    pub(super) fn new(transaction: WriteTransaction, path: Arc<Path>) -> Open {
        Open { transaction: Arc::new(Mutex::new(Some(transaction))), path }
    }

    /// Runs `work` on the transaction.
    pub(super) fn with<T, E: Into<redb::Error>>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&WriteTransaction) -> Result<T, E>,
    ) -> Result<T, StoreError> {
        let guard = lock(&self.transaction);
        let transaction = guard.as_ref().ok_or_else(|| StoreError::Closed { path: self.path.to_path_buf() })?;
        work(transaction).map_err(|error| self.failed(doing, error))
    }

    /// Ends it: drafts that still exist cannot read any more.
    pub(super) fn finish(&self, keep: bool) -> Result<(), StoreError> {
        let Some(transaction) = lock(&self.transaction).take() else { return Ok(()) };
        if keep {
            transaction.commit().map_err(|error| self.failed("commit a change to", error))
        } else {
            transaction.abort().map_err(|error| self.failed("leave a change of", error))
        }
    }

    fn failed(&self, doing: &'static str, error: impl Into<redb::Error>) -> StoreError {
        StoreError::Database { doing, path: self.path.to_path_buf(), source: Arc::new(error.into()) }
    }
}

/// Key and value.
type Record = (Vec<u8>, Vec<u8>);

/// The writes of a change: `None` is a removed record.
type Writes = BTreeMap<TableName, BTreeMap<Vec<u8>, Option<Vec<u8>>>>;

/// A change in progress. It sees the committed records, the writes of earlier changes in the same batch, and its own writes.
pub struct Draft {
    open: Open,
    writes: Mutex<Writes>,
}

impl std::fmt::Debug for Draft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("path", &self.open.path).finish_non_exhaustive()
    }
}

impl Draft {
    pub(super) fn new(open: Open) -> Draft {
        Draft { open, writes: Mutex::default() }
    }

    /// Writes a record.
    pub fn put(&self, table: TableName, key: &[u8], value: Vec<u8>) {
        lock(&self.writes).entry(table).or_default().insert(key.to_vec(), Some(value));
    }

    /// Removes a record, if it is there.
    pub fn remove(&self, table: TableName, key: &[u8]) {
        lock(&self.writes).entry(table).or_default().insert(key.to_vec(), None);
    }

    /// Whether anything was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.writes).is_empty()
    }

    /// Applies the writes to the transaction.
    pub(super) fn apply(&self) -> Result<(), StoreError> {
        let writes = std::mem::take(&mut *lock(&self.writes));
        self.open.with("write to", |transaction| -> Result<(), redb::Error> {
            for (table, records) in writes {
                let mut table = transaction.open_table(Definition::new(table))?;
                for (key, value) in records {
                    match value {
                        Some(value) => drop(table.insert(key.as_slice(), value.as_slice())?),
                        None => drop(table.remove(key.as_slice())?),
                    }
                }
            }
            Ok(())
        })
    }
}

impl Source for Draft {
    fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(written) = lock(&self.writes).get(table).and_then(|records| records.get(key)) {
            return Ok(written.clone());
        }
        self.open.with("read", |transaction| -> Result<_, redb::Error> {
            let table = transaction.open_table(Definition::new(table))?;
            let found = table.get(key)?;
            Ok(found.map(|value| value.value().to_vec()))
        })
    }

    fn page(&self, table: TableName, prefix: &[u8], after: Option<&[u8]>, most: usize) -> Result<Page, StoreError> {
        let writes = lock(&self.writes);
        let from = (begin(prefix, after), Bound::Unbounded);
        let own = writes.get(table).map(|records| records.range::<[u8], _>(from));
        let mut own = own.into_iter().flatten().take_while(|(key, _)| key.starts_with(prefix)).peekable();
        self.open.with("read", |transaction| -> Result<Page, redb::Error> {
            let table = transaction.open_table(Definition::new(table))?;
            let mut range = table.range::<&[u8]>(from)?;
            let mut next = || -> Result<Option<Record>, redb::Error> {
                let Some(record) = range.next() else { return Ok(None) };
                let (key, value) = record?;
                let found = key.value().starts_with(prefix);
                Ok(found.then(|| (key.value().to_vec(), value.value().to_vec())))
            };
            let (mut page, mut bytes) = (Page::default(), 0);
            let mut theirs = next()?;
            loop {
                // Written records take precedence over stored ones.
                let written = match (&theirs, own.peek()) {
                    (None, None) => return Ok(page),
                    (Some((key, _)), Some((written, _))) => written.as_slice() <= key.as_slice(),
                    (theirs, _) => theirs.is_none(),
                };
                let record = if written {
                    let Some((key, value)) = own.next() else { return Ok(page) };
                    if theirs.as_ref().is_some_and(|(same, _)| same == key) {
                        theirs = next()?;
                    }
                    value.clone().map(|value| (key.clone(), value))
                } else {
                    std::mem::replace(&mut theirs, next()?)
                };
                if let Some((key, value)) = record
                    && !page.push(key, value, &mut bytes, most)
                {
                    page.more = true;
                    return Ok(page);
                }
            }
        })
    }
}
