//! The CSI volumes of a group: found by their names, mounted before the tasks and released after them. Never executes a step of a
//! volume itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Stop;
use super::chain::chain;
use super::csi_volumes::CsiVolume;
use super::dir::remove_tree;
use super::error::{CleanupError, SetupError};
use super::hook::Hook;
use super::machine_error::{Doing as _, MachineError};
use super::place::Place;
use super::record::record_path;
use super::shared::stop_at_least;
use super::volumes::{HostVolume, HostVolumes, no_mounts};
use crate::csi::{AttachmentMode, CsiError, Join, Plugins, SecretsOf, VolumeId};
use crate::spec::Volume;

/// How long releasing volumes may still take after an urgent stop.
const LAST_MOMENT: Duration = Duration::from_secs(10);
/// The first and the longest pause before a volume that is in use is asked for again.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(10);
/// What fails, for errors.
const RECORDS: &str = "cannot use the records of CSI volumes";

/// Mounts the volumes once the record is written, and releases them when no process of the allocation uses them any more.
pub(super) struct CsiHook;

#[tonic::async_trait]
impl Hook<Place> for CsiHook {
    fn name(&self) -> &'static str {
        "csi_hook"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        self.mount(place, false).await
    }

    /// A volume that is still mounted stays so, also while its plugin does not answer.
    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        self.mount(place, true).await
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        place.csi = HostVolumes::default();
        if !place.processes_are_left && place.group().tasks.iter().any(|task| task.csi_plugin.is_some()) {
            let plugins = &place.machine.csi.plugins;
            for error in remove_tree(&plugins.socket_dir(place.id.as_str())) {
                tracing::warn!(%error, alloc = %place.id, "what a CSI plugin has left is left to the next clean-up");
            }
        }
        // A process may still use them: a volume that others can get now would have two writers.
        if place.processes_are_left || place.group().volumes.iter().all(|volume| volume.csi.is_none()) {
            return Vec::new();
        }
        release(place, Stop::Now).await
    }
}

impl CsiHook {
    async fn mount(&self, place: &mut Place, keeps: bool) -> Result<(), SetupError> {
        let job = Arc::clone(&place.job);
        for volume in job.groups[place.group].volumes.iter().filter(|volume| volume.csi.is_some()) {
            let Err(failed) = mount(place, volume, keeps).await else { continue };
            if !keeps {
                // The record tells the clean-up what may be left of them.
                let errors = release(place, Stop::Gracefully).await;
                place.untold.extend(errors);
                place.csi = HostVolumes::default();
            }
            return Err(match failed {
                CsiError::Cancelled(_) if place.control.is_stopping() => SetupError::Stopped,
                source => {
                    let (pos, volume) = (volume.pos.clone(), volume.name.clone());
                    SetupError::Csi { pos, volume, source: Box::new(source) }
                }
            });
        }
        Ok(())
    }
}

async fn mount(place: &mut Place, volume: &Volume, keeps: bool) -> Result<(), CsiError> {
    let mut drivers = place.group().tasks.iter().map(|task| place.machine.drivers.get(&task.driver));
    if drivers.all(|driver| driver.is_none_or(|driver| driver.capabilities().no_mounts)) {
        let driver = place.group().tasks.first().map_or("", |task| &task.driver);
        return Err(CsiError::Invalid(format!("no task supports CSI: {}", no_mounts(driver, "CSI volumes"))));
    }
    let found = place.machine.csi.find_for(Some(&place.given_csi), volume, place.index);
    let (found, capability) = found.map_err(CsiError::Invalid)?;
    let (found, is_block) = (found.clone(), capability.attachment == AttachmentMode::BlockDevice);
    let read_only = volume.read_only || found.read_only;
    let join = Join { user: place.id.to_string(), volume: found.volume(), capability, read_only };
    let plugins = Arc::clone(&place.machine.csi.plugins);
    let kept = if keeps { plugins.kept(&found.plugin, &join).await } else { None };
    let path = if let Some(path) = kept { path } else { wait_for(place, &plugins, &found, join).await? };
    let at = path.clone();
    let opened = crate::sys::task::spawn_blocking(move || HostVolume::open_exactly(&at, read_only, is_block)).await;
    let opened = opened.unwrap_or_else(|error| Err(io::Error::other(error)));
    let opened =
        opened.map_err(|error| CsiError::Invalid(format!("what the plugin has put at {}: {error}", path.display())))?;
    place.csi.add(volume.name.clone(), opened);
    Ok(())
}

/// Joins the volume. An agent's allocation waits while another one uses the volume in a way that excludes it, as the end of
/// that one may not be undone yet.
async fn wait_for(place: &Place, plugins: &Plugins, found: &CsiVolume, join: Join) -> Result<PathBuf, CsiError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let mut stop = place.control.stop.subscribe();
        let stopped = stop_at_least(&mut stop, Stop::Gracefully);
        match plugins.join(&found.plugin, join.clone(), stopped).await {
            Err(CsiError::Conflict(why)) if found.registered.is_some() => {
                tracing::info!(alloc = %place.id, why, "waiting for a CSI volume");
            }
            other => return other,
        }
        let mut stop = place.control.stop.subscribe();
        tokio::select! {
            biased;
            () = stop_at_least(&mut stop, Stop::Gracefully) => return Err(CsiError::Cancelled(join.volume.id.id)),
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(LAST_PAUSE),
        }
    }
}

/// Releases the volumes of an allocation; can be retried after errors. Once the stop is at least as urgent as `hurry`, this takes
/// `LAST_MOMENT` at most.
pub(super) async fn release(place: &mut Place, hurry: Stop) -> Vec<CleanupError> {
    let error = |source| CleanupError { action: "release the CSI volumes of", subject: place.id.to_string(), source };
    let mut stop = place.control.stop.subscribe();
    let late = async {
        stop_at_least(&mut stop, hurry).await;
        tokio::time::sleep(LAST_MOMENT).await;
    };
    let secrets = |plugin: &str, id: &VolumeId| {
        let mut own = place.given_csi.values().filter(|own| own.plugin == plugin).map(CsiVolume::volume);
        own.find(|own| own.id == *id).map(|own| own.secrets).unwrap_or_default()
    };
    let errors = tokio::select! {
        biased;
        errors = place.machine.csi.plugins.release(place.id.as_str(), &secrets) => {
            errors.iter().map(|e| error(io::Error::other(chain(e)))).collect()
        }
        () = late => vec![error(io::Error::new(io::ErrorKind::TimedOut, "the plugin does not answer; agentbin gc tries again"))],
    };
    place.volumes_are_left = !errors.is_empty();
    errors
}

/// Releases the volumes of an allocation whose processes are gone, and forgets the plugins that it ran.
///
/// # Errors
/// What could not be undone; the plugin does not run.
pub(super) fn release_volumes(data_dir: &Path, id: &str, secrets: &SecretsOf<'_>) -> Result<(), MachineError> {
    let (plugins, is_live) = (Plugins::new(data_dir), |user: &str| user != id);
    forget(&plugins, &is_live)?;
    plugins.leave(id).doing(RECORDS)?;
    undo(data_dir, &is_live, id, secrets)
}

/// Releases volumes whose users have no record any more, and forgets plugins that they ran.
///
/// # Errors
/// As [`release_volumes`].
pub(super) fn settle_volumes(data_dir: &Path, secrets: &SecretsOf<'_>) -> Result<(), MachineError> {
    let dir = data_dir.to_owned();
    let is_live = move |user: &str| record_path(&dir, user).exists();
    forget(&Plugins::new(data_dir), &is_live)?;
    undo(data_dir, &is_live, "", secrets)
}

/// Removes registrations and sockets of plugins whose owners have ended.
fn forget(plugins: &Plugins, is_live: &dyn Fn(&str) -> bool) -> Result<(), MachineError> {
    let what = "cannot remove what CSI plugins that have ended have left";
    plugins.forget(is_live).doing(what)?;
    for owner in plugins.owners().doing(what)?.iter().filter(|owner| !is_live(owner)) {
        remove_tree(&plugins.socket_dir(owner)).into_iter().next().map_or(Ok(()), Err).doing(what)?;
    }
    Ok(())
}

/// Does nothing, and does not ask plugins, if there is nothing to undo.
fn undo(
    data_dir: &Path,
    is_live: &(dyn Fn(&str) -> bool + Send + Sync),
    user: &str,
    secrets: &SecretsOf<'_>,
) -> Result<(), MachineError> {
    let plugins = Plugins::new(data_dir);
    // What others have left of a plugin that is gone keeps no user from being removed.
    let pending = if user.is_empty() { plugins.pending(is_live) } else { plugins.of_user(user) };
    let pending = pending.doing(RECORDS)?;
    if pending.is_empty() {
        return Ok(());
    }
    // One that has ended is not waited for.
    pending.iter().try_for_each(|plugin| plugins.reach(plugin)).doing("cannot release CSI volumes")?;
    // On a thread of its own, because the caller may be inside a runtime.
    let errors = std::thread::scope(|scope| {
        let undoing = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok::<_, io::Error>(crate::sys::task::block_on(&runtime, async {
                if user.is_empty() {
                    plugins.settle(is_live, secrets).await
                } else {
                    plugins.release(user, secrets).await
                }
            }))
        });
        undoing.join().unwrap_or_else(|_| Err(io::Error::other("the thread that does it panicked")))
    });
    let errors = errors.doing("cannot release CSI volumes")?;
    let told: Vec<String> = errors.iter().map(|error| chain(error)).collect();
    if told.is_empty() { Ok(()) } else { Err(told.join("; ")).doing("cannot release CSI volumes") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::fake::{self, FakeDriver};
    use crate::alloc::{Alloc, Assignment, Owner};
    use crate::csi::{Files, Ledger as _, Phase, Secrets, User, VolumeUse};
    use crate::spec::CsiUse;
    use crate::sys::owned::OwnDir;

    #[tokio::test]
    async fn f7_a_process_that_is_left_keeps_its_volume_and_a_network_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().canonicalize().unwrap();
        let machine = Arc::new(fake::machine(&data_dir, &FakeDriver::new(&[]), Owner::default()));
        let mut job = fake::job(vec![fake::task("web")]);
        job.groups[0].volumes.push(Volume { csi: Some(CsiUse::default()), ..Volume::default() });
        let job = Arc::new(job);
        let mut alloc = Alloc::new(&machine, &job, Assignment::new(&job, 0, 0));
        let csi = OwnDir::open(&data_dir).unwrap().make("csi".as_ref(), 0o700).unwrap();
        let files = Files::open(&csi.make("volumes".as_ref(), 0o700).unwrap(), "disk").unwrap();
        let id = VolumeId { namespace: "default".to_owned(), id: "v".to_owned() };
        let user = User { read_only: false, leaves: false, published: Some(Phase::Done) };
        let users = [(alloc.id().to_string(), user)].into();
        files.save(&id, &VolumeUse { users, ..VolumeUse::default() }).unwrap();

        (alloc.place.processes_are_left, alloc.place.recorded_is_left) = (true, false);
        assert_eq!(CsiHook.undo(&mut alloc.place).await.len(), 0);
        assert!(!alloc.place.volumes_are_left, "nothing was tried");
        (alloc.place.processes_are_left, alloc.place.recorded_is_left) = (false, true);
        // Its plugin does not run.
        assert_eq!(CsiHook.undo(&mut alloc.place).await.len(), 1);
        assert!(alloc.place.volumes_are_left, "it is tried again");
        let secrets = |_: &str, _: &VolumeId| Secrets::default();
        assert!(release_volumes(&data_dir, alloc.id().as_str(), &secrets).is_err());
        release_volumes(&data_dir, "another", &secrets).expect("what others have left keeps no user");
    }
}
