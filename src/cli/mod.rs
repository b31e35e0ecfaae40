//! The operator's command line. Never contains logic that other modules need.

mod address;
mod agent;
mod alloc_fs;
mod api;
mod args;
mod ask;
mod background;
mod config;
mod deployments;
mod detach;
mod dispatch;
mod doctor;
mod drivers;
mod dry_run;
mod evals;
mod gc;
mod given_networks;
mod given_volumes;
mod job_plan;
mod job_restart;
mod job_tag;
mod jobs;
mod level;
mod log;
mod logs;
mod messages;
mod namespaces;
mod network;
mod networks;
mod node;
mod nodes;
mod notify;
mod operator;
mod output;
mod placement;
mod plan;
mod plugin;
mod plugins;
mod policy;
mod probe;
mod revive;
mod run;
mod runs;
mod service;
mod services;
mod session;
mod shown;
mod signals;
mod supervise;
mod systemd;
mod token;
mod top;
mod upgrade;
mod validate;
mod vars;
mod volume;
mod volume_file;
mod volumes;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _};

use self::api::{ChangeArgs, FindArgs, OneArgs, PromoteArgs, ShowArgs};
use crate::agent::model::Role;
use crate::alloc::{Tell, chain_within};
use crate::net::Subnet;
use crate::spec::{escaped_lines, shortened};

/// Nomad's default signal.
const DEFAULT_SIGNAL: &str = "SIGKILL";
/// Most bytes of one message: some dozen mistakes of a job file.
const LONGEST_COMPLAINT: usize = 32 * 1024;
/// Exit status of `run` when agentbin itself failed.
const CANNOT: i32 = 125;
/// Exit status of `plan` after an error: that of `nomad job plan`.
const NO_PLAN: i32 = 255;

#[derive(Debug, clap::Parser)]
#[command(name = "agentbin", version, about = "Run Nomad jobs on this machine, without a server or a daemon")]
#[command(disable_help_subcommand = true, max_term_width = 100)]
#[command(
    after_help = "A Nomad agent runs it as its task drivers exec, raw_exec, java and docker: see agentbin-driver(8)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// The arguments of a command are made when it is called, also below Of: all of them take longer than many a command.
#[derive(Debug, clap::Subcommand)]
#[command(defer = true)]
enum Command {
    /// Run a job file in the foreground
    Run(Box<RunArgs>),
    /// Print a unit of systemd that runs a job file, with these options of run
    Systemd(Box<RunArgs>),
    /// Check a job file without starting anything
    Validate(ValidateArgs),
    /// Show what would run, and compare it with what is running; exits with 0 if nothing would change, 1 if something would, 255 after
    /// an error
    Plan(Box<RunArgs>),
    /// Run an agent: keep jobs running across restarts of the agent and of the machine, and serve Nomad's HTTP API
    Agent(AgentArgs),
    /// Jobs of the running agent
    Job(Of<JobCommand>),
    /// Allocations of the running agent
    Alloc(Of<AllocCommand>),
    /// Deployments of the running agent
    Deployment(Of<deployments::DeploymentCommand>),
    /// Evaluations of the running agent
    Eval(Of<evals::EvalCommand>),
    /// Variables of the running agent
    Var(Of<vars::VarCommand>),
    /// Namespaces of the running agent
    Namespace(Of<namespaces::NamespaceCommand>),
    /// Services of the running agent
    Service(Of<service::ServiceCommand>),
    /// Volumes of the running agent
    Volume(Of<volume::VolumeCommand>),
    /// HTTP API, metrics, scheduler configuration and snapshots of the running agent
    Operator(Of<operator::OperatorCommand>),
    /// The running agent as a whole
    System(Of<nodes::SystemCommand>),
    /// Tokens for the API of the running agent
    Token(Of<TokenCommand>),
    /// List what runs here
    Ps(PsArgs),
    /// Show what runs here, or all that is known of a job or an allocation
    Status(StatusArgs),
    /// End jobs or allocations, with their tasks' kill signals and timeouts
    Stop(StopArgs),
    /// Restart a task, or all tasks that run; the restart policy does not count it
    Restart(RestartArgs),
    /// Send a signal to a task, or to all tasks that run
    Signal(SignalArgs),
    /// Change the limits of a task, or of all tasks that run, until they are started again
    Update(UpdateArgs),
    /// Run a command inside a running task
    Exec(ExecArgs),
    /// Print the output of a running task, or the kept logs of one that has ended
    Logs(LogsArgs),
    /// Show the resource usage of tasks
    Stats(StatsArgs),
    /// Show running tasks and their resource usage, refreshed every second; c and m sort by CPU and memory, q quits
    Top(TopArgs),
    /// List the services that are registered here, with the state of their checks
    Services(ServicesArgs),
    /// Find and remove what killed runs left behind, and only that
    Gc(GcArgs),
    /// Check which features for running tasks this machine has, what missing ones affect, and how to enable them
    Doctor(DoctorArgs),
    /// This machine as a node
    Node(Of<NodeCommand>),
    /// Networks of allocations
    Network(Of<NetworkCommand>),
    /// Plugins
    Plugin(Of<PluginCommand>),
    /// Take up a run in the background whose supervisor was killed; commands do that by themselves
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Print the version
    Version,
    /// Print a completion script
    Completion {
        /// For which shell
        shell: Shell,
    },
}

// Makes the commands below another one deferred, too. A documentation comment would replace that of the command.
#[derive(Debug, clap::Args)]
struct Of<C: clap::Subcommand> {
    #[command(subcommand)]
    command: C,
}

#[derive(Debug, Clone, clap::Args)]
struct RunArgs {
    /// Job file, HCL2 or JSON; - reads it from standard input
    file: PathBuf,
    /// Set a variable of the job file
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// Read variables from a file
    #[arg(long, value_name = "FILE")]
    var_file: Vec<PathBuf>,
    /// Keep allocations here [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Put the cgroups of tasks below this one, relative to the root of each cgroup hierarchy [default: nomad.slice, on cgroup v1
    /// nomad]
    #[arg(long, value_name = "PATH")]
    cgroup_parent: Option<PathBuf>,
    /// Print what would run, with its ports, volumes and files, and start nothing
    #[arg(long)]
    dry_run: bool,
    /// Refuse a job that there are warnings about
    #[arg(long)]
    strict: bool,
    /// Print one JSON object per event and piece of output
    #[arg(long)]
    json: bool,
    /// Print no events, only the output of the tasks
    #[arg(long)]
    quiet: bool,
    /// Keep the logs of its tasks for agentbin logs when the job has ended
    #[arg(long)]
    keep_logs: bool,
    /// Run in the background: return when the tasks have been started, print the ids of the allocations, and keep the logs
    #[arg(long)]
    detach: bool,
    /// This process is the supervisor of a run in the background
    #[arg(long, hide = true, requires = "detach")]
    supervise: bool,
    /// The command is `plan`
    #[arg(skip)]
    plan: bool,
    /// Stop the job after this time (90s, 5m, 1h30m) and exit with 124
    #[arg(long, value_name = "DURATION", value_parser = args::duration)]
    timeout: Option<Duration>,
    /// Send each line of output there, too: `file:/PATH`, `journald:`, `syslog:unix:/dev/log`, `syslog:udp://HOST:PORT`,
    /// `syslog:tcp://HOST:PORT` or `otlp:http://HOST:PORT`; `@FILE` for the URLs in a file, where passwords belong; may be repeated
    #[arg(long, value_name = "URL")]
    log_sink: Vec<String>,
    /// Values for templates, in JSON or HCL: keys, secrets and variables by their paths; watched for changes
    #[arg(long, value_name = "FILE")]
    kv: Option<PathBuf>,
    /// Give a parameterized job this payload, at most 16 KiB; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Give a parameterized job this metadata; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = args::meta)]
    meta: Vec<(String, String)>,
    /// Define a host network by an address of this machine, or by an interface; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = given_networks::given)]
    host_network: Vec<given_networks::Given>,
    /// Say which directory a host volume of the job file is; with `:ro` no task writes to it; may be repeated
    #[arg(long, value_name = "NAME=PATH[:ro]", value_parser = given_volumes::given)]
    volume: Vec<given_volumes::Given>,
    #[command(flatten)]
    csi: given_volumes::CsiArgs,
    /// Read client settings (volumes, networks, meta, plugins) from a Nomad agent's configuration: a file, or the .hcl and .json
    /// files of a directory; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    config: Vec<PathBuf>,
    /// Use the Nomad driver plugins in this directory beside the built-in drivers; nobody else may be able to write to it
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Find the CNI networks of mode cni/NAME here instead of in /opt/cni/config
    #[arg(long, value_name = "DIR")]
    cni_config_dir: Option<PathBuf>,
    /// Find CNI plugins in these directories, separated by colons, instead of in /opt/cni/bin, /usr/lib/cni and /usr/libexec/cni
    #[arg(long, value_name = "DIRS", value_parser = given_networks::dirs)]
    cni_path: Option<given_networks::Dirs>,
    /// Give the bridge of network mode bridge this subnet instead of 10.126.64.0/20
    #[arg(long, value_name = "SUBNET", value_parser = Subnet::v4)]
    bridge_network_subnet: Option<Subnet>,
    /// Give it this IPv6 subnet, too
    #[arg(long, value_name = "SUBNET", value_parser = Subnet::v6)]
    bridge_network_subnet_ipv6: Option<Subnet>,
    /// Choose dynamic ports from this range
    #[arg(long, value_name = "MIN-MAX", value_parser = given_networks::range, default_value = given_networks::default_range())]
    dynamic_ports: std::ops::RangeInclusive<u16>,
    /// Refuse tasks that ask for less isolation than this level, by whatever key
    #[arg(long, value_name = "LEVEL")]
    isolation_minimum: Option<level::Level>,
    /// Let this driver run tasks although it does not isolate as that level does; may be repeated
    #[arg(long, value_name = "NAME", requires = "isolation_minimum")]
    allow_driver: Vec<String>,
    /// Execute programs in the directories of tasks also where other users can change them
    #[arg(long, conflicts_with = "isolation_minimum")]
    allow_writable_programs: bool,
}

#[derive(Debug, clap::Args)]
struct ValidateArgs {
    /// Job file, HCL2 or JSON; - reads it from standard input
    file: PathBuf,
    /// Set a variable of the job file
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// Read variables from a file
    #[arg(long, value_name = "FILE")]
    var_file: Vec<PathBuf>,
    /// Define a host network by address or interface, as for run; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = given_networks::given)]
    host_network: Vec<given_networks::Given>,
    /// Say which directory a host volume of the job file is, as to run; may be repeated
    #[arg(long, value_name = "NAME=PATH[:ro]", value_parser = given_volumes::given)]
    volume: Vec<given_volumes::Given>,
    #[command(flatten)]
    csi: given_volumes::CsiArgs,
    /// Read client settings from a Nomad agent's configuration, as run does; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    config: Vec<PathBuf>,
    /// Use the Nomad driver plugins in this directory beside the built-in drivers; nobody else may be able to write to it
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print the job as the JSON of Nomad's HTTP API, as `nomad job run -output` does; whether it can run is not asked
    #[arg(long, conflicts_with_all = ["json", "strict"])]
    output_json: bool,
    /// Treat warnings, and anything that cannot run on this machine, as errors
    #[arg(long)]
    strict: bool,
}

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
struct AgentArgs {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    /// Read client settings (volumes, networks, meta, plugins) from a Nomad agent's configuration: a file, or the .hcl and .json
    /// files of a directory; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    config: Vec<PathBuf>,
    /// Keep state and allocations here [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Listen there: `unix:///PATH` or `tcp://ADDRESS:PORT`, which asks for a token; may be repeated [default:
    /// `unix:///run/agentbin/agentbin.sock`, or `$XDG_RUNTIME_DIR/agentbin/agentbin.sock` without root]
    #[arg(long, value_name = "ADDRESS", value_parser = address::address)]
    listen: Vec<address::Address>,
    /// Use the Nomad driver plugins in this directory beside the built-in drivers; nobody else may be able to write to it
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// For trying things out: `raw_exec` is on, jobs end with the agent, and without --data-dir nothing is kept
    #[arg(long)]
    dev: bool,
    /// Put the cgroups of tasks below this one, relative to the root of each cgroup hierarchy [default: nomad.slice, on cgroup v1
    /// nomad]
    #[arg(long, value_name = "PATH")]
    cgroup_parent: Option<PathBuf>,
    /// Recover allocations in the data directory that are missing from the state, after the state was lost
    #[arg(long)]
    adopt_records: bool,
    /// Check the configuration and the data directory, and exit
    #[arg(long)]
    check: bool,
    /// With --check: look at this copy of the state
    #[arg(long, value_name = "DIR", hide = true, requires = "check")]
    check_state: Option<PathBuf>,
    /// The descriptors of the sockets on which the program before this one listened
    #[arg(long, value_name = "NUMBERS", hide = true)]
    inherit: Option<String>,
    /// Minimum level of log messages [default: `log_level` of the configuration, else info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<log::Least>,
}

#[derive(Debug, clap::Subcommand)]
enum AgentCommand {
    /// Upgrade the running agent to the executable that is now at its path, after checking it
    Upgrade(SocketArgs),
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Create a token and print its secret, which cannot be shown again
    Create {
        /// What its owner may do: read; submit, which runs isolated tasks; manage, which is equal to root
        #[arg(long, value_name = "ROLE", value_parser = |text: &str| Role::parse(text).ok_or("it is read, submit or manage"))]
        role: Role,
        /// What it is for
        #[arg(long, value_name = "NAME", default_value = "")]
        name: String,
        /// Expire the token after this time (90s, 8h) [default: never]
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        #[command(flatten)]
        at: SocketArgs,
    },
    /// List the tokens, without their secrets
    List {
        #[command(flatten)]
        at: SocketArgs,
    },
    /// Revoke a token
    Revoke {
        /// Its accessor, as list prints it
        accessor: String,
        #[command(flatten)]
        at: SocketArgs,
    },
}

/// Whose completions there are: each takes some kilobytes (docs/size.md).
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

fn job_id(id: clap::Arg) -> clap::Arg {
    id.value_name("JOB")
}

#[derive(Debug, clap::Subcommand)]
enum JobCommand {
    /// Submit a job to the agent and wait for its deployment; exits with 2 if a group cannot be placed
    Run(JobRunArgs),
    /// List the agent's jobs, or show all that is known of one
    #[command(mut_arg("id", job_id))]
    Status(FindArgs),
    /// Stop jobs, and wait until their tasks have ended
    Stop(JobStopArgs),
    /// Show what a job file would change; the status is 1 if allocations are started or stopped, 0 if none are, 255 after an error
    #[command(mut_arg("detach", |detach| detach.hide(true)))]
    Plan(JobRunArgs),
    /// Start a parameterized job
    Dispatch(JobDispatchArgs),
    /// Change how many allocations a group has
    Scale(JobScaleArgs),
    /// Revert a job to an earlier version
    Revert(JobRevertArgs),
    /// Promote the canaries of a job's latest deployment
    #[command(mut_arg("id", job_id))]
    Promote(PromoteArgs),
    /// List the versions of a job
    #[command(mut_arg("id", job_id))]
    History(ShowArgs),
    /// Print a job in JSON, as the API has it
    #[command(mut_arg("id", job_id))]
    Inspect(OneArgs),
    /// Force an evaluation of a job
    #[command(mut_arg("id", job_id))]
    Eval(ChangeArgs),
    /// List the allocations of a job
    #[command(mut_arg("id", job_id))]
    Allocs(ShowArgs),
    /// List the deployments of a job
    #[command(mut_arg("id", job_id))]
    Deployments(ShowArgs),
    /// Restart the allocations of a job, batch by batch, and wait until each runs again
    Restart(job_restart::RestartArgs),
    /// Names of versions
    #[command(subcommand)]
    Tag(job_tag::TagCommand),
    /// Periodic jobs
    #[command(subcommand)]
    Periodic(PeriodicCommand),
}

#[derive(Debug, clap::Subcommand)]
enum PeriodicCommand {
    /// Start a periodic job now
    #[command(mut_arg("id", job_id))]
    Force(ChangeArgs),
}

#[derive(Debug, clap::Args)]
struct JobDispatchArgs {
    /// Id of a parameterized job, or the beginning of one
    job: String,
    /// File with the payload; - reads it from standard input
    payload: Option<PathBuf>,
    /// Set a key of the job's metadata
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
    /// Do not wait until it is placed
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct JobScaleArgs {
    /// Id of a job, or the beginning of one
    job: String,
    /// The group, which may be left out where a job has one; and the number of allocations
    #[arg(required = true, num_args = 1..=2, value_names = ["GROUP", "COUNT"])]
    count: Vec<String>,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct JobRevertArgs {
    /// Id of a job, or the beginning of one
    job: String,
    /// Number of the version, or its tag
    version: String,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct JobRunArgs {
    /// Job file, HCL2 or JSON; - reads it from standard input
    file: PathBuf,
    /// Set a variable of the job file
    #[arg(long, value_name = "NAME=VALUE")]
    var: Vec<String>,
    /// Read variables from a file
    #[arg(long, value_name = "FILE")]
    var_file: Vec<PathBuf>,
    /// Do not wait; print the id of the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Args)]
struct JobStopArgs {
    /// Ids of jobs, or the beginnings of them
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
    /// Purge the job from the state as well
    #[arg(long)]
    purge: bool,
    /// Do not wait; print the ids of the evaluations
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, clap::Subcommand)]
enum AllocCommand {
    /// Show all that is known of an allocation; as agentbin status
    Status(StatusArgs),
    /// Print the output of a task; as agentbin logs
    Logs(LogsArgs),
    /// Run a command inside a task; as agentbin exec
    Exec(ExecArgs),
    /// Restart tasks; as agentbin restart
    Restart(RestartArgs),
    /// Send a signal to tasks; as agentbin signal
    Signal(SignalArgs),
    /// Stop an allocation; the agent replaces it
    #[command(mut_arg("id", |id| id.value_name("ALLOC")))]
    Stop(ChangeArgs),
    /// List a directory of an allocation, or print a file
    Fs(alloc_fs::FsArgs),
}

#[derive(Debug, clap::Args)]
struct ApiArgs {
    /// The namespace [default: that of the job file, of `NOMAD_NAMESPACE`, or default]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    #[command(flatten)]
    at: SocketArgs,
}

#[derive(Debug, clap::Args)]
struct SocketArgs {
    /// The agent's unix socket [default: that of `NOMAD_ADDR`, else `/run/agentbin/agentbin.sock`, or
    /// `$XDG_RUNTIME_DIR/agentbin/agentbin.sock` without root]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct PsArgs {
    /// List background jobs that have ended, too
    #[arg(short = 'a', long)]
    all: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Job, task, or allocation id or the beginning of one
    target: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct StopArgs {
    /// Job, or allocation id or the beginning of one
    #[arg(required = true)]
    targets: Vec<String>,
    /// Kill at once, without the tasks' kill signals and timeouts
    #[arg(long)]
    now: bool,
    /// Do not wait until nothing is left
    #[arg(long)]
    detach: bool,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct RestartArgs {
    /// Job, task, or allocation id or the beginning of one
    target: String,
    /// Only this task [default: all that run]
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SignalArgs {
    /// Job, task, or allocation id or the beginning of one
    target: String,
    /// The signal
    #[arg(short = 's', long, default_value = DEFAULT_SIGNAL)]
    signal: String,
    /// Only this task [default: all that run]
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct UpdateArgs {
    /// Job, task, or allocation id or the beginning of one
    target: String,
    /// Only this task [default: all that run]
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// CPU shares, as the job file's cpu
    #[arg(long, value_name = "MHZ")]
    cpu: Option<u64>,
    /// Memory, as the job file's memory; without --memory-max, the hard limit
    #[arg(long, value_name = "MIB", allow_negative_numbers = true)]
    memory: Option<i64>,
    /// The most memory, as the job file's `memory_max`; -1 for no limit
    #[arg(long, value_name = "MIB", requires = "memory", allow_negative_numbers = true)]
    memory_max: Option<i64>,
    /// The most processes and threads; 0 for no limit
    #[arg(long, value_name = "COUNT")]
    pids_limit: Option<u64>,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ExecArgs {
    /// Pass standard input to the command
    #[arg(short = 'i', long)]
    stdin: bool,
    /// Give the command a terminal
    #[arg(short = 't', long)]
    tty: bool,
    /// The task [default: the only one]
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Job, task, or allocation id or the beginning of one
    target: String,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct StatsArgs {
    /// Job, task, or allocation id or the beginning of one [default: all that runs]
    target: Option<String>,
    /// Only this task [default: all that run]
    #[arg(long, value_name = "TASK", requires = "target")]
    task: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct TopArgs {
    /// Job, task, or allocation id or the beginning of one [default: all that runs]
    target: Option<String>,
    /// Order the tasks by this
    #[arg(long, value_name = "BY", default_value = "cpu")]
    sort: top::By,
    /// Print one table and end, as without a terminal
    #[arg(long)]
    once: bool,
    /// Print one JSON object and end
    #[arg(long)]
    json: bool,
    /// Only runs with this data directory [default: all runs of this user]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ServicesArgs {
    /// Only those of this name, with their checks
    name: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Where a user without a runtime directory keeps allocations, and what is registered [default: `$XDG_STATE_HOME/agentbin`]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct LogsArgs {
    /// Job, task, or allocation id or the beginning of one
    alloc: String,
    /// Task [default: the only one]
    task: Option<String>,
    /// The task, as a flag
    #[arg(long = "task", value_name = "TASK", conflicts_with = "task")]
    task_flag: Option<String>,
    /// Follow the output until the allocation ends; both streams if none is named
    #[arg(short = 'f', long)]
    follow: bool,
    /// Print stdout
    #[arg(long)]
    stdout: bool,
    /// Print stderr
    #[arg(long)]
    stderr: bool,
    /// Show the end of the output: the last 10 lines, or as given by --tail=LINES, -n or -c
    #[arg(long, value_name = "LINES", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tail: Option<args::Tail>,
    /// Begin this many lines before the end
    #[arg(short = 'n', long, value_name = "LINES", conflicts_with = "bytes")]
    lines: Option<u64>,
    /// Begin this many bytes before the end
    #[arg(short = 'c', long, value_name = "BYTES")]
    bytes: Option<u64>,
    /// Where allocations are kept [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct SuperviseArgs {
    /// Be it, instead of starting it
    #[arg(long)]
    here: bool,
    /// Where its allocations are kept
    data_dir: PathBuf,
    /// Its id
    run: String,
}

#[derive(Debug, clap::Args)]
struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Also end background runs whose supervisor was killed, and the allocations of the agent
    #[arg(long)]
    abandoned: bool,
    /// Remove logs that were kept (run --keep-logs) and that nobody wrote to for this time (168h)
    #[arg(long, value_name = "DURATION", value_parser = args::duration)]
    kept_logs: Option<Duration>,
    /// Where allocations are kept [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Start a task at each level and measure from inside how well it is isolated
    #[arg(long)]
    probe: bool,
    /// Only this level of the probe
    #[arg(long, value_name = "LEVEL", requires = "probe")]
    level: Option<probe::Level>,
    /// Where the probes' allocations are made [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR", requires = "probe")]
    data_dir: Option<PathBuf>,
    /// Put the cgroups of probes below this one, relative to the root of each cgroup hierarchy [default: nomad.slice, on cgroup v1
    /// nomad]
    #[arg(long, value_name = "PATH", requires = "probe")]
    cgroup_parent: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum NodeCommand {
    /// Print what an agent on this machine publishes of it: attributes, drivers, resources
    Status(NodeStatusArgs),
    /// Drain the node, or stop draining it
    Drain(nodes::DrainArgs),
    /// Set the scheduling eligibility of the node
    Eligibility(nodes::EligibilityArgs),
}

#[derive(Debug, clap::Args)]
struct NodeStatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Where the node's id is kept [default: /var/lib/agentbin, or `$XDG_STATE_HOME/agentbin` without root]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The cgroup whose cores can be reserved, as given to run [default: nomad.slice, on cgroup v1 nomad]
    #[arg(long, value_name = "PATH")]
    cgroup_parent: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum NetworkCommand {
    /// List the networks of allocations and their owners
    Status(NetworkStatusArgs),
}

#[derive(Debug, clap::Args)]
struct NetworkStatusArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum PluginCommand {
    /// Start a driver plugin and call its rpcs by hand
    Launch(PluginLaunchArgs),
    /// List the CSI plugins of the running agent, or show one
    Status(volume::PluginStatusArgs),
}

#[derive(Debug, clap::Args)]
struct PluginLaunchArgs {
    /// The plugin's program
    binary: PathBuf,
    /// Its arguments
    args: Vec<OsString>,
    /// Its configuration, HCL or JSON: what stands in config { ... } of the agent's plugin block
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command line `args` (the program's name first) and returns the exit status.
#[must_use]
pub fn run(args: Vec<OsString>) -> i32 {
    let mut command = Cli::command();
    let args = args::go_flags(args, &command);
    let parsed = command
        .try_get_matches_from_mut(args)
        .and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command)));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // If stdout or stderr is closed, there is no way to report it.
            let _ = error.print();
            return if error.use_stderr() { CANNOT } else { 0 };
        }
    };
    let on_error = if matches!(cli.command, Command::Plan(_)) { NO_PLAN } else { CANNOT };
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Plan(args) => run::run(&RunArgs { dry_run: true, plan: true, detach: false, ..*args }),
        Command::Systemd(args) => systemd::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Agent(AgentArgs { command: Some(AgentCommand::Upgrade(args)), .. }) => ask::upgrade(&args),
        Command::Agent(args) => agent::run(&args),
        Command::Job(Of { command }) => Ok(jobs::run_command(&command)),
        Command::Alloc(Of { command: AllocCommand::Status(args) }) => runs::status(&args),
        Command::Alloc(Of { command: AllocCommand::Logs(args) }) => logs::run(&args),
        Command::Alloc(Of { command: AllocCommand::Exec(args) }) => session::exec(&args),
        Command::Alloc(Of { command: AllocCommand::Restart(args) }) => runs::restart(&args),
        Command::Alloc(Of { command: AllocCommand::Signal(args) }) => runs::signal(&args),
        Command::Alloc(Of { command: AllocCommand::Stop(args) }) => Ok(jobs::stop_alloc(&args)),
        Command::Alloc(Of { command: AllocCommand::Fs(args) }) => Ok(alloc_fs::run(&args)),
        Command::Token(Of { command }) => token::run(&command),
        Command::Ps(args) => runs::ps(&args),
        Command::Status(args) => runs::status(&args),
        Command::Stop(args) => runs::stop(&args),
        Command::Restart(args) => runs::restart(&args),
        Command::Signal(args) => runs::signal(&args),
        Command::Update(args) => runs::update(&args),
        Command::Exec(args) => session::exec(&args),
        Command::Stats(args) => runs::stats(&args),
        Command::Top(args) => top::top(&args),
        Command::Services(args) => services::run(&args),
        Command::Logs(args) => logs::run(&args),
        Command::Gc(args) => gc::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Node(Of { command: NodeCommand::Status(args) }) => node::status(&args),
        Command::Node(Of { command: NodeCommand::Drain(args) }) => Ok(nodes::drain(&args)),
        Command::Node(Of { command: NodeCommand::Eligibility(args) }) => Ok(nodes::eligibility(&args)),
        Command::Deployment(Of { command }) => Ok(deployments::run(&command)),
        Command::Eval(Of { command }) => Ok(evals::run(&command)),
        Command::Var(Of { command }) => Ok(vars::run(&command)),
        Command::Namespace(Of { command }) => Ok(namespaces::run(&command)),
        Command::Service(Of { command }) => Ok(service::run(&command)),
        Command::Volume(Of { command }) => Ok(volume::run(&command)),
        Command::Operator(Of { command }) => Ok(operator::run(&command)),
        Command::System(Of { command }) => Ok(nodes::system(&command)),
        Command::Network(Of { command: NetworkCommand::Status(args) }) => network::status(&args),
        Command::Plugin(Of { command: PluginCommand::Launch(args) }) => plugin::launch(&args),
        Command::Plugin(Of { command: PluginCommand::Status(args) }) => Ok(volume::plugin_status(&args)),
        Command::Supervise(args) => supervise::run(&args),
        Command::Version => print(format!("agentbin {}\n", env!("CARGO_PKG_VERSION")).as_bytes()),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            let (command, name) = (&mut Cli::command(), "agentbin");
            match shell {
                Shell::Bash => clap_complete::generate(clap_complete::shells::Bash, command, name, &mut script),
                Shell::Zsh => clap_complete::generate(clap_complete::shells::Zsh, command, name, &mut script),
                Shell::Fish => clap_complete::generate(clap_complete::shells::Fish, command, name, &mut script),
            }
            print(&script)
        }
    };
    done.unwrap_or_else(|error| {
        complain(&chain_within(error.as_ref(), LONGEST_COMPLAINT));
        on_error
    })
}

/// Writes the result of a command to stdout.
fn print(bytes: &[u8]) -> anyhow::Result<i32> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("cannot write to standard output")?;
    Ok(0)
}

/// Reports a problem on stderr. The text may contain untrusted parts, so control characters in its lines are escaped.
fn complain(text: &str) {
    let text = shortened(text, LONGEST_COMPLAINT);
    let Some(when) = messages::when() else { return };
    // If stderr is closed, only the exit status remains.
    let _ = writeln!(std::io::stderr(), "{when}agentbin: {}", escaped_lines(&text));
}

/// The same for the layers below the command line.
fn tell() -> Tell {
    std::sync::Arc::new(complain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_deferred_does_not_change_what_a_command_does() {
        let (lazy, mut all) = (Cli::command(), Cli::command());
        all.build();
        for command in lazy.get_subcommands() {
            assert_eq!(command.get_arguments().count(), 0, "{command} is not deferred");
            let built = all.find_subcommand(command.get_name()).unwrap();
            let told = |command: &clap::Command| command.get_about().map(ToString::to_string);
            assert!(told(command).is_some());
            assert_eq!((told(built), built.is_hide_set()), (told(command), command.is_hide_set()), "{command}");
        }
    }

    #[test]
    fn a_wrong_command_line_is_125() {
        let status = |args: &[&str]| run(args.iter().map(OsString::from).collect());
        assert_eq!(status(&["agentbin", "run"]), 125);
        assert_eq!(status(&["agentbin", "frobnicate"]), 125);
        assert_eq!(status(&["agentbin", "run", "/no/such/file.hcl"]), 125);
        assert_eq!(status(&["agentbin", "--version"]), 0);
    }
}
