//! `agentbin operator`: the HTTP API as it is, metrics, how jobs are placed, and copies of the state of this machine's agent.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::Digest as _;

use super::api::{Api, ListAllArgs, about, failed, part, print_json};
use super::ask::{BODY_PIECE, BROKEN, Request};
use super::runs::{row, table};
use super::{ApiArgs, SocketArgs, args, print};
use crate::agent::state;
use crate::spec::escaped_lines;

#[derive(Debug, clap::Subcommand)]
pub(super) enum OperatorCommand {
    /// Send a request to the HTTP API, and print the body of the answer
    Api(CallArgs),
    /// Print the metrics of the agent
    Metrics(MetricsArgs),
    /// The configuration of the scheduler
    #[command(subcommand)]
    Scheduler(SchedulerCommand),
    /// Snapshots of the state of the agent
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
}

#[derive(Debug, clap::Args)]
pub(super) struct CallArgs {
    /// Path below the agent, such as /v1/jobs, with a query if it needs one
    path: String,
    /// The method [default: GET, with a body PUT]
    #[arg(short = 'X', long, value_name = "METHOD")]
    method: Option<String>,
    /// Only items that match this expression
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Send this file as the body; - reads it from standard input
    #[arg(short = 'd', long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct MetricsArgs {
    /// Output format [default: json]
    #[arg(long, value_name = "FORMAT", value_parser = ["json", "prometheus"])]
    format: Option<String>,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum SchedulerCommand {
    /// Print the configuration
    GetConfig(ListAllArgs),
    /// Change the configuration; what is not given stays
    SetConfig(SetConfigArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct SetConfigArgs {
    /// Whether tasks may use more memory than they reserve, up to `memory_max`
    #[arg(long, value_name = "BOOL")]
    memory_oversubscription: Option<bool>,
    /// Whether jobs are registered for the role manage only
    #[arg(long, value_name = "BOOL")]
    reject_job_registration: Option<bool>,
    /// Whether evaluations wait
    #[arg(long, value_name = "BOOL")]
    pause_eval_broker: Option<bool>,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum SnapshotCommand {
    /// Save a snapshot of the state in a file
    Save(SnapshotArgs),
    /// Replace the state by that of a snapshot
    Restore(SnapshotArgs),
    /// Show what is in a snapshot, and whether it is whole; needs no agent
    Inspect(SnapshotArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct SnapshotArgs {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    at: SocketArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &OperatorCommand) -> i32 {
    failed(match command {
        OperatorCommand::Api(args) => call(args),
        OperatorCommand::Metrics(args) => metrics(args),
        OperatorCommand::Scheduler(SchedulerCommand::GetConfig(args)) => config(args),
        OperatorCommand::Scheduler(SchedulerCommand::SetConfig(args)) => set_config(args),
        OperatorCommand::Snapshot(SnapshotCommand::Save(args)) => save(args),
        OperatorCommand::Snapshot(SnapshotCommand::Restore(args)) => restore(args),
        OperatorCommand::Snapshot(SnapshotCommand::Inspect(args)) => inspect(&args.file),
    })
}

fn call(given: &CallArgs) -> anyhow::Result<i32> {
    let api = Api::new(&given.api)?;
    ensure!(given.path.starts_with('/'), "{:?} is not a path of the API; write it as /v1/jobs", given.path);
    let clean = !given.path.contains(|c: char| c.is_ascii_control() || c == ' ' || !c.is_ascii());
    ensure!(clean, "{:?} has characters that a path cannot have; escape them by %", given.path);
    let mut path = given.path.clone();
    for (key, value) in [("namespace", api.namespace()), ("filter", given.filter.as_deref())] {
        if let Some(value) = value.filter(|_| !path.contains(&format!("{key}="))) {
            let sign = if path.contains('?') { '&' } else { '?' };
            let _ = write!(path, "{sign}{key}={}", part(value));
        }
    }
    let body = match &given.data {
        None => Vec::new(),
        Some(file) => args::contents(file)?,
    };
    let method = given.method.as_deref().unwrap_or(if given.data.is_some() { "PUT" } else { "GET" });
    ensure!(method.bytes().all(|byte| byte.is_ascii_uppercase()), "{method:?} is not a method; write it as PUT");
    let request = Request { method, path: &path, length: body.len() as u64, body: &mut &body[..] };
    api.send(request)?.print()
}

fn metrics(args: &MetricsArgs) -> anyhow::Result<i32> {
    let api = Api::at(&args.at)?;
    if args.format.as_deref() != Some("prometheus") {
        return print_json(&api.get("metrics?")?);
    }
    api.open("GET", "metrics?format=prometheus")?.print()
}

const CONFIG: &str = "operator/scheduler/configuration?";

fn config(args: &ListAllArgs) -> anyhow::Result<i32> {
    let answer = Api::at(&args.at)?.get(CONFIG)?;
    let config = &answer["SchedulerConfig"];
    if args.json {
        return print_json(config);
    }
    let members = [
        ("Memory Oversubscription", "MemoryOversubscriptionEnabled"),
        ("Reject Job Registration", "RejectJobRegistration"),
        ("Pause Eval Broker", "PauseEvalBroker"),
        ("Modify Index", "ModifyIndex"),
    ];
    print(about(config, &members).as_bytes())
}

fn set_config(args: &SetConfigArgs) -> anyhow::Result<i32> {
    let settings = [
        ("MemoryOversubscriptionEnabled", args.memory_oversubscription),
        ("RejectJobRegistration", args.reject_job_registration),
        ("PauseEvalBroker", args.pause_eval_broker),
    ];
    let given = || settings.iter().filter_map(|(key, given)| Some((*key, (*given)?)));
    ensure!(given().next().is_some(), "nothing to change; give a setting, such as --memory-oversubscription=true");
    let api = Api::at(&args.at)?;
    // A request replaces all of it.
    let mut config = api.get(CONFIG)?["SchedulerConfig"].take();
    for (key, value) in given() {
        config[key] = value.into();
    }
    api.order("PUT", CONFIG, &config.to_string())
}

/// Writes a snapshot beside its file, and gives it the name once its checksum is right.
fn save(args: &SnapshotArgs) -> anyhow::Result<i32> {
    let answer = Api::at(&args.at)?.open("GET", "operator/snapshot?")?;
    let given = answer.header("digest").and_then(|value| value.strip_prefix("sha-256=")).map(str::to_owned);
    let mut name = args.file.clone().into_os_string();
    name.push(format!(".{}", std::process::id()));
    let partial = PathBuf::from(name);
    // It holds what jobs are configured with.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial);
    let mut file = file.with_context(|| format!("cannot create {}", partial.display()))?;
    let write = || {
        let (mut sum, mut body, mut piece) = (sha2::Sha256::new(), answer.body, vec![0; BODY_PIECE]);
        loop {
            let length = body.read(&mut piece).context(BROKEN)?;
            if length == 0 {
                break;
            }
            sum.update(&piece[..length]);
            file.write_all(&piece[..length]).with_context(|| format!("cannot write {}", partial.display()))?;
        }
        if given.is_some_and(|given| given != STANDARD.encode(sum.finalize())) {
            bail!("{BROKEN}: its checksum is another one");
        }
        file.sync_all().with_context(|| format!("cannot write {}", partial.display()))?;
        std::fs::rename(&partial, &args.file).with_context(|| format!("cannot create {}", args.file.display()))
    };
    if let Err(error) = write() {
        // What is left is worth less than the error.
        let _ = std::fs::remove_file(&partial);
        return Err(error);
    }
    Ok(0)
}

fn restore(args: &SnapshotArgs) -> anyhow::Result<i32> {
    let api = Api::at(&args.at)?;
    let (mut file, length) = opened(&args.file)?;
    let path = api.path("operator/snapshot?");
    api.send(Request { method: "PUT", path: &path, length, body: &mut file }).map(|_| 0)
}

/// A file that holds a snapshot, and its length.
fn opened(path: &Path) -> anyhow::Result<(std::fs::File, u64)> {
    let about = || format!("cannot read {}", path.display());
    let file = std::fs::File::open(path).with_context(about)?;
    let found = file.metadata().with_context(about)?;
    ensure!(found.is_file(), "{} is not a file", path.display());
    Ok((file, found.len()))
}

fn inspect(path: &Path) -> anyhow::Result<i32> {
    let (file, length) = opened(path)?;
    let found = state::inspect(file).with_context(|| path.display().to_string())?;
    let mut rows = Vec::new();
    for (title, value) in [
        ("ID", found.id),
        ("Size", length.to_string()),
        ("Index", found.index.to_string()),
        ("Version", found.version),
        ("Key", found.key),
        ("Secrets", found.secrets.to_string()),
    ] {
        rows.push(row(&[title, &value]));
    }
    let mut tables = vec![row(&["TYPE", "COUNT", "SIZE"])];
    for (name, count, bytes) in found.tables {
        tables.push(row(&[name, &count.to_string(), &bytes.to_string()]));
    }
    print(escaped_lines(&(table(&rows) + "\n" + &table(&tables))).as_bytes())
}
