//! Answers that are the same for every agent, for features that a single machine does not have.

use super::Call;
use super::answer::{Answer, Refusal};
use crate::http::{Body, Response, StatusCode};
use crate::spec::json::json;

fn unimplemented(why: &str) -> Result<Answer, Refusal> {
    Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, why))
}

pub(super) async fn one_region(_: Call) -> Result<Answer, Refusal> {
    unimplemented("a deployment is never blocked by another region: there is one")
}

pub(super) async fn one_node(_: Call) -> Result<Answer, Refusal> {
    unimplemented("this agent is the only node and the only server")
}

pub(super) async fn one_pool(_: Call) -> Result<Answer, Refusal> {
    unimplemented("the only node of this agent is in the node pool default")
}

pub(super) async fn one_key(_: Call) -> Result<Answer, Refusal> {
    unimplemented("variables are encrypted with the key file in this agent's data directory")
}

pub(super) async fn no_log_file(_: Call) -> Result<Answer, Refusal> {
    unimplemented("this agent logs to its standard error: see journalctl --unit agentbin, or nomad monitor")
}

pub(super) async fn no_schedule(_: Call) -> Result<Answer, Refusal> {
    unimplemented("tasks are not paused by this agent; stop the job, or use `nomad job stop`")
}

pub(super) async fn no_acl(_: Call) -> Result<Answer, Refusal> {
    unimplemented("this agent has tokens with roles instead of Nomad's ACL policies: agentbin token create --role")
}

pub(super) async fn enterprise(_: Call) -> Result<Answer, Refusal> {
    unimplemented("Nomad Enterprise only endpoint")
}

/// An empty answer, which the command line takes for a feature of Nomad Enterprise.
pub(super) async fn no_license(_: Call) -> Result<Answer, Refusal> {
    let mut nothing = Response::new(Body::from(Vec::new()));
    *nothing.status_mut() = StatusCode::NO_CONTENT;
    Ok(Answer::Raw(nothing))
}

pub(super) async fn node_pools(call: Call) -> Result<Answer, Refusal> {
    let pools = ["all", "default"].into_iter().filter(|name| name.starts_with(call.prefix())).map(pool);
    Ok(Answer::at(1, pools.collect()))
}

pub(super) async fn node_pool(call: Call) -> Result<Answer, Refusal> {
    match call.id() {
        name @ ("all" | "default") => Ok(Answer::at(1, pool(name))),
        _ => Err(Refusal::missing("node pool not found")),
    }
}

fn pool(name: &str) -> serde_json::Value {
    let about = if name == "all" { "Node pool with all nodes in the cluster." } else { "Default node pool." };
    json!({
        "Name": name, "Description": about, "Meta": null, "NodeIdentityTTL": 86_400_000_000_000_i64, "SchedulerConfiguration": null,
        "Hash": null, "CreateIndex": 1, "ModifyIndex": 1,
    })
}

/// The sender's token, in the form that Nomad uses without ACLs.
pub(super) async fn own_token(call: Call) -> Result<Answer, Refusal> {
    let accessor = if call.caller.accessor.is_empty() { "acls-disabled" } else { &call.caller.accessor };
    let kind = if call.caller.role == crate::agent::model::Role::Manage { "management" } else { "client" };
    Ok(Answer::at(
        1,
        json!({
            "AccessorID": accessor, "SecretID": "", "Name": call.caller.role.as_str(), "Type": kind, "Policies": null, "Roles": null,
            "Global": false, "Hash": null, "CreateTime": "0001-01-01T00:00:00Z", "ExpirationTime": null, "ExpirationTTL": "",
            "CreateIndex": 0, "ModifyIndex": 0,
        }),
    ))
}
