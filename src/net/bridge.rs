//! The network of mode `bridge`: a bridge of our own, its CNI list, and the few rules that it needs besides.
//!
//! The reference plugins connect each allocation and map its ports; where they are not installed, `builtin` does. Rules that are the
//! same for all allocations are in a table of our own, once: packets leave with the host's address, and do not reach the host's
//! loopback. Where rules of iptables drop forwarded packets, a chain of ours accepts those of the bridge. Where the kernel has no
//! `nf_tables`, for which the plugins do not ask, all of them are in chains of iptables. Bridge and rules are removed with the last
//! allocation. Rules for a single allocation are in `guard`, and in `builtin` those of its ports.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use sha2::Digest as _;

use super::builtin::Member;
use super::cni::List;
use super::guard::Wire;
use super::lease::{By, NAME, leases, taken};
use super::lock::Locked;
use super::{Error, Mapping, Subnet, Subnets, builtin, conntrack, forward, program, rules};
use crate::spec::json::json;
use crate::sys::{self, owned};

const FORWARD: &str = "AGENTBIN-FORWARD";
const INPUT: &str = "AGENTBIN-INPUT";
const LEAVE: &str = "AGENTBIN-LEAVE";
/// Longest mark file that is read, in bytes: two subnets.
const LONGEST_MARK: u64 = 128;
/// Table, chain of the kernel, our chain: beside rules of `nf_tables` there is the first, for IPv6 the first two.
const JUMPS: [(&str, &str, &str); 3] =
    [("filter", "FORWARD", FORWARD), ("nat", "POSTROUTING", LEAVE), ("filter", "INPUT", INPUT)];

/// The programs for the rules of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tables {
    iptables: &'static str,
    restore: &'static str,
    jumps: usize,
    accepts: &'static str,
    /// How the kernel calls the family.
    family: u8,
    /// The tables of the older of the two ways in which iptables makes them, in the network namespace of this thread.
    names: &'static str,
}

const V4: Tables = Tables {
    iptables: "iptables",
    restore: "iptables-restore",
    jumps: 3,
    accepts: "agentbin.accepts",
    family: libc::NFPROTO_IPV4 as u8,
    names: "/proc/thread-self/net/ip_tables_names",
};
const V6: Tables = Tables {
    iptables: "ip6tables",
    restore: "ip6tables-restore",
    jumps: 2,
    accepts: "agentbin.accepts6",
    family: libc::NFPROTO_IPV6 as u8,
    names: "/proc/thread-self/net/ip6_tables_names",
};

impl Tables {
    const fn of(subnet: Subnet) -> Tables {
        if subnet.base.is_ipv4() { V4 } else { V6 }
    }

    /// Checks that the programs exist.
    fn check(self) -> Result<(), Error> {
        iptables(self.iptables).and_then(|_| iptables(self.restore)).map(drop)
    }

    /// The file that says that the chain for forwarded packets may exist beside the rules of `nf_tables`. The chain itself is not asked
    /// for: a question that fails would be taken for a no, and the chain would stay.
    fn accepts(self, run_dir: &Path) -> PathBuf {
        run_dir.join("lock").join(self.accepts)
    }
}

/// The CNI list for each allocation.
pub(super) fn list(run_dir: &Path, subnets: Subnets) -> Result<List, String> {
    let ranges: Vec<_> = subnets.all().map(|subnet| json!([{ "subnet": subnet.to_string() }])).collect();
    let all = |subnet: Subnet| json!({ "dst": if subnet.base.is_ipv4() { "0.0.0.0/0" } else { "::/0" } });
    let ipam = json!({
        "type": "host-local",
        "ranges": ranges,
        "routes": subnets.all().map(all).collect::<Vec<_>>(),
        "dataDir": leases(run_dir).parent(),
    });
    let list = json!({
        "cniVersion": "0.4.0",
        "name": NAME,
        "plugins": [
            { "type": "bridge", "bridge": NAME, "isGateway": true, "hairpinMode": true, "ipam": ipam },
            { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true },
        ],
    });
    List::parse(list.to_string().as_bytes())
}

/// Whether all plugins of the list are installed.
pub(super) fn has_plugins(dirs: &[PathBuf]) -> bool {
    ["bridge", "host-local", "portmap"].iter().all(|kind| dirs.iter().any(|dir| dir.join(kind).exists()))
}

/// By what the rules that allocations share were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    Iptables,
    Tables,
}

impl Rules {
    /// The file that says that they may exist. Programs that ran here before have named it after who connected the allocations.
    fn mark(self, run_dir: &Path) -> PathBuf {
        let name = match self {
            Rules::Iptables => "agentbin.plugins",
            Rules::Tables => "agentbin.builtin",
        };
        run_dir.join("lock").join(name)
    }

    fn write_mark(self, run_dir: &Path) -> Result<(), Error> {
        let path = self.mark(run_dir);
        fs::write(&path, "").map_err(Error::system("write", &path))
    }
}

/// The file that says that we made the bridge, and its subnet.
fn mark(run_dir: &Path) -> PathBuf {
    run_dir.join("lock").join("agentbin.bridge")
}

/// Checks the requirements of the network before anything is made.
pub(super) fn check(run_dir: &Path, subnets: Subnets, by: By) -> Result<(), Error> {
    match by {
        By::Plugins => subnets.all().try_for_each(|subnet| Tables::of(subnet).check())?,
        By::Builtin => builtin::check()?,
    }
    if subnets.v6.is_some() {
        forward::check()?;
    }
    let addresses =
        sys::interfaces::addresses().map_err(Error::system("list the network interfaces of", "this machine"))?;
    for (interface, address) in addresses.into_iter().filter(|(name, _)| name != NAME) {
        if let Some(subnet) = subnets.all().find(|subnet| subnet.contains(address)) {
            return Err(Error::SubnetTaken { subnet, interface, address });
        }
    }
    if !mark(run_dir).exists() && bridge_is_there()? {
        return Err(Error::NotOurs(NAME.to_owned()));
    }
    Ok(())
}

/// Whether one more allocation can be connected.
fn has_room(run_dir: &Path, subnets: Subnets) -> Result<(), Error> {
    let most = subnets.room();
    if used(run_dir)? < most { Ok(()) } else { Err(Error::Full { most, subnets }) }
}

/// Makes what all allocations share, if it is missing.
pub(super) fn prepare(
    locked: &mut Locked,
    run_dir: &Path,
    subnets: Subnets,
    by: By,
    patience: Duration,
) -> Result<(), Error> {
    let path = mark(run_dir);
    let wanted = subnets.to_string();
    match owned::read(&path, LONGEST_MARK).map(|text| String::from_utf8_lossy(&text).into_owned()) {
        // Otherwise the kernel would report only a number, and the plugin only a range.
        Ok(made) if made == wanted => has_room(run_dir, subnets)?,
        // The rules below would disconnect each allocation that has an address.
        Ok(made) if used(run_dir)? > 0 => {
            let options =
                Subnets::parse(&made).map_or_else(|| format!("--bridge-network-subnet {made}"), Subnets::options);
            return Err(Error::OtherSubnet { asked: subnets, made, options });
        }
        Ok(_) => {
            remove_if_unused(locked, run_dir, false, patience)?;
            fs::write(&path, &wanted).map_err(Error::system("write", &path))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if bridge_is_there()? {
                return Err(Error::NotOurs(NAME.to_owned()));
            }
            fs::write(&path, &wanted).map_err(Error::system("write", &path))?;
        }
        Err(error) => return Err(Error::system("read", &path)(error)),
    }
    if subnets.v6.is_some() {
        forward::allow()?;
    }
    // The plugin's would have no IPv6 where new interfaces have none.
    if by == By::Builtin || subnets.v6.is_some() {
        builtin::make_bridge(subnets)?;
    }
    if !rules::are_there()? {
        return Ok(());
    }
    // The rules come with those of each allocation, in one transaction.
    Rules::Tables.write_mark(run_dir)?;
    accept(locked, run_dir, subnets, patience)
}

/// Makes the chain of iptables for forwarded packets, where others' rules may drop them.
fn accept(locked: &mut Locked, run_dir: &Path, subnets: Subnets, patience: Duration) -> Result<(), Error> {
    for subnet in subnets.all() {
        let tables = Tables::of(subnet);
        if drops_forwarded(locked, tables, patience)? {
            let path = tables.accepts(run_dir);
            fs::write(&path, "").map_err(Error::system("write", &path))?;
            // It has both rules or none. What is there is not made again: this is called when rules have changed.
            let own = subnet.to_string();
            if !is_done(locked, tables, &["-C", FORWARD, "-s", &own, "-i", NAME, "-j", "ACCEPT"], patience)? {
                let rules = format!("*filter\n:{FORWARD} - [0:0]\n{}COMMIT\n", accepted(subnet));
                restore(locked, tables, &rules, patience)?;
            }
            jump(locked, tables, &JUMPS[..1], patience)?;
        }
    }
    Ok(())
}

/// The same while there are allocations on the bridge: the others' rules have changed. Where all rules are in chains of iptables, the
/// chain is there anyway.
pub(super) fn accept_forwarded(locked: &mut Locked, run_dir: &Path, patience: Duration) -> Result<(), Error> {
    let made = owned::read(&mark(run_dir), LONGEST_MARK).ok();
    let subnets = made.and_then(|made| Subnets::parse(&String::from_utf8_lossy(&made)));
    match subnets {
        Some(subnets) if Rules::Tables.mark(run_dir).exists() && used(run_dir)? > 0 => {
            accept(locked, run_dir, subnets, patience)
        }
        _ => Ok(()),
    }
}

/// Makes the rules of an allocation that is connected, and those that all share. Returns why it has none for its wire, if so.
pub(super) fn make_rules(
    locked: &mut Locked,
    member: &Member<'_>,
    by: By,
    mappings: &[Mapping],
    wire: &Wire,
    patience: Duration,
) -> Result<Option<String>, Error> {
    // The plugins have mapped their ports.
    let mappings = if by == By::Builtin { mappings } else { &[] };
    match member.make_rules(mappings, wire) {
        Err(error) if by == By::Plugins => {
            Rules::Iptables.write_mark(member.run_dir)?;
            member.subnets.all().try_for_each(|subnet| allow(locked, subnet, patience))?;
            Ok(Some(error.with_cause()))
        }
        made => made,
    }
}

/// The rules for packets of the bridge that the host forwards.
fn accepted(subnet: Subnet) -> String {
    format!("-A {FORWARD} -d {subnet} -o {NAME} -j ACCEPT\n-A {FORWARD} -s {subnet} -i {NAME} -j ACCEPT\n")
}

/// Makes by iptables the rules that allocations share. The loopback of IPv6 is out of reach without a rule: the kernel takes no packet
/// for it from another interface.
fn allow(locked: &mut Locked, subnet: Subnet, patience: Duration) -> Result<(), Error> {
    let tables = Tables::of(subnet);
    let (input, loopback, multicast) = if tables == V4 {
        let loopback =
            format!("-A {INPUT} -d 127.0.0.0/8 -i {NAME} -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP\n");
        (format!(":{INPUT} - [0:0]\n"), loopback, "224.0.0.0/4")
    } else {
        (String::new(), String::new(), "ff00::/8")
    };
    // Naming a chain creates it, or empties it.
    let rules = format!(
        "*filter\n:{FORWARD} - [0:0]\n{input}{}{loopback}COMMIT\n\
         *nat\n:{LEAVE} - [0:0]\n-A {LEAVE} -s {subnet} ! -d {multicast} ! -o {NAME} -j MASQUERADE\nCOMMIT\n",
        accepted(subnet)
    );
    restore(locked, tables, &rules, patience)?;
    jump(locked, tables, &JUMPS[..tables.jumps], patience)
}

fn jump(locked: &mut Locked, tables: Tables, jumps: &[(&str, &str, &str)], patience: Duration) -> Result<(), Error> {
    for (table, chain, own) in jumps {
        if !is_done(locked, tables, &["-t", table, "-C", chain, "-j", own], patience)? {
            do_it(locked, tables, &["-t", table, "-I", chain, "1", "-j", own], patience)?;
        }
    }
    Ok(())
}

/// Whether `iptables` has rules, such as Docker's, by which forwarded packets may be dropped: no table of another program can
/// accept what one has dropped.
fn drops_forwarded(locked: &mut Locked, tables: Tables, patience: Duration) -> Result<bool, Error> {
    if tables.check().is_err() || !may_have_rules(tables) {
        return Ok(false);
    }
    let rules = forward_rules(locked, tables, patience)?;
    // Without support in the kernel there are no rules either.
    Ok(rules.is_some_and(|rules| rules.lines().any(|line| line != "-P FORWARD ACCEPT")))
}

/// Whether the kernel has a chain of `iptables` for forwarded packets, in either of the ways in which it makes them: cheaper than
/// the program. What the kernel does not tell may be.
fn may_have_rules(tables: Tables) -> bool {
    let is_legacy = match fs::read_to_string(tables.names) {
        Ok(names) => names.lines().any(|name| name == "filter"),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    is_legacy || rules::may_have(tables.family, "filter", "FORWARD")
}

/// The rules of `iptables` for forwarded packets, as its options; `None` where it says that there are none.
fn forward_rules(locked: &mut Locked, tables: Tables, patience: Duration) -> Result<Option<String>, Error> {
    let words = ["-S", "FORWARD"];
    let output = call(locked, tables.iptables, &words, "", patience)?;
    let text = || String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(is_yes(tables.iptables, &words, &output)?.then(text))
}

/// What `iptables` does with forwarded packets that no rule of it knows; `None` where that cannot be determined.
pub(super) fn forward_policy(locked: &mut Locked, with_ipv6: bool, patience: Duration) -> Option<String> {
    let tables = if with_ipv6 { V6 } else { V4 };
    // Asking would make an empty table where the older way is used.
    let rules = if may_have_rules(tables) { forward_rules(locked, tables, patience).ok()?? } else { return None };
    rules.lines().find_map(|line| line.strip_prefix("-P FORWARD ")).map(str::to_owned)
}

/// Makes the rules that all allocations share, in a namespace where nobody needs them.
pub(super) fn try_rules(locked: &mut Locked, by: By, subnets: Subnets, patience: Duration) -> Result<(), Error> {
    match by {
        By::Plugins => subnets.all().try_for_each(|subnet| allow(locked, subnet, patience)),
        By::Builtin => builtin::share(subnets),
    }
}

/// Whether the portmap plugin has left rules of an allocation: it reports success even if an `iptables` that it started was
/// killed. Of its two chains either may be left; each is removed last of what belongs to it, because a rule that jumps to a chain keeps
/// it from being deleted.
pub(super) fn has_ports(locked: &mut Locked, id: &str, subnets: Subnets, patience: Duration) -> Result<bool, Error> {
    for tables in subnets.all().map(Tables::of) {
        for kind in ["DN", "SN"] {
            if is_done(locked, tables, &["-t", "nat", "-S", &port_chain(kind, id)], patience)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The name that the reference plugins use: `CNI-DN-` or `CNI-SN-`, and as much of the digest as fits into 28 characters.
fn port_chain(kind: &str, id: &str) -> String {
    let digest = sha2::Sha512::digest(format!("{NAME}{id}"));
    let digest = digest.iter().take(16).fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    let mut name = format!("CNI-{kind}-{digest:032x}");
    name.truncate(28);
    name
}

/// How many allocations have an address, of either family.
fn used(run_dir: &Path) -> Result<usize, Error> {
    let taken = taken(run_dir)?;
    let v4 = taken.iter().filter(|(ip, _)| ip.is_ipv4()).count();
    Ok(v4.max(taken.len() - v4))
}

/// Removes what all allocations share, if no allocation has an address any more. The rules of `nf_tables` may be `unshared` already.
pub(super) fn remove_if_unused(
    locked: &mut Locked,
    run_dir: &Path,
    unshared: bool,
    patience: Duration,
) -> Result<(), Error> {
    let mark = mark(run_dir);
    if used(run_dir)? > 0 || !mark.exists() {
        return Ok(());
    }
    let made = owned::read(&mark, LONGEST_MARK).ok();
    let made = made.and_then(|text| Subnets::parse(&String::from_utf8_lossy(&text)));
    let v6 = made.and_then(|made| made.v6).map(Tables::of);
    let is_by = |rules: Rules| rules.mark(run_dir).exists();
    if is_by(Rules::Tables) && !unshared {
        builtin::unshare(v6.is_some())?;
    }
    for tables in [V4].into_iter().chain(v6) {
        if is_by(Rules::Iptables) {
            leave(locked, tables, &JUMPS[..tables.jumps], patience)?;
            // Naming a chain creates it if it is missing: an error about a missing chain could not be distinguished from another
            // failure.
            let (input, no_input) = match tables {
                V4 => (format!(":{INPUT} - [0:0]\n"), format!("-X {INPUT}\n")),
                _ => (String::new(), String::new()),
            };
            let chains = format!(
                "*filter\n:{FORWARD} - [0:0]\n{input}-X {FORWARD}\n{no_input}COMMIT\n*nat\n:{LEAVE} - [0:0]\n-X {LEAVE}\nCOMMIT\n"
            );
            restore(locked, tables, &chains, patience)?;
        } else if tables.accepts(run_dir).exists() {
            leave(locked, tables, &JUMPS[..1], patience)?;
            restore(locked, tables, &format!("*filter\n:{FORWARD} - [0:0]\n-X {FORWARD}\nCOMMIT\n"), patience)?;
        }
    }
    if bridge_is_there()? {
        let removed = sys::net::down(NAME).and_then(|()| sys::net::remove_bridge(NAME));
        removed.map_err(Error::system("remove the bridge", NAME))?;
    }
    let gateways: Vec<IpAddr> = made.into_iter().flat_map(Subnets::all).map(Subnet::gateway).collect();
    let forgotten = conntrack::forget(&gateways, &[], patience);
    forgotten.map_err(Error::system("make the kernel forget the connections of", NAME))?;
    let rest = [Rules::Iptables.mark(run_dir), Rules::Tables.mark(run_dir), V4.accepts(run_dir), V6.accepts(run_dir)];
    for path in rest {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::system("remove", path)(error)),
            _ => {}
        }
    }
    fs::remove_file(&mark).map_err(Error::system("remove", &mark))
}

fn leave(locked: &mut Locked, tables: Tables, jumps: &[(&str, &str, &str)], patience: Duration) -> Result<(), Error> {
    for (table, chain, own) in jumps {
        while is_done(locked, tables, &["-t", table, "-C", chain, "-j", own], patience)? {
            do_it(locked, tables, &["-t", table, "-D", chain, "-j", own], patience)?;
        }
    }
    Ok(())
}

fn bridge_is_there() -> Result<bool, Error> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let number = socket.and_then(|socket| rustix::net::netdevice::name_to_index(socket, NAME));
    match number {
        Ok(_) => Ok(true),
        Err(Errno::NODEV | Errno::NXIO) => Ok(false),
        Err(error) => Err(Error::system("look for the interface", NAME)(error.into())),
    }
}

fn iptables(program: &'static str) -> Result<PathBuf, Error> {
    program::find(program).ok_or(Error::NoProgram { program, package: "iptables" })
}

/// Whether `iptables` succeeds.
fn is_done(locked: &mut Locked, tables: Tables, words: &[&str], patience: Duration) -> Result<bool, Error> {
    is_yes(tables.iptables, words, &call(locked, tables.iptables, words, "", patience)?)
}

/// What a program says by its exit status. One that was killed has said nothing.
fn is_yes(program: &str, words: &[&str], output: &program::Output) -> Result<bool, Error> {
    match output.status.code() {
        Some(status) => Ok(status == 0),
        None => Err(failed(program, words, output.reason())),
    }
}

fn do_it(locked: &mut Locked, tables: Tables, words: &[&str], patience: Duration) -> Result<(), Error> {
    succeed(tables.iptables, words, &call(locked, tables.iptables, words, "", patience)?)
}

fn restore(locked: &mut Locked, tables: Tables, rules: &str, patience: Duration) -> Result<(), Error> {
    let words = ["--noflush"];
    succeed(tables.restore, &words, &call(locked, tables.restore, &words, rules, patience)?)
}

fn call(
    locked: &mut Locked,
    program: &'static str,
    words: &[&str],
    input: &str,
    patience: Duration,
) -> Result<program::Output, Error> {
    // `-w` waits for its lock: other programs of the machine change tables, too.
    let all: Vec<&str> = [program, "-w"].into_iter().chain(words.iter().copied()).collect();
    let output = program::run(locked, &iptables(program)?, &all, &[], input.as_bytes(), patience);
    output.map_err(|e| failed(program, words, e.to_string()))
}

fn succeed(program: &str, words: &[&str], output: &program::Output) -> Result<(), Error> {
    if output.status.success() { Ok(()) } else { Err(failed(program, words, output.reason())) }
}

fn failed(program: &str, words: &[&str], reason: String) -> Error {
    Error::Failed { program: program.to_owned(), of: format!(" {}", words.join(" ")), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_of_ports_is_named_as_the_plugin_names_it() {
        // The name that the plugin of Debian 12 uses.
        assert_eq!(port_chain("DN", "286d75a3-6361-46fc-bc09-bc778daacf13"), "CNI-DN-0835c708ec4d0cd5547dc");
    }

    #[test]
    fn a_bridge_is_full_when_each_port_or_address_is_taken() {
        let run_dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(leases(run_dir.path())).unwrap();
        let lease = |name: &str| fs::write(leases(run_dir.path()).join(name), "").unwrap();
        for other in ["last_reserved_ip.0", "lock"] {
            lease(other);
        }
        // With two addresses, an allocation still takes one port.
        for number in 2..=1024_u32 {
            let subnets = if number < 7 { "10.0.0.0/29 fd00::/64" } else { "10.0.0.0/20 fd00::/64" };
            has_room(run_dir.path(), Subnets::parse(subnets).unwrap()).unwrap();
            lease(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string());
            lease(&format!("fd00::{number:x}"));
        }
        for (subnets, most) in
            [("10.0.0.0/20 fd00::/64", "1023"), ("10.0.0.0/29", "5"), ("10.0.0.0/20 fd00::/125", "5")]
        {
            let full = has_room(run_dir.path(), Subnets::parse(subnets).unwrap()).unwrap_err().to_string();
            assert!(full.starts_with(&format!("the bridge is full: its {most} allocations")), "{full}");
        }
    }
}
