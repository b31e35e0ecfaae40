//! Waiting for the next change of some tables.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use tokio::sync::watch;
use tokio::time::Instant;

use super::table::Table;

/// The last index of each table, for who waits: a change wakes those only who wait for a table that it wrote.
#[derive(Debug)]
pub(super) struct Indexes {
    tables: [watch::Sender<u64>; Table::ALL.len()],
    last: watch::Sender<u64>,
}

impl Indexes {
    /// As the database says them.
    pub(super) fn new(of: impl Fn(Table) -> u64, last: u64) -> Indexes {
        Indexes { tables: Table::ALL.map(|table| watch::Sender::new(of(table))), last: watch::Sender::new(last) }
    }

    pub(super) fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Tells that these tables have this index now.
    pub(super) fn publish(&self, tables: impl IntoIterator<Item = Table>, index: u64) {
        self.last.send_replace(index);
        for table in tables {
            self.tables[table as usize].send_replace(index);
        }
    }

    /// Tells when this table changes.
    pub(super) fn changes(&self, table: Table) -> watch::Receiver<u64> {
        self.tables[table as usize].subscribe()
    }

    /// Tells what the database says, and whether it says more than was told.
    pub(super) fn catch_up(&self, tables: impl IntoIterator<Item = (Table, u64)>, last: u64) -> bool {
        let raise = |told: &watch::Sender<u64>, index: u64| {
            told.send_if_modified(|told| {
                let is_more = index > *told;
                *told = (*told).max(index);
                is_more
            })
        };
        let is_more = raise(&self.last, last);
        for (table, index) in tables {
            raise(&self.tables[table as usize], index);
        }
        is_more
    }

    /// Whose index is asked for; all of them together when none is named.
    fn of(&self, tables: &[Table]) -> Vec<&watch::Sender<u64>> {
        if tables.is_empty() {
            return vec![&self.last];
        }
        tables.iter().map(|table| &self.tables[*table as usize]).collect()
    }

    /// Waits until one of the tables has an index above this one, or until the deadline, and says the highest of theirs.
    pub(super) async fn wait(&self, tables: &[Table], above: u64, until: Instant) -> u64 {
        let senders = self.of(tables);
        let mut receivers: Vec<_> = senders.iter().map(|sender| sender.subscribe()).collect();
        let highest = || senders.iter().map(|sender| *sender.borrow()).max().unwrap_or(0);
        if highest() <= above {
            let mut waits: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
            for receiver in &mut receivers {
                waits.push(Box::pin(async move {
                    // The senders outlive this call.
                    let _ = receiver.wait_for(|index| *index > above).await;
                }));
            }
            let any = std::future::poll_fn(|context| {
                let ready = waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready());
                if ready { Poll::Ready(()) } else { Poll::Pending }
            });
            // In time or not, what is there is said.
            let _ = tokio::time::timeout_at(until, any).await;
        }
        highest()
    }
}
