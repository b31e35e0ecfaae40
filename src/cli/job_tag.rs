//! `agentbin job tag`: names for versions of the jobs of this machine's agent, over its API.

use super::ApiArgs;
use super::api::{Api, failed, part};
use crate::spec::json::json;

fn hidden(arg: clap::Arg) -> clap::Arg {
    arg.hide(true)
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum TagCommand {
    /// Give a version of a job a name; the version is kept as long as it has one
    Apply(ApplyArgs),
    /// Take the name of a version away
    #[command(mut_arg("description", hidden), mut_arg("version", hidden))]
    Unset(ApplyArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ApplyArgs {
    /// Id of a job, or the beginning of one
    job: String,
    /// The name
    #[arg(long, value_name = "NAME")]
    name: String,
    /// What is special about the version
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,
    /// Number of the version [default: the latest]
    #[arg(long, value_name = "VERSION")]
    version: Option<u64>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &TagCommand) -> i32 {
    failed(match command {
        TagCommand::Apply(args) => apply(args),
        TagCommand::Unset(args) => unset(args),
    })
}

fn path(api: &Api, job: &str, name: &str) -> anyhow::Result<String> {
    Ok(format!("job/{}/versions/{}/tag?", part(&api.job(job)?), part(name)))
}

fn apply(args: &ApplyArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let asked = json!({ "Version": args.version, "Description": args.description });
    api.order("PUT", &path(&api, &args.job, &args.name)?, &asked.to_string())
}

fn unset(args: &ApplyArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    api.order("DELETE", &path(&api, &args.job, &args.name)?, "")
}
