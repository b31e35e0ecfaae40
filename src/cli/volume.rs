//! `agentbin volume` and `agentbin plugin status`: volumes and CSI plugins of this machine's agent, over its API.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::api::{Api, ListArgs, OneArgs, about, failed, list, part, print_json, print_list, text};
use super::runs::{row, table};
use super::volume_file::{self, CSI, KINDS};
use super::{ApiArgs, SocketArgs, print};
use crate::spec::escaped_lines;
use crate::spec::json::json;

#[derive(Debug, clap::Subcommand)]
pub(super) enum VolumeCommand {
    /// List volumes, or show one
    Status(StatusArgs),
    /// Have a plugin create the volume of a specification, and print its id
    Create(FileArgs),
    /// Register a volume that exists already, and print its id
    Register(FileArgs),
    /// Have the plugin of a volume delete it, with its data
    Delete(RemoveArgs),
    /// Deregister a CSI volume; its data stays
    Deregister(RemoveArgs),
    /// Unmount a CSI volume whose allocations have ended
    Detach(DetachArgs),
    /// Write an example of a specification into a file
    Init(InitArgs),
    /// Claims of groups on the sticky host volumes that they have used
    #[command(subcommand)]
    Claim(ClaimCommand),
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum ClaimCommand {
    /// List the claims
    List(ListArgs),
    /// Delete a claim: the next allocation of its group may use another volume
    Delete(OneArgs),
}

#[derive(Debug, clap::Args)]
pub(super) struct InitArgs {
    /// The file, which must not exist
    #[arg(default_value = "volume.hcl")]
    file: PathBuf,
    /// The kind of volume
    #[arg(long = "type", value_name = "KIND", value_parser = KINDS, default_value = "host")]
    kind: String,
}

#[derive(Debug, clap::Args)]
pub(super) struct StatusArgs {
    /// Id of a volume, or the beginning of one
    volume: Option<String>,
    /// Only volumes of this kind
    #[arg(long = "type", value_name = "KIND", value_parser = KINDS)]
    kind: Option<String>,
    /// Print JSON, as the API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct FileArgs {
    /// Specification of the volume, in HCL or JSON; - reads it from standard input
    file: PathBuf,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct RemoveArgs {
    /// Id of a volume, or the beginning of one
    volume: String,
    /// Only volumes of this kind
    #[arg(long = "type", value_name = "KIND", value_parser = KINDS)]
    kind: Option<String>,
    /// Also if allocations use it, or its plugin fails
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct DetachArgs {
    /// Id of a volume, or the beginning of one
    volume: String,
    /// Id of the node, or the beginning of it; there is only one
    node: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
pub(super) struct PluginStatusArgs {
    /// Id of a plugin
    plugin: Option<String>,
    /// Print JSON, as the API has it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: SocketArgs,
}

/// Whatever fails is status 1, as with Nomad's command.
pub(super) fn run(command: &VolumeCommand) -> i32 {
    failed(match command {
        VolumeCommand::Status(args) => status(args),
        VolumeCommand::Create(args) => put(args, "create"),
        VolumeCommand::Register(args) => put(args, "register"),
        VolumeCommand::Delete(args) => delete(args),
        VolumeCommand::Deregister(args) => deregister(args),
        VolumeCommand::Detach(args) => detach(args),
        VolumeCommand::Init(args) => init(args),
        VolumeCommand::Claim(ClaimCommand::List(args)) => claims(args),
        VolumeCommand::Claim(ClaimCommand::Delete(args)) => delete_claim(args),
    })
}

/// `agentbin plugin status`.
pub(super) fn plugin_status(args: &PluginStatusArgs) -> i32 {
    failed(plugins(args))
}

/// The volumes of these kinds whose ids begin so.
fn found(api: &Api, kind: Option<&str>, prefix: &str) -> anyhow::Result<Vec<(&'static str, Value)>> {
    let mut all = Vec::new();
    for one in KINDS.into_iter().filter(|one| kind.is_none_or(|kind| kind == *one)) {
        let answer = api.get(&format!("volumes?type={one}&prefix={}", part(prefix)))?;
        all.extend(list(&answer).iter().map(|volume| (one, volume.clone())));
    }
    Ok(all)
}

/// The only volume that a word is the id or the beginning of the id of.
fn find(api: &Api, kind: Option<&str>, word: &str) -> anyhow::Result<(&'static str, String)> {
    let all = found(api, kind, word)?;
    let mut meant: Vec<_> = all.iter().filter(|(_, volume)| text(volume, "ID") == word).collect();
    if meant.is_empty() {
        meant = all.iter().collect();
    }
    match meant[..] {
        [(kind, volume)] => Ok((*kind, text(volume, "ID").to_owned())),
        [] => bail!("the agent has no volume {word:?}; agentbin volume status lists them"),
        _ => {
            let ids: Vec<&str> = meant.iter().map(|(_, volume)| text(volume, "ID")).collect();
            bail!("{word:?} is the beginning of several ids: {}; give a whole id, or --type", ids.join(", "))
        }
    }
}

fn status(args: &StatusArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let Some(given) = &args.volume else {
        let all = found(&api, args.kind.as_deref(), "")?;
        if args.json {
            return print_json(&all.into_iter().map(|(_, volume)| volume).collect());
        }
        let mut rows = vec![row(&["ID", "TYPE", "NAME", "PLUGIN", "STATE"])];
        for (kind, volume) in &all {
            let state = match kind {
                &"host" => text(volume, "State"),
                _ if volume["Schedulable"] == true => "schedulable",
                _ => "not schedulable",
            };
            let cells = [text(volume, "ID"), kind, text(volume, "Name"), text(volume, "PluginID"), state];
            rows.push(row(&cells));
        }
        return print(escaped_lines(&table(&rows)).as_bytes());
    };
    let (kind, id) = find(&api, args.kind.as_deref(), given)?;
    let volume = api.get(&format!("volume/{kind}/{}?", part(&id)))?;
    if args.json {
        return print_json(&volume);
    }
    let members: &[(&str, &str)] = match kind {
        "csi" => &[
            ("ID", "ID"),
            ("Name", "Name"),
            ("Namespace", "Namespace"),
            ("External ID", "ExternalID"),
            ("Plugin ID", "PluginID"),
            ("Provider", "Provider"),
            ("Capacity", "Capacity"),
            ("Schedulable", "Schedulable"),
            ("Access Mode", "AccessMode"),
            ("Attachment Mode", "AttachmentMode"),
        ],
        _ => &[
            ("ID", "ID"),
            ("Name", "Name"),
            ("Namespace", "Namespace"),
            ("Plugin ID", "PluginID"),
            ("State", "State"),
            ("Capacity", "CapacityBytes"),
            ("Host Path", "HostPath"),
        ],
    };
    let mut out = about(&volume, members);
    let users = list(&volume["Allocations"]);
    if !users.is_empty() {
        let mut rows = vec![row(&["ALLOC", "JOB", "GROUP", "STATUS"])];
        for alloc in users {
            let id = super::runs::short(text(alloc, "ID"));
            rows.push(row(&[id, text(alloc, "JobID"), text(alloc, "TaskGroup"), text(alloc, "ClientStatus")]));
        }
        out += "\n";
        out += &table(&rows);
    }
    print(escaped_lines(&out).as_bytes())
}

fn put(args: &FileArgs, how: &str) -> anyhow::Result<i32> {
    let (kind, mut volume) = volume_file::read(&args.file)?;
    let api = Api::for_job(&args.api, &mut volume)?;
    let made = if kind == CSI {
        let id = text(&volume, "ID").to_owned();
        ensure!(!id.is_empty(), "{}: it has no id; write id = \"NAME\"", args.file.display());
        let end = if how == "create" { "/create" } else { "" };
        let asked = json!({ "Volumes": [volume] });
        let path = format!("volume/csi/{}{end}?", part(&id));
        api.ask("PUT", &path, &asked.to_string())?["Volumes"][0].take()
    } else {
        let asked = json!({ "Volume": volume });
        api.ask("PUT", &format!("volume/host/{how}?"), &asked.to_string())?["Volume"].take()
    };
    print(escaped_lines(&format!("{}\n", text(&made, "ID"))).as_bytes())
}

fn delete(args: &RemoveArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let (kind, id) = find(&api, args.kind.as_deref(), &args.volume)?;
    api.order("DELETE", &format!("volume/{kind}/{}/delete?force={}", part(&id), args.force), "")
}

fn deregister(args: &RemoveArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let (kind, id) = find(&api, args.kind.as_deref(), &args.volume)?;
    ensure!(kind == CSI, "{id} is a host volume, which agentbin volume delete removes");
    api.order("DELETE", &format!("volume/csi/{}?force={}", part(&id), args.force), "")
}

fn detach(args: &DetachArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let (_, id) = find(&api, Some(CSI), &args.volume)?;
    let nodes = api.get("nodes?")?;
    let node = list(&nodes).first().map(|node| text(node, "ID")).unwrap_or_default();
    if let Some(given) = args.node.as_deref().filter(|given| !node.starts_with(given)) {
        bail!("the agent's node is {node:?}, not {given:?}");
    }
    api.order("DELETE", &format!("volume/csi/{}/detach?node={}", part(&id), part(node)), "")
}

/// What a specification of a host volume says.
const HOST_EXAMPLE: &str = r#"# A directory of this machine for the tasks of a job: agentbin volume create volume.hcl
# A group asks for it with: volume "data" { type = "host" source = "data" }
type      = "host"
name      = "data"
plugin_id = "mkdir"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

# For the plugin: the directory's mode and owner.
# parameters {
#   mode = "0750"
#   uid  = "1000"
#   gid  = "1000"
# }
"#;
/// The same of a CSI volume.
const CSI_EXAMPLE: &str = r#"# A volume of a CSI plugin: agentbin volume create volume.hcl has the plugin create it, and
# agentbin volume register volume.hcl takes one that exists.
# A group asks for it with:
#   volume "data" { type = "csi" source = "data" access_mode = "single-node-writer" attachment_mode = "file-system" }
type      = "csi"
id        = "data"
name      = "data"
plugin_id = "plugin"

# To create it. A larger minimum later expands it.
capacity_min = "1GiB"
capacity_max = "2GiB"

# To register it: the plugin's own id of it.
# external_id = "vol-0123"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

# How it is mounted.
# mount_options {
#   fs_type     = "ext4"
#   mount_flags = ["noatime"]
# }

# For the plugin.
# secrets {
#   password = "..."
# }
# parameters {
#   kind = "fast"
# }
"#;

/// Never writes over a file.
fn init(args: &InitArgs) -> anyhow::Result<i32> {
    let example = if args.kind == CSI { CSI_EXAMPLE } else { HOST_EXAMPLE };
    let file = OpenOptions::new().write(true).create_new(true).open(&args.file);
    let written = file.and_then(|mut file| file.write_all(example.as_bytes()));
    written.with_context(|| format!("cannot create {}", args.file.display()))?;
    print(escaped_lines(&format!("{}\n", args.file.display())).as_bytes())
}

fn claims(args: &ListArgs) -> anyhow::Result<i32> {
    let all = Api::new(&args.api)?.get("volumes/claims?")?;
    let columns = [
        ("ID", "ID"),
        ("NAMESPACE", "Namespace"),
        ("JOB", "JobID"),
        ("GROUP", "TaskGroupName"),
        ("VOLUME", "VolumeName"),
        ("VOLUME ID", "VolumeID"),
    ];
    print_list(&all, args.json, &columns)
}

fn delete_claim(args: &OneArgs) -> anyhow::Result<i32> {
    let api = Api::new(&args.api)?;
    let all = api.get(&format!("volumes/claims?prefix={}", part(&args.id)))?;
    let ids: Vec<&str> = list(&all).iter().map(|claim| text(claim, "ID")).collect();
    match ids[..] {
        [only] => api.order("DELETE", &format!("volumes/claim/{}?", part(only)), ""),
        [] => bail!("there is no claim {:?}; agentbin volume claim list lists them", args.id),
        _ => bail!("{:?} is the beginning of several ids: {}", args.id, ids.join(", ")),
    }
}

fn plugins(args: &PluginStatusArgs) -> anyhow::Result<i32> {
    let api = Api::at(&args.at)?;
    let Some(plugin) = &args.plugin else {
        let columns = [
            ("ID", "ID"),
            ("PROVIDER", "Provider"),
            ("CONTROLLERS HEALTHY", "ControllersHealthy"),
            ("NODES HEALTHY", "NodesHealthy"),
        ];
        return print_list(&api.get("plugins?type=csi")?, args.json, &columns);
    };
    let found = api.get(&format!("plugin/csi/{}?", part(plugin)))?;
    if args.json {
        return print_json(&found);
    }
    let members = [
        ("ID", "ID"),
        ("Provider", "Provider"),
        ("Version", "Version"),
        ("Controllers Healthy", "ControllersHealthy"),
        ("Controllers Expected", "ControllersExpected"),
        ("Nodes Healthy", "NodesHealthy"),
        ("Nodes Expected", "NodesExpected"),
    ];
    print(escaped_lines(&about(&found, &members)).as_bytes())
}
