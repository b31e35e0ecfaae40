//! A network namespace with an address and a route, as a machine has them.

use std::process::Command;

/// `ip`, which has to succeed.
pub fn ip(words: &str) {
    let out = Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {words}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Gives the namespace of this thread the address 198.51.100.7. Both ends of its wire are in there.
pub fn make() {
    for words in [
        "link set lo up",
        "link add wire type veth peer name other",
        "address add 198.51.100.7/24 dev wire",
        "link set wire up",
        "link set other up",
        "route add default via 198.51.100.9",
    ] {
        ip(words);
    }
}
