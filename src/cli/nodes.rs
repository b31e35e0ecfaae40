//! `agentbin node drain`, `node eligibility` and `system`: this machine's agent as a whole, over its API.

use std::time::Duration;

use anyhow::bail;

use super::api::{Api, failed, list, text};
use super::{SocketArgs, args};
use crate::spec::json::json;

#[derive(Debug, clap::Args)]
#[group(id = "what", required = true, multiple = false, args = ["enable", "disable"])]
pub(super) struct DrainArgs {
    /// Stop all jobs and make the node ineligible
    #[arg(long)]
    enable: bool,
    /// Stop draining: the node is eligible again, and jobs are started
    #[arg(long)]
    disable: bool,
    /// Kill tasks that have not stopped after this time
    #[arg(long, value_name = "DURATION", value_parser = args::duration, default_value = "1h")]
    deadline: Duration,
    /// Do not stop system jobs
    #[arg(long)]
    ignore_system: bool,
    /// Do not wait until all allocations have stopped
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = false, args = ["enable", "disable"])]
pub(super) struct EligibilityArgs {
    /// Make the node eligible
    #[arg(long)]
    enable: bool,
    /// Make the node ineligible; running allocations are not affected
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum SystemCommand {
    /// Garbage collect jobs, allocations, evaluations and deployments that have ended
    Gc(SocketArgs),
    /// Reconcile derived state
    #[command(subcommand)]
    Reconcile(ReconcileCommand),
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum ReconcileCommand {
    /// Reconcile the summaries of all jobs
    Summaries(SocketArgs),
}

/// The agent, and the id of its node.
fn node(at: &SocketArgs) -> anyhow::Result<(Api, String)> {
    let api = Api::at(at)?;
    let all = api.get("nodes?")?;
    let Some(node) = list(&all).first() else { bail!("the agent has no node yet; try again") };
    let id = text(node, "ID").to_owned();
    Ok((api, id))
}

/// `agentbin node drain`. Whatever fails is status 1, as with Nomad's command.
pub(super) fn drain(args: &DrainArgs) -> i32 {
    let order = || {
        let (api, id) = node(&args.at)?;
        let nanoseconds = i64::try_from(args.deadline.as_nanos()).unwrap_or(i64::MAX);
        let spec = args.enable.then(|| json!({ "Deadline": nanoseconds, "IgnoreSystemJobs": args.ignore_system }));
        let asked = json!({ "NodeID": id, "DrainSpec": spec, "MarkEligible": args.disable });
        let status = api.order("PUT", &format!("node/{id}/drain?"), &asked.to_string())?;
        if args.enable && !args.detach {
            api.drained(&id)?;
        }
        Ok(status)
    };
    failed(order())
}

/// `agentbin node eligibility`.
pub(super) fn eligibility(args: &EligibilityArgs) -> i32 {
    let order = || {
        let (api, id) = node(&args.at)?;
        let wanted = if args.enable { "eligible" } else { "ineligible" };
        let asked = json!({ "NodeID": id, "Eligibility": wanted });
        api.order("PUT", &format!("node/{id}/eligibility?"), &asked.to_string())
    };
    failed(order())
}

/// `agentbin system`.
pub(super) fn system(command: &SystemCommand) -> i32 {
    let (args, path) = match command {
        SystemCommand::Gc(args) => (args, "system/gc?"),
        SystemCommand::Reconcile(ReconcileCommand::Summaries(args)) => (args, "system/reconcile/summaries?"),
    };
    failed(Api::at(args).and_then(|api| api.order("PUT", path, "")))
}
