//! One check of a service: repeats the probe, counts the results and reports the status. Independent of who owns the service.

mod grpc;
mod http;
mod reach;

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

pub(super) use grpc::Grpc;
pub(super) use http::Http;
pub(super) use reach::{Target, Way};

use crate::driver::{Driver, DriverError};
use crate::spec::{CheckStatus, shortened};

/// Longest output of a check that is kept, in bytes.
const LONGEST_OUTPUT: usize = 4096;

/// What a check probes; all values are interpolated.
#[derive(Debug, Clone)]
pub(super) enum Probe {
    /// A TCP connection.
    Tcp(Target),
    /// An HTTP request.
    Http(Target, Http),
    /// The health service of gRPC.
    Grpc(Target, Grpc),
    /// A command inside a task.
    Script(Vec<String>),
    /// It cannot be probed, and why.
    Broken(String),
}

/// Where scripts run: the driver of a task and the driver's task id, while the task runs.
pub(super) type Inside = Box<dyn Fn() -> Option<(Arc<dyn Driver>, String)> + Send + Sync>;

/// The status that one probe found, its output for people, and the status code of an HTTP answer; 0 for none.
pub(super) type Found = (CheckStatus, String, u16);

/// The result of a probe, with its output shortened to the limit.
fn found(status: CheckStatus, output: impl AsRef<str>) -> Found {
    (status, shortened(output.as_ref().trim_end(), LONGEST_OUTPUT).into_owned(), 0)
}

fn failed(error: &dyn std::fmt::Display) -> Found {
    found(CheckStatus::Critical, error.to_string())
}

impl Probe {
    /// Probes once.
    pub(super) async fn try_once(&self, timeout: Duration, inside: &Inside) -> Found {
        let trying = async {
            match self {
                Probe::Tcp(target) => match target.connect().await {
                    Ok(_) => found(CheckStatus::Passing, format!("nomad: tcp ok: {target}")),
                    Err(error) => failed(&format!("TCP connect {target}: {error}")),
                },
                Probe::Http(target, http) => http.ask(target).await,
                Probe::Grpc(target, grpc) => grpc.ask(target).await,
                Probe::Script(command) => script(command, timeout, inside).await,
                Probe::Broken(why) => failed(why),
            }
        };
        // When its timeout has passed, a script is killed; the driver's answer to that is waited for.
        let patience = if matches!(self, Probe::Script(_)) { timeout + SCRIPT_ENDS } else { timeout };
        match tokio::time::timeout(patience, trying).await {
            Ok(found) => found,
            Err(_) => failed(&format!("no answer within {timeout:?}")),
        }
    }
}

/// How long a driver may take to kill a script after its timeout.
const SCRIPT_ENDS: Duration = Duration::from_secs(5);

async fn script(command: &[String], timeout: Duration, inside: &Inside) -> Found {
    let Some((driver, id)) = inside() else { return failed(&"the task does not run") };
    let done = match driver.exec_task(&id, command, timeout).await {
        Ok(done) => done,
        Err(DriverError::TaskNotFound) => return failed(&"the task does not run"),
        Err(error) => return failed(&super::chain::chain(&error)),
    };
    let mut output = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let status = match (done.exit.exit_code, done.exit.signal) {
        (0, 0) => CheckStatus::Passing,
        (1, 0) => CheckStatus::Warning,
        (code, signal) => {
            let what = if signal == 0 { format!("exit code {code}") } else { format!("signal {signal}") };
            let _ = write!(output, "{}{what}", if output.is_empty() || output.ends_with('\n') { "" } else { "\n" });
            CheckStatus::Critical
        }
    };
    found(status, output)
}

/// How often a check probes, and how many results in a row change its status.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    pub(super) initial: CheckStatus,
    /// See [`crate::spec::Check`].
    pub(super) success_before_passing: u32,
    pub(super) failures_before_critical: u32,
    pub(super) failures_before_warning: Option<u32>,
}

/// Counts results in a row and derives the status of a check.
#[derive(Debug)]
pub(super) struct Counter {
    pace: Pace,
    status: CheckStatus,
    /// Results have led to the status; before that it is the initial one.
    is_found: bool,
    successes: u32,
    failures: u32,
}

impl Counter {
    pub(super) fn new(pace: Pace) -> Counter {
        Counter { pace, status: pace.initial, is_found: false, successes: 0, failures: 0 }
    }

    /// The status of the check after this result.
    pub(super) fn next(&mut self, result: CheckStatus) -> CheckStatus {
        let found = if matches!(result, CheckStatus::Passing | CheckStatus::Warning) {
            self.failures = 0;
            self.successes = self.successes.saturating_add(1);
            (self.successes >= self.pace.success_before_passing).then_some(result)
        } else {
            self.successes = 0;
            self.failures = self.failures.saturating_add(1);
            if self.failures >= self.pace.failures_before_critical {
                Some(CheckStatus::Critical)
            } else {
                let warns = self.pace.failures_before_warning.is_some_and(|most| self.failures >= most);
                warns.then_some(CheckStatus::Warning)
            }
        };
        self.is_found |= found.is_some();
        self.status = found.unwrap_or(self.status);
        self.status
    }
}

/// A check that repeats its probe.
pub(super) struct Trial {
    probe: Probe,
    inside: Inside,
    counter: Counter,
    ticks: Interval,
}

impl Trial {
    /// The first probe is due at once.
    pub(super) fn new(probe: Probe, pace: Pace, inside: Inside) -> Trial {
        let mut ticks = tokio::time::interval_at(Instant::now(), pace.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Trial { probe, inside, counter: Counter::new(pace), ticks }
    }

    /// Waits until the next probe is due, and probes. Returns the check's status, and the rest as the probe found it.
    pub(super) async fn next(&mut self) -> Found {
        self.ticks.tick().await;
        let (result, output, code) = self.probe.try_once(self.counter.pace.timeout, &self.inside).await;
        (self.counter.next(result), output, code)
    }

    /// Whether results have led to the check's status; before that it is the initial one.
    pub(super) const fn is_found(&self) -> bool {
        self.counter.is_found
    }
}

/// An error with all of its sources: libraries hide the cause there.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            let _ = write!(text, ": {next_text}");
        }
        cause = next.source();
    }
    text
}

/// Connects with TLS; `name` is the name that the server's certificate has to have.
async fn secured<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    stream: S,
    tls: rustls::ClientConfig,
    name: &str,
) -> io::Result<tokio_rustls::client::TlsStream<S>> {
    let bare = name.trim_start_matches('[').trim_end_matches(']').to_owned();
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is not a name for TLS"));
    let name = rustls::pki_types::ServerName::try_from(bare).map_err(wrong)?;
    tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await
}

/// A TLS client with this machine's certificate authorities.
async fn tls(skip_verify: bool, protocol: &[u8]) -> io::Result<rustls::ClientConfig> {
    let (_, text) = if skip_verify {
        Default::default()
    } else {
        use crate::artifact::{Surroundings, certificates};
        let reading = crate::sys::task::spawn_blocking(|| certificates(&Surroundings::of_this_process()));
        reading.await.map_err(io::Error::other)?.map_err(|error| {
            let fix = "install ca-certificates, name a file of them with SSL_CERT_FILE, or set tls_skip_verify = true";
            io::Error::new(error.kind(), format!("cannot read certificates of authorities: {error}; {fix}"))
        })?
    };
    let (mut config, _) = crate::artifact::tls_client(&text, skip_verify).map_err(io::Error::other)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use CheckStatus::{Critical, Passing, Pending, Warning};

    fn pace(success: u32, critical: u32, warning: Option<u32>) -> Pace {
        Pace {
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            initial: Pending,
            success_before_passing: success,
            failures_before_critical: critical,
            failures_before_warning: warning,
        }
    }

    #[test]
    fn j3_results_count_in_a_row() {
        let after = |pace: Pace, results: &[CheckStatus]| {
            let mut counter = Counter::new(pace);
            results.iter().map(|result| counter.next(*result)).collect::<Vec<_>>()
        };
        let at_once = pace(0, 0, None);
        assert_eq!(after(at_once, &[Passing, Warning, Critical, Passing]), [Passing, Warning, Critical, Passing]);
        assert_eq!(
            after(pace(2, 0, None), &[Passing, Passing, Critical, Passing]),
            [Pending, Passing, Critical, Critical]
        );
        assert_eq!(
            after(pace(0, 3, Some(2)), &[Passing, Critical, Critical, Critical, Passing, Critical]),
            [Passing, Passing, Warning, Critical, Passing, Passing]
        );
    }

    fn nowhere() -> Inside {
        Box::new(|| None)
    }

    fn here(port: u16) -> Target {
        Target { address: format!("127.0.0.1:{port}"), way: Way::Host }
    }

    #[tokio::test]
    async fn j3_tcp_and_what_does_not_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tcp = Probe::Tcp(here(port));
        let (status, output, _) = tcp.try_once(Duration::from_secs(30), &nowhere()).await;
        assert_eq!((status, output), (Passing, format!("nomad: tcp ok: 127.0.0.1:{port}")));
        // The server accepts and never answers.
        let http = Probe::Http(here(port), http::tests::get("/"));
        let (status, output, _) = http.try_once(Duration::from_millis(50), &nowhere()).await;
        assert_eq!((status, &*output), (Critical, "no answer within 50ms"));
        drop(listener);
        let (status, output, _) = tcp.try_once(Duration::from_secs(30), &nowhere()).await;
        assert!(status == Critical && output.contains("refused"), "{output}");
        let script = Probe::Script(vec!["x".to_owned()]);
        let (status, output, _) = script.try_once(Duration::from_secs(1), &nowhere()).await;
        assert_eq!((status, &*output), (Critical, "the task does not run"));
    }
}
