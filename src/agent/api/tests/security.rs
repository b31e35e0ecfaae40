//! Who may ask what. (N8)

use super::super::Kind;
use super::super::routes::TABLE;
use super::*;

#[tokio::test]
async fn without_a_token_nothing_answers_over_tcp() {
    let world = World::new().await;
    for route in TABLE {
        let path = filled(route.pattern);
        let bare = world.over_tcp(route.verb.as_str(), &path, &[], "").await;
        assert_eq!((bare.status, bare.text().as_str()), (403, "Permission denied"), "{path}");
        let wrong = world
            .over_tcp(route.verb.as_str(), &path, &[("X-Nomad-Token", "11111111-2222-3333-4444-555555555555")], "")
            .await;
        assert_eq!((wrong.status, wrong.text().as_str()), (403, "Permission denied"), "{path}");
    }
    // Nor what there is no route for, nor a wrong method: nobody learns which paths there are.
    for (method, path) in [("GET", "/"), ("GET", "/v1/nothing"), ("PATCH", "/v1/jobs")] {
        assert_eq!(world.over_tcp(method, path, &[], "").await.status, 403, "{method} {path}");
    }
}

#[tokio::test]
async fn a_stranger_is_answered_once() {
    let world = World::new().await;
    let asked = "GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".repeat(1000);
    let mut stream = TcpStream::connect(world.tcp).await.unwrap();
    // It may be gone before all is written.
    let _ = stream.write_all(asked.as_bytes()).await;
    let mut all = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the connection stays open");
    assert!(String::from_utf8_lossy(&all).matches("HTTP/1.1 403").count() <= 1);
}

#[tokio::test]
async fn each_role_reaches_its_routes_and_no_others() {
    let mut world = World::new().await;
    // Whoever asks for an upgrade is answered at once.
    world.replaced.close();
    for role in [Role::Read, Role::Submit, Role::Manage] {
        let token = world.token(role).await;
        for route in TABLE {
            // Those go on for ever, or need another protocol.
            let endless =
                ["monitor", "event/stream", "exec", "action"].iter().any(|word| route.pattern.ends_with(word));
            let path = filled(route.pattern);
            if endless && role >= route.role {
                let head = head_over_tcp(&world, &path, &token).await;
                assert!(!head.starts_with("HTTP/1.1 403"), "{role:?} {path}: {head}");
                continue;
            }
            let answer =
                world.over_tcp(route.verb.as_str(), &path, &[("Authorization", &format!("Bearer {token}"))], "").await;
            let denied = answer.status == 403 && answer.text() == "Permission denied";
            assert_eq!(
                denied,
                role < route.role,
                "{role:?} {} {path}: {} {}",
                route.verb.as_str(),
                answer.status,
                answer.text()
            );
            if role >= route.role {
                assert_eq!(answer.status == 501, route.kind == Kind::Refused, "{path}: {}", answer.text());
            }
        }
    }
}

/// The first line of an answer, of which the rest may never come.
async fn head_over_tcp(world: &World, path: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(world.tcp).await.unwrap();
    stream.write_all(request("GET", path, &[("X-Nomad-Token", token)], "").as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&b'\n') {
        let read = tokio::time::timeout(PATIENCE, stream.read_buf(&mut seen)).await.expect("nothing is said").unwrap();
        assert!(read > 0, "{path}: it was closed");
    }
    String::from_utf8_lossy(&seen).into_owned()
}

/// A page whose name was made to mean this machine, and one of another site: whatever they ask for, and whoever is logged in.
#[tokio::test]
async fn pages_of_other_sites_are_refused_on_every_route() {
    let world = World::new().await;
    let token = world.token(Role::Manage).await;
    let auth = ("X-Nomad-Token", token.as_str());
    for route in TABLE {
        let path = filled(route.pattern);
        for (wrong, what) in [
            (("Host", "rebound.example:4646"), "Host"),
            (("Host", "169.254.169.254"), "Host"),
            (("Origin", "http://evil.example"), "Origin"),
            (("Origin", "null"), "Origin"),
        ] {
            let answer = world.over_tcp(route.verb.as_str(), &path, &[auth, wrong], "{}").await;
            let text = format!("this agent does not answer under that {what}");
            assert_eq!((answer.status, answer.text()), (403, text), "{path}");
        }
    }
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_even_with_a_token() {
    let world = World::new().await;
    let token = world.token(Role::Manage).await;
    let auth = ("X-Nomad-Token", token.as_str());
    assert_eq!(world.over_tcp("GET", "/v1/jobs", &[auth], "").await.status, 200);
    let rebound = world.over_tcp("GET", "/v1/jobs", &[auth, ("Host", "evil.example")], "").await;
    assert_eq!(rebound.status, 403);
    let crossed = world.over_tcp("PUT", "/v1/system/gc", &[auth, ("Origin", "http://evil.example")], "").await;
    assert_eq!(crossed.status, 403);
}

#[tokio::test]
async fn tokens_are_made_listed_and_taken_back() {
    let world = World::new().await;
    let made = world.put("/v1/agentbin/tokens", json!({"Name": "ci", "Role": "submit"})).await;
    let secret = made["SecretID"].as_str().unwrap();
    let list = world.json("/v1/agentbin/tokens").await;
    assert_eq!((list[0]["Name"].as_str(), list[0].get("SecretID")), (Some("ci"), None));
    let auth = [("X-Nomad-Token", secret)];
    assert_eq!(world.over_tcp("GET", "/v1/jobs", &auth, "").await.status, 200);
    let job = json!({"Job": job("web")}).to_string();
    let refused = world.over_tcp("PUT", "/v1/jobs", &auth, &job).await;
    assert_eq!((refused.status, refused.text().contains("driver raw_exec")), (403, true), "{}", refused.text());
    world.ask("DELETE", &format!("/v1/agentbin/token/{}", made["AccessorID"].as_str().unwrap()), None).await;
    assert_eq!(world.over_tcp("GET", "/v1/jobs", &auth, "").await.status, 403);
}

#[tokio::test]
async fn registrations_can_be_reserved_for_manage() {
    let world = World::new().await;
    world.put("/v1/operator/scheduler/configuration", json!({"RejectJobRegistration": true})).await;
    let submit = world.token(Role::Submit).await;
    let job = job_of("web", "exec", |_| {}).to_string();
    for path in ["jobs", "job/web", "job/web/dispatch", "job/web/dispatch/payload", "job/web/scale", "job/web/revert"] {
        let path = &format!("/v1/{path}");
        let answer = world.over_tcp("PUT", path, &[("X-Nomad-Token", &submit)], &job).await;
        let text = "Job registration, dispatch, and scale are disabled by the scheduler configuration";
        assert_eq!((answer.status, answer.text().as_str()), (403, text), "{path}");
    }
    let plan = world.over_tcp("PUT", "/v1/job/web/plan", &[("X-Nomad-Token", &submit)], &job).await;
    assert_eq!(plan.status, 200, "{}", plan.text());
    world.run("web").await;
    world.put("/v1/operator/scheduler/configuration", json!({"RejectJobRegistration": false})).await;
    assert_eq!(world.over_tcp("PUT", "/v1/jobs", &[("X-Nomad-Token", &submit)], &job).await.status, 200);
}

#[tokio::test]
async fn evaluations_wait_while_they_are_paused() {
    let world = World::new().await;
    world.put("/v1/operator/scheduler/configuration", json!({"PauseEvalBroker": true})).await;
    let made = world.put("/v1/jobs", json!({"Job": job("web")})).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let eval = world.json(&format!("/v1/evaluation/{}", made["EvalID"].as_str().unwrap())).await;
    assert_eq!(eval["Status"], "pending");
    world.put("/v1/operator/scheduler/configuration", json!({"PauseEvalBroker": false})).await;
    world.deployed("web").await;
}

#[tokio::test]
async fn requests_that_are_too_large_are_refused() {
    let world = World::new().await;
    let token = world.token(Role::Manage).await;
    let auth = ("X-Nomad-Token", token.as_str());
    let long = "x".repeat(100 * 1024);
    let headers = world.over_tcp("GET", "/v1/jobs", &[auth, ("X-Long", &long)], "").await;
    assert_eq!(headers.status, 431);
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
    let answer = world.over_tcp("PUT", "/v1/search", &[auth], &body).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
}

#[tokio::test]
async fn the_socket_is_its_owners_from_its_first_moment() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new().await;
    let mode = std::fs::metadata(world.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let again = Listener::unix(&world.socket(), None).unwrap_err();
    assert_eq!(again.kind(), std::io::ErrorKind::AddrInUse, "{again}");
    let dead = world.dir.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    Listener::unix(&dead, None).unwrap();
    let file = world.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(Listener::unix(&file, None).is_err() && file.exists());
}

/// A job of these tasks' driver, with one thing changed.
fn job_of(id: &str, driver: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut job = job(id);
    job["TaskGroups"][0]["Tasks"][0]["Driver"] = driver.into();
    change(&mut job);
    json!({"Job": job, "Diff": true})
}

#[tokio::test]
async fn what_submit_registers_is_isolated_strictly() {
    let world = World::new().await;
    let token = world.token(Role::Submit).await;
    let auth = [("X-Nomad-Token", token.as_str())];
    let plain = job_of("web", "exec", |_| {}).to_string();
    let made = world.over_tcp("PUT", "/v1/jobs", &auth, &plain).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let task = world.json("/v1/job/web").await["TaskGroups"][0]["Tasks"][0].clone();
    assert_eq!((&task["Driver"], &task["Config"]["isolation"]), (&json!("exec"), &json!("strict")));
    // The plan says what registering again would change: nothing.
    let planned = world.over_tcp("PUT", "/v1/job/web/plan", &auth, &plain).await;
    assert_eq!(planned.json()["Diff"]["Type"], "None", "{}", planned.text());
    for (what, body) in [
        ("driver raw_exec", job_of("web", "raw_exec", |_| {})),
        ("user", job_of("web", "exec", |job| job["TaskGroups"][0]["Tasks"][0]["User"] = "${NOMAD_META_k}".into())),
        (
            "artifact source /etc/shadow",
            job_of("web", "exec", |job| {
                let group = job["TaskGroups"][0].as_object_mut().unwrap();
                let mut tasks = group.remove("Tasks").unwrap();
                tasks[0]["artifacts"] = json!([{"getterSOURCE": "/etc/shadow"}]);
                group.insert("tasks".to_owned(), tasks);
            }),
        ),
        (
            "isolation",
            job_of("web", "exec", |job| job["TaskGroups"][0]["Tasks"][0]["Config"]["isolation"] = "nomad".into()),
        ),
    ] {
        for path in ["/v1/jobs", "/v1/job/web", "/v1/job/web/plan"] {
            let refused = world.over_tcp("PUT", path, &auth, &body.to_string()).await;
            let text = refused.text();
            assert!(refused.status == 403 && text.contains(what) && text.contains("role manage"), "{what}: {text}");
        }
    }
}

#[tokio::test]
async fn submit_starts_nothing_that_it_could_not_register() {
    let world = World::new().await;
    let token = world.token(Role::Submit).await;
    let auth = [("X-Nomad-Token", token.as_str())];
    world.put("/v1/jobs", job_of("web", "raw_exec", |_| {})).await;
    world.put("/v1/jobs", job_of("web", "exec", |_| {})).await;
    world.put("/v1/jobs", job_of("scaled", "raw_exec", |_| {})).await;
    world
        .put(
            "/v1/jobs",
            job_of("form", "raw_exec", |job| {
                (job["Type"], job["TaskGroups"][0]["Update"]) = ("batch".into(), Value::Null);
                job["ParameterizedJob"] = json!({});
            }),
        )
        .await;
    world
        .put(
            "/v1/jobs",
            job_of("clock", "raw_exec", |job| {
                (job["Type"], job["TaskGroups"][0]["Update"]) = ("batch".into(), Value::Null);
                job["Periodic"] = json!({"Spec": "0 0 1 1 *", "SpecType": "cron", "Enabled": true});
            }),
        )
        .await;
    for (path, body) in [
        ("/v1/job/web/revert", json!({"JobID": "web", "JobVersion": 0})),
        ("/v1/job/scaled/scale", json!({"Count": 2, "Target": {"Job": "scaled", "Group": "g"}})),
        ("/v1/job/form/dispatch", json!({})),
        ("/v1/job/form/dispatch/payload", json!({})),
        ("/v1/job/clock/periodic/force", json!({})),
    ] {
        let refused = world.over_tcp("PUT", path, &auth, &body.to_string()).await;
        assert_eq!((refused.status, refused.text().contains("driver raw_exec")), (403, true), "{}", refused.text());
        let done = world.ask("PUT", path, Some(&body)).await;
        assert!(done.status != 403, "{path}: {}", done.text());
    }
}

#[tokio::test]
async fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
    let world = World::new().await;
    let token = world.token(Role::Manage).await;
    let auth = [("X-Nomad-Token", token.as_str())];
    let mut first = TcpStream::connect(world.tcp).await.unwrap();
    let head = format!(
        "PUT /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Nomad-Token: {token}\r\nContent-Length: {}\r\n\r\n{{",
        16 << 20
    );
    first.write_all(head.as_bytes()).await.unwrap();
    // Answered after the one before was begun, as there is one thread.
    world.json("/v1/jobs").await;
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(100 << 10));
    let mut second = std::pin::pin!(world.over_tcp("PUT", "/v1/jobs", &auth, &body));
    tokio::select! {
        answer = &mut second => panic!("{}", answer.text()),
        () = tokio::time::sleep(Duration::from_millis(500)) => {}
    }
    assert_eq!(world.over_tcp("PUT", "/v1/search", &auth, "{\"Prefix\":\"x\"}").await.status, 200);
    drop(first);
    let answer = second.await;
    assert_eq!((answer.status, answer.text().as_str()), (400, "Job must be specified"));
    let many = format!("{{\"x\":[{}0]}}", "0,".repeat(300_000));
    let answer = world.over_tcp("PUT", "/v1/search", &auth, &many).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
}
