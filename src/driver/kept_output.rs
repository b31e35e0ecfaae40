//! Output of a task that its driver keeps, read by whoever asks for it. Never stored here.

use std::io;

use tokio::sync::mpsc;

/// Pieces that may wait for their reader.
const QUEUE: usize = 4;

/// One stream of a task's output, from its beginning on, as far as the driver has kept it.
#[derive(Debug)]
pub struct KeptOutput(mpsc::Receiver<io::Result<Vec<u8>>>);

impl KeptOutput {
    /// The output, and the end that a driver writes it to. Once the output is dropped, the sender is closed.
    #[must_use]
    pub fn channel() -> (mpsc::Sender<io::Result<Vec<u8>>>, KeptOutput) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (sender, KeptOutput(receiver))
    }

    /// The next piece; `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// The driver cannot read more of it.
    pub async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.0.recv().await.transpose()
    }
}
