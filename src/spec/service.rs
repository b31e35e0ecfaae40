//! The `service` blocks of a job file.

use std::time::Duration;

use super::Pos;
use crate::spec::collections::BTreeMap;

/// Who is asked to register a service. Here both are one registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's providers")]
pub enum ServiceProvider {
    Nomad,
    Consul,
}

impl ServiceProvider {
    /// Nomad's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ServiceProvider::Nomad => "nomad",
            ServiceProvider::Consul => "consul",
        }
    }
}

/// Whose address a service, or a check, has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AddressMode {
    /// The driver's network where it asks for that, else the host's.
    Auto,
    /// The allocation's address in its own network.
    Alloc,
    /// Its IPv6 address there.
    AllocIpv6,
    /// The address that the driver gave to the task.
    Driver,
    /// The host's address and port.
    Host,
}

impl AddressMode {
    /// Nomad's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            AddressMode::Auto => "auto",
            AddressMode::Alloc => "alloc",
            AddressMode::AllocIpv6 => "alloc_ipv6",
            AddressMode::Driver => "driver",
            AddressMode::Host => "host",
        }
    }
}

/// What a check means for the health of an allocation that is deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum OnUpdate {
    /// It has to pass.
    #[default]
    RequireHealthy,
    /// A warning is good enough.
    IgnoreWarnings,
    /// It is not looked at.
    Ignore,
}

impl OnUpdate {
    /// Nomad's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            OnUpdate::RequireHealthy => "require_healthy",
            OnUpdate::IgnoreWarnings => "ignore_warnings",
            OnUpdate::Ignore => "ignore",
        }
    }
}

/// A `service` block. What may hold references (`${...}`) is not yet interpolated.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Service {
    /// What it is asked for by.
    pub name: String,
    /// See [`ServiceProvider`].
    pub provider: ServiceProvider,
    /// Label of a port, or its number; empty for a service without one.
    pub port: String,
    /// In the order of the job file.
    pub tags: Vec<String>,
    /// The tags of a canary; an agent's business.
    pub canary_tags: Vec<String>,
    /// Metadata.
    pub meta: BTreeMap<String, String>,
    /// The metadata of a canary; an agent's business.
    pub canary_meta: BTreeMap<String, String>,
    /// More addresses, by what they are for.
    pub tagged_addresses: BTreeMap<String, String>,
    /// Where it is, when that is somewhere else; empty leaves it to the mode.
    pub address: String,
    /// See [`AddressMode`].
    pub address_mode: AddressMode,
    /// Of a service of the group: the task that its scripts run in and its failing checks restart; empty for none.
    pub task: String,
    /// Consul's catalog may change its tags; there is none here.
    pub enable_tag_override: bool,
    /// Consul's cluster.
    pub cluster: String,
    /// Consul's kind of service.
    pub kind: String,
    /// Consul's weights in DNS answers while it passes, and while it warns.
    pub weights: Option<(u32, u32)>,
    /// Unless a check says something else.
    pub on_update: OnUpdate,
    /// What finds out whether it works.
    pub checks: Vec<Check>,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// How a check finds out.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum CheckKind {
    /// A connection can be made.
    Tcp,
    /// A request is answered well.
    Http(HttpCheck),
    /// `grpc.health.v1` says that it serves.
    Grpc(GrpcCheck),
    /// A command inside the task ends with 0; with 1 it is a warning.
    Script(ScriptCheck),
}

impl Service {
    /// Whether a service can have this name (RFC 1123).
    pub(crate) fn is_name(name: &str) -> bool {
        (1..=63).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !name.starts_with('-')
            && !name.ends_with('-')
    }
}

impl CheckKind {
    /// Nomad's word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            CheckKind::Tcp => "tcp",
            CheckKind::Http(_) => "http",
            CheckKind::Grpc(_) => "grpc",
            CheckKind::Script(_) => "script",
        }
    }
}

/// What is asked over http.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HttpCheck {
    /// `https` instead of `http`.
    pub tls: bool,
    /// Any certificate will do.
    pub tls_skip_verify: bool,
    /// Whose certificate it has to be; empty is the address.
    pub tls_server_name: String,
    /// Path and query.
    pub path: String,
    /// `GET` unless given.
    pub method: String,
    /// By name; each may come several times.
    pub headers: BTreeMap<String, Vec<String>>,
    /// What is sent.
    pub body: String,
}

/// What is asked over gRPC.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GrpcCheck {
    /// The service that is asked about; empty is the whole server.
    pub service: String,
    /// With TLS.
    pub tls: bool,
    /// Any certificate will do.
    pub tls_skip_verify: bool,
    /// Whose certificate it has to be; empty is the address.
    pub tls_server_name: String,
}

/// What is run inside a task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScriptCheck {
    /// The command.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Of a group's service: where it runs; else the service's own task.
    pub task: String,
}

/// What a check has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// All is well.
    Passing,
    /// It works, more or less.
    Warning,
    /// Nothing yet.
    #[default]
    Pending,
    /// It does not work.
    Critical,
}

impl CheckStatus {
    /// Consul's word; Nomad's for what is not known yet.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            CheckStatus::Passing => "passing",
            CheckStatus::Warning => "warning",
            CheckStatus::Pending => "pending",
            CheckStatus::Critical => "critical",
        }
    }
}

/// A `check` block. What may hold references (`${...}`) is not yet interpolated.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Check {
    /// For people; unique in its service.
    pub name: String,
    /// See [`CheckKind`].
    pub kind: CheckKind,
    /// Label of a port, or its number; empty is the service's.
    pub port: String,
    /// Whose address is asked; `None` leaves it to us.
    pub address_mode: Option<AddressMode>,
    /// Between the beginnings of two tries.
    pub interval: Duration,
    /// How long a try may take.
    pub timeout: Duration,
    /// Before the first try; `None` leaves it to the provider.
    pub initial_status: Option<CheckStatus>,
    /// So many successes in a row before it passes; 0 is as 1.
    pub success_before_passing: u32,
    /// So many failures in a row before it is critical; 0 is as 1.
    pub failures_before_critical: u32,
    /// So many failures in a row before it is a warning; `None` is as many as make it critical.
    pub failures_before_warning: Option<u32>,
    /// When the task is restarted.
    pub restart: Option<CheckRestart>,
    /// See [`OnUpdate`].
    pub on_update: OnUpdate,
    /// For people.
    pub notes: String,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// The `check_restart` of a check, with what its service says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CheckRestart {
    /// After so many unhealthy results in a row; 0 is never.
    pub limit: u32,
    /// What is found so soon after the task's start does not count.
    pub grace: Duration,
    /// A warning is healthy.
    pub ignore_warnings: bool,
}
