//! Nomad's rules for services and their checks.

use serde_json::Value;

use super::words::{items, nest, number, tell, text};

/// Longest notes of a check, in bytes.
const LONGEST_NOTES: usize = 255;
/// Checks that connect, and are counted.
const CONNECTING: [&str; 3] = ["tcp", "http", "grpc"];

/// A group's services, and what those of its tasks have to have in common with them.
pub(super) fn of_group(group: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let (services, tasks) = (items(&group["Services"]), items(&group["Tasks"]));
    for (at, service) in services.iter().enumerate() {
        nest(&mut wrong, &format!("Service[{at}] {}", text(service, "Name")), &of_service(service));
        // A script's task is looked for when the job is read.
        for check in items(&service["Checks"]).iter().filter(|check| check["Type"] != "script") {
            let (name, task) = (text(check, "Name"), text(check, "TaskName"));
            if !task.is_empty() && !tasks.iter().any(|known| known["Name"] == task) {
                wrong.push(format!("Check {name} invalid: refers to non-existent task {task}"));
            }
        }
    }
    for task in tasks {
        let own = text(task, "Name");
        let mut only_own = |what: &str, of: &Value| {
            let (name, task) = (text(of, "Name"), text(of, "TaskName"));
            if !task.is_empty() && task != own {
                let whose = what.to_lowercase();
                wrong.push(format!(
                    "{what} {name} is invalid: may only specify task the {whose} belongs to, got {task:?}"
                ));
            }
        };
        for service in items(&task["Services"]) {
            only_own("Service", service);
            for check in items(&service["Checks"]) {
                only_own("Check", check);
            }
        }
    }
    let of_tasks = tasks.iter().flat_map(|task| items(&task["Services"]));
    let mut providers = services.iter().chain(of_tasks).map(|service| text(service, "Provider"));
    let first = providers.next();
    let is_mixed = providers.any(|provider| Some(provider) != first);
    let rule = "Multiple service providers used: task group services must use the same provider";
    tell(&mut wrong, &[(is_mixed, rule)]);
    wrong
}

/// A task's services.
pub(super) fn of_task(task: &Value, wrong: &mut Vec<String>) {
    for (at, service) in items(&task["Services"]).iter().enumerate() {
        let (name, port, mode) = (text(service, "Name"), text(service, "PortLabel"), text(service, "AddressMode"));
        nest(wrong, &format!("service[{at}] {name:?}"), &of_service(service));
        if mode == "alloc" {
            wrong.push(of_groups_only("service", name, "services defined in a \"group\" block"));
        }
        if mode != "driver" && is_number(port) {
            wrong.push(format!("port label {port:?} referenced by services {name} does not exist"));
        }
        let mut seen = Vec::new();
        for check in items(&service["Checks"]) {
            let (name, own, mode) = (text(check, "Name"), text(check, "PortLabel"), text(check, "AddressMode"));
            if seen.contains(&name) {
                wrong.push(format!("check {name:?} is duplicate"));
            }
            seen.push(name);
            if mode == "alloc" {
                wrong.push(of_groups_only("check", name, "checks defined in a \"group\" service block"));
            }
            let port = if own.is_empty() { port } else { own };
            if mode != "driver" && is_number(port) && CONNECTING.contains(&text(check, "Type")) {
                let how = "without setting address_mode=\"driver\"";
                wrong.push(format!("check {name:?} cannot use a numeric port {port} {how}"));
            }
        }
    }
}

fn of_groups_only(what: &str, name: &str, which: &str) -> String {
    format!("{what} {name:?} cannot use address_mode=\"alloc\", only {which} can use this mode")
}

fn is_number(port: &str) -> bool {
    port.parse::<i64>().is_ok()
}

fn of_service(service: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    let (name, kind) = (text(service, "Name"), text(service, "Kind"));
    let is_consul = text(service, "Provider") == "consul";
    if !text(service, "Address").is_empty() && !matches!(text(service, "AddressMode"), "" | "auto") {
        wrong.push("Service address_mode must be \"auto\" if address is set".to_owned());
    }
    for check in items(&service["Checks"]) {
        let called = if is_consul { format!("Check {} invalid: ", text(check, "Name")) } else { String::new() };
        wrong.extend(of_check(check, is_consul).map(|why| called + &why));
    }
    let is_known = matches!(kind, "" | "api-gateway" | "ingress-gateway" | "mesh-gateway" | "terminating-gateway");
    if is_consul && !is_known {
        wrong.push(format!("Service {name} kind must be one of consul service kind or empty"));
    }
    wrong
}

/// The first thing that is wrong with a check.
fn of_check(check: &Value, is_consul: bool) -> Option<String> {
    let (kind, on_update) = (text(check, "Type").to_lowercase(), text(check, "OnUpdate"));
    let restart = &check["CheckRestart"];
    let warns = restart["IgnoreWarnings"] != true && on_update == "ignore_warnings";
    let mut wrong = Vec::new();
    tell(
        &mut wrong,
        &[
            (kind == "http" && is_absolute(text(check, "Path")), "http type must have relative http path"),
            (
                check["InitialStatus"] == "pending",
                "invalid initial check state (pending), must be one of \"passing\", \"warning\", \"critical\" or empty",
            ),
            (check["AddressMode"] == "auto", "invalid address_mode \"auto\" - auto only valid for services"),
            (
                !restart.is_null() && on_update == "ignore",
                "on_update value \"ignore\" is not compatible with check_restart",
            ),
            (
                !restart.is_null() && warns,
                "on_update value \"ignore_warnings\" not supported with check_restart ignore_warnings value \"false\"",
            ),
        ],
    );
    if is_consul {
        for (field, word) in [
            ("SuccessBeforePassing", "success_before_passing"),
            ("FailuresBeforeCritical", "failures_before_critical"),
            ("FailuresBeforeWarning", "failures_before_warning"),
        ] {
            if number(check, field) > 0 && !CONNECTING.contains(&kind.as_str()) {
                wrong.push(format!("{word} not supported for check of type {kind:?}"));
            }
        }
        let is_long = text(check, "Notes").len() > LONGEST_NOTES;
        tell(&mut wrong, &[(is_long, "notes must not be longer than 255 characters")]);
    }
    wrong.into_iter().next()
}

/// Whether an address begins with a scheme.
fn is_absolute(path: &str) -> bool {
    let is_scheme = |scheme: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(fits)
    };
    path.split_once(':').is_some_and(|(scheme, _)| is_scheme(scheme))
}
