//! The network namespace that the tasks of a group share: which driver makes it, how it is connected, what tasks get to know.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Stop;
use super::chain::chain;
use super::env::{Source, TaskEnv};
use super::error::{CleanupError, NetworkError, SetupError};
use super::forwarded;
use super::hook::Hook;
use super::place::{Isolated, Place, Restored};
use super::shared::stop_at_least;
use crate::container::Subordinate;
use crate::driver::{self, Driver, FsIsolation, NetworkIsolation};
use crate::net::{self, Kind, Mapping, MoreIds, Network, Status, Wish};
use crate::spec::collections::BTreeMap;
use crate::spec::{self, NetworkMode};

/// Nomad's labels of a network that was made by docker.
const SANDBOX_HOSTNAME: &str = "docker_sandbox_hostname";
const SANDBOX: &str = "docker_sandbox_container_id";
/// Docker's default host name of a container: this many characters of its id.
const SHORT_ID: usize = 12;
/// How long removing a network may still take after an urgent stop.
const LAST_MOMENT: Duration = Duration::from_secs(10);
/// Longest host name, and longest part of one.
const LONGEST_HOSTNAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// Makes the namespace and connects it, after the record is written and before the first task.
pub(super) struct IsolationHook;

#[tonic::async_trait]
impl Hook<Place> for IsolationHook {
    fn name(&self) -> &'static str {
        "network"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let job = Arc::clone(&place.job);
        let Some(network) = &job.groups[place.group].network else { return Ok(()) };
        if network.mode != NetworkMode::Host
            && let Err(failed) = set_up(place, network).await
        {
            // The record tells the clean-up what may be left of it.
            let errors = tear_down(place, Stop::Gracefully).await;
            place.recorded_is_left |= !errors.is_empty();
            place.untold.extend(errors);
            return Err(match failed {
                Failed::Network(_) if place.control.is_stopping() => SetupError::Stopped,
                Failed::Network(source) => {
                    let (mode, pos) = (network.mode.to_string(), network.pos.clone());
                    SetupError::Network { mode, pos, source: Box::new(source) }
                }
                Failed::Other(error) => error,
            });
        }
        place.dns = dns(place, network);
        Ok(())
    }

    /// The network exists until the machine reboots. After a reboot it is made again, once the state that CNI plugins keep of the
    /// old one has been removed.
    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        let Some(Restored { record, rebooted, is_unfinished }) = &place.restored else { return Ok(()) };
        let told = record.restore.as_ref().and_then(|restore| restore.network.clone());
        let anew = *rebooted || *is_unfinished;
        if let Some(network) = record.network.clone() {
            let (isolation, status) = told.unwrap_or_default();
            place.network = Some(Isolated { network, isolation, status });
        }
        if !anew {
            if place.network.as_ref().is_some_and(|network| network.network.is_bridge()) {
                forwarded::watch(&place.machine.networks, true);
            }
            place.dns = record.restore.as_ref().and_then(|restore| restore.dns.clone());
            return Ok(());
        }
        let errors = tear_down(place, Stop::Now).await;
        if !errors.is_empty() {
            let told = errors.iter().map(|e| chain(e)).collect::<Vec<_>>().join("; ");
            tracing::warn!(alloc = %place.id, errors = told, "what is left of its network");
        }
        self.run(place).await
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        let errors = tear_down(place, Stop::Now).await;
        place.recorded_is_left |= !errors.is_empty();
        errors
    }
}

enum Failed {
    Network(NetworkError),
    Other(SetupError),
}

impl<E: Into<NetworkError>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed::Network(error.into())
    }
}

async fn set_up(place: &mut Place, asked: &spec::Network) -> Result<(), Failed> {
    let maker = maker(place)?;
    let hostname = expand(place, &asked.hostname);
    if !hostname.is_empty() {
        if maker.is_none() {
            return Err(NetworkError::NoHostname(hostname).into());
        }
        if !is_hostname(&hostname) {
            return Err(NetworkError::BadHostname(hostname).into());
        }
    }
    let (machine, mode, id) = (Arc::clone(&place.machine), asked.mode.clone(), place.id.to_string());
    let (mappings, args) = (mappings(place), args(place, asked));
    let record = place.machine.records.path(place.id.as_str());
    let driver = maker.as_ref().map(|driver| driver.name().to_owned());
    let planned = blocking(move || {
        let kind = match &mode {
            NetworkMode::Bridge => Kind::Bridge,
            NetworkMode::Cni(name) => Kind::Cni(name),
            NetworkMode::Host | NetworkMode::None => Kind::None,
        };
        machine.networks.plan(Wish { id: &id, kind, driver: driver.as_deref(), mappings, args, record })
    });
    let mut network = planned.await?;
    if network.is_users() {
        check_drivers(place)?;
    }
    if network.is_bridge() {
        // Before its rules are made, so that no change after that is missed.
        forwarded::watch(&place.machine.networks, false);
    }
    // Recorded before anything is made, and again with the result.
    note(place, &network)?;
    let isolation = NetworkIsolation {
        mode: driver::NetworkMode::Group,
        path: network.namespace().to_owned(),
        ..NetworkIsolation::default()
    };
    place.network = Some(Isolated { network: network.clone(), isolation, status: Status::default() });
    if let Some(driver) = &maker {
        let mut stop = place.control.stop.subscribe();
        // If this is interrupted, what the driver has made so far can be found by the allocation's id.
        let made = tokio::select! {
            biased;
            made = driver.create_network(place.id.as_str(), &hostname) => made,
            () = stop_at_least(&mut stop, Stop::Gracefully) => return Err(Failed::Other(SetupError::Stopped)),
        };
        let (isolation, _) =
            made.map_err(|source| NetworkError::Driver { driver: driver.name().to_owned(), source })?;
        network.made_by_driver(isolation.path.clone());
        note(place, &network)?;
        place.network = Some(Isolated { network: network.clone(), isolation, status: Status::default() });
    }
    let connected = unless(place, Stop::Gracefully, Duration::ZERO, move |cancel| {
        make_namespace(&network)?;
        let status = network.connect(cancel)?;
        Ok((network, status))
    })
    .await;
    if let (Err(NetworkError::Net(net::Error::Locked { .. })), Some(made)) = (&connected, &mut place.network) {
        made.network.was_not_connected();
    }
    let (network, status) = connected?;
    note(place, &network)?;
    if let Some(made) = &mut place.network {
        made.network = network;
        made.isolation.hosts = hosts(&made.isolation.labels, &status);
        made.status = status;
    }
    Ok(())
}

/// A plain user's network has the user's subordinate ids as well, for tasks that are to have them.
fn make_namespace(network: &Network) -> Result<(), net::Error> {
    let subordinate = if network.is_users() { Subordinate::usable().ok() } else { None };
    let Some(subordinate) = subordinate else { return network.make_namespace(None) };
    let map = |pid| subordinate.map(pid);
    network.make_namespace(Some(MoreIds { ranges: subordinate.nested(), map: &map }))
}

fn note(place: &Place, network: &Network) -> Result<(), Failed> {
    place.machine.records.network_made(&place.id, network.clone()).map_err(|e| Failed::Other(e.into()))
}

/// Removes the whole network. Every step is tried. Once the stop is at least as urgent as `hurry`, CNI plugins get
/// `LAST_MOMENT` more.
async fn tear_down(place: &mut Place, hurry: Stop) -> Vec<CleanupError> {
    let Some(Isolated { network, isolation, .. }) = place.network.take() else { return Vec::new() };
    let error = |action, e: &dyn std::error::Error| CleanupError {
        action,
        subject: place.id.to_string(),
        source: io::Error::other(chain(e)),
    };
    let mut errors = Vec::new();
    let of_thread = network.clone();
    if let Err(e) = unless(place, hurry, LAST_MOMENT, move |cancel| of_thread.disconnect_unless(cancel)).await {
        errors.push(error("disconnect the network of", &e));
    }
    let driver = network.driver().and_then(|name| place.machine.drivers.get(name));
    if let Some(driver) = driver
        && let Err(e) = driver.destroy_network(place.id.as_str(), &isolation).await
    {
        errors.push(error("remove the network of", &e));
    }
    if let Err(e) = network.remove_namespace() {
        errors.push(error("remove the network of", &e));
    }
    errors
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, net::Error> + Send + 'static,
) -> Result<T, NetworkError> {
    crate::sys::task::spawn_blocking(work).await.map_err(NetworkError::Broken)?.map_err(NetworkError::Net)
}

/// Runs `work` on a thread, and cancels it `patience` after the stop has become as urgent as `hurry`.
async fn unless<T: Send + 'static>(
    place: &Place,
    hurry: Stop,
    patience: Duration,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, net::Error> + Send + 'static,
) -> Result<T, NetworkError> {
    let cancel = Arc::<AtomicBool>::default();
    let of_thread = Arc::clone(&cancel);
    let mut working = std::pin::pin!(blocking(move || work(&of_thread)));
    let mut stop = place.control.stop.subscribe();
    let hurried = async {
        stop_at_least(&mut stop, hurry).await;
        tokio::time::sleep(patience).await;
    };
    tokio::select! {
        biased;
        done = &mut working => return done,
        () = hurried => cancel.store(true, Ordering::Relaxed),
    }
    working.await
}

/// The driver that must make the group's network, after checking that all drivers can use it.
fn maker(place: &Place) -> Result<Option<Arc<dyn Driver>>, NetworkError> {
    let mut found: Option<(&str, &Arc<dyn Driver>)> = None;
    for task in &place.group().tasks {
        let Some(driver) = place.machine.drivers.get(&task.driver) else { continue };
        let capabilities = driver.capabilities();
        if !capabilities.network_modes.contains(&driver::NetworkMode::Group) {
            let (task, driver) = (task.name.clone(), task.driver.clone());
            return Err(NetworkError::NotInGroup { task, driver });
        }
        match found {
            _ if !capabilities.must_create_network => {}
            Some((other, maker)) if maker.name() != driver.name() => {
                return Err(NetworkError::TwoMakers(other.to_owned(), task.name.clone()));
            }
            Some(_) => {}
            None => found = Some((&task.name, driver)),
        }
    }
    Ok(found.map(|(_, driver)| Arc::clone(driver)))
}

/// Refuses tasks whose drivers cannot enter a plain user's network.
fn check_drivers(place: &Place) -> Result<(), NetworkError> {
    let cannot = place.group().tasks.iter().find(|task| {
        let driver = place.machine.drivers.get(&task.driver);
        driver.is_some_and(|driver| !driver.enters_users_network())
    });
    cannot.map_or(Ok(()), |task| {
        let (task, driver) = (task.name.clone(), task.driver.clone());
        Err(NetworkError::NotInUsers { task, driver })
    })
}

/// The port mappings of the group; the ports of a task's own network are the host's.
fn mappings(place: &Place) -> Vec<Mapping> {
    let of_group = place.ports.iter().filter(|port| port.task.is_none());
    let both = of_group.flat_map(|port| {
        ["tcp", "udp"].map(|protocol| Mapping {
            host: port.value,
            inside: port.inside(),
            protocol: protocol.to_owned(),
            ip: port.ip,
        })
    });
    both.collect()
}

/// The arguments that CNI plugins get, under Nomad's names. A name of the job that cannot be passed is left out.
fn args(place: &Place, asked: &spec::Network) -> Vec<(String, String)> {
    let given = asked.cni_args.iter().map(|(name, value)| (name.clone(), expand(place, value)));
    let (job, group) = (&place.job, place.group());
    let own = [
        ("NOMAD_REGION", job.region.clone()),
        ("NOMAD_NAMESPACE", job.namespace.clone()),
        ("NOMAD_JOB_ID", job.id.clone()),
        ("NOMAD_GROUP_NAME", group.name.clone()),
        ("NOMAD_ALLOC_ID", place.id.to_string()),
    ];
    let own = own.into_iter().filter(|(_, value)| net::is_sayable(value));
    given.chain(own.map(|(name, value)| (name.to_owned(), value))).collect()
}

/// The entry for itself in its tasks' hosts files, if their driver writes such files.
fn hosts(labels: &BTreeMap<String, String>, status: &Status) -> Option<(String, String)> {
    let named = labels.get(SANDBOX_HOSTNAME).cloned();
    let name = named.or_else(|| labels.get(SANDBOX).map(|id| id.chars().take(SHORT_ID).collect()))?;
    Some((name, status.address?.to_string()))
}

/// The name servers of its tasks. `None` means the host's file as it is; only tasks in the host's network can use every name
/// server in it.
fn dns(place: &Place, asked: &spec::Network) -> Option<driver::Dns> {
    let expanded = |all: &[String]| all.iter().map(|one| expand(place, one)).collect::<Vec<_>>();
    let block = asked.dns.as_ref().map(|dns| driver::Dns {
        servers: expanded(&dns.servers),
        searches: expanded(&dns.searches),
        options: expanded(&dns.options),
    });
    let Some(Isolated { status, .. }) = &place.network else { return block };
    let block = block.unwrap_or_default();
    let or = |given: Vec<String>, other: &Vec<String>| if given.is_empty() { other.clone() } else { given };
    let mut dns = driver::Dns {
        servers: or(block.servers, &status.servers),
        searches: or(block.searches, &status.searches),
        options: or(block.options, &status.options),
    };
    if dns.servers.is_empty() {
        dns.servers = net::servers_behind_stub();
    }
    Some(dns)
}

/// Replaces references to the node and to the allocation: what the group's tasks have in common.
fn expand(place: &Place, text: &str) -> String {
    let group = place.group();
    let Some(task) = group.tasks.first() else { return text.to_owned() };
    let env = TaskEnv::of_group(&Source {
        job: &place.job,
        group,
        parent: &place.parent,
        task,
        alloc: &place.id,
        index: place.index,
        alloc_dir: place.dir.path(),
        isolation: FsIsolation::Image,
        cgroup_parent: Path::new(""),
        ports: &place.ports,
        network: place.network.as_ref().map(|network| &network.status),
        node: &place.node,
        host: &BTreeMap::new(),
        denied: &[],
    });
    env.interpolate(text)
}

fn is_hostname(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && label.len() <= LONGEST_LABEL
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= LONGEST_HOSTNAME && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::assignment::Assignment;
    use crate::alloc::fake::{self, FakeDriver};
    use crate::alloc::owner::Owner;
    use crate::alloc::ports::AllocPort;
    use crate::alloc::run::Alloc;

    #[test]
    fn what_a_network_says_refers_to_what_all_tasks_know() {
        let data = tempfile::tempdir().unwrap();
        let machine = Arc::new(fake::machine(data.path(), &FakeDriver::new(&[]), Owner::default()));
        let mut job = fake::job(vec![fake::task("web")]);
        job.meta.insert("who".to_owned(), "${NOMAD_JOB_NAME}".to_owned());
        let job = Arc::new(job);
        let mut alloc = Alloc::new(&machine, &job, Assignment::new(&job, 0, 0));
        let (label, ip) = ("http".to_owned(), "192.0.2.7".parse().unwrap());
        alloc.place.ports = vec![AllocPort { label, value: 20_123, to: None, ip, task: None }];
        for (text, expected) in [
            ("${NOMAD_GROUP_NAME}-${env.NOMAD_ALLOC_INDEX}.${node.datacenter}", "group-0.dc1"),
            ("${NOMAD_META_WHO}:${NOMAD_PORT_http}:${attr.kernel.name}", "job:20123:linux"),
            ("${NOMAD_TASK_NAME}", "${NOMAD_TASK_NAME}"),
        ] {
            assert_eq!(expand(&alloc.place, text), expected);
        }
    }

    #[test]
    fn names_of_hosts() {
        for good in ["web", "web-1.example.com", "0"] {
            assert!(is_hostname(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a..b", "a_b", "a b", "ä", &"a".repeat(64), &["abc"; 70].join(".")] {
            assert!(!is_hostname(bad), "{bad}");
        }
    }

    #[test]
    fn a_group_of_containers_is_called_as_docker_calls_it() {
        let status = Status { address: Some("10.0.0.2".parse().unwrap()), ..Status::default() };
        let labels = |all: &[(&str, &str)]| all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let id = (SANDBOX, "0123456789abcdef");
        let is = |name: &str| Some((name.to_owned(), "10.0.0.2".to_owned()));
        assert_eq!(hosts(&labels(&[id]), &status), is("0123456789ab"));
        assert_eq!(hosts(&labels(&[id, (SANDBOX_HOSTNAME, "db")]), &status), is("db"));
        assert_eq!(hosts(&labels(&[]), &status), None);
        assert_eq!(hosts(&labels(&[id]), &Status::default()), None);
    }
}
