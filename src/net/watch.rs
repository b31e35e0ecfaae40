//! Firewalls of others that come later: Docker, when it is started, makes a chain of iptables that drops forwarded packets, and then the
//! bridge's need the chain that accepts them, which they could do without before. The kernel tells when such a chain changes; of the
//! older way in which iptables makes its tables it tells nothing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::net::netlink::NETFILTER;

use super::lease::NAME;
use super::netlink::{attribute, listen, next_message};
use super::rules::{CHAIN_NAME, CHAIN_TABLE, GONE_RULE, HEADER, NEW_CHAIN, NEW_RULE, RULE_CHAIN};
use super::{Error, PATIENCE, bridge, take_lock};

/// `NFNLGRP_NFTABLES` of `<linux/netfilter/nfnetlink.h>`, as a bit.
const GROUP: u32 = 1 << 6;
/// Longest piece that is read at once; of a longer one the beginning is.
const LONGEST_PIECE: usize = 64 << 10;

/// Hears of changes of other programs' rules for forwarded packets, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct FirewallWatch {
    socket: Arc<OwnedFd>,
    run_dir: PathBuf,
}

impl FirewallWatch {
    pub(super) fn open(run_dir: PathBuf) -> io::Result<FirewallWatch> {
        Ok(FirewallWatch { socket: Arc::new(listen(NETFILTER, GROUP)?), run_dir })
    }

    /// What can be read from when something has changed.
    #[must_use]
    pub fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.socket)
    }

    /// Reads everything that is there to read, and returns whether packets of the bridge may be dropped since.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        let mut piece = vec![0; LONGEST_PIECE];
        let mut has_changed = false;
        loop {
            match rustix::net::recv(&self.socket, &mut piece, RecvFlags::DONTWAIT) {
                Ok((length, _)) => has_changed |= concerns_forwarded(piece.get(..length).unwrap_or_default()),
                Err(Errno::INTR) => {}
                // The kernel had more to tell than there was room for.
                Err(Errno::NOBUFS) => has_changed = true,
                Err(_) => return has_changed,
            }
        }
    }

    /// Makes the chain that accepts the packets of the bridge, if there is the bridge and others' rules may drop them now.
    ///
    /// # Errors
    /// [`Error`]; the next allocation tries it again.
    pub fn accept(&self) -> Result<(), Error> {
        let mut locked = take_lock(&self.run_dir, NAME, &Arc::default())?;
        bridge::accept_forwarded(&mut locked, &self.run_dir, PATIENCE)
    }
}

/// Whether a message says that the chain FORWARD of iptables was made or changed, or has got or lost a rule.
fn concerns_forwarded(mut piece: &[u8]) -> bool {
    while let Ok((kind, payload)) = next_message(&mut piece) {
        let name = match kind {
            NEW_CHAIN => Some(CHAIN_NAME),
            NEW_RULE | GONE_RULE => Some(RULE_CHAIN),
            _ => None,
        };
        if let (Some(name), Some((header, attributes))) = (name, payload.split_at_checked(HEADER))
            && [libc::NFPROTO_IPV4, libc::NFPROTO_IPV6].contains(&i32::from(header[0]))
            && attribute(attributes, CHAIN_TABLE) == Some(b"filter\0")
            && attribute(attributes, name) == Some(b"FORWARD\0")
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{Emitable as _, NetlinkHeader};

    use super::*;
    use crate::net::netlink::{emit, text};

    fn message(kind: u16, family: i32, names: &[(u16, &str)]) -> Vec<u8> {
        let mut message = vec![0; 16];
        message.extend([u8::try_from(family).unwrap(), 0, 0, 0]);
        emit(&names.iter().map(|(kind, name)| text(*kind, name)).collect::<Vec<_>>(), &mut message);
        let mut header = NetlinkHeader::default();
        (header.length, header.message_type) = (u32::try_from(message.len()).unwrap(), kind);
        header.emit(&mut message[..16]);
        message
    }

    #[test]
    fn a_chain_of_iptables_for_forwarded_packets_concerns_the_bridge() {
        let chain = |table, name| message(NEW_CHAIN, libc::NFPROTO_IPV4, &[(CHAIN_TABLE, table), (CHAIN_NAME, name)]);
        assert!(concerns_forwarded(&chain("filter", "FORWARD")));
        assert!(concerns_forwarded(&[chain("nat", "DOCKER"), chain("filter", "FORWARD")].concat()), "the second one");
        let rule = [(CHAIN_TABLE, "filter"), (RULE_CHAIN, "FORWARD")];
        assert!(concerns_forwarded(&message(GONE_RULE, libc::NFPROTO_IPV6, &rule)));
        assert!(concerns_forwarded(&message(NEW_RULE, libc::NFPROTO_IPV4, &rule)));
        let others = [
            chain("filter", "AGENTBIN-FORWARD"),
            chain("nat", "FORWARD"),
            message(NEW_CHAIN, libc::NFPROTO_INET, &[(CHAIN_TABLE, "filter"), (CHAIN_NAME, "FORWARD")]),
            message(NEW_RULE, libc::NFPROTO_IPV4, &[(CHAIN_TABLE, "filter"), (RULE_CHAIN, "AGENTBIN-FORWARD")]),
            chain("filter", "FORWARD")[..20].to_vec(),
            vec![0; 64],
            Vec::new(),
        ];
        for other in others {
            assert!(!concerns_forwarded(&other), "{other:?}");
        }
    }
}
