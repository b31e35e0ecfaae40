//! Access control: by the listening socket, by a token, and never for a web page of another site.

use std::net::IpAddr;
use std::time::SystemTime;

use super::answer::Refusal;
use crate::agent::model::{Nanos, Role, Secret};
use crate::agent::state::State;
use crate::http::listener::Peer;
use crate::http::{HeaderMap, StatusCode, header};
use crate::spec::collections::BTreeSet;

/// Longest token, in bytes.
const LONGEST: usize = 256;

/// Settings of access control.
#[derive(Debug, Clone)]
pub struct Security {
    /// The user that this agent runs as; it and root may do everything over the unix socket.
    pub own_uid: u32,
    /// Role of other users that can open the unix socket: those in its group.
    pub socket_role: Role,
    /// What jobs of the role `submit` may use.
    pub submit: Allowed,
    /// Names of this machine that a `Host` header over TCP may contain, in addition to its addresses and `localhost`.
    pub names: BTreeSet<String>,
}

/// What jobs of the role `submit` may use. Such jobs are isolated and cannot reach the host's resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed {
    /// Drivers.
    pub drivers: BTreeSet<String>,
    /// The operator's volumes.
    pub volumes: BTreeSet<String>,
}

impl Default for Allowed {
    /// The drivers whose tasks are isolated, and no volume.
    fn default() -> Allowed {
        Allowed { drivers: ["exec", "java"].map(str::to_owned).into(), volumes: BTreeSet::new() }
    }
}

/// The sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// What the sender may do.
    pub(super) role: Role,
    /// The accessor of the token; empty for the unix socket.
    pub(super) accessor: String,
}

impl Security {
    /// Identifies the sender of a request.
    ///
    /// Over TCP, including the loopback address, a token is required. A web page of another origin, or one whose name was made
    /// to resolve to this machine (DNS rebinding), is refused before its token is looked at.
    pub(super) fn caller(&self, state: &State, peer: Peer, headers: &HeaderMap) -> Result<Caller, Refusal> {
        let token = token(headers);
        let by_socket = match peer {
            Peer::Unix { uid, .. } if uid == self.own_uid || uid == 0 => Some(Role::Manage),
            Peer::Unix { .. } => Some(self.socket_role),
            Peer::Tcp { local, .. } => {
                self.same_site(headers, local.ip())?;
                None
            }
        };
        match (token, by_socket) {
            (None, Some(role)) => Ok(Caller { role, accessor: String::new() }),
            (None, None) => Err(Refusal::denied()),
            (Some(token), by_socket) => {
                let now = Nanos::of(SystemTime::now());
                let known = if token.len() > LONGEST {
                    None
                } else {
                    state.read()?.token_by_secret(&Secret::new(token), now)?
                };
                match (known, by_socket) {
                    (Some(known), _) => Ok(Caller { role: known.role, accessor: known.accessor_id }),
                    // A token for another agent, left in the environment, does not reduce the rights of the socket.
                    (None, Some(role)) => Ok(Caller { role, accessor: String::new() }),
                    (None, None) => Err(Refusal::denied()),
                }
            }
        }
    }

    /// Checks that the request does not come from another site's web page. `Host` must be this machine; `Origin` (which
    /// browsers send with requests whose answers a page may not read, and with every WebSocket) must be absent or the same.
    fn same_site(&self, headers: &HeaderMap, local: IpAddr) -> Result<(), Refusal> {
        let wrong =
            |what: &str| Refusal::new(StatusCode::FORBIDDEN, format!("this agent does not answer under that {what}"));
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).ok_or_else(|| wrong("Host"))?;
        if !self.is_own(host, local) {
            return Err(wrong("Host"));
        }
        for origin in headers.get_all(header::ORIGIN) {
            let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
            if !site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
                return Err(wrong("Origin"));
            }
        }
        Ok(())
    }

    fn is_own(&self, host: &str, local: IpAddr) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        let is_named = self.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        match name.parse::<IpAddr>() {
            // Behind a translation of addresses clients know it by the one that the operator advertises.
            Ok(address) => address.to_canonical() == local.to_canonical() || is_named,
            Err(_) => name.eq_ignore_ascii_case("localhost") || is_named,
        }
    }
}

/// The token of a request, in either header.
fn token(headers: &HeaderMap) -> Option<&str> {
    let nomad = headers.get("x-nomad-token").and_then(|value| value.to_str().ok());
    let bearer = || {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    };
    nomad.filter(|token| !token.trim().is_empty()).or_else(bearer).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn security() -> Security {
        Security {
            own_uid: 0,
            socket_role: Role::Submit,
            submit: Allowed::default(),
            names: BTreeSet::from(["box.example".to_owned(), "203.0.113.5".to_owned()]),
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let asks = |pairs: &[(&'static str, &str)]| security().same_site(&headers(pairs), local).is_ok();
        let advertised = ["box.example:4646", "203.0.113.5:4646"];
        for host in ["127.0.0.1:4646", "127.0.0.1", "localhost:4646", "LOCALHOST"].into_iter().chain(advertised) {
            assert!(asks(&[("host", host)]), "{host}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:4646", "localhost.evil", "", "[::1]:4646"] {
            assert!(!asks(&[("host", host)]), "{host}");
        }
        assert!(!asks(&[]));
        assert!(asks(&[("host", "localhost:4646"), ("origin", "http://localhost:4646")]));
        for origin in ["http://evil.example", "null", "http://localhost:8080", "file://"] {
            assert!(!asks(&[("host", "localhost:4646"), ("origin", origin)]), "{origin}");
        }
        let six: IpAddr = "::1".parse().unwrap();
        assert!(security().same_site(&headers(&[("host", "[::1]:4646")]), six).is_ok());
    }

    #[test]
    fn a_token_comes_in_either_header() {
        assert_eq!(token(&headers(&[("x-nomad-token", "a")])), Some("a"));
        assert_eq!(token(&headers(&[("authorization", "Bearer b")])), Some("b"));
        assert_eq!(token(&headers(&[("x-nomad-token", ""), ("authorization", "bearer  c ")])), Some("c"));
        assert_eq!(token(&headers(&[("authorization", "Basic b")])), None);
        assert_eq!(token(&headers(&[])), None);
    }
}
