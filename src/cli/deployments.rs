//! `agentbin deployment`: deployments of this machine's agent, over its API.

use std::fmt::Write as _;

use serde_json::Value;

use super::api::{Api, about, failed, follow, healthy, part, print_json, print_list, text};
use super::{ApiArgs, print};
use crate::spec::escaped_lines;
use crate::spec::json::json;

#[derive(Debug, clap::Subcommand)]
pub(super) enum DeploymentCommand {
    /// List deployments
    List(ListArgs),
    /// Show a deployment
    Status(StatusArgs),
    /// Promote the canaries of a deployment
    Promote(PromoteArgs),
    /// Mark a deployment as failed
    Fail(OneArgs),
    /// Pause a deployment
    Pause(OneArgs),
    /// Resume a paused deployment
    Resume(OneArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Print JSON, as the API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Id of a deployment, or the beginning of one
    deployment: String,
    /// Print JSON, as the API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct PromoteArgs {
    /// Id of a deployment, or the beginning of one
    deployment: String,
    /// Only these groups [default: all]
    #[arg(long, value_name = "GROUP")]
    group: Vec<String>,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct OneArgs {
    /// Id of a deployment, or the beginning of one
    deployment: String,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &DeploymentCommand) -> i32 {
    let done = match command {
        DeploymentCommand::List(args) => all(args),
        DeploymentCommand::Status(args) => status(args),
        DeploymentCommand::Promote(args) => Api::new(&args.api).and_then(|api| {
            let id = find(&api, &args.deployment)?;
            promote(&api, &id, &args.group, args.detach)
        }),
        DeploymentCommand::Fail(args) => order(args, "fail", &json!({})),
        DeploymentCommand::Pause(args) => order(args, "pause", &json!({ "Pause": true })),
        DeploymentCommand::Resume(args) => order(args, "pause", &json!({ "Pause": false })),
    };
    failed(done)
}

fn find(api: &Api, word: &str) -> anyhow::Result<String> {
    api.find("deployment", word, "agentbin deployment list lists them")
}

fn all(args: &ListArgs) -> anyhow::Result<i32> {
    let columns = [
        ("ID", "ID"),
        ("JOB", "JobID"),
        ("VERSION", "JobVersion"),
        ("STATUS", "Status"),
        ("DESCRIPTION", "StatusDescription"),
    ];
    print_list(&Api::new(&args.api)?.get("deployments?")?, args.json, &columns)
}

fn status(args: &StatusArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let one = api.get(&format!("deployment/{}?", find(&api, &args.deployment)?))?;
    if args.json {
        return print_json(&one);
    }
    let mut out = about(
        &one,
        &[
            ("ID", "ID"),
            ("Job", "JobID"),
            ("Version", "JobVersion"),
            ("Status", "Status"),
            ("Description", "StatusDescription"),
        ],
    );
    let _ = writeln!(out, "\n{}", healthy(&one));
    print(escaped_lines(&out).as_bytes())
}

/// Promotes these groups, or all.
pub(super) fn promote(api: &Api, id: &str, groups: &[String], detach: bool) -> anyhow::Result<i32> {
    let asked = json!({ "DeploymentID": id, "All": groups.is_empty(), "Groups": groups });
    let answer = api.ask("PUT", &format!("deployment/promote/{}?", part(id)), &asked.to_string())?;
    follow(api, &answer, detach)
}

fn order(args: &OneArgs, what: &str, with: &Value) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = find(&api, &args.deployment)?;
    let mut asked = with.clone();
    asked["DeploymentID"] = id.as_str().into();
    let answer = api.ask("PUT", &format!("deployment/{what}/{id}?"), &asked.to_string())?;
    match text(&answer, "EvalID") {
        "" => Ok(0),
        eval => api.decided(eval).map(|(status, _)| status),
    }
}
