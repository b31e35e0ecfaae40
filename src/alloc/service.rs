//! The services of an allocation: registered when their task, or the group's tasks, run, checked while they are registered, and
//! withdrawn before anything is killed. One owner for services and checks, so that none outlives the other.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::check::{Grpc, Http, Inside, Pace, Probe, Target, Trial, Way};
use super::control::{Control, timestamp};
use super::dir::AllocDir;
use super::env::{Source, TaskEnv};
use super::error::SetupError;
use super::place::Place;
use super::ports::AllocPort;
use super::service_registry::{CheckReport, Registration, Services};
use crate::driver::{DriverNetwork, FsIsolation};
use crate::net::Status;
use crate::spec::IntoMap as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{AddressMode, Check, CheckKind, CheckRestart, CheckStatus, Service, Task, shortened};
use crate::sys::task::boxed;

/// Longest output of a check in the registry, in bytes; the allocation's own status has more of it.
const LONGEST_OUTPUT: usize = 256;

/// What the services of one allocation need.
pub(super) struct Offers {
    registry: Services,
    control: Arc<Control>,
    /// The fields that all of its registrations have in common.
    common: Registration,
    /// The group's services.
    services: Vec<Service>,
    /// The environment for references in the group's services; `None` without a task.
    env: Box<dyn Fn() -> Option<TaskEnv> + Send + Sync>,
    tasks: Vec<TaskOffer>,
    ports: Vec<AllocPort>,
    host: IpAddr,
    /// Whether the group has a network, including the host's.
    has_network: bool,
    /// The allocation's own network: its status and its namespace.
    network: Option<(Status, PathBuf)>,
    /// The group's services while they are registered.
    of_group: Mutex<Offered>,
    /// The group's services are withdrawn and will not be registered again.
    is_over: watch::Sender<bool>,
}

/// A task of the group.
struct TaskOffer {
    name: String,
    /// Neither a prestart, a poststart nor a poststop task.
    is_main: bool,
    services: Vec<Service>,
}

/// The registered services of a task, or of a group; withdrawn by [`Offers::withdraw`].
#[derive(Default)]
pub(super) struct Offered {
    /// The ids that may be registered.
    ids: BTreeSet<String>,
    services: Vec<One>,
}

/// A registered service.
struct One {
    id: String,
    /// As the job file has it, with the tags of a canary if it is one.
    service: Service,
    /// Set once it is withdrawn in this form; updates that are still under way are then ignored.
    is_gone: Arc<AtomicBool>,
    checks: JoinSet<()>,
}

/// The task or group that has services, and its environment.
#[derive(Clone)]
struct Owner {
    /// The task's index and name; `None` means the group.
    task: Option<(usize, String)>,
    env: TaskEnv,
    /// The network that the driver made for the task.
    driver: Option<DriverNetwork>,
}

impl TaskOffer {
    fn of(task: &Task) -> TaskOffer {
        TaskOffer { name: task.name.clone(), is_main: task.lifecycle.is_none(), services: task.services.clone() }
    }
}

impl Offers {
    pub(super) fn new(place: &Place) -> Arc<Offers> {
        let (job, group, node) = (&place.job, place.group(), &place.machine.node);
        let common = Registration {
            namespace: job.namespace.clone(),
            node_id: node.id.clone(),
            datacenter: node.datacenter.clone(),
            job_id: job.id.clone(),
            alloc_id: place.id.to_string(),
            node_name: node.name.clone(),
            task_group: group.name.clone(),
            ..Registration::default()
        };
        Arc::new(Offers {
            registry: place.machine.services.clone(),
            control: Arc::clone(&place.control),
            common,
            services: group.services.clone(),
            env: group_env(place),
            tasks: group.tasks.iter().map(TaskOffer::of).collect(),
            ports: place.ports.clone(),
            host: node.ip,
            has_network: group.network.is_some(),
            network: place.network.as_ref().map(|own| (own.status.clone(), own.isolation.path.clone())),
            of_group: Mutex::default(),
            is_over: watch::Sender::new(group.services.is_empty() || group.tasks.is_empty()),
        })
    }

    /// Checks the names of a task's services, once their references are replaced.
    ///
    /// # Errors
    /// [`SetupError::Service`] for the first one that is not the name of a service.
    pub(super) fn check_names(&self, task: &Task, env: &TaskEnv) -> Result<(), SetupError> {
        if task.services.is_empty() {
            return Ok(());
        }
        let owner = Owner { task: Some((0, task.name.clone())), env: env.clone(), driver: None };
        for Service { name, pos, .. } in &task.services {
            let name = self.said(&owner, name);
            if !Service::is_name(&name) {
                return Err(SetupError::Service { pos: pos.clone(), name });
            }
        }
        Ok(())
    }

    /// Registers the services of a running task, in the current version of its job. Returns what is wrong with them.
    pub(super) async fn offer_task(
        &self,
        number: usize,
        env: &TaskEnv,
        driver: Option<&DriverNetwork>,
        offered: &mut Offered,
    ) -> Vec<String> {
        let task = &self.tasks[number];
        let updated = self.control.updated();
        let services = updated.as_ref().map_or(&task.services, |updated| &updated.group().tasks[number].services);
        if services.is_empty() && offered.ids.is_empty() {
            return Vec::new();
        }
        let owner = Owner { task: Some((number, task.name.clone())), env: env.clone(), driver: driver.cloned() };
        self.offer(&owner, offered, services).await
    }

    /// Registers the group's services when its tasks run, or when those of an earlier process have been found again; withdraws
    /// them when the group begins to end. `complain` gets what is wrong with them. Never returns.
    pub(super) async fn follow_group(&self, complain: impl Fn(String)) -> std::convert::Infallible {
        let mut ending = self.control.ending();
        let ends = async {
            if ending.wait_for(|ending| *ending).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let lives = async {
            let mut updates = self.control.updates();
            self.control.taken_up().await;
            self.control.settled().await;
            loop {
                let updated = updates.borrow_and_update().clone();
                let services = updated.as_ref().map_or(&self.services, |updated| &updated.group().services);
                let mut of_group = self.of_group.lock().await;
                let has_some = !services.is_empty() || !of_group.ids.is_empty();
                if let Some(env) = has_some.then(|| (self.env)()).flatten() {
                    self.is_over.send_replace(false);
                    let owner = Owner { task: None, env, driver: None };
                    self.offer(&owner, &mut of_group, services).await.into_iter().for_each(&complain);
                }
                drop(of_group);
                if !updates.has_changed().unwrap_or_default() {
                    self.control.set_announced();
                }
                // The sender lives as long as this value.
                let _ = updates.changed().await;
            }
        };
        tokio::select! {
            biased;
            () = ends => {}
            () = lives => {}
        }
        self.withdraw_group().await;
        std::future::pending().await
    }

    /// Withdraws the group's services for good.
    pub(super) async fn withdraw_group(&self) {
        let mut of_group = self.of_group.lock().await;
        self.withdraw(&mut of_group).await;
        self.is_over.send_replace(true);
    }

    /// Returns when the group's services have been withdrawn, which happens when the group ends.
    pub(super) async fn withdrawn(&self) {
        // The sender lives as long as this value.
        let _ = self.is_over.subscribe().wait_for(|over| *over).await;
    }

    /// Whether [`Offers::withdrawn`] would return.
    pub(super) fn is_withdrawn(&self) -> bool {
        *self.is_over.borrow()
    }

    /// Stops the checks and removes the services from the registry; services that are not registered are ignored.
    pub(super) async fn withdraw(&self, offered: &mut Offered) {
        for one in &mut offered.services {
            one.checks.shutdown().await;
            one.is_gone.store(true, Ordering::SeqCst);
        }
        offered.services.clear();
        let ids = std::mem::take(&mut offered.ids);
        if ids.is_empty() {
            return;
        }
        self.control.board().change(|all| ids.iter().for_each(|id| drop(all.remove(id))));
        let changed = self.change(move |all| ids.iter().for_each(|id| drop(all.remove(id)))).await;
        if let Err(error) = changed {
            // It is withdrawn in this process; other processes see it until this process ends.
            tracing::warn!(%error, "cannot withdraw services");
        }
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<String, Registration>) + Send + 'static,
    ) -> io::Result<()> {
        let registry = self.registry.clone();
        let changed = crate::sys::task::spawn_blocking(move || registry.change(change)).await;
        changed.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Registers and checks these services, and withdraws all others of this owner; those that are registered already go on.
    /// Returns what is wrong with them.
    async fn offer(&self, owner: &Owner, offered: &mut Offered, services: &[Service]) -> Vec<String> {
        let (mut errors, mut new) = (Vec::new(), Vec::new());
        let (mut old, mut begins) = (std::mem::take(&mut offered.services), Vec::new());
        for service in services {
            let mut service = service.clone();
            if self.control.is_canary() && !service.canary_tags.is_empty() {
                service.tags.clone_from(&service.canary_tags);
            }
            let registration = match self.registration(owner, &service) {
                Ok(registration) => registration,
                Err(why) => {
                    errors.push(format!("Service {:?} is not registered: {why}", service.name));
                    continue;
                }
            };
            let is_it = |one: &One| one.id == registration.id && is_same(&one.service, &service);
            if let Some(number) = old.iter().position(is_it) {
                offered.services.push(old.swap_remove(number));
                continue;
            }
            let before = old.iter().find(|one| one.id == registration.id);
            let goes_on = before.is_some_and(|one| has_same_checks(&one.service, &service));
            let (id, is_gone) = (registration.id.clone(), Arc::<AtomicBool>::default());
            new.push(New { registration, is_gone: Arc::clone(&is_gone), goes_on });
            begins.push(offered.services.len());
            offered.services.push(One { id, service, is_gone, checks: JoinSet::new() });
        }
        // Added before they are registered, so that they are withdrawn even if this is interrupted.
        offered.ids.extend(new.iter().map(|new| new.registration.id.clone()));
        for one in &mut old {
            one.is_gone.store(true, Ordering::SeqCst);
            one.checks.shutdown().await;
        }
        let kept: BTreeSet<String> = offered.services.iter().map(|one| one.id.clone()).collect();
        let gone: Vec<String> = offered.ids.difference(&kept).cloned().collect();
        if new.is_empty() && gone.is_empty() {
            return errors;
        }
        self.control.board().change(|all| put(all, &new, &gone));
        let changed = self.change(move |all| put(all, &new, &gone)).await;
        match changed {
            Ok(()) => offered.ids = kept,
            Err(error) => {
                errors.push(format!("Services cannot be seen by others: {}", super::chain::chain(&error)));
            }
        }
        for number in begins {
            self.begin_checks(owner, &mut offered.services[number]);
        }
        errors
    }

    fn begin_checks(&self, owner: &Owner, one: &mut One) {
        let service = &one.service;
        for (number, check) in service.checks.iter().enumerate() {
            let watched = Watched {
                registry: self.registry.clone(),
                control: Arc::clone(&self.control),
                is_gone: Arc::clone(&one.is_gone),
                service: one.id.clone(),
                number,
                restarter: check.restart.map(|policy| self.restarter(owner, service, check, policy)),
            };
            let probe = self.probe(owner, service, check).unwrap_or_else(Probe::Broken);
            let pace = pace(check);
            // Of a check that goes on, what it found last.
            let registered = self.control.services().into_iter().find(|known| known.id == one.id);
            let known = registered.and_then(|known| Some(known.checks.get(number)?.status));
            let pace = Pace { initial: known.unwrap_or(pace.initial), ..pace };
            let trial = Trial::new(probe, pace, self.inside(owner, service, check));
            one.checks.spawn(boxed(watched.run(trial)));
        }
    }

    fn registration(&self, owner: &Owner, service: &Service) -> Result<Registration, String> {
        let said = |text: &String| self.said(owner, text);
        let name = said(&service.name);
        if !Service::is_name(&name) {
            return Err(format!(
                "{name:?} cannot be the name of a service: use letters, digits and dashes, 63 at most"
            ));
        }
        let port = said(&service.port);
        let (address, number) = match said(&service.address) {
            own if own.is_empty() => self.locate(owner, service.address_mode, &port)?,
            own => (own, self.locate(owner, AddressMode::Host, &port)?.1),
        };
        let task = owner.task.as_ref().map(|(_, name)| name.clone());
        let of = task.clone().unwrap_or_else(|| format!("group-{}", self.common.task_group));
        let id = format!("_nomad-task-{}-{of}-{name}-{port}", self.common.alloc_id);
        let values =
            |map: &BTreeMap<String, String>| map.iter().map(|(key, value)| (said(key), said(value))).into_map();
        let report = |(number, check): (usize, &Check)| CheckReport {
            id: format!("{id}-{number}"),
            name: said(&check.name),
            kind: check.kind.as_str().to_owned(),
            on_update: check.on_update.as_str().to_owned(),
            status: pace(check).initial,
            output: "nomad: waiting to run".to_owned(),
            ..CheckReport::default()
        };
        let mut registration = Registration {
            tags: service.tags.iter().map(said).collect(),
            address,
            port: number,
            task_name: task.unwrap_or_default(),
            provider: service.provider.as_str().to_owned(),
            meta: values(&service.meta),
            tagged_addresses: values(&service.tagged_addresses),
            weights: service.weights,
            checks: service.checks.iter().enumerate().map(report).collect(),
            service_name: name,
            id,
            ..self.common.clone()
        };
        registration.settle();
        Ok(registration)
    }

    /// Interpolates a text, including the references that only services have.
    fn said(&self, owner: &Owner, text: &str) -> String {
        let Registration { job_id, task_group, .. } = &self.common;
        let job = owner.env.get("NOMAD_JOB_NAME").unwrap_or(job_id);
        let task = owner.task.as_ref().map_or("", |(_, name)| name);
        owner.env.interpolate_with(text, &|key| {
            Some(match key {
                "JOB" => job.to_owned(),
                "TASKGROUP" | "GROUP" => task_group.clone(),
                "TASK" => task.to_owned(),
                "BASE" if task.is_empty() => format!("{job}-{task_group}"),
                "BASE" => format!("{job}-{task_group}-{task}"),
                _ => return None,
            })
        })
    }

    /// The address of a port with this name or number.
    fn locate(&self, owner: &Owner, mode: AddressMode, port: &str) -> Result<(String, u16), String> {
        let own = owner.task.as_ref().map(|(_, name)| name);
        let of_task =
            self.ports.iter().find(|known| known.label == port && known.task.is_some() && known.task.as_ref() == own);
        let label = of_task.or_else(|| self.ports.iter().find(|known| known.label == port && known.task.is_none()));
        let number = match port {
            "" => Some(0),
            port => port.parse::<u16>().ok(),
        };
        let unknown = || format!("there is no port {port:?}; add port {port:?} {{}} to the group's network");
        let announced = owner.driver.as_ref().filter(|network| !network.ip.is_empty());
        match mode {
            AddressMode::Auto if announced.is_some_and(|network| network.auto_advertise) => {
                self.locate(owner, AddressMode::Driver, port)
            }
            AddressMode::Auto | AddressMode::Host => match label {
                Some(known) => Ok((known.ip.to_string(), known.value)),
                // As with Nomad: a service with neither port nor network has no address.
                None if port.is_empty() && !self.has_network => Ok((String::new(), 0)),
                None => Ok((self.host.to_string(), number.ok_or_else(unknown)?)),
            },
            AddressMode::Alloc | AddressMode::AllocIpv6 => {
                let address = self.network.as_ref().and_then(|(status, _)| within(mode, status));
                let address = address.ok_or_else(|| {
                    let (name, kind) =
                        (mode.as_str(), if mode == AddressMode::Alloc { "an address" } else { "an IPv6 address" });
                    format!("address_mode {name:?} needs a network of the group with {kind}: mode \"bridge\" or \"cni/NAME\"")
                })?;
                let number = label.map(AllocPort::inside).or(number).ok_or_else(unknown)?;
                Ok((address.to_string(), number))
            }
            AddressMode::Driver => {
                let network = announced.ok_or(
                    "address_mode \"driver\" needs a driver that gives its task an address, and this one has not; use \"host\"",
                )?;
                let mapped = network.port_map.get(port).copied();
                let number = mapped.or_else(|| label.map(AllocPort::inside)).or(number).ok_or_else(unknown)?;
                Ok((network.ip.clone(), number))
            }
        }
    }

    /// The address that a check connects to: the service's own one if it has one, else inside the allocation's network if there is
    /// one, unless the job file says otherwise.
    fn target(&self, owner: &Owner, service: &Service, check: &Check) -> Result<Target, String> {
        let inherited = check.port.is_empty();
        let port = self.said(owner, if inherited { &service.port } else { &check.port });
        let on_host = |(ip, port): (String, u16)| Target { address: address(&ip, port), way: Way::Host };
        let mode = match check.address_mode {
            Some(mode) => Some(mode),
            // A port number is meaningful only in the address mode of the service.
            None if inherited && port.parse::<u16>().is_ok() && service.address_mode != AddressMode::Auto => {
                Some(service.address_mode)
            }
            None => None,
        };
        let own = self.said(owner, &service.address);
        let target = match (mode, &self.network) {
            _ if check.address_mode.is_none() && !own.is_empty() => {
                on_host((own, self.locate(owner, AddressMode::Host, &port)?.1))
            }
            (None | Some(AddressMode::Alloc | AddressMode::AllocIpv6), Some((status, namespace))) => {
                let own = within(mode.unwrap_or(AddressMode::Alloc), status);
                let address = match mode {
                    Some(AddressMode::AllocIpv6) => own.ok_or("the network of the group has no IPv6 address")?,
                    _ => own.unwrap_or(Ipv4Addr::LOCALHOST.into()),
                };
                let inside = Offers::inside_of(address, &self.ports, &port)
                    .ok_or_else(|| format!("there is no port {port:?} of the group"))?;
                Target { address: inside.to_string(), way: Way::Within(namespace.clone()) }
            }
            (mode, _) => on_host(self.locate(owner, mode.unwrap_or(AddressMode::Host), &port)?),
        };
        if target.address.ends_with(":0") {
            return Err("it has no port".to_owned());
        }
        Ok(target)
    }

    fn inside_of(address: IpAddr, ports: &[AllocPort], port: &str) -> Option<SocketAddr> {
        let label = ports.iter().find(|known| known.label == port && known.task.is_none());
        let number = label.map(AllocPort::inside).or_else(|| port.parse().ok())?;
        Some(SocketAddr::new(address, number))
    }

    fn probe(&self, owner: &Owner, service: &Service, check: &Check) -> Result<Probe, String> {
        let said = |text: &String| self.said(owner, text);
        Ok(match &check.kind {
            CheckKind::Tcp => Probe::Tcp(self.target(owner, service, check)?),
            CheckKind::Http(http) => {
                let pairs =
                    http.headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
                let http = Http {
                    tls: http.tls,
                    skip_verify: http.tls_skip_verify,
                    server_name: said(&http.tls_server_name),
                    path: said(&http.path),
                    method: said(&http.method),
                    headers: pairs.map(|(name, value)| (said(name), said(value))).collect(),
                    body: said(&http.body),
                };
                Probe::Http(self.target(owner, service, check)?, http)
            }
            CheckKind::Grpc(grpc) => {
                let grpc = Grpc {
                    service: said(&grpc.service),
                    tls: grpc.tls,
                    skip_verify: grpc.tls_skip_verify,
                    server_name: said(&grpc.tls_server_name),
                };
                Probe::Grpc(self.target(owner, service, check)?, grpc)
            }
            CheckKind::Script(script) => {
                Probe::Script(std::iter::once(&script.command).chain(&script.args).map(said).collect())
            }
        })
    }

    /// The task that a check refers to: named by itself, by its service, or because there is only one.
    fn named_task(&self, owner: &Owner, service: &Service, check: &Check) -> Option<usize> {
        if let Some((number, _)) = &owner.task {
            return Some(*number);
        }
        let own = match &check.kind {
            CheckKind::Script(script) => script.task.as_str(),
            _ => "",
        };
        let name = if own.is_empty() { &service.task } else { own };
        let only = (name.is_empty() && self.tasks.len() == 1).then_some(0);
        only.or_else(|| self.tasks.iter().position(|task| task.name == *name))
    }

    /// The task in which its scripts run.
    fn inside(&self, owner: &Owner, service: &Service, check: &Check) -> Inside {
        let (control, number) = (Arc::clone(&self.control), self.named_task(owner, service, check));
        Box::new(move || control.task(number?).runs())
    }

    fn restarter(&self, owner: &Owner, service: &Service, check: &Check, policy: CheckRestart) -> Restarter {
        let named = self.named_task(owner, service, check);
        let main = || (0..self.tasks.len()).filter(|number| self.tasks[*number].is_main).collect();
        Restarter {
            policy,
            name: self.said(owner, &check.name),
            targets: named.map_or_else(main, |number| vec![number]),
            control: Arc::clone(&self.control),
            unhealthy: 0,
            asked_at: None,
        }
    }
}

/// The allocation's address in its own network that an address mode means.
fn within(mode: AddressMode, status: &Status) -> Option<IpAddr> {
    match mode {
        AddressMode::AllocIpv6 => status.address_ipv6.map(IpAddr::from),
        _ => status.address,
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn address(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

fn pace(check: &Check) -> Pace {
    Pace {
        interval: check.interval,
        timeout: check.timeout,
        initial: check.initial_status.unwrap_or_default(),
        success_before_passing: check.success_before_passing,
        failures_before_critical: check.failures_before_critical,
        failures_before_warning: check.failures_before_warning,
    }
}

/// Equal except for their positions in the job file.
fn is_same(one: &Service, other: &Service) -> bool {
    let mut moved = other.clone();
    moved.pos.clone_from(&one.pos);
    moved.checks.iter_mut().zip(&one.checks).for_each(|(moved, check)| moved.pos.clone_from(&check.pos));
    *one == moved
}

/// Whether both have the same checks; they may differ in descriptive fields only.
fn has_same_checks(one: &Service, other: &Service) -> bool {
    let Service { tags, canary_tags, meta, canary_meta, tagged_addresses, weights, .. } = one.clone();
    is_same(one, &Service { tags, canary_tags, meta, canary_meta, tagged_addresses, weights, ..other.clone() })
}

/// A service that is about to be registered.
struct New {
    registration: Registration,
    is_gone: Arc<AtomicBool>,
    /// The results of the previous version's checks stay valid.
    goes_on: bool,
}

/// Registers new services that are still wanted, and removes those that are gone.
fn put(all: &mut BTreeMap<String, Registration>, new: &[New], gone: &[String]) {
    for id in gone {
        all.remove(id);
    }
    for New { registration, goes_on, .. } in new.iter().filter(|new| !new.is_gone.load(Ordering::SeqCst)) {
        let mut registration = registration.clone();
        if let Some(old) = all.get(&registration.id) {
            registration.create_index = old.create_index;
            if *goes_on {
                registration.checks.clone_from(&old.checks);
                registration.settle();
            }
        }
        all.insert(registration.id.clone(), registration);
    }
}

/// The environment of a group's services: what its tasks have in common. Built on demand.
fn group_env(place: &Place) -> Box<dyn Fn() -> Option<TaskEnv> + Send + Sync> {
    let (job, number, id, index) = (Arc::clone(&place.job), place.group, place.id.clone(), place.index);
    let (machine, node, ports) = (Arc::clone(&place.machine), Arc::clone(&place.node), place.ports.clone());
    let parent = place.parent.clone();
    let status = place.network.as_ref().map(|network| network.status.clone());
    Box::new(move || {
        let (group, dir) = (&job.groups[number], AllocDir::new(&machine.data_dir, &id));
        let task = group.tasks.first()?;
        Some(TaskEnv::of_group(&Source {
            job: &job,
            group,
            parent: &parent,
            task,
            alloc: &id,
            index,
            alloc_dir: dir.path(),
            isolation: FsIsolation::Image,
            cgroup_parent: std::path::Path::new(""),
            ports: &ports,
            network: status.as_ref(),
            node: &node,
            host: &machine.host_env,
            denied: &machine.env_denylist,
        }))
    })
}

/// A check of a registered service, and where its results go.
struct Watched {
    registry: Services,
    control: Arc<Control>,
    is_gone: Arc<AtomicBool>,
    /// The registration's id.
    service: String,
    /// Its index among the service's checks.
    number: usize,
    restarter: Option<Restarter>,
}

impl Watched {
    async fn run(mut self, mut trial: Trial) {
        let mut told = None;
        loop {
            let (status, output, status_code) = trial.next().await;
            if let Some(restarter) = &mut self.restarter {
                restarter.hear(if trial.is_found() { status } else { CheckStatus::Pending });
            }
            let timestamp = timestamp(SystemTime::now());
            let result = CheckReport { status, status_code, output, timestamp, ..CheckReport::default() };
            self.control.board().change(|all| note(all, &self.service, self.number, &result));
            // The registry is written only when the status changes.
            if told != Some(status) {
                match self.tell(result).await {
                    Ok(()) => told = Some(status),
                    // The next result is a retry.
                    Err(error) => tracing::warn!(%error, "cannot say what a check found"),
                }
            }
        }
    }

    async fn tell(&self, mut result: CheckReport) -> io::Result<()> {
        result.output = shortened(&result.output, LONGEST_OUTPUT).into_owned();
        let (registry, is_gone) = (self.registry.clone(), Arc::clone(&self.is_gone));
        let (service, number) = (self.service.clone(), self.number);
        let changed = crate::sys::task::spawn_blocking(move || {
            registry.change(|all| {
                if !is_gone.load(Ordering::SeqCst) {
                    note(all, &service, number, &result);
                }
            })
        });
        changed.await.unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

/// Sets the result of a check in its registration.
fn note(all: &mut BTreeMap<String, Registration>, service: &str, number: usize, result: &CheckReport) {
    let Some(registration) = all.get_mut(service) else { return };
    let Some(check) = registration.checks.get_mut(number) else { return };
    (check.status, check.status_code) = (result.status, result.status_code);
    check.output.clone_from(&result.output);
    check.timestamp.clone_from(&result.timestamp);
    registration.settle();
}

/// Restarts tasks whose check keeps failing.
struct Restarter {
    policy: CheckRestart,
    name: String,
    /// Indexes of the tasks.
    targets: Vec<usize>,
    control: Arc<Control>,
    /// Results in a row.
    unhealthy: u32,
    /// How often the tasks had been started when a restart was requested.
    asked_at: Option<u64>,
}

impl Restarter {
    fn hear(&mut self, status: CheckStatus) {
        let starts: Vec<_> = self.targets.iter().map(|number| self.control.task(*number).starts()).collect();
        let count: u64 = starts.iter().map(|(count, _)| count).sum();
        if self.asked_at == Some(count) {
            return;
        }
        self.asked_at = None;
        let since = starts.iter().filter_map(|(_, time)| *time).max();
        let is_young = since.is_none_or(|time| time.elapsed().unwrap_or_default() < self.policy.grace);
        let is_unhealthy = match status {
            CheckStatus::Critical => true,
            CheckStatus::Warning => !self.policy.ignore_warnings,
            CheckStatus::Passing | CheckStatus::Pending => false,
        };
        self.unhealthy = if is_unhealthy && !is_young { self.unhealthy + 1 } else { 0 };
        if self.unhealthy >= self.policy.limit {
            (self.unhealthy, self.asked_at) = (0, Some(count));
            for number in &self.targets {
                self.control.task(*number).is_unhealthy(format!("healthcheck: check {:?} unhealthy", self.name));
            }
        }
    }
}

#[cfg(test)]
mod tests;
