//! The network of mode `bridge`: a bridge of our own, its CNI list, and the few rules that it needs besides.
//!
//! The reference plugins connect each allocation and map its ports; where they are not installed, `builtin` does. Rules that are the
//! same for all allocations are in chains, or a table, of our own, once: packets may be forwarded, leave with the host's address, and
//! do not reach the host's loopback. Bridge and rules are removed with the last allocation. Rules for a single allocation are in
//! `guard`, and in `builtin` those of its ports.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde_json::json;
use sha2::Digest as _;

use super::cni::List;
use super::lock::Locked;
use super::{Error, Subnet, builtin, conntrack, program};
use crate::sys::{self, owned};

/// Name of the network and of its bridge.
pub(super) const NAME: &str = "agentbin";
const FORWARD: &str = "AGENTBIN-FORWARD";
const INPUT: &str = "AGENTBIN-INPUT";
const LEAVE: &str = "AGENTBIN-LEAVE";
/// Longest mark file that is read, in bytes: a subnet.
const LONGEST_MARK: u64 = 64;
/// Longest file of a lease that is read, in bytes: an id and the name of an interface.
const LONGEST_LEASE: u64 = 1 << 10;
/// Table, chain of the kernel, our chain.
const JUMPS: [(&str, &str, &str); 3] =
    [("filter", "FORWARD", FORWARD), ("filter", "INPUT", INPUT), ("nat", "POSTROUTING", LEAVE)];

/// The CNI list for each allocation.
pub(super) fn list(run_dir: &Path, subnet: Subnet) -> Result<List, String> {
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{ "subnet": subnet.to_string() }]],
        "routes": [{ "dst": "0.0.0.0/0" }],
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

/// What connects allocations to the bridge. One bridge may have allocations of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The reference plugins, which need `iptables`.
    Plugins,
    /// `builtin`, which needs `nft`.
    Builtin,
}

impl By {
    /// The file that says that its rules may exist.
    fn mark(self, run_dir: &Path) -> PathBuf {
        let name = match self {
            By::Plugins => "agentbin.plugins",
            By::Builtin => "agentbin.builtin",
        };
        run_dir.join("lock").join(name)
    }
}

/// The directory with one file for each address that is in use, named after the address.
pub(super) fn leases(run_dir: &Path) -> PathBuf {
    run_dir.join("leases").join(NAME)
}

/// The file that says that we made the bridge, and its subnet.
fn mark(run_dir: &Path) -> PathBuf {
    run_dir.join("lock").join("agentbin.bridge")
}

/// The file that says that the chain for forwarded packets may exist beside the rules of `builtin`. The chain itself is not asked
/// for: a question that fails would be taken for a no, and the chain would stay.
fn accepts(run_dir: &Path) -> PathBuf {
    run_dir.join("lock").join("agentbin.accepts")
}

/// Checks the requirements of the network before anything is made.
pub(super) fn check(run_dir: &Path, subnet: Subnet, by: By) -> Result<(), Error> {
    match by {
        By::Plugins => iptables("iptables").and_then(|_| iptables("iptables-restore")).map(drop)?,
        By::Builtin => builtin::check()?,
    }
    let addresses =
        sys::interfaces::addresses().map_err(Error::system("list the network interfaces of", "this machine"))?;
    let taken = |(name, ip): &(String, IpAddr)| name != NAME && matches!(ip, IpAddr::V4(ip) if subnet.contains(*ip));
    if let Some((interface, address)) = addresses.into_iter().find(taken) {
        return Err(Error::SubnetTaken { subnet, interface, address });
    }
    if !mark(run_dir).exists() && bridge_is_there()? {
        return Err(Error::NotOurs(NAME.to_owned()));
    }
    Ok(())
}

/// Whether one more allocation can be connected.
fn has_room(run_dir: &Path, subnet: Subnet) -> Result<(), Error> {
    let most = subnet.room();
    if used(run_dir)? < most { Ok(()) } else { Err(Error::Full { most, subnet }) }
}

/// Makes what all allocations share, if it is missing.
pub(super) fn prepare(
    locked: &mut Locked,
    run_dir: &Path,
    subnet: Subnet,
    by: By,
    patience: Duration,
) -> Result<(), Error> {
    let path = mark(run_dir);
    let wanted = subnet.to_string();
    match owned::read(&path, LONGEST_MARK).map(|text| String::from_utf8_lossy(&text).into_owned()) {
        // Otherwise the kernel would report only a number, and the plugin only a range.
        Ok(made) if made == wanted => has_room(run_dir, subnet)?,
        // The rules below would disconnect each allocation that has an address.
        Ok(made) if used(run_dir)? > 0 => return Err(Error::OtherSubnet { asked: subnet, made }),
        Ok(_) => {
            remove_if_unused(locked, run_dir, patience)?;
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
    let path = by.mark(run_dir);
    fs::write(&path, "").map_err(Error::system("write", &path))?;
    match by {
        By::Plugins => allow(locked, &accepted(subnet), subnet, patience),
        By::Builtin => {
            builtin::make_bridge(subnet)?;
            builtin::share(locked, subnet, patience)?;
            if drops_forwarded(locked, patience)? {
                let path = accepts(run_dir);
                fs::write(&path, "").map_err(Error::system("write", &path))?;
                restore(locked, &format!("*filter\n:{FORWARD} - [0:0]\n{}COMMIT\n", accepted(subnet)), patience)?;
                jump(locked, &JUMPS[..1], patience)?;
            }
            Ok(())
        }
    }
}

/// The rules for packets of the bridge that the host forwards.
fn accepted(subnet: Subnet) -> String {
    format!("-A {FORWARD} -d {subnet} -o {NAME} -j ACCEPT\n-A {FORWARD} -s {subnet} -i {NAME} -j ACCEPT\n")
}

/// Makes the rules that allocations need which plugins have connected.
fn allow(locked: &mut Locked, accepted: &str, subnet: Subnet, patience: Duration) -> Result<(), Error> {
    // Naming a chain creates it, or empties it.
    let rules = format!(
        "*filter\n:{FORWARD} - [0:0]\n:{INPUT} - [0:0]\n{accepted}\
         -A {INPUT} -d 127.0.0.0/8 -i {NAME} -m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP\nCOMMIT\n\
         *nat\n:{LEAVE} - [0:0]\n-A {LEAVE} -s {subnet} ! -d 224.0.0.0/4 ! -o {NAME} -j MASQUERADE\nCOMMIT\n"
    );
    restore(locked, &rules, patience)?;
    jump(locked, &JUMPS, patience)
}

fn jump(locked: &mut Locked, jumps: &[(&str, &str, &str)], patience: Duration) -> Result<(), Error> {
    for (table, chain, own) in jumps {
        if !is_done(locked, &["-t", table, "-C", chain, "-j", own], patience)? {
            do_it(locked, &["-t", table, "-I", chain, "1", "-j", own], patience)?;
        }
    }
    Ok(())
}

/// Whether `iptables` has rules, such as Docker's, by which forwarded packets may be dropped: no table of another program can
/// accept what one has dropped.
fn drops_forwarded(locked: &mut Locked, patience: Duration) -> Result<bool, Error> {
    if iptables("iptables").and_then(|_| iptables("iptables-restore")).is_err() {
        return Ok(false);
    }
    let output = call(locked, "iptables", &["-S", "FORWARD"], "", patience)?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Without support in the kernel there are no rules either.
    Ok(is_yes("iptables", &["-S", "FORWARD"], &output)? && text.lines().any(|line| line != "-P FORWARD ACCEPT"))
}

/// Whether the portmap plugin has left rules of an allocation: it reports success even if an `iptables` that it started was
/// killed. Of its two chains either may be left; each is removed last of what belongs to it, because a rule that jumps to a chain keeps
/// it from being deleted.
pub(super) fn has_ports(locked: &mut Locked, id: &str, patience: Duration) -> Result<bool, Error> {
    for kind in ["DN", "SN"] {
        if is_done(locked, &["-t", "nat", "-S", &port_chain(kind, id)], patience)? {
            return Ok(true);
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

/// The addresses that are taken, each with its file.
pub(super) fn taken(run_dir: &Path) -> Result<Vec<(IpAddr, PathBuf)>, Error> {
    let dir = leases(run_dir);
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(Error::system("list", &dir))?,
    };
    let mut taken = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::system("list", &dir))?;
        let address = entry.file_name().to_str().and_then(|name| name.parse().ok());
        taken.extend(address.map(|address| (address, entry.path())));
    }
    Ok(taken)
}

/// How many allocations have an address.
fn used(run_dir: &Path) -> Result<usize, Error> {
    Ok(taken(run_dir)?.len())
}

/// The addresses of an allocation. An empty lease, whose process was killed before it wrote, is anybody's: nothing has its address.
pub(super) fn leased(run_dir: &Path, id: &str) -> Result<Vec<IpAddr>, Error> {
    let is_of = |path: &Path| {
        owned::read(path, LONGEST_LEASE)
            .is_ok_and(|text| text.is_empty() || text.split(|byte| *byte == b'\r').next() == Some(id.as_bytes()))
    };
    let own = taken(run_dir)?.into_iter().filter(|(_, path)| is_of(path));
    Ok(own.map(|(address, _)| address).collect())
}

/// Removes what all allocations share, if no allocation has an address any more.
pub(super) fn remove_if_unused(locked: &mut Locked, run_dir: &Path, patience: Duration) -> Result<(), Error> {
    let mark = mark(run_dir);
    if used(run_dir)? > 0 || !mark.exists() {
        return Ok(());
    }
    let is_by = |by: By| by.mark(run_dir).exists();
    if is_by(By::Builtin) {
        builtin::unshare(locked, patience)?;
        if !is_by(By::Plugins) && accepts(run_dir).exists() {
            leave(locked, &JUMPS[..1], patience)?;
            restore(locked, &format!("*filter\n:{FORWARD} - [0:0]\n-X {FORWARD}\nCOMMIT\n"), patience)?;
        }
    }
    if is_by(By::Plugins) {
        leave(locked, &JUMPS, patience)?;
        // Naming a chain creates it if it is missing: an error about a missing chain could not be distinguished from another
        // failure.
        let chains = format!(
            "*filter\n:{FORWARD} - [0:0]\n:{INPUT} - [0:0]\n-X {FORWARD}\n-X {INPUT}\nCOMMIT\n*nat\n:{LEAVE} - [0:0]\n-X {LEAVE}\nCOMMIT\n"
        );
        restore(locked, &chains, patience)?;
    }
    let subnet = owned::read(&mark, LONGEST_MARK).ok();
    let subnet = subnet.and_then(|text| String::from_utf8_lossy(&text).parse::<Subnet>().ok());
    if bridge_is_there()? {
        let removed = sys::net::down(NAME).and_then(|()| sys::net::remove_bridge(NAME));
        removed.map_err(Error::system("remove the bridge", NAME))?;
    }
    let gateway = subnet.map(|subnet| IpAddr::V4(subnet.gateway()));
    let forgotten = conntrack::forget(gateway.as_slice(), &[], patience);
    forgotten.map_err(Error::system("make the kernel forget the connections of", NAME))?;
    for path in [By::Plugins.mark(run_dir), By::Builtin.mark(run_dir), accepts(run_dir)] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::system("remove", path)(error)),
            _ => {}
        }
    }
    fs::remove_file(&mark).map_err(Error::system("remove", &mark))
}

fn leave(locked: &mut Locked, jumps: &[(&str, &str, &str)], patience: Duration) -> Result<(), Error> {
    for (table, chain, own) in jumps {
        while is_done(locked, &["-t", table, "-C", chain, "-j", own], patience)? {
            do_it(locked, &["-t", table, "-D", chain, "-j", own], patience)?;
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
    program::find(program).ok_or(Error::NoProgram { program: "iptables", package: "iptables" })
}

/// Whether `iptables` succeeds.
fn is_done(locked: &mut Locked, words: &[&str], patience: Duration) -> Result<bool, Error> {
    is_yes("iptables", words, &call(locked, "iptables", words, "", patience)?)
}

/// What a program says by its exit status. One that was killed has said nothing.
fn is_yes(program: &str, words: &[&str], output: &program::Output) -> Result<bool, Error> {
    match output.status.code() {
        Some(status) => Ok(status == 0),
        None => Err(failed(program, words, output.reason())),
    }
}

fn do_it(locked: &mut Locked, words: &[&str], patience: Duration) -> Result<(), Error> {
    succeed("iptables", words, &call(locked, "iptables", words, "", patience)?)
}

fn restore(locked: &mut Locked, rules: &str, patience: Duration) -> Result<(), Error> {
    let words = ["--noflush"];
    succeed("iptables-restore", &words, &call(locked, "iptables-restore", &words, rules, patience)?)
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
        for number in 2..=1024_u32 {
            let subnet: Subnet = if number < 7 { "10.0.0.0/29" } else { "10.0.0.0/20" }.parse().unwrap();
            has_room(run_dir.path(), subnet).unwrap();
            lease(&std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string());
        }
        for (subnet, most) in [("10.0.0.0/20", "1023"), ("10.0.0.0/29", "5")] {
            let full = has_room(run_dir.path(), subnet.parse().unwrap()).unwrap_err().to_string();
            assert!(full.starts_with(&format!("the bridge is full: its {most} allocations")), "{full}");
        }
    }
}
