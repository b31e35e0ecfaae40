//! What is decided about an allocation before it begins: its owner decides, and `agentbin run` decides for itself.

use super::ports::AllocPort;
use crate::spec::{AllocId, Job};

/// One allocation as assigned to this machine.
#[derive(Debug, Clone)]
pub struct Assignment {
    /// Its id.
    pub id: AllocId,
    /// Index of its group in the job.
    pub group: usize,
    /// Its number among the group's, from 0.
    pub index: u32,
    /// Nomad's name of the allocation: `<job>.<group>[<index>]`.
    pub name: String,
    /// The ports that were chosen for it; with `None` the allocation chooses them during its setup.
    pub ports: Option<Vec<AllocPort>>,
}

impl Assignment {
    /// A new allocation, with a random id, that chooses its ports itself.
    #[must_use]
    pub fn new(job: &Job, group: usize, index: u32) -> Assignment {
        let id = AllocId::new(crate::sys::random::uuid());
        let name = format!("{}.{}[{index}]", job.id, job.groups[group].name);
        Assignment { id, group, index, name, ports: None }
    }
}
