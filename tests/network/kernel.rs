//! The kernel as agentbin sees it in a test: one without `nf_tables`, and one that does not do what it is asked by netlink, by a filter of
//! system calls (`seccomp(2)`, `seccomp_unotify(2)`). Never changes what another program sees.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Longest message that is read of a program.
const LONGEST: u64 = 1 << 20;
/// Where the number of the call is in `struct seccomp_data`.
const NUMBER: u32 = 0;

fn load(offset: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: offset }
}

/// Goes on with the next one if it is this value, else leaves so many out.
fn unless(value: u32, leave_out: u8) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: leave_out, k: value }
}

fn answer(what: u32) -> libc::sock_filter {
    libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: what }
}

fn install(filter: &mut [libc::sock_filter], flags: libc::c_ulong) -> io::Result<i32> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and what it points to outlive the call, which copies it.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    i32::try_from(done).ok().filter(|done| *done >= 0).ok_or_else(io::Error::last_os_error)
}

/// What a kernel without `nf_tables` says to a call, if that is about them.
pub fn without_tables(call: &Call) -> Option<Reply> {
    let is_of_tables = |kind: u16| i32::from(kind >> 8) == libc::NFNL_SUBSYS_NFTABLES;
    match call.messages().first()? {
        // A link is made by a message of the same number.
        (kind, rest) if i32::from(*kind) == libc::NFNL_MSG_BATCH_BEGIN && rest.len() == 4 => {
            Some(Reply::Fails(libc::EOPNOTSUPP))
        }
        (kind, _) if is_of_tables(*kind) => Some(Reply::Fails(libc::EINVAL)),
        _ => None,
    }
}

/// The program, and all processes of it that are agentbin, run on a kernel without `nf_tables`.
pub fn hide_tables(command: &mut Command) {
    let answers: Answers = Arc::new(Mutex::new(|call: &Call| without_tables(call).unwrap_or(Reply::Own)));
    answered(command, &answers);
}

/// A call of agentbin's by netlink.
pub struct Call {
    /// The thread that calls.
    pub thread: u32,
    /// What it sends; nothing if it reads an answer.
    pub message: Option<Vec<u8>>,
}

impl Call {
    /// The types of the messages that it sends, with the bytes that follow their headers.
    pub fn messages(&self) -> Vec<(u16, Vec<u8>)> {
        let mut rest = self.message.as_deref().unwrap_or_default();
        let mut all = Vec::new();
        while let Some(length) = rest.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize)
            && let Some(whole) = rest.get(..length)
            && length >= 16
        {
            all.push((u16::from_ne_bytes([whole[4], whole[5]]), whole[16..].to_vec()));
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        all
    }
}

/// What the kernel says to a call: what it says, or this error, and it does nothing.
pub enum Reply {
    Own,
    Fails(i32),
}

pub type Answers = Arc<Mutex<dyn FnMut(&Call) -> Reply + Send>>;

/// The program's calls by netlink, and those of its processes that are agentbin too, are answered by `answers`.
pub fn answered(command: &mut Command, answers: &Answers) {
    let mut filter = [
        load(NUMBER),
        unless(libc::SYS_sendto as u32, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        unless(libc::SYS_recvfrom as u32, 1),
        answer(libc::SECCOMP_RET_USER_NOTIF),
        answer(libc::SECCOMP_RET_ALLOW),
    ];
    let (own, programs) = std::os::unix::net::UnixStream::pair().unwrap();
    // A signal that somebody sends is no second call.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let give = move || {
        let listener = install(&mut filter, flags)?;
        // SAFETY: the kernel has just made it, for this process alone.
        let listener = unsafe { OwnedFd::from_raw_fd(listener) };
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let listeners = [std::os::fd::AsFd::as_fd(&listener)];
        control.push(rustix::net::SendAncillaryMessage::ScmRights(&listeners));
        let byte = [io::IoSlice::new(b"x")];
        rustix::net::sendmsg(&programs, &byte, &mut control, rustix::net::SendFlags::empty())?;
        Ok(())
    };
    // SAFETY: it only makes system calls.
    unsafe { command.pre_exec(give) };
    let answers = Arc::clone(answers);
    std::thread::spawn(move || {
        // Never given if the program was never started.
        if let Some(listener) = given(&own) {
            while answer_one(&listener, &answers).is_ok() {}
        }
    });
}

fn given(from: &std::os::unix::net::UnixStream) -> Option<OwnedFd> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = rustix::net::RecvAncillaryBuffer::new(&mut space);
    let (mut byte, flags) = ([0; 1], rustix::net::RecvFlags::CMSG_CLOEXEC);
    rustix::net::recvmsg(from, &mut [io::IoSliceMut::new(&mut byte)], &mut control, flags).ok()?;
    control.drain().find_map(|message| match message {
        rustix::net::RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Ends with the last process that has the filter.
fn answer_one(listener: &OwnedFd, answers: &Answers) -> io::Result<()> {
    use rustix::event::{PollFd, PollFlags, poll};
    let mut watched = [PollFd::new(listener, PollFlags::IN)];
    rustix::io::retry_on_intr(|| poll(&mut watched, None))?;
    if !watched[0].revents().contains(PollFlags::IN) {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // SAFETY: it is made of numbers.
    let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills the structure, whose size is in its number.
    if unsafe { libc::ioctl(listener.as_raw_fd(), notif(0, 3, size_of::<libc::seccomp_notif>()), &raw mut call) } < 0 {
        // The process that called was killed meanwhile.
        return Ok(());
    }
    let reply = of_agentbin(&call).map_or(Reply::Own, |call| (answers.lock().unwrap())(&call));
    // SAFETY: it is made of numbers.
    let mut response: libc::seccomp_notif_resp = unsafe { std::mem::zeroed() };
    response.id = call.id;
    match reply {
        Reply::Own => response.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        Reply::Fails(error) => response.error = -error,
    }
    let number = notif(1, 3, size_of::<libc::seccomp_notif_resp>());
    // SAFETY: the call reads the structure, whose size is in its number. It fails if the process was killed meanwhile.
    unsafe { libc::ioctl(listener.as_raw_fd(), number, &raw const response) };
    Ok(())
}

/// `SECCOMP_IOWR` of `<linux/seccomp.h>`.
fn notif(number: u64, direction: u64, size: usize) -> libc::Ioctl {
    direction << 30 | (size as u64) << 16 | u64::from(b'!') << 8 | number
}

/// The call, if it is one of agentbin's by netlink.
fn of_agentbin(call: &libc::seccomp_notif) -> Option<Call> {
    let process = format!("/proc/{}", call.pid);
    let socket = format!("{process}/fd/{}", call.data.args[0]);
    let mut protocol = [0; 16];
    let length = rustix::fs::getxattr(socket, "system.sockprotoname", &mut protocol[..]).ok()?;
    let program = std::fs::read_link(format!("{process}/exe")).ok()?;
    if protocol.get(..length)?.trim_ascii_end() != b"NETLINK\0" || program.file_name()? != "agentbin" {
        return None;
    }
    let message = if i64::from(call.data.nr) == libc::SYS_sendto {
        let mut message = vec![0; usize::try_from(call.data.args[2].min(LONGEST)).ok()?];
        let memory = std::fs::File::open(format!("{process}/mem")).ok()?;
        memory.read_exact_at(&mut message, call.data.args[1]).ok()?;
        Some(message)
    } else {
        None
    };
    Some(Call { thread: call.pid, message })
}
