//! A task that an earlier process has started: it is found again, or its leftovers are removed.

use std::sync::Arc;
use std::time::SystemTime;

use super::chain::chain;
use super::hook::Stack;
use super::lifecycle::TaskState;
use super::process;
use super::setup::Setup;
use super::state::{Phase, Started, State, Why};
use super::task::{Attempt, Instance, SWEEP_PATIENCE, TaskError, TaskErrorKind, TaskRunner};
use crate::driver::{DriverError, TaskConfig};
use crate::spec::EventKind;

impl TaskRunner {
    /// Restores the steps that are done, and removes the leftovers of a start that was not recorded.
    pub(super) async fn take_up(&mut self, state: &State, steps: &mut Stack<Setup>, setup: &mut Setup) {
        setup.fetched.clone_from(&state.fetched_artifacts);
        setup.rendered.clone_from(&state.rendered);
        let is_done = |name: &str| state.done.iter().any(|done| done == name);
        if let Err((name, error)) = steps.restore(setup, is_done).await {
            // The step runs again before the next start.
            tracing::warn!(task = self.task.name, name, error = chain(&error), "a step is not taken up");
        }
        if state.handle.is_none()
            && let Err(error) = self.remove_strays(None).await
        {
            tracing::warn!(task = self.task.name, %error, "what a start left that was not finished");
        }
    }

    /// Goes on with a start of an earlier process: the task is still running, or ended while no process supervised it.
    pub(super) async fn resume(&mut self, state: &State, setup: &mut Setup, leftovers: &mut Vec<String>) -> Attempt {
        let recovered = match &state.handle {
            Some(started) => self.recover(started, setup).await,
            None => Err(DriverError::TaskNotFound),
        };
        if let Some(why) = state.undecided {
            // Its end is recorded, but the restart policy has not been applied to it yet.
            let gone = match &state.handle {
                Some(started) => self.remove(&started.id, leftovers).await,
                None => true,
            };
            return Attempt::Ended { result: state.exit.ok_or_else(|| self.unknown_end()), why, gone };
        }
        match recovered {
            Ok(config) => {
                let wishes = self.wishes();
                self.control().update(|state| {
                    (state.phase, state.driver_id) = (Phase::Running, Some(config.id.clone()));
                });
                self.state(TaskState::Running);
                let events = self.pass_on_events(&config.id);
                let instance = Instance { id: config.id, pos: config.config.pos, _events: events };
                self.follow(instance, setup, wishes, leftovers).await
            }
            Err(error) => {
                let why = match state.ordered {
                    Some(Why::Failed) => Why::Failed,
                    _ if self.is_stopping() => Why::Stopped,
                    ordered => ordered.unwrap_or(Why::Itself),
                };
                let message = chain(&error);
                let next = if why == Why::Itself { "; it is started again" } else { "" };
                let details = [("driver_error", message.clone())];
                self.event(EventKind::FailedRestore, format!("failed to restore task{next}: {message}"), &details);
                self.control().update(|state| {
                    (state.driver_id, state.finished, state.ordered) = (None, Some(SystemTime::now()), None);
                });
                if let Some(started) = &state.handle
                    && !self.remove(&started.id, leftovers).await
                {
                    // It may still run; a second instance would use the same ports and files.
                    return Attempt::Failed(self.unknown_end(), false);
                }
                if why == Why::Itself {
                    return Attempt::Lost;
                }
                Attempt::Ended { result: Err(self.unknown_end()), why, gone: true }
            }
        }
    }

    /// Lets the driver find a start of an earlier process again.
    async fn recover(&self, started: &Started, setup: &Setup) -> Result<TaskConfig, DriverError> {
        let failed = |message: String| DriverError::Failed { message, recoverable: false };
        let mut config = self.config(&setup.env).map_err(|e| failed(e.to_string()))?;
        config.id.clone_from(&started.id);
        config.mounts.clone_from(&setup.mounts);
        config.resources.cpuset_cpus = self.cores.as_ref().map(ToString::to_string).unwrap_or_default();
        self.driver.recover_task(&config, &started.state).await?;
        Ok(config)
    }

    fn unknown_end(&self) -> TaskError {
        let message = format!(
            "{}: task {:?} exited while no supervisor was running; its exit status is unknown",
            self.task.pos, self.task.name
        );
        TaskError { kind: TaskErrorKind::Other, message }
    }

    /// Removes the leftovers of a start that cannot be recovered, and its record. Returns whether nothing of it runs.
    async fn remove(&self, id: &str, leftovers: &mut Vec<String>) -> bool {
        // A task that the driver has recovered is destroyed as usual; the driver does not know the others.
        let mut gone = self.destroy(id, leftovers).await;
        if let Err(error) = self.remove_strays(Some(id)).await {
            gone = false;
            leftovers.push(format!("task {:?} cannot be cleaned up: {error}", self.task.name));
        }
        self.control().update(|state| state.handle = None);
        if let Err(error) = self.shared.records.task_ended(id, || self.shared.control.states()) {
            leftovers.push(format!("task {:?}: {}", self.task.name, chain(&error)));
        }
        gone
    }

    /// Kills the task's executors, of this start or of any, recorded or not, with the processes that they started.
    async fn remove_strays(&self, id: Option<&str>) -> std::io::Result<()> {
        let helpers = self.shared.records.helpers(&self.shared.alloc);
        let noted: Vec<_> =
            helpers.into_iter().filter(|handle| Some(handle.task_id.as_str()) == id).map(|h| h.process).collect();
        let (dir, task) = (self.shared.dir.path().to_owned(), self.task.name.clone());
        let (cgroup, remove_cgroup) = (self.cgroup.clone(), Arc::clone(&self.shared.remove_cgroup));
        let removing = crate::sys::task::spawn_blocking(move || {
            let mut helpers = noted;
            helpers.extend(process::executors_of(&dir, &task)?);
            // A stopped helper starts nothing new, and still inherits the orphans of its task.
            for helper in &helpers {
                process::stop(helper, SWEEP_PATIENCE)?;
            }
            if !cgroup.as_os_str().is_empty() {
                remove_cgroup(&cgroup)?;
            }
            helpers.iter().try_for_each(|helper| process::kill_tree(helper, SWEEP_PATIENCE))
        });
        removing.await.map_err(std::io::Error::other)?
    }
}
