//! What is asked of systemd: a scope of the user's for this process, the delegated cgroup of a run that has none, and a slice of the
//! system's for a container whose engine has systemd make its cgroup. Never anything else, and never for another process.
//!
//! One call of D-Bus and the signal that its job has ended, on the socket that systemd itself listens on for `systemctl`, without a
//! broker: `StartTransientUnit` or `StopUnit`, then `JobRemoved`. zbus would add 1.2 MB (docs/decisions/0054). Sources: the D-Bus
//! specification, org.freedesktop.systemd1(5).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const SERVICE: &str = "org.freedesktop.systemd1";
/// The number of the only call on a connection.
const SERIAL: u32 = 1;
/// Longest message that is read; those of systemd have a few hundred bytes.
const LONGEST: usize = 1 << 16;

/// Types of messages.
const REFUSAL: u8 = 3;
const SIGNAL: u8 = 4;

/// Names of errors.
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const UNKNOWN: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A service manager: the system's or a user's.
#[derive(Debug, Clone)]
pub struct Systemd {
    socket: PathBuf,
}

impl Systemd {
    /// That of the user whose runtime directory this is (`/run/user/UID`).
    #[must_use]
    pub fn of_user(runtime_dir: &Path) -> Systemd {
        Systemd { socket: runtime_dir.join("systemd/private") }
    }

    /// That of the system, which only root may ask.
    #[must_use]
    pub fn of_system() -> Systemd {
        Systemd { socket: PathBuf::from("/run/systemd/private") }
    }

    /// Whether it can be asked, on a system that runs systemd.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        Path::new("/run/systemd/system").is_dir() && self.socket.exists()
    }

    /// Moves this process into a new scope `unit`, whose cgroup is delegated to the user. When this returns it is there. The scope
    /// ends when its last process does.
    ///
    /// # Errors
    /// What systemd says, or that it did not answer within `patience`; a late answer still moves the process.
    pub fn enter_scope(&self, unit: &str, patience: Duration) -> io::Result<()> {
        let body = start(unit, "agentbin: the tasks of one run", |out| {
            out.property("Delegate", "b", |out| out.number(1));
            out.property("CollectMode", "s", |out| out.text("inactive-or-failed"));
            out.property("PIDs", "au", |out| {
                out.number(4);
                out.number(std::process::id());
            });
        });
        self.ask("a scope", "StartTransientUnit", unit, &body, patience)
    }

    /// Makes the slice `unit`, unless it exists. Its cgroup counts the memory of all that is in it, and what the kernel kills there
    /// for lack of memory, until [`stop_slice`](Self::stop_slice).
    ///
    /// # Errors
    /// What systemd says, or that it did not answer within `patience`; a late answer still makes the slice.
    pub fn make_slice(&self, unit: &str, description: &str, patience: Duration) -> io::Result<()> {
        let body = start(unit, description, |out| {
            out.property("MemoryAccounting", "b", |out| out.number(1));
        });
        match self.ask("a slice", "StartTransientUnit", unit, &body, patience) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Stops a slice, with all that still runs in it. One that does not exist is stopped.
    ///
    /// # Errors
    /// What systemd says, or that it did not answer within `patience`; a late answer still stops it.
    pub fn stop_slice(&self, unit: &str, patience: Duration) -> io::Result<()> {
        let mut body = Writer::default();
        body.text(unit);
        body.text("replace");
        self.ask("the end of a slice", "StopUnit", unit, &body.0, patience)
    }

    /// Makes a call about a unit, and waits until its job has ended.
    fn ask(&self, what: &str, member: &str, unit: &str, body: &[u8], patience: Duration) -> io::Result<()> {
        let stream = UnixStream::connect(&self.socket)?;
        let mut peer = Peer { stream, deadline: Instant::now() + patience };
        peer.log_in()?;
        peer.send(&call(member, body))?;
        loop {
            let message = peer.receive()?;
            let mut body = message.body();
            if message.kind == REFUSAL && message.answers == SERIAL {
                if (member, message.error.as_str()) == ("StopUnit", UNKNOWN) {
                    return Ok(());
                }
                let kind = if message.error == EXISTS { io::ErrorKind::AlreadyExists } else { io::ErrorKind::Other };
                let why = body.text().unwrap_or("it does not say why");
                return Err(io::Error::new(kind, format!("systemd refuses {what}: {why}")));
            }
            if message.kind == SIGNAL && message.member == "JobRemoved" {
                let (_id, _job, name, result) = (body.number()?, body.text()?, body.text()?, body.text()?);
                match (name == unit, result) {
                    (true, "done") => return Ok(()),
                    (true, result) => {
                        return Err(io::Error::other(format!("systemd refuses {what}: the job is {result}")));
                    }
                    (false, _) => {}
                }
            }
        }
    }
}

/// The arguments of `StartTransientUnit`, `ssa(sv)a(sa(sv))`: name, mode, properties, and no other units.
fn start(unit: &str, description: &str, properties: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(unit);
    out.text("fail");
    out.array(|out| {
        out.property("Description", "s", |out| out.text(description));
        properties(out);
    });
    out.array(|_| {});
    out.0
}

fn call(member: &str, body: &[u8]) -> Vec<u8> {
    let types = if member == "StopUnit" { "ss" } else { "ssa(sv)a(sa(sv))" };
    let mut out = Writer(vec![b'l', 1, 0, 1]);
    out.number(u32::try_from(body.len()).unwrap_or(u32::MAX));
    out.number(SERIAL);
    out.array(|out| {
        for (code, kind, value) in [(1, "o", PATH), (2, "s", MANAGER), (3, "s", member), (6, "s", SERVICE)] {
            out.align(8);
            out.0.push(code);
            out.signature(kind);
            out.text(value);
        }
        out.align(8);
        out.0.push(8);
        out.signature("g");
        out.signature(types);
    });
    out.align(8);
    out.0.extend_from_slice(body);
    out.0
}

/// Values in little endian, each at a multiple of its size.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, value: u32) {
        self.align(4);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
    }

    fn property(&mut self, name: &str, kind: &str, value: impl FnOnce(&mut Writer)) {
        self.align(8);
        self.text(name);
        self.signature(kind);
        value(self);
    }

    /// An array of structures; its length does not count the gap before the first one.
    fn array(&mut self, elements: impl FnOnce(&mut Writer)) {
        self.number(0);
        let length = self.0.len() - 4;
        self.align(8);
        let begin = self.0.len();
        elements(self);
        let bytes = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[length..length + 4].copy_from_slice(&bytes.to_le_bytes());
    }
}

/// systemd, at the other end.
struct Peer {
    stream: UnixStream,
    deadline: Instant,
}

impl Peer {
    /// The user is the one of the socket's other end; the number is only its name. All in one piece, as systemd's own clients do it, so
    /// that no call arrives together with the last line.
    fn log_in(&mut self) -> io::Result<()> {
        let user = rustix::process::geteuid().as_raw().to_string();
        let hex = user.bytes().fold(String::new(), |hex, digit| hex + &format!("{digit:02x}"));
        self.send(format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() > 256 {
                return Err(malformed());
            }
            line.extend(self.take(1)?);
        }
        if !line.starts_with(b"OK ") {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "systemd does not accept this user"));
        }
        Ok(())
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::Error::new(io::ErrorKind::TimedOut, "systemd does not answer")) } else { Ok(left) }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write_all(bytes)
    }

    fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        let mut have = 0;
        while have < count {
            self.stream.set_read_timeout(Some(self.left()?))?;
            match self.stream.read(&mut bytes[have..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => have += more,
                // The next turn says that the time is over.
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(bytes)
    }

    fn receive(&mut self) -> io::Result<Message> {
        let mut bytes = self.take(16)?;
        let number = |at: usize| bytes[at..at + 4].try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
        let (body, fields) = (number(4), number(12));
        if bytes[0] != b'l' || body > LONGEST || fields > LONGEST {
            return Err(malformed());
        }
        let rest = self.take(fields.next_multiple_of(8) + body)?;
        bytes.extend(rest);
        Message::parse(bytes, 16 + fields)
    }
}

/// A message; `body_at` is where its arguments begin.
struct Message {
    kind: u8,
    member: String,
    /// Name of the error that a refusal is.
    error: String,
    answers: u32,
    body_at: usize,
    bytes: Vec<u8>,
}

impl Message {
    fn parse(bytes: Vec<u8>, end_of_fields: usize) -> io::Result<Message> {
        let mut message = Message {
            kind: bytes[1],
            member: String::new(),
            error: String::new(),
            answers: 0,
            body_at: end_of_fields.next_multiple_of(8),
            bytes: Vec::new(),
        };
        let mut fields = Reader { bytes: &bytes[..end_of_fields], at: 16 };
        while fields.at < end_of_fields {
            fields.align(8);
            let code = fields.byte()?;
            match (code, fields.signature()?) {
                (3, "s") => fields.text()?.clone_into(&mut message.member),
                (4, "s") => fields.text()?.clone_into(&mut message.error),
                (5, "u") => message.answers = fields.number()?,
                (_, "s" | "o") => {
                    fields.text()?;
                }
                (_, "g") => {
                    fields.signature()?;
                }
                (_, "u") => {
                    fields.number()?;
                }
                _ => return Err(malformed()),
            }
        }
        message.bytes = bytes;
        Ok(message)
    }

    fn body(&self) -> Reader<'_> {
        Reader { bytes: &self.bytes, at: self.body_at }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..count)).ok_or_else(malformed)?;
        self.at += count;
        Ok(taken)
    }

    fn byte(&mut self) -> io::Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> io::Result<u32> {
        self.align(4);
        self.take(4)?.try_into().map(u32::from_le_bytes).map_err(|_| malformed())
    }

    /// A string or a path.
    fn text(&mut self) -> io::Result<&'a str> {
        let length = self.number()? as usize;
        let text = self.take(length)?;
        self.byte()?;
        std::str::from_utf8(text).map_err(|_| malformed())
    }

    fn signature(&mut self) -> io::Result<&'a str> {
        let length = self.byte()?;
        let text = self.take(length.into())?;
        self.byte()?;
        std::str::from_utf8(text).map_err(|_| malformed())
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "systemd sends what is not a D-Bus message")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A message of systemd: type, fields of strings, and body.
    fn message(kind: u8, fields: &[(u8, &str, &str)], answers: Option<u32>, body: &[u8]) -> Vec<u8> {
        let mut out = Writer(vec![b'l', kind, 0, 1]);
        out.number(body.len() as u32);
        out.number(77);
        out.array(|out| {
            for (code, kind, text) in fields {
                out.align(8);
                out.0.push(*code);
                out.signature(kind);
                if *kind == "g" { out.signature(text) } else { out.text(text) }
            }
            if let Some(serial) = answers {
                out.align(8);
                out.0.push(5);
                out.signature("u");
                out.number(serial);
            }
        });
        out.align(8);
        out.0.extend_from_slice(body);
        out.0
    }

    fn texts(texts: &[&str]) -> Vec<u8> {
        let mut out = Writer::default();
        for text in texts {
            out.text(text);
        }
        out.0
    }

    fn removed(unit: &str, result: &str) -> Vec<u8> {
        let mut body = Writer::default();
        body.number(12);
        for text in ["/org/freedesktop/systemd1/job/12", unit, result] {
            body.text(text);
        }
        let fields = [(1, "o", PATH), (2, "s", MANAGER), (3, "s", "JobRemoved"), (7, "s", SERVICE), (8, "g", "uoss")];
        message(SIGNAL, &fields, None, &body.0)
    }

    fn answer() -> Vec<u8> {
        message(2, &[(7, "s", SERVICE), (8, "g", "o")], Some(SERIAL), &texts(&["/org/freedesktop/systemd1/job/12"]))
    }

    /// What a call says when systemd answers it with these bytes, and the call.
    fn told(
        ask: impl FnOnce(&Systemd, Duration) -> io::Result<()>,
        answers: &[Vec<u8>],
        patience: Duration,
    ) -> (io::Result<()>, Message) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("systemd")).unwrap();
        let systemd = Systemd::of_user(dir.path());
        let listener = UnixListener::bind(&systemd.socket).unwrap();
        std::thread::scope(|scope| {
            let asked = scope.spawn(move || {
                let mut peer = Peer { stream: listener.accept().unwrap().0, deadline: Instant::now() + PATIENCE };
                let line = |peer: &mut Peer, end: &[u8]| {
                    let mut line = Vec::new();
                    while !line.ends_with(end) {
                        line.extend(peer.take(1).unwrap());
                    }
                    String::from_utf8(line).unwrap()
                };
                let user = rustix::process::geteuid().as_raw().to_string();
                let hex = user.bytes().fold(String::new(), |hex, byte| hex + &format!("{byte:x}"));
                assert_eq!(line(&mut peer, b"\r\n"), format!("\0AUTH EXTERNAL {hex}\r\n"));
                peer.send(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
                assert_eq!(line(&mut peer, b"\r\n"), "BEGIN\r\n");
                let call = peer.receive().unwrap();
                // At once: the other end goes when it has read enough of them.
                peer.send(&answers.concat()).unwrap();
                // Held open until the other end has decided.
                (call, peer)
            });
            let result = ask(&systemd, patience);
            (result, asked.join().unwrap().0)
        })
    }

    fn enter(systemd: &Systemd, patience: Duration) -> io::Result<()> {
        systemd.enter_scope("a.scope", patience)
    }

    fn refusal(name: &str, text: &str) -> Vec<u8> {
        message(REFUSAL, &[(4, "s", name), (8, "g", "s")], Some(SERIAL), &texts(&[text]))
    }

    #[test]
    fn c2_a_scope_is_there_when_its_job_is_done() {
        let others =
            [removed("b.scope", "failed"), message(SIGNAL, &[(3, "s", "UnitNew")], None, &texts(&["a.scope"]))];
        let [other, new] = others;
        for answers in [
            [other.clone(), new.clone(), answer(), removed("a.scope", "done")],
            [removed("a.scope", "done"), answer(), other, new],
        ] {
            let (result, call) = told(enter, &answers, PATIENCE);
            result.unwrap();
            assert_eq!((call.kind, call.member.as_str()), (1, "StartTransientUnit"));
            let mut body = call.body();
            assert_eq!([body.text().unwrap(), body.text().unwrap()], ["a.scope", "fail"]);
            let end = body.number().unwrap() as usize;
            body.align(8);
            let end = body.at + end;
            let mut names = Vec::new();
            while body.at < end {
                body.align(8);
                let name = body.text().unwrap();
                names.push(name);
                match body.signature().unwrap() {
                    "s" => assert!(!body.text().unwrap().is_empty()),
                    "b" => assert_eq!(body.number().unwrap(), 1),
                    "au" => assert_eq!([body.number().unwrap(), body.number().unwrap()], [4, std::process::id()]),
                    other => panic!("{name}: {other}"),
                }
            }
            assert_eq!(names, ["Description", "Delegate", "CollectMode", "PIDs"]);
            assert_eq!((body.number().unwrap(), body.at.next_multiple_of(8)), (0, call.bytes.len()));
        }
    }

    #[test]
    fn c2_no_scope_is_an_error_that_says_why() {
        let mut big = answer();
        big[0] = b'B';
        let mut long = answer();
        long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut short = removed("a.scope", "done");
        let end = short.len() - 4;
        short.truncate(end);
        short[4] -= 4;
        for (answers, why) in [
            (vec![refusal("org.freedesktop.DBus.Error.AccessDenied", "Permission denied")], "Permission denied"),
            (vec![answer(), removed("a.scope", "failed")], "the job is failed"),
            (vec![big], "not a D-Bus message"),
            (vec![long], "not a D-Bus message"),
            (vec![short], "not a D-Bus message"),
        ] {
            let error = told(enter, &answers, PATIENCE).0.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let silent = told(enter, &[answer()], Duration::from_millis(300)).0.unwrap_err();
        assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
        let nobody = tempfile::tempdir().unwrap();
        let nobody = Systemd::of_user(nobody.path());
        assert!(!nobody.is_offered() && enter(&nobody, PATIENCE).is_err());
    }

    #[test]
    fn c2_a_slice_is_made_once_and_stopped_once() {
        let make = |systemd: &Systemd, patience| systemd.make_slice("a.slice", "a description", patience);
        let stop = |systemd: &Systemd, patience| systemd.stop_slice("a.slice", patience);
        let (made, call) = told(make, &[answer(), removed("a.slice", "done")], PATIENCE);
        made.unwrap();
        let mut body = call.body();
        assert_eq!(call.member, "StartTransientUnit");
        assert_eq!([body.text().unwrap(), body.text().unwrap()], ["a.slice", "fail"]);
        body.number().unwrap();
        body.align(8);
        assert_eq!(["Description", "s"], [body.text().unwrap(), body.signature().unwrap()]);
        assert_eq!(body.text().unwrap(), "a description");
        body.align(8);
        assert_eq!(["MemoryAccounting", "b"], [body.text().unwrap(), body.signature().unwrap()]);
        assert_eq!((body.number().unwrap(), body.number().unwrap(), body.at), (1, 0, call.bytes.len()));
        let (stopped, call) = told(stop, &[removed("a.slice", "done"), answer()], PATIENCE);
        stopped.unwrap();
        let mut body = call.body();
        assert_eq!(call.member, "StopUnit");
        assert_eq!([body.text().unwrap(), body.text().unwrap()], ["a.slice", "replace"]);
        assert_eq!(body.at, call.bytes.len());
        // What is to be, is.
        told(make, &[refusal(EXISTS, "Unit a.slice was already loaded.")], PATIENCE).0.unwrap();
        told(stop, &[refusal(UNKNOWN, "Unit a.slice not loaded.")], PATIENCE).0.unwrap();
        // And nothing else is.
        for (name, result) in [
            (EXISTS, told(stop, &[refusal(EXISTS, "x")], PATIENCE).0),
            (UNKNOWN, told(make, &[refusal(UNKNOWN, "x")], PATIENCE).0),
        ] {
            assert!(result.unwrap_err().to_string().ends_with(": x"), "{name}");
        }
    }
}
