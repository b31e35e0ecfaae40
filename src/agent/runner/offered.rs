//! The services of allocations, and the results of their checks.

use crate::agent::engine::CheckState;
use crate::agent::model::{Nanos, ServiceRegistration};
use crate::alloc::Registration;
use crate::alloc::control::Control;
use crate::spec::collections::BTreeMap;
use crate::spec::{CheckStatus, OnUpdate};

/// A registration in the form of the state: without check results.
pub(super) fn service(of: Registration) -> ServiceRegistration {
    ServiceRegistration {
        id: of.id,
        service_name: of.service_name,
        namespace: of.namespace,
        node_id: of.node_id,
        datacenter: of.datacenter,
        job_id: of.job_id,
        alloc_id: of.alloc_id,
        tags: of.tags,
        address: of.address,
        port: of.port,
        create_index: 0,
        modify_index: 0,
    }
}

/// By id.
pub(super) fn checks(control: &Control) -> BTreeMap<String, CheckState> {
    let mut all = BTreeMap::new();
    for service in control.services() {
        for check in service.checks {
            let is_readiness = check.on_update == OnUpdate::Ignore.as_str();
            let ignores_warnings = check.on_update == OnUpdate::IgnoreWarnings.as_str();
            let status = match check.status {
                CheckStatus::Passing => "success",
                CheckStatus::Warning if ignores_warnings => "success",
                CheckStatus::Pending => "pending",
                CheckStatus::Warning | CheckStatus::Critical => "failure",
            };
            let time = humantime::parse_rfc3339(&check.timestamp).ok();
            let state = CheckState {
                id: check.id.clone(),
                mode: if is_readiness { "readiness" } else { "healthiness" }.to_owned(),
                status: status.to_owned(),
                status_code: check.status_code,
                output: check.output,
                timestamp: time.map_or(0, |time| Nanos::of(time).0 / 1_000_000_000),
                group: control.name().to_owned(),
                task: service.task_name.clone(),
                service: service.service_name.clone(),
                check: check.name,
            };
            all.insert(check.id, state);
        }
    }
    all
}

/// Since when all checks that its health depends on have passed without interruption; `None` until the current ones have begun.
pub(super) fn pass_since(control: &Control) -> Option<Nanos> {
    let health = control.health();
    let health = health.borrow();
    // Without checks its health depends on its tasks only.
    match health.checks {
        0 => Some(Nanos(0)),
        _ => health.since.filter(|_| control.has_announced()).map(Nanos::of),
    }
}
