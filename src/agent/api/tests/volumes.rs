//! Dynamic host volumes over the API. (F1)

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

fn spec(name: &str, more: &Value) -> Value {
    let mut volume = json!({ "Name": name, "PluginID": "mkdir" });
    volume.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "Volume": volume })
}

impl World {
    async fn create(&self, name: &str, more: Value) -> Value {
        self.put("/v1/volume/host/create", spec(name, &more)).await["Volume"].take()
    }

    /// Waits until an answer is so.
    async fn until(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let separator = if path.contains('?') { '&' } else { '?' };
        loop {
            let answer = self.get(path).await;
            if answer.status == 200 && is(&answer.json()) {
                return answer.json();
            }
            assert!(tokio::time::Instant::now() < deadline, "{path}: {}", answer.text());
            let index = &answer.headers["x-nomad-index"];
            self.get(&format!("{path}{separator}index={index}&wait=2s")).await;
        }
    }

    async fn refused(&self, method: &str, path: &str, body: Option<&Value>) -> String {
        let answer = self.ask(method, path, body).await;
        assert_ne!(answer.status, 200, "{method} {path}: {}", answer.text());
        answer.text()
    }
}

/// A job whose one group has this volume.
fn user(id: &str, volume: &Value) -> Value {
    let mut job = job(id);
    job["TaskGroups"][0]["Volumes"] = json!({ "v": volume });
    job
}

#[tokio::test]
async fn f1_a_volume_is_created_shown_and_deleted() {
    let world = World::new().await;
    let more = json!({
        "Parameters": { "mode": "0750" }, "RequestedCapacityMinBytes": 1, "RequestedCapacityMaxBytes": 2,
        "Constraints": [{ "LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "=" }],
    });
    let made = world.create("data", more).await;
    let id = made["ID"].as_str().unwrap();
    let path = PathBuf::from(made["HostPath"].as_str().unwrap());
    assert_eq!(path, world.fake.dir.path().canonicalize().unwrap().join("host_volumes").join(id));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(
        (&made["State"], &made["Namespace"], &made["NodePool"]),
        (&json!("ready"), &json!("default"), &json!("default"))
    );
    let usual = json!([{ "AttachmentMode": "file-system", "AccessMode": "single-node-writer" }]);
    assert_eq!((&made["RequestedCapabilities"], &made["Allocations"]), (&usual, &json!([])));
    // As the types of Nomad's api package have them.
    let stub = [
        "CapacityBytes",
        "CreateIndex",
        "CreateTime",
        "ID",
        "ModifyIndex",
        "ModifyTime",
        "Name",
        "Namespace",
        "NodeID",
        "NodePool",
        "PluginID",
        "State",
    ];
    let whole = [
        "Allocations",
        "CapacityBytes",
        "Constraints",
        "CreateIndex",
        "CreateTime",
        "HostPath",
        "ID",
        "ModifyIndex",
        "ModifyTime",
        "Name",
        "Namespace",
        "NodeID",
        "NodePool",
        "Parameters",
        "PluginID",
        "RequestedCapabilities",
        "RequestedCapacityMaxBytes",
        "RequestedCapacityMinBytes",
        "State",
    ];
    let shown = world.json(&format!("/v1/volume/host/{id}")).await;
    assert_eq!(keys(&shown), whole);
    assert_eq!(shown, made);
    let list = world.json("/v1/volumes?type=host").await;
    assert_eq!((list.as_array().unwrap().len(), keys(&list[0])), (1, stub.to_vec()));
    assert_eq!(world.json("/v1/volumes?type=csi").await, json!([]));
    let node = made["NodeID"].as_str().unwrap();
    let seen = world.json(&format!("/v1/node/{node}")).await;
    assert_eq!(seen["HostVolumes"]["data"], json!({ "ID": id, "Name": "data", "Path": path, "ReadOnly": false }));
    let found = world.put("/v1/search", json!({ "Prefix": &id[..8], "Context": "host_volumes" })).await;
    assert_eq!(found["Matches"]["host_volumes"], json!([id]));

    // What waits for a change of it gets the change.
    let index = made["ModifyIndex"].as_u64().unwrap();
    let waiting = format!("/v1/volume/host/{id}?index={index}&wait=60s");
    let (changed, updated) =
        tokio::join!(world.get(&waiting), world.create("data", json!({ "ID": id, "RequestedCapacityMaxBytes": 3 })));
    assert_eq!((&updated["ID"], &updated["RequestedCapacityMaxBytes"]), (&made["ID"], &json!(3)));
    assert_eq!((&changed.json()["RequestedCapacityMaxBytes"], &updated["HostPath"]), (&json!(3), &made["HostPath"]));

    assert_eq!(world.ask("DELETE", &format!("/v1/volume/host/{id}/delete"), None).await.status, 200);
    assert!(!path.exists());
    assert_eq!(world.get(&format!("/v1/volume/host/{id}")).await.status, 404);
    assert_eq!(world.json(&format!("/v1/node/{node}")).await["HostVolumes"], json!({}));
    let again = world.refused("DELETE", &format!("/v1/volume/host/{id}"), None).await;
    assert_eq!(again, format!("no such volume: {id}"));
}

#[tokio::test]
async fn f1_volumes_are_listed_by_namespace_prefix_and_page() {
    let world = World::new().await;
    world.put("/v1/namespace/other", json!({ "Name": "other" })).await;
    let first = world.create("alpha", json!({})).await;
    let second = world.create("beta", json!({ "Namespace": "other" })).await;
    world.create("alps", json!({})).await;
    let names = |list: Value| {
        let mut names: Vec<String> =
            list.as_array().unwrap().iter().map(|one| one["Name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    for (query, expected) in [
        ("", vec!["alpha", "alps"]),
        ("&namespace=other", vec!["beta"]),
        ("&namespace=*", vec!["alpha", "alps", "beta"]),
        ("&namespace=*&prefix=al", vec!["alpha", "alps"]),
        ("&prefix=beta", vec![]),
        ("&node_pool=gpu", vec![]),
        ("&node_id=x", vec![]),
        ("&namespace=*&filter=Name%20==%20\"beta\"", vec!["beta"]),
    ] {
        let query = query.replace('"', "%22");
        assert_eq!(names(world.json(&format!("/v1/volumes?type=host{query}")).await), expected, "{query}");
    }
    let id = first["ID"].as_str().unwrap();
    assert_eq!(names(world.json(&format!("/v1/volumes?type=host&prefix={id}")).await), ["alpha"]);
    let page = world.get("/v1/volumes?type=host&namespace=*&per_page=2").await;
    let next = &page.headers["x-nomad-nexttoken"];
    assert_eq!(
        (page.json().as_array().unwrap().len(), next.as_str()),
        (2, &*format!("other.{}", second["ID"].as_str().unwrap()))
    );
    let rest = world.json(&format!("/v1/volumes?type=host&namespace=*&per_page=2&next_token={next}")).await;
    assert_eq!(names(rest), ["beta"]);
    // Of another namespace it is not there.
    let other = second["ID"].as_str().unwrap();
    assert_eq!(world.get(&format!("/v1/volume/host/{other}")).await.status, 404);
    assert_eq!(world.json(&format!("/v1/volume/host/{other}?namespace=other")).await["Name"], "beta");
    assert!(world.refused("DELETE", &format!("/v1/volume/host/{other}"), None).await.contains("no such volume"));
    assert!(world.refused("DELETE", "/v1/namespace/other", None).await.contains("has the volume \"beta\""));
}

#[tokio::test]
async fn f1_what_is_wrong_with_a_volume_is_said_and_nothing_is_left() {
    let world = World::new().await;
    let made = world.create("data", json!({})).await;
    let id = made["ID"].as_str().unwrap();
    let here = world.fake.dir.path().to_str().unwrap();
    let node = made["NodeID"].as_str().unwrap();
    for (path, volume, expected) in [
        ("create", json!({}), "volume validation failed: missing name"),
        ("create", json!({ "Name": "a/b" }), "invalid name"),
        ("create", json!({ "Name": "x", "ID": "nope" }), "cannot update volume \"nope\": volume does not exist"),
        ("create", json!({ "Name": "x", "Namespace": "none" }), "no such namespace \"none\""),
        (
            "create",
            json!({ "Name": "x", "RequestedCapacityMinBytes": 2 }),
            "capacity_max (0) must be larger than capacity_min (2)",
        ),
        (
            "create",
            json!({ "Name": "x", "RequestedCapabilities": [{ "AccessMode": "multi-node-multi-writer", "AttachmentMode": "x" }] }),
            "invalid attachment mode: \"x\"",
        ),
        ("create", json!({ "Name": "x", "PluginID": "none" }), "it has no host volume plugin \"none\"; it has mkdir"),
        ("create", json!({ "Name": "x", "NodeID": "n" }), "node \"n\" does not exist"),
        ("create", json!({ "Name": "x", "NodePool": "gpu" }), "node pool \"gpu\" is not that of the node"),
        (
            "create",
            json!({ "Name": "x", "Constraints": [{ "LTarget": "${attr.kernel.name}", "RTarget": "plan9" }] }),
            "this node has linux",
        ),
        (
            "create",
            json!({ "Name": "x", "Constraints": [{ "Operand": "distinct_hosts", "RTarget": "true" }] }),
            "invalid constraint distinct_hosts",
        ),
        ("create", json!({ "Name": "x", "Parameters": { "size": "1" } }), "the parameter \"size\" is not known"),
        ("create", json!({ "Name": "data" }), "it has a volume of this name already"),
        ("create", json!({ "Name": "other", "ID": id }), "its name \"data\" cannot be updated"),
        ("register", json!({ "Name": "x" }), "cannot register volume: node ID is required"),
        ("register", json!({ "Name": "x", "NodeID": node }), "cannot register volume: host path is required"),
        (
            "register",
            json!({ "Name": "x", "NodeID": node, "HostPath": "/nonexistent" }),
            "cannot use the directory /nonexistent",
        ),
        ("register", json!({ "Name": "x", "NodeID": node, "HostPath": "srv" }), "absolute path"),
        (
            "register",
            json!({ "Name": "data", "NodeID": node, "HostPath": here, "ID": id }),
            "it was created by its plugin",
        ),
    ] {
        let why = world.refused("PUT", &format!("/v1/volume/host/{path}"), Some(&json!({ "Volume": volume }))).await;
        assert!(why.contains(expected), "{path} {volume}: {why}");
    }
    assert_eq!(world.refused("PUT", "/v1/volume/host/create", Some(&json!({}))).await, "missing volume definition");
    assert_eq!(world.json("/v1/volumes?type=host").await.as_array().unwrap().len(), 1);
    let left = std::fs::read_dir(world.fake.dir.path().join("host_volumes")).unwrap().count();
    assert_eq!(left, 1, "of what failed nothing is left");
    // Whoever may only submit jobs makes no volume.
    let token = world.token(Role::Submit).await;
    let headers = [("x-nomad-token", &*token), ("content-type", "application/json")];
    let body = spec("mine", &json!({})).to_string();
    assert_eq!(world.over_tcp("PUT", "/v1/volume/host/create", &headers, &body).await.status, 403);
    assert_eq!(world.over_tcp("DELETE", &format!("/v1/volume/host/{id}"), &headers, "").await.status, 403);
    assert_eq!(world.over_tcp("GET", &format!("/v1/volume/host/{id}"), &headers, "").await.status, 200);
}

#[tokio::test]
async fn f1_a_registered_directory_stays_when_its_volume_is_deleted() {
    let world = World::new().await;
    let node = world.json("/v1/nodes").await[0]["ID"].clone();
    let dir = tempfile::tempdir().unwrap();
    let given = json!({ "Volume": { "Name": "srv", "NodeID": node, "HostPath": dir.path(), "CapacityBytes": 7 } });
    let made = world.put("/v1/volume/host/register", given).await["Volume"].take();
    assert_eq!((&made["State"], &made["PluginID"], &made["CapacityBytes"]), (&json!("ready"), &json!(""), &json!(7)));
    let id = made["ID"].as_str().unwrap();
    assert_eq!(world.ask("DELETE", &format!("/v1/volume/host/{id}"), None).await.status, 200);
    assert!(dir.path().is_dir());
}

#[tokio::test]
async fn f1_a_volume_in_use_or_claimed_is_not_deleted() {
    let world = World::new().await;
    let volume = world.create("data", json!({})).await;
    let id = volume["ID"].as_str().unwrap();
    let path = format!("/v1/volume/host/{id}");
    let sticky = json!({ "Name": "v", "Type": "host", "Source": "data", "Sticky": true });
    world.put("/v1/jobs", json!({ "Job": user("web", &sticky) })).await;
    world.deployed("web").await;
    let claims = world.json("/v1/volumes/claims").await;
    assert_eq!(claims.as_array().unwrap().len(), 1);
    let claim = &claims[0];
    assert_eq!(
        (&claim["JobID"], &claim["TaskGroupName"], &claim["VolumeName"]),
        (&json!("web"), &json!("g"), &json!("data"))
    );
    assert_eq!(claim["VolumeID"], *id);
    let shown = world.json(&path).await;
    assert_eq!(shown["Allocations"][0]["ID"], claim["AllocID"]);
    let why = world.refused("DELETE", &path, None).await;
    assert!(why.contains("in use by allocations") && why.contains("web.g[0]"), "{why}");
    let update = spec("data", &json!({ "ID": id, "RequestedCapacityMaxBytes": 9 }));
    assert!(
        world.refused("PUT", "/v1/volume/host/create", Some(&update)).await.contains("cannot update a volume in use")
    );

    // The next allocation has it, and the claim is the same one.
    let mut next = user("web", &sticky);
    next["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "b" });
    world.put("/v1/jobs", json!({ "Job": next })).await;
    let asked = "/v1/volumes/claims?job_id=web&task_group=g&volume_name=data";
    let again = world.until(asked, |claims| claims[0]["AllocID"] != claim["AllocID"]).await;
    assert_eq!((&again[0]["ID"], again.as_array().unwrap().len()), (&claim["ID"], 1));
    assert_eq!(world.json("/v1/volumes/claims?job_id=other").await, json!([]));

    // Nobody has it now, but the job comes back to it: its allocation has failed, and is placed again later.
    let alloc = again[0]["AllocID"].as_str().unwrap().to_owned();
    let running = format!("/v1/allocation/{alloc}");
    world.until(&running, |alloc| alloc["ClientStatus"] == "running").await;
    world.fake.fail("web", true);
    world.fake.end(&alloc, true).await;
    world.until(&running, |alloc| alloc["ClientStatus"] == "failed").await;
    assert_eq!(world.json(&path).await["Allocations"], json!([]));
    let why = world.refused("DELETE", &path, None).await;
    assert!(why.contains("is claimed by the group \"g\" of job \"web\""), "{why}");
    let claim = claim["ID"].as_str().unwrap();
    assert_eq!(world.ask("DELETE", &format!("/v1/volumes/claim/{claim}"), None).await.status, 200);
    assert!(world.refused("DELETE", &format!("/v1/volumes/claim/{claim}"), None).await.contains("not found"));
    assert_eq!(world.ask("DELETE", &path, None).await.status, 200);
}
