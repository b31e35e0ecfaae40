//! Services of groups and tasks, and their checks.

use std::time::Duration;

use super::diag::did_you_mean;
use super::schema::{CHECK, CHECK_RESTART, FREE, SERVICE, SERVICE_WEIGHTS};
use super::section::{Expanded, Section};
use crate::spec::collections::BTreeMap;
use crate::spec::{
    AddressMode, Check, CheckKind, CheckRestart, CheckStatus, GrpcCheck, HttpCheck, Network, OnUpdate, Pos,
    ScriptCheck, Service, ServiceProvider, Task,
};

/// Said once, however many services there are.
const CONSUL: &str = "there is no Consul here: services are registered with agentbin itself, where `agentbin services` and \
                      templates find them; write provider = \"nomad\" to say so";
/// Least time between two tries of a check, and for one.
const LEAST: Duration = Duration::from_secs(1);
/// Most services of a group or task, and most checks of a service.
const MOST: usize = 64;

/// The `service` blocks of a group or task; `name` is what one is called that has no name.
pub(super) fn services(owner: &Section<'_>, name: &str) -> Vec<Service> {
    let blocks: Vec<_> = owner.blocks_of("service").collect();
    if let Some(further) = blocks.get(MOST) {
        owner.refuse(further.pos, format!("{} has more than {MOST} services; keep fewer", owner.name));
    }
    blocks.into_iter().map(|block| service(owner, block, name)).collect()
}

fn service(owner: &Section<'_>, block: &Expanded<'_>, default: &str) -> Service {
    let section = Section::open(format!("service of {}", owner.name), block, &SERVICE, owner.sink);
    let given = section.string("name").filter(|name| !name.is_empty());
    let name = given.unwrap_or_else(|| default.to_owned());
    if !name.contains("${") && !Service::is_name(&name) {
        let message = format!(
            "\"{name}\" cannot be the name of a service: use letters, digits and dashes, 63 at most; give {} another name",
            section.name
        );
        section.refuse(section.pos_of("name"), message);
    }
    let provider = match section.string("provider").as_deref() {
        Some("nomad") => ServiceProvider::Nomad,
        None | Some("" | "consul") => ServiceProvider::Consul,
        Some(other) => {
            let hint = did_you_mean(other, ["nomad", "consul"]);
            section
                .error(section.pos_of("provider"), format!("unknown provider \"{other}\"{hint}; use nomad or consul"));
            ServiceProvider::Nomad
        }
    };
    if provider == ServiceProvider::Consul {
        section.sink.warn(section.pos, CONSUL);
    }
    let restart = section.child("check_restart", &CHECK_RESTART).map(|s| RestartFields::of(&s)).unwrap_or_default();
    let on_update = on_update(&section);
    let port = section.string("port").unwrap_or_default();
    let blocks: Vec<_> = section.blocks_of("check").collect();
    if let Some(further) = blocks.get(MOST) {
        section.refuse(further.pos, format!("{} has more than {MOST} checks; keep fewer", section.name));
    }
    let task = section.string("task").unwrap_or_default();
    let on_update = on_update.unwrap_or_default();
    let around = Around { service: &name, port: &port, task: &task, provider, restart, on_update };
    let checks = blocks.into_iter().filter_map(|block| check(&section, block, &around)).collect();
    Service {
        provider,
        tags: section.texts("tags").unwrap_or_default(),
        canary_tags: section.texts("canary_tags").unwrap_or_default(),
        meta: section.strings("meta"),
        canary_meta: section.strings("canary_meta"),
        tagged_addresses: section.strings("tagged_addresses"),
        address: section.string("address").unwrap_or_default(),
        address_mode: address_mode(&section).unwrap_or(AddressMode::Auto),
        enable_tag_override: section.bool("enable_tag_override").unwrap_or(false),
        cluster: section.string("cluster").unwrap_or_default(),
        kind: section.string("kind").unwrap_or_default(),
        weights: section
            .child("weights", &SERVICE_WEIGHTS)
            .map(|weights| (weights.int("passing", 0).unwrap_or(1), weights.int("warning", 0).unwrap_or(1))),
        on_update,
        checks,
        pos: section.pos.clone(),
        name,
        port,
        task,
    }
}

fn address_mode(section: &Section<'_>) -> Option<AddressMode> {
    match section.string("address_mode").as_deref() {
        None | Some("") => None,
        Some("auto") => Some(AddressMode::Auto),
        Some("alloc") => Some(AddressMode::Alloc),
        Some("alloc_ipv6") => Some(AddressMode::AllocIpv6),
        Some("driver") => Some(AddressMode::Driver),
        Some("host") => Some(AddressMode::Host),
        Some(other) => {
            let hint = did_you_mean(other, ["auto", "alloc", "alloc_ipv6", "driver", "host"]);
            let message =
                format!("unknown address_mode \"{other}\"{hint}; use auto, alloc, alloc_ipv6, driver or host");
            section.error(section.pos_of("address_mode"), message);
            None
        }
    }
}

fn on_update(section: &Section<'_>) -> Option<OnUpdate> {
    match section.string("on_update").as_deref() {
        None | Some("") => None,
        Some("require_healthy") => Some(OnUpdate::RequireHealthy),
        Some("ignore_warnings") => Some(OnUpdate::IgnoreWarnings),
        Some("ignore") => Some(OnUpdate::Ignore),
        Some(other) => {
            let hint = did_you_mean(other, ["require_healthy", "ignore_warnings", "ignore"]);
            let message =
                format!("unknown on_update \"{other}\"{hint}; use require_healthy, ignore_warnings or ignore");
            section.error(section.pos_of("on_update"), message);
            None
        }
    }
}

/// The arguments of a `check_restart` block that were given.
#[derive(Debug, Clone, Copy, Default)]
struct RestartFields {
    given: bool,
    limit: Option<u32>,
    grace: Option<Duration>,
    ignore_warnings: Option<bool>,
}

impl RestartFields {
    fn of(section: &Section<'_>) -> RestartFields {
        RestartFields {
            given: true,
            limit: section.int("limit", 0),
            grace: section.duration("grace"),
            ignore_warnings: section.bool("ignore_warnings"),
        }
    }

    /// These fields where they are given, else the service's.
    fn over(self, service: RestartFields) -> Option<CheckRestart> {
        (self.given || service.given).then(|| CheckRestart {
            limit: self.limit.or(service.limit).unwrap_or(0),
            grace: self.grace.or(service.grace).unwrap_or(Duration::from_secs(1)),
            ignore_warnings: self.ignore_warnings.or(service.ignore_warnings).unwrap_or(false),
        })
    }
}

/// What a check needs to know of its service.
struct Around<'a> {
    service: &'a str,
    port: &'a str,
    task: &'a str,
    provider: ServiceProvider,
    restart: RestartFields,
    on_update: OnUpdate,
}

fn check(service: &Section<'_>, block: &Expanded<'_>, around: &Around<'_>) -> Option<Check> {
    let section = Section::open(format!("check of {}", service.name), block, &CHECK, service.sink);
    let given = section.string("name").filter(|name| !name.is_empty());
    let name = given.unwrap_or_else(|| format!("service: \"{}\" check", around.service));
    if section.bool("expose") == Some(true) {
        let message = format!("expose in {} needs a proxy of Connect, and there is none here; remove it", section.name);
        section.refuse(section.pos_of("expose"), message);
    }
    let kind = kind(&section, around.task);
    let port = section.string("port").unwrap_or_default();
    if kind.as_ref().is_some_and(|kind| !matches!(kind, CheckKind::Script(_)))
        && port.is_empty()
        && around.port.is_empty()
    {
        let message = format!("{} has no port, and its service has none; add port = \"LABEL\"", section.name);
        section.refuse(section.pos, message);
    }
    let time = |name: &str, example: &str| {
        let given = section.duration(name);
        if given.is_none_or(|given| given < LEAST) && section.attr(name).is_none() {
            section.refuse(section.pos, format!("{} has no {name}; add {name} = \"{example}\"", section.name));
        } else if given.is_some_and(|given| given < LEAST) {
            let message = format!("{name} in {} must be at least 1s; make it {name} = \"{example}\"", section.name);
            section.refuse(section.pos_of(name), message);
        }
        given.unwrap_or(LEAST).max(LEAST)
    };
    let (interval, timeout) = (time("interval", "10s"), time("timeout", "2s"));
    let restart = section.child("check_restart", &CHECK_RESTART).map(|s| RestartFields::of(&s)).unwrap_or_default();
    let initial = match section.string("initial_status").as_deref() {
        None | Some("") => (around.provider == ServiceProvider::Consul).then_some(CheckStatus::Critical),
        Some("passing") => Some(CheckStatus::Passing),
        Some("warning") => Some(CheckStatus::Warning),
        Some("critical") => Some(CheckStatus::Critical),
        Some("pending") => Some(CheckStatus::Pending),
        Some(other) => {
            let hint = did_you_mean(other, ["passing", "warning", "critical", "pending"]);
            let message = format!("unknown initial_status \"{other}\"{hint}; use passing, warning or critical");
            section.error(section.pos_of("initial_status"), message);
            None
        }
    };
    // Nomad takes a negative number for none.
    let times = |name: &str| {
        let given = section.int::<i64>(name, i128::from(i64::MIN))?;
        Some(u32::try_from(given.max(0)).unwrap_or(u32::MAX))
    };
    Some(Check {
        name,
        kind: kind?,
        port,
        address_mode: address_mode(&section),
        interval,
        timeout,
        initial_status: initial,
        success_before_passing: times("success_before_passing").unwrap_or(0),
        failures_before_critical: times("failures_before_critical").unwrap_or(0),
        failures_before_warning: times("failures_before_warning"),
        restart: restart.over(around.restart).filter(|restart| restart.limit > 0),
        on_update: on_update(&section).unwrap_or(around.on_update),
        notes: section.string("notes").unwrap_or_default(),
        pos: section.pos.clone(),
    })
}

/// What is done; a script in the service's task, unless it names another one.
fn kind(section: &Section<'_>, of_service: &str) -> Option<CheckKind> {
    let text = |name: &str| section.string(name).unwrap_or_default();
    let tls_skip_verify = section.bool("tls_skip_verify").unwrap_or(false);
    match text("type").to_lowercase().as_str() {
        "tcp" => Some(CheckKind::Tcp),
        kind @ ("http" | "https") => {
            let path = text("path");
            if path.is_empty() {
                section.refuse(section.pos, format!("{} has no path; add path = \"/\"", section.name));
            }
            let protocol = text("protocol");
            if !matches!(protocol.to_lowercase().as_str(), "" | "http" | "https") {
                let message = format!("unknown protocol \"{protocol}\" in {}; use http or https", section.name);
                section.refuse(section.pos_of("protocol"), message);
            }
            let method = text("method");
            Some(CheckKind::Http(HttpCheck {
                tls: kind == "https" || protocol.eq_ignore_ascii_case("https"),
                tls_skip_verify,
                tls_server_name: text("tls_server_name"),
                path,
                method: if method.is_empty() { "GET".to_owned() } else { method },
                headers: headers(section),
                body: text("body"),
            }))
        }
        "grpc" => Some(CheckKind::Grpc(GrpcCheck {
            service: text("grpc_service"),
            tls: section.bool("grpc_use_tls").unwrap_or(false),
            tls_skip_verify,
            tls_server_name: text("tls_server_name"),
        })),
        "script" => {
            let command = text("command");
            if command.is_empty() {
                section.refuse(section.pos, format!("{} has no command; add command = \"/bin/...\"", section.name));
            }
            let args = section.texts("args").unwrap_or_default();
            let task = section.string("task").filter(|task| !task.is_empty());
            let task = task.unwrap_or_else(|| of_service.to_owned());
            Some(CheckKind::Script(ScriptCheck { command, args, task }))
        }
        "" => {
            section.refuse(
                section.pos,
                format!("{} has no type; add type = \"tcp\", or http, grpc, script", section.name),
            );
            None
        }
        other => {
            let hint = did_you_mean(other, ["tcp", "http", "grpc", "script"]);
            let message = format!("unknown type of check \"{other}\"{hint}; use tcp, http, grpc or script");
            section.refuse(section.pos_of("type"), message);
            None
        }
    }
}

/// Each header is a list of values; one alone is a list of one.
fn headers(section: &Section<'_>) -> BTreeMap<String, Vec<String>> {
    let mut out = BTreeMap::new();
    let Some(block) = section.child("header", &FREE) else { return out };
    for attr in block.attrs() {
        let Some(value) = block.eval(&attr.value) else { continue };
        let alone = value.to_text().map(|text| vec![text]);
        let values = alone.or_else(|| value.elements()?.iter().map(super::value::Value::to_text).collect());
        match values {
            Some(values) => drop(out.insert(attr.name.clone(), values)),
            None => block.error(&attr.pos, format!("\"{}\" in {} must be a list of strings", attr.name, block.name)),
        }
    }
    out
}

/// That the ports and tasks that services name are there; `of_task` has them, else the group.
pub(super) fn check_names(
    group: &Section<'_>,
    of_task: Option<&Task>,
    services: &[Service],
    network: Option<&Network>,
    tasks: &[Task],
) {
    let owner = of_task.map_or_else(|| group.name.clone(), |task| format!("task \"{}\"", task.name));
    let own = of_task.and_then(|task| task.network.as_ref());
    let labels: Vec<&str> =
        network.into_iter().chain(own).flat_map(|network| &network.ports).map(|port| port.label.as_str()).collect();
    let is_port = |port: &str| {
        port.is_empty() || port.contains("${") || labels.contains(&port) || port.parse::<u16>().is_ok_and(|n| n > 0)
    };
    let no_port = |port: &str, pos: &Pos| {
        let hint = did_you_mean(port, labels.iter().copied());
        let message = format!(
            "a service of {owner} names the port \"{port}\", which is not a label of a network and no number{hint}; add port \
             \"{port}\" {{}} to the group's network"
        );
        group.refuse(pos, message);
    };
    let mut seen: BTreeMap<(&str, &str), &Pos> = BTreeMap::new();
    for service in services {
        if let Some(first) = seen.insert((&service.name, &service.port), &service.pos) {
            let message = format!(
                "duplicate service \"{}\" of {}; it stands in line {} already; give one another name or port",
                service.name, owner, first.line
            );
            group.refuse(&service.pos, message);
        }
        if !is_port(&service.port) {
            no_port(&service.port, &service.pos);
        }
        let is_task = |name: &str| name.is_empty() || tasks.iter().any(|task| task.name == name);
        let no_task = |name: &str, pos: &Pos| {
            let hint = did_you_mean(name, tasks.iter().map(|task| task.name.as_str()));
            group.refuse(pos, format!("a service of {owner} names the task \"{name}\", which is not there{hint}"));
        };
        if !is_task(&service.task) {
            no_task(&service.task, &service.pos);
        }
        let no_driver = |pos: &Pos| {
            let fix = "move the service into its task";
            group.refuse(pos, format!("a service of {owner} has no driver whose address it could have; {fix}"));
        };
        if of_task.is_none() && service.address_mode == AddressMode::Driver {
            no_driver(&service.pos);
        }
        let of_group = |pos: &Pos| {
            let fix = "which is for services of a group; move the service out of its task";
            group.refuse(pos, format!("a service of {owner} has address_mode \"alloc_ipv6\", {fix}"));
        };
        if of_task.is_some() && service.address_mode == AddressMode::AllocIpv6 {
            of_group(&service.pos);
        }
        for check in &service.checks {
            if !is_port(&check.port) {
                no_port(&check.port, &check.pos);
            }
            if of_task.is_none() && check.address_mode == Some(AddressMode::Driver) {
                no_driver(&check.pos);
            }
            if of_task.is_some() && check.address_mode == Some(AddressMode::AllocIpv6) {
                of_group(&check.pos);
            }
            if let CheckKind::Script(script) = &check.kind {
                if script.task != service.task && !is_task(&script.task) {
                    no_task(&script.task, &check.pos);
                } else if of_task.is_none() && script.task.is_empty() && service.task.is_empty() && tasks.len() != 1 {
                    let message =
                        format!("a script check of {owner} has to say in which task it runs; add task = \"NAME\"");
                    group.refuse(&check.pos, message);
                }
            }
        }
    }
}
