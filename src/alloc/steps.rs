//! The steps before the tasks of an allocation, and how they are restored.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::chain::chain;
use super::error::{CleanupError, SetupError};
use super::hook::Hook;
use super::machine;
use super::nosuid;
use super::place::{Place, Restored};
use super::ports::PortError;
use super::process;
use super::record::{Record, RecordError, Restore};
use crate::cgroup::Cpusets;

/// How long killing the leftovers of a lost executor may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs before the first file is made, and is undone after the last one is removed.
pub(super) struct NosuidHook;

#[tonic::async_trait]
impl Hook<Place> for NosuidHook {
    fn name(&self) -> &'static str {
        "nosuid"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let data_dir = place.machine.data_dir.clone();
        let held = crate::sys::task::spawn_blocking(move || nosuid::hold(&data_dir)).await;
        let error = |e| SetupError::Dir {
            action: "mount nosuid,nodev at",
            path: place.machine.data_dir.join("alloc"),
            source: io::Error::other(e),
        };
        place.hold = held.map_err(error)??;
        Ok(())
    }

    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        self.run(place).await
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        if place.hold.take().is_none() {
            return Vec::new();
        }
        nosuid::release_soon(&place.machine.data_dir).await.err().into_iter().collect()
    }
}

pub(super) struct RecordHook;

#[tonic::async_trait]
impl Hook<Place> for RecordHook {
    fn name(&self) -> &'static str {
        "record"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let record = Record::new(&place.id, &place.job.id, &place.group().name);
        let path = place.dir.path().with_extension("json");
        let mut record = record.map_err(|source| RecordError::Write { path, source })?;
        record.cgroups = place.cgroups();
        if !place.returns() {
            return Ok(place.machine.records.create(record)?);
        }
        let record = record.restorable(Restore {
            owner: place.machine.owner.clone(),
            index: place.index,
            name: place.name.clone(),
            created: place.control.created(),
            ports: place.ports.clone(),
            ports_are_assigned: place.assigned.is_some(),
            network: None,
            dns: None,
            stopping: place.control.is_stopping(),
            is_set_up: false,
            tasks: place.control.states(),
        });
        Ok(place.machine.records.create_with_job(record, &place.job)?)
    }

    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        let cgroups = place.cgroups();
        let Some(Restored { record, rebooted, .. }) = &place.restored else { return Ok(()) };
        let mut record = Record { cgroups, ..record.clone() };
        if *rebooted {
            // Their pids may belong to other processes by now. The tasks' states are those for a new start.
            record.handles.clear();
        }
        if let Some(restore) = &mut record.restore {
            restore.tasks = place.control.states();
        }
        Ok(place.machine.records.adopt(record)?)
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        // The next clean-up finds by the record what is left.
        if place.is_anything_left() || place.dir.path().exists() {
            return std::mem::take(&mut place.untold);
        }
        let error = |e: RecordError| CleanupError {
            action: "remove the record of",
            subject: place.id.to_string(),
            source: io::Error::other(chain(&e)),
        };
        place.machine.records.remove(&place.id).map_err(error).err().into_iter().collect()
    }
}

pub(super) struct AllocDirHook;

#[tonic::async_trait]
impl Hook<Place> for AllocDirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        place.dir.build()
    }

    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        let is_unfinished = place.restored.as_ref().is_some_and(|restored| restored.is_unfinished);
        if is_unfinished || !place.dir.path().exists() {
            // No task has used what exists of it.
            let errors = self.undo(place).await;
            if let Some(error) = errors.into_iter().next() {
                let path = place.dir.path().to_owned();
                return Err(SetupError::Dir { action: "remove", path, source: io::Error::other(error) });
            }
            return place.dir.build();
        }
        let dir = place.dir.clone();
        let _ = crate::sys::task::spawn_blocking(move || dir.remove_staging()).await;
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        let dir = place.dir.clone();
        let removed = crate::sys::task::spawn_blocking(move || dir.destroy()).await;
        removed.unwrap_or_else(|e| {
            let subject = place.dir.path().display().to_string();
            vec![CleanupError { action: "remove", subject, source: io::Error::other(e) }]
        })
    }
}

/// Executors create and remove the cgroups of their tasks; an executor that was lost, or failed, leaves them behind.
pub(super) struct CgroupsHook;

#[tonic::async_trait]
impl Hook<Place> for CgroupsHook {
    fn name(&self) -> &'static str {
        "cgroups"
    }

    async fn run(&self, _place: &mut Place) -> Result<(), SetupError> {
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        let mut strays = Vec::new();
        if let Some(restored) = &place.restored {
            strays = remove_strays(place, &restored.record).await;
            place.processes_are_left |= !strays.is_empty();
        }
        let (cgroups, machine) = (place.cgroups(), Arc::clone(&place.machine));
        let error = |subject, source| CleanupError { action: "remove cgroup", subject, source };
        let removed = crate::sys::task::spawn_blocking(move || {
            let remove =
                |path: &PathBuf| (machine.remove_cgroup)(path).err().map(|e| error(path.display().to_string(), e));
            let errors: Vec<_> = cgroups.iter().filter_map(remove).collect();
            if let Some(Err(e)) = machine.cpusets.as_ref().map(Cpusets::settle) {
                tracing::warn!(error = chain(&e), "cannot divide the cores among the tasks");
            }
            errors
        });
        let errors = removed.await.unwrap_or_else(|e| vec![error(place.id.to_string(), io::Error::other(e))]);
        place.processes_are_left |= !errors.is_empty();
        strays.extend(errors);
        strays
    }
}

/// Kills the orphans of executors that were killed while no process supervised them: such orphans are children of process 1, and
/// not of this process. Also removes containers whose driver died before it recorded them.
async fn remove_strays(place: &Place, record: &Record) -> Vec<CleanupError> {
    let (id, record, data_dir) = (place.id.clone(), record.clone(), place.machine.data_dir.clone());
    let error = |action, source| CleanupError { action, subject: place.id.to_string(), source };
    let removing = crate::sys::task::spawn_blocking(move || {
        let containers = machine::remove_containers(&data_dir, &record).map_err(io::Error::other);
        let must_end = (rustix::process::geteuid().is_root() && !record.cgroups.is_empty()).then_some(0);
        (containers, process::kill_by_environment(&id, must_end, PATIENCE))
    });
    match removing.await {
        Ok((containers, processes)) => {
            let containers = containers.err().map(|e| error("remove the containers of", e));
            let processes = processes.err().map(|e| error("kill the processes of", e));
            containers.into_iter().chain(processes).collect()
        }
        Err(e) => vec![error("end what is left of", io::Error::other(e))],
    }
}

pub(super) struct NetworkHook;

#[tonic::async_trait]
impl Hook<Place> for NetworkHook {
    fn name(&self) -> &'static str {
        "ports"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let (machine, job, number, id) =
            (Arc::clone(&place.machine), Arc::clone(&place.job), place.group, place.id.clone());
        let assigned = place.assigned.clone();
        // Waits for other processes that are choosing ports.
        let chosen = crate::sys::task::spawn_blocking(move || match assigned {
            Some(ports) => machine.ports.take(&job, number, &id, &ports).map(|()| ports),
            None => machine.ports.allocate(&job, number, &id, &machine.node, &machine.networks),
        });
        place.ports = chosen.await.map_err(|e| PortError::Broken(io::Error::other(e)))??;
        Ok(())
    }

    /// It keeps its ports. If another allocation was given one of them meanwhile, both have it: a running task is not stopped for
    /// that.
    async fn restore(&self, place: &mut Place) -> Result<(), SetupError> {
        let (machine, id, job) = (Arc::clone(&place.machine), place.id.clone(), place.job.id.clone());
        let (group, ports) = (place.group().name.clone(), place.ports.clone());
        let claimed = crate::sys::task::spawn_blocking(move || machine.ports.claim(&id, &job, &group, &ports)).await;
        let claimed = claimed.map_err(|e| PortError::Broken(io::Error::other(e)))?;
        if let Err(error) = claimed {
            tracing::warn!(%error, alloc = %place.id, "others may be given the ports of a restored allocation");
        }
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        place.ports.clear();
        // A process may still listen there, or a mapping may remain: this process keeps the ports until it ends.
        if place.is_anything_left() { Vec::new() } else { release(place).await }
    }
}

/// Releases the ports of an allocation.
pub(super) async fn release(place: &Place) -> Vec<CleanupError> {
    let (machine, id) = (Arc::clone(&place.machine), place.id.clone());
    let released = crate::sys::task::spawn_blocking(move || machine.ports.release(&id)).await;
    let error = |source| CleanupError { action: "give back the ports of", subject: place.id.to_string(), source };
    released.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(error).err().into_iter().collect()
}
