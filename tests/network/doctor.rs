//! What `agentbin doctor` says of the network of mode `bridge` (row G1).

use std::path::Path;

use nix::mount::{MsFlags, mount};

use crate::site::{By, PLUGINS, Site, done};
use crate::world::need_root;

/// G1: doctor says who connects allocations, and why; what drops their packets, with the fix; and it changes nothing.
#[test]
fn g1_doctor_says_what_connects() {
    need_root!();
    let site = Site::with_ipv6(By::Plugins);
    let before = site.state();
    let row = |name: &str| {
        let told: serde_json::Value = serde_json::from_str(&site.world.agentbin(&["doctor", "--json"]).stdout).unwrap();
        let row = told["checks"].as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
        row.unwrap_or_else(|| panic!("{name}: {told:#}"))
    };
    let connects = row("network mode bridge");
    assert!(
        connects["state"] == "ok" && connects["value"].as_str().unwrap().starts_with("by CNI plugins"),
        "{connects}"
    );
    for name in ["bridge, veth and rules", "conntrack entries can be deleted"] {
        let row = row(name);
        assert!(row["state"] == "ok" && row["value"] == "yes", "{row}");
    }
    // As the site is made.
    for name in ["forwarded packets", "forwarded packets (IPv6)"] {
        let row = row(name);
        assert!(row["state"] == "ok" && row["value"].as_str().unwrap().starts_with("iptables has DROP"), "{row}");
    }
    assert_eq!(row("net.ipv4.ip_forward")["value"], "1");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    let forward = row("net.ipv4.ip_forward");
    assert!(forward["state"] == "ok" && forward["value"].as_str().unwrap().starts_with("0; the first"), "{forward}");
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    assert_eq!(site.state(), before);

    done(
        "nft",
        &["add table inet strict; add chain inet strict f { type filter hook forward priority 5; policy drop; }"],
    );
    let during = site.state();
    for name in ["forwarded packets", "forwarded packets (IPv6)"] {
        let row = row(name);
        assert!(row["state"] == "warn", "{row}");
        assert!(row["value"].as_str().unwrap().contains("chain f of nft's table inet strict"), "{row}");
        assert!(
            row["mend"].as_str().unwrap().contains("nft insert rule inet strict f iifname agentbin accept"),
            "{row}"
        );
    }
    assert_eq!(site.state(), during);
    done("nft", &["delete table inet strict"]);

    // Where there are no plugins.
    mount(Some("none"), Path::new(PLUGINS), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let connects = row("network mode bridge");
    assert!(connects["value"].as_str().unwrap().starts_with("by agentbin itself: not all of bridge"), "{connects}");
    assert_eq!(row("bridge, veth and rules")["value"], "yes");
    nix::mount::umount(PLUGINS).unwrap();
    assert_eq!(site.state(), before);
}
