//! Restores the allocations of an earlier process from their records.

use std::sync::Arc;

use super::Stop;
use super::assignment::Assignment;
use super::place::{Machine, Restored};
use super::record::{Record, RecordError};
use super::run::Alloc;
use super::state::State;
use crate::spec::Job;
use crate::sys::time;

/// Why an allocation cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The record or the job cannot be read.
    #[error("allocation {id} cannot be restored")]
    Record {
        /// Its id.
        id: String,
        /// Why not.
        source: RecordError,
    },
    /// Its record belongs to an owner that does not return.
    #[error("allocation {0} cannot be restored: its record is that of a run that does not come back")]
    NotKept(String),
    /// Its owner died before anything of it was made.
    #[error("allocation {0} cannot be restored: it was never set up")]
    NeverMade(String),
    /// Its tasks may run in a pid namespace that this process cannot see.
    #[error("allocation {0} cannot be restored: its tasks belong to another pid namespace; do it there")]
    Elsewhere(String),
    /// The record contradicts itself or the job.
    #[error("allocation {id} cannot be restored: {problem}")]
    Inconsistent {
        /// Its id.
        id: String,
        /// The contradiction.
        problem: String,
    },
    /// The boot id, or the pid namespace, cannot be read.
    #[error("cannot find out whether the machine was restarted")]
    Boot(#[source] std::io::Error),
}

impl Alloc {
    /// An allocation that an earlier process of the same owner made, from its record and the job next to it. [`Alloc::set_up`]
    /// restores the allocation, and [`Alloc::run`] its tasks: running ones go on, those that ended meanwhile are detected as ended,
    /// and the others are started. After a reboot all tasks that had not ended start again.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(machine: &Arc<Machine>, record: Record) -> Result<Alloc, RestoreError> {
        Alloc::restore_among(machine, record, &[])
    }

    /// The same. If its job equals one of these, they share it.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore_among(machine: &Arc<Machine>, record: Record, known: &[Arc<Job>]) -> Result<Alloc, RestoreError> {
        let id = record.alloc_id.clone();
        let wrong = |problem: String| RestoreError::Inconsistent { id: id.clone(), problem };
        let Some(restore) = record.restore.clone() else { return Err(RestoreError::NotKept(id)) };
        // If its tasks were taken for dead, they would be started a second time.
        if record.is_elsewhere().map_err(RestoreError::Boot)? {
            return Err(RestoreError::Elsewhere(id));
        }
        let job = record.job(&machine.data_dir).map_err(|source| match source {
            RecordError::Read { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                RestoreError::NeverMade(id.clone())
            }
            source => RestoreError::Record { id: id.clone(), source },
        })?;
        let group = job.groups.iter().position(|group| group.name == record.group);
        let group = group.ok_or_else(|| wrong(format!("its job has no group {:?}", record.group)))?;
        let names = |tasks: &mut dyn Iterator<Item = &String>| tasks.cloned().collect::<Vec<_>>();
        let own = names(&mut job.groups[group].tasks.iter().map(|task| &task.name));
        if own != names(&mut restore.tasks.iter().map(|state| &state.name)) {
            return Err(wrong("its record has other tasks than its job".to_owned()));
        }
        let alloc_id = record.id().ok_or_else(|| wrong("its record has no id".to_owned()))?;
        let rebooted = record.owner.boot_id != time::boot_id().map_err(RestoreError::Boot)?;
        let mut tasks = restore.tasks;
        if rebooted {
            tasks.iter_mut().for_each(State::forget_boot);
        }
        let assignment = Assignment {
            id: alloc_id,
            group,
            index: restore.index,
            name: restore.name,
            ports: restore.ports_are_assigned.then(|| restore.ports.clone()),
        };
        // The driver of this process knows none of them yet.
        for state in &mut tasks {
            state.driver_id = None;
        }
        let job = known.iter().find(|known| ***known == job).cloned().unwrap_or_else(|| Arc::new(job));
        let mut alloc = Alloc::build(machine, &job, assignment, restore.created, &tasks);
        alloc.place.ports = restore.ports;
        alloc.place.restored = Some(Restored { record, rebooted, is_unfinished: !restore.is_set_up });
        if restore.stopping {
            alloc.place.control.stop(Stop::Gracefully);
        }
        Ok(alloc)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::alloc::control::{Control, TaskLife};
    use crate::alloc::fake::{self, Act, FakeDriver, lifecycle_task, task};
    use crate::alloc::gc::{self, Finding};
    use crate::alloc::owner::{Owner, OwnerLock};
    use crate::alloc::supervise::AllocResult;
    use crate::spec::{EventKind, LifecycleHook, RestartMode, RestartPolicy, Task, TaskEvent};

    const SECOND: Duration = Duration::from_secs(1);

    /// What outlives an owner's process: the data directory, and the running tasks.
    struct World {
        data: tempfile::TempDir,
        driver: Arc<FakeDriver>,
    }

    impl World {
        fn new(scripts: &[(&str, &[Act])]) -> World {
            World { data: tempfile::tempdir().unwrap(), driver: FakeDriver::new(scripts) }
        }

        /// The machine of another process of the same owner.
        fn machine(&self) -> Arc<Machine> {
            let data_dir = self.data.path().canonicalize().unwrap();
            Arc::new(fake::machine(&data_dir, &self.driver, Owner::Agent))
        }

        async fn begin(&self, tasks: Vec<Task>) -> Alloc {
            let (machine, job) = (self.machine(), Arc::new(fake::job(tasks)));
            let mut alloc = Alloc::new(&machine, &job, Assignment::new(&job, 0, 0));
            alloc.set_up().await.unwrap();
            alloc
        }

        /// The allocation as its next owner restores it.
        async fn again(&self) -> Alloc {
            let machine = self.machine();
            let record = self.record();
            let mut alloc = Alloc::restore(&machine, record).unwrap();
            alloc.set_up().await.unwrap();
            alloc
        }

        fn record(&self) -> Record {
            self.machine().records.owned_by_agent().unwrap().remove(0).unwrap()
        }

        fn record_path(&self) -> PathBuf {
            let record = self.record();
            self.data.path().join("alloc").join(format!("{}.json", record.alloc_id))
        }

        /// Changes the record the way a foreign program would.
        fn edit(&self, change: impl FnOnce(&mut serde_json::Value)) {
            let path = self.record_path();
            let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            change(&mut value);
            std::fs::write(&path, value.to_string()).unwrap();
        }

        fn nothing_left(&self) {
            let left = std::fs::read_dir(self.data.path().join("alloc")).unwrap();
            assert_eq!(left.map(|e| e.unwrap().file_name()).collect::<Vec<_>>(), [""; 0]);
        }

        fn starts(&self, name: &str) -> usize {
            self.driver.log().iter().filter(|line| **line == format!("start {name}")).count()
        }
    }

    fn restarting(attempts: u32, name: &str) -> Task {
        let (interval, delay, mode) = (Duration::from_mins(10), 10 * SECOND, RestartMode::Fail);
        Task { restart: RestartPolicy { attempts, interval, delay, mode, render_templates: false }, ..task(name) }
    }

    /// Runs the allocation until `then` has happened; `then` finally stops or leaves it.
    async fn run(alloc: &mut Alloc, then: impl AsyncFnOnce(&Control)) -> AllocResult {
        let (events, _heard) = mpsc::unbounded_channel();
        let control = alloc.control();
        let (_stop, stopped) = watch::channel(Stop::No);
        let (result, ()) = tokio::join!(alloc.run(stopped, events), then(&control));
        result
    }

    /// Waits until a condition is true of one of its tasks.
    async fn until(control: &Control, name: &str, wanted: impl Fn(&crate::alloc::control::TaskNow) -> bool) {
        let mut changes = control.subscribe();
        while !control.tasks().iter().any(|task| task.name == name && wanted(task)) {
            assert!(changes.next().await);
        }
    }

    fn runs(task: &crate::alloc::control::TaskNow) -> bool {
        task.state == TaskLife::Running
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_left_is_found_again_and_what_had_ended_stays_so() {
        let world = World::new(&[("init", &[Act::Exit(SECOND, 0)]), ("web", &[Act::UntilStopped(3)])]);
        let init = lifecycle_task("init", LifecycleHook::Prestart, false);
        let mut alloc = world.begin(vec![init, restarting(2, "web")]).await;
        let left = run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            assert!(control.leave() && control.is_leaving());
        });
        let left = left.await;
        assert!(left.left && left.tasks.len() == 1, "{left:?}");
        drop(alloc);
        for _ in 0..3 {
            let mut alloc = world.again().await;
            let left = run(&mut alloc, async |control: &Control| {
                control.taken_up().await;
                let tasks = control.tasks();
                assert_eq!((tasks[0].state, tasks[0].failed), (TaskLife::Dead, false));
                assert_eq!((tasks[1].state, tasks[1].restarts), (TaskLife::Running, 0));
                assert!(tasks[1].started_at.is_some());
                control.leave();
            });
            assert!(left.await.left);
        }
        let mut alloc = world.again().await;
        let result = run(&mut alloc, async |control: &Control| {
            control.taken_up().await;
            control.stop(Stop::Gracefully);
        });
        let result = result.await;
        assert!(!result.left && result.tasks.len() == 2, "{result:?}");
        assert_eq!(alloc.destroy().await.len(), 0);
        world.nothing_left();
        assert_eq!((world.starts("init"), world.starts("web")), (1, 1), "{:?}", world.driver.log());
        assert_eq!(world.driver.log().iter().filter(|line| *line == "recover web").count(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_download_of_a_killed_owner_is_removed() {
        let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
        let mut alloc = world.begin(vec![task("web")]).await;
        run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            control.leave();
        })
        .await;
        let dir = world.data.path().join("alloc").join(alloc.id().as_str());
        drop(alloc);
        let staging = dir.join(".fetch-6a204bd89f3c4d1f9f1a3a6f7d1b2c3d");
        std::fs::create_dir_all(staging.join("below")).unwrap();
        std::fs::write(staging.join("below/part"), "half").unwrap();
        std::fs::create_dir(dir.join(".fetch-other")).unwrap();
        let mut alloc = world.again().await;
        assert!(!staging.exists() && dir.join(".fetch-other").exists() && dir.join("web/local").exists());
        run(&mut alloc, async |control: &Control| {
            control.taken_up().await;
            control.stop(Stop::Gracefully);
        })
        .await;
        alloc.destroy().await;
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_are_counted_by_all_owners_together() {
        let world = World::new(&[("web", &[Act::Exit(SECOND, 5)])]);
        let mut alloc = world.begin(vec![restarting(2, "web")]).await;
        // Left while it waits for its first restart.
        run(&mut alloc, async |control: &Control| {
            until(control, "web", |task| task.restarts == 1).await;
            assert_eq!(control.tasks()[0].finished_at, None, "it waits for its restart");
            control.leave();
        })
        .await;
        assert_eq!(world.starts("web"), 1);
        let mut alloc = world.again().await;
        let result = run(&mut alloc, async |control: &Control| {
            until(control, "web", |task| task.state == TaskLife::Dead).await;
        });
        let result = result.await;
        assert!(result.tasks[0].failed, "{result:?}");
        let web = alloc.control().tasks().remove(0);
        assert!(web.restarts == 2 && web.finished_at.is_some(), "{web:?}");
        assert_eq!(world.starts("web"), 3, "as many as without a change of its owner");
        alloc.destroy().await;
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_restart_of_the_machine_what_had_not_ended_begins_again() {
        let world = World::new(&[("init", &[Act::Exit(SECOND, 0)]), ("web", &[Act::UntilStopped(0)])]);
        let init = lifecycle_task("init", LifecycleHook::Prestart, false);
        let mut alloc = world.begin(vec![init, restarting(2, "web")]).await;
        let id = alloc.id().clone();
        run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            control.leave();
        })
        .await;
        drop(alloc);
        world.driver.lose_all();
        world.edit(|record| record["owner"]["boot_id"] = "an earlier one".into());
        let mut alloc = world.again().await;
        assert_eq!(*alloc.id(), id, "the same allocation");
        run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            let web = &control.tasks()[1];
            assert_eq!(web.restarts, 0, "not counted");
            let kinds: Vec<_> = web.events.iter().map(|event| event.kind).collect();
            let last = [EventKind::Restored, EventKind::TaskSetup, EventKind::Started];
            assert_eq!(kinds[kinds.len() - 3..], last, "from the first step on");
            control.stop(Stop::Gracefully);
        })
        .await;
        assert_eq!((world.starts("init"), world.starts("web")), (1, 2), "what was dead stays dead");
        assert_eq!(alloc.destroy().await.len(), 0);
        world.nothing_left();
    }

    /// Of what its driver cannot find again nobody knows how it ended: the restart policy is not asked.
    #[tokio::test(start_paused = true)]
    async fn what_is_lost_while_nobody_looked_is_started_again() {
        for attempts in [0, 2] {
            let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
            let mut alloc = world.begin(vec![restarting(attempts, "web")]).await;
            run(&mut alloc, async |control: &Control| {
                until(control, "web", runs).await;
                control.leave();
            })
            .await;
            world.driver.lose_all();
            let mut alloc = world.again().await;
            let result = run(&mut alloc, async |control: &Control| {
                control.taken_up().await;
                until(control, "web", |task| world.starts("web") == 2 && runs(task)).await;
                let web = &control.tasks()[0];
                assert!(web.events.iter().any(|event| event.kind == EventKind::FailedRestore), "{web:?}");
                assert_eq!(web.restarts, 0, "not counted");
                control.stop(Stop::Gracefully);
            });
            let result = result.await;
            assert!(!result.tasks[0].failed, "{result:?}");
            assert_eq!(alloc.destroy().await.len(), 0);
            world.nothing_left();
        }
    }

    /// The owner is killed between a task's end and the reaction to it: the end is not forgotten, and nothing is started twice.
    #[tokio::test(start_paused = true)]
    async fn an_end_that_was_seen_is_decided_by_the_next_owner() {
        let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
        let mut alloc = world.begin(vec![restarting(2, "web")]).await;
        run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            control.leave();
        })
        .await;
        world.driver.lose_all();
        world.edit(|record| {
            let task = &mut record["restore"]["tasks"][0];
            task["undecided"] = "itself".into();
            task["exit"] =
                serde_json::json!({ "exit_code": 0, "signal": 0, "oom_killed": false, "core_dumped": false });
            task["finished"] = task["started"].clone();
        });
        let mut alloc = world.again().await;
        let result = run(&mut alloc, async |_: &Control| {}).await;
        assert!(!result.tasks[0].failed, "a batch task that did its work: {result:?}");
        assert_eq!(world.starts("web"), 1);
        assert_eq!(alloc.destroy().await.len(), 0);
        world.nothing_left();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_is_remembered() {
        let world = World::new(&[("web", &[Act::Stubborn])]);
        let mut alloc = world.begin(vec![Task { kill_timeout: 60 * SECOND, ..task("web") }]).await;
        run(&mut alloc, async |control: &Control| {
            until(control, "web", runs).await;
            control.stop(Stop::Gracefully);
            until(control, "web", |task| task.events.iter().any(|event| event.kind == EventKind::Killing)).await;
            control.leave();
        })
        .await;
        let mut alloc = world.again().await;
        let result = run(&mut alloc, async |control: &Control| assert!(control.is_stopping())).await;
        assert!(result.tasks[0].killed, "{result:?}");
        assert_eq!(alloc.destroy().await.len(), 0);
        world.nothing_left();
    }

    /// Its owner exits, or is killed, while the task is being stopped for a restart; that end does not count as the task's own.
    #[tokio::test(start_paused = true)]
    async fn a_restart_that_was_asked_for_is_gone_on_with() {
        for is_lost in [false, true] {
            let acts = [Act::Stubborn, Act::UntilStopped(0)];
            let world = World::new(&[("web", &acts)]);
            let mut alloc = world.begin(vec![Task { kill_timeout: 60 * SECOND, ..task("web") }]).await;
            run(&mut alloc, async |control: &Control| {
                until(control, "web", runs).await;
                let is_heard = |event: &TaskEvent| event.kind == EventKind::RestartSignaled;
                tokio::select! {
                    done = control.restart(None) => panic!("{done:?}"),
                    () = until(control, "web", |task| task.events.iter().any(is_heard)) => {}
                }
                control.leave();
            })
            .await;
            drop(alloc);
            if is_lost {
                world.driver.lose_all();
            }
            let mut alloc = world.again().await;
            let result = run(&mut alloc, async |control: &Control| {
                until(control, "web", |task| task.restarts == 1 && runs(task)).await;
                control.stop(Stop::Gracefully);
            });
            let result = result.await;
            assert!(!result.tasks[0].failed, "the policy, which allows no restart, is not asked: {result:?}");
            assert_eq!(world.starts("web"), 2, "{:?}", world.driver.log());
            assert_eq!(alloc.destroy().await.len(), 0);
            world.nothing_left();
        }
    }

    /// Its owner is killed while the task is being killed because of its templates: it does not begin again.
    #[tokio::test(start_paused = true)]
    async fn a_task_that_has_to_fail_fails_with_its_next_owner() {
        for is_lost in [false, true] {
            let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
            let mut alloc = world.begin(vec![restarting(2, "web")]).await;
            run(&mut alloc, async |control: &Control| {
                until(control, "web", runs).await;
                control.leave();
            })
            .await;
            drop(alloc);
            if is_lost {
                world.driver.lose_all();
            }
            world.edit(|record| record["restore"]["tasks"][0]["ordered"] = "failed".into());
            let mut alloc = world.again().await;
            let result = run(&mut alloc, async |_: &Control| {}).await;
            assert!(result.tasks[0].failed, "{result:?}");
            assert_eq!(world.starts("web"), 1, "{:?}", world.driver.log());
            assert_eq!(alloc.destroy().await.len(), 0);
            world.nothing_left();
        }
    }

    /// The owner is killed in the middle of the setup: no task was started, and the steps run again from the first one on.
    #[tokio::test(start_paused = true)]
    async fn one_that_was_not_set_up_is_set_up_again() {
        let world = World::new(&[("web", &[Act::Exit(SECOND, 0)])]);
        let alloc = world.begin(vec![task("web")]).await;
        std::fs::write(alloc.dir().join("half"), "").unwrap();
        drop(alloc);
        world.edit(|record| record["restore"]["is_set_up"] = false.into());
        let mut alloc = world.again().await;
        assert!(!alloc.dir().join("half").exists() && alloc.log_dir().is_dir());
        let result = run(&mut alloc, async |_: &Control| {}).await;
        assert!(!result.tasks[0].failed, "{result:?}");
        alloc.destroy().await;
        world.nothing_left();

        // Before its job was written, nothing had been made.
        let alloc = world.begin(vec![task("web")]).await;
        std::fs::remove_file(world.record_path().with_extension("job")).unwrap();
        let never = Alloc::restore(&world.machine(), world.record()).unwrap_err();
        assert!(matches!(never, RestoreError::NeverMade(_)), "{never}");
        alloc.destroy().await;
        world.nothing_left();
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_does_not_fit_its_job_is_refused() {
        let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
        let alloc = world.begin(vec![task("web")]).await;
        let record = world.record();
        let refused = |change: &dyn Fn(&mut Record)| {
            let mut changed = record.clone();
            change(&mut changed);
            Alloc::restore(&world.machine(), changed).unwrap_err().to_string()
        };
        assert!(refused(&|r| r.group = "other".to_owned()).contains("no group"));
        assert!(refused(&|r| r.restore.as_mut().unwrap().tasks.clear()).contains("other tasks"));
        assert!(refused(&|r| r.restore = None).contains("does not come back"));
        alloc.destroy().await;
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_agent_wants_back_is_nobody_elses() {
        let world = World::new(&[("web", &[Act::UntilStopped(0)])]);
        let alloc = world.begin(vec![task("web")]).await;
        let data_dir = alloc.place.machine.data_dir.clone();
        let lock = OwnerLock::take(&data_dir, &Owner::Agent).unwrap();
        let found = || gc::scan(&data_dir).unwrap().remove(0);
        assert!(matches!(found(), Finding::InUse(_)));
        drop(lock);
        assert!(matches!(found(), Finding::Wanted(_)));
        // Also after a restart of the machine.
        world.edit(|record| record["owner"]["boot_id"] = "an earlier one".into());
        assert!(matches!(found(), Finding::Wanted(_)));
        alloc.destroy().await;
    }
}
