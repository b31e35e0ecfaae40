//! Settings of the kernel for IPv6 on the built-in bridge. Never changes what another interface does with the packets and announcements
//! that it gets.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Error;

/// The settings of each interface, and of all.
const CONF: &str = "/proc/sys/net/ipv6/conf";
/// The routes of this thread's network namespace.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
/// `RTF_ADDRCONF` of `<linux/ipv6_route.h>`: a router has announced it.
const ANNOUNCED: u32 = 0x0004_0000;

fn setting(interface: &str, name: &str) -> PathBuf {
    Path::new(CONF).join(interface).join(name)
}

/// Sets what is not set, so.
pub(super) fn set(interface: &str, settings: &[(&str, &str)]) -> io::Result<()> {
    for (name, value) in settings {
        let path = setting(interface, name);
        if fs::read_to_string(&path).is_ok_and(|is| is.trim() == *value) {
            continue;
        }
        fs::write(&path, value).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
    }
    Ok(())
}

fn forwards() -> bool {
    fs::read(setting("all", "forwarding")).is_ok_and(|value| value.starts_with(b"1"))
}

/// Checks that the kernel forwards IPv6, or can be told to.
pub(super) fn check() -> Result<(), Error> {
    if !Path::new(CONF).exists() {
        return Err(Error::NoIpv6);
    }
    if forwards() {
        return Ok(());
    }
    let routes = fs::read_to_string(ROUTES).unwrap_or_default();
    let keeps = |interface: &str| fs::read(setting(interface, "accept_ra")).is_ok_and(|value| value.starts_with(b"2"));
    match routes.lines().filter_map(announced).find(|interface| !keeps(interface)) {
        Some(interface) => Err(Error::WouldLoseRoute { interface: interface.to_owned() }),
        None => Ok(()),
    }
}

/// The interface of a default route that a router has announced: a line of `/proc/net/ipv6_route` has the target, the length of its
/// prefix, six more numbers, the flags and the interface.
fn announced(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "00", .., flags, interface] = words[..] else { return None };
    (u32::from_str_radix(flags, 16).ok()? & ANNOUNCED != 0).then_some(interface)
}

/// Tells the kernel to forward IPv6. That sets it for each interface, too, which then ignores routers and is one; what each had is set
/// again, as the kernel looks at the setting for all when it forwards a packet.
pub(super) fn allow() -> Result<(), Error> {
    check()?;
    if forwards() {
        return Ok(());
    }
    let entries = fs::read_dir(CONF).map_err(Error::system("list", CONF))?;
    let mut before = Vec::new();
    for entry in entries.flatten().filter(|entry| entry.file_name() != "all") {
        let path = entry.path().join("forwarding");
        // An interface may just go.
        before.extend(fs::read(&path).ok().map(|value| (path, value)));
    }
    let all = setting("all", "forwarding");
    fs::write(&all, "1").map_err(Error::system("write", &all))?;
    for (path, value) in before {
        match fs::write(&path, value) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::system("write", path)(error)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_of_routers_are_known_by_their_flags() {
        let line = |target: &str, length: &str, flags: &str| {
            format!(
                "{target} {length} 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 {flags}     wire"
            )
        };
        let zero = "0".repeat(32);
        assert_eq!(announced(&line(&zero, "00", "00450003")), Some("wire"));
        assert_eq!(announced(&line(&zero, "00", "00000003")), None, "somebody made it");
        assert_eq!(announced(&line("20010db8000000000000000000000000", "40", "00440001")), None, "no default route");
        assert_eq!(announced(""), None);
    }
}
