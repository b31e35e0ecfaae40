//! Hosts: `/etc/hosts` first, then the name servers of `/etc/resolv.conf`.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf::parse_resolv_conf;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::TcpStream;

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
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, format!("{address:?} is no host:port"));
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
    let unknown = |reason: String| io::Error::new(io::ErrorKind::NotFound, format!("look up host {host:?}: {reason}"));
    let resolver = resolver()?;
    let found = resolver.lookup_ip(host).await.map_err(|error| unknown(error.to_string()))?;
    let mut ips: Vec<IpAddr> = found.iter().take(MOST).collect();
    ips.sort_by_key(IpAddr::is_ipv6);
    if ips.is_empty() { Err(unknown("the name has no address".to_owned())) } else { Ok(with_port(ips, port)) }
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

fn resolver() -> io::Result<TokioResolver> {
    let text = match std::fs::read("/etc/resolv.conf") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let (config, options) = configuration(&text)?;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(io::Error::other)
}

/// What the text of a `resolv.conf` says.
fn configuration(text: &[u8]) -> io::Result<(ResolverConfig, ResolverOpts)> {
    let names_one = text.split(|byte| *byte == b'\n').any(|line| line.trim_ascii_start().starts_with(b"nameserver"));
    let (config, mut options) = if names_one {
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("/etc/resolv.conf: {error}"));
        parse_resolv_conf(text).map_err(wrong)?
    } else {
        let own = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
        (ResolverConfig::from_parts(None, Vec::new(), vec![own]), ResolverOpts::default())
    };
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // Asked once, and then thrown away.
    options.cache_size = 0;
    Ok((config, options))
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
            let config = configuration(text.as_bytes()).unwrap().0;
            config.name_servers().iter().map(|server| server.ip.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(servers("# x\nnameserver 192.0.2.1\nnameserver 2001:db8::1\n"), ["192.0.2.1", "2001:db8::1"]);
        for none in ["", "search example\n", "# nameserver 192.0.2.1\n"] {
            assert_eq!(servers(none), ["127.0.0.1"], "{none}");
        }
        let (config, options) =
            configuration(b"nameserver 127.0.0.53\nsearch a.test b.test\noptions ndots:2 timeout:1\n").unwrap();
        assert_eq!((config.search().len(), options.ndots, options.timeout.as_secs()), (2, 2, 1));
        assert!(configuration(b"nameserver nonsense\n").is_err());
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
