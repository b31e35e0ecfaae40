//! Fetches one artifact: downloads it, verifies its checksum, unpacks it, and passes it to the requesting process. Never trusts
//! what it reads from the network, and is independent of allocations.
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
//! If the requesting process is killed, the fetcher is killed too, by its parent-death signal. If the requesting process
//! disconnects or cancels, or the time limit is reached, the outer process kills the inner one, and with it its pid namespace.

mod digest;
mod git;
mod http;
mod inside;
mod launch;
mod outside;
mod place;
mod s3;
mod talk;
mod unpack;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::collections::BTreeMap;
use crate::spec::json;
use crate::spec::{ArtifactMode, Source};

pub use http::tls_client;
pub use launch::{Fetched, Order, Staging, Surroundings, certificates};
pub use place::Target;
pub(crate) use place::give_destination;

/// The limits of an artifact. The first three are the defaults of a Nomad client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of the download, and of everything that is unpacked from it.
    pub bytes: u64,
    /// Files, directories and links.
    pub files: u64,
    /// Seconds from the start to the end.
    pub seconds: u64,
    /// How many bytes one byte of an archive may expand to, once the total is more than [`Limits::FREE_BYTES`].
    pub ratio: u64,
}

impl Limits {
    /// 100 GB, 4096 files, 30 minutes, and a ratio that no archive of real data has.
    pub const DEFAULT: Limits = Limits { bytes: 100_000_000_000, files: 4096, seconds: 30 * 60, ratio: 1000 };
    /// What every archive may expand to, whatever its own size.
    pub const FREE_BYTES: u64 = 64 << 20;
}

/// Why an artifact could not be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct FetchError {
    /// What failed, and the fix.
    pub message: String,
    /// Whether a retry may succeed.
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

/// The request to the fetcher.
#[derive(Serialize, Deserialize)]
struct Request {
    source: Source,
    mode: ArtifactMode,
    headers: BTreeMap<String, String>,
    insecure: bool,
    limits: Limits,
    /// Certificates of authorities, as PEM.
    certificates: String,
    /// Whether this text is not the machine's own list, so that other programs must be configured with it.
    own_certificates: bool,
    /// The known hosts of the requesting user, for git over ssh.
    known_hosts: String,
}

/// The fetcher's messages, one per line.
#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Progress { bytes: u64, total: Option<u64> },
    Done(Done),
    Failed(FetchError),
}

/// The result of a fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    /// Its path below the staging directory.
    path: PathBuf,
    /// The name of the file, if the artifact is a single file and the job gives no other name.
    file: Option<String>,
}

/// What the fetcher gets on its command line: nothing secret.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Setting {
    /// The staging directory.
    staging: PathBuf,
    /// The user and group that it switches to.
    becomes: Option<(u32, u32)>,
    /// Whether it gets a network.
    network: bool,
    limits: Limits,
    /// Set for the inner process.
    inside: Option<Inside>,
}

/// The setting of the inner process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Inside {
    /// Whether it has a mount namespace of its own, and the privilege to mount.
    mounts: bool,
}

/// Runs the role with its argument; `None` for an argument that this program has not written.
#[must_use]
pub fn fetch_as_told(setting: &str) -> Option<i32> {
    let setting: Setting = json::from_str(setting).ok()?;
    Some(if setting.inside.is_some() { inside::run(&setting) } else { outside::run(&setting) })
}
