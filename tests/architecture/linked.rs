//! What is linked into the program, by the symbols of the built file.

use std::collections::BTreeSet;

/// Functions of the C library that load modules for another C library (`nsswitch.conf`), or would.
const LOADING: &[&str] = &[
    "getaddrinfo",
    "getgrent",
    "getgrgid",
    "getgrnam",
    "getgrouplist",
    "gethostbyaddr",
    "gethostbyname",
    "getnameinfo",
    "getpwent",
    "getpwnam",
    "getpwuid",
    "getservbyname",
    "initgroups",
    "nss_hosts_lookup",
    "nss_lookup",
    "nss_lookup_function",
    "nss_next",
    "nss_services_lookup",
];

/// The symbols of a 64-bit little-endian ELF file; none when it has been stripped of them.
pub fn symbols(elf: &[u8]) -> BTreeSet<String> {
    let number =
        |at: usize, len: usize| elf[at..at + len].iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
    assert_eq!(&elf[..6], b"\x7fELF\x02\x01", "a 64-bit program");
    let (table, size, count) = (number(40, 8), number(58, 2), number(60, 2));
    // A section's type, place, length, and the section that it is linked to.
    let section = |index: usize| {
        let at = table + index * size;
        (number(at + 4, 4), number(at + 24, 8), number(at + 32, 8), number(at + 40, 4))
    };
    let mut found = BTreeSet::new();
    // SHT_SYMTAB
    for (_, place, length, linked) in (0..count).map(section).filter(|(kind, ..)| *kind == 2) {
        let texts = section(linked).1;
        for symbol in (place..place + length).step_by(24) {
            let name = &elf[texts + number(symbol, 4)..];
            let end = name.iter().position(|byte| *byte == 0).expect("a name ends");
            found.insert(String::from_utf8_lossy(&name[..end]).into_owned());
        }
    }
    found
}

/// What of these symbols loads modules: `getpwnam_r` and `__new_getpwnam_r`, too. Not what lies behind `fork`, which keeps the
/// list of modules as it is for the child (`__nss_database_fork_prepare_parent`), and with it the readers of files.
pub fn loading(symbols: &BTreeSet<String>) -> Vec<String> {
    let plain = |name: &str| {
        let name = name.trim_start_matches('_').trim_start_matches("new_").trim_end_matches("_r");
        name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned()
    };
    let loads = |name: &&String| LOADING.contains(&plain(name).as_str());
    symbols.iter().filter(loads).map(|name| format!("{name} is linked in: ask src/names instead")).collect()
}

mod samples {
    use std::fs;

    use super::*;

    #[test]
    fn functions_that_load_modules_are_seen() {
        let bad = |names: &[&str]| loading(&names.iter().map(|name| (*name).to_owned()).collect()).len();
        assert_eq!(
            bad(&["main", "getrandom", "_ZN3std3net11getaddrinfo17h0E", "getgroups", "_nss_files_getpwnam_r"]),
            0
        );
        assert_eq!(bad(&["getaddrinfo", "__getpwnam_r", "__new_gethostbyname2_r", "getgrgid_r", "__nss_lookup"]), 5);
        // This program has its own.
        let own = symbols(&fs::read("/proc/self/exe").expect("reads this program"));
        assert!(own.contains("main") && own.iter().any(|name| name.contains("functions_that_load_modules")));
    }
}
