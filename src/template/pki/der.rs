//! DER, as far as keys and certificates need it.

pub(super) const BOOLEAN: u8 = 0x01;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BITS: u8 = 0x03;
pub(super) const OCTETS: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const NUMERIC_STRING: u8 = 0x12;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const T61_STRING: u8 = 0x14;
pub(super) const IA5_STRING: u8 = 0x16;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const BMP_STRING: u8 = 0x1e;

/// An element of these parts.
pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = vec![tag];
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes = length.to_be_bytes();
        let significant = &bytes[length.leading_zeros() as usize / 8..];
        out.push(0x80 | significant.len() as u8);
        out.extend_from_slice(significant);
    }
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

pub(super) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    element(SEQUENCE, parts)
}

/// An integer that is not negative, from its big-endian bytes.
pub(super) fn integer(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    match &bytes[zeros..] {
        [] => element(INTEGER, &[&[0]]),
        bytes if bytes[0] >= 0x80 => element(INTEGER, &[&[0], bytes]),
        bytes => element(INTEGER, &[bytes]),
    }
}

/// Whole bytes as a string of bits.
pub(super) fn bits(bytes: &[u8]) -> Vec<u8> {
    element(BITS, &[&[0], bytes])
}

/// One element.
#[derive(Clone, Copy)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// With its tag and its length.
    pub(super) whole: &'a [u8],
}

/// Reads element after element.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element. `None` at the end, and for what is not DER.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, header) = match first {
            0..=0x7f => (usize::from(first), 2),
            0x81..=0x84 => {
                let bytes = rest.get(..usize::from(first & 0x7f))?;
                let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                // The shortest form is the only one.
                if bytes[0] == 0 || length < 0x80 {
                    return None;
                }
                (length, 2 + bytes.len())
            }
            _ => return None,
        };
        // Longer tags are in none of these.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let whole = self.0.get(..header.checked_add(length)?)?;
        self.0 = &self.0[whole.len()..];
        Some(Element { tag, content: &whole[header..], whole })
    }

    /// The next element, of that tag.
    pub(super) fn element(&mut self, tag: u8) -> Option<Element<'a>> {
        let kept = self.0;
        let found = self.next().filter(|element| element.tag == tag);
        if found.is_none() {
            self.0 = kept;
        }
        found
    }

    /// The content of the next element, of that tag.
    pub(super) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.element(tag).map(|element| element.content)
    }

    /// The elements in the next one.
    pub(super) fn inside(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.take(tag).map(Reader)
    }

    /// The bytes of an integer in their shortest form; the first bit is the sign.
    pub(super) fn integer(&mut self) -> Option<&'a [u8]> {
        let bytes = self.take(INTEGER)?;
        let is_shortest = match bytes {
            [] => false,
            [0, second, ..] => *second >= 0x80,
            [0xff, second, ..] => *second < 0x80,
            _ => true,
        };
        is_shortest.then_some(bytes)
    }

    /// A small integer: a version.
    pub(super) fn version(&mut self) -> Option<u8> {
        match self.integer()? {
            [n] => Some(*n),
            _ => None,
        }
    }

    /// An object identifier: numbers of seven bits a byte, each in its shortest form.
    pub(super) fn object_id(&mut self) -> Option<Element<'a>> {
        let is_number = |number: &[u8]| number.first() != Some(&0x80) && number.len() <= 5;
        self.element(OID).filter(|oid| {
            oid.content.last().is_some_and(|last| *last < 0x80)
                && oid.content.split_inclusive(|byte| *byte < 0x80).all(is_number)
        })
    }

    /// A string of bits: the bytes, of which the last may not be used in whole.
    pub(super) fn bits(&mut self) -> Option<&'a [u8]> {
        let (&unused, bytes) = self.take(BITS)?.split_first()?;
        let last = bytes.last().copied().unwrap_or(if unused == 0 { 0 } else { 0xff });
        (unused < 8 && last & ((1 << unused) - 1) == 0).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j4_der_is_read_as_it_is_written_and_in_the_shortest_form_only() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536, 100_000] {
            let content = vec![7; length];
            let written = element(OCTETS, &[&content]);
            let mut reader = Reader(&written);
            assert_eq!(reader.take(OCTETS), Some(&content[..]), "{length}");
            assert!(reader.is_empty());
            assert!(Reader(&written[..written.len() - 1]).next().is_none(), "{length}");
        }
        let mut reader = Reader(&[2, 1, 5]);
        assert!(reader.take(OCTETS).is_none() && reader.version() == Some(5), "what is not wanted stays");
        for bad in [
            &[4, 0x80][..],
            &[4, 0x81, 1, 0],
            &[4, 0x82, 0, 0x80],
            &[4, 0x85, 0, 0, 0, 0, 1, 0],
            &[4, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x1f, 1, 0],
            &[4],
            &[],
        ] {
            assert!(Reader(bad).next().is_none(), "{bad:?}");
        }
        for (bytes, written) in [(&[][..], &[2, 1, 0][..]), (&[0, 0, 1], &[2, 1, 1]), (&[0x80], &[2, 2, 0, 0x80])] {
            assert_eq!(integer(bytes), written);
        }
        for bad in [&[2, 0][..], &[2, 2, 0, 1], &[2, 2, 0xff, 0x80]] {
            assert!(Reader(bad).integer().is_none(), "{bad:?}");
        }
        assert_eq!(Reader(&bits(b"ab")).bits(), Some(&b"ab"[..]));
        assert_eq!(Reader(&[3, 2, 1, 2]).bits(), Some(&[2][..]));
        for bad in [&[3, 0][..], &[3, 2, 8, 0], &[3, 1, 1], &[3, 2, 1, 1]] {
            assert!(Reader(bad).bits().is_none(), "{bad:?}");
        }
        assert!(Reader(&[6, 3, 0x2a, 0x86, 0x48]).object_id().is_some());
        for bad in [&[6, 0][..], &[6, 2, 0x2a, 0x86], &[6, 3, 0x2a, 0x80, 1], &[6, 6, 0x81, 0x81, 0x81, 0x81, 0x81, 1]]
        {
            assert!(Reader(bad).object_id().is_none(), "{bad:?}");
        }
    }
}
