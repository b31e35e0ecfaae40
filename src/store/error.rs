//! Why the database is not opened, read or written.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Why the database is not opened, read or written. Can be cloned for several changes of one commit.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("{} is held by {}: end that one first, or use another data directory", path.display(), holder(*pid))]
    Held {
        /// The lock's file.
        path: PathBuf,
        /// The holder's pid, if known.
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
        /// The version of that program.
        by: String,
    },
    /// An older program wrote it, and there is no upgrade from its schema.
    #[error("{} has the schema {found}, which cannot be converted to {known}", path.display())]
    TooOld {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: u32,
        /// The one of this program.
        known: u32,
    },
    /// The file is not a database of this program.
    #[error("{} is not a database of agentbin: {reason}; move it away", path.display())]
    Foreign {
        /// The database.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file system.
    #[error("cannot {doing}")]
    Io {
        /// The failed operation.
        doing: String,
        /// Why not.
        #[source]
        source: Arc<io::Error>,
    },
    /// The database.
    #[error("cannot {doing} {}", path.display())]
    Database {
        /// The failed operation.
        doing: &'static str,
        /// The database.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Arc<redb::Error>,
    },
    /// It is closed, or is being reopened after an error.
    #[error("the database {} is closed", path.display())]
    Closed {
        /// The database.
        path: PathBuf,
    },
    /// A change panicked.
    #[error("a transaction of the database was not completed: {0}")]
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
