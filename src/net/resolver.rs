//! Name servers that are reached from a network of its own.

use std::net::IpAddr;
use std::path::Path;

/// What the host's resolver reads.
const USUAL: &str = "/etc/resolv.conf";
/// Where systemd-resolved says which servers it asks itself.
const BEHIND_STUB: &str = "/run/systemd/resolve/resolv.conf";

/// The servers that a container asks in place of the host's: those behind a stub that listens on the host's loopback, which is
/// another one inside. Empty where the host's own can be reached, or nothing better is known.
#[must_use]
pub fn servers_behind_stub() -> Vec<String> {
    behind(&read(Path::new(USUAL)), &read(Path::new(BEHIND_STUB)))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
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
}
