//! `agentbin service`: services that the tasks of this machine's agent have registered, over its API.

use serde_json::Value;

use super::api::{Api, ListArgs, ShowArgs, failed, list, part, print_json, text};
use super::runs::{row, short, table};
use super::services::place;
use super::{ApiArgs, print};
use crate::jobspec::did_you_mean;
use crate::spec::escaped_lines;

#[derive(Debug, clap::Subcommand)]
pub(super) enum ServiceCommand {
    /// List the names of services, with their tags
    List(ListArgs),
    /// List the instances of a service
    #[command(mut_arg("id", |name| name.value_name("NAME").help("Name of a service")))]
    Info(ShowArgs),
    /// Deregister an instance of a service
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct DeleteArgs {
    /// Name of the service
    name: String,
    /// Id of the instance
    id: String,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &ServiceCommand) -> i32 {
    failed(match command {
        ServiceCommand::List(args) => all(args),
        ServiceCommand::Info(args) => info(args),
        ServiceCommand::Delete(args) => delete(args),
    })
}

fn tags(service: &Value) -> String {
    let tags: Vec<&str> = list(&service["Tags"]).iter().filter_map(Value::as_str).collect();
    tags.join(",")
}

fn all(args: &ListArgs) -> anyhow::Result<i32> {
    let found = Api::new(&args.api)?.get("services?")?;
    if args.json {
        return print_json(&found);
    }
    let mut rows = vec![row(&["NAMESPACE", "SERVICE", "TAGS"])];
    for of_namespace in list(&found) {
        for service in list(&of_namespace["Services"]) {
            rows.push(row(&[text(of_namespace, "Namespace"), text(service, "ServiceName"), &tags(service)]));
        }
    }
    print(escaped_lines(&table(&rows)).as_bytes())
}

fn info(args: &ShowArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let found = api.get(&format!("service/{}?", part(&args.id)))?;
    if args.json {
        return print_json(&found);
    }
    if list(&found).is_empty() {
        let all = api.get("services?")?;
        let services = list(&all).iter().flat_map(|of_namespace| list(&of_namespace["Services"]));
        let hint = did_you_mean(&args.id, services.map(|service| text(service, "ServiceName")));
        anyhow::bail!("the agent has no service {:?}{hint}; agentbin service list lists them", args.id);
    }
    let mut rows = vec![row(&["JOB", "ADDRESS", "TAGS", "ALLOC", "ID"])];
    for service in list(&found) {
        let port = service["Port"].as_u64().and_then(|port| port.try_into().ok()).unwrap_or(0);
        let address = place(text(service, "Address"), port);
        let alloc = short(text(service, "AllocID"));
        rows.push(row(&[text(service, "JobID"), &address, &tags(service), alloc, text(service, "ID")]));
    }
    print(escaped_lines(&table(&rows)).as_bytes())
}

fn delete(args: &DeleteArgs) -> anyhow::Result<i32> {
    let path = format!("service/{}/{}?", part(&args.name), part(&args.id));
    Api::new(&args.api)?.order("DELETE", &path, "")
}
