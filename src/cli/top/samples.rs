//! What the runs here say of their tasks. Never waits for a run that does not answer: each has one question open at most.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::runs::{Found, Keeper, World};
use crate::alloc::control::{ClientError, Connection, Request, RunView, StatsView, sockets};
use crate::alloc::{chain, machine};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::sys::task::{Boxed, boxed};

/// How long a run may take to say what it runs, and then what a task uses.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many tasks of a run are asked for at once.
const AT_ONCE: usize = 8;

/// What became of a question.
enum Answer {
    Told(RunView, Vec<StatsView>),
    /// It has ended, or is not a run of ours.
    Gone,
    /// It lives and says nothing.
    Silent,
}

/// The last that each run has said.
pub(super) struct Samples {
    /// Only runs whose data is in this directory are shown.
    only: Option<PathBuf>,
    world: World,
    used: BTreeMap<(String, String), StatsView>,
    silent: BTreeSet<PathBuf>,
    open: BTreeSet<PathBuf>,
    asking: JoinSet<(PathBuf, Answer)>,
    note: String,
}

impl Samples {
    /// Nothing has been asked yet. `is_given` shows only what is kept in this data directory.
    pub(super) fn new(data_dir: Option<&Path>, is_given: bool) -> Samples {
        Samples {
            only: data_dir.filter(|_| is_given).map(Path::to_owned),
            world: World { data_dir: data_dir.map(Path::to_owned), allocs: Vec::new() },
            used: BTreeMap::new(),
            silent: BTreeSet::new(),
            open: BTreeSet::new(),
            asking: JoinSet::new(),
            note: String::new(),
        }
    }

    /// Asks all runs that have no question open.
    pub(super) fn ask(&mut self) {
        let bases = machine::socket_bases(self.world.data_dir.as_deref());
        let found: BTreeSet<PathBuf> = match sockets(&bases) {
            Ok(found) => found.into_iter().collect(),
            Err(error) => {
                self.note = format!("cannot look for runs in {bases:?}: {error}");
                return;
            }
        };
        self.note.clear();
        let gone: Vec<PathBuf> =
            self.world.allocs.iter().filter_map(socket).filter(|socket| !found.contains(*socket)).cloned().collect();
        for socket in gone {
            self.forget(&socket);
        }
        self.silent.retain(|socket| found.contains(socket));
        for socket in found {
            if self.open.insert(socket.clone()) {
                let asked: Boxed<(PathBuf, Answer)> = boxed(async move {
                    let answer = ask(&socket).await;
                    (socket, answer)
                });
                self.asking.spawn(asked);
            }
        }
    }

    /// Whether a question is open.
    pub(super) fn is_asking(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Takes the answers until no question is open. The future may be dropped and the method called again.
    pub(super) async fn all(&mut self) {
        while let Some(answered) = self.asking.join_next().await {
            // A panic has been reported.
            let Ok((socket, answer)) = answered else { continue };
            self.open.remove(&socket);
            match answer {
                Answer::Told(run, used) => self.take(&socket, run, used),
                Answer::Gone => self.forget(&socket),
                Answer::Silent => drop(self.silent.insert(socket)),
            }
        }
    }

    fn take(&mut self, of: &Path, run: RunView, used: Vec<StatsView>) {
        self.forget(of);
        if self.only.as_ref().is_some_and(|only| *only != run.data_dir) {
            return;
        }
        self.world.add(of, run, false);
        for used in used {
            self.used.insert((used.alloc_id.clone(), used.task.clone()), used);
        }
    }

    fn forget(&mut self, of: &Path) {
        self.silent.remove(of);
        let (mut gone, mut left) = (Vec::new(), Vec::new());
        for found in std::mem::take(&mut self.world.allocs) {
            let is_gone = socket(&found).is_some_and(|socket| socket == of);
            if is_gone { gone.push(found.view.id) } else { left.push(found) }
        }
        self.world.allocs = left;
        self.used.retain(|(alloc, _), _| !gone.contains(alloc));
    }

    /// The allocations of the runs that have answered.
    pub(super) fn world(&self) -> &World {
        &self.world
    }

    /// What a task used when its run answered last.
    pub(super) fn of(&self, alloc: &str, task: &str) -> Option<&StatsView> {
        self.used.get(&(alloc.to_owned(), task.to_owned()))
    }

    /// Whether the run of this allocation has not answered in time, so that what is known of it is older.
    pub(super) fn is_silent(&self, found: &Found) -> bool {
        socket(found).is_some_and(|socket| self.silent.contains(socket))
    }

    /// The runs that have not answered in time.
    pub(super) fn silent(&self) -> impl Iterator<Item = &PathBuf> {
        self.silent.iter()
    }

    /// What is wrong, for people; empty if nothing is.
    pub(super) fn note(&self) -> &str {
        &self.note
    }
}

fn socket(found: &Found) -> Option<&PathBuf> {
    match &found.keeper {
        Keeper::Run { socket, .. } | Keeper::Agent { socket } => Some(socket),
        _ => None,
    }
}

/// Asks one run for its allocations, and what each running task uses.
async fn ask(socket: &Path) -> Answer {
    let asked = async {
        let mut connection = Connection::open(socket).await?;
        connection.ask::<RunView>(&Request::Status).await
    };
    let run = match timeout(PATIENCE, asked).await {
        Ok(Ok(run)) => run,
        Ok(Err(ClientError::Ended | ClientError::Stranger { .. })) => return Answer::Gone,
        Ok(Err(error)) if error.is_unheard() => return Answer::Gone,
        Ok(Err(error)) => {
            tracing::debug!(error = chain(&error), "a run cannot be asked");
            return Answer::Silent;
        }
        Err(_) => return Answer::Silent,
    };
    let running: Vec<(String, String)> = run
        .allocs
        .iter()
        .flat_map(|alloc| alloc.tasks.iter().map(move |task| (alloc, task)))
        .filter(|(_, task)| task.state == "running")
        .map(|(alloc, task)| (alloc.id.clone(), task.name.clone()))
        .collect();
    let mut used = Vec::new();
    for some in running.chunks(AT_ONCE) {
        let mut asking: JoinSet<Option<StatsView>> = JoinSet::new();
        for (alloc, task) in some.iter().cloned() {
            let socket = socket.to_owned();
            let asked: Boxed<Option<StatsView>> = boxed(async move {
                let request = Request::Stats { alloc, task: Some(task) };
                let asked = async {
                    let mut connection = Connection::open(&socket).await?;
                    connection.ask::<Vec<StatsView>>(&request).await
                };
                // It may have ended meanwhile, and a driver may not answer: then nothing is known of what it uses.
                timeout(PATIENCE, asked).await.ok()?.ok()?.pop()
            });
            asking.spawn(asked);
        }
        used.extend(asking.join_all().await.into_iter().flatten());
    }
    Answer::Told(run, used)
}
