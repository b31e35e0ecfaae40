//! `agentbin services`: the services that tasks of this machine have registered.

use std::path::Path;

use anyhow::{Context as _, bail};

use super::output::indented;
use super::revive::revive;
use super::runs::{row, short, table, wait_for};
use super::{ServicesArgs, complain, print};
use crate::alloc::{CheckReport, Registration, chain, machine};
use crate::jobspec;
use crate::spec::json::json;
use crate::spec::{CheckStatus, escaped_lines};

pub(super) fn run(args: &ServicesArgs) -> anyhow::Result<i32> {
    let data_dir = machine::existing_data_dir(args.data_dir.as_deref())?;
    if let (Some(given), None) = (&args.data_dir, &data_dir) {
        bail!("there is no data directory {}", given.display());
    }
    // A task whose supervisor was killed runs on, and its services are registered again by the next supervisor.
    wait_for(async {
        revive(data_dir.as_deref(), args.data_dir.is_some()).await;
        Ok(())
    })?;
    let registry = machine::services(data_dir.as_deref().unwrap_or(Path::new("/")));
    let listed = registry.list().context("cannot read the registry of services")?;
    for error in &listed.errors {
        complain(&format!("a file of the registry of services is passed over: {}", chain(error)));
    }
    let mut services = listed.services;
    if let Some(name) = &args.name {
        let names: Vec<String> = services.iter().map(|service| service.service_name.clone()).collect();
        services.retain(|service| service.service_name == *name);
        if services.is_empty() && !args.json {
            let hint = jobspec::did_you_mean(name, names.iter().map(String::as_str));
            bail!("there is no service {name:?} here{hint}");
        }
    }
    if args.json {
        return print(format!("{}\n", indented(&json!(services))).as_bytes());
    }
    let text = if args.name.is_some() { list(&services) + &checks(&services) } else { list(&services) };
    print(escaped_lines(&text).as_bytes())
}

fn list(services: &[Registration]) -> String {
    let mut rows = vec![row(&["NAME", "ADDRESS", "TAGS", "JOB", "ALLOC", "STATUS", "CHECKS"])];
    for service in services {
        let tags = if service.tags.is_empty() { "-".to_owned() } else { service.tags.join(",") };
        let passing = service.checks.iter().filter(|check| check.status == CheckStatus::Passing).count();
        let checks = match service.checks.len() {
            0 => "-".to_owned(),
            all => format!("{passing}/{all}"),
        };
        let (job, alloc, status) = (&service.job_id, short(&service.alloc_id), service.status.as_str());
        rows.push(row(&[
            &service.service_name,
            &place(&service.address, service.port),
            &tags,
            job,
            alloc,
            status,
            &checks,
        ]));
    }
    table(&rows)
}

/// The address of a service; IPv6 addresses in brackets.
pub(super) fn place(address: &str, port: u16) -> String {
    match (port, address.contains(':')) {
        (0, _) => address.to_owned(),
        (port, true) => format!("[{address}]:{port}"),
        (port, false) => format!("{address}:{port}"),
    }
}

fn checks(services: &[Registration]) -> String {
    let mut rows = vec![row(&["CHECK", "TYPE", "ALLOC", "STATUS", "SINCE", "OUTPUT"])];
    for service in services {
        for CheckReport { name, kind, status, timestamp, output, .. } in &service.checks {
            let since = if timestamp.is_empty() { "-" } else { timestamp };
            rows.push(row(&[name, kind, short(&service.alloc_id), status.as_str(), since, output]));
        }
    }
    if rows.len() == 1 { String::new() } else { format!("\n{}", table(&rows)) }
}
