//! `agentbin var`: variables of this machine's agent, over its API.

use std::io::Read as _;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::api::{Api, FindArgs, OneArgs, failed, part, print_json, print_list};
use super::jobs::pairs;
use super::{ApiArgs, print};
use crate::spec::json::json;

/// Most bytes of a value from standard input; the agent says that fewer are allowed.
const LONGEST: u64 = 1 << 20;

#[derive(Debug, clap::Subcommand)]
pub(super) enum VarCommand {
    /// List the paths of variables
    #[command(mut_arg("id", |id| id.value_name("PREFIX").help("Only paths with this prefix")))]
    List(FindArgs),
    /// Print a variable
    Get(GetArgs),
    /// Create or replace a variable
    Put(PutArgs),
    /// Remove a variable
    #[command(mut_arg("id", |id| id.value_name("PATH").help("The variable's path")))]
    Purge(OneArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct GetArgs {
    /// The variable's path
    path: String,
    /// Print the value of one item, and nothing else
    #[arg(long, value_name = "KEY")]
    item: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct PutArgs {
    /// The variable's path
    path: String,
    /// The items; a value of - is read from standard input, so that it does not appear in process listings
    #[arg(required = true, value_name = "KEY=VALUE")]
    items: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &VarCommand) -> i32 {
    failed(match command {
        VarCommand::List(args) => all(args),
        VarCommand::Get(args) => get(args),
        VarCommand::Put(args) => put(args),
        VarCommand::Purge(args) => purge(args),
    })
}

fn path(of: &str) -> String {
    format!("var/{}?", part(of))
}

fn all(args: &FindArgs) -> anyhow::Result<i32> {
    let prefix = args.id.as_deref().unwrap_or_default();
    let found = Api::new(&args.api)?.get(&format!("vars?prefix={}", part(prefix)))?;
    print_list(&found, args.json, &[("NAMESPACE", "Namespace"), ("PATH", "Path"), ("UPDATED", "ModifyTime")])
}

fn get(args: &GetArgs) -> anyhow::Result<i32> {
    let found = Api::new(&args.api)?.get(&path(&args.path))?;
    let Some(key) = &args.item else { return print_json(&found) };
    let items = || found["Items"].as_object().into_iter().flat_map(|all| all.keys().cloned()).collect::<Vec<_>>();
    let value = found["Items"][key].as_str();
    let value = value.with_context(|| format!("{} has no item {key:?}; it has {}", args.path, items().join(", ")))?;
    // As it is: for a script.
    print(format!("{value}\n").as_bytes())
}

fn put(args: &PutArgs) -> anyhow::Result<i32> {
    let mut items = pairs(&args.items, "item")?;
    ensure!(
        items.values().filter(|value| **value == "-").count() < 2,
        "only one value can be -: there is one standard input"
    );
    for value in items.values_mut().filter(|value| **value == "-") {
        let mut read = String::new();
        std::io::stdin().lock().take(LONGEST).read_to_string(&mut read).context("cannot read standard input")?;
        *value = read.trim_end_matches('\n').into();
    }
    let asked = json!({ "Path": args.path, "Items": Value::Object(items) });
    Api::new(&args.api)?.ask("PUT", &path(&args.path), &asked.to_string())?;
    Ok(0)
}

fn purge(args: &OneArgs) -> anyhow::Result<i32> {
    Api::new(&args.api)?.order("DELETE", &path(&args.id), "")
}
