//! hashicorp/go-plugin over gRPC on unix sockets, as plugin and as host. Never knows the services on top of it.
//!
//! A host starts a program, reads one line from its stdout (the [`handshake`](Handshake)) and dials the socket that it names.
//! Besides its own services every plugin serves health, stdio, broker and controller; it logs hclog JSON lines and ends when the
//! controller's Shutdown is called.
//!
//! A host that asks for it (`AutoMTLS`) gets mutual TLS with certificates made for that launch only.

mod bell;
mod broker;
mod connection;
mod error;
mod events;
mod handshake;
mod hclog;
mod host;
mod reattach;
mod server;
mod tls;

pub use bell::Bell;
pub(crate) use bell::Ringer;
pub use broker::Broker;
pub use connection::{Address, Connection, Incoming};
pub use error::HostError;
pub(crate) use events::{Listener, listen};
pub use handshake::{COOKIE_KEY, COOKIE_VALUE, Handshake, HandshakeError, PROTOCOL_VERSION, Protocol};
pub(crate) use hclog::start_logging;
pub use hclog::{HclogLayer, HclogLine, Level};
pub use host::{Client, Launch, Life, Program, Stdio, role_environment};
pub use reattach::{Reattach, ReattachConfig};
pub use server::{ServeError, Server, Stop};
