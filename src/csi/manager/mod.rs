//! The volumes of one plugin on this node: has their steps done one after the other, writes down each before it is done, and knows
//! at its start what was done before. There is one for each plugin, however many processes of it come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};

use tokio::sync::OwnedMutexGuard;

use super::capability::{Capability, Secrets};
use super::error::CsiError;
use super::node::{Calls, Volume, VolumeId, Work};
use super::usage::{Step, VolumeUse};
use crate::sys::lock::lock;
use crate::sys::task::spawn;

/// What was written down of a volume.
pub type Recorded = (VolumeId, VolumeUse);

/// Where it is written down what is about to be done.
pub trait Ledger: Send + Sync {
    /// All that was written down and not removed.
    ///
    /// # Errors
    /// Also when one of the records is not understood.
    fn load(&self) -> io::Result<Vec<Recorded>>;

    /// Replaces what stands there of a volume; an empty one is removed. It stays when the machine stops at once.
    ///
    /// # Errors
    /// Then nothing is done.
    fn save(&self, id: &VolumeId, volume: &VolumeUse) -> io::Result<()>;
}

/// Somebody who wants to use a volume.
#[derive(Debug, Clone)]
pub struct Join {
    /// Who.
    pub user: String,
    /// Which volume.
    pub volume: Volume,
    /// How.
    pub capability: Capability,
    /// Without writing to it.
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

/// A volume that nobody else works on.
struct Taken {
    id: VolumeId,
    volume: OwnedMutexGuard<VolumeUse>,
}

impl Manager {
    /// With what is written down. Nothing is done yet.
    ///
    /// # Errors
    /// When the records cannot be read: who does not know them would unstage volumes below their users.
    pub fn open(calls: Arc<dyn Calls>, ledger: Arc<dyn Ledger>) -> io::Result<Arc<Manager>> {
        let turn = |(id, volume)| (id, Arc::new(tokio::sync::Mutex::new(volume)));
        let volumes = ledger.load()?.into_iter().map(turn).collect();
        Ok(Arc::new(Manager { calls: Mutex::new(calls), ledger, volumes: Mutex::new(volumes) }))
    }

    /// Another process of the plugin, or one that can more.
    pub fn replace(&self, calls: Arc<dyn Calls>) {
        *lock(&self.calls) = calls;
    }

    /// Has a volume for a user, if it is free for that. What fails is undone as far as it can be; the rest is undone by
    /// [`Manager::settle`]. Once begun it goes on without whoever waits for it.
    ///
    /// # Errors
    /// [`CsiError`]; [`CsiError::Cancelled`] when `cancel` comes while others have their turn, and then nothing was done.
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

    /// Ends a user's use of a volume; one that it has not is left already.
    ///
    /// # Errors
    /// As [`Manager::join`]; what could not be undone is tried again by [`Manager::settle`].
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

    /// Undoes what nobody uses: at the start, when `live` are all users that there are, and again after something failed.
    /// Returns what is left, and why.
    pub async fn settle(self: &Arc<Self>, live: &BTreeSet<String>) -> Vec<CsiError> {
        let ids: Vec<VolumeId> = lock(&self.volumes).keys().cloned().collect();
        let mut errors = Vec::new();
        for id in ids {
            match self.take(&id, std::future::pending()).await {
                Ok(mut taken) => {
                    let gone: Vec<String> =
                        taken.volume.users.keys().filter(|user| !live.contains(*user)).cloned().collect();
                    for user in &gone {
                        taken.volume.leave(user);
                    }
                    errors.extend(self.clear(&mut taken, &Secrets::default()).await.err());
                    self.put_back(taken);
                }
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    /// The users of each volume, with those who leave.
    pub async fn users(&self) -> BTreeMap<VolumeId, Vec<String>> {
        let volumes: Vec<_> = lock(&self.volumes).iter().map(|(id, turn)| (id.clone(), Arc::clone(turn))).collect();
        let mut users = BTreeMap::new();
        for (id, turn) in volumes {
            users.insert(id, turn.lock().await.users.keys().cloned().collect());
        }
        users
    }

    /// Waits for the turn of a volume. That nobody waits any more is an error: it must not be taken for a turn.
    async fn take(&self, id: &VolumeId, cancel: impl Future<Output = ()>) -> Result<Taken, CsiError> {
        let turn = Arc::clone(lock(&self.volumes).entry(id.clone()).or_default());
        tokio::select! {
            biased;
            volume = turn.lock_owned() => Ok(Taken { id: id.clone(), volume }),
            () = cancel => Err(CsiError::Cancelled(id.id.clone())),
        }
    }

    /// Gives up the turn, and forgets a volume of which nothing is left and for which nobody waits.
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
            // What cannot be undone now may be in nobody's way.
            let _ = self.clear(taken, &join.volume.secrets).await;
        }
        let conflict = |why| CsiError::Conflict(format!("volume {}: {why}", taken.id.id));
        let had_it = taken.volume.users.contains_key(&join.user);
        let mut volume = taken.volume.clone();
        volume.join(&join.user, &join.capability, join.read_only).map_err(conflict)?;
        *taken.volume = volume;
        let Err(error) = self.mount(taken, join).await else { return Ok(()) };
        if had_it {
            // Somebody may be using it: what could not be looked at, or done again, is not taken away.
            return Err(error);
        }
        taken.volume.leave(&join.user);
        // It is the first error that tells what to do; what is left is tried again by `settle`.
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
        // Written down before anything is done, and before it is believed that it was done before.
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

    /// Undoes what is nobody's any more.
    async fn clear(&self, taken: &mut Taken, secrets: &Secrets) -> Result<(), CsiError> {
        let calls = Arc::clone(&*lock(&self.calls));
        self.save(taken)?;
        while let Some(step) = taken.volume.next_to_leave() {
            let Some(usage) = taken.volume.usage.clone() else { break };
            let read_only = match &step {
                Step::Unpublish(user) => taken.volume.users.get(user).is_some_and(|user| user.read_only),
                _ => false,
            };
            let volume = Volume { id: taken.id.clone(), context: BTreeMap::new(), secrets: secrets.clone() };
            let context = taken.volume.context.clone();
            let work = Work { volume, usage, capability: None, context, read_only };
            self.step(&*calls, taken, &step, &work).await?;
        }
        taken.volume.forget();
        self.save(taken)
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
