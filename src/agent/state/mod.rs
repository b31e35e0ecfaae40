//! The agent's persistent state: jobs with their versions, evaluations, deployments, allocations, services, variables,
//! namespaces, the node and tokens. Never makes decisions.
//!
//! A change is one transaction and takes the next index; it is acknowledged, and visible to readers, only once it is on the
//! disk. Readers use snapshots, which block nothing.

mod adopt;
mod change;
mod collect;
mod csi;
mod error;
mod events;
mod jobs;
mod records;
mod secret;
mod snapshot;
mod status;
mod table;
mod tokens;
mod variables;
mod view;
mod volumes;
mod wait;

#[cfg(test)]
mod tests;

use crate::spec::collections::BTreeSet;
use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use adopt::{Adoptable, Adoption};
pub use change::Change;
pub use collect::{Age, Garbage};
pub use csi::CsiClaims;
pub use error::StateError;
pub use events::{Behind, Event, EventBatch, Events, Object, Topic};
pub use records::Records;
pub use secret::KEY_FILE;
pub use snapshot::{Contents, Saved, inspect, nameless};
pub use table::Table;
pub use variables::{Condition, MAX_ITEMS, Written};
pub use view::{TRACKED_VERSIONS, View};
pub use volumes::VolumeUse;

use crate::agent::model::Namespace;
use crate::store::{Done, Draft, Source as _, Store, Verdict};
use change::Locks;
use events::{EventBatch as Batch, Feed};
use secret::Keys;
use wait::Indexes;

/// Key under which the id of the encryption key is stored.
const KEY_ID: &[u8] = b"\0key";

/// The agent's state. Cheap to clone.
#[derive(Debug, Clone)]
pub struct State {
    store: Store,
    shared: Arc<Shared>,
}

/// What the writer's thread needs.
#[derive(Debug)]
struct Shared {
    keys: Arc<Keys>,
    locks: Locks,
    indexes: Indexes,
    feed: Arc<Feed>,
}

/// Notifications of a change, sent once it is on the disk.
struct Effects {
    index: u64,
    tables: BTreeSet<Table>,
    events: Batch,
}

impl Shared {
    fn publish(&self, effects: Effects) {
        self.feed.push(effects.events);
        self.indexes.publish(effects.tables, effects.index);
    }
}

impl State {
    /// Opens the state of a data directory; both are created if they are missing.
    ///
    /// # Errors
    /// [`StateError::Store`] when another process has it open, a newer program wrote it, or it cannot be read;
    /// [`StateError::Key`] for a key file that is not the one that its secrets were encrypted with.
    pub fn open(dir: &Path) -> Result<State, StateError> {
        let store = Store::open(dir, table::SCHEMA)?;
        let id = key_id(&store)?;
        let keys = match &id {
            None => Keys::open(dir)?,
            Some(_) => Keys::existing(dir)?,
        };
        State::start(store, keys, id, dir)
    }

    fn start(store: Store, keys: Keys, id: Option<Vec<u8>>, dir: &Path) -> Result<State, StateError> {
        match id {
            Some(id) if id != keys.id().as_bytes() => {
                return Err(StateError::Key(format!(
                    "{} has the key {}, but the secrets in the database were sealed with {}: put that key file there",
                    dir.join(KEY_FILE).display(),
                    keys.id(),
                    String::from_utf8_lossy(&id),
                )));
            }
            Some(_) => {}
            None => {
                let id = keys.id().as_bytes().to_vec();
                store.write_now(move |draft| begin(draft, id))?;
            }
        }
        let keys = Arc::new(keys);
        let view = View::of_snapshot(store.snapshot()?, Arc::clone(&keys));
        let mut numbers = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            numbers.push(view.table_index(table)?);
        }
        let indexes = Indexes::new(|table| numbers[table as usize], view.index()?);
        let shared = Arc::new(Shared { keys, locks: Locks::default(), indexes, feed: Arc::new(Feed::new()) });
        Ok(State { store, shared })
    }

    /// A snapshot of the current state.
    ///
    /// # Errors
    /// [`StateError::Store`].
    pub fn read(&self) -> Result<View, StateError> {
        Ok(View::of_snapshot(self.store.snapshot()?, Arc::clone(&self.shared.keys)))
    }

    /// The index of the last change that is on the disk.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.shared.indexes.last()
    }

    /// Makes a change, and returns its index and the result of `f`, once it is on the disk. Changes are made one after the
    /// other, on a separate thread. A change without writes takes no index: the last one is returned.
    ///
    /// # Errors
    /// The error of `f`: then nothing is changed. [`StateError::Store`] when the write failed, or its outcome is not known.
    pub fn change<T, F>(&self, f: F) -> impl Future<Output = Result<(u64, T), StateError>> + Send
    where
        T: Send + 'static,
        F: FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
    {
        typed(self.submit(false, untyped(f)))
    }

    /// As [`State::change`], for frequent changes that are not urgent, such as registrations of services: it waits some milliseconds
    /// for others to be committed with it.
    ///
    /// # Errors
    /// As [`State::change`].
    pub fn change_soon<T, F>(&self, f: F) -> impl Future<Output = Result<(u64, T), StateError>> + Send
    where
        T: Send + 'static,
        F: FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
    {
        typed(self.submit(true, untyped(f)))
    }

    /// As [`State::change`], for all types of results: one copy of its code in the executable.
    pub(super) fn change_untyped(
        &self,
        f: Box<Untyped>,
    ) -> impl Future<Output = Result<(u64, Box<dyn Any + Send>), StateError>> + Send {
        self.submit(false, f)
    }

    async fn submit(&self, soon: bool, f: Box<Untyped>) -> Result<(u64, Box<dyn Any + Send>), StateError> {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let work = move |draft: Result<&Arc<Draft>, _>| {
            let made = match draft {
                Ok(draft) => make(draft, &shared, f),
                Err(error) => Err(StateError::Store(error)),
            };
            let keep = made.as_ref().is_ok_and(|made| made.writes);
            let done: Done = Box::new(move |committed| {
                let result = match (made, committed) {
                    (Err(error), _) => Err(error),
                    (Ok(_), Err(error)) => Err(StateError::Store(error)),
                    (Ok(made), Ok(())) => {
                        made.effects.into_iter().for_each(|effects| shared.publish(effects));
                        Ok((made.index, made.value))
                    }
                };
                // The caller may have gone.
                let _ = sender.send(result);
            });
            if keep { Verdict::Keep(done) } else { Verdict::Drop(done) }
        };
        self.store.submit(soon, work).await;
        let result = receiver.await.unwrap_or(Err(StateError::Lost));
        if let Err(StateError::Store(_)) = result {
            self.catch_up();
        }
        result
    }

    /// After a change with an unknown outcome: if it was written, blocking queries that wait for its index are woken, and event
    /// subscribers are notified of lost events.
    fn catch_up(&self) {
        // If it cannot be read now, this is repeated after the next error.
        let Ok(view) = self.read() else { return };
        let numbers = Table::ALL.iter().map(|table| Ok((*table, view.table_index(*table)?)));
        let (Ok(numbers), Ok(last)) = (numbers.collect::<Result<Vec<_>, StateError>>(), view.index()) else { return };
        if self.shared.indexes.catch_up(numbers, last) {
            self.shared.feed.lose();
        }
    }

    /// Copies the state of this moment, with its key, to another directory.
    ///
    /// # Errors
    /// [`StateError::Store`]; [`StateError::Key`] when the key file cannot be copied.
    pub async fn copy(&self, to: &Path) -> Result<(), StateError> {
        self.store.copy(to).await?;
        copy_key(self.store.dir(), to)
    }

    /// Copies the state in `dir`, which another process has open, without its help: what it writes meanwhile may make the copy
    /// useless, which [`State::open`] finds.
    ///
    /// # Errors
    /// As [`State::copy`].
    pub fn copy_of(dir: &Path, to: &Path) -> Result<(), StateError> {
        crate::store::copy(dir, to)?;
        copy_key(dir, to)
    }

    /// Waits until one of these tables (none: any) has an index above this one, or until the deadline, and returns the highest
    /// of their indexes. A caller that waits for one object has to call again when that has not changed.
    pub async fn wait(&self, tables: &[Table], above: u64, until: Instant) -> u64 {
        self.shared.indexes.wait(tables, above, until).await
    }

    /// The index of this table; the receiver is notified of changes.
    #[must_use]
    pub fn changes(&self, of: Table) -> watch::Receiver<u64> {
        self.shared.indexes.changes(of)
    }

    /// The events from this index on, as far as they are stored; 0 begins at the oldest.
    pub fn events(&self, from: u64) -> Events {
        Events::new(&self.shared.feed, from)
    }
}

/// A change whose result can have any type.
pub(super) type Untyped = dyn FnOnce(&mut Change<'_>) -> Result<Box<dyn Any + Send>, StateError> + Send;

fn untyped<T: Send + 'static>(
    f: impl FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
) -> Box<Untyped> {
    Box::new(move |change| Ok(Box::new(f(change)?)))
}

/// The result of a change as its own type again. Another type than that of the change is taken for a lost result.
async fn typed<T: 'static>(
    made: impl Future<Output = Result<(u64, Box<dyn Any + Send>), StateError>>,
) -> Result<(u64, T), StateError> {
    let (index, value) = made.await?;
    Ok((index, *value.downcast().map_err(|_| StateError::Lost)?))
}

/// A finished change that is to be written.
struct Made {
    index: u64,
    value: Box<dyn Any + Send>,
    /// Whether it has writes.
    writes: bool,
    /// The notifications; `None` if there are none.
    effects: Option<Effects>,
}

fn make(draft: &Arc<Draft>, shared: &Shared, f: Box<Untyped>) -> Result<Made, StateError> {
    let mut change = Change::new(draft, &shared.keys, &shared.locks)?;
    let value = f(&mut change)?;
    status::follow(&mut change)?;
    let index = change.next_index();
    if change.touched.is_empty() {
        return Ok(Made { index: index - 1, value, writes: !draft.is_empty(), effects: None });
    }
    let events = events::of(&change)?;
    let tables = std::mem::take(&mut change.touched);
    for table in &tables {
        draft.put(table::INDEXES, table.name().as_bytes(), index.to_be_bytes().to_vec());
    }
    draft.put(table::INDEXES, table::LAST, index.to_be_bytes().to_vec());
    Ok(Made { index, value, writes: true, effects: Some(Effects { index, tables, events }) })
}

fn copy_key(from: &Path, to: &Path) -> Result<(), StateError> {
    let failed = |error| StateError::Key(format!("cannot copy {} to {}: {error}", KEY_FILE, to.display()));
    std::fs::copy(from.join(KEY_FILE), to.join(KEY_FILE)).map(drop).map_err(failed)
}

fn key_id(store: &Store) -> Result<Option<Vec<u8>>, StateError> {
    Ok(store.snapshot()?.get(table::INDEXES, KEY_ID)?)
}

/// Writes the initial records of a new database.
fn begin(draft: &Draft, key_id: Vec<u8>) {
    let namespace = Namespace {
        name: "default".to_owned(),
        description: "Default shared namespace".to_owned(),
        create_index: 1,
        modify_index: 1,
        ..Namespace::default()
    };
    let name = Table::Namespaces.name();
    // Cannot fail: a struct of strings and numbers.
    draft.put(name, b"default", crate::spec::json::to_vec(&namespace).unwrap_or_default());
    draft.put(table::INDEXES, name.as_bytes(), 1_u64.to_be_bytes().to_vec());
    draft.put(table::INDEXES, table::LAST, 1_u64.to_be_bytes().to_vec());
    draft.put(table::INDEXES, KEY_ID, key_id);
}
