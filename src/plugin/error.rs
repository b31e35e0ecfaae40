//! Why a plugin could not be started or reached.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::HandshakeError;

/// Why a plugin could not be started or reached.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The program could not be executed.
    #[error("cannot start plugin {program}: {source}")]
    Start {
        /// Which program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// It ended without a handshake.
    #[error("plugin {program} exited before it could be reached{said}")]
    Exited {
        /// Which program.
        program: String,
        /// `: ` and what it wrote to stderr, or nothing.
        said: String,
    },
    /// It sent no handshake in time.
    #[error("plugin {program} sent no handshake within {timeout:?}")]
    Timeout {
        /// Which program.
        program: String,
        /// The time limit.
        timeout: Duration,
    },
    /// Its first line was not a valid handshake.
    #[error("plugin {program}: {source}")]
    Handshake {
        /// Which program.
        program: String,
        /// What was wrong.
        source: HandshakeError,
    },
    /// Our own certificate for it could not be made.
    #[error("cannot make TLS certificates for plugin {program}: {source}")]
    Tls {
        /// Which program.
        program: String,
        /// What was wrong.
        source: io::Error,
    },
    /// It could not be dialled.
    #[error("cannot connect to plugin at {address}: {source}")]
    Connect {
        /// Its socket, or address and port.
        address: String,
        /// What the system, or TLS, said.
        source: io::Error,
    },
    /// The process in a reattach record has ended; its pid may belong to another process by now.
    #[error("reattachment process not found: pid {0} has ended")]
    Gone(i32),
    /// Another process listens on the socket in a reattach record.
    #[error("reattachment process not found: socket {socket} belongs to process {found}, the record says {recorded}")]
    Stranger {
        /// Which socket.
        socket: PathBuf,
        /// The process in the record.
        recorded: i32,
        /// The process that listens.
        found: i32,
    },
    /// This plugin can only be used by the process that started it.
    #[error("this plugin cannot be reattached: {0}")]
    NotReattachable(&'static str),
    /// It is unknown whether the process is alive.
    #[error("cannot examine the plugin's process {pid}: {source}")]
    Watch {
        /// Its pid.
        pid: i32,
        /// What the system said.
        source: io::Error,
    },
}
