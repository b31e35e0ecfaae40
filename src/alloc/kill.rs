//! Killing a running task.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::Stop;
use super::shared::stop_at_least;
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
    /// Ends a running task: withdraws its services, waits for the shutdown delay, sends the kill signal and waits for the kill
    /// timeout; at once when the stop is `Stop::Now`.
    pub(super) async fn kill(&mut self, id: &str, wait: &mut Wait<'_>) -> Result<ExitResult, DriverError> {
        // If `Stop::Now` interrupts the withdrawal, the remaining services are withdrawn once the task has ended.
        tokio::select! {
            biased;
            () = self.shared.offers.withdraw(&mut self.offered) => {}
            () = stop_at_least(&mut self.stop, Stop::Now) => {}
        }
        self.refresh();
        let skips = self.shared.control.skips_delay();
        let delay = if skips { Duration::ZERO } else { self.task.shutdown_delay };
        if !delay.is_zero() && *self.stop.borrow() < Stop::Now {
            let message = format!("Waiting for shutdown_delay of {} before killing the task.", go_duration(delay));
            self.event(EventKind::WaitingForShutdownDelay, message, &[]);
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = tokio::time::sleep(delay) => {}
                () = stop_at_least(&mut self.stop, Stop::Now) => {}
            }
        }
        let timeout = self.task.kill_timeout;
        let forced = *self.stop.borrow() == Stop::Now;
        let details = [("kill_timeout", go_duration(timeout))];
        let message = if forced {
            "Sent SIGKILL".to_owned()
        } else {
            format!("Sent interrupt. Waiting {} before force killing", go_duration(timeout))
        };
        self.event(EventKind::Killing, message, &details);

        let driver = Arc::clone(&self.driver);
        let mut stopping: Stopping<'_> = if forced {
            Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)))
        } else {
            Box::pin(stop_task(&*driver, id, timeout, self.task.kill_signal))
        };
        let (mut stopped, mut forced) = (false, forced);
        loop {
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = stop_at_least(&mut self.stop, Stop::Now), if !forced => {
                    (forced, stopped) = (true, false);
                    stopping = Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)));
                }
                result = &mut stopping, if !stopped => match result {
                    Ok(()) | Err(DriverError::TaskNotFound) => stopped = true,
                    Err(error) => return Err(error),
                },
            }
        }
    }
}
