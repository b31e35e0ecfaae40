//! `agentbin ps`, `status`, `stop`, `restart`, `signal`, `stats`: what runs here, queried over the control sockets of the runs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};

use super::output::indented;
use super::revive::{is_announced, is_any_lost, revive};
use super::{PsArgs, RestartArgs, SignalArgs, StatsArgs, StatusArgs, StopArgs, UpdateArgs, complain, print, tell};
use crate::alloc::control::{
    AllocView, Answers, Connection, ProcessUse, Reached, Request, RunView, StatsView, reach, seconds_since, timestamp,
};
use crate::alloc::{self, Finding, Owner, Record, chain, findings, machine};
use crate::executor::NewLimits;
use crate::spec::IntoSet as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::json::json;
use crate::spec::{Order as _, Signal, escaped, escaped_lines};

/// Characters of an id that are displayed; a word has to be at least as long to be taken for a prefix of an id by commands that
/// change something.
const SHORT: usize = 8;
/// How many supervisors of a run are asked to stop it, one after the other, if each of them is killed.
const SUPERVISORS: usize = 5;
/// The same for commands that only read: names of jobs and tasks may resemble the prefix of an id, too.
pub(super) const SHORTEST: usize = 4;

/// An allocation, and its supervisor.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) view: AllocView,
    pub(super) keeper: Keeper,
}

/// The supervisor of an allocation.
#[derive(Debug)]
pub(super) enum Keeper {
    /// A run that answers.
    Run {
        socket: PathBuf,
        /// How many allocations it has.
        allocs: usize,
    },
    /// The agent.
    Agent { socket: PathBuf },
    /// A run that was killed.
    Lost {
        /// Its record.
        record: Box<Record>,
        /// It should have been taken over, but another supervisor could not.
        is_wanted: bool,
    },
    /// There is none: the allocation has ended.
    Nobody,
}

/// The allocations of this user on this machine.
#[derive(Debug)]
pub(super) struct World {
    pub(super) data_dir: Option<PathBuf>,
    pub(super) allocs: Vec<Found>,
}

/// Blocks on a future.
pub(super) fn wait_for<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let done = crate::sys::task::block_on(&runtime, work);
    runtime.shutdown_background();
    done
}

/// What a word on the command line names something for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To change running allocations.
    Order,
    /// To read from running allocations.
    Use,
    /// To read from running or ended allocations.
    Look,
}

impl Purpose {
    /// The minimum length of a prefix of an id.
    const fn shortest_id(self) -> usize {
        match self {
            Purpose::Order => SHORT,
            Purpose::Use | Purpose::Look => SHORTEST,
        }
    }
}

impl World {
    /// Lists the allocations; with `ended` also those that have ended. With a data directory, only those in it. What cannot be
    /// inspected is reported, and does not affect the rest.
    pub(super) async fn look(given: Option<&Path>, ended: bool) -> anyhow::Result<World> {
        let (world, is_missing) = World::look_once(given, ended).await?;
        // A dying supervisor may have held its lock until after the lock was checked, so the check is repeated.
        // Runs of other data directories are known by their sockets only.
        let is_kept = |found: &Found| matches!(found.keeper, Keeper::Lost { is_wanted: true, .. });
        let is_again =
            is_missing || world.allocs.iter().any(is_kept) || is_any_lost(world.data_dir.as_deref(), given.is_some());
        if is_again { Ok(World::look_once(given, ended).await?.0) } else { Ok(world) }
    }

    /// Also returns whether a run that is to go on has not answered: another command may have started its next supervisor, which
    /// holds the lock again.
    async fn look_once(given: Option<&Path>, ended: bool) -> anyhow::Result<(World, bool)> {
        let data_dir = machine::existing_data_dir(given)?;
        if let (Some(given), None) = (given, &data_dir) {
            bail!("there is no data directory {}", given.display());
        }
        revive(data_dir.as_deref(), given.is_some()).await;
        let bases = machine::socket_bases(data_dir.as_deref());
        let Answers { runs, errors, unheard } =
            reach(&bases).await.with_context(|| format!("cannot look for runs in {bases:?}"))?;
        for error in &errors {
            complain(&chain(error));
        }
        let is_shown = |dir: &PathBuf| given.is_none() || data_dir.as_ref() == Some(dir);
        let is_missing = unheard.iter().any(|run| is_shown(&run.0) && is_announced(run));
        let mut world = World { data_dir, allocs: Vec::new() };
        for Reached { socket, run } in runs {
            if given.is_none() || world.data_dir.as_ref() == Some(&run.data_dir) {
                world.add(&socket, run, ended);
            }
        }
        if let Some(dir) = world.data_dir.clone() {
            let left = findings(&dir).unwrap_or_else(|error| {
                complain(&format!("cannot look for killed runs: {error:#}"));
                Vec::new()
            });
            for finding in left {
                let record = match finding {
                    Finding::Abandoned(record) => Some((record, false)),
                    // A run that could not be taken over. Allocations of the agent are left to the agent.
                    Finding::Wanted(record) if record.owned_by() != Owner::Agent => Some((record, true)),
                    _ => None,
                };
                if let Some((record, is_wanted)) = record {
                    let view = lost(&dir, &record);
                    world.allocs.push(Found { view, keeper: Keeper::Lost { record: Box::new(record), is_wanted } });
                }
            }
            if !ended {
                return Ok((world, is_missing));
            }
            let ended = alloc::ended(&machine::kept_logs(&dir)).unwrap_or_else(|error| {
                complain(&format!("cannot read what was kept of ended jobs: {error}"));
                Vec::new()
            });
            // An allocation that was stopped individually is also known to its run, until the run ends.
            let known: BTreeSet<String> = world.allocs.iter().map(|found| found.view.id.clone()).into_set();
            let ended = ended.into_iter().filter(|view| !known.contains(&view.id));
            world.allocs.extend(ended.map(|view| Found { view, keeper: Keeper::Nobody }));
        }
        Ok((world, is_missing))
    }

    /// Adds the allocations of a run or of the agent; `ended` includes those of the agent that have ended, as it keeps them.
    pub(super) fn add(&mut self, socket: &Path, run: RunView, ended: bool) {
        let count = run.allocs.len();
        self.allocs.extend(run.allocs.into_iter().filter_map(|view| {
            let socket = socket.to_owned();
            let keeper = match view.run {
                _ if !run.agent => Keeper::Run { socket, allocs: count },
                Some(_) => Keeper::Agent { socket },
                None if ended => Keeper::Nobody,
                None => return None,
            };
            Some(Found { view, keeper })
        }));
    }

    /// The allocations that have not ended.
    fn current(&self) -> impl Iterator<Item = &Found> {
        self.allocs.iter().filter(|found| !matches!(found.keeper, Keeper::Nobody))
    }

    /// Reports what happens to the tasks of killed runs.
    pub(super) fn tell_of_lost(&self) {
        tell_of_lost(&self.current().collect::<Vec<_>>());
    }

    /// Whether a job or a task has this name.
    pub(super) fn is_name(&self, word: &str) -> bool {
        self.allocs.iter().any(|Found { view, .. }| view.job == word || view.tasks.iter().any(|task| task.name == word))
    }

    /// Resolves a word to allocations, and to a task if it names one: a job, an id, a task, or the prefix of an id. Ended
    /// allocations are considered only if nothing else matches.
    pub(super) fn find(&self, word: &str, purpose: Purpose) -> anyhow::Result<(Vec<&Found>, Option<String>)> {
        let of = |running: bool, meant: &dyn Fn(&AllocView) -> bool| -> Vec<&Found> {
            let is = |found: &&Found| running != matches!(found.keeper, Keeper::Nobody) && meant(&found.view);
            self.allocs.iter().filter(is).collect()
        };
        let times = [true, false].into_iter().filter(|running| *running || purpose == Purpose::Look);
        for running in times.clone() {
            let exact = of(running, &|view| view.job == word || view.id == word);
            if !exact.is_empty() {
                return Ok((exact, None));
            }
            let tasks = of(running, &|view| view.tasks.iter().any(|task| task.name == word));
            if !tasks.is_empty() {
                return Ok((tasks, Some(word.to_owned())));
            }
        }
        let shortest = purpose.shortest_id();
        for running in times {
            let ids = of(running, &|view| word.len() >= shortest && view.id.starts_with(word));
            match ids.len() {
                0 => {}
                1 => return Ok((ids, None)),
                _ => bail!("{word:?} begins several allocation ids; give more of it:\n{}", candidates(&ids)),
            }
        }
        let all: Vec<&Found> = self.current().collect();
        if all.is_empty() {
            bail!("there is no job, task or allocation {word:?}: nothing runs here");
        }
        let is_short = word.len() < shortest && all.iter().any(|found| found.view.id.starts_with(word));
        let hint = if is_short { format!(" (of an id give {shortest} characters at least)") } else { String::new() };
        bail!("there is no job, task or allocation {word:?}{hint}; here are:\n{}", candidates(&all))
    }

    /// The one allocation that a word names.
    pub(super) fn find_one(&self, word: &str, purpose: Purpose) -> anyhow::Result<(&Found, Option<String>)> {
        let (found, task) = self.find(word, purpose)?;
        match living(found)[..] {
            [one] => Ok((one, task)),
            ref several => bail!("{word:?} are several allocations; give the id of one:\n{}", candidates(several)),
        }
    }

    /// The allocations for a command that changes something: of one job of one run only, because each job of this user may have a
    /// task of that name.
    fn find_for_order(&self, word: &str) -> anyhow::Result<(Vec<&Found>, Option<String>)> {
        let (found, task) = self.find(word, Purpose::Order)?;
        let found = living(found);
        // The agent has many jobs, also several of one id, each in a namespace of its own.
        let job = |view: &AllocView| (view.namespace.clone(), view.job.clone());
        let runs: BTreeSet<(&Path, (String, String))> =
            found.iter().filter_map(|found| Some((socket(found).ok()?, job(&found.view)))).into_set();
        if runs.len() > 1 {
            bail!("{word:?} runs several times; give the id of one:\n{}", candidates(&found));
        }
        Ok((found, task))
    }
}

/// Whether its tasks have ended.
pub(super) fn is_dead(view: &AllocView) -> bool {
    !view.tasks.is_empty() && view.tasks.iter().all(|task| task.state == "dead")
}

/// The allocations whose run answers; all, if there are none.
fn living(found: Vec<&Found>) -> Vec<&Found> {
    let lives = |found: &&Found| socket(found).is_ok() && !is_dead(&found.view);
    let living: Vec<&Found> = found.iter().copied().filter(lives).collect();
    if living.is_empty() { found } else { living }
}

/// The result for several allocations, all of which were tried.
fn outcome(mut errors: Vec<(&Found, anyhow::Error)>) -> anyhow::Result<i32> {
    match errors.len() {
        0 => Ok(0),
        1 => Err(errors.remove(0).1),
        _ => {
            let line = |(found, error): &(&Found, anyhow::Error)| format!("{}: {error:#}", short(&found.view.id));
            bail!("{}", errors.iter().map(line).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// A list to choose from.
fn candidates(found: &[&Found]) -> String {
    let line = |found: &&Found| {
        let AllocView { id, name, tasks, .. } = &found.view;
        let tasks = tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", ");
        let tasks = if tasks.is_empty() { String::new() } else { format!(" (tasks {tasks})") };
        format!("  {id}  {name}{tasks}")
    };
    found.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The status of an allocation of a killed run, from its record.
fn lost(data_dir: &Path, record: &Record) -> AllocView {
    let dir = data_dir.join("alloc").join(&record.alloc_id);
    let made = dir.metadata().and_then(|meta| meta.created().or_else(|_| meta.modified()));
    AllocView {
        id: record.alloc_id.clone(),
        name: format!("{}.{}", record.job, record.group),
        namespace: String::new(),
        job: record.job.clone(),
        group: record.group.clone(),
        index: 0,
        status: "lost".to_owned(),
        stopping: false,
        created_at: timestamp(made.unwrap_or(SystemTime::UNIX_EPOCH)),
        logs: dir.join("alloc/logs"),
        dir,
        ports: Vec::new(),
        services: Vec::new(),
        tasks: Vec::new(),
        run: None,
        messages: None,
        other: BTreeMap::new(),
    }
}

pub(super) fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

/// How long ago, in at most two units.
pub(super) fn age(time: &str) -> String {
    seconds_since(time).map_or("-".to_owned(), lasting)
}

/// The same for a number of seconds.
pub(super) fn lasting(seconds: u64) -> String {
    let rounded = match seconds {
        0..3600 => seconds,
        3600..86400 => seconds / 60 * 60,
        _ => seconds / 3600 * 3600,
    };
    humantime::format_duration(Duration::from_secs(rounded)).to_string().replace(' ', "")
}

/// Aligns columns.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

pub(super) fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| escaped(cell).into_owned()).collect()
}

/// Reports what happens to the tasks of killed runs.
fn tell_of_lost(found: &[&Found]) {
    for Found { view, keeper } in found {
        if let Keeper::Lost { record, is_wanted } = keeper {
            let others = if *is_wanted { "agentbin gc --abandoned does" } else { "agentbin gc and the next run do" };
            complain(&format!(
                "the run of allocation {} (job {:?}, process {}) was killed, and its tasks may still run; `agentbin stop {}` \
                 ends them and removes what is left, as {others}",
                short(&view.id),
                view.job,
                record.owner.pid,
                short(&view.id),
            ));
        }
    }
}

fn json_of(found: &[&Found]) -> anyhow::Result<i32> {
    let views: Vec<&AllocView> = found.iter().map(|found| &found.view).collect();
    print(format!("{}\n", indented(&json!(views))).as_bytes())
}

fn list(found: &[&Found]) -> String {
    let mut rows = vec![row(&["ID", "JOB", "GROUP", "STATUS", "TASKS", "RESTARTS", "AGE", "RUN"])];
    for Found { view, keeper } in found {
        let running = view.tasks.iter().filter(|task| task.state == "running").count();
        let status = if view.stopping { "stopping" } else { &view.status };
        let tasks = if view.tasks.is_empty() { "-".to_owned() } else { format!("{running}/{}", view.tasks.len()) };
        let restarts = view.tasks.iter().map(|task| task.restarts).sum::<u64>().to_string();
        let group = format!("{}[{}]", view.group, view.index);
        let run = match (keeper, view.run) {
            (Keeper::Agent { .. }, _) => "agent".to_owned(),
            (_, Some(pid)) => pid.to_string(),
            (_, None) => "-".to_owned(),
        };
        rows.push(row(&[short(&view.id), &view.job, &group, status, &tasks, &restarts, &age(&view.created_at), &run]));
    }
    table(&rows)
}

pub(super) fn ps(args: &PsArgs) -> anyhow::Result<i32> {
    let world = wait_for(World::look(args.data_dir.as_deref(), args.all))?;
    let found: Vec<&Found> = if args.all { world.allocs.iter().collect() } else { world.current().collect() };
    tell_of_lost(&found);
    if args.json {
        return json_of(&found);
    }
    print(list(&found).as_bytes())
}

pub(super) fn status(args: &StatusArgs) -> anyhow::Result<i32> {
    let Some(target) = &args.target else {
        return ps(&PsArgs { all: false, json: args.json, data_dir: args.data_dir.clone() });
    };
    let world = wait_for(World::look(args.data_dir.as_deref(), true))?;
    let (found, _) = world.find(target, Purpose::Look)?;
    tell_of_lost(&found);
    if args.json {
        return json_of(&found);
    }
    let text = found.iter().map(|found| describe(found)).collect::<Vec<_>>().join("\n");
    print(escaped_lines(&text).as_bytes())
}

fn describe(Found { view, keeper }: &Found) -> String {
    let mut about = vec![
        row(&["ID", &view.id]),
        row(&["Name", &view.name]),
        row(&["Job", &view.job]),
        row(&["Status", if view.stopping { "stopping" } else { &view.status }]),
        row(&["Created", &format!("{} ({} ago)", view.created_at, age(&view.created_at))]),
    ];
    if let Some(pid) = view.run {
        let supervisor = if matches!(keeper, Keeper::Agent { .. }) { "Agent" } else { "Run" };
        about.push(row(&[supervisor, &format!("process {pid}")]));
        about.push(row(&["Directory", &view.dir.display().to_string()]));
    }
    about.push(row(&["Logs", &view.logs.display().to_string()]));
    let messages = view.messages.as_ref().filter(|path| path.metadata().is_ok_and(|meta| meta.len() > 0));
    about.extend(messages.map(|path| row(&["Messages", &path.display().to_string()])));
    for port in &view.ports {
        let to = if port.to == 0 { String::new() } else { format!(" -> {}", port.to) };
        about.push(row(&["Port", &format!("{} {}:{}{to}", port.label, port.host_ip, port.value)]));
    }
    for service in &view.services {
        let place =
            if service.port == 0 { service.address.clone() } else { format!("{}:{}", service.address, service.port) };
        about.push(row(&["Service", &format!("{} {place} {}", service.name, service.status)]));
        for check in service.checks.iter().filter(|check| check.status != "passing") {
            about.push(row(&["Check", &format!("{} {}: {}", check.name, check.status, check.output)]));
        }
    }
    let mut text = table(&about);
    if view.tasks.is_empty() {
        return text;
    }
    let mut rows = vec![row(&["TASK", "DRIVER", "STATE", "RESTARTS", "STARTED", "FINISHED", "EXIT"])];
    for task in &view.tasks {
        let state = if task.failed { format!("{} (failed)", task.state) } else { task.state.clone() };
        let ended = match (task.exit_code, task.signal) {
            (_, Some(signal)) if signal != 0 => format!("signal {signal}"),
            (Some(code), _) => code.to_string(),
            _ => "-".to_owned(),
        };
        let at = |time: &Option<String>| time.as_deref().map_or("-".to_owned(), |time| format!("{} ago", age(time)));
        let (started, finished) = (at(&task.started_at), at(&task.finished_at));
        let restarts = task.restarts.to_string();
        rows.push(row(&[&task.name, &task.driver, &state, &restarts, &started, &finished, &ended]));
    }
    let _ = write!(text, "\n{}", table(&rows));
    let mut events = Vec::new();
    for task in &view.tasks {
        events.extend(task.events.iter().map(|e| (&e.time, row(&[&e.time, &task.name, &e.kind, &e.message]))));
    }
    events.order_by_key(|(time, _)| *time);
    if !events.is_empty() {
        let rows: Vec<Vec<String>> = events.into_iter().map(|(_, row)| row).collect();
        let _ = write!(text, "\n{}", table(&rows));
    }
    text
}

/// Sends a request to the run of an allocation.
async fn ask<T: serde::de::DeserializeOwned>(found: &Found, request: &Request) -> anyhow::Result<T> {
    let mut connection = Connection::open(socket(found)?).await?;
    Ok(connection.ask(request).await?)
}

/// The control socket of an allocation's supervisor.
pub(super) fn socket(found: &Found) -> anyhow::Result<&Path> {
    let Found { view, keeper } = found;
    let id = short(&view.id);
    match keeper {
        Keeper::Run { socket, .. } | Keeper::Agent { socket } => Ok(socket),
        Keeper::Lost { .. } => bail!(
            "the process that ran allocation {id} was killed and cannot be reached; `agentbin stop {id}` cleans up"
        ),
        Keeper::Nobody => bail!("allocation {id} has ended"),
    }
}

pub(super) fn stop(args: &StopArgs) -> anyhow::Result<i32> {
    wait_for(async {
        let world = World::look(args.data_dir.as_deref(), false).await?;
        // Several words may name the same allocation.
        let mut all: BTreeMap<&str, &Found> = BTreeMap::new();
        for target in &args.targets {
            let (found, task) = world.find(target, Purpose::Order)?;
            if task.is_some() {
                bail!("{target:?} is a task; stop its job or its allocation:\n{}", candidates(&found));
            }
            let runs: BTreeSet<&Path> = found.iter().filter_map(|found| socket(found).ok()).into_set();
            if runs.len() > 1 {
                bail!("{target:?} runs several times; give the id of one:\n{}", candidates(&found));
            }
            all.extend(found.into_iter().map(|found| (found.view.id.as_str(), found)));
        }
        let mut by_run: BTreeMap<&Path, Vec<&Found>> = BTreeMap::new();
        let (mut ended, mut errors) = (Vec::new(), Vec::new());
        let mut lost = Vec::new();
        for found in all.into_values() {
            match &found.keeper {
                Keeper::Run { socket, .. } => by_run.entry(socket).or_default().push(found),
                Keeper::Agent { .. } => errors.push((found, of_agent(&found.view))),
                Keeper::Lost { record, .. } => lost.push((found, record)),
                Keeper::Nobody => {}
            }
        }
        let mut unsure = BTreeSet::new();
        for (socket, of_run) in by_run {
            end(socket, &of_run, args, &mut ended, &mut unsure, &mut errors).await;
        }
        if !args.detach {
            end_again(args, unsure).await?;
        }
        // Running tasks may use resources of the killed ones, so those go last.
        for (found, record) in lost {
            errors.extend(remove(&world, found, record).await.err().map(|error| (found, error)));
        }
        let done = if args.detach { "stopping" } else { "stopped" };
        for Found { view, .. } in ended.into_iter().filter(|found| !is_dead(&found.view)) {
            print(format!("{done} {} {}\n", view.id, escaped(&view.name)).as_bytes())?;
        }
        outcome(errors)
    })
}

/// Why an allocation of the agent is not stopped: its job would have another one started.
fn of_agent(view: &AllocView) -> anyhow::Error {
    let namespace = match view.namespace.as_str() {
        "default" => String::new(),
        other => format!("-namespace {} ", escaped(other)),
    };
    anyhow::anyhow!(
        "allocation {} is one of the agent's, which are stopped with their job: agentbin job stop {namespace}{}",
        short(&view.id),
        escaped(&view.job)
    )
}

/// Repeats the stop of allocations whose supervisor may have been killed meanwhile.
async fn end_again(args: &StopArgs, mut unsure: BTreeSet<String>) -> anyhow::Result<()> {
    for _ in 0..SUPERVISORS {
        let world = World::look(args.data_dir.as_deref(), false).await?;
        let is_left = |found: &&Found| unsure.contains(&found.view.id) && !is_dead(&found.view);
        let left: Vec<&Found> = world.current().filter(is_left).collect();
        if left.is_empty() {
            return Ok(());
        }
        for found in left {
            let request = Request::Stop { alloc: Some(found.view.id.clone()), now: args.now };
            if order(socket(found)?, &request, false, false).await? {
                unsure.remove(&found.view.id);
            }
        }
        if unsure.is_empty() {
            return Ok(());
        }
    }
    bail!("its supervisor is killed again and again; agentbin gc --abandoned ends what is left")
}

/// Stops allocations of one run: all of it, or some of them. One that has ended meanwhile counts as stopped.
async fn end<'a>(
    socket: &Path,
    found: &[&'a Found],
    args: &StopArgs,
    ended: &mut Vec<&'a Found>,
    unsure: &mut BTreeSet<String>,
    errors: &mut Vec<(&'a Found, anyhow::Error)>,
) {
    let ids = |found: &[&Found]| found.iter().map(|one| one.view.id.clone()).into_set();
    let whole = found.iter().all(|one| matches!(one.keeper, Keeper::Run { allocs, .. } if found.len() >= allocs));
    if whole {
        match order(socket, &Request::Stop { alloc: None, now: args.now }, args.detach, true).await {
            Ok(_) => {
                ended.extend(found);
                unsure.extend(ids(found));
            }
            Err(error) => errors.extend(found.first().map(|one| (*one, error))),
        }
        return;
    }
    for one in found {
        let request = Request::Stop { alloc: Some(one.view.id.clone()), now: args.now };
        match order(socket, &request, args.detach, false).await {
            Ok(is_done) => {
                ended.push(one);
                if !is_done {
                    unsure.extend(ids(&[one]));
                }
            }
            Err(error) => errors.push((one, error)),
        }
    }
}

/// Requests a stop, and waits until it is done if that is wanted. Returns whether the supervisor confirmed it. `false` means that
/// it only disconnected: it may have stopped the allocation, or been killed.
async fn order(socket: &Path, request: &Request, detach: bool, whole: bool) -> anyhow::Result<bool> {
    let given = async {
        let mut connection = Connection::open(socket).await?;
        if detach && !whole {
            // The request is carried out even after the caller has disconnected.
            return connection.tell(request).await.map(|()| true);
        }
        connection.ask::<serde_json::Value>(request).await?;
        if whole && !detach {
            connection.ended().await;
        }
        Ok(!whole)
    };
    match given.await {
        Err(error) if error.is_gone() => Ok(false),
        given => Ok(given?),
    }
}

/// Removes the leftovers of a killed run.
async fn remove(world: &World, found: &Found, record: &Record) -> anyhow::Result<()> {
    let view = &found.view;
    let dir = world.data_dir.clone().with_context(|| format!("allocation {} has no data directory", view.id))?;
    let finding = Finding::Abandoned(record.clone());
    let removed = crate::sys::task::spawn_blocking(move || {
        let errors = alloc::remove(&dir, &finding, &tell());
        (errors, alloc::release(&dir))
    });
    let (errors, released) = removed.await?;
    released.context("cannot release the data directory")?;
    if !errors.is_empty() {
        bail!("{}", errors.join("\n"));
    }
    print(format!("removed {} {} (its run was killed)\n", view.id, escaped(&view.name)).as_bytes())?;
    Ok(())
}

pub(super) fn restart(args: &RestartArgs) -> anyhow::Result<i32> {
    let request = |alloc, task| Request::Restart { alloc, task };
    order_tasks(args.data_dir.as_deref(), &args.target, args.task.as_deref(), "restarted", &request)
}

/// Gives an order to the tasks that a word names, and prints which ones have carried it out.
fn order_tasks(
    data_dir: Option<&Path>,
    target: &str,
    task: Option<&str>,
    done: &str,
    request: &dyn Fn(String, Option<String>) -> Request,
) -> anyhow::Result<i32> {
    wait_for(async {
        let world = World::look(data_dir, false).await?;
        let (found, named) = world.find_for_order(target)?;
        let task = task.map(str::to_owned).or(named);
        let mut errors = Vec::new();
        for found in found {
            match ask::<Vec<String>>(found, &request(found.view.id.clone(), task.clone())).await {
                Ok(tasks) => {
                    print(format!("{done} {} {}\n", found.view.id, escaped(&tasks.join(" "))).as_bytes())?;
                }
                Err(error) => errors.push((found, error)),
            }
        }
        outcome(errors)
    })
}

pub(super) fn signal(args: &SignalArgs) -> anyhow::Result<i32> {
    let named = Signal::from_name(&args.signal);
    let signal = named.or_else(|| args.signal.parse().ok().and_then(Signal::from_number));
    let signal = signal.with_context(|| format!("there is no signal {:?}; give a name such as SIGHUP", args.signal))?;
    wait_for(async {
        let world = World::look(args.data_dir.as_deref(), false).await?;
        let (found, task) = world.find_for_order(&args.target)?;
        let task = args.task.clone().or(task);
        let mut errors = Vec::new();
        for found in found {
            let (alloc, task) = (found.view.id.clone(), task.clone());
            let sent = ask::<Vec<String>>(found, &Request::Signal { alloc, task, signal: signal.number() }).await;
            errors.extend(sent.err().map(|error| (found, error)));
        }
        outcome(errors)
    })
}

pub(super) fn update(args: &UpdateArgs) -> anyhow::Result<i32> {
    let memory = args.memory.map(|memory| NewLimits::memory(memory, args.memory_max.unwrap_or(0))).transpose()?;
    let (cpu_shares, pids_max) = (args.cpu, args.pids_limit);
    let limits = NewLimits { cpu_shares, memory, pids_max, ..NewLimits::default() };
    if limits == NewLimits::default() {
        bail!("no new limit is given; use --cpu, --memory, --memory-max or --pids-limit");
    }
    let request = |alloc, task| Request::Update { alloc, task, limits: limits.clone() };
    order_tasks(args.data_dir.as_deref(), &args.target, args.task.as_deref(), "updated", &request)
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<i32> {
    let (samples, outcome) = wait_for(async {
        let world = World::look(args.data_dir.as_deref(), false).await?;
        let (found, task) = match &args.target {
            Some(target) => world.find(target, Purpose::Use)?,
            None => (world.current().collect(), None),
        };
        let found = if args.target.is_some() { living(found) } else { found };
        let task = args.task.clone().or(task);
        let (mut samples, mut errors) = (Vec::new(), Vec::new());
        for found in found {
            // If no word is given, allocations without statistics are skipped.
            let runs = found.view.tasks.iter().any(|task| task.state == "running");
            if args.target.is_none() && (!runs || socket(found).is_err()) {
                continue;
            }
            let request = Request::Stats { alloc: found.view.id.clone(), task: task.clone() };
            match ask::<Vec<StatsView>>(found, &request).await {
                Ok(views) => samples.extend(views.into_iter().map(|view| (found.view.job.clone(), view))),
                Err(error) => errors.push((found, error)),
            }
        }
        Ok((samples, outcome(errors)))
    })?;
    if samples.is_empty() && outcome.is_err() {
        return outcome;
    }
    if args.json {
        let views: Vec<&StatsView> = samples.iter().map(|(_, view)| view).collect();
        print(format!("{}\n", indented(&json!(views))).as_bytes())?;
        return outcome;
    }
    let mut rows = vec![row(&["ID", "JOB", "TASK", "CPU", "MHZ", "MEMORY", "RSS", "MAX", "PROCESSES"])];
    for (job, StatsView { alloc_id, task, total, by_pid, .. }) in &samples {
        let ProcessUse { cpu_percent, cpu_mhz, memory_rss, memory_usage, memory_max_usage, .. } = total;
        let (cpu, mhz, count) = (format!("{cpu_percent:.1}%"), format!("{cpu_mhz:.0}"), by_pid.len().to_string());
        let (usage, rss, max) = (mib(*memory_usage), mib(*memory_rss), mib(*memory_max_usage));
        rows.push(row(&[short(alloc_id), job, task, &cpu, &mhz, &usage, &rss, &max, &count]));
    }
    print(table(&rows).as_bytes())?;
    outcome
}

/// Bytes for people; 0 means not measured.
pub(super) fn mib(bytes: u64) -> String {
    if bytes == 0 { "-".to_owned() } else { format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)) }
}
