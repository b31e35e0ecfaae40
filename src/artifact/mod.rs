//! Fetches one artifact: downloads it, compares it with its checksum, unpacks it, and gives it to whoever asked. Never trusts
//! what comes in, and knows no allocation.
//!
//! ```text
//! who asks                 agentbin artifact-fetcher        the same, inside
//! --------                 -------------------------        ----------------
//! Staging: a directory of
//! its own, for a user of its own
//! fetch: starts ─────────▶ starts ────────────────────────▶ pid 1 of its namespaces; gives up what it has
//! Request ────────────────────────────────────────────────▶ http, s3, git; checksum; archive
//! Message::Progress ◀───────────────────────────────────────
//! Message::Done ◀────────────────────────────────────────── everything lies in the staging directory
//!                          waits until all processes ◀───── ends
//! place: takes over owner  have ended
//! and mode of each file,
//! moves it to its place
//! ```
//!
//! Whoever asks is killed: the fetcher is, by its parent's death. Whoever asks goes away or says that it is enough, or the time
//! is up: the one outside kills the one inside, and with it its pid namespace.

mod digest;
mod git;
mod http;
mod inside;
mod launch;
mod outside;
mod place;
mod s3;
mod unpack;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::json;
use crate::spec::{ArtifactMode, Source};

pub use http::tls_client;
pub use launch::{Fetched, Order, Staging, Surroundings, certificates};
pub use place::Target;

/// What an artifact may cost. The first three are the limits that a Nomad client has unless it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of the download, and of everything that is unpacked from it.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// From the start to the end, in seconds.
    pub seconds: u64,
    /// Bytes that one byte of an archive may become, once that are more than [`Limits::FREE_BYTES`].
    pub ratio: u64,
}

impl Limits {
    /// 100 GB, 4096 files, 30 minutes, and a ratio that no archive of real data has.
    pub const DEFAULT: Limits = Limits { bytes: 100_000_000_000, files: 4096, seconds: 30 * 60, ratio: 1000 };
    /// What an archive may become whatever its own size.
    pub const FREE_BYTES: u64 = 64 << 20;
}

/// Why there is no artifact.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct FetchError {
    /// What failed, and what fixes it.
    pub message: String,
    /// It may go well the next time.
    pub recoverable: bool,
}

impl FetchError {
    fn lasting(message: impl Into<String>) -> FetchError {
        FetchError { message: message.into(), recoverable: false }
    }

    fn passing(message: impl Into<String>) -> FetchError {
        FetchError { message: message.into(), recoverable: true }
    }
}

/// What the fetcher is to do.
#[derive(Serialize, Deserialize)]
struct Request {
    source: Source,
    mode: ArtifactMode,
    headers: BTreeMap<String, String>,
    insecure: bool,
    limits: Limits,
    /// Certificates of authorities, as PEM.
    certificates: String,
    /// Where this text comes from somewhere else than the machine's own list, so that other programs must be told.
    own_certificates: bool,
    /// Of the user for whom it is fetched, for git over ssh.
    known_hosts: String,
}

/// What the fetcher says, one to a line.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Progress { bytes: u64, total: Option<u64> },
    Done(Done),
    Failed(FetchError),
}

/// What was fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    /// Below the staging directory.
    path: PathBuf,
    /// It is one file, that has this name unless the job says another.
    file: Option<String>,
}

/// Where the fetcher finds what it needs, on its command line: nothing secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Setting {
    /// The staging directory.
    staging: PathBuf,
    /// User and group that it becomes.
    becomes: Option<(u32, u32)>,
    /// It gets a network.
    network: bool,
    limits: Limits,
    /// Set for the process inside.
    inside: Option<Inside>,
}

/// What the process inside has.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Inside {
    /// Mounts of its own, and the right to make some.
    mounts: bool,
}

/// What the role does with its argument; `None` for one that nobody of ours has written.
#[must_use]
pub fn fetch_as_told(setting: &str) -> Option<i32> {
    let setting: Setting = json::from_str(setting).ok()?;
    Some(if setting.inside.is_some() { inside::run(&setting) } else { outside::run(&setting) })
}
