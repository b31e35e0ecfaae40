//! Why the state is not read or changed.

use crate::store::StoreError;

/// Why the state is not read or changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StateError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record that nobody can read.
    #[error("the record {key:?} of the table {table} cannot be read: {reason}")]
    Damaged {
        /// The table.
        table: &'static str,
        /// The record's key, readable.
        key: String,
        /// Why.
        reason: String,
    },
    /// The key file.
    #[error("{0}")]
    Key(String),
    /// What there is not.
    #[error("{kind} {id:?} not found")]
    NotFound {
        /// What was looked for: `job`, `allocation`.
        kind: &'static str,
        /// Which one.
        id: String,
    },
    /// What cannot be kept.
    #[error("{0}")]
    Invalid(String),
    /// What somebody else changed, or what still uses it.
    #[error("{0}")]
    Conflict(String),
    /// The change broke off, or the state is closed.
    #[error("the change was not made: the writer of the state has ended")]
    Lost,
}
