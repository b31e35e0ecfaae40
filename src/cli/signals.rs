//! The signals that end a run.

use std::io;

use crate::spec::Signal;
use crate::sys::{self, processes};

/// Catches Ctrl-C, SIGTERM, SIGHUP and SIGQUIT from its creation on; signals that arrive before the first `next` are kept.
///
/// SIGINT and SIGQUIT are caught even if a shell had them ignored for a background job: a signal that is sent to this very
/// process is intended. SIGHUP stays ignored under nohup.
#[derive(Debug)]
pub(super) struct Signals(sys::signals::Signals);

impl Signals {
    pub(super) fn catch() -> io::Result<Signals> {
        Signals::catch_with(&[])
    }

    /// Catches these as well.
    pub(super) fn catch_with(more: &[i32]) -> io::Result<Signals> {
        let ignored =
            std::fs::File::open("/proc/self/status").ok().and_then(|status| processes::said(status, "SigIgn"));
        let ignored = ignored.and_then(|said| u64::from_str_radix(&said, 16).ok()).unwrap_or(0);
        let hangup_ignored = ignored & (1 << (libc::SIGHUP - 1)) != 0;
        let mut caught = vec![libc::SIGINT, libc::SIGTERM, libc::SIGQUIT];
        if !hangup_ignored {
            caught.push(libc::SIGHUP);
        }
        caught.extend(more);
        sys::signals::Signals::catch(&caught).map(Signals)
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        loop {
            if let Some(signal) = Signal::from_number(self.0.next().await) {
                return signal;
            }
        }
    }
}
