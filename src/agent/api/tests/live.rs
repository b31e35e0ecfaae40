//! Files, logs, sessions, events: what goes on while a client looks. (D5)

use super::*;

/// Starts a request and leaves it open, past its headers.
async fn open(world: &World, path: &str) -> (UnixStream, Vec<u8>) {
    let mut stream = UnixStream::connect(world.socket()).await.unwrap();
    stream.write_all(request("GET", path, &[], "").as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, |seen| seen.windows(4).any(|w| w == b"\r\n\r\n")).await;
    (stream, seen)
}

async fn read_until(stream: &mut UnixStream, seen: &mut Vec<u8>, is: impl Fn(&[u8]) -> bool) {
    let mut buffer = [0; 4096];
    while !is(seen) {
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut buffer)).await.expect("nothing more came").unwrap();
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(seen));
        seen.extend_from_slice(&buffer[..read]);
    }
}

fn has(seen: &[u8], what: &str) -> bool {
    seen.windows(what.len()).any(|w| w == what.as_bytes())
}

#[tokio::test]
async fn files_are_read_within_the_directory_and_no_secrets() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let dir = world.dir.path().join("alloc");
    std::fs::create_dir_all(dir.join("t/secrets")).unwrap();
    std::fs::write(dir.join("t/secrets/token"), "secret").unwrap();
    std::fs::write(dir.join("t/page.html"), "<script>0123456789").unwrap();
    std::os::unix::fs::symlink("/etc", dir.join("t/etc")).unwrap();
    let list = world.json(&format!("/v1/client/fs/ls/{id}?path=t")).await;
    let names: Vec<_> = list.as_array().unwrap().iter().map(|entry| entry["Name"].as_str().unwrap()).collect();
    assert_eq!(names, ["etc", "page.html", "secrets"]);
    let stat = world.json(&format!("/v1/client/fs/stat/{id}?path=/t/page.html")).await;
    assert_eq!((stat["Size"].as_i64(), stat["IsDir"].as_bool()), (Some(18), Some(false)));
    let page = world.get(&format!("/v1/client/fs/cat/{id}?path=t/page.html")).await;
    let told = |answer: &Answer| (answer.text(), answer.headers["content-type"].clone());
    assert_eq!(told(&page), ("<script>0123456789".to_owned(), "text/plain".to_owned()));
    let part = world.get(&format!("/v1/client/fs/readat/{id}?path=t/page.html&offset=8&limit=3")).await;
    assert_eq!(told(&part), ("012".to_owned(), "text/plain; charset=utf-8".to_owned()));
    for (path, status) in [
        ("t/secrets/token", 403),
        ("t/./secrets/token", 403),
        ("/t//secrets", 403),
        ("../server", 500),
        ("t/../../server", 500),
        ("t/etc/passwd", 404),
        ("t/etc", 404),
        ("none", 404),
    ] {
        for call in ["cat", "ls", "stat"] {
            let answer = world.get(&format!("/v1/client/fs/{call}/{id}?path={path}")).await;
            // A link itself may be looked at.
            let fits = answer.status == status
                || (path == "t/etc" && answer.status >= 400)
                || (call == "stat" && path == "t/etc");
            assert!(fits, "{call} {path}: {} {}", answer.status, answer.text());
        }
    }
    let missing = world.get(&format!("/v1/client/fs/stat/{id}?path=none")).await.text();
    assert_eq!(missing, format!("stat {}/none: no such file or directory", dir.display()));
    assert_eq!(world.get(&format!("/v1/client/fs/cat/{id}")).await.text(), "must provide a file name");
    // Later than nanoseconds can say.
    let file = std::fs::File::options().write(true).open(dir.join("t/page.html")).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(14_000_000_000)).unwrap();
    let stat = world.json(&format!("/v1/client/fs/stat/{id}?path=/t/page.html")).await;
    assert!(stat["ModTime"].as_str().unwrap().starts_with("2262-"), "{stat}");
}

#[tokio::test]
async fn logs_are_followed_to_the_end_of_their_task() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let logs = world.dir.path().join("alloc/alloc/logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("t.stdout.0"), "one\n").unwrap();
    let at = format!("/v1/client/fs/logs/{id}?task=t&type=stdout");
    let whole = world.get(&at).await;
    assert_eq!(whole.json(), json!({"Data": "b25lCg==", "File": "alloc/logs/t.stdout.0", "Offset": 4}));
    assert_eq!(world.get(&format!("{at}&plain=true&origin=end&offset=2")).await.text(), "e\n");
    let (mut stream, mut seen) = open(&world, &format!("{at}&plain=true&follow=true&origin=start")).await;
    read_until(&mut stream, &mut seen, |seen| has(seen, "one\n")).await;
    let mut file = std::fs::OpenOptions::new().append(true).open(logs.join("t.stdout.0")).unwrap();
    std::io::Write::write_all(&mut file, b"two\n").unwrap();
    read_until(&mut stream, &mut seen, |seen| has(seen, "two\n")).await;
    world.fake.end(&id, false).await;
    // The last chunk: the stream ended by itself.
    read_until(&mut stream, &mut seen, |seen| seen.ends_with(b"0\r\n\r\n")).await;
    for (query, status, text) in [
        ("type=stdout", 400, "must provide task name"),
        ("task=t&type=x", 400, "must provide log type (stdout/stderr)"),
        ("task=x&type=stdout", 400, "unknown task name \"x\""),
        ("task=t&type=stdout&origin=x", 400, "origin must be start or end"),
    ] {
        let answer = world.get(&format!("/v1/client/fs/logs/{id}?{query}")).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, text));
    }
}

#[tokio::test]
async fn a_growing_file_is_followed_through_a_cut() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let file = world.dir.path().join("alloc/f");
    std::fs::write(&file, "start").unwrap();
    let (mut stream, mut seen) = open(&world, &format!("/v1/client/fs/stream/{id}?path=f&origin=start&offset=0")).await;
    // base64 of "start", and of "new"
    read_until(&mut stream, &mut seen, |seen| has(seen, "c3RhcnQ=")).await;
    std::fs::write(&file, "new").unwrap();
    read_until(&mut stream, &mut seen, |seen| has(seen, "file truncated") && has(seen, "bmV3")).await;
    std::fs::remove_file(&file).unwrap();
    read_until(&mut stream, &mut seen, |seen| has(seen, "file deleted") && seen.ends_with(b"0\r\n\r\n")).await;
}

#[tokio::test]
async fn events_come_as_they_happen() {
    let world = World::new().await;
    let (mut stream, mut seen) = open(&world, "/v1/event/stream?topic=Job:web&topic=Allocation").await;
    world.run("other").await;
    world.run("web").await;
    read_until(&mut stream, &mut seen, |seen| has(seen, "\"Key\":\"web\"")).await;
    assert!(!has(&seen, "\"Key\":\"other\""));
    read_until(&mut stream, &mut seen, |seen| has(seen, "\"Topic\":\"Allocation\"")).await;
    assert!(has(&seen, "application/json") && has(&seen, "\"Payload\":{\"Job\":{"));
}

/// A frame of a client, masked with zeros.
fn frame(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).unwrap(), 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

pub(super) async fn socket(world: &World, path: &str) -> (UnixStream, Vec<u8>) {
    let mut stream = UnixStream::connect(world.socket()).await.unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    read_until(&mut stream, &mut seen, |seen| seen.windows(4).any(|w| w == b"\r\n\r\n")).await;
    (stream, seen)
}

#[tokio::test]
async fn a_session_says_all_output_before_its_exit_status() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    // The socket's owner may do everything; `sh` stands in the query as the command line writes it.
    let path = format!("/v1/client/allocation/{id}/exec?task=t&tty=false&command=%5B%22sh%22%5D");
    let (mut stream, mut seen) = socket(&world, &path).await;
    assert!(has(&seen, "101 Switching Protocols"), "{}", String::from_utf8_lossy(&seen));
    stream.write_all(&frame("{}")).await.unwrap();
    stream.write_all(&frame("{\"stdin\":{\"data\":\"aGk=\"}}")).await.unwrap();
    stream.write_all(&frame("{\"stdin\":{\"close\":true}}")).await.unwrap();
    read_until(&mut stream, &mut seen, |seen| has(seen, "\"exit_code\":3")).await;
    let text = String::from_utf8_lossy(&seen).into_owned();
    let (output, end) = (text.find("\"data\":\"SEk=\"").unwrap(), text.find("\"exited\":true").unwrap());
    assert!(output < end, "{text}");
    // A close frame with 1000 (RFC 6455, 7.4.1).
    read_until(&mut stream, &mut seen, |seen| has_close(seen, 1000)).await;
}

fn has_close(seen: &[u8], code: u16) -> bool {
    seen.windows(4).any(|w| w[0] == 0x88 && w[2..4] == code.to_be_bytes())
}

#[tokio::test]
async fn what_is_wrong_with_a_session_is_said_over_the_socket() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    for (path, text) in [
        ("99999999-2222-3333-4444-555555555555/exec?task=t&command=%5B%22sh%22%5D".to_owned(), "Unknown allocation"),
        (format!("{id}/exec?command=%5B%22sh%22%5D"), "task name is not provided"),
        (format!("{id}/exec?task=t&command=%5B%5D"), "command is not present"),
        (format!("{id}/exec?task=nope&command=%5B%22sh%22%5D"), "not found in allocation"),
    ] {
        let (mut stream, mut seen) = socket(&world, &format!("/v1/client/allocation/{path}")).await;
        read_until(&mut stream, &mut seen, |seen| has_close(seen, 1008) && has(seen, text)).await;
    }
}

#[tokio::test]
async fn a_server_that_ends_lets_requests_end_first() {
    let world = World::new().await;
    world.run("web").await;
    let (mut waiting, seen) = {
        let mut stream = UnixStream::connect(world.socket()).await.unwrap();
        let path = "/v1/namespaces?index=100000&wait=1s";
        stream.write_all(request("GET", path, &[], "").as_bytes()).await.unwrap();
        (stream, Vec::new())
    };
    // One that was answered is there before the end is asked for.
    world.json("/v1/jobs").await;
    world.stop.send_replace(true);
    let mut seen = seen;
    read_until(&mut waiting, &mut seen, |seen| has(seen, "\"default\"")).await;
    let refused = tokio::time::timeout(PATIENCE, async {
        while UnixStream::connect(world.socket()).await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    refused.await.unwrap();
}

/// Whatever goes on says why it ends, and who waits is answered. (N8)
#[tokio::test]
async fn what_goes_on_ends_with_a_word_when_the_agent_ends() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let logs = world.dir.path().join("alloc/alloc/logs");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("t.stdout.0"), "one\n").unwrap();
    let follow = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&follow=true&origin=start");
    let (mut frames, mut in_frames) = open(&world, &follow).await;
    read_until(&mut frames, &mut in_frames, |seen| has(seen, "b25lCg==")).await;
    let (mut plain, mut in_plain) = open(&world, &format!("{follow}&plain=true")).await;
    read_until(&mut plain, &mut in_plain, |seen| has(seen, "one\n")).await;
    let (mut events, mut of_events) = open(&world, "/v1/event/stream").await;
    let path = format!("/v1/client/allocation/{id}/exec?task=t&command=%5B%22sh%22%5D");
    let (mut session, mut of_session) = socket(&world, &path).await;
    let mut waiting = UnixStream::connect(world.socket()).await.unwrap();
    let path = "/v1/namespaces?index=100000&wait=5m";
    waiting.write_all(request("GET", path, &[], "").as_bytes()).await.unwrap();
    world.json("/v1/jobs").await;

    world.stop.send_replace(true);
    read_until(&mut frames, &mut in_frames, |seen| seen.ends_with(b"0\r\n\r\n")).await;
    assert!(has(&in_frames, super::super::ENDING), "{}", String::from_utf8_lossy(&in_frames));
    read_until(&mut events, &mut of_events, |seen| seen.ends_with(b"0\r\n\r\n")).await;
    read_until(&mut session, &mut of_session, |seen| has_close(seen, 1012) && has(seen, super::super::ENDING)).await;
    let mut answer = Vec::new();
    read_until(&mut waiting, &mut answer, |seen| has(seen, "\"default\"")).await;
    // Nothing of ours is mixed into a task's plain output: it is cut off, without the last chunk that would make it whole.
    tokio::time::timeout(PATIENCE, plain.read_to_end(&mut in_plain)).await.expect("it goes on").unwrap();
    assert!(in_plain.ends_with(b"one\n\r\n"), "{}", String::from_utf8_lossy(&in_plain));
}

#[tokio::test]
async fn an_upgrade_is_asked_for_and_told_why_not() {
    let mut world = World::new().await;
    let socket = world.dir.path().join("sock");
    let told = async {
        let first = world.replaced.recv().await.unwrap();
        first.send(Err("the new file is a text".to_owned())).unwrap();
        world.replaced.recv().await.unwrap().send(Ok(())).unwrap();
    };
    let ask = || async {
        let stream = UnixStream::connect(&socket).await.unwrap();
        exchange(stream, &request("PUT", "/v1/agentbin/upgrade", &[], "")).await
    };
    let asked = async { (ask().await, ask().await) };
    let ((refused, done), ()) = tokio::join!(asked, told);
    assert_eq!((refused.status, refused.text().as_str()), (409, "the new file is a text"));
    assert_eq!((done.status, done.json()["Replaced"].as_str()), (200, Some("0.0.0")));
}

#[tokio::test]
async fn sessions_are_counted() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let path = format!("/v1/client/allocation/{id}/exec?task=t&command=%5B%22sh%22%5D");
    let mut open = Vec::new();
    for _ in 0..super::super::exec::SESSIONS {
        let (stream, seen) = socket(&world, &path).await;
        assert!(has(&seen, "101 Switching Protocols"));
        open.push(stream);
    }
    let (_, seen) = socket(&world, &path).await;
    assert!(has(&seen, "429 Too Many Requests"), "{}", String::from_utf8_lossy(&seen));
    // One that ends makes room.
    drop(open.pop());
    let again = async {
        while !has(&socket(&world, &path).await.1, "101 Switching Protocols") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, again).await.unwrap();
}
