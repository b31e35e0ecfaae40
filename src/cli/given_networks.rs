//! Host networks, directories of plugins and ranges of ports, as the command line and configurations write them.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use crate::alloc::DYNAMIC_PORTS;

/// A network of the command line: `NAME=ADDRESS`, where the address may be the name of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) name: String,
    pub(super) place: String,
    /// Only an address in this network: first address and length of the prefix.
    pub(super) within: Option<(IpAddr, u32)>,
}

impl Given {
    /// A network of a configuration: an interface, a network of addresses, or both.
    pub(super) fn configured(name: &str, interface: Option<String>, cidr: Option<String>) -> Result<Given, String> {
        let within = cidr.map(|cidr| {
            let read = cidr.split_once('/').and_then(|(ip, length)| Some((ip.parse().ok()?, length.parse().ok()?)));
            let fits = |(ip, length): &(IpAddr, u32)| *length <= if ip.is_ipv4() { 32 } else { 128 };
            read.filter(fits)
                .ok_or_else(|| format!("the cidr \"{cidr}\" must be an address and the length of its prefix"))
        });
        let within = within.transpose()?;
        if interface.is_none() && within.is_none() {
            return Err("it has neither interface nor cidr; write interface or cidr".to_owned());
        }
        Ok(Given { name: name.to_owned(), place: interface.unwrap_or_default(), within })
    }

    /// The first matching address among those of the interfaces.
    pub(super) fn among(&self, interfaces: &[(String, IpAddr)]) -> Option<IpAddr> {
        let on = interfaces.iter().filter(|(interface, _)| self.place.is_empty() || *interface == self.place);
        on.map(|(_, ip)| *ip).find(|ip| self.within.is_none_or(|net| is_within(net, *ip)))
    }
}

fn is_within((first, length): (IpAddr, u32), ip: IpAddr) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let ((first, width), (ip, other)) = (bits(first), bits(ip));
    let differs = width - length;
    width == other && (differs == 128 || first >> differs == ip >> differs)
}

/// Parses `NAME=ADDRESS` or `NAME=INTERFACE`.
pub(super) fn given(text: &str) -> Result<Given, String> {
    match text.split_once('=') {
        Some((name, place)) if !name.is_empty() && !place.is_empty() => {
            Ok(Given { name: name.to_owned(), place: place.to_owned(), within: None })
        }
        _ => Err("write it as NAME=ADDRESS or NAME=INTERFACE".to_owned()),
    }
}

/// Directories of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Dirs(Vec<PathBuf>);

/// Parses `DIR:DIR`.
pub(super) fn dirs(text: &str) -> Result<Dirs, String> {
    let dirs: Vec<PathBuf> = text.split(':').map(PathBuf::from).collect();
    if dirs.iter().all(|dir| dir.is_absolute()) {
        Ok(Dirs(dirs))
    } else {
        Err("write it as DIR:DIR, each from the root".to_owned())
    }
}

impl From<Dirs> for Vec<PathBuf> {
    fn from(dirs: Dirs) -> Vec<PathBuf> {
        dirs.0
    }
}

/// Parses `MIN-MAX`.
pub(super) fn range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    match ends {
        Some((min, max)) if 0 < min && min <= max => Ok(min..=max),
        _ => Err("write it as MIN-MAX, two port numbers from 1 to 65535".to_owned()),
    }
}

/// The default range.
pub(super) fn default_range() -> String {
    format!("{}-{}", DYNAMIC_PORTS.start(), DYNAMIC_PORTS.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_two_ends() {
        assert_eq!(range("20000-20000").unwrap(), 20_000..=20_000);
        for wrong in ["20000", "0-9", "9-8", "1-65536", "a-b", ""] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(range(&default_range()).unwrap(), DYNAMIC_PORTS);
    }
}
