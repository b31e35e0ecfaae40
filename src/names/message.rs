//! The messages of name servers (RFC 1035, section 4): a question for addresses, and what an answer has of them. Never does I/O.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of the longest name on the wire, with the lengths of its labels and the empty one at its end.
const LONGEST_NAME: usize = 255;
const LONGEST_LABEL: usize = 63;
const HEADER: usize = 12;
const CLASS_IN: u16 = 1;
const CNAME: u16 = 5;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// IPv4.
    A = 1,
    /// IPv6.
    Aaaa = 28,
}

/// What a server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reply {
    /// The addresses of the name, or of the one that it is an alias of.
    Addresses(Vec<IpAddr>),
    NoSuchName,
    /// There is more than fits into the message.
    TooLong,
    /// Another code of an error: 2 is a failure of the server, 5 a refusal.
    Refused(u8),
}

/// A question as it is sent.
#[derive(Debug, Clone)]
pub(super) struct Question {
    bytes: Vec<u8>,
    name: Vec<u8>,
    kind: Kind,
}

impl Question {
    /// For one kind of addresses of a name, which is ASCII.
    ///
    /// # Errors
    /// `InvalidInput` for what cannot be a name.
    pub(super) fn new(number: u16, name: &str, kind: Kind) -> io::Result<Question> {
        let name = wire_name(name).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot be the name of a host"))
        })?;
        let mut bytes = number.to_be_bytes().to_vec();
        // "Recursion is desired", and one question.
        bytes.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend(&name);
        bytes.extend((kind as u16).to_be_bytes());
        bytes.extend(CLASS_IN.to_be_bytes());
        Ok(Question { bytes, name, kind })
    }

    /// As it is sent.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What `message` says to it; `None` when that is not an answer to it, or none that can be read.
    pub(super) fn reply(&self, message: &[u8]) -> Option<Reply> {
        let (head, own) = (message.get(..HEADER)?, &self.bytes[..HEADER]);
        let is_answer = head[2] & 0b1111_1000 == 0b1000_0000;
        if head[..2] != own[..2] || !is_answer || head[4..6] != own[4..6] {
            return None;
        }
        let mut reader = Reader { message, at: HEADER };
        let asked = reader.name()? == self.name && reader.u16()? == self.kind as u16 && reader.u16()? == CLASS_IN;
        if !asked {
            return None;
        }
        let (cut_off, code) = (head[2] & 0b10 != 0, head[3] & 0b1111);
        match code {
            _ if cut_off => Some(Reply::TooLong),
            0 => self.answers(&mut reader, u16::from_be_bytes([head[6], head[7]])).map(Reply::Addresses),
            3 => Some(Reply::NoSuchName),
            other => Some(Reply::Refused(other)),
        }
    }

    /// The addresses of the name, followed through its aliases, which servers send in order.
    fn answers(&self, reader: &mut Reader<'_>, count: u16) -> Option<Vec<IpAddr>> {
        let (mut name, mut addresses) = (self.name.clone(), Vec::new());
        for _ in 0..count {
            let owner = reader.name()?;
            let (kind, class) = (reader.u16()?, reader.u16()?);
            let _how_long_it_holds = reader.bytes(4)?;
            let length = reader.u16()?.into();
            let mut data = Reader { message: reader.message, at: reader.at };
            let bytes = reader.bytes(length)?;
            if owner != name || class != CLASS_IN {
                continue;
            }
            if kind == CNAME {
                name = data.name()?;
            } else if kind == self.kind as u16 {
                addresses.push(match self.kind {
                    Kind::A => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
                    Kind::Aaaa => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
                });
            }
        }
        Some(addresses)
    }
}

/// A name as labels with their lengths, in small letters; `None` for what cannot be one.
fn wire_name(name: &str) -> Option<Vec<u8>> {
    let mut wire = Vec::new();
    for label in name.split('.') {
        if label.is_empty() || label.len() > LONGEST_LABEL || !label.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        wire.push(label.len() as u8);
        wire.extend(label.to_ascii_lowercase().bytes());
    }
    wire.push(0);
    (wire.len() <= LONGEST_NAME).then_some(wire)
}

/// Whether a server can be asked for it.
pub(super) fn is_name(name: &str) -> bool {
    wire_name(name).is_some()
}

/// A place in a message.
struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let bytes = self.message.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.bytes(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A name, whose end may be that of a name further ahead; in small letters.
    fn name(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        // Of a name that goes on elsewhere: where it began, and what follows it here.
        let (mut begin, mut behind) = (self.at, None);
        loop {
            let length = usize::from(self.bytes(1)?[0]);
            match length {
                0 => break,
                1..=LONGEST_LABEL => {
                    name.push(length as u8);
                    name.extend(self.bytes(length)?.to_ascii_lowercase());
                }
                0xc0..=0xff => {
                    let place = ((length & 0x3f) << 8) | usize::from(self.bytes(1)?[0]);
                    // Only ever further ahead, so that it ends.
                    if place >= begin {
                        return None;
                    }
                    behind.get_or_insert(self.at);
                    (self.at, begin) = (place, place);
                }
                _ => return None,
            }
            if name.len() >= LONGEST_NAME {
                return None;
            }
        }
        self.at = behind.unwrap_or(self.at);
        name.push(0);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question() -> Question {
        Question::new(0x1234, "Web.test", Kind::A).unwrap()
    }

    /// An answer to it with an alias: its name, one that ends like it, and two addresses of that.
    const ANSWER: &[u8] = b"\x12\x34\x81\x80\0\x01\0\x03\0\0\0\0\x03web\x04TEST\0\0\x01\0\x01\
        \xc0\x0c\0\x05\0\x01\0\0\0\x05\0\x04\x01b\xc0\x10\
        \xc0\x26\0\x01\0\x01\0\0\0\x05\0\x04\xc0\0\x02\x01\
        \x01B\x04test\0\0\x01\0\x01\0\0\0\x05\0\x04\xc0\0\x02\x02";

    #[test]
    fn a_question_is_sent_and_its_answer_read() {
        let sent = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03web\x04test\0\0\x01\0\x01";
        assert_eq!(question().bytes(), sent);
        let addresses = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        assert_eq!(question().reply(ANSWER), Some(Reply::Addresses(addresses.to_vec())));
        let six = Question::new(1, "a", Kind::Aaaa).unwrap();
        let answer = b"\0\x01\x81\x80\0\x01\0\x02\0\0\0\0\x01a\0\0\x1c\0\x01\
            \x01x\0\0\x1c\0\x01\0\0\0\0\0\x10\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\
            \xc0\x0c\0\x1c\0\x01\0\0\0\0\0\x10\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
        // The first one is of a name that nobody asked for.
        assert_eq!(six.reply(answer), Some(Reply::Addresses(vec!["2001:db8::1".parse().unwrap()])));
    }

    #[test]
    fn what_answers_something_else_is_none() {
        for (at, byte) in [(0, 0), (2, 0x01), (2, 0x91), (5, 2), (13, b'x'), (23, 28), (25, 3)] {
            let mut other = ANSWER.to_vec();
            other[at] = byte;
            assert_eq!(question().reply(&other), None, "{at}");
        }
        for (at, byte, reply) in [(3, 0x83, Reply::NoSuchName), (3, 0x82, Reply::Refused(2)), (2, 0x83, Reply::TooLong)]
        {
            let mut other = ANSWER.to_vec();
            other[at] = byte;
            assert_eq!(question().reply(&other), Some(reply));
        }
    }

    /// Every message that is cut off, or has a byte changed, is read or refused, and ends.
    #[test]
    fn whatever_comes_is_read_to_an_end() {
        for length in 0..ANSWER.len() {
            assert_eq!(question().reply(&ANSWER[..length]), None, "{length}");
        }
        for at in 0..ANSWER.len() {
            for byte in 0..=255 {
                let mut other = ANSWER.to_vec();
                other[at] = byte;
                if let Some(Reply::Addresses(addresses)) = question().reply(&other) {
                    assert!(addresses.len() <= 2);
                }
            }
        }
        // A name that is its own end, and one of 200 labels that each point to the one before.
        let circle = [&ANSWER[..26], b"\xc0\x1a\0\x01\0\x01"].concat();
        assert_eq!(question().reply(&circle), None);
        let mut long = ANSWER[..26].to_vec();
        // The end of the question's name.
        let mut before = 21;
        for labels in 1..=200 {
            let here = long.len();
            long.extend(*b"\x01a");
            long.extend((0xc000 | before as u16).to_be_bytes());
            before = here;
            let name = Reader { message: &long, at: here }.name();
            assert_eq!(name.map(|name| name.len()), (labels <= 127).then_some(2 * labels + 1), "{labels}");
        }
    }

    #[test]
    fn names_have_bounds() {
        let label = "x".repeat(63);
        let longest = format!("{label}.{label}.{label}.{}", "x".repeat(61));
        assert_eq!(wire_name(&longest).unwrap().len(), 255);
        for wrong in ["", ".", "a..b", ".a", "a b", "ü", &format!("{longest}x"), &"x".repeat(64)] {
            assert_eq!(wire_name(wrong), None, "{wrong}");
        }
    }
}
