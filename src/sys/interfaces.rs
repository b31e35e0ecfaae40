//! The network interfaces of this machine and their addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// The list that `getifaddrs(3)` has allocated.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is what getifaddrs(3) made, and nothing that points into it outlives this owner.
        unsafe { libc::freeifaddrs(self.0) }
    }
}

/// Each address with the name of its interface, in the kernel's order.
///
/// # Errors
/// What `getifaddrs(3)` says.
pub fn addresses() -> io::Result<Vec<(String, IpAddr)>> {
    let mut first = ptr::null_mut();
    // SAFETY: getifaddrs(3) writes one pointer to where it is told, and that is a variable of this type.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = List(first);
    let mut found = Vec::new();
    let mut next = list.0;
    // SAFETY: it is null or an element of the list, which lives as long as `list`; nobody else knows of it.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: the name is a string of the list's, ended by a zero byte; it is copied before the list goes.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        if let Some(ip) = address(element.ifa_addr) {
            found.push((name.to_string_lossy().into_owned(), ip));
        }
    }
    Ok(found)
}

/// The IP address that an element of the list points to; `None` for other families.
fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or an address of the list, which begins with its family.
    let family = unsafe { at.as_ref() }?.sa_family;
    match libc::c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in; read as bytes that need not be aligned.
            let v4 = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6; read as bytes that need not be aligned.
            let v6 = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_address() {
        let found = addresses().unwrap();
        assert!(found.iter().any(|(name, ip)| name == "lo" && ip.is_loopback()), "{found:?}");
    }
}
