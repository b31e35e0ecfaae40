//! The agent's own log: lines on standard error, which a service manager collects.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

use tokio::sync::broadcast;
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

use crate::agent::api::{LogLine, followed_level};
use crate::plugin::{Listener, listen};
use crate::spec::escaped_lines;

/// Writes each event of this program as one line.
struct Lines {
    /// For clients that follow the log over the API.
    followed: broadcast::Sender<LogLine>,
}

/// How many lines are buffered for a slow follower, which loses the oldest ones.
const FOLLOWED: usize = 256;

impl Listener for Lines {
    fn wants(&self, metadata: &tracing::Metadata<'_>) -> bool {
        let most = followed_level().map_or(least(), |level| level.max(least()));
        // Messages of libraries are not meant for operators.
        *metadata.level() <= most && metadata.target().starts_with(env!("CARGO_PKG_NAME"))
    }

    fn hear(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        let level = event.metadata().level();
        let line = format!("{time} [{level}] {}{}", said.message, said.fields);
        let line = format!("{}\n", escaped_lines(&line).replace('\n', "\\n"));
        if *level <= least() {
            // The reader of stderr may be gone, which must not affect a task.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
        if self.followed.receiver_count() > 0 {
            let _ = self.followed.send(LogLine { level: *level, text: line.into() });
        }
    }
}

#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

/// The minimum level of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Least {
    /// Everything
    Debug,
    /// What happens
    Info,
    /// What is odd
    Warn,
    /// What went wrong
    Error,
}

/// The minimum level now: a [`Least`] as a number.
static LEAST: AtomicU8 = AtomicU8::new(Least::Info as u8);

fn least() -> Level {
    match LEAST.load(Ordering::Relaxed) {
        0 => Level::DEBUG,
        1 => Level::INFO,
        2 => Level::WARN,
        _ => Level::ERROR,
    }
}

/// Changes the minimum level.
pub(super) fn set(least: Least) {
    LEAST.store(least as u8, Ordering::Relaxed);
    // What was not enabled before is asked again.
    tracing::callsite::rebuild_interest_cache();
}

/// Starts to log the messages of this process. Subscribers of the returned channel get them, too.
pub(super) fn start(least: Option<Least>) -> broadcast::Sender<LogLine> {
    LEAST.store(least.unwrap_or(Least::Info) as u8, Ordering::Relaxed);
    let (followed, _) = broadcast::channel(FOLLOWED);
    listen(Lines { followed: followed.clone() });
    followed
}
