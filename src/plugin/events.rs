//! A process that logs events and has no spans. The registry of spans that `tracing-subscriber` has would take 32 KiB of each
//! executor's memory.

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};

/// What a process does with its events.
pub(crate) trait Listener: Send + Sync + 'static {
    /// Whether events of this kind are heard.
    fn wants(&self, metadata: &Metadata<'_>) -> bool;

    /// Hears an event.
    fn hear(&self, event: &Event<'_>);
}

/// Has all events of this process heard. Does nothing if the program has set a subscriber before, which stays.
pub(crate) fn listen(listener: impl Listener) {
    let _set_before = tracing::subscriber::set_global_default(Subscriber(Box::new(listener)));
}

/// A subscriber without spans.
pub(super) struct Subscriber(pub(super) Box<dyn Listener>);

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.wants(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        self.0.hear(event);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
