//! The services of an allocation and their health: for status requests, and for deployments.

use std::sync::Mutex;
use std::time::SystemTime;

use tokio::sync::watch;

use super::service_registry::Registration;
use crate::spec::collections::BTreeMap;
use crate::spec::{CheckStatus, Group, Lifecycle, OnUpdate, Service, Task};
use crate::sys::lock::lock;

/// The health of an allocation by its checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Health {
    /// Its checks, without those whose `on_update` is `ignore`.
    pub checks: usize,
    /// How many of them are good enough for their `on_update`.
    pub healthy: usize,
    /// Since when all of them have been good enough without a break; `None` while some are not. An allocation without checks counts
    /// as healthy from the beginning.
    pub since: Option<SystemTime>,
}

/// The services of one allocation, with the last results of their checks.
#[derive(Debug, Default)]
pub(super) struct Board {
    services: Mutex<BTreeMap<String, Registration>>,
    health: watch::Sender<Health>,
}

/// How many checks the health of an allocation of this group depends on: those of the group, and of tasks that keep running.
fn expected(group: &Group) -> usize {
    let goes_on = |task: &&Task| task.lifecycle.is_none_or(|Lifecycle { sidecar, .. }| sidecar);
    let of_tasks = group.tasks.iter().filter(goes_on).flat_map(|task| &task.services);
    let counts = |service: &Service| service.checks.iter().filter(|c| c.on_update != OnUpdate::Ignore).count();
    group.services.iter().chain(of_tasks).map(counts).sum()
}

/// Whether a status is good enough for `on_update`.
fn is_healthy(on_update: &str, status: CheckStatus) -> bool {
    status == CheckStatus::Passing || (status == CheckStatus::Warning && on_update == OnUpdate::IgnoreWarnings.as_str())
}

impl Board {
    /// An allocation of this group.
    pub(super) fn of_group(group: &Group) -> Board {
        let checks = expected(group);
        let since = (checks == 0).then(SystemTime::now);
        Board { services: Mutex::default(), health: watch::Sender::new(Health { checks, healthy: 0, since }) }
    }

    /// From now on an allocation of this group.
    pub(super) fn expect(&self, group: &Group) {
        let checks = expected(group);
        self.health.send_if_modified(|health| std::mem::replace(&mut health.checks, checks) != checks);
        self.change(|_| ());
    }

    /// Changes what there is. Returns what the change does.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, Registration>) -> T) -> T {
        let services = &mut *lock(&self.services);
        let done = change(services);
        let checks = services.values().flat_map(|service| &service.checks);
        let counting = checks.filter(|check| check.on_update != OnUpdate::Ignore.as_str());
        let healthy = counting.filter(|check| is_healthy(&check.on_update, check.status)).count();
        self.health.send_if_modified(|health| {
            let before = health.clone();
            health.healthy = healthy;
            health.since = (healthy >= health.checks).then(|| before.since.unwrap_or_else(SystemTime::now));
            *health != before
        });
        done
    }

    /// All of them, by id.
    pub(super) fn services(&self) -> Vec<Registration> {
        lock(&self.services).values().cloned().collect()
    }

    /// The health from now on.
    pub(super) fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}
