//! Signals for this process, received one after the other. signal-hook catches them; an async task waits for them.

use std::io;
use std::pin::Pin;

use signal_hook::consts::FORBIDDEN;
use tokio_stream::Stream as _;

/// Receives certain signals from its creation on, even if they were ignored. A signal that arrives before the first call of `next`
/// is kept, and several pending ones of the same kind count as one. `signal(7)`.
pub struct Signals(signal_hook_tokio::Signals);

impl Signals {
    /// Receives the signals with these numbers. Call it within a runtime.
    ///
    /// # Errors
    /// When a handler cannot be set, and for a number that cannot be caught, or must not be (SIGKILL, SIGSTOP, SIGSEGV, SIGILL,
    /// SIGFPE); when there is no descriptor left.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn catch(numbers: &[i32]) -> io::Result<Signals> {
        // signal-hook itself panics of them.
        if let Some(number) = numbers.iter().find(|number| FORBIDDEN.contains(number)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("signal {number} cannot be caught")));
        }
        signal_hook_tokio::Signals::new(numbers).map(Signals)
    }

    /// The number of the next signal. The future may be dropped and the method called again.
    pub async fn next(&mut self) -> i32 {
        loop {
            match std::future::poll_fn(|context| Pin::new(&mut self.0).poll_next(context)).await {
                Some(number) => return number,
                // It cannot be closed while it is borrowed here.
                None => std::future::pending().await,
            }
        }
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_cannot_be_caught_is_an_error() {
        for number in [libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE] {
            let error = Signals::catch(&[libc::SIGURG, number]).unwrap_err().to_string();
            assert!(error.contains(&format!("signal {number} ")), "{error}");
        }
    }

    #[tokio::test]
    async fn what_comes_before_it_is_asked_for_is_kept() {
        let mut signals = Signals::catch(&[libc::SIGURG, libc::SIGWINCH]).unwrap();
        // Sent to this thread: each has been handled when the call returns. A signal to the process may reach another thread, and
        // later.
        let send = |signal| signal_hook::low_level::raise(signal).unwrap();
        for signal in [libc::SIGWINCH, libc::SIGURG, libc::SIGWINCH] {
            send(signal);
        }
        let mut heard = [signals.next().await, signals.next().await];
        heard.sort_unstable();
        assert_eq!(heard, [libc::SIGURG, libc::SIGWINCH]);
        let more = tokio::time::timeout(std::time::Duration::from_millis(20), signals.next()).await;
        assert!(more.is_err(), "two of a kind are one: {more:?}");
        send(libc::SIGURG);
        assert_eq!(signals.next().await, libc::SIGURG);
    }
}
