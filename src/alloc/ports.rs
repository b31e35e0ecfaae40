//! Choice of host ports.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};

use crate::spec::{Network, Port, Pos};
use crate::sys::lock::lock;

/// Label to host port.
pub type PortMap = BTreeMap<String, u16>;

/// Nomad's range of dynamic ports.
const DYNAMIC: std::ops::RangeInclusive<u16> = 20_000..=32_000;

/// Why a group has no ports.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A fixed port is taken.
    #[error("{pos}: port {label:?}: {port} is not free; stop what listens there or leave out `static`")]
    Taken {
        /// Its label.
        label: String,
        /// The port.
        port: u16,
        /// Where it stands.
        pos: Pos,
        /// What the kernel said; nothing when another group of the job has it.
        source: Option<io::Error>,
    },
    /// The whole dynamic range is taken.
    #[error("{pos}: port {label:?}: no port from 20000 to 32000 is free")]
    Exhausted {
        /// Its label.
        label: String,
        /// Where it stands.
        pos: Pos,
    },
}

/// Ports given to the allocations of one process, so that two that start together do not get the same.
#[derive(Debug, Clone, Default)]
pub struct PortPool(Arc<Mutex<BTreeSet<u16>>>);

impl PortPool {
    /// Chooses a port for each label of `network`: all or none.
    ///
    /// # Errors
    /// [`PortError`].
    pub fn allocate(&self, network: &Network) -> Result<PortMap, PortError> {
        let mut taken = lock(&self.0);
        let mut chosen = PortMap::new();
        let result = choose_all(network, &mut taken, &mut chosen);
        if result.is_err() {
            taken.retain(|port| !chosen.values().any(|p| p == port));
        }
        result.map(|()| chosen)
    }

    /// Gives the ports back.
    pub fn release(&self, ports: &PortMap) {
        let mut taken = lock(&self.0);
        taken.retain(|port| !ports.values().any(|p| p == port));
    }
}

fn choose_all(network: &Network, taken: &mut BTreeSet<u16>, chosen: &mut PortMap) -> Result<(), PortError> {
    let (fixed, dynamic): (Vec<&Port>, Vec<&Port>) = network.ports.iter().partition(|p| p.static_port.is_some());
    for port in fixed.into_iter().chain(dynamic) {
        let number = match port.static_port {
            Some(number) => fixed_port(port, number, taken)?,
            None => dynamic_port(port, taken)?,
        };
        taken.insert(number);
        chosen.insert(port.label.clone(), number);
    }
    Ok(())
}

fn fixed_port(port: &Port, number: u16, taken: &BTreeSet<u16>) -> Result<u16, PortError> {
    let error = |source| PortError::Taken { label: port.label.clone(), port: number, pos: port.pos.clone(), source };
    if taken.contains(&number) {
        return Err(error(None));
    }
    match test_bind(number) {
        // Whether the task may bind it is for its own privileges to say.
        Err(e) if e.kind() != io::ErrorKind::PermissionDenied => Err(error(Some(e))),
        _ => Ok(number),
    }
}

fn dynamic_port(port: &Port, taken: &BTreeSet<u16>) -> Result<u16, PortError> {
    let count = DYNAMIC.end() - DYNAMIC.start() + 1;
    let random = crate::sys::random::bits() % u128::from(count);
    let start = u16::try_from(random).unwrap_or_default();
    (0..count)
        .map(|i| DYNAMIC.start() + (start + i) % count)
        .find(|number| !taken.contains(number) && test_bind(*number).is_ok())
        .ok_or_else(|| PortError::Exhausted { label: port.label.clone(), pos: port.pos.clone() })
}

/// Binds for an instant, as TCP and as UDP: a task may use the port for either.
fn test_bind(port: u16) -> io::Result<()> {
    let _tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let _udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(ports: &[(&str, Option<u16>)]) -> Network {
        let port =
            |(label, port): &(&str, _)| Port { label: (*label).to_owned(), static_port: *port, pos: Pos::default() };
        Network { ports: ports.iter().map(port).collect(), ..Network::default() }
    }

    #[test]
    fn dynamic_ports_are_free_distinct_and_in_range() {
        let pool = PortPool::default();
        let first = pool.allocate(&network(&[("a", None), ("b", None)])).unwrap();
        let second = pool.allocate(&network(&[("a", None)])).unwrap();
        let all: BTreeSet<_> = first.values().chain(second.values()).collect();
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|p| DYNAMIC.contains(p)));
    }

    #[test]
    fn a_static_port_in_use_is_refused_and_the_others_are_given_back() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let busy = listener.local_addr().unwrap().port();
        let pool = PortPool::default();
        let error = pool.allocate(&network(&[("dyn", None), ("http", Some(busy))])).unwrap_err();
        assert!(matches!(error, PortError::Taken { port, .. } if port == busy), "{error}");
        assert!(pool.0.lock().unwrap().is_empty());
        drop(listener);
        let ports = pool.allocate(&network(&[("http", Some(busy))])).unwrap();
        assert!(pool.allocate(&network(&[("http", Some(busy))])).is_err(), "one port serves one allocation");
        pool.release(&ports);
        assert!(pool.allocate(&network(&[("http", Some(busy))])).is_ok());
    }
}
