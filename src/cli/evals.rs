//! `agentbin eval`: evaluations of this machine's agent, over its API.

use std::fmt::Write as _;

use super::api::{Api, ShowArgs, about, failed, part, print_json, print_list, refusal};
use super::{ApiArgs, print};
use crate::spec::escaped_lines;

#[derive(Debug, clap::Subcommand)]
pub(super) enum EvalCommand {
    /// List evaluations
    List(ListArgs),
    /// Show an evaluation, with what it could not place
    #[command(mut_arg("id", |id| id.value_name("EVAL")))]
    Status(ShowArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Only those of a job
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Print JSON, as the API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &EvalCommand) -> i32 {
    failed(match command {
        EvalCommand::List(args) => all(args),
        EvalCommand::Status(args) => status(args),
    })
}

fn all(args: &ListArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let path = match &args.job {
        Some(word) => format!("job/{}/evaluations?", part(&api.job(word)?)),
        None => "evaluations?".to_owned(),
    };
    let columns = [
        ("ID", "ID"),
        ("PRIORITY", "Priority"),
        ("TRIGGERED BY", "TriggeredBy"),
        ("JOB", "JobID"),
        ("STATUS", "Status"),
        ("CREATED", "CreateTime"),
    ];
    print_list(&api.get(&path)?, args.json, &columns)
}

fn status(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let id = api.find("evaluation", &args.id, "agentbin eval list lists them")?;
    let one = api.get(&format!("evaluation/{id}?"))?;
    if args.json {
        return print_json(&one);
    }
    let members = [
        ("ID", "ID"),
        ("Job", "JobID"),
        ("Status", "Status"),
        ("Description", "StatusDescription"),
        ("Type", "Type"),
        ("Triggered by", "TriggeredBy"),
        ("Priority", "Priority"),
        ("Created", "CreateTime"),
        ("Deployment", "DeploymentID"),
    ];
    let mut out = about(&one, &members);
    for (group, why) in one["FailedTGAllocs"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "\ngroup {group:?}: {}", refusal(why));
    }
    print(escaped_lines(&out).as_bytes())
}
