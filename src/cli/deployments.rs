//! `agentbin deployment`: deployments of this machine's agent, over its API.

use std::fmt::Write as _;

use serde_json::Value;

use super::api::{
    Api, ListArgs, OneArgs, PromoteArgs, ShowArgs, about, failed, follow, healthy, part, print_json, print_list, text,
};
use super::print;
use crate::spec::escaped_lines;
use crate::spec::json::json;

fn id(id: clap::Arg) -> clap::Arg {
    id.value_name("DEPLOYMENT")
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum DeploymentCommand {
    /// List deployments
    List(ListArgs),
    /// Show a deployment
    #[command(mut_arg("id", id))]
    Status(ShowArgs),
    /// Promote the canaries of a deployment
    #[command(mut_arg("id", id))]
    Promote(PromoteArgs),
    /// Mark a deployment as failed
    #[command(mut_arg("id", id))]
    Fail(OneArgs),
    /// Pause a deployment
    #[command(mut_arg("id", id))]
    Pause(OneArgs),
    /// Resume a paused deployment
    #[command(mut_arg("id", id))]
    Resume(OneArgs),
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &DeploymentCommand) -> i32 {
    let done = match command {
        DeploymentCommand::List(args) => all(args),
        DeploymentCommand::Status(args) => status(args),
        DeploymentCommand::Promote(args) => Api::new(&args.api).and_then(|api| {
            let id = find(&api, &args.id)?;
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

/// What is shown of each deployment in a list.
pub(super) const COLUMNS: [(&str, &str); 5] = [
    ("ID", "ID"),
    ("JOB", "JobID"),
    ("VERSION", "JobVersion"),
    ("STATUS", "Status"),
    ("DESCRIPTION", "StatusDescription"),
];

fn all(args: &ListArgs) -> anyhow::Result<i32> {
    print_list(&Api::new(&args.api)?.get("deployments?")?, args.json, &COLUMNS)
}

fn status(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let one = api.get(&format!("deployment/{}?", find(&api, &args.id)?))?;
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
    let id = find(&api, &args.id)?;
    let mut asked = with.clone();
    asked["DeploymentID"] = id.as_str().into();
    let answer = api.ask("PUT", &format!("deployment/{what}/{id}?"), &asked.to_string())?;
    match text(&answer, "EvalID") {
        "" => Ok(0),
        eval => api.decided(eval).map(|(status, _)| status),
    }
}
