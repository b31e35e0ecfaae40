//! Counts what a slow shipment will miss if files are rotated away.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::super::follower::{Cursor, Follower, Output, Start};
use super::Lost;
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;
use crate::sys::task::JoinHandle;

/// How long the tally may take to catch up with a shipment that has jumped ahead of it.
const PATIENCE: Duration = Duration::from_secs(5);

/// A second follower that never waits for a sink.
#[derive(Debug)]
pub(super) struct Tally {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    counts: Mutex<Counts>,
    moved: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines and bytes by the index of the file.
    files: BTreeMap<u64, (u64, u64)>,
    at: Option<Cursor>,
    ended: bool,
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Tally {
    /// Counts from `from` on; the files after that one are counted whole.
    pub(super) fn start(logs: &Path, base: &str, from: Option<Cursor>) -> io::Result<Tally> {
        let start = from.map_or(Start::Beginning, Start::At);
        let follower = Follower::open(logs, base, start)?;
        let shared = Arc::new(Shared::default());
        lock(&shared.counts).at = follower.cursor();
        let task = crate::sys::task::spawn(count(follower, Arc::clone(&shared)));
        Ok(Tally { shared, task })
    }

    /// Whether nothing was counted beyond `cursor`.
    pub(super) fn is_at(&self, cursor: Option<Cursor>) -> bool {
        lock(&self.shared.counts).at == cursor
    }

    /// What was in the files between the one read last and `to`, which is being read now. The counts of files before `to` are
    /// dropped.
    pub(super) async fn between(&self, from: Option<u64>, to: u64, missing_files: u64) -> Lost {
        let caught_up = async {
            loop {
                let moved = self.shared.moved.notified();
                {
                    let counts = lock(&self.shared.counts);
                    if counts.ended || counts.at.is_some_and(|at| at.index >= to) {
                        return;
                    }
                }
                moved.await;
            }
        };
        // The content of files that are not counted by then is unknown.
        let _ = tokio::time::timeout(PATIENCE, caught_up).await;
        let mut counts = lock(&self.shared.counts);
        let later = counts.files.split_off(&to);
        let earlier = std::mem::replace(&mut counts.files, later);
        let mut lost = Lost { files: missing_files, ..Lost::default() };
        for (lines, bytes) in earlier.iter().filter(|(index, _)| from.is_none_or(|from| **index > from)).map(|(_, c)| c)
        {
            lost.lines += lines;
            lost.bytes += bytes;
            lost.files = lost.files.saturating_sub(1);
        }
        lost
    }
}

async fn count(mut follower: Follower, shared: Arc<Shared>) {
    loop {
        let output = follower.next().await;
        let mut counts = lock(&shared.counts);
        counts.at = follower.cursor();
        match output {
            Ok(Some(Output::Data(data))) => {
                let index = counts.at.map_or(0, |at| at.index);
                let (lines, bytes) = counts.files.entry(index).or_default();
                *lines += memchr::memchr_iter(b'\n', &data).count() as u64;
                *bytes += data.len() as u64;
            }
            Ok(Some(Output::Gap { .. })) => {}
            Ok(None) | Err(_) => counts.ended = true,
        }
        let ended = counts.ended;
        drop(counts);
        shared.moved.notify_waiters();
        if ended {
            return;
        }
    }
}
