//! The volumes of one plugin on this node: executes their steps one after the other, and records each step before it is
//! executed. There is one manager per plugin and process, across restarts of the plugin's process. Managers of several processes
//! share the records: each operation locks its volume and reads the record of it.

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::sync::OwnedMutexGuard;

use super::capability::{Capability, Secrets};
use super::error::CsiError;
use super::node::{Calls, Volume, VolumeId, Work};
use super::usage::{Step, VolumeUse};
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;
use crate::sys::task::{spawn, spawn_blocking};

/// The record of a volume.
pub type Recorded = (VolumeId, VolumeUse);

/// Stores the records.
pub trait Ledger: Send + Sync {
    /// All records.
    ///
    /// # Errors
    /// Also fails when one of the records cannot be parsed.
    fn load(&self) -> io::Result<Vec<Recorded>>;

    /// Locks a volume against other processes and reads its record. If another process has the lock, it blocks, or returns `None`
    /// unless it `waits`.
    ///
    /// # Errors
    /// Also fails when the record cannot be parsed.
    fn lock(&self, id: &VolumeId, waits: bool) -> io::Result<Option<Locked>>;

    /// Replaces the record of a volume; an empty one is removed. The record survives a loss of power.
    ///
    /// # Errors
    /// The step is not executed then.
    fn save(&self, id: &VolumeId, volume: &VolumeUse) -> io::Result<()>;
}

/// A volume that no other process can change until this is dropped.
pub struct Locked {
    /// Its record.
    pub volume: VolumeUse,
    /// Keeps it locked.
    pub hold: Box<dyn Send + Sync>,
}

impl fmt::Debug for Locked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked").field("volume", &self.volume).finish_non_exhaustive()
    }
}

/// A request to use a volume.
#[derive(Debug, Clone)]
pub struct Join {
    /// The user.
    pub user: String,
    /// Which volume.
    pub volume: Volume,
    /// How.
    pub capability: Capability,
    /// Whether the user only reads.
    pub read_only: bool,
}

type Turn = Arc<tokio::sync::Mutex<VolumeUse>>;

/// See the top of the file.
pub struct Manager {
    calls: Mutex<Arc<dyn Calls>>,
    ledger: Arc<dyn Ledger>,
    volumes: Mutex<BTreeMap<VolumeId, Turn>>,
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("volumes", &*lock(&self.volumes)).finish_non_exhaustive()
    }
}

/// A volume that is locked for one operation.
struct Taken {
    id: VolumeId,
    volume: OwnedMutexGuard<VolumeUse>,
    _hold: Box<dyn Send + Sync>,
}

/// A volume that no step is executed of until this is dropped.
pub(super) struct Held {
    manager: Arc<Manager>,
    taken: Option<Taken>,
}

impl Held {
    /// Its record.
    pub(super) fn volume(&self) -> VolumeUse {
        self.taken.as_ref().map(|taken| taken.volume.clone()).unwrap_or_default()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.manager.put_back(taken);
        }
    }
}

impl Manager {
    /// A manager with these records; executes no step.
    pub fn open(calls: Arc<dyn Calls>, ledger: Arc<dyn Ledger>) -> Arc<Manager> {
        Arc::new(Manager { calls: Mutex::new(calls), ledger, volumes: Mutex::default() })
    }

    /// Replaces the calls after the plugin was restarted or has gained capabilities.
    pub fn replace(&self, calls: Arc<dyn Calls>) {
        *lock(&self.calls) = calls;
    }

    /// Gives a user a volume if its current use allows it. After a failure the executed steps are undone as far as possible;
    /// the rest is undone by [`Manager::settle`]. Once begun, it continues when the caller's future is dropped.
    ///
    /// # Errors
    /// [`CsiError`]; [`CsiError::Cancelled`] when `cancel` completes while the volume is locked by others; then nothing was
    /// done.
    pub async fn join(self: &Arc<Self>, join: Join, cancel: impl Future<Output = ()>) -> Result<(), CsiError> {
        let mut taken = self.take(&join.volume.id, cancel).await?;
        let own = Arc::clone(self);
        let done = spawn(async move {
            let done = own.join_now(&mut taken, &join).await;
            own.put_back(taken);
            done
        });
        done.await.unwrap_or_else(|error| Err(broken(&error)))
    }

    /// Ends a user's use of a volume; succeeds if there is none.
    ///
    /// # Errors
    /// As [`Manager::join`]; steps that could not be undone are retried by [`Manager::settle`].
    pub async fn leave(
        self: &Arc<Self>,
        user: &str,
        id: &VolumeId,
        secrets: &Secrets,
        cancel: impl Future<Output = ()>,
    ) -> Result<(), CsiError> {
        let mut taken = self.take(id, cancel).await?;
        let (own, user, secrets) = (Arc::clone(self), user.to_owned(), secrets.clone());
        let done = spawn(async move {
            taken.volume.leave(&user);
            let done = own.clear(&mut taken, &secrets).await;
            own.put_back(taken);
            done
        });
        done.await.unwrap_or_else(|error| Err(broken(&error)))
    }

    /// Undoes the steps of volumes without users, and of users that do not exist any more: at start, and again after a failure.
    /// `is_live` is asked while the volume is locked. Returns the errors of those that could not be undone.
    pub async fn settle(
        self: &Arc<Self>,
        is_live: &(dyn Fn(&str) -> bool + Send + Sync),
        secrets: &(dyn Fn(&VolumeId) -> Secrets + Send + Sync),
    ) -> Vec<CsiError> {
        let records = match self.ledger.load() {
            Ok(records) => records,
            Err(source) => return vec![CsiError::Record { volume: "all".to_owned(), source }],
        };
        let mut errors = Vec::new();
        for (id, _) in records.into_iter().filter(|(_, volume)| volume.needs_clearing(is_live)) {
            match self.take(&id, std::future::pending()).await {
                Ok(mut taken) => {
                    let gone: Vec<String> = taken.volume.users.keys().filter(|user| !is_live(user)).cloned().collect();
                    for user in &gone {
                        taken.volume.leave(user);
                    }
                    errors.extend(self.clear(&mut taken, &secrets(&id)).await.err());
                    self.put_back(taken);
                }
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// The users of each volume by the records, including those that are leaving.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn users(&self) -> io::Result<BTreeMap<VolumeId, Vec<String>>> {
        let users = |(id, volume): Recorded| (id, volume.users.into_keys().collect());
        Ok(self.ledger.load()?.into_iter().map(users).into_map())
    }

    /// Waits for the lock of a volume, and keeps it.
    pub(super) async fn hold(self: &Arc<Self>, id: &VolumeId) -> Result<Held, CsiError> {
        let taken = self.take(id, std::future::pending()).await?;
        Ok(Held { manager: Arc::clone(self), taken: Some(taken) })
    }

    /// Waits for the lock of a volume. A cancelled wait is an error, so that it cannot be taken for a lock.
    async fn take(&self, id: &VolumeId, cancel: impl Future<Output = ()>) -> Result<Taken, CsiError> {
        let turn = Arc::clone(lock(&self.volumes).entry(id.clone()).or_default());
        let locked = async {
            let mut volume = turn.lock_owned().await;
            let failed = |source| CsiError::Record { volume: id.id.clone(), source };
            let locked = if let Some(locked) = self.ledger.lock(id, false).map_err(failed)? {
                locked
            } else {
                let (ledger, of) = (Arc::clone(&self.ledger), id.clone());
                // If it is cancelled, the thread releases the lock as soon as it has it.
                let waiting = spawn_blocking(move || ledger.lock(&of, true));
                let locked = waiting.await.unwrap_or_else(|error| Err(io::Error::other(error)));
                locked.and_then(|locked| locked.ok_or_else(|| io::ErrorKind::WouldBlock.into())).map_err(failed)?
            };
            *volume = locked.volume;
            Ok(Taken { id: id.clone(), volume, _hold: locked.hold })
        };
        tokio::select! {
            biased;
            taken = locked => taken,
            () = cancel => Err(CsiError::Cancelled(id.id.clone())),
        }
    }

    /// Releases the lock, and forgets a volume that has no record and no waiting operation.
    fn put_back(&self, taken: Taken) {
        let mut volumes = lock(&self.volumes);
        let is_empty = taken.volume.is_empty();
        drop(taken.volume);
        if is_empty && volumes.get(&taken.id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            volumes.remove(&taken.id);
        }
    }

    async fn join_now(&self, taken: &mut Taken, join: &Join) -> Result<(), CsiError> {
        if taken.volume.users.values().any(|user| user.leaves) {
            // Steps that cannot be undone now need not prevent this use.
            let _ = self.clear(taken, &join.volume.secrets).await;
        }
        let conflict = |why| CsiError::Conflict(format!("volume {}: {why}", taken.id.id));
        let had_it = taken.volume.users.contains_key(&join.user);
        let mut volume = taken.volume.clone();
        volume.join(&join.user, &join.capability, join.read_only).map_err(conflict)?;
        *taken.volume = volume;
        let Err(error) = self.mount(taken, join).await else { return Ok(()) };
        if had_it {
            // It may be in use: if that could not be checked, or the mount not restored, it is not unpublished.
            return Err(error);
        }
        taken.volume.leave(&join.user);
        // The first error is the one to report; the remaining steps are retried by `settle`.
        let _ = self.clear(taken, &join.volume.secrets).await;
        Err(error)
    }

    async fn mount(&self, taken: &mut Taken, join: &Join) -> Result<(), CsiError> {
        let (calls, usage) = (Arc::clone(&*lock(&self.calls)), join.capability.usage());
        let work = |volume: &VolumeUse| Work {
            volume: join.volume.clone(),
            usage: volume.usage.clone().unwrap_or_else(|| usage.clone()),
            capability: Some(join.capability.clone()),
            context: volume.context.clone(),
            read_only: join.read_only,
        };
        // Recorded before a step is executed, and before an earlier execution is relied on.
        self.save(taken)?;
        let is_done = taken.volume.next_to_join(&join.user, &usage, calls.needs()).is_none();
        if is_done && !calls.has(&join.user, &work(&taken.volume)).await? {
            taken.volume.lost(&join.user);
        }
        while let Some(step) = taken.volume.next_to_join(&join.user, &usage, calls.needs()) {
            let work = work(&taken.volume);
            self.step(&*calls, taken, &step, &work).await?;
        }
        self.save(taken)
    }

    /// Undoes the steps that no user needs any more. A user whose step fails keeps no other one from leaving; the first error is
    /// returned.
    async fn clear(&self, taken: &mut Taken, secrets: &Secrets) -> Result<(), CsiError> {
        let calls = Arc::clone(&*lock(&self.calls));
        self.save(taken)?;
        let mut done = Ok(());
        for user in taken.volume.leaving() {
            done = done.and(self.undo(&*calls, taken, &Step::Unpublish(user), secrets).await);
        }
        if done.is_ok() {
            while taken.volume.usage.is_some()
                && let Some(step) = taken.volume.next_to_leave()
            {
                // If this fails, the users that have left stay in the record, and try it again.
                self.undo(&*calls, taken, &step, secrets).await?;
            }
        }
        taken.volume.forget();
        done.and(self.save(taken))
    }

    async fn undo(&self, calls: &dyn Calls, taken: &mut Taken, step: &Step, secrets: &Secrets) -> Result<(), CsiError> {
        let Some(usage) = taken.volume.usage.clone() else { return Ok(()) };
        let read_only = match step {
            Step::Unpublish(user) => taken.volume.users.get(user).is_some_and(|user| user.read_only),
            _ => false,
        };
        let volume = Volume { id: taken.id.clone(), context: BTreeMap::new(), secrets: secrets.clone() };
        let context = taken.volume.context.clone();
        let work = Work { volume, usage, capability: None, context, read_only };
        self.step(calls, taken, step, &work).await
    }

    async fn step(&self, calls: &dyn Calls, taken: &mut Taken, step: &Step, work: &Work) -> Result<(), CsiError> {
        taken.volume.begin(step);
        self.save(taken)?;
        let said = calls.make(step, work).await?;
        if matches!(step, Step::Attach) {
            taken.volume.context = said;
        }
        taken.volume.end(step);
        Ok(())
    }

    fn save(&self, taken: &Taken) -> Result<(), CsiError> {
        let saved = self.ledger.save(&taken.id, &taken.volume);
        saved.map_err(|source| CsiError::Record { volume: taken.id.id.clone(), source })
    }
}

fn broken(error: &tokio::task::JoinError) -> CsiError {
    CsiError::invalid(format!("a step of a volume was not brought to its end: {error}"))
}

#[cfg(test)]
mod tests;
