//! The signals that end a run.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::spec::Signal;

/// Catches Ctrl-C, SIGTERM, SIGHUP and SIGQUIT from its making on; one that comes before anybody asks is kept.
///
/// SIGINT and SIGQUIT also where a shell had them ignored for a background job: whoever sends one to this very process
/// means it. SIGHUP stays ignored under nohup.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub(super) fn catch() -> io::Result<Signals> {
        let ignored = procfs::process::Process::myself().and_then(|p| p.status()).map_or(0, |s| s.sigign);
        let hangup_ignored = ignored & (1 << (libc::SIGHUP - 1)) != 0;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::quit(), SignalKind::hangup()];
        let mut caught = Vec::new();
        for kind in kinds {
            if kind == SignalKind::hangup() && hangup_ignored {
                continue;
            }
            if let Some(name) = Signal::from_number(kind.as_raw_value()) {
                caught.push((name, signal(kind)?));
            }
        }
        Ok(Signals(caught))
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|context| {
            for (name, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return std::task::Poll::Ready(*name);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
