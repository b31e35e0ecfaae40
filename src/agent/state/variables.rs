//! Variables and their locks. What may not be shown is sealed. How long a lock still holds is known to this process only: in the
//! next one each has its whole time again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::change::{Change, encode};
use super::error::StateError;
use super::records::Records;
use super::table::{self, Table};
use super::view::{View, damaged, decode};
use crate::agent::model::{Nanos, Secret, Variable, VariableLock, VariableMeta};
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;
use crate::sys::random;

/// Bytes of the items of a variable, at most: as Nomad has it.
pub const MAX_ITEMS: usize = 64 << 10;
/// Bytes of a path, at most.
const MAX_PATH: usize = 128;
/// The shortest and the longest time that a lock holds, and what it is unless said.
const TTL: (i64, i64, i64) = (10_000_000_000, 24 * 3600 * 1_000_000_000, 15_000_000_000);

/// A holder is silent after so many times its TTL: what it sends may be late.
const GRACE: u32 = 2;

/// A record: what may be shown, and what may not.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    meta: VariableMeta,
    /// [`Hidden`], sealed, base64.
    #[serde(rename = "Sealed")]
    sealed: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Hidden {
    items: BTreeMap<String, Secret>,
    lock: Option<VariableLock>,
}

/// What came of a write that asks for a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written<T> {
    /// It was done.
    Done(T),
    /// Somebody else was there before; the variable as it is, if it is.
    Conflict(Option<Box<Variable>>),
}

/// Who writes: a lock's holder says so by its id.
#[derive(Debug, Clone, Default)]
pub struct Condition {
    /// The index that the variable must have; 0: it must not be there.
    pub cas: Option<u64>,
    /// The id of the lock.
    pub lock: Option<Secret>,
}

impl View {
    /// A variable.
    ///
    /// # Errors
    /// [`StateError`], here and below; [`StateError::Damaged`] also when it was sealed with another key.
    pub fn variable(&self, namespace: &str, path: &str) -> Result<Option<Variable>, StateError> {
        let key = table::key(&[namespace, path]);
        let name = Table::Variables.name();
        let Some(kept) = self.get::<Kept>(name, &key)? else { return Ok(None) };
        let sealed = STANDARD.decode(&kept.sealed).ok();
        let plain = sealed.and_then(|sealed| self.keys.open_sealed(name, &key, &sealed));
        let plain = plain.ok_or_else(|| damaged(name, &key, &"it was sealed with another key, or is damaged"))?;
        let hidden: Hidden = decode(name, &key, &plain)?;
        Ok(Some(Variable { meta: kept.meta, items: hidden.items, lock: hidden.lock }))
    }

    /// What may be shown of the variables of a namespace (`None`: of all) whose paths begin with `prefix`.
    pub fn variables<'a>(&'a self, namespace: Option<&str>, prefix: &str) -> Records<'a, VariableMeta> {
        let name = Table::Variables.name();
        self.in_namespace(name, namespace, prefix, move |key, value| Ok(decode::<Kept>(name, key, value)?.meta))
    }
}

impl Change<'_> {
    /// Writes the items of a variable.
    ///
    /// # Errors
    /// [`StateError::Invalid`] for a path or items that are not allowed; [`StateError::NotFound`] for the namespace.
    pub fn put_variable(
        &mut self,
        namespace: &str,
        path: &str,
        items: BTreeMap<String, Secret>,
        condition: &Condition,
        now: Nanos,
    ) -> Result<Written<Variable>, StateError> {
        check(path, &items)?;
        self.check_namespace(namespace)?;
        let old = self.variable(namespace, path)?;
        if !allowed(old.as_ref(), condition) {
            return Ok(Written::Conflict(old.map(Box::new)));
        }
        let mut variable = old.unwrap_or_else(|| self.fresh(namespace, path, now));
        variable.items = items;
        self.store_variable(variable, now).map(Written::Done)
    }

    /// Removes a variable; one that is not there is removed already.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_variable(
        &mut self,
        namespace: &str,
        path: &str,
        condition: &Condition,
    ) -> Result<Written<()>, StateError> {
        let old = self.variable(namespace, path)?;
        if !allowed(old.as_ref(), condition) {
            return Ok(Written::Conflict(old.map(Box::new)));
        }
        if old.is_some() {
            self.take(Table::Variables, &table::key(&[namespace, path]))?;
        }
        Ok(Written::Done(()))
    }

    fn check_namespace(&self, name: &str) -> Result<(), StateError> {
        let found = self.namespace(name)?;
        found.map(drop).ok_or_else(|| StateError::NotFound { kind: "namespace", id: name.to_owned() })
    }

    /// Takes the lock of a variable, which is made where it is missing. `items` of `None` leaves them as they are.
    ///
    /// # Errors
    /// [`StateError::Invalid`] for a time that is not allowed; [`StateError::NotFound`] for the namespace.
    #[expect(clippy::too_many_arguments, reason = "what a client sends with a lock")]
    pub fn acquire_lock(
        &mut self,
        namespace: &str,
        path: &str,
        items: Option<BTreeMap<String, Secret>>,
        ttl: Nanos,
        lock_delay: Nanos,
        held: Option<&Secret>,
        (clock, now): (Instant, Nanos),
    ) -> Result<Written<Variable>, StateError> {
        let (ttl, lock_delay) = times(ttl, lock_delay)?;
        self.check_namespace(namespace)?;
        let old = self.variable(namespace, path)?;
        check(path, items.as_ref().unwrap_or(&BTreeMap::new()))?;
        if let Some(old) = &old {
            let own = old.lock.as_ref().is_some_and(|lock| Some(&lock.id) == held);
            if !own && (old.lock.is_some() || old.meta.lock_after > now) {
                return Ok(Written::Conflict(Some(Box::new(old.clone()))));
            }
        }
        let mut variable = old.unwrap_or_else(|| self.fresh(namespace, path, now));
        if let Some(items) = items {
            variable.items = items;
        }
        let id = variable.lock.take().map_or_else(|| Secret::new(random::uuid().to_string()), |lock| lock.id);
        variable.lock = Some(VariableLock { id, ttl, lock_delay });
        self.extend(&variable, clock);
        self.store_variable(variable, now).map(Written::Done)
    }

    /// The holder of a lock says that it is still there.
    ///
    /// # Errors
    /// [`StateError::NotFound`].
    pub fn renew_lock(
        &self,
        namespace: &str,
        path: &str,
        id: &Secret,
        clock: Instant,
    ) -> Result<Written<Variable>, StateError> {
        let held = self.held(namespace, path, id)?;
        if let Written::Done(variable) = &held {
            self.extend(variable, clock);
        }
        Ok(held)
    }

    /// The holder of a lock gives it up; others may have it at once.
    ///
    /// # Errors
    /// [`StateError::NotFound`].
    pub fn release_lock(
        &mut self,
        namespace: &str,
        path: &str,
        id: &Secret,
        now: Nanos,
    ) -> Result<Written<Variable>, StateError> {
        match self.held(namespace, path, id)? {
            Written::Done(variable) => self.store_variable(Variable { lock: None, ..variable }, now).map(Written::Done),
            conflict @ Written::Conflict(_) => Ok(conflict),
        }
    }

    /// The variable, if this is the id of its lock.
    fn held(&self, namespace: &str, path: &str, id: &Secret) -> Result<Written<Variable>, StateError> {
        let missing = || StateError::NotFound { kind: "variable", id: path.to_owned() };
        let variable = self.variable(namespace, path)?.ok_or_else(missing)?;
        let held = variable.lock.as_ref().is_some_and(|lock| lock.id == *id);
        Ok(if held { Written::Done(variable) } else { Written::Conflict(Some(Box::new(variable))) })
    }

    /// The lock of a variable holds for its whole time from now on. Returns until when.
    fn extend(&self, variable: &Variable, clock: Instant) -> Instant {
        let ttl = variable.lock.as_ref().map_or(Nanos(0), |lock| lock.ttl);
        let until = clock + ttl.duration() * GRACE;
        let key = table::key(&[&variable.meta.namespace, &variable.meta.path]);
        lock(self.locks).insert(key, until);
        until
    }

    /// Takes the locks whose holders fell silent; others get them after their delay. Says when the next one ends.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn expire_locks(&mut self, clock: Instant, now: Nanos) -> Result<Option<Instant>, StateError> {
        let (mut next, mut over) = (None, Vec::new());
        let known = std::mem::take(&mut *lock(self.locks));
        for meta in self.variables(None, "") {
            let VariableMeta { namespace, path, locked: true, .. } = meta? else { continue };
            let key = table::key(&[&namespace, &path]);
            let until = if let Some(until) = known.get(&key).copied() {
                lock(self.locks).insert(key, until);
                until
            } else if let Some(variable) = self.variable(&namespace, &path)? {
                self.extend(&variable, clock)
            } else {
                continue;
            };
            if until <= clock {
                over.push((namespace, path));
            } else {
                next = Some(next.map_or(until, |next: Instant| next.min(until)));
            }
        }
        for (namespace, path) in over {
            let Some(mut variable) = self.variable(&namespace, &path)? else { continue };
            if let Some(lock) = variable.lock.take() {
                variable.meta.lock_after = now.plus(lock.lock_delay.duration());
            }
            self.store_variable(variable, now)?;
        }
        Ok(next)
    }

    fn fresh(&self, namespace: &str, path: &str, now: Nanos) -> Variable {
        let index = self.next_index();
        let (namespace, path) = (namespace.to_owned(), path.to_owned());
        let meta = VariableMeta { namespace, path, create_index: index, create_time: now, ..VariableMeta::default() };
        Variable { meta, ..Variable::default() }
    }

    fn store_variable(&mut self, mut variable: Variable, now: Nanos) -> Result<Variable, StateError> {
        variable.meta.modify_index = self.next_index();
        variable.meta.modify_time = now;
        variable.meta.locked = variable.lock.is_some();
        let key = table::key(&[&variable.meta.namespace, &variable.meta.path]);
        let hidden = Hidden { items: variable.items.clone(), lock: variable.lock.clone() };
        let sealed = self.keys.seal(Table::Variables.name(), &key, encode(&hidden)?);
        self.put(Table::Variables, &key, &Kept { meta: variable.meta.clone(), sealed: STANDARD.encode(sealed) })?;
        Ok(variable)
    }
}

/// Whether a write may be done.
fn allowed(old: Option<&Variable>, condition: &Condition) -> bool {
    let index = old.map_or(0, |old| old.meta.modify_index);
    let lock = old.and_then(|old| old.lock.as_ref());
    condition.cas.is_none_or(|cas| cas == index) && lock.is_none_or(|lock| Some(&lock.id) == condition.lock.as_ref())
}

fn check(path: &str, items: &BTreeMap<String, Secret>) -> Result<(), StateError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '~' | '/');
    if path.is_empty() || path.len() > MAX_PATH || !path.chars().all(good) {
        return Err(StateError::Invalid(format!(
            "invalid path {path:?}: 1 to {MAX_PATH} of the characters a-z, A-Z, 0-9, \"-\", \"_\", \"~\" and \"/\""
        )));
    }
    let reserved = path.split('/').next() == Some("nomad");
    if reserved && !path.starts_with("nomad/jobs") && !path.starts_with("nomad/job-templates/") {
        let why = "only paths at \"nomad/jobs\" or \"nomad/job-templates\" and below are valid paths under the top-level \"nomad\" \
                   directory";
        return Err(StateError::Invalid(why.to_owned()));
    }
    let size: usize = items.iter().map(|(key, value)| key.len() + value.expose().len()).sum();
    if size > MAX_ITEMS {
        return Err(StateError::Invalid(format!("the items are {size} bytes; {MAX_ITEMS} are allowed")));
    }
    Ok(())
}

fn times(ttl: Nanos, lock_delay: Nanos) -> Result<(Nanos, Nanos), StateError> {
    let (least, most, usual) = TTL;
    let ttl = if ttl.0 == 0 { Nanos(usual) } else { ttl };
    let lock_delay = if lock_delay.0 == 0 { Nanos(usual) } else { lock_delay };
    if !(least..=most).contains(&ttl.0) {
        return Err(StateError::Invalid("the TTL must be between 10 seconds and 24 hours".to_owned()));
    }
    if !(0..=most).contains(&lock_delay.0) {
        return Err(StateError::Invalid("the lock delay must be at most 24 hours".to_owned()));
    }
    Ok((ttl, lock_delay))
}
