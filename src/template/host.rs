//! What a template may ask for, and who answers.

use crate::spec::collections::BTreeMap;

use serde_json::Value as Json;

/// An answer about something that may not be there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<T> {
    /// This is it.
    Here(T),
    /// It is not there; a template that needs it waits.
    Missing,
}

/// A variable of Nomad's: its items by name.
pub type Variable = BTreeMap<String, String>;

/// Keys below a prefix with their values, the prefix taken off.
pub type Tree = Vec<(String, String)>;

/// One registered instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    /// Unique among all instances.
    pub id: String,
    /// What it was asked for by.
    pub name: String,
    /// The node's name.
    pub node: String,
    /// Where it listens.
    pub address: String,
    /// Where it listens; 0 where it has no port.
    pub port: u16,
    /// The datacenter's name.
    pub datacenter: String,
    /// In the order of the job file.
    pub tags: Vec<String>,
    /// Metadata of the instance.
    pub meta: BTreeMap<String, String>,
    /// Which job has it.
    pub job: String,
    /// Which allocation has it.
    pub alloc: String,
    /// `passing`, `warning` or `critical`.
    pub status: String,
}

/// Answers what a template asks for. It is asked from another thread than the caller's.
pub trait Host: Sync {
    /// A variable of the task's environment.
    fn env(&self, name: &str) -> Option<Vec<u8>>;
    /// A file's bytes, or why they are not to be had.
    ///
    /// # Errors
    /// For a path outside of the task's directories, for what cannot be read and what is too large.
    fn file(&self, path: &[u8]) -> Result<Vec<u8>, String>;
    /// The value of a key of Consul's.
    fn key(&self, path: &str) -> Found<String>;
    /// All keys below a prefix.
    fn tree(&self, prefix: &str) -> Tree;
    /// The data of a secret of Vault's: an object.
    fn secret(&self, path: &str) -> Found<Json>;
    /// The names of secrets below a path.
    fn secrets(&self, path: &str) -> Vec<String>;
    /// A variable of Nomad's.
    fn variable(&self, path: &str) -> Found<Variable>;
    /// The paths of Nomad's variables below a prefix.
    fn variables(&self, prefix: &str) -> Vec<String>;
    /// All instances of all services that can be used.
    fn services(&self) -> Vec<Service>;
    /// Seconds and nanoseconds since 1970, UTC.
    fn now(&self) -> (i64, u32);
}
