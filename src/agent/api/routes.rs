//! The table of routes: method and path, required role, size limit of the body, handler. `docs/api.md` is generated from it.

use super::answer::{Answer, Refusal};
use super::{
    Call, Kind, Route, Verb, agent, allocations, client, csi, deployments, evaluations, events, exec, files, fixed,
    job, jobs, logs, metrics, namespaces, nodes, operator, parse, scaling, search, services, tokens, upgrade, vars,
    versions, volumes,
};
use crate::agent::model::Role;
use crate::http::route::Router;
use crate::spec::json::json;

/// Limit of ordinary request bodies.
const SMALL: usize = 1 << 20;
/// Limit of jobs, which may contain files.
const JOB: usize = 16 << 20;
/// Limit of a snapshot, which is written to disk.
const ARCHIVE: usize = 4 << 30;

macro_rules! table {
    ($($verb:ident $pattern:literal $role:ident $kind:ident $limit:ident $run:path: $about:literal;)*) => {
        [$(Route {
            verb: Verb::$verb,
            pattern: $pattern,
            role: Role::$role,
            kind: Kind::$kind,
            limit: $limit,
            run: |call| Box::pin($run(call)),
            about: $about,
        }),*]
    };
}

/// All routes.
pub(super) const TABLE: &[Route] = &table! {
    Get "/v1/jobs" Read Served SMALL jobs::list: "lists the jobs of a namespace";
    Put "/v1/jobs" Submit Served JOB jobs::register: "registers a job";
    Put "/v1/jobs/parse" Read Served JOB parse::parse: "parses an HCL job file into JSON";
    Get "/v1/jobs/statuses" Read Served SMALL jobs::statuses: "lists jobs with the states of their allocations";
    Put "/v1/jobs/statuses" Read Served SMALL jobs::statuses: "the same for the given jobs";
    Put "/v1/validate/job" Read Served JOB parse::validate: "validates a job";
    Get "/v1/job/{id*}" Read Served SMALL job::info: "a job";
    Put "/v1/job/{id*}" Submit Served JOB jobs::register: "registers a job";
    Delete "/v1/job/{id*}" Submit Served SMALL job::stop: "stops a job; `purge` also removes it";
    Get "/v1/job/{id*}/allocations" Read Served SMALL job::allocations: "its allocations";
    Get "/v1/job/{id*}/evaluations" Read Served SMALL job::evaluations: "its evaluations";
    Get "/v1/job/{id*}/deployments" Read Served SMALL job::deployments: "its deployments";
    Get "/v1/job/{id*}/deployment" Read Served SMALL job::deployment: "its latest deployment, or null";
    Get "/v1/job/{id*}/summary" Read Served SMALL job::summary: "its summary: allocations by status";
    Get "/v1/job/{id*}/versions" Read Served SMALL versions::list: "its versions, with their differences";
    Put "/v1/job/{id*}/versions/{name}/tag" Submit Served SMALL versions::tag: "tags a version";
    Delete "/v1/job/{id*}/versions/{name}/tag" Submit Served SMALL versions::untag: "removes a tag";
    Get "/v1/job/{id*}/submission" Read Served SMALL versions::submission: "the submitted job file of a version";
    Get "/v1/job/{id*}/services" Read Served SMALL services::of_job: "its services";
    Get "/v1/job/{id*}/actions" Read Served SMALL job::actions: "its tasks' actions";
    Get "/v1/job/{id*}/action" Manage Served SMALL exec::action: "runs an action of a task (WebSocket)";
    Put "/v1/job/{id*}/plan" Read Served JOB parse::plan: "plans a registration";
    Put "/v1/job/{id*}/evaluate" Submit Served SMALL job::evaluate: "creates an evaluation";
    Put "/v1/job/{id*}/dispatch" Submit Served JOB job::dispatch: "dispatches a parameterized job";
    Put "/v1/job/{id*}/dispatch/payload" Submit Served SMALL job::dispatch_payload: "the same; the body is the payload";
    Put "/v1/job/{id*}/revert" Submit Served SMALL versions::revert: "reverts to a version";
    Put "/v1/job/{id*}/stable" Manage Served SMALL versions::stable: "marks a version as stable or not";
    Put "/v1/job/{id*}/periodic/force" Submit Served SMALL job::periodic_force: "launches a periodic job now";
    Get "/v1/job/{id*}/scale" Read Served SMALL scaling::status: "the counts of its groups";
    Put "/v1/job/{id*}/scale" Submit Served SMALL scaling::scale: "changes the count of a group";
    Get "/v1/allocations" Read Served SMALL allocations::list: "allocations";
    Get "/v1/allocation/{id}" Read Served SMALL allocations::info: "an allocation with its job";
    Put "/v1/allocation/{id}/stop" Submit Served SMALL allocations::stop: "stops and replaces an allocation";
    Get "/v1/allocation/{id}/services" Read Served SMALL services::of_alloc: "its services";
    Get "/v1/allocation/{id}/checks" Read Served SMALL client::checks: "its checks";
    Get "/v1/evaluations" Read Served SMALL evaluations::list: "evaluations";
    Delete "/v1/evaluations" Manage Served SMALL evaluations::delete: "deletes evaluations while their broker is paused";
    Get "/v1/evaluations/count" Read Served SMALL evaluations::count: "the number of evaluations";
    Get "/v1/evaluation/{id}" Read Served SMALL evaluations::info: "an evaluation";
    Get "/v1/evaluation/{id}/allocations" Read Served SMALL evaluations::allocations: "its allocations";
    Get "/v1/deployments" Read Served SMALL deployments::list: "deployments";
    Get "/v1/deployment/{id}" Read Served SMALL deployments::info: "a deployment";
    Get "/v1/deployment/allocations/{id}" Read Served SMALL deployments::allocations: "its allocations";
    Put "/v1/deployment/promote/{id}" Submit Served SMALL deployments::promote: "promotes its canaries";
    Put "/v1/deployment/fail/{id}" Submit Served SMALL deployments::fail: "fails it";
    Put "/v1/deployment/pause/{id}" Submit Served SMALL deployments::pause: "pauses or resumes it";
    Put "/v1/deployment/allocation-health/{id}" Submit Served SMALL deployments::health: "sets the health of its allocations";
    Put "/v1/deployment/unblock/{id}" Submit Refused SMALL fixed::one_region: "there is one region";
    Get "/v1/nodes" Read Served SMALL nodes::list: "the node, in a list";
    Get "/v1/node/{id}" Read Served SMALL nodes::info: "the node";
    Get "/v1/node/{id}/allocations" Read Served SMALL nodes::allocations: "all allocations, with their jobs";
    Put "/v1/node/{id}/drain" Manage Served SMALL nodes::drain: "drains the node, or cancels the drain";
    Put "/v1/node/{id}/eligibility" Manage Served SMALL nodes::eligibility: "sets the scheduling eligibility";
    Put "/v1/node/{id}/evaluate" Manage Served SMALL nodes::evaluate: "creates an evaluation for each job";
    Put "/v1/node/{id}/purge" Manage Served SMALL nodes::purge: "refused: the only node is the agent";
    Get "/v1/node/pools" Read Fixed SMALL fixed::node_pools: "`default` and `all`";
    Get "/v1/node/pool/{name}" Read Fixed SMALL fixed::node_pool: "one of them";
    Put "/v1/node/pools" Manage Refused SMALL fixed::one_pool: "there is one node";
    Put "/v1/node/pool/{name}" Manage Refused SMALL fixed::one_pool: "there is one node";
    Delete "/v1/node/pool/{name}" Manage Refused SMALL fixed::one_pool: "there is one node";
    Get "/v1/node/pool/{name}/nodes" Read Served SMALL nodes::of_pool: "the node, in a list";
    Get "/v1/node/pool/{name}/jobs" Read Served SMALL jobs::of_pool: "all jobs";
    Get "/v1/client/fs/ls/{id}" Submit Served SMALL files::list: "lists a directory of an allocation";
    Get "/v1/client/fs/stat/{id}" Submit Served SMALL files::stat: "describes a file of an allocation";
    Get "/v1/client/fs/cat/{id}" Submit Served SMALL files::cat: "a file's content";
    Get "/v1/client/fs/readat/{id}" Submit Served SMALL files::read_at: "a part of a file's content";
    Get "/v1/client/fs/stream/{id}" Submit Served SMALL files::stream: "a file as it grows, in frames";
    Get "/v1/client/fs/logs/{id}" Submit Served SMALL logs::logs: "a task's output, in frames";
    Get "/v1/client/allocation/{id}/stats" Read Served SMALL client::stats: "resource usage of its tasks";
    Get "/v1/client/allocation/{id}/checks" Read Served SMALL client::checks: "its checks";
    Put "/v1/client/allocation/{id}/restart" Submit Served SMALL client::restart: "restarts its tasks";
    Put "/v1/client/allocation/{id}/signal" Submit Served SMALL client::signal: "sends its tasks a signal";
    Get "/v1/client/allocation/{id}/gc" Submit Served SMALL client::gc_alloc: "garbage-collects the allocation";
    Put "/v1/client/allocation/{id}/gc" Submit Served SMALL client::gc_alloc: "garbage-collects the allocation";
    Get "/v1/client/allocation/{id}/exec" Manage Served SMALL exec::exec: "runs a command in a task (WebSocket)";
    Get "/v1/client/allocation/{id}/pause" Read Refused SMALL fixed::no_schedule: "tasks have no time schedule";
    Put "/v1/client/allocation/{id}/pause" Submit Refused SMALL fixed::no_schedule: "tasks have no time schedule";
    Get "/v1/client/allocation/{id}/snapshot" Manage Refused SMALL fixed::one_node: "there is no other node to move to";
    Get "/v1/client/stats" Read Served SMALL client::host_stats: "resource usage of the machine";
    Get "/v1/client/gc" Manage Served SMALL operator::gc: "garbage-collects what has ended";
    Put "/v1/client/gc" Manage Served SMALL operator::gc: "garbage-collects what has ended";
    Get "/v1/client/metadata" Read Served SMALL nodes::metadata: "the node's metadata";
    Put "/v1/client/metadata" Manage Served SMALL nodes::change_metadata: "sets node metadata, over the configuration";
    Get "/v1/agent/self" Read Served SMALL agent::own: "the agent";
    Get "/v1/agent/members" Read Fixed SMALL agent::members: "the agent, as the only server";
    Get "/v1/agent/servers" Read Fixed SMALL agent::servers: "the agent, as the only server";
    Get "/v1/agent/health" Read Served SMALL agent::health: "the agent's health";
    Get "/v1/agent/host" Manage Served SMALL agent::host: "the machine";
    Get "/v1/agent/monitor" Read Served SMALL agent::monitor: "streams the agent's log";
    Put "/v1/agent/servers" Manage Refused SMALL fixed::one_node: "there is one server";
    Get "/v1/agent/monitor/export" Read Refused SMALL fixed::no_log_file: "the log is not in a file";
    Get "/v1/agent/keyring/{what}" Manage Refused SMALL fixed::one_node: "there is no gossip";
    Put "/v1/agent/keyring/{what}" Manage Refused SMALL fixed::one_node: "there is no gossip";
    Get "/v1/client/identity" Read Refused SMALL fixed::one_node: "the node has no identity token";
    Put "/v1/client/identity/renew" Manage Refused SMALL fixed::one_node: "the node has no identity token";
    Put "/v1/agent/join" Manage Refused SMALL fixed::one_node: "there is one server";
    Put "/v1/agent/force-leave" Manage Refused SMALL fixed::one_node: "there is one server";
    Get "/v1/status/leader" Read Fixed SMALL agent::leader: "the agent";
    Get "/v1/status/peers" Read Fixed SMALL agent::servers: "the agent";
    Get "/v1/regions" Read Fixed SMALL agent::regions: "the one region";
    Put "/v1/system/gc" Manage Served SMALL operator::gc: "garbage-collects what has ended";
    Put "/v1/system/reconcile/summaries" Manage Served SMALL operator::reconcile: "recomputes job summaries";
    Get "/v1/operator/scheduler/configuration" Read Served SMALL operator::scheduler: "the scheduler configuration";
    Put "/v1/operator/scheduler/configuration" Manage Served SMALL operator::set_scheduler: "changes the scheduler configuration";
    Get "/v1/operator/raft/configuration" Read Fixed SMALL operator::raft: "the agent, as the only server";
    Get "/v1/operator/autopilot/configuration" Read Fixed SMALL operator::autopilot: "Nomad's defaults";
    Put "/v1/operator/autopilot/configuration" Manage Refused SMALL fixed::one_node: "there is one server";
    Get "/v1/operator/autopilot/health" Read Fixed SMALL operator::autopilot_health: "the agent, as the only server";
    Delete "/v1/operator/raft/peer" Manage Refused SMALL fixed::one_node: "there is one server";
    Put "/v1/operator/raft/transfer-leadership" Manage Refused SMALL fixed::one_node: "there is one server";
    Get "/v1/operator/keyring/keys" Manage Refused SMALL fixed::one_key: "the key is a file";
    Put "/v1/operator/keyring/rotate" Manage Refused SMALL fixed::one_key: "the key is a file";
    Delete "/v1/operator/keyring/key/{id}" Manage Refused SMALL fixed::one_key: "the key is a file";
    Put "/v1/operator/utilization" Manage Refused SMALL fixed::enterprise: "there is none";
    Get "/v1/operator/license" Read Fixed SMALL fixed::no_license: "there is none";
    Get "/v1/quotas" Read Refused SMALL fixed::enterprise: "there are none";
    Get "/v1/sentinel/policies" Read Refused SMALL fixed::enterprise: "there are none";
    Get "/v1/operator/snapshot" Manage Served SMALL operator::save: "saves a snapshot of the state";
    Put "/v1/operator/snapshot" Manage Served ARCHIVE operator::restore: "restores a snapshot";
    Put "/v1/search" Read Served SMALL search::prefix: "searches by prefix";
    Put "/v1/search/fuzzy" Read Served SMALL search::fuzzy: "searches by substring";
    Get "/v1/event/stream" Read Served SMALL events::stream_events: "streams events, one JSON object per line";
    Get "/v1/metrics" Read Served SMALL metrics::metrics: "metrics, as JSON or in Prometheus' format";
    Get "/v1/namespaces" Read Served SMALL namespaces::list: "namespaces";
    Get "/v1/namespace/{name}" Read Served SMALL namespaces::info: "a namespace";
    Put "/v1/namespace" Manage Served SMALL namespaces::apply: "creates or updates a namespace";
    Put "/v1/namespaces" Manage Served SMALL namespaces::apply: "creates or updates a namespace";
    Put "/v1/namespace/{name}" Manage Served SMALL namespaces::apply: "creates or updates a namespace";
    Delete "/v1/namespace/{name}" Manage Served SMALL namespaces::delete: "removes a namespace without jobs";
    Get "/v1/services" Read Served SMALL services::list: "lists services";
    Get "/v1/service/{name}" Read Served SMALL services::info: "a service's instances";
    Delete "/v1/service/{name}/{id}" Submit Served SMALL services::delete: "deregisters an instance";
    Get "/v1/vars" Manage Served SMALL vars::list: "lists the paths of variables";
    Get "/v1/var/{path*}" Manage Served SMALL vars::info: "a variable";
    Put "/v1/var/{path*}" Manage Served SMALL vars::put: "writes, locks or unlocks a variable";
    Delete "/v1/var/{path*}" Manage Served SMALL vars::delete: "removes a variable";
    Get "/v1/volumes" Read Served SMALL volumes::list: "CSI volumes; with `type=host` dynamic host volumes";
    Put "/v1/volumes" Manage Served SMALL csi::register: "registers CSI volumes";
    Get "/v1/volumes/external" Read Served SMALL csi::external: "the volumes that a CSI plugin has";
    Get "/v1/volumes/snapshot" Read Served SMALL csi::snapshots: "the snapshots that a CSI plugin has";
    Put "/v1/volumes/snapshot" Manage Served SMALL csi::create_snapshots: "creates snapshots through a CSI plugin";
    Delete "/v1/volumes/snapshot" Manage Served SMALL csi::delete_snapshot: "deletes a snapshot through a CSI plugin";
    Get "/v1/volumes/claims" Read Served SMALL volumes::claims: "lists the claims of task groups on host volumes";
    Delete "/v1/volumes/claim/{id}" Manage Served SMALL volumes::delete_claim: "deletes a claim";
    Get "/v1/volume/csi/{id*}" Read Served SMALL csi::info: "a CSI volume, and who uses it";
    Put "/v1/volume/csi/{id*}" Manage Served SMALL csi::register: "registers an existing CSI volume";
    Delete "/v1/volume/csi/{id*}" Manage Served SMALL csi::deregister: "deregisters it";
    Put "/v1/volume/csi/{id*}/create" Manage Served SMALL csi::create: "creates it through its plugin";
    Delete "/v1/volume/csi/{id*}/detach" Manage Served SMALL csi::detach: "unmounts it for terminal allocations";
    Delete "/v1/volume/csi/{id*}/delete" Manage Served SMALL csi::delete: "deletes it through its plugin";
    Put "/v1/volume/host/create" Manage Served SMALL volumes::create: "creates a volume through a plugin";
    Put "/v1/volume/host/register" Manage Served SMALL volumes::register: "registers an existing directory as a volume";
    Get "/v1/volume/host/{id}" Read Served SMALL volumes::info: "a volume, and who uses it";
    Delete "/v1/volume/host/{id}" Manage Served SMALL volumes::delete: "deletes it through its plugin";
    Delete "/v1/volume/host/{id}/delete" Manage Served SMALL volumes::delete: "deletes it through its plugin";
    Get "/v1/plugins" Read Served SMALL csi::list_plugins: "CSI plugins";
    Get "/v1/plugin/csi/{id*}" Read Served SMALL csi::plugin: "a CSI plugin, and what runs it";
    Get "/v1/scaling/policies" Read Served SMALL scaling::policies: "the `scaling` blocks of jobs";
    Get "/v1/scaling/policy/{id}" Read Served SMALL scaling::policy: "one of them";
    Get "/v1/acl/token/self" Read Fixed SMALL fixed::own_token: "the token of the request";
    Get "/v1/acl/tokens" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Get "/v1/acl/policies" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Get "/v1/acl/roles" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Get "/v1/acl/{what*}" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Put "/v1/acl/{what*}" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Delete "/v1/acl/{what*}" Manage Refused SMALL fixed::no_acl: "policies are not Nomad's";
    Get "/v1/agentbin/tokens" Manage Served SMALL tokens::list: "tokens of this agent";
    Put "/v1/agentbin/tokens" Manage Served SMALL tokens::create: "creates a token; its secret is returned once";
    Get "/v1/agentbin/routes" Read Fixed SMALL routes: "this table";
    Put "/v1/agentbin/upgrade" Manage Served SMALL upgrade::upgrade: "upgrades the agent to its installed executable";
    Delete "/v1/agentbin/token/{accessor}" Manage Served SMALL tokens::revoke: "revokes a token";
};

/// The routes by path.
pub(super) fn router() -> Router<Vec<Route>> {
    let mut patterns: Vec<(&'static str, Vec<Route>)> = Vec::new();
    for route in TABLE {
        match patterns.iter_mut().find(|(pattern, _)| *pattern == route.pattern) {
            Some((_, routes)) => routes.push(*route),
            None => patterns.push((route.pattern, vec![*route])),
        }
    }
    Router::new(patterns)
}

/// The table of routes, for programs that discover the API. Not an `async fn`: the table, which this function reads, depends on
/// the type of the future that it returns.
fn routes(_: Call) -> std::future::Ready<Result<Answer, Refusal>> {
    let row = |route: &Route| {
        json!({
            "Method": route.verb.as_str(), "Path": route.pattern.replace("*}", "}"), "Role": route.role, "Answer": route.kind.as_str(),
            "About": route.about,
        })
    };
    std::future::ready(Ok(Answer::of(TABLE.iter().map(row).collect())))
}
