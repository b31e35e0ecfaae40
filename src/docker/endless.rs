//! Tests with an engine whose answers do not end: each call fails with bounded memory and reports why.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::logs::Decoder;
use super::{Deadlines, Endpoint, Engine, EngineError};

/// Where this engine stops in the end, so that a test of unbounded code terminates.
const ALL: usize = 160 << 20;

/// The data that it repeats without end, after the beginning of an answer.
#[derive(Clone, Copy)]
struct Says {
    head: &'static str,
    again: &'static [u8],
    /// Whether it is sent as a chunked body.
    chunked: bool,
}

/// Listens at `path` and counts the bytes that it could send on connections other than those that ask for its version.
fn serve(path: &Path, says: Says) -> Arc<AtomicUsize> {
    let listener = UnixListener::bind(path).unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let counter = Arc::clone(&counter);
            tokio::spawn(async move {
                let mut request = vec![0; 16 * 1024];
                let length = stream.read(&mut request).await.unwrap_or(0);
                if request[..length].starts_with(b"GET /_ping") {
                    let answer = b"HTTP/1.1 200 OK\r\nApi-Version: 1.44\r\nContent-Length: 2\r\n\r\nOK";
                    let _gone = stream.write_all(answer).await;
                    return;
                }
                let block = says.again.repeat(65_536 / says.again.len());
                let mut piece = Vec::new();
                if says.chunked {
                    piece.extend(format!("{:x}\r\n", block.len()).into_bytes());
                }
                piece.extend(&block);
                if says.chunked {
                    piece.extend(b"\r\n");
                }
                let _gone = stream.write_all(says.head.as_bytes()).await;
                while counter.load(Ordering::Relaxed) < ALL && stream.write_all(&piece).await.is_ok() {
                    counter.fetch_add(piece.len(), Ordering::Relaxed);
                }
            });
        }
    });
    sent
}

const BODY: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
const ERROR: &str = "HTTP/1.1 500 No\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
const UPGRADED: &str = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

fn engine(says: Says) -> (Engine, Arc<AtomicUsize>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let sent = serve(&dir.path().join("sock"), says);
    let minute = Duration::from_mins(1);
    let deadlines = Deadlines { change: minute, ask: minute };
    (Engine::new(&Endpoint::Unix(dir.path().join("sock")), deadlines).unwrap(), sent, dir)
}

/// Asserts that the call failed, and that not too much of the answer was read. Data in sockets and buffers is not counted.
fn assert_refused<T>(what: &str, result: Result<T, EngineError>, sent: &AtomicUsize, most: usize) {
    let error = result.map(drop).expect_err(what).to_string();
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent <= most + (2 << 20), "{what}: {sent} bytes were taken, {error}");
    assert!(error.len() < 100_000 && !error.contains("did not answer within"), "{what}: {} bytes", error.len());
}

#[tokio::test]
async fn d50_values_that_do_not_end() {
    for (what, says, most) in [
        ("a string", Says { head: BODY, again: b"{\"Id\":\"xxxxxxxx", chunked: true }, 32 << 20),
        ("a body until the close", Says { head: UNTIL_CLOSE, again: b"[[[[[[[[", chunked: false }, 32 << 20),
        ("blanks", Says { head: BODY, again: b"        ", chunked: true }, 32 << 20),
        ("an error", Says { head: ERROR, again: b"no and no ", chunked: true }, 32 << 20),
        ("headers", Says { head: "HTTP/1.1 200 OK\r\n", again: b"A: b\r\n", chunked: false }, 1 << 20),
        ("a header", Says { head: "HTTP/1.1 200 OK\r\nA: ", again: b"xxxxxxxx", chunked: false }, 1 << 20),
        ("a status", Says { head: "HTTP/1.1 200 ", again: b"xxxxxxxx", chunked: false }, 1 << 20),
        ("a chunk's length", Says { head: BODY, again: b"00000000", chunked: false }, 32 << 20),
        ("early hints", Says { head: "", again: b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", chunked: false }, 1 << 20),
    ] {
        let (engine, sent, _dir) = engine(says);
        assert_refused(what, engine.inspect("web").await, &sent, most);
    }
    let (engine, sent, _dir) = engine(Says { head: BODY, again: b"{\"Id\":\"", chunked: true });
    assert_refused("a list", engine.list(None, true).await, &sent, 32 << 20);
}

/// Calls that manage their own connection have a separate bound for errors.
#[tokio::test]
async fn d50_errors_that_do_not_end() {
    let (engine, sent, _dir) = engine(Says { head: ERROR, again: b"no and no ", chunked: true });
    assert_refused("a log", engine.logs("web", 0, true).await, &sent, 1 << 20);
    assert_refused("a session", engine.exec_start("web", true).await, &sent, 4 << 20);
    let again = b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n";
    let (engine, sent, _dir) = self::engine(Says { head: "", again, chunked: false });
    assert_refused("early hints", engine.logs("web", 0, true).await, &sent, 1 << 20);
}

#[tokio::test]
async fn d50_progress_that_says_nothing() {
    for (what, again) in [("no line", &b"{\"status\":\"x"[..]), ("blanks", b"        "), ("open", b"[[[[[[[[")] {
        let (engine, sent, _dir) = engine(Says { head: BODY, again, chunked: true });
        let mut progress = engine.pull("busybox", "latest", None).unwrap();
        let mut end = Ok(());
        while let Some(said) = progress.next().await {
            if let Err(error) = said {
                end = Err(error);
                break;
            }
        }
        assert_refused(what, end, &sent, 1 << 20);
        let (engine, sent, _dir) = self::engine(Says { head: BODY, again, chunked: true });
        let archive = rustix::fs::memfd_create("archive", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert_refused(what, engine.load(archive.into()).await, &sent, 1 << 20);
    }
    // A large amount of data that can be parsed is not refused.
    let (engine, sent, _dir) =
        engine(Says { head: BODY, again: b"{\"status\":\"Downloading\",\"id\":\"0a\"}\r\n", chunked: true });
    let mut progress = engine.pull("busybox", "latest", None).unwrap();
    while sent.load(Ordering::Relaxed) < 8 << 20 {
        assert_eq!(progress.next().await.unwrap().unwrap().status, "Downloading");
    }
}

/// Frames and lines of a log, and frames of a session.
#[tokio::test]
async fn d50_streams_whose_pieces_do_not_end() {
    let long = b"\x01\0\0\0\x7f\xff\xff\xff";
    for (what, tty, again) in [
        ("a frame that is too long", false, &long[..]),
        ("a frame of 64 MiB", false, b"\x01\0\0\0\x04\0\0\0"),
        ("no line end", true, b"2026-02-28T23:59:59.999999999Z xxxxxxxxxxxxxxxxx"),
        ("no time", true, b"xxxxxxxx"),
    ] {
        let (engine, sent, _dir) = engine(Says { head: BODY, again, chunked: true });
        let mut stream = engine.logs("web", 0, true).await.unwrap();
        let mut decoder = Decoder::new(tty);
        let mut refused = false;
        while let Some(bytes) = stream.next().await.unwrap() {
            decoder.push(&bytes);
            loop {
                match decoder.next_message() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(_) => refused = true,
                }
                if refused {
                    break;
                }
            }
            // A line of blocks that each begin with a time is many messages and may go on.
            if refused || (tty && sent.load(Ordering::Relaxed) > 16 << 20) {
                break;
            }
        }
        let taken = sent.load(Ordering::Relaxed);
        assert!(refused && taken < 8 << 20, "{what}: {taken} bytes");
    }
    let (engine, _sent, _dir) = engine(Says { head: UPGRADED, again: b"\x01\0\0\0\x04\0\0\0", chunked: false });
    let mut session = engine.exec_start("web", false).await.unwrap();
    let (mut frames, mut buffer, mut taken) = (super::logs::Frames::default(), vec![0; 16 * 1024], 0);
    let error = loop {
        let length = session.read(&mut buffer).await.unwrap();
        taken += length;
        frames.push(&buffer[..length]);
        match frames.next_frame() {
            Ok(_) => assert!(taken < 4 << 20, "{taken} bytes of one frame"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("too long"), "{error}");
}
