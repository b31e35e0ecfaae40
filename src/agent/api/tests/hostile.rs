//! Clients that mean harm: they are refused, take a bounded part of the agent, and neither tasks nor other clients notice. (N8)

use super::super::Kind;
use super::super::routes::TABLE;
use super::*;

/// Few places, and little time.
const TIGHT: Limits = Limits {
    connections: 8,
    per_peer: 8,
    header_bytes: 64 * 1024,
    header_time: Duration::from_millis(300),
    handshake: Duration::from_secs(1),
    end: Duration::from_secs(5),
};

/// Writes until the other side takes no more, however often it is asked for something else meanwhile; `None` when it has cut the
/// connection. Says how many bytes it took.
async fn flood(world: &World, stream: &mut UnixStream, piece: &[u8], most: usize) -> Option<usize> {
    let (mut taken, mut quiet, mut at) = (0, 0, 0);
    while taken < most && quiet < 30 {
        match stream.try_write(&piece[at..]) {
            Ok(written) => {
                taken += written;
                at = (at + written) % piece.len();
                quiet = 0;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                quiet += 1;
                // The server had its turn when this is answered.
                world.json("/v1/status/leader").await;
            }
            Err(_) => return None,
        }
    }
    Some(taken)
}

/// What the other side says until it closes.
async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("it is never closed");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test]
async fn connections_that_say_nothing_or_little_are_closed_and_others_are_answered() {
    let world = World::with(TIGHT).await;
    world.run("web").await;
    world.deployed("web").await;
    let token = world.token(Role::Read).await;
    let before = world.json("/v1/allocations").await;
    let mut idle = Vec::new();
    for number in 0..100 {
        let mut stream = TcpStream::connect(world.tcp).await.unwrap();
        if number % 2 == 0 {
            let _ = stream.write_all(b"GET /v1/jobs HTTP/1.1\r\nX-Slow: ").await;
        }
        idle.push(stream);
    }
    // Those of the kind that never ends a header.
    let drips = idle.split_off(50).into_iter().map(|mut stream| {
        tokio::spawn(async move {
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    });
    let drips: Vec<_> = drips.collect();
    // The socket is another listener: nobody there waits.
    world.json("/v1/jobs").await;
    let answer = world.over_tcp("GET", "/v1/jobs", &[("X-Nomad-Token", token.as_str())], "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for mut stream in idle {
        let said = rest(&mut stream).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
    for drip in drips {
        tokio::time::timeout(PATIENCE, drip).await.expect("one byte after the other keeps a connection").unwrap();
    }
    assert_eq!(world.json("/v1/allocations").await, before);
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() {
    let world = World::with(Limits { per_peer: 3, ..Limits::default() }).await;
    let token = world.token(Role::Read).await;
    let connect = |from: &str| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(world.tcp)
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(connect("127.0.0.2").await.unwrap());
    }
    assert_eq!(rest(&mut connect("127.0.0.2").await.unwrap()).await, "", "one too many");
    let answer = world.over_tcp("GET", "/v1/jobs", &[("X-Nomad-Token", token.as_str())], "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(held.pop());
    let mut is_answered = false;
    for _ in 0..100 {
        let mut stream = connect("127.0.0.2").await.unwrap();
        let asked = b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
        is_answered = stream.write_all(asked).await.is_ok() && rest(&mut stream).await.starts_with("HTTP/1.1 403");
        if is_answered {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_answered, "whose connection has ended may have another one");
}

#[tokio::test]
async fn a_gigabyte_is_refused_long_before_it_is_there() {
    const GIGABYTE: usize = 1 << 30;
    let world = World::new().await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x1_0000));
    for (path, most) in [("/v1/jobs", 20 << 20), ("/v1/search", 4 << 20), ("/v1/var/x", 4 << 20)] {
        let mut stream = UnixStream::connect(world.socket()).await.unwrap();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let taken = flood(&world, &mut stream, chunk.as_bytes(), most).await;
        assert!(taken.is_none_or(|taken| taken < most), "{path}: {taken:?}");
        let said = rest(&mut stream).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 413"), "{path}: {said}");
        // One that says how long it is, is refused before its first byte.
        let mut stream = UnixStream::connect(world.socket()).await.unwrap();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {GIGABYTE}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let said = rest(&mut stream).await;
        assert!(said.starts_with("HTTP/1.1 413"), "{path}: {said}");
    }
    // A stranger's is not looked at.
    let mut stream = TcpStream::connect(world.tcp).await.unwrap();
    let head = format!("PUT /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {GIGABYTE}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 403"));
}

/// A frame of a client, masked with zeros.
fn frame(kind: u8, text: &str) -> Vec<u8> {
    let mut frame = vec![0x80 | kind];
    match u16::try_from(text.len()) {
        Ok(short) if short < 126 => frame.push(0x80 | short as u8),
        Ok(middle) => {
            frame.push(0xfe);
            frame.extend(middle.to_be_bytes());
        }
        Err(_) => {
            frame.push(0xff);
            frame.extend((text.len() as u64).to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(text.as_bytes());
    frame
}

async fn session(world: &World, id: &str, command: &str) -> UnixStream {
    let path = format!("/v1/client/allocation/{id}/exec?task=t&command=%5B%22{command}%22%5D");
    let (stream, seen) = super::live::socket(world, &path).await;
    assert!(String::from_utf8_lossy(&seen).contains("101 Switching Protocols"));
    stream
}

#[tokio::test]
async fn a_session_whose_task_takes_no_input_takes_little_of_its_client() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    world.deployed("web").await;
    let before = world.json("/v1/allocations").await;
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = session(&world, &id, "stall").await;
        let input = frame(1, &format!("{{\"stdin\":{{\"data\":\"{}\"}}}}", "A".repeat(100_000)));
        let taken = flood(&world, &mut stream, &input, 16 << 20).await;
        // With what the kernel has of it.
        assert!(taken.is_some_and(|taken| taken < 700 << 10), "{taken:?}");
        open.push(stream);
    }
    assert_eq!(world.json("/v1/allocations").await, before);
}

#[tokio::test]
async fn frames_that_are_too_long_or_no_frames_end_a_session() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let huge = [&[0x81, 0xff][..], &(1_u64 << 40).to_be_bytes(), &[0; 4], &[b'x'; 4096]].concat();
    // A message in pieces none of which is too long.
    let pieces: Vec<u8> = (0..64)
        .flat_map(|number| {
            let mut piece = frame(u8::from(number == 0), &"x".repeat(60_000));
            piece[0] &= 0x7f;
            piece
        })
        .collect();
    let unmasked = [&[0x81, 0x05][..], b"hello"].concat();
    let nested = frame(1, &"[".repeat(100_000));
    for (what, bytes) in [("huge", huge), ("pieces", pieces), ("unmasked", unmasked), ("nested", nested)] {
        let mut stream = session(&world, &id, "stall").await;
        // It may be cut before all is written.
        let _ = stream.write_all(&bytes).await;
        let _said = rest(&mut stream).await;
        assert_eq!(world.get("/v1/status/leader").await.status, 200, "{what}");
    }
    // Who sends pings and reads no answers.
    let mut stream = session(&world, &id, "stall").await;
    let pings = frame(9, &"p".repeat(125)).repeat(500);
    let _taken = flood(&world, &mut stream, &pings, 8 << 20).await;
    assert_eq!(world.get("/v1/status/leader").await.status, 200);
}

/// What is put into the place of an id.
const TRICKS: &[&str] = &[
    "..",
    ".",
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fcanary",
    "..%2f..%2f..%2f..%2f..%2fetc%2fpasswd",
    "../../canary",
    "..\\..\\canary",
    "%2fetc%2fpasswd",
    "%00",
    "a%00b",
    "%ff%fe",
    "%",
    "%zz",
    "a%0d%0aX-Evil:%20yes",
    ";id",
    "$(id)",
    "%24%7Bx%7D",
    "~",
    "*",
    "%E2%80%AE",
    "",
];

/// Names and lengths of all files but the database's.
fn tree(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let found = entry.metadata().unwrap();
            if found.is_dir() {
                dirs.push(entry.path());
            } else if !entry.file_name().to_string_lossy().starts_with("state.") {
                all.push((entry.path(), found.len()));
            }
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn ids_that_are_paths_reach_no_file_and_break_nothing() {
    let world = World::new().await;
    world.run("web").await;
    world.deployed("web").await;
    std::fs::write(world.dir.path().join("canary"), "CANARY").unwrap();
    let before = (tree(world.dir.path()), world.json("/v1/allocations").await);
    let long = "a".repeat(8000);
    let mut asked = 0;
    for route in TABLE.iter().filter(|route| route.pattern.contains('{') && route.kind == Kind::Served) {
        for trick in TRICKS.iter().copied().chain([long.as_str()]) {
            let place = |part: &str| if part.starts_with('{') { trick.to_owned() } else { part.to_owned() };
            let path = route.pattern.split('/').map(place).collect::<Vec<_>>().join("/");
            let path = format!("{path}?path=canary&namespace=default");
            let answer = world.ask(route.verb.as_str(), &path, Some(&json!({}))).await;
            let text = answer.text();
            assert!(!text.contains("CANARY") && !text.contains("root:"), "{path}: {text}");
            assert!(!text.contains("internal error") && !answer.headers.contains_key("x-evil"), "{path}: {text}");
            asked += 1;
        }
    }
    assert!(asked > 500, "{asked}");
    assert_eq!((tree(world.dir.path()), world.json("/v1/allocations").await), before);
}

#[tokio::test]
async fn names_that_are_paths_are_no_names_of_tasks_nor_files() {
    let world = World::new().await;
    for name in ["..", ".", "a/b", "../../x", "a\\b", "a\0b", "alloc", ""] {
        let mut job = job("trick");
        job["TaskGroups"][0]["Tasks"][0]["Name"] = name.into();
        let answer = world.ask("PUT", "/v1/jobs", Some(&json!({"Job": job}))).await;
        assert!(answer.status >= 400, "{name:?}: {}", answer.text());
    }
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let dir = world.dir.path().join("alloc");
    std::fs::create_dir_all(dir.join("t/secrets")).unwrap();
    std::fs::create_dir_all(dir.join("alloc/logs")).unwrap();
    std::fs::write(dir.join("t/secrets/token"), "CANARY").unwrap();
    std::fs::write(world.dir.path().join("canary"), "CANARY").unwrap();
    std::os::unix::fs::symlink("secrets", dir.join("t/way")).unwrap();
    std::os::unix::fs::symlink("../../t/secrets/token", dir.join("alloc/logs/t.stdout.0")).unwrap();
    for path in [
        "t/secrets/token",
        "t/secrets/./token",
        "t//secrets/token",
        "./t/secrets/token",
        "/t/secrets/token",
        "t/way/token",
        "t%2Fsecrets%2Ftoken",
        "..%2Fcanary",
        "t/..%2F..%2Fcanary",
        "%2E%2E/canary",
        "t/secrets%00",
        "alloc/../t/secrets/token",
        "alloc/logs/t.stdout.0",
        "%2Fproc%2Fself%2Fenviron",
        "proc/self/root/etc/passwd",
    ] {
        for call in ["cat", "ls", "stat", "readat", "stream"] {
            let at = format!("/v1/client/fs/{call}/{id}?path={path}&offset=0&limit=100&follow=false");
            let answer = world.get(&at).await;
            assert!(!answer.text().contains("CANARY") && !answer.text().contains("Q0FOQVJZ"), "{at}");
            assert!(answer.status >= 400 || call == "stat" && path.ends_with("stdout.0"), "{at}: {}", answer.text());
        }
    }
    for task in ["t", "../t", "..%2F..%2Fcanary", "t%00"] {
        let at = format!("/v1/client/fs/logs/{id}?task={task}&type=stdout&plain=true&follow=false");
        let text = world.get(&at).await.text();
        assert!(!text.contains("CANARY"), "{at}: {text}");
    }
}
