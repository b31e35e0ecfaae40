//! `agentbin namespace`: namespaces of this machine's agent, over its API.

use super::SocketArgs;
use super::api::{Api, ListAllArgs, failed, part, print_list};
use crate::spec::json::json;

#[derive(Debug, clap::Subcommand)]
pub(super) enum NamespaceCommand {
    /// List namespaces
    List(ListAllArgs),
    /// Create or update a namespace
    Apply(ApplyArgs),
    /// Remove a namespace without jobs
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct ApplyArgs {
    /// The namespace's name
    name: String,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    description: String,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct DeleteArgs {
    /// The namespace's name
    name: String,
    #[command(flatten)]
    at: SocketArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &NamespaceCommand) -> i32 {
    failed(match command {
        NamespaceCommand::List(args) => Api::at(&args.at).and_then(|api| {
            let columns = [("NAME", "Name"), ("DESCRIPTION", "Description")];
            print_list(&api.get("namespaces?")?, args.json, &columns)
        }),
        NamespaceCommand::Apply(args) => Api::at(&args.at).and_then(|api| {
            let asked = json!({ "Name": args.name, "Description": args.description });
            api.order("PUT", "namespace?", &asked.to_string())
        }),
        NamespaceCommand::Delete(args) => {
            Api::at(&args.at).and_then(|api| api.order("DELETE", &format!("namespace/{}?", part(&args.name)), ""))
        }
    })
}
