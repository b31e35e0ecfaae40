//! Everything that outlives the agent: jobs with their versions, evaluations, deployments, allocations, services, variables,
//! namespaces, the node and tokens. Never decides what is to be done.
//!
//! A change is one transaction and takes the next index; what is acknowledged is on the disk, and is seen by nobody before.
//! Readers have snapshots, which hold nothing up.

mod adopt;
mod change;
mod collect;
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
mod wait;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use adopt::{Adoptable, Adoption};
pub use change::Change;
pub use collect::{Age, Garbage};
pub use error::StateError;
pub use events::{Behind, Event, EventBatch, Events, Object, Topic};
pub use records::Records;
pub use secret::KEY_FILE;
pub use snapshot::{Saved, nameless};
pub use table::Table;
pub use variables::{Condition, MAX_ITEMS, Written};
pub use view::{TRACKED_VERSIONS, View};

use crate::agent::model::Namespace;
use crate::store::{Done, Draft, Source as _, Store, Verdict};
use events::{EventBatch as Batch, Feed};
use secret::Keys;
use wait::Indexes;

/// Where the id of the key stands with which secrets are sealed.
const KEY_ID: &[u8] = b"\0key";

/// What the agent keeps. Cheap to clone.
#[derive(Debug, Clone)]
pub struct State {
    store: Store,
    shared: Arc<Shared>,
}

/// What the writer's thread needs.
#[derive(Debug)]
struct Shared {
    keys: Arc<Keys>,
    indexes: Indexes,
    feed: Arc<Feed>,
}

/// What others are told of a change once it is on the disk.
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
    /// Opens the state of a data directory; both are made where they are missing.
    ///
    /// # Errors
    /// [`StateError::Store`] when another process has it, a newer program wrote it, or it cannot be read;
    /// [`StateError::Key`] for a key file that is not the one with which its secrets were sealed.
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
        let shared = Arc::new(Shared { keys, indexes, feed: Arc::new(Feed::new()) });
        Ok(State { store, shared })
    }

    /// What is kept now.
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

    /// Makes a change, and returns its index and what `f` returned, once it is on the disk. Changes are made one after the
    /// other, on a thread of their own. One that writes nothing takes no index: the last one is returned.
    ///
    /// # Errors
    /// What `f` says: then nothing is changed. [`StateError::Store`] when it could not be written, or not be known to be.
    pub async fn change<T, F>(&self, f: F) -> Result<(u64, T), StateError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
    {
        self.submit(false, f).await
    }

    /// As [`State::change`], for what comes often and has time, as the states of tasks do: it waits some milliseconds for others
    /// that are written together with it.
    ///
    /// # Errors
    /// As [`State::change`].
    pub async fn change_soon<T, F>(&self, f: F) -> Result<(u64, T), StateError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
    {
        self.submit(true, f).await
    }

    async fn submit<T, F>(&self, soon: bool, f: F) -> Result<(u64, T), StateError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Change<'_>) -> Result<T, StateError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let work = move |draft: Result<&Arc<Draft>, _>| {
            let made = match draft {
                Ok(draft) => make(draft, &shared.keys, f),
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
                // Who asked may have gone.
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

    /// A change of which nobody knows whether it was written may be there after all: who waits for its index learns of it, and
    /// who reads its events that there are some that are not told.
    fn catch_up(&self) {
        // Where it cannot be read either, the next one who is told an error looks.
        let Ok(view) = self.read() else { return };
        let numbers = Table::ALL.iter().map(|table| Ok((*table, view.table_index(*table)?)));
        let (Ok(numbers), Ok(last)) = (numbers.collect::<Result<Vec<_>, StateError>>(), view.index()) else { return };
        if self.shared.indexes.catch_up(numbers, last) {
            self.shared.feed.lose();
        }
    }

    /// Waits until one of these tables (none: any) has an index above this one, or until the deadline, and says the highest of
    /// theirs. Who waits for one object asks again when the object has not changed.
    pub async fn wait(&self, tables: &[Table], above: u64, until: Instant) -> u64 {
        self.shared.indexes.wait(tables, above, until).await
    }

    /// The index of this table; tells when it changes.
    #[must_use]
    pub fn changes(&self, of: Table) -> watch::Receiver<u64> {
        self.shared.indexes.changes(of)
    }

    /// What happens from this index on, as far as it is still known; 0 is from the oldest that is.
    pub fn events(&self, from: u64) -> Events {
        Events::new(&self.shared.feed, from)
    }
}

/// A change that was made and is to be written.
struct Made<T> {
    index: u64,
    value: T,
    /// There is something to be written.
    writes: bool,
    /// What others are told; nothing when they need not know.
    effects: Option<Effects>,
}

fn make<T>(
    draft: &Arc<Draft>,
    keys: &Arc<Keys>,
    f: impl FnOnce(&mut Change<'_>) -> Result<T, StateError>,
) -> Result<Made<T>, StateError> {
    let mut change = Change::new(draft, keys)?;
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

fn key_id(store: &Store) -> Result<Option<Vec<u8>>, StateError> {
    Ok(store.snapshot()?.get(table::INDEXES, KEY_ID)?)
}

/// What a new database has in it.
fn begin(draft: &Draft, key_id: Vec<u8>) {
    let namespace = Namespace {
        name: "default".to_owned(),
        description: "Default shared namespace".to_owned(),
        create_index: 1,
        modify_index: 1,
        ..Namespace::default()
    };
    let name = Table::Namespaces.name();
    // A struct of texts and numbers.
    draft.put(name, b"default", crate::spec::json::to_vec(&namespace).unwrap_or_default());
    draft.put(table::INDEXES, name.as_bytes(), 1_u64.to_be_bytes().to_vec());
    draft.put(table::INDEXES, table::LAST, 1_u64.to_be_bytes().to_vec());
    draft.put(table::INDEXES, KEY_ID, key_id);
}
