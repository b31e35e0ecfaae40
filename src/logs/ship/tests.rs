//! Shipments against real receivers.

use std::convert::Infallible;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::fs::SealFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixDatagram};
use tokio::sync::mpsc;

use super::super::rotator::{Limits, Rotator};
use super::*;
use crate::spec::LogKeeping;
use crate::sys::lock::lock;

/// A timeout that is not under test.
const LONG: Duration = Duration::from_mins(1);

/// A task's files, and the reports about its shipments.
struct Place {
    dir: TempDir,
    reports: Arc<Mutex<Vec<Report>>>,
    outlets: Outlets,
    rotator: Rotator,
}

impl Place {
    fn new(max_files: u32, size: u64) -> Place {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("logs")).unwrap();
        let reports = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&reports);
        let outlets = Outlets::new(Arc::new(move |report| lock(&heard).push(report)));
        let limits = Limits { max_files, max_file_size_bytes: size, keeping: LogKeeping::default() };
        let rotator = Rotator::open(&dir.path().join("logs"), "web.stdout", limits).unwrap();
        Place { dir, reports, outlets, rotator }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    fn start(&self, sink: &str) -> Shipment {
        let labels = Labels { job: "shop".into(), group: "g".into(), task: "web".into(), alloc: "a-1".into() };
        let sinks = [sink.parse().unwrap()];
        Shipment::start(&self.outlets, &sinks, &labels, &self.path("logs"), &self.path("ship")).unwrap()
    }

    fn write(&mut self, numbers: std::ops::Range<u32>) {
        for n in numbers {
            assert!(self.rotator.write(format!("line {n}\n").as_bytes()).is_none());
        }
    }

    async fn wait_for(&self, wanted: impl Fn(&Report) -> bool) {
        let heard = async {
            while !lock(&self.reports).iter().any(&wanted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, heard).await.expect("a report");
    }
}

fn numbered(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|n| format!("line {n}")).collect()
}

/// As `assert_eq!`, without thousands of lines in the message.
fn assert_lines(got: &[String], expected: &[String]) {
    let differ = got.iter().zip(expected).position(|(got, expected)| got != expected);
    let at = |lines: &[String]| differ.map(|at| lines[at].clone());
    assert!(
        got == expected,
        "{} lines, not {}; at {differ:?} {:?}, not {:?}",
        got.len(),
        expected.len(),
        at(got),
        at(expected)
    );
}

fn json_lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    // The last line may still be incomplete.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn lines_of(objects: &[Value]) -> Vec<String> {
    objects.iter().map(|object| object["line"].as_str().unwrap_or("?").to_owned()).collect()
}

#[tokio::test]
async fn a_file_gets_each_line_with_its_place_and_whose_it_is() {
    let mut place = Place::new(1000, 200);
    let out = place.path("out.json");
    let shipment = place.start(&format!("file:{}", out.display()));
    place.write(0..500);
    place.rotator.write(b"\xff\nno end");
    shipment.finish();
    let account = shipment.drain(LONG).await;
    let objects = json_lines(&out);
    assert_lines(&lines_of(&objects[..500]), &numbered(0..500));
    assert_eq!((&objects[500]["base64"], &objects[501]["line"]), (&"/w==".into(), &"no end".into()));
    assert_eq!((&objects[501]["partial"], objects.len()), (&true.into(), 502));
    for object in &objects[..500] {
        let file = std::fs::read(place.path(&format!("logs/web.stdout.{}", object["file"]))).unwrap();
        let at = usize::try_from(object["offset"].as_u64().unwrap()).unwrap();
        assert!(file[at..].starts_with(object["line"].as_str().unwrap().as_bytes()));
    }
    let whose = ["job", "group", "task", "alloc", "stream"].map(|key| objects[7][key].as_str().unwrap());
    assert_eq!(whose, ["shop", "g", "web", "a-1", "stdout"]);
    assert!(objects[7]["time"].as_str().unwrap().ends_with('Z'));
    let written: u64 = (0..500).map(|n| format!("line {n}\n").len() as u64).sum();
    assert_eq!(account.shipped, Shipped { lines: 501, bytes: written + 8 });
    assert!(account.lost.is_nothing() && lock(&place.reports).is_empty());
}

/// Takes one connection: reads `limit` messages, closes its side, and reads on to the end.
async fn syslog_connection(mut stream: TcpStream, limit: usize, messages: &mut Vec<String>) {
    let (mut bytes, mut taken) = (Vec::new(), 0);
    loop {
        while let Some(blank) = bytes.iter().position(|b| *b == b' ') {
            let length: usize = std::str::from_utf8(&bytes[..blank]).unwrap().parse().unwrap();
            if bytes.len() < blank + 1 + length {
                break;
            }
            messages.push(String::from_utf8(bytes[blank + 1..][..length].to_vec()).unwrap());
            bytes.drain(..blank + 1 + length);
            taken += 1;
            if taken == limit {
                stream.shutdown().await.unwrap();
            }
        }
        if stream.read_buf(&mut bytes).await.unwrap() == 0 {
            assert!(bytes.is_empty(), "a message was cut");
            return;
        }
    }
}

fn text_of(message: &str) -> String {
    message.split_once("] ").expect("structured data").1.to_owned()
}

#[tokio::test]
async fn a_syslog_receiver_that_restarts_gets_each_line_once_and_in_order() {
    let mut place = Place::new(1000, 4000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shipment = place.start(&format!("syslog:tcp://{address}"));
    let receiver = tokio::spawn(async move {
        let (mut messages, mut listener) = (Vec::new(), Some(listener));
        while messages.len() < 4000 {
            let open = match listener.take() {
                Some(listener) => listener,
                None => TcpListener::bind(address).await.unwrap(),
            };
            let (stream, _) = open.accept().await.unwrap();
            // Before it closes its side: data that a kernel received for a socket that was never accepted is lost.
            drop(open);
            syslog_connection(stream, if messages.len() < 3000 { 300 } else { usize::MAX }, &mut messages).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        messages
    });
    for n in 0..40 {
        place.write(n * 100..(n + 1) * 100);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shipment.finish();
    let account = shipment.drain(LONG).await;
    drop(place);
    let messages = tokio::time::timeout(LONG, receiver).await.expect("all of it").unwrap();
    assert_lines(&messages.iter().map(|m| text_of(m)).collect::<Vec<_>>(), &numbered(0..4000));
    assert_eq!((account.shipped.lines, account.lost), (4000, Lost::default()));
    assert!(messages[0].starts_with("<14>1 ") && messages[0].contains(" job=\"shop\" group=\"g\" task=\"web\""));
}

#[tokio::test]
async fn datagrams_wait_for_a_slow_receiver_and_for_one_that_comes_again() {
    let mut place = Place::new(1000, 100_000);
    let path = place.path("log");
    let bind = || UnixDatagram::bind(&path).unwrap();
    async fn read(socket: &UnixDatagram, count: usize) -> Vec<String> {
        let (mut texts, mut space) = (Vec::new(), vec![0; 65536]);
        while texts.len() < count {
            let n = tokio::time::timeout(LONG, socket.recv(&mut space)).await.expect("a message").unwrap();
            texts.push(text_of(std::str::from_utf8(&space[..n]).unwrap()));
        }
        texts
    }
    let socket = bind();
    let shipment = place.start(&format!("syslog:unix:{}", path.display()));
    // More than a socket's queue holds, before it is read.
    place.write(0..300);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_lines(&read(&socket, 300).await, &numbered(0..300));
    drop(socket);
    std::fs::remove_file(&path).unwrap();
    place.write(300..600);
    place.wait_for(|report| matches!(report, Report::Down { .. })).await;
    let socket = bind();
    assert_lines(&read(&socket, 300).await, &numbered(300..600));
    let long = "x".repeat(70_000);
    place.rotator.write(format!("{long}\n").as_bytes());
    assert_eq!(read(&socket, 3).await.concat(), long);
    shipment.finish();
    assert_eq!(shipment.drain(LONG).await.shipped.lines, 601);
    let reports = lock(&place.reports).clone();
    assert!(matches!(reports[..], [Report::Down { .. }, Report::Up { .. }]), "{reports:?}");
}

#[tokio::test]
async fn udp_that_nobody_hears_is_sent_again() {
    let mut place = Place::new(1000, 100_000);
    let address = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let shipment = place.start(&format!("syslog:udp://{address}"));
    place.write(0..50);
    place.wait_for(|report| matches!(report, Report::Down { .. })).await;
    let socket = UdpSocket::bind(address).await.unwrap();
    let mut space = vec![0; 65536];
    for n in 0..50 {
        let size = tokio::time::timeout(LONG, socket.recv(&mut space)).await.expect("a message").unwrap();
        assert_eq!(text_of(std::str::from_utf8(&space[..size]).unwrap()), format!("line {n}"));
    }
    shipment.finish();
    assert_eq!(shipment.drain(LONG).await.shipped.lines, 50);
}

/// Fields of an entry by name, and the seals where it came as a memfd.
fn journal_entry(socket: &std::os::unix::net::UnixDatagram) -> (Vec<(String, Vec<u8>)>, Option<SealFlags>) {
    let (mut data, mut space) =
        (vec![0; 1 << 20], [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut data)];
    let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let fds: Vec<OwnedFd> = control
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        })
        .collect();
    data.truncate(got.bytes);
    let mut seals = None;
    for fd in fds {
        assert!(data.is_empty(), "either a datagram or a memfd");
        seals = Some(rustix::fs::fcntl_get_seals(&fd).unwrap());
        std::io::Seek::rewind(&mut &std::fs::File::from(fd.try_clone().unwrap())).unwrap();
        std::fs::File::from(fd).read_to_end(&mut data).unwrap();
    }
    let (mut fields, mut rest) = (Vec::new(), &data[..]);
    while !rest.is_empty() {
        let end = rest.iter().position(|b| matches!(b, b'=' | b'\n')).unwrap();
        let name = String::from_utf8(rest[..end].to_vec()).unwrap();
        let (value, after) = if rest[end] == b'=' {
            let line = rest.iter().position(|b| *b == b'\n').unwrap();
            (&rest[end + 1..line], &rest[line + 1..])
        } else {
            let length = u64::from_le_bytes(rest[end + 1..end + 9].try_into().unwrap()) as usize;
            (&rest[end + 9..end + 9 + length], &rest[end + 10 + length..])
        };
        fields.push((name, value.to_vec()));
        rest = after;
    }
    (fields, seals)
}

#[tokio::test]
async fn journald_gets_fields_and_large_entries_as_a_sealed_memfd() {
    let mut place = Place::new(1000, 10_000_000);
    let path = place.path("journal");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let shipment = place.start(&format!("journald:{}", path.display()));
    let long = vec![b'y'; 240_000];
    place.write(0..3);
    place.rotator.write(&[&long[..], b"\n\xfe\xff bytes\n"].concat());
    shipment.finish();
    let reading = crate::sys::task::spawn_blocking(move || (0..5).map(|_| journal_entry(&socket)).collect::<Vec<_>>());
    assert_eq!(shipment.drain(LONG).await.shipped.lines, 5);
    let entries = reading.await.unwrap();
    let field = |n: usize, name: &str| entries[n].0.iter().find(|(key, _)| key == name).unwrap().1.clone();
    for (n, (_, seals)) in entries.iter().enumerate().take(3) {
        assert_eq!((field(n, "MESSAGE"), *seals), (format!("line {n}").into_bytes(), None));
    }
    let whose = ["NOMAD_JOB_NAME", "NOMAD_GROUP_NAME", "NOMAD_TASK_NAME", "NOMAD_ALLOC_ID", "NOMAD_STREAM", "PRIORITY"];
    assert_eq!(
        whose.map(|name| String::from_utf8(field(1, name)).unwrap()),
        ["shop", "g", "web", "a-1", "stdout", "6"]
    );
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    assert!(field(3, "MESSAGE") == long && entries[3].1 == Some(sealed));
    assert_eq!(field(4, "MESSAGE"), b"\xfe\xff bytes");
}

/// The next answers of a collector, and what it received.
#[derive(Default)]
struct Taken {
    answers: Vec<StatusCode>,
    lines: Vec<String>,
    requests: usize,
    authorization: String,
}

async fn collect(taken: Arc<Mutex<Taken>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let header = request.headers().get("authorization").map(|h| h.to_str().unwrap().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut taken = lock(&taken);
    taken.requests += 1;
    taken.authorization = header.unwrap_or_default();
    let status = taken.answers.pop().unwrap_or(StatusCode::OK);
    let mut answer = "{}";
    if path != "/v1/logs" {
        return Ok(Response::builder().status(404).body(Full::default()).unwrap());
    }
    if status == StatusCode::OK {
        let body: Value = serde_json::from_slice(&body).unwrap();
        let resource = &body["resourceLogs"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "web");
        for record in resource["scopeLogs"][0]["logRecords"].as_array().unwrap() {
            assert_eq!(record["attributes"][0]["value"]["stringValue"], "stdout");
            taken.lines.push(record["body"]["stringValue"].as_str().unwrap().to_owned());
        }
    } else if status == StatusCode::ACCEPTED {
        answer = r#"{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"not this one"}}"#;
    }
    Ok(Response::builder().status(status).body(Full::from(answer)).unwrap())
}

#[tokio::test]
async fn a_collector_that_fails_and_restarts_gets_each_line_once_and_in_order() {
    let mut place = Place::new(1000, 4000);
    let taken = Arc::new(Mutex::new(Taken::default()));
    lock(&taken).answers = vec![StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shipment = place.start(&format!("otlp:http://user:hunter2@{address}"));
    let serving = {
        let taken = Arc::clone(&taken);
        tokio::spawn(async move {
            let mut listener = Some(listener);
            for life in 0_u32.. {
                let open = match listener.take() {
                    Some(listener) => listener,
                    None => TcpListener::bind(address).await.unwrap(),
                };
                let (stream, _) = open.accept().await.unwrap();
                let (taken, served) = (Arc::clone(&taken), Arc::new(tokio::sync::Notify::new()));
                let done = Arc::clone(&served);
                let service = hyper::service::service_fn(move |request| {
                    done.notify_one();
                    collect(Arc::clone(&taken), request)
                });
                let http = hyper::server::conn::http1::Builder::new();
                let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
                if life < 4 {
                    // Answers one request and closes.
                    tokio::select! {
                        _ = &mut connection => {}
                        () = served.notified() => connection.as_mut().graceful_shutdown(),
                    }
                    drop(open);
                }
                // The client may close first.
                let _ = connection.await;
            }
        })
    };
    for n in 0..20 {
        place.write(n * 50..(n + 1) * 50);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    shipment.finish();
    let account = shipment.drain(LONG).await;
    assert_eq!((account.shipped.lines, account.lost, account.rejected), (1000, Lost::default(), 0));
    assert_lines(&lock(&taken).lines, &numbered(0..1000));
    assert_eq!(lock(&taken).authorization, "Basic dXNlcjpodW50ZXIy");
    assert!(!format!("{:?}", lock(&place.reports)).contains("hunter2"));

    // Rejected lines are not sent again, and are counted.
    lock(&taken).answers = vec![StatusCode::ACCEPTED];
    let shipment = place.start(&format!("otlp:http://user:hunter2@{address}"));
    place.write(1000..1001);
    place.wait_for(|report| matches!(report, Report::Rejected { lines: 1, .. })).await;
    lock(&taken).answers = vec![StatusCode::BAD_REQUEST];
    place.write(1001..1002);
    let refused = |report: &Report| matches!(report, Report::Rejected { error, .. } if error.starts_with("HTTP 400"));
    place.wait_for(refused).await;
    shipment.finish();
    assert_eq!(shipment.drain(LONG).await.rejected, 2);
    serving.abort();
}

#[tokio::test]
async fn a_tally_knows_exactly_what_is_gone() {
    let mut place = Place::new(3, 1000);
    place.write(0..10);
    let tally = tally::Tally::start(&place.path("logs"), "web.stdout", None).unwrap();
    let mut probe = super::super::follower::Follower::open(
        &place.path("logs"),
        "web.stdout",
        super::super::follower::Start::Beginning,
    )
    .unwrap();
    let (mut seen, mut of_file) = (0, crate::spec::collections::BTreeMap::<u64, (u64, u64)>::new());
    for n in 0..300 {
        place.write(10 + n * 7..10 + (n + 1) * 7);
        let written: u64 = (0..10 + (n + 1) * 7).map(|n| format!("line {n}\n").len() as u64).sum();
        while seen < written {
            let read = tokio::time::timeout(LONG, probe.next()).await.unwrap().unwrap().unwrap();
            let super::super::follower::Output::Data(data) = read else { panic!("the probe is too slow") };
            seen += data.len() as u64;
            let file = of_file.entry(probe.cursor().unwrap().index).or_default();
            file.0 += memchr::memchr_iter(b'\n', &data).count() as u64;
            file.1 += data.len() as u64;
        }
        let caught_up = async {
            while !tally.is_at(probe.cursor()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, caught_up).await.unwrap();
    }
    let last = *of_file.keys().next_back().unwrap();
    assert!(last > 15);
    let lost = tally.between(Some(3), last - 1, last - 5).await;
    let (lines, bytes) = of_file.range(4..last - 1).fold((0, 0), |sum, (_, file)| (sum.0 + file.0, sum.1 + file.1));
    assert_eq!(lost, Lost { lines, bytes, files: 0 });
}

#[tokio::test]
async fn what_is_rotated_away_from_a_dead_sink_is_counted_and_told() {
    let mut place = Place::new(4, 900);
    // Nine bytes per line, a hundred lines per file.
    let write = |place: &mut Place, numbers: std::ops::Range<u32>| {
        numbers.for_each(|n| assert!(place.rotator.write(format!("{n:08}\n").as_bytes()).is_none()));
    };
    let path = place.path("log");
    let shipment = place.start(&format!("syslog:unix:{}", path.display()));
    write(&mut place, 0..150);
    place.wait_for(|report| matches!(report, Report::Down { .. })).await;
    for n in 0..40 {
        write(&mut place, 150 + n * 50..200 + n * 50);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let socket = UnixDatagram::bind(&path).unwrap();
    let (sender, mut received) = mpsc::unbounded_channel();
    let reading = tokio::spawn(async move {
        let mut space = vec![0; 65536];
        while let Ok(n) = socket.recv(&mut space).await {
            sender.send(text_of(std::str::from_utf8(&space[..n]).unwrap()).parse::<u32>().unwrap()).unwrap();
        }
    });
    shipment.finish();
    let account = shipment.drain(LONG).await;
    let mut numbers = Vec::new();
    while numbers.len() < account.shipped.lines as usize {
        numbers.push(tokio::time::timeout(LONG, received.recv()).await.unwrap().unwrap());
    }
    reading.abort();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]) && numbers.last() == Some(&2149));
    let Lost { lines, bytes, files } = account.lost;
    // A file that could not be read has its hundred lines.
    assert_eq!((numbers.len() as u64 + lines + files * 100, bytes), (2150, lines * 9));
    assert!(lines + files > 0, "nothing was lost, and nothing was tested");
    let told: u64 = lock(&place.reports)
        .iter()
        .map(|report| if let Report::Lost { lost, .. } = report { lost.lines + lost.files * 100 } else { 0 })
        .sum();
    assert_eq!(told, lines + files * 100);
}

#[tokio::test]
async fn a_shipment_goes_on_where_another_stood() {
    let mut place = Place::new(1000, 1000);
    let out = place.path("out.json");
    let sink = format!("file:{}", out.display());
    let mut written = 0;
    for _ in 0..5 {
        let shipment = place.start(&sink);
        place.write(written..written + 100);
        written += 100;
        let caught_up = async {
            while json_lines(&out).len() < written as usize - 50 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, caught_up).await.unwrap();
        shipment.halt().await;
    }
    let (account, errors) = resume(&place.outlets, &place.path("logs"), &place.path("ship"), LONG).await;
    assert!(errors.is_empty());
    assert_lines(&lines_of(&json_lines(&out)), &numbered(0..500));
    assert_eq!(account.shipped.lines, 500);

    // After a kill, the most recent lines are delivered twice, with the same positions.
    let shipment = place.start(&sink);
    place.write(500..600);
    let some = async {
        while json_lines(&out).len() < 510 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, some).await.unwrap();
    drop(shipment);
    let (_, errors) = resume(&place.outlets, &place.path("logs"), &place.path("ship"), LONG).await;
    assert!(errors.is_empty());
    let mut objects = json_lines(&out);
    objects.sort_by_key(|object| (object["file"].as_u64(), object["offset"].as_u64()));
    objects.dedup_by_key(|object| (object["file"].as_u64(), object["offset"].as_u64()));
    assert_lines(&lines_of(&objects), &numbered(0..600));
}

#[tokio::test]
async fn what_no_receiver_has_acknowledged_over_tcp_is_counted_as_lost() {
    let mut place = Place::new(1000, 100_000);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shipment = place.start(&format!("syslog:tcp://{}", listener.local_addr().unwrap()));
    // More than the buffers of both sides hold.
    place.write(0..100_000);
    shipment.finish();
    let (mut stream, _) = listener.accept().await.unwrap();
    let account = shipment.drain(Duration::from_millis(300)).await;
    assert_eq!(account.shipped.lines + account.lost.lines, 100_000, "{account:?}");
    assert!(account.lost.lines > 0, "{account:?}");
    let mut received = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut received)).await.expect("the end").unwrap();
    let received = String::from_utf8(received).unwrap().matches("] line ").count() as u64;
    assert!(received >= account.shipped.lines, "{received} {account:?}");
    let (account, _) = resume(&place.outlets, &place.path("logs"), &place.path("ship"), LONG).await;
    assert_eq!(account.shipped.lines + account.lost.lines, 100_000, "nothing remains");
}

#[tokio::test]
async fn what_a_dead_sink_does_not_get_in_the_end_is_counted_exactly() {
    let mut place = Place::new(1000, 1000);
    let shipment = place.start(&format!("syslog:unix:{}", place.path("nobody").display()));
    place.write(0..300);
    place.rotator.write(b"no end");
    shipment.finish();
    let account = shipment.drain(Duration::from_millis(300)).await;
    let bytes: u64 = (0..300).map(|n| format!("line {n}\n").len() as u64).sum::<u64>() + 6;
    assert_eq!(account.lost, Lost { lines: 301, bytes, files: 0 });
    let reports = lock(&place.reports).clone();
    assert!(matches!(&reports[..], [Report::Down { .. }, Report::Lost { .. }]), "{reports:?}");
    assert!(reports[1].to_string().ends_with(&format!("did not get 301 lines ({bytes} bytes) of web's stdout")));
    // Afterwards nothing remains to be shipped.
    let (account, _) = resume(&place.outlets, &place.path("logs"), &place.path("ship"), LONG).await;
    assert_eq!(account.lost.lines, 301);
}
