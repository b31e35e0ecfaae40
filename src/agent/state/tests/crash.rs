//! What a loss of power leaves, and that what is found in several ways agrees. (N8)

use super::making::anything;
use super::{check, dump, empty, on};
use crate::spec::collections::BTreeSet;
use crate::store::testing::{Crashes, Dice, Disk, Loss, Op};

#[tokio::test]
async fn what_is_found_by_an_index_is_what_a_look_at_everything_finds() {
    let seeds = if std::env::var_os("AGENTBIN_FULL").is_some() { 40 } else { 3 };
    for seed in 0..seeds {
        let state = empty();
        let mut dice = Dice(seed);
        for step in 0..120 {
            let mut own = Dice(dice.roll(u64::MAX));
            let (index, ()) = state.change(move |change| anything(change, &mut own, step)).await.unwrap();
            assert_eq!(state.index(), index);
            if step % 10 == 9 {
                check(&state.read().unwrap());
            }
        }
    }
}

/// Every prefix of the writes of 1,000 changes, with and without those since the last sync, or with some of their sectors: each
/// opens, has all that was acknowledged, and is one of the states that there were. Of all of them the number of the state is
/// looked at; of those right after a sync, and of 500 others, everything. By default some of each.
#[tokio::test]
async fn a_loss_of_power_leaves_all_that_was_acknowledged_and_no_half_of_a_change() {
    let full = std::env::var_os("AGENTBIN_FULL").is_some();
    let disk = Disk::default();
    let state = on(&disk);
    let start = disk.bytes();
    disk.record();
    // By index: how much of the log there was when it was acknowledged, and what was there.
    let mut states = vec![(0, digest(&dump(&state.read().unwrap())))];
    let first = state.index();
    let mut dice = Dice(4711);
    for step in 0..1000 {
        let mut own = Dice(dice.roll(u64::MAX));
        state.change(move |change| anything(change, &mut own, step)).await.unwrap();
        states.push((disk.logged(), digest(&dump(&state.read().unwrap()))));
    }
    assert_eq!(state.index(), first + 1000);
    let log = disk.log();
    let length = log.len() as u64;
    let others: BTreeSet<usize> = (0..500).map(|_| dice.roll(length) as usize + 1).collect();
    let mut crashes = Crashes::new(start, &log);
    let (mut at, mut opened, mut looked) = (0, 0, 0);
    while at < log.len() {
        at += if full { 1 } else { 1 + dice.roll(length / 16) as usize };
        let at = at.min(log.len());
        crashes.go(at);
        let acknowledged = states.partition_point(|(logged, _)| *logged <= at) - 1;
        let is_synced = matches!(log[at - 1], Op::Sync);
        let losses = if is_synced { &[Loss::Nothing][..] } else { &[Loss::Nothing, Loss::Unsynced, Loss::Torn] };
        for loss in losses {
            let found = on(&Disk::of(crashes.image(*loss, &mut dice)));
            let view = found.read().unwrap();
            let index = (view.index().unwrap() - first) as usize;
            // The one that is just being committed may be there already, whole.
            assert!(
                index == acknowledged || index == acknowledged + 1,
                "after {at} operations ({loss:?}): index {index}, acknowledged {acknowledged}"
            );
            opened += 1;
            if is_synced || others.contains(&at) || !full && opened % 8 == 0 {
                assert_eq!(digest(&dump(&view)), states[index].1, "after {at} operations ({loss:?})");
                check(&view);
                looked += 1;
            }
        }
    }
    assert!(opened >= 50 && looked >= if full { 1000 } else { 8 }, "{looked} of {opened} disks were looked at");
}

/// A sum of all records.
fn digest(all: &crate::spec::collections::BTreeMap<(&'static str, Vec<u8>), Vec<u8>>) -> Vec<u8> {
    use sha2::Digest as _;
    let mut sum = sha2::Sha256::new();
    for ((table, key), value) in all {
        for part in [table.as_bytes(), key, value] {
            sum.update((part.len() as u64).to_be_bytes());
            sum.update(part);
        }
    }
    sum.finalize().to_vec()
}
