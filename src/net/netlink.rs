//! Requests to the kernel by `netlink(7)`, and what it answers. Never knows what a request is about.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    DefaultNla, Emitable as _, ErrorBuffer, ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkHeader, NlasIterator, Parseable as _,
};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with, sockopt};

/// Lengths of `struct nlmsghdr` and `struct nlattr`.
const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;
/// `NLMSG_ERROR` of `netlink(7)`, which is also how a success is acknowledged.
const ACKNOWLEDGED: u16 = 2;
/// `NLMSG_DONE` of `netlink(7)`: the end of a list.
const DONE: u16 = 3;
/// Longest answer: an acknowledgement repeats the header of the request, or all of it after an error.
const LONGEST_ANSWER: usize = 8 << 10;
/// The longest piece of a list that the kernel makes (`netlink_dump` in its `af_netlink.c`).
const LONGEST_PIECE: usize = 32 << 10;
/// How much of a message there is room for in a socket, unless it is asked for more.
const USUAL_ROOM: usize = 64 << 10;
/// Whether an attribute contains attributes.
pub(super) const NESTED: u16 = 1 << 15;

/// After this time nobody waits any more who closes one of these.
const FREED: Duration = Duration::from_secs(1);
/// Most of them of one thread.
const MOST_LATER: usize = 16;

thread_local! {
    /// Connections that are closed when others join them later, or the thread ends.
    static CLOSED_LATER: RefCell<Vec<(Instant, OwnedFd)>> = const { RefCell::new(Vec::new()) };
}

/// A connection to a part of the kernel, as it is in this thread's network namespace.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Opens a connection; `None` is `NETLINK_ROUTE`, the protocol of a socket that names none.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Socket> {
        Ok(Socket(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?))
    }

    /// Closes it in a moment. Whoever closes a connection to netfilter waits until the kernel has freed all that was changed there, for
    /// 15 ms after each change of rules.
    pub(super) fn close_later(self) {
        CLOSED_LATER.with_borrow_mut(|all| {
            all.retain(|(since, _)| since.elapsed() < FREED);
            if all.len() == MOST_LATER {
                all.remove(0);
            }
            all.push((Instant::now(), self.0));
        });
    }

    /// Sends one request, and reads whether the kernel has done it.
    pub(super) fn ask(&self, kind: u16, flags: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        self.send(kind, NLM_F_ACK | flags, header, attributes)?;
        let mut answer = vec![0; LONGEST_ANSWER];
        let length = self.receive(&mut answer)?;
        outcome(answer.get(..length).unwrap_or_default())
    }

    /// Sends one request for something that exists or not.
    ///
    /// # Errors
    /// ENOENT, mostly, if it does not.
    pub(super) fn is_there(&self, kind: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        self.send(kind, 0, header, attributes)?;
        let mut answer = vec![0; LONGEST_ANSWER];
        let length = self.receive(&mut answer)?;
        let answer = answer.get(..length).unwrap_or_default();
        let (answered, _) = next_message(&mut &*answer)?;
        if answered == ACKNOWLEDGED { outcome(answer) } else { Ok(()) }
    }

    /// Sends messages that are done together, of which the last one asks for an answer.
    ///
    /// # Errors
    /// The first one, with the number of its message; 0 if it is of none of them.
    pub(super) fn change(&self, messages: &[u8]) -> Result<(), (u32, io::Error)> {
        let whole = |error: Errno| (0, error.into());
        if messages.len() > USUAL_ROOM {
            sockopt::set_socket_send_buffer_size_force(&self.0, messages.len().saturating_add(USUAL_ROOM))
                .map_err(whole)?;
        }
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, messages, SendFlags::empty())).map_err(whole)?;
        let mut answer = vec![0; LONGEST_ANSWER];
        let length = self.receive(&mut answer).map_err(|error| (0, error))?;
        let answer = answer.get(..length).unwrap_or_default();
        // Errors come in the order of their messages, before what was asked for.
        let number = NetlinkBuffer::new_checked(answer).map_or(0, |buffer| buffer.sequence_number());
        outcome(answer).map_err(|error| (number, error))
    }

    /// Calls `each` with everything that a request lists, without the header of its message.
    pub(super) fn list(
        &self,
        kind: u16,
        header: &[u8],
        each: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.send(kind, NLM_F_DUMP, header, &[])?;
        let mut piece = vec![0; LONGEST_PIECE];
        loop {
            let length = self.receive(&mut piece)?;
            if pieces(piece.get(..length).unwrap_or_default(), each)? {
                return Ok(());
            }
        }
    }

    fn send(&self, kind: u16, flags: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        let mut request = Vec::new();
        message(&mut request, kind, flags, 0, header, attributes);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &request, SendFlags::empty()))?;
        Ok(())
    }

    /// The kernel answers before the call that sends returns, and continues a list before the call that reads a piece returns.
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        let (length, _) = rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, &mut *into, RecvFlags::DONTWAIT))?;
        Ok(length)
    }
}

/// Appends a message with its number, to which the kernel's answer refers.
pub(super) fn message(
    into: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    number: u32,
    header: &[u8],
    attributes: &[DefaultNla],
) {
    let start = into.len();
    into.resize(start + HEADER, 0);
    into.extend_from_slice(header);
    emit(attributes, into);
    let mut first = NetlinkHeader::default();
    // What is too long for the field is too long for the kernel.
    first.length = u32::try_from(into.len() - start).unwrap_or(u32::MAX);
    (first.message_type, first.flags, first.sequence_number) = (kind, NLM_F_REQUEST | flags, number);
    first.emit(&mut into[start..start + HEADER]);
}

/// Opens a connection on which the kernel tells about these groups, a bit each.
pub(super) fn listen(protocol: Protocol, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol))?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// What the kernel has answered to a request.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let buffer = NetlinkBuffer::new_checked(answer).map_err(|e| unreadable(&e))?;
    if buffer.message_type() != ACKNOWLEDGED {
        return Err(unreadable(&format!("it is of type {}", buffer.message_type())));
    }
    let payload = buffer.payload();
    let error = ErrorBuffer::new_checked(&payload).and_then(|error| ErrorMessage::parse(&error));
    match error.map_err(|e| unreadable(&e))?.code {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
    }
}

/// Calls `each` with the contents of all messages in a piece of a list. Returns whether it was the last piece.
fn pieces(mut piece: &[u8], each: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<bool> {
    while !piece.is_empty() {
        let whole = piece;
        match next_message(&mut piece)? {
            // With an errno if it is not complete.
            (DONE, payload) => match payload.first_chunk().map(|code| i32::from_ne_bytes(*code)) {
                Some(code @ ..0) => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                _ => return Ok(true),
            },
            (ACKNOWLEDGED, _) => return outcome(whole).map(|()| true),
            (_, payload) => each(payload)?,
        }
    }
    Ok(false)
}

/// The type and the contents of the first message, which is removed from the piece.
pub(super) fn next_message<'a>(piece: &mut &'a [u8]) -> io::Result<(u16, &'a [u8])> {
    let buffer = NetlinkBuffer::new_checked(*piece).map_err(|e| unreadable(&e))?;
    let length = usize::try_from(buffer.length()).unwrap_or(usize::MAX);
    *piece = piece.get(length.next_multiple_of(ATTRIBUTE)..).unwrap_or_default();
    Ok((buffer.message_type(), buffer.payload()))
}

fn unreadable(why: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("the kernel's answer cannot be read: {why}"))
}

/// The value of the first attribute of this kind.
pub(super) fn attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    let found = NlasIterator::new(attributes).map_while(Result::ok).find(|one| one.kind() == kind)?;
    let length = usize::from(found.length());
    found.into_inner().get(ATTRIBUTE..length)
}

pub(super) fn bytes(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

pub(super) fn text(kind: u16, value: &str) -> DefaultNla {
    let mut value = value.as_bytes().to_vec();
    value.push(0);
    DefaultNla::new(kind, value)
}

pub(super) fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = Vec::new();
    emit(inner, &mut value);
    DefaultNla::new(kind | NESTED, value)
}

pub(super) fn emit(attributes: &[DefaultNla], message: &mut Vec<u8>) {
    let start = message.len();
    message.resize(start + attributes.buffer_len(), 0);
    attributes.emit(&mut message[start..]);
}

/// An error that says that it is done already is none.
pub(super) fn unless(done: Errno, outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(done.raw_os_error()) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut message = vec![0; HEADER];
        message.extend_from_slice(content);
        let mut header = NetlinkHeader::default();
        (header.length, header.message_type) = (u32::try_from(message.len()).unwrap(), kind);
        header.emit(&mut message[..HEADER]);
        message
    }

    fn answer(kind: u16, code: i32) -> Vec<u8> {
        message(kind, &[&code.to_ne_bytes()[..], &[0; HEADER]].concat())
    }

    #[test]
    fn an_answer_is_a_success_an_errno_or_unreadable() {
        outcome(&answer(ACKNOWLEDGED, 0)).unwrap();
        let error = outcome(&answer(ACKNOWLEDGED, -libc::EEXIST)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        unless(Errno::EXIST, Err(error)).unwrap();
        for unreadable in [&answer(3, 0)[..], &answer(ACKNOWLEDGED, 0)[..10], &[], &[0; 64]] {
            let error = outcome(unreadable).unwrap_err();
            assert!(error.to_string().starts_with("the kernel's answer cannot be read"), "{error}");
        }
    }

    #[test]
    fn a_list_is_read_to_its_end() {
        let read = |piece: &[u8]| {
            let mut found = Vec::new();
            let ended = pieces(piece, &mut |content| {
                found.push(content.to_vec());
                Ok(())
            });
            (ended.map_err(|e| e.raw_os_error()), found)
        };
        let two = [message(16, &[1; 4]), message(16, &[2; 8])].concat();
        assert_eq!(read(&two), (Ok(false), vec![vec![1; 4], vec![2; 8]]));
        let last = [two, message(DONE, &[0; 4]), message(16, &[3; 4])].concat();
        assert_eq!(read(&last), (Ok(true), vec![vec![1; 4], vec![2; 8]]));
        assert_eq!(read(&answer(ACKNOWLEDGED, -libc::EPERM)).0, Err(Some(libc::EPERM)));
        assert_eq!(read(&message(DONE, &(-libc::ENOMEM).to_ne_bytes())).0, Err(Some(libc::ENOMEM)));
        assert_eq!(read(&last[..30]).0, Err(None), "cut off");
        assert_eq!(read(&[]), (Ok(false), Vec::new()));
    }

    #[test]
    fn attributes_are_found_by_their_kind() {
        let mut all = Vec::new();
        emit(&[bytes(1, &[7; 3]), nested(2, &[text(1, "x")])], &mut all);
        assert_eq!(attribute(&all, 1), Some(&[7; 3][..]));
        assert_eq!(attribute(attribute(&all, 2).unwrap(), 1), Some(&b"x\0"[..]));
        assert_eq!(attribute(&all, 3), None);
        assert_eq!(attribute(&all[..2], 1), None);
        assert_eq!(attribute(&[1, 0, 0, 0], 0), None, "shorter than itself");
    }
}
