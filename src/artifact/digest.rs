//! Checksums of downloads.

use std::fmt::Write as _;
use std::io::{self, Read};

use md5::Digest as _;

use crate::spec::Digest;

/// The digest of everything that remains to be read, in hexadecimal digits.
pub(super) fn of(digest: Digest, from: &mut dyn Read) -> io::Result<String> {
    match digest {
        Digest::Md5 => value(md5::Md5::new(), from),
        Digest::Sha1 => value(sha1::Sha1::new(), from),
        Digest::Sha256 => value(sha2::Sha256::new(), from),
        Digest::Sha512 => value(sha2::Sha512::new(), from),
    }
}

fn value<D: md5::Digest>(mut state: D, from: &mut dyn Read) -> io::Result<String> {
    let mut buffer = vec![0; 128 * 1024];
    loop {
        match from.read(&mut buffer)? {
            0 => break,
            read => state.update(&buffer[..read]),
        }
    }
    Ok(state.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// Finds the checksum of the file `name` in a file of checksums: in GNU's or BSD's format, or a single value alone. Bytes that
/// are not text are skipped.
pub(super) fn listed(list: &str, name: &str) -> Option<(Digest, String)> {
    let same = |path: &str| path.trim_start_matches('*').rsplit('/').next() == Some(name);
    let of_value = |value: &str| Digest::of_value(value).map(|digest| (digest, value.to_ascii_lowercase()));
    let lines = || list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines() {
        // `SHA256 (name) = value`
        if let Some((before, value)) = line.split_once(") = ")
            && let Some((_, path)) = before.split_once(" (")
            && same(path)
        {
            return of_value(value.trim());
        }
        // `value  name`, `value *name`
        if let Some((value, path)) = line.split_once(char::is_whitespace)
            && same(path.trim())
            && let Some(found) = of_value(value)
        {
            return Some(found);
        }
    }
    let mut alone = lines();
    match (alone.next(), alone.next()) {
        (Some(line), None) => of_value(line),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_standards() {
        for (digest, expected) in [
            (Digest::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            (Digest::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (Digest::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ] {
            assert_eq!(of(digest, &mut &b"abc"[..]).unwrap(), expected);
        }
        assert!(of(Digest::Sha512, &mut &b"abc"[..]).unwrap().starts_with("ddaf35a193617aba"));
    }

    #[test]
    fn lists_are_read_in_their_three_forms() {
        let (md5, sha1) = ("900150983cd24fb0d6963f7d28e17f72", "A9993E364706816ABA3E25717850C26C9CD0D89D");
        let found = |list: &str| listed(list, "x.bin").map(|(digest, value)| (digest, value.len()));
        assert_eq!(found(&format!("# list\n{md5}  ./dir/x.bin\n")), Some((Digest::Md5, 32)));
        assert_eq!(found(&format!("{md5}  y.bin\n{sha1} *x.bin\n")), Some((Digest::Sha1, 40)));
        assert_eq!(found(&format!("MD5 (x.bin) = {md5}\n")), Some((Digest::Md5, 32)));
        assert_eq!(found(&format!("{md5}\n")), Some((Digest::Md5, 32)));
        assert_eq!(found(&format!("{md5}  y.bin\n")), None);
        assert_eq!(found("zz  x.bin\n"), None);
        assert_eq!(listed(&format!("{sha1} x.bin"), "x.bin").unwrap().1, sha1.to_ascii_lowercase());
    }
}
