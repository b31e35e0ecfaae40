//! What holds for all answers.

use super::*;
use crate::agent::model::ServiceRegistration;

#[tokio::test]
async fn errors_say_what_nomad_says() {
    let world = World::new().await;
    let id = "99999999-2222-3333-4444-555555555555";
    for (method, path, status, text) in [
        ("GET", "/v1/nothing".to_owned(), 404, ""),
        ("DELETE", "/v1/jobs".to_owned(), 405, "Invalid method"),
        ("GET", "/v1/job/none".to_owned(), 404, "job not found"),
        ("GET", "/v1/job/none/summary".to_owned(), 404, "job not found"),
        ("GET", "/v1/job/none/services".to_owned(), 404, "job not found"),
        ("GET", "/v1/job/none/versions".to_owned(), 404, "job versions not found"),
        ("GET", "/v1/job/none/submission?version=0".to_owned(), 404, "job source not found"),
        ("GET", "/v1/job/none/submission".to_owned(), 400, "Unable to parse job submission version parameter"),
        ("GET", format!("/v1/allocation/{id}"), 404, "alloc not found"),
        ("GET", "/v1/allocation/abc".to_owned(), 500, "alloc lookup failed: index error: UUID must be 36 characters"),
        ("GET", format!("/v1/evaluation/{id}"), 404, "eval not found"),
        ("GET", format!("/v1/deployment/{id}"), 404, "deployment not found"),
        ("GET", format!("/v1/node/{id}"), 404, "node not found"),
        ("GET", "/v1/namespace/x".to_owned(), 404, "Namespace not found"),
        ("GET", "/v1/node/pool/x".to_owned(), 404, "node pool not found"),
        ("GET", "/v1/var/x".to_owned(), 404, "variable not found"),
        ("GET", "/v1/jobs?index=x".to_owned(), 400, "Invalid index"),
        ("GET", "/v1/jobs?index=1&wait=x".to_owned(), 400, "Invalid wait time"),
        ("GET", "/v1/jobs?per_page=x".to_owned(), 400, "Expect a number for `per_page` query string parameter"),
        ("GET", "/v1/jobs?region=x".to_owned(), 500, "No path to region"),
        (
            "GET",
            "/v1/event/stream?topic=Job:a:b".to_owned(),
            400,
            "Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: Job:a:b",
        ),
        ("GET", "/v1/volumes?type=x".to_owned(), 404, "resource not found"),
        (
            "GET",
            format!("/v1/client/allocation/{id}/stats"),
            404,
            "Unknown allocation \"99999999-2222-3333-4444-555555555555\"",
        ),
        ("GET", "/v1/client/stats?node_id=x".to_owned(), 404, "Unknown node \"x\""),
        ("PUT", "/v1/client/gc?node_id=x".to_owned(), 404, "Unknown node \"x\""),
        ("GET", format!("/v1/client/fs/stat/{id}"), 400, "must provide a file name"),
        ("GET", format!("/v1/client/fs/cat/{id}"), 400, "must provide a file name"),
        ("GET", format!("/v1/client/fs/readat/{id}"), 400, "must provide a file name"),
        ("GET", format!("/v1/client/fs/stream/{id}?path=x&origin=x"), 400, "origin must be start or end"),
        (
            "GET",
            format!("/v1/client/fs/stat/{id}?path=x"),
            404,
            "Unknown allocation \"99999999-2222-3333-4444-555555555555\"",
        ),
        ("GET", "/v1/client/fs/ls/".to_owned(), 400, "must provide a valid alloc id"),
        ("PUT", "/v1/jobs".to_owned(), 400, "Request body is empty"),
        (
            "PUT",
            format!("/v1/client/allocation/{id}/gc"),
            404,
            "Unknown allocation \"99999999-2222-3333-4444-555555555555\"",
        ),
        ("GET", format!("/v1/allocation/{id}/services"), 404, "allocation not found"),
        ("PUT", format!("/v1/allocation/{id}/stop"), 404, "allocation not found"),
        (
            "GET",
            "/v1/client/allocation/abc/stats".to_owned(),
            500,
            "alloc lookup failed: index error: UUID must be 36 characters",
        ),
        (
            "GET",
            "/v1/evaluation/abc".to_owned(),
            500,
            "failed to lookup eval: eval lookup failed: index error: UUID must be 36 characters",
        ),
        ("GET", "/v1/job/none/actions".to_owned(), 500, "Unknown job \"none\""),
        ("PUT", "/v1/job/none/dispatch".to_owned(), 500, "parameterized job not found"),
        ("PUT", "/v1/job/none/periodic/force".to_owned(), 500, "job not found"),
        ("PUT", "/v1/job/none/evaluate".to_owned(), 500, "job not found"),
        ("DELETE", "/v1/job/none/versions/x/tag".to_owned(), 500, "tag \"x\" not found on job \"none\""),
        (
            "DELETE",
            "/v1/job/none?eval_priority=101".to_owned(),
            400,
            "Eval priority must be between 1 and 100 inclusively",
        ),
        ("PUT", "/v1/job/none/dispatch/payload".to_owned(), 500, "parameterized job not found"),
        ("PUT", format!("/v1/deployment/promote/{id}"), 500, "deployment not found"),
        ("PUT", format!("/v1/node/{id}/evaluate"), 500, "node not found"),
        ("DELETE", "/v1/service/none/x".to_owned(), 500, "service registration not found"),
        ("DELETE", "/v1/namespace/none".to_owned(), 500, "namespace not found"),
    ] {
        let answer = world.ask(method, &path, None).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, text), "{method} {path}");
        assert!(answer.headers["x-nomad-index"].parse::<u64>().unwrap() > 0, "{path}");
    }
    for (path, body, status, text) in [
        ("/v1/job/none/revert", json!({"JobVersion": 0}), 500, "job \"none\" not found"),
        (
            "/v1/job/none/stable",
            json!({"JobVersion": 0}),
            500,
            "job \"none\" in namespace \"default\" at version 0 not found",
        ),
        ("/v1/job/none/versions/x/tag", json!({"Version": 0}), 500, "job \"none\" version 0 not found"),
        ("/v1/job/none/scale", json!({"Count": 1, "Target": {"Group": "g"}}), 404, "job \"none\" not found"),
        ("/v1/job/none/scale", json!({"Count": 1}), 400, "missing task group name for scaling action"),
        (
            "/v1/jobs",
            json!({"Job": job("web"), "EvalPriority": -1}),
            400,
            "Eval priority must be between 1 and 100 inclusively",
        ),
        (
            "/v1/deployment/allocation-health/99999999-2222-3333-4444-555555555555",
            json!({}),
            500,
            "must specify at least one healthy/unhealthy allocation ID",
        ),
        ("/v1/search/fuzzy", json!({"Text": "x"}), 500, "fuzzy search query must be at least 2 characters, got 1"),
    ] {
        let answer = world.ask("PUT", path, Some(&body)).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, text), "{path}");
    }
    // What is wrong with a job is what was asked for.
    let told = world.put("/v1/validate/job", json!({"Job": {"Name": "x"}})).await;
    assert_eq!(told["ValidationErrors"], json!(["Missing job ID"]));
    let bad = world.get("/v1/jobs?filter=x").await;
    assert!(bad.status == 400 && bad.text().starts_with("failed to create result paginator: "), "{}", bad.text());
    for (path, value) in [
        ("/v1/job/none/deployment", Value::Null),
        ("/v1/job/none/allocations", json!([])),
        ("/v1/service/none", json!([])),
        ("/v1/jobs?namespace=none", json!([])),
        ("/v1/plugins?type=csi", json!([])),
    ] {
        assert_eq!(world.json(path).await, value, "{path}");
    }
}

#[tokio::test]
async fn ids_with_slashes_work_with_every_verb() {
    let world = World::new().await;
    for id in ["a/b", "a/allocations", "plan", "x/y/z"] {
        world.run(id).await;
        for written in [id.to_owned(), id.replace('/', "%2F")] {
            let at = format!("/v1/job/{written}");
            if !id.ends_with("/allocations") || written != id {
                assert_eq!(world.json(&at).await["ID"], id, "{at}");
            }
            assert_eq!(world.json(&format!("{at}/allocations")).await[0]["JobID"], id);
            assert_eq!(world.json(&format!("{at}/evaluations")).await[0]["JobID"], id);
            assert_eq!(world.json(&format!("{at}/summary")).await["JobID"], id);
            assert_eq!(world.json(&format!("{at}/versions")).await["Versions"][0]["ID"], id);
            assert_eq!(world.json(&format!("{at}/scale")).await["JobID"], id);
            let planned = world.put(&format!("{at}/plan"), json!({"Job": job(id), "Diff": true})).await;
            assert_eq!(planned["Diff"]["ID"], id);
            let evaluated = world.put(&format!("{at}/evaluate"), json!({})).await;
            assert_ne!(evaluated["EvalID"], "");
        }
        let stopped = world.ask("DELETE", &format!("/v1/job/{}?purge=true", id.replace('/', "%2F")), None).await;
        assert_eq!(stopped.status, 200, "{}", stopped.text());
    }
}

#[tokio::test]
async fn lists_come_in_pages_sorted_and_filtered() {
    let world = World::new().await;
    for id in ["b", "a", "web", "web-2", "c"] {
        world.run(id).await;
    }
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|job| job["ID"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&world.json("/v1/jobs").await), ["a", "b", "c", "web", "web-2"]);
    assert_eq!(ids(&world.json("/v1/jobs?reverse=true").await), ["web-2", "web", "c", "b", "a"]);
    // The command line takes the first as the exact one.
    assert_eq!(ids(&world.json("/v1/jobs?prefix=web&per_page=20").await), ["web", "web-2"]);
    assert_eq!(
        ids(&world.json("/v1/jobs?filter=Name+matches+%22%5Eweb%22+and+Meta.k+%3D%3D+v").await),
        ["web", "web-2"]
    );
    assert_eq!(ids(&world.json("/v1/jobs?filter=Periodic+is+not+nil").await), Vec::<String>::new());
    let parents = "/v1/jobs?filter=ParentID+%3D%3D+%22%22+and+ParameterizedJob+is+not+nil";
    assert_eq!(ids(&world.json(parents).await), Vec::<String>::new());
    for direction in ["", "&reverse=true"] {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let answer = world.get(&format!("/v1/jobs?per_page=2{direction}&next_token={next}")).await;
            all.extend(ids(&answer.json()));
            let Some(token) = answer.headers.get("x-nomad-nexttoken") else { break };
            next.clone_from(token);
        }
        assert_eq!(all.len(), 5, "{all:?}");
    }
    let mut seen = BTreeSet::new();
    let mut next = String::new();
    loop {
        let answer = world.get(&format!("/v1/allocations?per_page=2&next_token={next}")).await;
        seen.extend(ids(&answer.json()));
        let Some(token) = answer.headers.get("x-nomad-nexttoken") else { break };
        next.clone_from(token);
    }
    assert_eq!(seen.len(), 5);
}

#[tokio::test]
async fn statuses_of_jobs_come_newest_first_or_of_those_that_are_named() {
    let world = World::new().await;
    for name in ["a", "b", "c"] {
        world.run(name).await;
        world.deployed(name).await;
    }
    world.put("/v1/namespace", json!({"Name": "other"})).await;
    let mut pack = job("c");
    (pack["Namespace"], pack["Meta"]) = ("other".into(), json!({"pack.name": "p"}));
    (pack["Type"], pack["TaskGroups"][0]["Update"]) = ("batch".into(), Value::Null);
    pack["ParameterizedJob"] = json!({});
    world.put("/v1/jobs", json!({"Job": pack})).await;
    let ids = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|job| job["ID"].as_str().unwrap().to_owned()).collect()
    };
    let all = world.json("/v1/jobs/statuses").await;
    assert_eq!(ids(&all), ["c", "b", "a"]);
    assert_eq!(ids(&world.json("/v1/jobs/statuses?reverse=true").await), ["a", "b", "c"]);
    assert_eq!(all[0]["Allocs"][0]["DeploymentStatus"], json!({"Canary": false, "Healthy": true}));
    assert_eq!((&all[0]["IsPack"], &all[0]["ChildStatuses"]), (&json!(false), &Value::Null));
    let first = world.get("/v1/jobs/statuses?per_page=1").await;
    let next = first.headers["x-nomad-nexttoken"].clone();
    assert_eq!(next, all[1]["ModifyIndex"].to_string());
    let second = world.get(&format!("/v1/jobs/statuses?per_page=1&next_token={next}")).await;
    assert_eq!((ids(&first.json()), ids(&second.json())), (vec!["c".to_owned()], vec!["b".to_owned()]));
    let index = |answer: &Answer| answer.headers["x-nomad-index"].parse::<u64>().unwrap();
    assert!(index(&second) < index(&first), "what is on another page is no news");

    let named = json!({"jobs": [{"id": "c", "namespace": "other"}, {"id": "a"}, {"id": "none"}]});
    let named = world.put("/v1/jobs/statuses", named).await;
    assert_eq!(ids(&named), ["c", "a"]);
    assert_eq!((&named[0]["Namespace"], &named[0]["IsPack"]), (&json!("other"), &json!(true)));
    assert_eq!((&named[0]["Allocs"], &named[0]["ChildStatuses"]), (&Value::Null, &json!([])));
    for (body, expected) in [
        (json!({"jobs": []}), "no jobs in request"),
        (json!({"jobs": "a"}), "error decoding request: Jobs must be a list of objects"),
        (json!([]), "error decoding request: the request's body is not a JSON object"),
    ] {
        let refused = world.ask("PUT", "/v1/jobs/statuses", Some(&body)).await;
        assert_eq!((refused.status, refused.text().as_str()), (400, expected));
    }
}

#[tokio::test]
async fn instances_of_a_service_come_in_the_order_in_which_they_are_chosen() {
    let world = World::new().await;
    let alloc = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let service = |number: usize| ServiceRegistration {
        id: format!("_nomad-task-{alloc}-group-g-web-{number}"),
        service_name: "web".to_owned(),
        namespace: "default".to_owned(),
        job_id: "web".to_owned(),
        alloc_id: alloc.clone(),
        ..ServiceRegistration::default()
    };
    world.fake.register((0..8).map(service).collect(), &[]);
    let mut index = "0".to_owned();
    while index == "0" || world.json("/v1/service/web").await == json!([]) {
        index.clone_from(&world.get(&format!("/v1/service/web?index={index}&wait=2s")).await.headers["x-nomad-index"]);
    }
    let all = world.json("/v1/service/web?choose=8%7Ckey").await;
    assert_eq!(all.as_array().unwrap().len(), 8);
    for count in 1..8 {
        let some = world.json(&format!("/v1/service/web?choose={count}%7Ckey")).await;
        assert_eq!(some.as_array().unwrap()[..], all.as_array().unwrap()[..count]);
    }
}

#[tokio::test]
async fn evaluations_are_deleted_while_none_is_decided() {
    let world = World::new().await;
    let eval = world.run("web").await[0]["EvalID"].as_str().unwrap().to_owned();
    world.deployed("web").await;
    let none = "99999999-2222-3333-4444-555555555555";
    let delete = async |body: Value| {
        let answer = world.ask("DELETE", "/v1/evaluations", Some(&body)).await;
        (answer.status, answer.text())
    };
    let told = |status: u16, text: &str| (status, text.to_owned());
    assert_eq!(delete(json!({})).await, told(400, "evals must be deleted by either ID or filter"));
    let both = json!({"EvalIDs": [eval], "Filter": "ID != \"\""});
    assert_eq!(delete(both).await, told(400, "evals cannot be deleted by both ID and filter"));
    let runs = "eval broker is enabled; eval broker must be paused to delete evals";
    assert_eq!(delete(json!({"EvalIDs": [eval]})).await, told(500, runs));
    world.put("/v1/operator/scheduler/configuration", json!({"PauseEvalBroker": true})).await;
    assert_eq!(delete(json!({"EvalIDs": [none]})).await, told(500, "eval not found"));
    let unsafe_one = format!("eval {eval} is not safe to delete");
    assert_eq!(delete(json!({"EvalIDs": [eval]})).await, told(500, &unsafe_one));
    let counted = async |filter: String| {
        let answer = world.ask("DELETE", "/v1/evaluations", Some(&json!({"Filter": filter}))).await;
        answer.json()["Count"].clone()
    };
    assert_eq!(counted(format!("ID == \"{eval}\"")).await, 0);
    // Nothing of a stopped job is needed; its last evaluation is not decided any more.
    let last = world.ask("DELETE", "/v1/job/web", None).await.json()["EvalID"].as_str().unwrap().to_owned();
    assert_eq!(counted(format!("ID == \"{eval}\" or ID == \"{last}\"")).await, 2);
    counted("JobID == \"web\"".to_owned()).await;
    assert_eq!(world.json("/v1/job/web/evaluations").await, json!([]));
    world.put("/v1/operator/scheduler/configuration", json!({"PauseEvalBroker": false})).await;
    assert_eq!(world.json("/v1/job/web").await["Stop"], true);
}

#[tokio::test]
async fn the_ports_of_a_tasks_own_network_are_shown_with_the_task() {
    let world = World::new().await;
    let mut web = job("web");
    web["TaskGroups"][0]["Tasks"][0]["Resources"]["Networks"] = json!([{"DynamicPorts": [{"Label": "own"}]}]);
    world.put("/v1/jobs", json!({"Job": web})).await;
    world.deployed("web").await;
    let id = world.json("/v1/job/web/allocations").await[0]["ID"].as_str().unwrap().to_owned();
    let alloc = world.json(&format!("/v1/allocation/{id}")).await;
    let has = &alloc["AllocatedResources"];
    let own = &has["Tasks"]["t"]["Networks"][0];
    assert!(own["DynamicPorts"][0]["Value"].as_u64() > Some(0) && own["IP"].is_string(), "{own}");
    assert_eq!(alloc["TaskResources"]["t"]["Networks"][0], *own);
    let labels =
        |ports: &Value| -> Vec<Value> { ports.as_array().unwrap().iter().map(|port| port["Label"].clone()).collect() };
    assert_eq!(labels(&has["Shared"]["Ports"]), ["http"]);
    assert_eq!(labels(&has["Shared"]["Networks"][0]["DynamicPorts"]), ["http"]);
}

#[tokio::test]
async fn versions_are_compared_only_where_differences_are_asked_for() {
    let world = World::new().await;
    world.run("web").await;
    let path = |query: &str| format!("/v1/job/web/versions?{query}");
    assert_eq!(world.json(&path("diffs=true")).await["Diffs"], Value::Null);
    let mut web = job("web");
    web["Meta"]["k"] = json!("w");
    world.put("/v1/jobs", json!({"Job": web})).await;
    for (query, status, expected) in [
        ("diffs=true", 200, "1"),
        ("diffs=true&diff_version=0", 200, "2"),
        ("diff_version=0", 200, ""),
        ("diff_version=7&diff_tag=x", 200, ""),
        ("diffs=true&diff_version=7", 500, "version 7 not found"),
        ("diffs=true&diff_version=0&diff_tag=x", 500, "tag \"x\" not found"),
    ] {
        let answer = world.get(&path(query)).await;
        let found = if answer.status == 200 {
            answer.json()["Diffs"].as_array().map_or(String::new(), |diffs| diffs.len().to_string())
        } else {
            answer.text()
        };
        assert_eq!((answer.status, found.as_str()), (status, expected), "{query}");
    }
}

#[tokio::test]
async fn a_job_shows_the_id_of_its_scaling_policy() {
    let world = World::new().await;
    let mut web = job("web");
    web["TaskGroups"][0]["Scaling"] = json!({"ID": "mine", "Min": 1, "Max": 3});
    world.put("/v1/jobs", json!({"Job": web})).await;
    let id = world.json("/v1/scaling/policies").await[0]["ID"].as_str().unwrap().to_owned();
    let shown = world.json("/v1/job/web").await["TaskGroups"][0]["Scaling"]["ID"].clone();
    assert_eq!((shown.as_str(), id.len()), (Some(id.as_str()), 36));
    assert_eq!(world.json(&format!("/v1/scaling/policy/{id}")).await["Target"]["Job"], "web");
    // Who sends it back has not changed the job.
    web["TaskGroups"][0]["Scaling"]["ID"] = id.into();
    world.put("/v1/jobs", json!({"Job": web})).await;
    assert_eq!(world.json("/v1/job/web").await["Version"], 0);
}

#[tokio::test]
async fn a_fuzzy_search_finds_names_the_best_first_and_ids_by_their_beginnings() {
    let world = World::new().await;
    let eval = world.run("webs").await[0]["EvalID"].as_str().unwrap().to_owned();
    for id in ["my-web", "web"] {
        let mut job = job(id);
        job["TaskGroups"][0]["Scaling"] = json!({"Min": 1, "Max": 3});
        world.put("/v1/jobs", json!({"Job": job})).await;
    }
    world.put("/v1/var/web/x", json!({"Items": {"k": "v"}})).await;
    let search = async |text: &str, context: &str| {
        let found = world.put("/v1/search/fuzzy", json!({"Text": text, "Context": context})).await;
        found["Matches"].clone()
    };
    let found = search("WEB", "all").await;
    let ids: Vec<_> = found["jobs"].as_array().unwrap().iter().map(|found| found["ID"].as_str().unwrap()).collect();
    assert_eq!(ids, ["web", "webs", "my-web"]);
    assert_eq!(found["vars"], json!([{"ID": "web/x", "Scope": ["default", "web/x"]}]));
    assert_eq!((found.get("images"), found.get("namespaces"), &found["evals"]), (None, None, &json!([])));
    assert_eq!(search("true", "jobs").await["commands"][0]["Scope"].as_array().unwrap().len(), 4);
    assert_eq!(search("fault", "namespaces").await, json!({"namespaces": [{"ID": "default"}]}));
    assert_eq!(search("al", "node_pools").await["node_pools"][0], json!({"ID": "all", "Scope": ["all"]}));
    assert_eq!(search(&eval[..8], "evals").await, json!({"evals": [{"ID": eval}]}));
    let odd = world.ask("PUT", "/v1/search/fuzzy", Some(&json!({"Text": "web", "Context": "odd"}))).await;
    assert!(odd.status == 500 && odd.text().starts_with("context must be one of"), "{}", odd.text());
    let policy = world.json("/v1/scaling/policies?job=web").await[0]["ID"].as_str().unwrap().to_owned();
    let found = world.put("/v1/search", json!({"Prefix": policy, "Context": "scaling_policy"})).await;
    assert_eq!(found["Matches"], json!({"scaling_policy": [policy]}));
}

#[tokio::test]
async fn pages_go_on_behind_names_that_are_not_ascii() {
    let world = World::new().await;
    for id in ["\u{e9}1", "\u{e9}2"] {
        world.put("/v1/jobs", json!({"Job": job(id)})).await;
    }
    assert!(world.get("/v1/jobs?per_page=1").await.headers.contains_key("x-nomad-nexttoken"));
    let next = world.json("/v1/jobs?per_page=1&next_token=default.%C3%A92").await;
    assert_eq!(next[0]["ID"], "\u{e9}2");
}

#[tokio::test]
async fn a_query_waits_for_what_it_asks_about() {
    let world = World::new().await;
    let allocs = world.run("web").await;
    // Its health is known by then, so that nothing but its end changes it.
    world.deployed("web").await;
    let path = format!("/v1/allocation/{}", allocs[0]["ID"].as_str().unwrap());
    let index = world.get(&path).await.headers["x-nomad-index"].clone();
    let path = format!("{path}?index={index}&wait=60s");
    let waiting = world.get(&path);
    let end = async {
        // Another record changes first, which does not end the wait.
        world.put("/v1/var/a", json!({"Items": {"k": "v"}})).await;
        world.fake.end(allocs[0]["ID"].as_str().unwrap(), false).await;
    };
    let (answer, ()) = tokio::join!(waiting, end);
    assert_eq!(answer.json()["ClientStatus"], "complete");
    let began = std::time::Instant::now();
    let same = world.get("/v1/namespaces?index=100000&wait=100ms").await;
    assert!(same.status == 200 && began.elapsed() >= Duration::from_millis(100));
}

#[tokio::test]
async fn answers_are_packed_and_indented_when_asked() {
    let world = World::new().await;
    world.run("web").await;
    // Then its version is stable, which the answers say.
    world.deployed("web").await;
    let plain = world.json("/v1/job/web").await;
    let pretty = world.get("/v1/job/web?pretty").await;
    assert!(pretty.text().starts_with("{\n    \"") && pretty.json() == plain);
    let stream = UnixStream::connect(world.socket()).await.unwrap();
    let packed = exchange(stream, &request("GET", "/v1/job/web", &[("Accept-Encoding", "gzip")], "")).await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(packed.body.as_slice()), &mut text).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), plain);
}

#[tokio::test]
async fn what_is_answered_of_a_job_can_be_registered_again() {
    let world = World::new().await;
    world.run("web").await;
    let job = world.json("/v1/job/web").await;
    let again = world.put("/v1/jobs", json!({"job": job})).await;
    assert_eq!(again["JobModifyIndex"], job["JobModifyIndex"]);
    assert_eq!(world.json("/v1/job/web").await["Version"], job["Version"]);
    let conflict =
        world.ask("PUT", "/v1/jobs", Some(&json!({"Job": job, "EnforceIndex": true, "JobModifyIndex": 1}))).await;
    assert!(
        conflict.status == 500 && conflict.text().contains("Enforcing job modify index 1: "),
        "{}",
        conflict.text()
    );
    let file =
        |meta: &str| format!("job \"x\" {{\n{meta}\n group \"g\" {{\n task \"t\" {{\n driver = \"exec\"\n}}\n}}\n}}\n");
    let parsed = world.put("/v1/jobs/parse", json!({"JobHCL": file(""), "Canonicalize": true})).await;
    assert_eq!((parsed["ID"].as_str(), parsed["TaskGroups"][0]["Count"].as_i64()), (Some("x"), Some(1)));
    let outside = json!({"JobHCL": file("meta {\n a = file(\"/etc/passwd\")\n}")});
    let outside = world.ask("PUT", "/v1/jobs/parse", Some(&outside)).await;
    assert!(
        outside.status == 400 && outside.text().contains("filesystem functions cannot be used here"),
        "{}",
        outside.text()
    );
    let values = json!({"JobHCL": file("variable_is_not_known = 1"), "Variables": "x = file(\"/etc/passwd\")"});
    let values = world.ask("PUT", "/v1/jobs/parse", Some(&values)).await;
    assert!(values.status == 400 && !values.text().contains("root:"), "{}", values.text());
}

#[tokio::test]
async fn the_namespace_of_a_query_goes_before_that_of_the_body_and_that_of_the_job() {
    let world = World::new().await;
    for name in ["query", "body", "own"] {
        world.put("/v1/namespace", json!({"Name": name})).await;
    }
    let with = |key: &str, value: &str| {
        let mut job = job("web");
        job[key] = value.into();
        job
    };
    for (path, body, own, expected) in [
        ("/v1/jobs?namespace=query", "body", "own", "query"),
        ("/v1/jobs", "body", "own", "body"),
        ("/v1/jobs", "", "own", "own"),
        ("/v1/jobs", "", "", "default"),
    ] {
        world.put(path, json!({"Job": with("Namespace", own), "Namespace": body})).await;
        let job = world.json(&format!("/v1/job/web?namespace={expected}")).await;
        assert_eq!((&job["Namespace"], &job["Region"]), (&json!(expected), &json!("global")));
    }
    for body in [json!({"Job": with("Region", "far")}), json!({"Job": job("web"), "Region": "far"})] {
        let refused = world.ask("PUT", "/v1/jobs", Some(&body)).await;
        assert_eq!((refused.status, refused.text().as_str()), (500, "No path to region"));
    }
}

#[tokio::test]
async fn a_scaling_that_comes_too_late_or_is_too_large_is_refused() {
    let world = World::new().await;
    world.run("web").await;
    world.deployed("web").await;
    let index = world.json("/v1/job/web").await["JobModifyIndex"].as_u64().unwrap();
    let scale = |count: i64, index: u64| json!({"Count": count, "Target": {"Group": "g"}, "JobModifyIndex": index});
    let late = world.ask("PUT", "/v1/job/web/scale", Some(&scale(2, index + 7))).await;
    let why = "job exists with conflicting job modify index";
    assert_eq!((late.status, late.text()), (500, format!("Enforcing job modify index {}: {why}: {index}", index + 7)));
    world.put("/v1/job/web/scale", scale(2, index)).await;
    let mut system = job("sys");
    system["Type"] = "system".into();
    world.put("/v1/jobs", json!({"Job": system})).await;
    let large = world.ask("PUT", "/v1/job/sys/scale", Some(&scale(2, 0))).await;
    let why = "jobs of type \"system\" can only be scaled between 0 and 1";
    assert_eq!((large.status, large.text().as_str()), (400, why));
}

#[tokio::test]
async fn a_job_is_dispatched_with_a_body_as_its_payload() {
    let world = World::new().await;
    let mut form = job("form");
    (form["Type"], form["TaskGroups"][0]["Update"]) = ("batch".into(), Value::Null);
    form["ParameterizedJob"] = json!({"Payload": "required"});
    world.put("/v1/jobs", json!({"Job": form})).await;
    let token = world.token(Role::Manage).await;
    let path = "/v1/job/form/dispatch/payload?idempotency_token=once";
    let made = world.over_tcp("PUT", path, &[("X-Nomad-Token", &token)], "{not JSON").await;
    assert_eq!(made.status, 200, "{}", made.text());
    let id = made.json()["DispatchedJobID"].as_str().unwrap().replace('/', "%2F");
    let child = world.json(&format!("/v1/job/{id}")).await;
    assert_eq!((&child["Payload"], &child["DispatchIdempotencyToken"]), (&json!("e25vdCBKU09O"), &json!("once")));
    let odd = json!({"Payload": "eA==", "Priority": -1});
    let odd = world.ask("PUT", "/v1/job/form/dispatch", Some(&odd)).await;
    assert_eq!((odd.status, odd.text().as_str()), (500, "dispatch job priority must be between [1, 100]"));
}

#[tokio::test]
async fn metadata_is_laid_over_what_is_configured_and_kept() {
    let world = World::new().await;
    let change = |meta: Value| json!({"NodeID": "", "Meta": meta});
    let first = world.put("/v1/client/metadata", change(json!({"a": "b", "rack": "r1", "gone": null}))).await;
    assert_eq!(first, json!({"Meta": {"a": "b", "rack": "r1"}, "Dynamic": {"a": "b", "rack": "r1"}, "Static": {}}));
    assert_eq!(world.json("/v1/client/metadata").await, first);
    let node = world.json("/v1/nodes").await[0]["ID"].as_str().unwrap().to_owned();
    assert_eq!(world.json(&format!("/v1/client/metadata?node_id={node}")).await, first);
    world.json(&format!("/v1/client/stats?node_id={node}")).await;
    assert_eq!(world.get(&format!("/v1/client/gc?node_id={}", &node[..8])).await.status, 200);
    assert_eq!(world.json(&format!("/v1/node/{node}")).await["Meta"], first["Meta"]);
    assert_eq!(world.get("/v1/client/metadata?node_id=x").await.status, 404);
    // A job that waits for it is placed.
    let mut waits = job("waits");
    waits["Constraints"] = json!([{"LTarget": "${meta.rack}", "RTarget": "r2", "Operand": "="}]);
    world.put("/v1/jobs", json!({"Job": waits})).await;
    assert_eq!(world.json("/v1/job/waits/allocations").await, json!([]));
    world.put("/v1/client/metadata", change(json!({"rack": "r2", "a": null}))).await;
    world.deployed("waits").await;
    for (bad, status) in [
        (json!({}), 500),
        (json!({"": "x"}), 500),
        (json!({"k": 1}), 400),
        (json!({"k": "x".repeat(70_000)}), 500),
        (Value::Null, 400),
    ] {
        assert_eq!(world.ask("PUT", "/v1/client/metadata", Some(&change(bad))).await.status, status);
    }
    assert_eq!(world.json("/v1/client/metadata").await["Meta"], json!({"rack": "r2"}));
}

/// The mission's B8: the API takes `IOPS`, which a job keeps and which has no effect, also when it changes.
#[tokio::test]
async fn b8_iops_is_accepted_and_kept_and_has_no_effect() {
    let world = World::new().await;
    for (version, iops) in [json!(10), json!(20), Value::Null].into_iter().enumerate() {
        let mut job = job("iops");
        job["TaskGroups"][0]["Tasks"][0]["Resources"]["IOPS"] = iops.clone();
        world.put("/v1/jobs", json!({"Job": job})).await;
        world.deployed("iops").await;
        let job = world.json("/v1/job/iops").await;
        assert_eq!(job["Version"], version, "{job:#}");
        let kept = &job["TaskGroups"][0]["Tasks"][0]["Resources"]["IOPS"];
        assert_eq!(kept.as_u64().unwrap_or(0), iops.as_u64().unwrap_or(0));
        let allocs = world.json("/v1/job/iops/allocations").await;
        assert_eq!(allocs.as_array().unwrap().len(), 1, "it is the same allocation: {allocs:#}");
        assert_eq!(allocs[0]["ClientStatus"], "running");
    }
}

#[tokio::test]
async fn what_was_decided_of_a_group_stands_in_its_evaluation_and_its_allocation() {
    let world = World::new().await;
    let alloc = world.run("web").await[0].clone();
    let id = |key: &str| alloc[key].as_str().unwrap().to_owned();
    let eval = world.json(&format!("/v1/evaluation/{}", id("EvalID"))).await;
    let annotations = &eval["PlanAnnotations"];
    assert_eq!(annotations["DesiredTGUpdates"]["g"]["Place"], 1, "{eval}");
    assert_eq!(annotations["PreemptedAllocs"], Value::Null);
    let metrics = world.json(&format!("/v1/allocation/{}", id("ID"))).await["Metrics"].clone();
    let scores = &metrics["ScoreMetaData"][0];
    assert_eq!(scores["NodeID"], alloc["NodeID"]);
    assert_eq!(scores["Scores"]["binpack"], scores["NormScore"]);
    assert_eq!(scores["Scores"].as_object().unwrap().len(), 4);
    assert!(scores["NormScore"].as_f64().is_some_and(|score| score > 0.0 && score < 0.01), "{scores}");
    for key in ["ConstraintFiltered", "DimensionExhausted", "ResourcesExhausted"] {
        assert_eq!(metrics.get(key), Some(&Value::Null), "{key}");
    }
    let mut huge = job("huge");
    huge["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = json!(99_999_999);
    let registered = world.put("/v1/jobs", json!({"Job": huge})).await;
    let path = format!("/v1/evaluation/{}", registered["EvalID"].as_str().unwrap());
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let eval = loop {
        let answer = world.get(&path).await;
        let eval = answer.json();
        if eval["Status"] == "complete" {
            break eval;
        }
        assert!(tokio::time::Instant::now() < deadline, "{eval}");
        world.get(&format!("{path}?index={}&wait=2s", answer.headers["x-nomad-index"])).await;
    };
    let failed = &eval["FailedTGAllocs"]["g"];
    assert_eq!(
        (&failed["ResourcesExhausted"]["t"]["MemoryMB"], &failed["DimensionExhausted"]["memory"]),
        (&json!(99_999_999), &json!(1))
    );
    assert_eq!(failed["ConstraintFiltered"], Value::Null);
    let blocked = world.json(&format!("/v1/evaluation/{}", eval["BlockedEval"].as_str().unwrap())).await;
    assert_eq!(blocked.get("PlanAnnotations"), None, "nothing of it has been decided yet");
}

#[tokio::test]
async fn what_is_asked_and_kept_is_said_as_nomad_says_it() {
    let world = World::new().await;
    let license = world.get("/v1/operator/license").await;
    assert_eq!((license.status, license.text().as_str()), (204, ""));
    let refused = world.ask("PUT", "/v1/var/nomad/nosuch/x", Some(&json!({"Items": {"k": "v"}}))).await;
    let why = "RPC Error:: 400,only paths at \"nomad/jobs\" or \"nomad/job-templates\" and below are valid paths under the top-level \"nomad\" directory";
    assert_eq!((refused.status, refused.text().as_str()), (400, why));
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    world.put(&format!("/v1/allocation/{id}/stop"), json!({})).await;
    let wanted = world.json(&format!("/v1/allocation/{id}")).await["DesiredTransition"].clone();
    assert_eq!(
        (&wanted["Migrate"], &wanted["NoShutdownDelay"], &wanted["Reschedule"]),
        (&json!(true), &json!(false), &json!(false))
    );
    let node = world.json("/v1/nodes").await[0].clone();
    assert!(node["Drivers"]["raw_exec"]["UpdateTime"].as_str().is_some_and(|time| time > "2020"), "{node}");
    // Who starts a job again that was stopped asks for what it was made from.
    let with_text = json!({"Job": job("told"), "Submission": {"Source": "the text", "Format": "hcl2"}});
    world.put("/v1/jobs", with_text).await;
    world.ask("DELETE", "/v1/job/told", None).await;
    let stopped = world.json("/v1/job/told").await["Version"].clone();
    assert_eq!(stopped, 1);
    assert_eq!(world.json("/v1/job/told/submission?version=1").await["Source"], "the text");
}

#[tokio::test]
async fn metrics_name_allocations_and_what_only_grows_is_a_counter() {
    let world = World::new().await;
    let id = world.run("web").await[0]["ID"].as_str().unwrap().to_owned();
    let told = world.json("/v1/metrics").await;
    let of = |list: &str, name: &str| -> Value {
        let found = told[list].as_array().unwrap().iter().find(|one| one["Name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {told}")).clone()
    };
    let memory = of("Gauges", "nomad.client.allocs.memory.allocated");
    assert_eq!((&memory["Labels"]["alloc_id"], &memory["Labels"]["task"]), (&json!(id), &json!("t")));
    assert_eq!(memory["Value"].as_f64(), Some(f64::from(32 << 20)));
    assert_eq!(of("Counters", "nomad.client.allocs.restart")["Count"].as_u64(), Some(0));
    assert_eq!(of("Gauges", "nomad.client.unallocated.cpu")["Labels"]["node_status"], "ready");
    let text = world.get("/v1/metrics?format=prometheus").await.text();
    assert!(text.contains("# TYPE nomad_client_allocs_restart counter\n"), "{text}");
    assert!(text.contains("# TYPE nomad_client_allocs_cpu_allocated gauge\n"), "{text}");
}

#[tokio::test]
async fn a_configuration_of_the_scheduler_replaces_the_one_before() {
    let world = World::new().await;
    let path = "/v1/operator/scheduler/configuration";
    let config = async || world.json(path).await["SchedulerConfig"].clone();
    assert_eq!(config().await["MemoryOversubscriptionEnabled"], true, "unless somebody says so");
    world.put(path, json!({"RejectJobRegistration": true, "PreemptionConfig": {"BatchSchedulerEnabled": true}})).await;
    let now = config().await;
    let seen = (&now["MemoryOversubscriptionEnabled"], &now["RejectJobRegistration"], &now["PreemptionConfig"]);
    let preemption = json!({
        "SystemSchedulerEnabled": false, "SysBatchSchedulerEnabled": false, "BatchSchedulerEnabled": true,
        "ServiceSchedulerEnabled": false,
    });
    assert_eq!(seen, (&json!(false), &json!(true), &preemption));
    let late = world.put(&format!("{path}?cas=1"), json!({"PauseEvalBroker": true})).await;
    assert_eq!((&late["Updated"], config().await), (&json!(false), now));
}

#[tokio::test]
async fn variables_are_written_on_condition() {
    let world = World::new().await;
    let first = world.put("/v1/var/a/b?cas=0", json!({"Items": {"k": "v"}})).await;
    let taken = world.ask("PUT", "/v1/var/a/b?cas=0", Some(&json!({"Items": {"k": "w"}}))).await;
    assert_eq!((taken.status, taken.json()["ModifyIndex"].clone()), (409, first["ModifyIndex"].clone()));
    assert_eq!(world.json("/v1/var/a/b").await["Items"], json!({"k": "v"}));
    let list = world.json("/v1/vars?prefix=a").await;
    assert_eq!((list[0]["Path"].as_str(), list[0].get("Items")), (Some("a/b"), None));
    let locked = world.put("/v1/var/a/b?lock-acquire", json!({"Lock": {"TTL": "15s"}, "Items": {"k": "x"}})).await;
    let id = locked["Lock"]["ID"].as_str().unwrap().to_owned();
    assert_eq!(world.ask("PUT", "/v1/var/a/b", Some(&json!({"Items": {"k": "y"}}))).await.status, 409);
    let of_lock = json!({"Lock": {"ID": id}});
    for (query, body, text) in [
        ("lock-renew&lock-release", of_lock.clone(), "multiple lock operations"),
        ("lock-release&cas=1", of_lock.clone(), "CAS can't be used with lock operations"),
        ("lock-release", json!({}), "RPC Error:: 400,missing lock information"),
        (
            "lock-release",
            json!({"Lock": {"ID": id}, "Items": {"k": "y"}}),
            "RPC Error:: 400,lock release operation doesn't take variable items",
        ),
        (
            "",
            json!({"Lock": {"TTL": "15s"}, "Items": {"k": "y"}}),
            "RPC Error:: 400,RPC Error:: 400,variable should not contain lock definition",
        ),
        ("namespace=*", json!({"Items": {"k": "y"}}), "RPC Error:: 400,can not target wildcard (\"*\")namespace"),
    ] {
        let refused = world.ask("PUT", &format!("/v1/var/a/b?{query}"), Some(&body)).await;
        assert_eq!((refused.status, refused.text().as_str()), (400, text), "{query}");
    }
    assert_eq!(world.put("/v1/var/a/b?lock-release", of_lock).await.get("Items"), None);
    world.put("/v1/namespace", json!({"Name": "other"})).await;
    let elsewhere = json!({"Namespace": "other", "Path": "c", "Items": {"k": "y"}});
    let elsewhere = world.put("/v1/var/a/b", elsewhere).await;
    assert_eq!((&elsewhere["Namespace"], &elsewhere["Path"]), (&json!("other"), &json!("a/b")));
    assert_eq!(world.json("/v1/var/a/b").await["Items"], json!({"k": "x"}));
    let gone = world.ask("DELETE", "/v1/var/a/b", None).await;
    assert_eq!((gone.status, gone.text().as_str()), (204, ""));
    assert_eq!(world.get("/v1/var/a/b").await.status, 404);
}
