//! Killing a running task.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::Stop;
use super::shared::stop_at_least;
use super::state::Why;
use super::task::TaskRunner;
use super::text::go_duration;
use crate::driver::{Driver, DriverError};
use crate::spec::{EventKind, ExitResult, Signal};

/// Pauses between the attempts to stop a task.
const STOP_TRIES: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(80), Duration::from_mins(2)];

pub(super) type Wait<'a> = Pin<Box<dyn Future<Output = Result<ExitResult, DriverError>> + Send + 'a>>;
type Stopping<'a> = Pin<Box<dyn Future<Output = Result<(), DriverError>> + Send + 'a>>;

/// Asks a driver to stop a task, with retries.
async fn stop_task(
    driver: &dyn Driver,
    id: &str,
    timeout: Duration,
    signal: Option<Signal>,
) -> Result<(), DriverError> {
    for pause in STOP_TRIES {
        match driver.stop_task(id, timeout, signal).await {
            Err(DriverError::Failed { .. }) => tokio::time::sleep(pause).await,
            other => return other,
        }
    }
    driver.stop_task(id, timeout, signal).await
}

impl TaskRunner {
    /// Whether a task that is ended for this reason is ended for a restart, as Nomad does it: no event says that it is killed, and
    /// its shutdown delay is for its end.
    pub(super) fn is_for_restart(&self, why: Why) -> bool {
        match why {
            Why::Restart | Why::Unhealthy => true,
            // It may be stopped to be restarted with all tasks of its group.
            Why::Stopped => self.control().state().anew && !self.shared.control.is_stopping(),
            Why::Failed | Why::Itself => false,
        }
    }

    fn tell_of_kill(&self) {
        let timeout = go_duration(self.task.kill_timeout);
        let message = if *self.stop.borrow() == Stop::Now {
            "Sent SIGKILL".to_owned()
        } else {
            format!("Sent interrupt. Waiting {timeout} before force killing")
        };
        self.event(EventKind::Killing, message, &[("kill_timeout", timeout)]);
    }

    /// Ends a running task: withdraws its services, waits for the shutdown delay, sends the kill signal and waits for the kill
    /// timeout; at once when the stop is `Stop::Now`.
    pub(super) async fn kill(&mut self, id: &str, why: Why, wait: &mut Wait<'_>) -> Result<ExitResult, DriverError> {
        self.refresh();
        let is_for_restart = self.is_for_restart(why);
        if why == Why::Stopped && !is_for_restart {
            self.tell_of_kill();
        }
        // If `Stop::Now` interrupts the withdrawal, the remaining services are withdrawn once the task has ended.
        tokio::select! {
            biased;
            () = self.shared.offers.withdraw(&mut self.offered) => {}
            () = stop_at_least(&mut self.stop, Stop::Now) => {}
        }
        let delay = self.task.shutdown_delay;
        if !is_for_restart && !delay.is_zero() && *self.stop.borrow() < Stop::Now {
            let (kind, what) = if self.shared.control.skips_delay() {
                (EventKind::SkippingShutdownDelay, "Skipping")
            } else {
                (EventKind::WaitingForShutdownDelay, "Waiting for")
            };
            let message = format!("{what} shutdown_delay of {} before killing the task.", go_duration(delay));
            self.event(kind, message, &[]);
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = self.shared.control.delay_skipped() => {}
                () = tokio::time::sleep(delay) => {}
                () = stop_at_least(&mut self.stop, Stop::Now) => {}
            }
        }
        let timeout = self.task.kill_timeout;
        let forced = *self.stop.borrow() == Stop::Now;
        let driver = Arc::clone(&self.driver);
        let mut stopping: Stopping<'_> = if forced {
            Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)))
        } else {
            Box::pin(stop_task(&*driver, id, timeout, self.task.kill_signal))
        };
        // A stop may come while it is ended for a restart.
        let (mut stopped, mut forced, mut untold) = (false, forced, is_for_restart);
        loop {
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = stop_at_least(&mut self.stop, if untold { Stop::Gracefully } else { Stop::Now }), if !forced => {
                    if std::mem::take(&mut untold) && !self.is_for_restart(Why::Stopped) {
                        self.tell_of_kill();
                    }
                    if *self.stop.borrow() == Stop::Now {
                        (forced, stopped) = (true, false);
                        stopping = Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)));
                    }
                }
                result = &mut stopping, if !stopped => match result {
                    Ok(()) | Err(DriverError::TaskNotFound) => stopped = true,
                    Err(error) => return Err(error),
                },
            }
        }
    }
}
