//! HTTP/1.1 as a server: listeners, limits, routes, bodies, `WebSockets`, and streams that end when their reader does. Never knows
//! what is asked.
//!
//! ```text
//!   Listener ──accept──▶ connection (one task; header time-out, upgrade) ──▶ Handler::answer ──▶ body, stream or WebSocket
//!      unix: peer's ids, mode 0600          │                                      │
//!      tcp, tls: address                    └── places are counted per listener    └── Router: raw path ──▶ what, with which ids
//! ```

pub mod body;
pub mod listener;
pub mod query;
pub mod route;
pub mod serve;
pub mod stream;
pub mod tls;

pub use axum::body::Body;
pub use axum::extract::ws;
pub use hyper::body::{Bytes, Incoming};
pub use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
pub use hyper::http::request::Parts;
pub use hyper::{Method, Request, Response, StatusCode};
