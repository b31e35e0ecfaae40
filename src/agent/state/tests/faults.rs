//! Disks that are full or broken below the agent's state. (N8)

use serde_json::json;
use tokio::time::Instant;

use super::making::anything;
use super::{check, on};
use crate::agent::state::{Behind, State, StateError, Table, View};
use crate::store::testing::{Dice, Disk, Fault};

/// Changes that are made before anything fails.
const BEFORE: u64 = 30;
/// Changes that are tried on a disk that fails.
const TRIED: u64 = 8;

/// Makes a change that leaves a note of its own.
async fn noted(state: &State, dice: &mut Dice, step: u64) -> Result<u64, StateError> {
    let mut own = Dice(dice.roll(u64::MAX));
    let made = state.change(move |change| {
        anything(change, &mut own, step)?;
        change.put_setting(&format!("note-{step}"), &json!(step))
    });
    Ok(made.await?.0)
}

fn has(view: &View, step: u64) -> bool {
    view.setting(&format!("note-{step}")).unwrap() == Some(json!(step))
}

/// One fault, at one place: which changes were acknowledged, and that the state goes on. `None` when nothing failed any more.
async fn one(base: &[u8], fault: Fault, seed: u64) -> Option<()> {
    let disk = Disk::of(base.to_vec());
    let state = on(&disk);
    let mut dice = Dice(seed);
    disk.fail(Some(fault));
    let (mut kept, mut refused) = (Vec::new(), 0);
    for step in BEFORE..BEFORE + TRIED {
        match noted(&state, &mut dice, step).await {
            Ok(index) => {
                assert_eq!(state.index(), index);
                kept.push(step);
            }
            Err(StateError::Store(_)) => refused += 1,
            Err(error) => panic!("{fault:?}: {error}"),
        }
    }
    let failed = disk.failed();
    assert_eq!(refused > 0, failed > 0, "{fault:?}: an error is told, and only an error is");
    // There is room again; what was lost stays lost.
    disk.fail(None);
    for step in BEFORE + TRIED..BEFORE + 2 * TRIED {
        noted(&state, &mut dice, step).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        kept.push(step);
    }
    let view = state.read().unwrap();
    assert_eq!(view.index().unwrap(), state.index());
    check(&view);
    for image in [disk.bytes(), disk.medium()] {
        let again = on(&Disk::of(image));
        let found = again.read().unwrap();
        let missing: Vec<&u64> = kept.iter().filter(|step| !has(&found, **step)).collect();
        assert!(missing.is_empty(), "{fault:?}: {missing:?} were acknowledged");
        assert_eq!(found.index().unwrap(), state.index(), "{fault:?}");
        check(&found);
    }
    (failed > 0).then_some(())
}

/// Each write, and each sync, that changes of an agent do, fails: for good until there is room, or once.
#[tokio::test]
async fn whatever_fails_is_an_error_and_what_was_acknowledged_is_there() {
    let full = std::env::var_os("AGENTBIN_FULL").is_some();
    let disk = Disk::default();
    let state = on(&disk);
    let mut dice = Dice(99);
    for step in 0..BEFORE {
        noted(&state, &mut dice, step).await.unwrap();
    }
    drop(state);
    let base = disk.bytes();
    for make in [Fault::Write as fn(u64) -> Fault, Fault::Once, Fault::Sync, Fault::Lost] {
        // There are more writes than syncs.
        let step = if matches!(make(0), Fault::Write(_) | Fault::Once(_)) { 24 } else { 4 };
        let (mut at, mut failed) = (0, 0);
        while one(&base, make(at), at).await.is_some() {
            failed += 1;
            at += if full { 1 } else { 1 + dice.roll(step) };
        }
        assert!(failed > 1, "{:?}: it failed {failed} times", make(at));
    }
}

/// A change whose sync failed is told as an error and may be there: who waits for it, and who reads events, learns of that.
#[tokio::test]
async fn a_change_that_is_there_in_spite_of_an_error_is_waited_for_by_nobody() {
    let disk = Disk::default();
    let state = on(&disk);
    let mut events = state.events(0);
    let mut unsure = 0;
    for at in 0..6 {
        disk.fail(Some(Fault::Lost(at)));
        let put = |name: &'static str| {
            let namespace = crate::agent::model::Namespace { name: name.to_owned(), ..Default::default() };
            state.change(move |change| {
                change.put_namespace(namespace)?;
                change.put_setting("x", &json!(name))
            })
        };
        let told = put("one").await;
        disk.fail(None);
        let view = state.read().unwrap();
        assert_eq!(state.index(), view.index().unwrap(), "{at}");
        for table in [Table::Namespaces, Table::Settings] {
            let waited = state.wait(&[table], 0, Instant::now()).await;
            assert_eq!(waited, view.table_index(table).unwrap(), "{at}");
        }
        if told.is_err() && view.setting("x").unwrap() == Some(json!("one")) {
            unsure += 1;
            assert_eq!(events.next().await.unwrap_err(), Behind);
        }
        state.change(|change| change.put_setting("x", &json!(null))).await.unwrap();
    }
    assert!(unsure > 0, "no sync failed that came too late");
}
