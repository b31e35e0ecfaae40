//! The signals that end a run.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::spec::Signal;

/// Catches Ctrl-C, SIGTERM, SIGHUP and SIGQUIT from its making on; one that comes before anybody asks is kept.
///
/// What whoever started us wants ignored (nohup, a background job of a shell) stays ignored.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub(super) fn catch() -> io::Result<Signals> {
        let ignored = procfs::process::Process::myself().and_then(|p| p.status()).map_or(0, |s| s.sigign);
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let mut caught = Vec::new();
        for kind in kinds {
            let number = kind.as_raw_value();
            if let Some(name) = Signal::from_number(number)
                && ignored & (1 << (number - 1)) == 0
            {
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
