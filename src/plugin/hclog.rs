//! Writes and parses hclog's JSON lines.

use std::fmt::Write as _;
use std::io::Write;
use std::sync::Mutex;
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing_subscriber::layer::Context;

use super::events::{Listener, listen};

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "hclog's level names")]
pub enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    /// hclog's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    /// Parses hclog's name, in upper or lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Level> {
        let name = name.trim();
        [Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error]
            .into_iter()
            .find(|l| l.as_str().eq_ignore_ascii_case(name))
    }
}

impl From<&tracing::Level> for Level {
    fn from(level: &tracing::Level) -> Level {
        match *level {
            tracing::Level::TRACE => Level::Trace,
            tracing::Level::DEBUG => Level::Debug,
            tracing::Level::INFO => Level::Info,
            tracing::Level::WARN => Level::Warn,
            tracing::Level::ERROR => Level::Error,
        }
    }
}

/// A `tracing` layer that writes each event as one hclog JSON line.
///
/// Errors of writing are ignored: after an agent restart the other end of stderr is gone, and logging must never disturb a task.
pub struct HclogLayer<W> {
    module: String,
    least: Level,
    out: Mutex<W>,
}

impl<W: Write> HclogLayer<W> {
    /// Writes lines to `out` under the logger name `module`, from severity `least` on.
    pub fn new(module: &str, least: Level, out: W) -> HclogLayer<W> {
        HclogLayer { module: module.to_owned(), least, out: Mutex::new(out) }
    }
}

impl<W: Write + Send + 'static> Listener for HclogLayer<W> {
    fn wants(&self, metadata: &tracing::Metadata<'_>) -> bool {
        // Log lines of libraries (h2, hyper) are of no use to an operator.
        metadata.target().starts_with(env!("CARGO_PKG_NAME")) && Level::from(metadata.level()) >= self.least
    }

    fn hear(&self, event: &tracing::Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = serde_json::Map::new();
        line.insert("@level".into(), Level::from(event.metadata().level()).as_str().into());
        line.insert("@message".into(), fields.message.into());
        line.insert("@module".into(), self.module.clone().into());
        line.insert("@timestamp".into(), timestamp(SystemTime::now()).into());
        line.extend(fields.pairs);
        let mut bytes = if crate::sys::mutant::on("c14") {
            line.values().filter_map(|value| value.as_str()).collect::<Vec<_>>().join(" ").into_bytes()
        } else {
            serde_json::Value::Object(line).to_string().into_bytes()
        };
        bytes.push(b'\n');
        if let Ok(mut out) = self.out.lock() {
            // One write per line, so that lines of several threads never mix and a crash leaves no partial line.
            let _ = out.write_all(&bytes);
        }
    }
}

impl<S, W> tracing_subscriber::Layer<S> for HclogLayer<W>
where
    S: tracing::Subscriber,
    W: Write + Send + 'static,
{
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        self.hear(event);
    }
}

/// Logs the events of this process as [`HclogLayer`] does, unless the program has set a subscriber before.
pub(crate) fn start_logging(module: &str, least: Level, out: impl Write + Send + 'static) {
    listen(HclogLayer::new(module, least, out));
}

#[derive(Default)]
struct Fields {
    message: String,
    pairs: Vec<(String, serde_json::Value)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.pairs.push((field.name().to_owned(), value.into()));
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.pairs.push((field.name().to_owned(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.pairs.push((field.name().to_owned(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.pairs.push((field.name().to_owned(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let mut text = String::new();
        let _ = write!(text, "{value:?}");
        self.record_str(field, &text);
    }
}

/// hclog's time format. Go hosts treat a line as unparsable unless the fraction has exactly six digits.
fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_micros(time).to_string()
}

/// A line of a plugin's stderr, as parsed by its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HclogLine {
    /// Severity; debug for a line without one.
    pub level: Level,
    /// The message, or the whole line.
    pub message: String,
    /// The other keys and their values, in order.
    pub pairs: Vec<(String, String)>,
}

impl HclogLine {
    /// Parses a single line: a JSON object, or text with an optional `[LEVEL]` prefix.
    #[must_use]
    pub fn parse(line: &str) -> HclogLine {
        HclogLines::default().next(line)
    }

    fn parse_json(line: &str) -> Option<HclogLine> {
        let serde_json::Value::Object(mut object) = serde_json::from_str(line).ok()? else { return None };
        let level = Level::from_name(object.remove("@level")?.as_str()?)?;
        let Some(serde_json::Value::String(message)) = object.remove("@message") else { return None };
        let pairs = object.into_iter().map(|(key, value)| {
            // A re-logged line gets a new time.
            let key = if key == "@timestamp" { "timestamp".to_owned() } else { key };
            match value {
                serde_json::Value::String(text) => (key, text),
                other => (key, other.to_string()),
            }
        });
        Some(HclogLine { level, message, pairs: pairs.collect() })
    }
}

/// The lines of one plugin, in order: text after the first line of a Go panic belongs to the panic.
#[derive(Debug, Default)]
pub struct HclogLines {
    panicking: bool,
}

impl HclogLines {
    /// Parses the next line.
    pub fn next(&mut self, line: &str) -> HclogLine {
        let line = line.trim_end_matches(['\r', '\n']);
        HclogLine::parse_json(line).unwrap_or_else(|| self.text(line))
    }

    fn text(&mut self, line: &str) -> HclogLine {
        let prefixes = [
            ("[TRACE]", Level::Trace),
            ("[DEBUG]", Level::Debug),
            ("[INFO]", Level::Info),
            ("[WARN]", Level::Warn),
            ("[ERROR]", Level::Error),
        ];
        self.panicking |= line.starts_with("panic: ") || line.starts_with("fatal error: ");
        let prefixed = prefixes.into_iter().find_map(|(prefix, level)| Some((level, line.strip_prefix(prefix)?)));
        let (level, message) = match prefixed {
            Some((level, rest)) => (level, rest.trim_start()),
            None if self.panicking => (Level::Error, line),
            None => (Level::Debug, line),
        };
        HclogLine { level, message: message.to_owned(), pairs: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::events;
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A3: the three keys are strings (a number panics a Go host), six fraction digits, one line each.
    #[test]
    fn events_become_hclog_lines() {
        let (sink, alone) = (Sink::default(), Sink::default());
        let layer = |sink: &Sink| HclogLayer::new("executor", Level::Debug, sink.clone());
        let said = || {
            let _inside = tracing::info_span!("of no interest").entered();
            tracing::info!(pid = 7, user = "a\"b", "launched\nit");
            tracing::info!(target: "h2", "a library's");
            tracing::trace!("below the level");
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer(&sink)), said);
        tracing::subscriber::with_default(events::Subscriber(Box::new(layer(&alone))), said);
        let text = |sink: &Sink| String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text(&sink).len(), text(&alone).len());
        let text = text(&alone);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["@level"], "info");
        assert_eq!(value["@message"], "launched\nit");
        assert_eq!(value["@module"], "executor");
        assert_eq!(value["pid"], 7);
        let time = value["@timestamp"].as_str().unwrap();
        assert_eq!((time.len(), &time[19..20], &time[26..]), (27, ".", "Z"), "{time}");
        let line = HclogLine::parse(&text);
        assert_eq!((line.level, line.message.as_str()), (Level::Info, "launched\nit"));
        assert!(line.pairs.contains(&("user".into(), "a\"b".into())));
    }

    #[test]
    fn other_lines_keep_their_text() {
        let line = |text| {
            let line = HclogLine::parse(text);
            (line.level, line.message)
        };
        assert_eq!(line("[WARN] careful"), (Level::Warn, "careful".into()));
        assert_eq!(line("plain"), (Level::Debug, "plain".into()));
        assert_eq!(line("panic: no"), (Level::Error, "panic: no".into()));
        assert_eq!(line(r#"{"@level":5,"@message":"x"}"#), (Level::Debug, r#"{"@level":5,"@message":"x"}"#.into()));
        assert_eq!(line("[1,2]"), (Level::Debug, "[1,2]".into()));
    }

    /// A3: a stack trace stays together.
    #[test]
    fn text_after_a_panic_is_part_of_it() {
        let mut lines = HclogLines::default();
        let levels: Vec<Level> = ["before", "panic: no", "", "goroutine 1 [running]:", "[INFO] own", "main.main()"]
            .map(|line| lines.next(line).level)
            .to_vec();
        assert_eq!(levels, [Level::Debug, Level::Error, Level::Error, Level::Error, Level::Info, Level::Error]);
        assert_eq!(
            lines.next(r#"{"@level":"warn","@message":"x","@timestamp":"t"}"#).pairs,
            [("timestamp".to_owned(), "t".to_owned())]
        );
        assert_eq!(HclogLine::parse("plain").level, Level::Debug);
    }
}
