//! Rules of the kernel for packets, by `nf_tables` of `<linux/netfilter/nf_tables.h>`: whole tables of our own, made and removed in one
//! transaction. Never changes a rule in a table of others.
//!
//! A transaction is one message to the kernel, which takes all of it or nothing. Numbers in attributes are big-endian; values with
//! which a packet's are compared have the packet's own order, or the machine's where the kernel has the number.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE};
use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;

use super::Error;
use super::netlink::{Socket, attribute, bytes, message, nested, text};

/// The subsystem in the types of messages.
pub(super) const NFTABLES: u16 = (libc::NFNL_SUBSYS_NFTABLES as u16) << 8;
const NEW_TABLE: u16 = NFTABLES | libc::NFT_MSG_NEWTABLE as u16;
const GET_TABLE: u16 = NFTABLES | libc::NFT_MSG_GETTABLE as u16;
const GONE_TABLE: u16 = NFTABLES | libc::NFT_MSG_DELTABLE as u16;
pub(super) const NEW_CHAIN: u16 = NFTABLES | libc::NFT_MSG_NEWCHAIN as u16;
const GET_CHAIN: u16 = NFTABLES | libc::NFT_MSG_GETCHAIN as u16;
pub(super) const NEW_RULE: u16 = NFTABLES | libc::NFT_MSG_NEWRULE as u16;
pub(super) const GONE_RULE: u16 = NFTABLES | libc::NFT_MSG_DELRULE as u16;
const GET_GENERATION: u16 = NFTABLES | libc::NFT_MSG_GETGEN as u16;
/// What begins a transaction, and what ends it.
const BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const END: u16 = libc::NFNL_MSG_BATCH_END as u16;

/// Attributes of a table, of a chain, and of a chain's hook.
const TABLE_NAME: u16 = 1;
pub(super) const CHAIN_TABLE: u16 = 1;
pub(super) const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
/// Attributes of a rule, of the list of its expressions, and of each.
const RULE_TABLE: u16 = 1;
pub(super) const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// Attributes of expressions, which are explained where they are used.
const VALUE: u16 = 1;
const VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
/// The register of the verdict; the one into which a value is loaded, and a second one.
const VERDICT_REGISTER: u32 = libc::NFT_REG_VERDICT as u32;
const REGISTER: u32 = libc::NFT_REG_1 as u32;
const OTHER_REGISTER: u32 = libc::NFT_REG_2 as u32;
/// The type of an address that is the machine's own, as routes call it.
const LOCAL: u32 = libc::RTN_LOCAL as u32;

/// What a table's rules are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Packets of IPv4.
    V4,
    /// Packets of IPv6.
    V6,
    /// Frames of one interface.
    Netdev,
}

impl Family {
    /// The family of an address.
    pub(super) const fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    const fn number(self) -> u8 {
        (match self {
            Family::V4 => libc::NFPROTO_IPV4,
            Family::V6 => libc::NFPROTO_IPV6,
            Family::Netdev => libc::NFPROTO_NETDEV,
        }) as u8
    }

    const fn name(self) -> &'static str {
        match self {
            Family::V4 => "ip",
            Family::V6 => "ip6",
            Family::Netdev => "netdev",
        }
    }
}

/// Where a chain is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Hook<'a> {
    /// Frames that an interface gets.
    Ingress {
        /// Its name.
        link: &'a str,
    },
    /// What comes to the machine, before its route is known.
    Prerouting,
    /// What is for the machine.
    Input,
    /// What the machine sends.
    Output,
    /// What leaves it.
    Postrouting,
}

impl Hook<'_> {
    const fn number(self) -> u32 {
        (match self {
            Hook::Ingress { .. } => libc::NF_NETDEV_INGRESS,
            Hook::Prerouting => libc::NF_INET_PRE_ROUTING,
            Hook::Input => libc::NF_INET_LOCAL_IN,
            Hook::Output => libc::NF_INET_LOCAL_OUT,
            Hook::Postrouting => libc::NF_INET_POST_ROUTING,
        }) as u32
    }
}

/// What becomes of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Accept,
    Drop,
}

impl Verdict {
    const fn number(self) -> u32 {
        (match self {
            Verdict::Accept => libc::NF_ACCEPT,
            Verdict::Drop => libc::NF_DROP,
        }) as u32
    }
}

/// A chain without its rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain<'a> {
    pub(super) name: &'a str,
    /// Whether it changes addresses, which is asked for the first packet of a connection only.
    pub(super) is_nat: bool,
    pub(super) hook: Hook<'a>,
    /// Its place among the chains of the same hook: the lowest first.
    pub(super) priority: i32,
    /// What becomes of packets that no rule decides about.
    pub(super) policy: Verdict,
}

/// A part of a packet, or what the kernel knows of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    /// Bytes of the frame's header from here.
    Link(u32),
    /// Bytes of the header of IPv4, IPv6 or ARP from here.
    Network(u32),
    /// Bytes of the header after that from here.
    Transport(u32),
    /// The kind of interface that it came by (`ARPHRD_` of `<linux/if_arp.h>`).
    LinkKind,
    /// The number of its protocol, as a frame has it.
    Protocol,
    /// The number of the protocol within it.
    Inner,
    /// Name of the interface by which it came.
    From,
    /// Name of the interface by which it leaves.
    To,
}

/// What a packet has to be, all of it, and what becomes of it then.
#[derive(Debug, Clone, Default)]
pub(super) struct Rule(Vec<DefaultNla>);

impl Rule {
    pub(super) fn new() -> Rule {
        Rule::default()
    }

    /// It has this value.
    pub(super) fn with(self, what: What, value: &[u8]) -> Rule {
        self.load(what, value.len()).compare(libc::NFT_CMP_EQ, value)
    }

    /// It has another value.
    pub(super) fn without(self, what: What, value: &[u8]) -> Rule {
        self.load(what, value.len()).compare(libc::NFT_CMP_NEQ, value)
    }

    /// An address there is in this network.
    pub(super) fn within(self, what: What, base: IpAddr, prefix: u8) -> Rule {
        let (rule, value) = self.masked(what, base, prefix);
        rule.compare(libc::NFT_CMP_EQ, &value)
    }

    /// An address there is not in this network.
    pub(super) fn outside(self, what: What, base: IpAddr, prefix: u8) -> Rule {
        let (rule, value) = self.masked(what, base, prefix);
        rule.compare(libc::NFT_CMP_NEQ, &value)
    }

    /// It comes by, or leaves by, the interface of this name.
    pub(super) fn by(self, what: What, link: &str) -> Rule {
        self.with(what, &name_of(link))
    }

    /// It leaves by another interface.
    pub(super) fn not_by(self, what: What, link: &str) -> Rule {
        self.without(what, &name_of(link))
    }

    /// It belongs to no connection with one of these bits in its state (`ct state`).
    pub(super) fn without_state(self, bits: u32) -> Rule {
        self.connection(libc::NFT_CT_STATE, bits).compare(libc::NFT_CMP_EQ, &0_u32.to_ne_bytes())
    }

    /// It belongs to a connection with one of these bits in its status (`ct status`).
    pub(super) fn with_status(self, bits: u32) -> Rule {
        self.connection(libc::NFT_CT_STATUS, bits).compare(libc::NFT_CMP_NEQ, &0_u32.to_ne_bytes())
    }

    /// It is for an address of the machine.
    pub(super) fn local(self) -> Rule {
        // NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR.
        let rule = self.expression("fib", &[number(1, REGISTER), number(2, 3), number(3, 2)]);
        rule.compare(libc::NFT_CMP_EQ, &LOCAL.to_ne_bytes())
    }

    /// Then it is accepted or dropped.
    pub(super) fn then(self, verdict: Verdict) -> Rule {
        let code = nested(VERDICT, &[number(VERDICT_CODE, verdict.number())]);
        self.expression("immediate", &[number(1, VERDICT_REGISTER), nested(2, &[code])])
    }

    /// Then it, and what belongs to its connection, leaves with the machine's address.
    pub(super) fn masquerade(self) -> Rule {
        self.expression("masq", &[])
    }

    /// Then it, and what belongs to its connection, is led to this port.
    pub(super) fn lead_to(self, target: SocketAddr) -> Rule {
        let family = u32::from(Family::of(target.ip()).number());
        let rule = self.set(REGISTER, &octets(target.ip())).set(OTHER_REGISTER, &target.port().to_be_bytes());
        let kind = libc::NFT_NAT_DNAT as u32;
        rule.expression("nat", &[number(1, kind), number(2, family), number(3, REGISTER), number(5, OTHER_REGISTER)])
    }

    fn load(self, what: What, length: usize) -> Rule {
        let meta = |key: i32| ("meta", vec![number(1, REGISTER), number(2, key as u32)]);
        let payload = |base: i32, offset: u32| {
            let length = u32::try_from(length).unwrap_or_default();
            ("payload", vec![number(1, REGISTER), number(2, base as u32), number(3, offset), number(4, length)])
        };
        let (name, data) = match what {
            What::Link(offset) => payload(libc::NFT_PAYLOAD_LL_HEADER, offset),
            What::Network(offset) => payload(libc::NFT_PAYLOAD_NETWORK_HEADER, offset),
            What::Transport(offset) => payload(libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset),
            What::LinkKind => meta(libc::NFT_META_IIFTYPE),
            What::Protocol => meta(libc::NFT_META_PROTOCOL),
            What::Inner => meta(libc::NFT_META_L4PROTO),
            What::From => meta(libc::NFT_META_IIFNAME),
            What::To => meta(libc::NFT_META_OIFNAME),
        };
        self.expression(name, &data)
    }

    /// Loads the part of an address that its network has, and gives that part of the network's: as many bytes, or all with a mask, so
    /// that programs that list rules know the address in it.
    fn masked(self, what: What, base: IpAddr, prefix: u8) -> (Rule, Vec<u8>) {
        let mut value = octets(base);
        if prefix.is_multiple_of(8) {
            value.truncate(usize::from(prefix / 8));
            return (self.load(what, value.len()), value);
        }
        let bits = |byte: usize| usize::from(prefix).saturating_sub(8 * byte).min(8);
        let mask: Vec<u8> = (0..value.len()).map(|byte| !(0xff_u16 >> bits(byte)) as u8).collect();
        (self.load(what, value.len()).mask(&mask), value)
    }

    fn connection(self, key: i32, bits: u32) -> Rule {
        self.expression("ct", &[number(1, REGISTER), number(2, key as u32)]).mask(&bits.to_ne_bytes())
    }

    fn mask(self, mask: &[u8]) -> Rule {
        let value = |kind, value: &[u8]| nested(kind, &[bytes(VALUE, value)]);
        let length = number(3, u32::try_from(mask.len()).unwrap_or_default());
        let none = vec![0; mask.len()];
        self.expression("bitwise", &[number(1, REGISTER), number(2, REGISTER), length, value(4, mask), value(5, &none)])
    }

    fn compare(self, how: i32, value: &[u8]) -> Rule {
        self.expression("cmp", &[number(1, REGISTER), number(2, how as u32), nested(3, &[bytes(VALUE, value)])])
    }

    fn set(self, register: u32, value: &[u8]) -> Rule {
        self.expression("immediate", &[number(1, register), nested(2, &[bytes(VALUE, value)])])
    }

    fn expression(mut self, name: &str, data: &[DefaultNla]) -> Rule {
        let expression = [text(EXPRESSION_NAME, name), nested(EXPRESSION_DATA, data)];
        self.0.push(nested(ELEMENT, &expression));
        self
    }
}

/// The name of an interface as the kernel compares it.
fn name_of(link: &str) -> [u8; libc::IFNAMSIZ] {
    let mut name = [0; libc::IFNAMSIZ];
    for (into, byte) in name.iter_mut().zip(link.bytes()) {
        *into = byte;
    }
    name
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn number(kind: u16, value: u32) -> DefaultNla {
    bytes(kind, &value.to_be_bytes())
}

/// A transaction.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    messages: Vec<(Message, Vec<DefaultNla>)>,
}

/// What a message asks for: its type and its flags, the family, and what an error says of it.
#[derive(Debug, Clone)]
struct Message {
    kind: u16,
    flags: u16,
    family: Family,
    what: String,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch::default()
    }

    /// Removes a table; one that does not exist counts as removed.
    pub(super) fn remove(&mut self, family: Family, table: &str) {
        let what = format!("remove the table {} {table}", family.name());
        // The kernel knows no other way to remove what may not exist: it is made before.
        for (kind, flags) in [(NEW_TABLE, NLM_F_CREATE), (GONE_TABLE, 0)] {
            self.push(kind, flags, family, &what, vec![text(TABLE_NAME, table)]);
        }
    }

    /// Makes an empty table, in the place of one that exists.
    pub(super) fn replace(&mut self, family: Family, table: &str) {
        self.remove(family, table);
        let what = format!("make the table {} {table}", family.name());
        self.push(NEW_TABLE, NLM_F_CREATE, family, &what, vec![text(TABLE_NAME, table)]);
    }

    /// Makes a chain with its rules in a table of this transaction.
    pub(super) fn chain(&mut self, family: Family, table: &str, chain: &Chain<'_>, rules: &[Rule]) {
        let name = chain.name;
        let what = format!("make the chain {name} of the table {} {table}", family.name());
        let place = [number(HOOK_NUMBER, chain.hook.number()), bytes(HOOK_PRIORITY, &chain.priority.to_be_bytes())];
        let device = match chain.hook {
            Hook::Ingress { link } => Some(text(HOOK_DEVICE, link)),
            _ => None,
        };
        let place: Vec<_> = place.into_iter().chain(device).collect();
        let attributes = vec![
            text(CHAIN_TABLE, table),
            text(CHAIN_NAME, name),
            nested(CHAIN_HOOK, &place),
            number(CHAIN_POLICY, chain.policy.number()),
            text(CHAIN_TYPE, if chain.is_nat { "nat" } else { "filter" }),
        ];
        self.push(NEW_CHAIN, NLM_F_CREATE, family, &what, attributes);
        for (at, Rule(expressions)) in rules.iter().enumerate() {
            let what = format!("make rule {} of the chain {name} of the table {} {table}", at + 1, family.name());
            let attributes =
                vec![text(RULE_TABLE, table), text(RULE_CHAIN, name), nested(RULE_EXPRESSIONS, expressions)];
            self.push(NEW_RULE, NLM_F_CREATE | NLM_F_APPEND, family, &what, attributes);
        }
    }

    fn push(&mut self, kind: u16, flags: u16, family: Family, what: &str, attributes: Vec<DefaultNla>) {
        self.messages.push((Message { kind, flags, family, what: what.to_owned() }, attributes));
    }

    /// Does all of it, or nothing.
    ///
    /// # Errors
    /// [`Error::Rules`]: what the kernel did not take, and why.
    pub(super) fn commit(&self) -> Result<(), Error> {
        self.send(true)
    }

    /// Asks the kernel whether it would take all of it, and does nothing.
    ///
    /// # Errors
    /// [`Error::Rules`].
    pub(super) fn check(&self) -> Result<(), Error> {
        self.send(false)
    }

    fn send(&self, is_meant: bool) -> Result<(), Error> {
        if self.messages.is_empty() {
            return Ok(());
        }
        let all = self.bytes(is_meant);
        let socket = Socket::open(Some(NETFILTER)).map_err(|error| (0, error));
        let done = socket.and_then(|socket| {
            let done = socket.change(&all);
            socket.close_later();
            done
        });
        done.map_err(|(number, source)| {
            let named = usize::try_from(number).ok().and_then(|number| self.messages.get(number.checked_sub(1)?));
            let what = named.map_or_else(|| "change the rules".to_owned(), |(message, _)| message.what.clone());
            Error::Rules { what, source }
        })
    }

    /// What each of its messages does.
    #[cfg(test)]
    pub(super) fn lines(&self) -> Vec<String> {
        self.messages.iter().map(|(message, _)| message.what.clone()).collect()
    }

    /// What is sent: each message has its place as its number, from 1 on. The kernel tells nothing but errors unless it is asked, and
    /// it does nothing if the end is missing.
    fn bytes(&self, is_meant: bool) -> Vec<u8> {
        let mut all = Vec::new();
        let bound = header(0, (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes());
        message(&mut all, BEGIN, 0, 0, &bound, &[]);
        for (place, (Message { kind, flags, family, .. }, attributes)) in (1..).zip(&self.messages) {
            let asks = if place == self.messages.len() { NLM_F_ACK } else { 0 };
            let place = u32::try_from(place).unwrap_or_default();
            message(&mut all, *kind, flags | asks, place, &header(family.number(), [0; 2]), attributes);
        }
        if is_meant {
            message(&mut all, END, 0, 0, &bound, &[]);
        }
        all
    }
}

/// `struct nfgenmsg`: the family, a version, and what the message says of more than one.
const fn header(family: u8, more: [u8; 2]) -> [u8; 4] {
    [family, 0, more[0], more[1]]
}

/// Length of that.
pub(super) const HEADER: usize = 4;

/// Whether an error says that the kernel has no `nf_tables`, or not this family of it: it has no such protocol; no such part of it, to
/// which it says one thing for a transaction and another one for a single message.
fn is_unknown(error: &io::Error) -> bool {
    let unknown = [Errno::PROTONOSUPPORT, Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::INVAL];
    Errno::from_io_error(error).is_some_and(|error| unknown.contains(&error))
}

/// Whether the kernel has `nf_tables`.
///
/// # Errors
/// [`Error::Rules`] where it does not say.
pub(super) fn are_there() -> Result<bool, Error> {
    match get(GET_GENERATION, 0, &[]) {
        Ok(()) => Ok(true),
        Err(error) if is_unknown(&error) => Ok(false),
        Err(source) => Err(Error::Rules { what: "ask for the rules".to_owned(), source }),
    }
}

/// Whether the kernel has this chain. What it does not tell may be.
pub(super) fn may_have(family: u8, table: &str, chain: &str) -> bool {
    let found = get(GET_CHAIN, family, &[text(CHAIN_TABLE, table), text(CHAIN_NAME, chain)]);
    !found.is_err_and(|error| is_unknown(&error) || Errno::from_io_error(&error) == Some(Errno::NOENT))
}

/// Asks for one thing.
fn get(kind: u16, family: u8, named: &[DefaultNla]) -> io::Result<()> {
    Socket::open(Some(NETFILTER))?.is_there(kind, &header(family, [0; 2]), named)
}

/// Removes tables, each a family and a name. One that does not exist, or cannot on this kernel, counts as removed.
///
/// # Errors
/// [`Error::Rules`].
pub(super) fn remove(tables: &[(Family, &str)]) -> Result<(), Error> {
    let mut all = Batch::new();
    for (family, table) in tables {
        all.remove(*family, table);
    }
    let Err(error) = all.commit() else { return Ok(()) };
    match &error {
        Error::Rules { source, .. } if is_unknown(source) => {}
        _ => return Err(error),
    }
    // A kernel that does not know a family takes nothing that names it.
    for (family, table) in tables {
        let is_there = match get(GET_TABLE, family.number(), &[text(TABLE_NAME, table)]) {
            Err(error) if is_unknown(&error) || Errno::from_io_error(&error) == Some(Errno::NOENT) => false,
            // Removing it says what is wrong.
            _ => true,
        };
        if is_there {
            let mut one = Batch::new();
            one.remove(*family, table);
            one.commit()?;
        }
    }
    Ok(())
}

/// A chain that somebody has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Number of its family.
    pub(super) family: u8,
    pub(super) table: String,
    pub(super) name: String,
    /// Whether it is asked for packets that the machine forwards.
    pub(super) is_for_forwarded: bool,
    /// Whether it drops what its rules do not decide about.
    pub(super) drops: bool,
}

impl Found {
    fn of(message: &[u8]) -> Option<Found> {
        let (header, attributes) = message.split_at_checked(HEADER)?;
        let name = |kind| {
            let name = attribute(attributes, kind)?;
            Some(String::from_utf8_lossy(name.strip_suffix(b"\0").unwrap_or(name)).into_owned())
        };
        let value = |attributes: &[u8], kind| Some(u32::from_be_bytes(*attribute(attributes, kind)?.first_chunk()?));
        let hook = attribute(attributes, CHAIN_HOOK).and_then(|hook| value(hook, HOOK_NUMBER));
        Some(Found {
            family: *header.first()?,
            table: name(CHAIN_TABLE)?,
            name: name(CHAIN_NAME)?,
            is_for_forwarded: hook == Some(libc::NF_INET_FORWARD as u32),
            drops: value(attributes, CHAIN_POLICY) == Some(Verdict::Drop.number()),
        })
    }

    /// What `nft(8)` calls its family.
    pub(super) fn family_name(&self) -> &'static str {
        match i32::from(self.family) {
            libc::NFPROTO_IPV4 => "ip",
            libc::NFPROTO_IPV6 => "ip6",
            libc::NFPROTO_INET => "inet",
            libc::NFPROTO_ARP => "arp",
            libc::NFPROTO_BRIDGE => "bridge",
            libc::NFPROTO_NETDEV => "netdev",
            _ => "unknown",
        }
    }
}

/// All chains of all tables. None where the kernel has no `nf_tables`.
///
/// # Errors
/// When the kernel does not list them.
pub(super) fn chains() -> io::Result<Vec<Found>> {
    let mut all = Vec::new();
    let listed = Socket::open(Some(NETFILTER)).and_then(|socket| {
        socket.list(GET_CHAIN, &header(0, [0; 2]), &mut |message| {
            all.extend(Found::of(message));
            Ok(())
        })
    });
    match listed {
        Err(error) if !is_unknown(&error) => Err(error),
        _ => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::super::netlink::next_message;
    use super::*;

    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.replace(Family::V4, "t");
        let hook = Hook::Input;
        let chain = Chain { name: "c", is_nat: false, hook, priority: -1, policy: Verdict::Drop };
        batch.chain(Family::V4, "t", &chain, &[Rule::new().with(What::Inner, &[6]).then(Verdict::Accept)]);
        batch
    }

    #[test]
    fn a_transaction_is_one_message_which_the_kernel_does_only_with_its_end() {
        let kinds = |is_meant| {
            let all = batch().bytes(is_meant);
            let (mut rest, mut kinds) = (&all[..], Vec::new());
            while !rest.is_empty() {
                kinds.push(next_message(&mut rest).unwrap().0);
            }
            kinds
        };
        let inner = [BEGIN, NEW_TABLE, GONE_TABLE, NEW_TABLE, NEW_CHAIN, NEW_RULE];
        assert_eq!(kinds(false), inner);
        assert_eq!(kinds(true), [&inner[..], &[END]].concat());
    }

    #[test]
    fn only_the_last_message_asks_and_each_has_its_number() {
        let all = batch().bytes(true);
        let (mut rest, mut found) = (&all[..], Vec::new());
        while !rest.is_empty() {
            let whole = netlink_packet_core::NetlinkBuffer::new_checked(rest).unwrap();
            found.push((whole.sequence_number(), whole.flags() & NLM_F_ACK != 0));
            next_message(&mut rest).unwrap();
        }
        let numbers: Vec<u32> = found.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 0]);
        let asks: Vec<u32> = found.iter().filter(|(_, asks)| *asks).map(|(number, _)| *number).collect();
        assert_eq!(asks, [5]);
    }

    #[test]
    fn a_network_is_compared_by_its_bytes_or_with_a_mask() {
        let of = |base: &str, prefix| {
            let (rule, value) = Rule::new().masked(What::Network(12), base.parse().unwrap(), prefix);
            (rule.0.len(), value)
        };
        assert_eq!(of("127.0.0.0", 8), (1, vec![127]));
        assert_eq!(of("10.126.64.0", 20), (2, vec![10, 126, 64, 0]), "and a mask");
        assert_eq!(of("fd00::", 64), (1, vec![0xfd, 0, 0, 0, 0, 0, 0, 0]));
        let Rule(all) = Rule::new().within(What::Network(12), "10.126.64.0".parse().unwrap(), 20);
        let mask = format!("{:?}", all[1]);
        assert!(mask.contains("255, 255, 240, 0"), "{mask}");
    }

    #[test]
    fn chains_of_others_are_read() {
        let hook = |hook| nested(CHAIN_HOOK, &[number(HOOK_NUMBER, hook)]);
        let of = |family, attributes: &[DefaultNla]| {
            let mut message = header(family, [0; 2]).to_vec();
            super::super::netlink::emit(attributes, &mut message);
            Found::of(&message)
        };
        let names = [text(CHAIN_TABLE, "t"), text(CHAIN_NAME, "c")];
        let found = of(1, &[&names[..], &[hook(2), number(CHAIN_POLICY, 0)]].concat()).unwrap();
        assert_eq!((found.family_name(), &*found.table, &*found.name), ("inet", "t", "c"));
        assert!(found.is_for_forwarded && found.drops);
        let found = of(2, &[&names[..], &[hook(1), number(CHAIN_POLICY, 1)]].concat()).unwrap();
        assert!(!found.is_for_forwarded && !found.drops, "{found:?}");
        let found = of(2, &names).unwrap();
        assert!(!found.is_for_forwarded && !found.drops, "no chain of the kernel's");
        assert_eq!((of(2, &names[..1]), Found::of(&[])), (None, None));
    }

    #[test]
    fn only_what_a_kernel_without_them_says_means_that_there_are_none() {
        let is = |error: Errno| is_unknown(&error.into());
        assert!(is(Errno::PROTONOSUPPORT) && is(Errno::OPNOTSUPP) && is(Errno::AFNOSUPPORT) && is(Errno::INVAL));
        assert!(!is(Errno::NOBUFS) && !is(Errno::PERM) && !is(Errno::NOENT) && !is_unknown(&io::Error::other("x")));
    }
}
