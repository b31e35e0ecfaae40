//! When each port was used last, so that one that was just given back is not given away at once.

use crate::agent::model::{Allocation, Nanos};
use crate::spec::collections::BTreeMap;

/// When each port of the host was had last. It holds one moment for each port there is, at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortHistory(BTreeMap<u16, Nanos>);

impl PortHistory {
    /// What the allocations that are kept tell.
    #[must_use]
    pub fn of<'a>(allocs: impl IntoIterator<Item = &'a Allocation>) -> PortHistory {
        let mut history = PortHistory::default();
        allocs.into_iter().for_each(|alloc| history.add(alloc));
        history
    }

    /// An allocation changed.
    pub fn add(&mut self, alloc: &Allocation) {
        for port in &alloc.allocated_resources.shared.ports {
            let last = self.0.entry(port.value).or_default();
            *last = (*last).max(alloc.modify_time).max(alloc.create_time);
        }
    }

    /// When a port was had last; 0 is never.
    #[must_use]
    pub fn last(&self, port: u16) -> Nanos {
        self.0.get(&port).copied().unwrap_or_default()
    }
}
