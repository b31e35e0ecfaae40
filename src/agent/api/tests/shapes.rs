//! The keys and types of answers against those of a real agent (1.11.3), which `scripts/shapes` recorded. Ours may have more keys,
//! never less, and no other types.
//!
//! In the record `"key?"` is not in every answer, `"*"` is any key of a map, `{"|": [...]}` is one of several.

use super::*;

/// What of a real agent is not here, with the reason.
const NOT_OURS: &[(&str, &str)] = &[
    ("/v1/agent/self: .config", "the configuration is ours; what clients read of it is checked by name"),
    ("/v1/agent/self: .stats", "the numbers of raft and serf; what clients read of it is checked by name"),
    ("/v1/agent/self: .member", "Serf's encoding of the tags differs by version"),
    ("/v1/metrics: ", "which numbers there are is ours"),
];

/// A job with what has another type where it is not there.
const PARSED: &str = r#"
job "x" {
  meta {
    k = "v"
  }
  group "g" {
    scaling {
      max = 3
    }
    volume "v" {
      type   = "host"
      source = "v"
    }
    network {
      port "http" {}
    }
    task "t" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
"#;

/// What Go has as pointers: null until somebody says more.
const POINTERS: &[&str] = &["ForceReschedule", "Healthy", "Migrate", "NoShutdownDelay", "Reschedule", "Timestamp"];

fn may_be_null(place: &str) -> bool {
    place.rsplit('.').next().is_some_and(|key| POINTERS.contains(&key))
}

fn is_ours(place: &str) -> bool {
    NOT_OURS.iter().any(|(skipped, _)| place.starts_with(skipped))
}

/// Everything that is wrong at a place and below.
fn compare(place: &str, expected: &Value, ours: &Value, wrong: &mut Vec<String>) {
    if is_ours(place) {
        return;
    }
    match expected {
        Value::String(kind) => {
            let is = match ours {
                Value::Null => "null",
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "list",
                Value::Object(_) => "map",
            };
            // A record that has only seen null says nothing of the type.
            let unsaid = ours.is_null() && may_be_null(place);
            if kind != is && kind != "null" && !unsaid {
                wrong.push(format!("{place} is {is}, not {kind}"));
            }
        }
        Value::Array(of) => match ours {
            // Go's empty list; those that clients need as lists have a test of their own.
            Value::Null => {}
            Value::Array(list) => {
                for (n, item) in list.iter().enumerate() {
                    if let Some(of) = of.first() {
                        compare(&format!("{place}[{n}]"), of, item, wrong);
                    }
                }
            }
            other => wrong.push(format!("{place} is not a list: {other}")),
        },
        Value::Object(keys) if keys.contains_key("|") => {
            let fits = keys["|"].as_array().unwrap().iter().any(|one| {
                if one == "null" {
                    return ours.is_null();
                }
                let mut why = Vec::new();
                compare(place, one, ours, &mut why);
                why.is_empty()
            });
            if !fits {
                wrong.push(format!("{place} is none of {expected}: {ours}"));
            }
        }
        Value::Object(keys) => {
            let Value::Object(map) = ours else {
                wrong.push(format!("{place} is not a map: {ours}"));
                return;
            };
            for (key, of) in keys {
                let (name, optional) = key.strip_suffix('?').map_or((key.as_str(), false), |name| (name, true));
                if name == "*" {
                    for (key, value) in map {
                        compare(&format!("{place}.{key}"), of, value, wrong);
                    }
                    continue;
                }
                match map.get(name) {
                    // Where a key may be absent, null says the same.
                    Some(Value::Null) if optional => {}
                    Some(value) => compare(&format!("{place}.{name}"), of, value, wrong),
                    None if optional => {}
                    None => wrong.push(format!("{place}.{name} is missing")),
                }
            }
        }
        other => panic!("the record of {place} has {other}"),
    }
}

fn recorded() -> Value {
    serde_json::from_str(include_str!("../testdata/shapes.json")).unwrap()
}

#[test]
fn the_comparison_sees_what_is_missing_and_what_is_of_another_type() {
    let expected = json!({"A": "string", "B?": "number", "C": {"*": "bool"}, "D": ["string"], "E": {"|": ["null", {"F": "string"}]}});
    let wrong = |ours: Value| {
        let mut wrong = Vec::new();
        compare("", &expected, &ours, &mut wrong);
        wrong
    };
    let fits = json!({"A": "", "C": {"x": true}, "D": [], "E": null, "more": 1});
    assert_eq!(wrong(fits.clone()), Vec::<String>::new());
    for (key, value) in [
        ("A", json!(1)),
        ("B", json!("")),
        ("C", json!({"x": 1})),
        ("D", json!([1])),
        ("D", json!({})),
        ("E", json!({})),
    ] {
        let mut ours = fits.clone();
        ours[key] = value;
        assert_eq!(wrong(ours).len(), 1, "{key}");
    }
    let mut less = fits;
    less.as_object_mut().unwrap().remove("A");
    assert_eq!(wrong(less), [".A is missing"]);
}

#[tokio::test]
async fn answers_have_the_keys_and_types_of_a_real_agent() {
    let world = World::new().await;
    let recorded = recorded();
    let alloc = world.run("web").await[0].clone();
    world.deployed("web").await;
    let mut wrong = Vec::new();
    let spec = json!({"Job": job("web"), "Diff": true});
    for (name, path, body) in [
        ("PUT /v1/validate/job", "/v1/validate/job", spec.clone()),
        ("PUT /v1/job/:id/plan", "/v1/job/web/plan", spec.clone()),
        ("PUT /v1/jobs", "/v1/jobs", json!({"Job": job("par2"), "Submission": {"Source": "x", "Format": "hcl2"}})),
        ("PUT /v1/search", "/v1/search", json!({"Prefix": "w", "Context": "all"})),
        ("PUT /v1/search/fuzzy", "/v1/search/fuzzy", json!({"Text": "we", "Context": "all"})),
        ("PUT /v1/job/:id/evaluate", "/v1/job/web/evaluate", json!({})),
        ("PUT /v1/job/:id/stable", "/v1/job/web/stable", json!({"JobVersion": 0, "Stable": true})),
        ("PUT /v1/jobs/parse", "/v1/jobs/parse", json!({"JobHCL": PARSED, "Canonicalize": true})),
    ] {
        let ours = world.put(path, body).await;
        compare(&format!("{name}: "), &recorded[name], &ours, &mut wrong);
    }
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let (id, eval) = (text(&alloc, "ID"), text(&alloc, "EvalID"));
    let deployment = text(&world.json("/v1/job/web/deployment").await, "ID");
    let node = text(&alloc, "NodeID");
    world.put("/v1/var/a/b", json!({"Items": {"k": "v"}})).await;
    for (name, path) in [
        ("/v1/jobs", "/v1/jobs".to_owned()),
        ("/v1/jobs?meta=true", "/v1/jobs?meta=true".to_owned()),
        ("/v1/jobs/statuses", "/v1/jobs/statuses".to_owned()),
        ("/v1/job/:id", "/v1/job/web".to_owned()),
        ("/v1/job/:id/summary", "/v1/job/web/summary".to_owned()),
        ("/v1/job/:id/versions", "/v1/job/web/versions".to_owned()),
        ("/v1/job/:id/versions?diffs=true", "/v1/job/web/versions?diffs=true".to_owned()),
        ("/v1/job/:id/allocations", "/v1/job/web/allocations".to_owned()),
        ("/v1/job/:id/evaluations", "/v1/job/web/evaluations".to_owned()),
        ("/v1/job/:id/deployments", "/v1/job/web/deployments".to_owned()),
        ("/v1/job/:id/deployment", "/v1/job/web/deployment".to_owned()),
        ("/v1/job/:id/scale", "/v1/job/web/scale".to_owned()),
        ("/v1/job/:id/actions", "/v1/job/web/actions".to_owned()),
        ("/v1/job/:id/services", "/v1/job/web/services".to_owned()),
        ("/v1/job/:id/submission", "/v1/job/par2/submission?version=0".to_owned()),
        ("/v1/allocations", "/v1/allocations".to_owned()),
        ("/v1/allocations?resources=true", "/v1/allocations?resources=true".to_owned()),
        ("/v1/allocation/:id", format!("/v1/allocation/{id}")),
        ("/v1/allocation/:id/services", format!("/v1/allocation/{id}/services")),
        ("/v1/evaluations", "/v1/evaluations".to_owned()),
        ("/v1/evaluations/count", "/v1/evaluations/count".to_owned()),
        ("/v1/evaluation/:id", format!("/v1/evaluation/{eval}")),
        ("/v1/evaluation/:id?related=true", format!("/v1/evaluation/{eval}?related=true")),
        ("/v1/evaluation/:id/allocations", format!("/v1/evaluation/{eval}/allocations")),
        ("/v1/deployments", "/v1/deployments".to_owned()),
        ("/v1/deployment/:id", format!("/v1/deployment/{deployment}")),
        ("/v1/deployment/allocations/:id", format!("/v1/deployment/allocations/{deployment}")),
        ("/v1/nodes", "/v1/nodes".to_owned()),
        ("/v1/nodes?os=true&resources=true", "/v1/nodes?os=true&resources=true".to_owned()),
        ("/v1/node/:id", format!("/v1/node/{node}")),
        ("/v1/node/:id/allocations", format!("/v1/node/{node}/allocations")),
        ("/v1/node/pools", "/v1/node/pools".to_owned()),
        ("/v1/node/pool/:name", "/v1/node/pool/default".to_owned()),
        ("/v1/node/pool/:name/nodes", "/v1/node/pool/default/nodes".to_owned()),
        ("/v1/node/pool/:name/jobs", "/v1/node/pool/default/jobs".to_owned()),
        ("/v1/client/stats", "/v1/client/stats".to_owned()),
        ("/v1/client/metadata", "/v1/client/metadata".to_owned()),
        ("/v1/client/allocation/:id/stats", format!("/v1/client/allocation/{id}/stats")),
        ("/v1/client/allocation/:id/checks", format!("/v1/client/allocation/{id}/checks")),
        ("/v1/client/fs/ls/:id", format!("/v1/client/fs/ls/{id}?path=/")),
        ("/v1/agent/self", "/v1/agent/self".to_owned()),
        ("/v1/agent/members", "/v1/agent/members".to_owned()),
        ("/v1/agent/servers", "/v1/agent/servers".to_owned()),
        ("/v1/agent/health", "/v1/agent/health".to_owned()),
        ("/v1/status/leader", "/v1/status/leader".to_owned()),
        ("/v1/status/peers", "/v1/status/peers".to_owned()),
        ("/v1/regions", "/v1/regions".to_owned()),
        ("/v1/namespaces", "/v1/namespaces".to_owned()),
        ("/v1/namespace/:name", "/v1/namespace/default".to_owned()),
        ("/v1/services", "/v1/services".to_owned()),
        ("/v1/vars", "/v1/vars".to_owned()),
        ("/v1/var/:path", "/v1/var/a/b".to_owned()),
        ("/v1/volumes", "/v1/volumes".to_owned()),
        ("/v1/plugins", "/v1/plugins".to_owned()),
        ("/v1/scaling/policies", "/v1/scaling/policies".to_owned()),
        ("/v1/acl/token/self", "/v1/acl/token/self".to_owned()),
        ("/v1/operator/scheduler/configuration", "/v1/operator/scheduler/configuration".to_owned()),
        ("/v1/operator/raft/configuration", "/v1/operator/raft/configuration".to_owned()),
        ("/v1/operator/autopilot/configuration", "/v1/operator/autopilot/configuration".to_owned()),
        ("/v1/operator/autopilot/health", "/v1/operator/autopilot/health".to_owned()),
    ] {
        let ours = world.json(&path).await;
        compare(&format!("{name}: "), &recorded[name], &ours, &mut wrong);
    }
    for (name, path, body) in [
        (
            "PUT /v1/job/:id/scale",
            "/v1/job/web/scale".to_owned(),
            json!({"Count": 2, "Target": {"Group": "g"}, "Message": "more"}),
        ),
        ("PUT /v1/job/:id/revert", "/v1/job/web/revert".to_owned(), json!({"JobVersion": 0})),
        ("PUT /v1/client/allocation/:id/restart", format!("/v1/client/allocation/{id}/restart"), json!({})),
        (
            "PUT /v1/client/allocation/:id/signal",
            format!("/v1/client/allocation/{id}/signal"),
            json!({"Signal": "SIGHUP"}),
        ),
        ("PUT /v1/allocation/:id/stop", format!("/v1/allocation/{id}/stop"), json!({})),
        ("PUT /v1/node/:id/eligibility", format!("/v1/node/{node}/eligibility"), json!({"Eligibility": "ineligible"})),
        (
            "PUT /v1/node/:id/drain",
            format!("/v1/node/{node}/drain"),
            json!({"DrainSpec": {"Deadline": 60_000_000_000_i64}}),
        ),
    ] {
        let ours = world.put(&path, body).await;
        compare(&format!("{name}: "), &recorded[name], &ours, &mut wrong);
    }
    for (name, path) in [("/v1/node/:id", format!("/v1/node/{node}")), ("/v1/nodes", "/v1/nodes".to_owned())] {
        let ours = world.json(&path).await;
        let last = ours.get("LastDrain").or_else(|| ours.get(0)?.get("LastDrain"));
        assert!(last.is_some_and(Value::is_object), "{name}: {ours:#}");
        compare(&format!("{name}: "), &recorded[name], &ours, &mut wrong);
    }
    let stopped = world.ask("DELETE", "/v1/job/web", None).await.json();
    compare("DELETE /v1/job/:id: ", &recorded["DELETE /v1/job/:id"], &stopped, &mut wrong);
    let own = world.json("/v1/agent/self").await;
    assert_eq!(own["config"]["UI"]["ShowCLIHints"], false);
    assert_eq!(own["stats"]["client"]["node_id"], node.as_str());
    assert_eq!(wrong, Vec::<String>::new(), "{}", wrong.join("\n"));
}
