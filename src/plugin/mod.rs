//! hashicorp/go-plugin over gRPC on unix sockets, as plugin and as host. Never knows which service is being spoken.
//!
//! A host starts a program, reads one line from its stdout (the [`handshake`](Handshake)) and dials the socket that it
//! names. Beside its own services every plugin serves health, stdio, broker and controller; it logs hclog JSON lines
//! and ends when the controller says so.

mod broker;
mod handshake;
mod hclog;
mod host;
mod server;

pub use broker::Broker;
pub use handshake::{COOKIE_KEY, COOKIE_VALUE, Handshake, HandshakeError, PROTOCOL_VERSION};
pub use hclog::{HclogLayer, HclogLine, Level};
pub use host::{Client, HostError, Launch, Program, Reattach, Stdio, role_environment};
pub use server::{ServeError, Server, Stop};
