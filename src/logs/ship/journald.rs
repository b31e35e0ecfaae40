//! journald's native protocol: a datagram of fields for each entry; an entry that is too large is sent as a sealed memfd
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL>).

use std::fs::File;
use std::io::{self, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::Interest;
use tokio::net::UnixDatagram;

use super::entry::{Batch, Entry};
use super::{Labels, Stream};
use crate::sys;

/// A connection to journald.
#[derive(Debug)]
pub(super) struct Journald(UnixDatagram);

impl Journald {
    pub(super) fn connect(path: &Path) -> io::Result<Journald> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Journald(socket))
    }

    /// Sends the entries from `done` on, and advances `done`.
    pub(super) async fn send(
        &self,
        labels: &Labels,
        stream: Stream,
        batch: &Batch,
        done: &mut usize,
    ) -> io::Result<()> {
        while let Some(entry) = batch.entries.get(*done) {
            let fields = encode(labels, stream, batch, entry);
            match self.0.send(&fields).await {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EMSGSIZE | libc::ENOBUFS)) => {
                    self.send_sealed(fields).await?;
                }
                other => drop(other?),
            }
            *done += 1;
        }
        Ok(())
    }

    /// journald accepts only a memfd that is sealed against changes.
    async fn send_sealed(&self, fields: Vec<u8>) -> io::Result<()> {
        let memfd = sys::task::spawn_blocking(move || sealed(&fields)).await??;
        let send = || {
            let fds = [memfd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            rustix::net::sendmsg(&self.0, &[IoSlice::new(&[])], &mut control, SendFlags::NOSIGNAL)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }
}

fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("journal-entry", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(fd);
    file.write_all(bytes)?;
    sys::memfd::seal(&file)?;
    Ok(file.into())
}

fn encode(labels: &Labels, stream: Stream, batch: &Batch, entry: &Entry) -> Vec<u8> {
    let text = batch.text(entry);
    let mut out = Vec::with_capacity(text.len() + 512);
    let time = humantime::format_rfc3339_micros(batch.time).to_string();
    let (file, offset) = (entry.at.index.to_string(), entry.at.offset.to_string());
    let fields = [
        ("PRIORITY", if stream == Stream::Stderr { "3" } else { "6" }),
        ("SYSLOG_IDENTIFIER", labels.task.as_str()),
        ("NOMAD_JOB_NAME", &labels.job),
        ("NOMAD_GROUP_NAME", &labels.group),
        ("NOMAD_TASK_NAME", &labels.task),
        ("NOMAD_ALLOC_ID", &labels.alloc),
        ("NOMAD_STREAM", stream.name()),
        ("NOMAD_LOG_TIME", &time),
        ("NOMAD_LOG_FILE", &file),
        ("NOMAD_LOG_OFFSET", &offset),
    ];
    for (name, value) in fields {
        field(&mut out, name, value.as_bytes());
    }
    if entry.partial {
        field(&mut out, "NOMAD_PARTIAL", b"1");
    }
    field(&mut out, "MESSAGE", text);
    out
}

/// `NAME=value`, or with its length if the value contains a line end.
fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    if value.contains(&b'\n') {
        out.push(b'\n');
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        out.push(b'=');
    }
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_newline_has_its_length() {
        let mut out = Vec::new();
        field(&mut out, "A", b"b");
        field(&mut out, "C", b"d\ne");
        assert_eq!(out, b"A=b\nC\n\x03\0\0\0\0\0\0\0d\ne\n");
    }
}
