//! Hosts: `/etc/hosts` first, then the name servers of `/etc/resolv.conf`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::TcpStream;

use super::dns::Servers;
use crate::spec::Order as _;

/// Addresses of one name that are tried. A server may send many more.
const MOST: usize = 16;

/// The addresses of `host:port`, IPv4 ones first, at most 16; an IPv6 address stands in brackets, also with a zone
/// (`[fe80::1%eth0]:514`).
///
/// A name is looked up in `/etc/hosts`, then at the servers of `/etc/resolv.conf`, both read anew each time; a server that
/// systemd-resolved runs is one like another. Without a server in that file the one on this machine is asked, as
/// `resolver(5)` says. How long that may take is up to the caller.
///
/// # Errors
/// `InvalidInput` for what is no `host:port`; `NotFound` when nobody knows the name; what the servers say.
pub async fn addresses(address: &str) -> io::Result<Vec<SocketAddr>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{address:?} is not a host:port"));
    if let Ok(numeric) = address.parse() {
        return Ok(vec![numeric]);
    }
    #[cfg(feature = "mutants")]
    if crate::sys::mutant::on("d60") {
        return Ok(tokio::net::lookup_host(address).await?.collect());
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(wrong)?;
    let port: u16 = port.parse().map_err(|_| wrong())?;
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        let (ip, zone) = inner.split_once('%').ok_or_else(wrong)?;
        let ip = ip.parse().map_err(|_| wrong())?;
        return Ok(vec![SocketAddrV6::new(ip, port, 0, zone_index(zone)?).into()]);
    }
    let found = match in_file(&if_there(std::fs::read("/etc/hosts"))?, host) {
        none if none.is_empty() => asked(host).await?,
        known => known,
    };
    let mut ips: Vec<IpAddr> = found.into_iter().take(MOST).collect();
    ips.order_by_key(IpAddr::is_ipv6);
    Ok(with_port(ips, port))
}

/// Connects to the first address of `host:port` (see [`addresses`]) that answers.
///
/// # Errors
/// As [`addresses`]; what `connect(2)` says to the last address.
pub async fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses(address).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn with_port(ips: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// What was read of a file that need not be there.
fn if_there(read: io::Result<Vec<u8>>) -> io::Result<Vec<u8>> {
    match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        other => other,
    }
}

/// What the text of a `hosts` file has for a name.
fn in_file(text: &[u8], host: &str) -> Vec<IpAddr> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(text).lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
        let address: Option<IpAddr> = words.next().and_then(|word| word.split('%').next()?.parse().ok());
        found.extend(address.filter(|_| words.any(|name| name.eq_ignore_ascii_case(host))));
    }
    found
}

/// What the name servers say. `localhost` and what is below it is this machine, without a question (RFC 6761).
async fn asked(host: &str) -> io::Result<Vec<IpAddr>> {
    let unknown = |reason: String| io::Error::new(io::ErrorKind::NotFound, format!("look up host {host:?}: {reason}"));
    let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    if name == "localhost" || name.ends_with(".localhost") {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let servers = Servers::parse(&if_there(std::fs::read("/etc/resolv.conf"))?)?;
    if host.is_ascii() {
        return servers.lookup(host).await.map_err(unknown);
    }
    // A name in another script stands among the servers' names in one of its own.
    match url::Host::parse(host) {
        Ok(url::Host::Domain(name)) => servers.lookup(&name).await.map_err(unknown),
        _ => Err(unknown("that cannot be the name of a host".to_owned())),
    }
}

/// The number of a network interface, by its name or as it stands.
fn zone_index(zone: &str) -> io::Result<u32> {
    if let Ok(index) = zone.parse() {
        return Ok(index);
    }
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, zone)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_read_without_asking_anybody() {
        let found = async |text: &str| addresses(text).await.map(|all| format!("{all:?}"));
        assert_eq!(found("127.0.0.1:514").await.unwrap(), "[127.0.0.1:514]");
        assert_eq!(found("[::1]:514").await.unwrap(), "[[::1]:514]");
        assert_eq!(found("[fe80::1%lo]:514").await.unwrap(), "[[fe80::1%1]:514]");
        assert_eq!(found("[fe80::1%3]:514").await.unwrap(), "[[fe80::1%3]:514]");
        for wrong in ["host", "host:port", "host:", "[host]:1", "[x%lo]:1", "host:70000"] {
            assert_eq!(found(wrong).await.unwrap_err().kind(), io::ErrorKind::InvalidInput, "{wrong}");
        }
        assert!(found("[fe80::1%no-such-one]:1").await.is_err());
    }

    #[test]
    fn resolv_conf_is_honoured() {
        let servers = |text: &str| {
            let servers = Servers::parse(text.as_bytes()).unwrap();
            servers.addresses.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let two = servers("# x\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n");
        assert_eq!(two, ["192.0.2.1:53", "[2001:db8::1]:53"]);
        for none in ["", "search example\n", "# nameserver 192.0.2.1\n"] {
            assert_eq!(servers(none), ["127.0.0.1:53"], "{none}");
        }
        let read = Servers::parse(
            b"nameserver 127.0.0.53\nsearch -- a.test b.test\noptions ndots:2 timeout:1 attempts:4 use-vc\n",
        );
        let read = read.unwrap();
        assert_eq!(read.search, ["a.test", "b.test"]);
        assert_eq!((read.ndots, read.timeout.as_secs(), read.attempts, read.tcp), (2, 1, 4, true));
        assert!(Servers::parse(b"nameserver nonsense\n").is_err());
    }

    #[test]
    fn a_hosts_file_is_read() {
        let file = b"# comment\n192.0.2.1\tweb  WWW.test # not.this\n::1 web\nfe80::1%lo six\nnonsense web\n";
        let found = |host: &str| in_file(file, host).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("web"), ["192.0.2.1", "::1"]);
        assert_eq!((found("www.TEST."), found("six")), (vec!["192.0.2.1".to_owned()], vec!["fe80::1".to_owned()]));
        assert!(found("not.this").is_empty() && found("192.0.2.1").is_empty() && found("").is_empty());
    }

    #[tokio::test]
    async fn this_machine_is_known_by_its_name() {
        let found = addresses("localhost:7").await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect(&format!("localhost:{port}")).await.unwrap();
    }
}
