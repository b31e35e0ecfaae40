//! The host's resolver, for tasks: its settings, and name servers that can be reached from a network of its own.

use std::net::IpAddr;
use std::path::Path;

/// The file that the host's resolver reads.
const USUAL: &str = "/etc/resolv.conf";
/// The file in which systemd-resolved lists its upstream servers.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";
/// Where the stub of systemd-resolved listens.
const STUB: &str = "127.0.0.53";

/// The name servers for containers instead of the host's: the upstream servers of a stub that listens on the host's loopback,
/// which is not reachable from inside. Empty if the host's own servers can be reached, or no upstream servers are known.
#[must_use]
pub fn servers_behind_stub() -> Vec<String> {
    behind(&read(Path::new(USUAL)), &read(Path::new(BEHIND_STUB)))
}

/// The file with the host's settings for tasks: where the usual one names the stub of systemd-resolved and no other server, the
/// file in which that lists its upstream servers, if it knows any.
pub(crate) fn host_resolv_conf() -> String {
    chosen(read(Path::new(USUAL)), || read(Path::new(BEHIND_STUB)))
}

fn chosen(usual: String, real: impl FnOnce() -> String) -> String {
    if servers(&usual) != [STUB] {
        return usual;
    }
    Some(real()).filter(|real| !servers(real).is_empty()).unwrap_or(usual)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn behind(usual: &str, real: &str) -> Vec<String> {
    let is_inside = |server: &String| server.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let own = servers(usual);
    if own.is_empty() || !own.iter().all(is_inside) {
        return Vec::new();
    }
    servers(real).into_iter().filter(|server| !is_inside(server)).collect()
}

fn servers(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("nameserver")?.split_whitespace().next());
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_is_replaced_by_what_it_asks() {
        let real = "# comment\nnameserver 192.0.2.1\nnameserver 127.0.0.1\nnameserver fe80::1%2\nsearch x\n";
        assert_eq!(behind("nameserver 127.0.0.53\noptions edns0\n", real), ["192.0.2.1", "fe80::1%2"]);
        assert_eq!(behind("nameserver 127.0.0.53\nnameserver 192.0.2.9\n", real), [""; 0]);
        assert_eq!(behind("", real), [""; 0]);
        assert_eq!(behind("nameserver ::1\n", ""), [""; 0]);
    }

    #[test]
    fn the_file_behind_the_stub_of_systemd_is_taken_for_the_stub_only() {
        let (stub, real) = ("nameserver 127.0.0.53\noptions edns0\n", "# real\nnameserver 192.0.2.1\nsearch x\n");
        for (usual, behind, expected) in [
            (stub, real, real),
            (stub, "", stub),
            (stub, "# No DNS servers known.\n", stub),
            ("nameserver 127.0.0.1\n", real, "nameserver 127.0.0.1\n"),
            ("nameserver 127.0.0.53\nnameserver 192.0.2.9\n", real, "nameserver 127.0.0.53\nnameserver 192.0.2.9\n"),
            ("", real, ""),
        ] {
            assert_eq!(chosen(usual.to_owned(), || behind.to_owned()), expected);
        }
    }
}
