//! Iterates over records in the order of their keys, page by page: a list is never completely in memory unless its reader
//! collects it.

use std::marker::PhantomData;
use std::vec::IntoIter;

use super::error::StateError;
use crate::store::{Source, TableName};

/// Records of a page, at most.
const PAGE: usize = 32;

/// Converts a record; `None` skips it.
type Read<'a, T> = Box<dyn Fn(&[u8], &[u8]) -> Result<Option<T>, StateError> + Send + 'a>;

/// An iterator over records. It ends after an error.
pub struct Records<'a, T> {
    source: &'a dyn Source,
    table: TableName,
    prefix: Vec<u8>,
    /// The last key of the previous page.
    after: Option<Vec<u8>>,
    page: IntoIter<(Vec<u8>, Vec<u8>)>,
    more: bool,
    read: Read<'a, T>,
    kind: PhantomData<T>,
}

impl<T> std::fmt::Debug for Records<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("table", &self.table).finish_non_exhaustive()
    }
}

impl<'a, T> Records<'a, T> {
    /// The records of a table whose keys begin with `prefix`.
    pub(super) fn new(
        source: &'a dyn Source,
        table: TableName,
        prefix: Vec<u8>,
        read: impl Fn(&[u8], &[u8]) -> Result<Option<T>, StateError> + Send + 'a,
    ) -> Records<'a, T> {
        Records {
            source,
            table,
            prefix,
            after: None,
            page: Vec::new().into_iter(),
            more: true,
            read: Box::new(read),
            kind: PhantomData,
        }
    }

    /// All of them.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn all(self) -> Result<Vec<T>, StateError> {
        self.collect()
    }

    fn step(&mut self) -> Result<Option<T>, StateError> {
        loop {
            for (key, value) in self.page.by_ref() {
                let read = (self.read)(&key, &value)?;
                self.after = Some(key);
                if read.is_some() {
                    return Ok(read);
                }
            }
            if !self.more {
                return Ok(None);
            }
            let page = self.source.page(self.table, &self.prefix, self.after.as_deref(), PAGE)?;
            self.more = page.more;
            self.page = page.records.into_iter();
        }
    }
}

impl<T> Iterator for Records<'_, T> {
    type Item = Result<T, StateError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.more = false;
            self.page = Vec::new().into_iter();
        }
        step.transpose()
    }
}
