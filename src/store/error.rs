//! Why the database is not opened, read or written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the database is not opened, read or written. It can be told to several whose changes were to be committed together.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process has it.
    #[error("{} is held by {}: end that one first, or use another data directory", path.display(), holder(*pid))]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// Which process, if it said so.
        pid: Option<u32>,
    },
    /// A newer program wrote it.
    #[error(
        "{} has the schema {found}, written by agentbin {by}; this is agentbin {} and knows schemas up to {known}: \
         use that version or a newer one",
        path.display(), env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The newest that this program knows.
        known: u32,
        /// The program's version.
        by: String,
    },
    /// An older program wrote it, and nobody knows how to go on from there.
    #[error("{} has the schema {found}, from which no way leads to {known}", path.display())]
    TooOld {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The one of this program.
        known: u32,
    },
    /// Something else is in the file.
    #[error("{} is no database of agentbin: {reason}; move it away", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file system.
    #[error("cannot {doing}")]
    Io {
        /// What was done to what.
        doing: String,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The database.
    #[error("cannot {doing} {}", path.display())]
    Database {
        /// What was done.
        doing: &'static str,
        /// The database.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Arc<redb::Error>,
    },
    /// It is closed, or is being opened again after an error.
    #[error("the database {} is closed", path.display())]
    Closed {
        /// The database.
        path: PathBuf,
    },
    /// A change that did not come to its end.
    #[error("a change of the database broke off: {0}")]
    Panicked(String),
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("pid {pid}"))
}

impl StoreError {
    /// An error of the file system.
    pub(super) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> StoreError {
        let doing = doing.into();
        move |source| StoreError::Io { doing, source: Arc::new(source) }
    }
}
