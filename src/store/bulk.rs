//! Writing without an overlay: what does not fit into memory, such as a whole database.

use super::draft::Open;
use super::error::StoreError;
use super::source::{Definition, TableName};

/// Writes directly into a transaction that is committed as a whole or dropped.
pub struct Bulk {
    pub(super) open: Open,
}

impl std::fmt::Debug for Bulk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bulk").finish_non_exhaustive()
    }
}

impl Bulk {
    /// Removes all records of a table.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn clear(&self, table: TableName) -> Result<(), StoreError> {
        self.open.with("write to", |transaction| -> Result<(), redb::Error> {
            transaction.delete_table(Definition::new(table))?;
            transaction.open_table(Definition::new(table))?;
            Ok(())
        })
    }

    /// Writes records of one table.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn put(&self, table: TableName, records: &[(Vec<u8>, Vec<u8>)]) -> Result<(), StoreError> {
        self.open.with("write to", |transaction| -> Result<(), redb::Error> {
            let mut table = transaction.open_table(Definition::new(table))?;
            for (key, value) in records {
                table.insert(key.as_slice(), value.as_slice())?;
            }
            Ok(())
        })
    }

    /// The record of a table, as it is now.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn get(&self, table: TableName, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.open.with("read", |transaction| -> Result<_, redb::Error> {
            let table = transaction.open_table(Definition::new(table))?;
            let found = redb::ReadableTable::get(&table, key)?;
            Ok(found.map(|value| value.value().to_vec()))
        })
    }
}
