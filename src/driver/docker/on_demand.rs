//! A container's output from the engine's log, for whoever asks while nobody collects it. Never writes it anywhere.

use std::io;

use tokio::sync::mpsc;

use super::{Shared, image};
use crate::docker::logs::{Channel, Decoder, LogStream};
use crate::driver::{DriverError, KeptOutput};
use crate::logs::ship::Stream;

impl Shared {
    /// See [`Driver::kept_output`](super::Driver::kept_output).
    pub(super) async fn kept_output(&self, id: &str, stream: Stream, follow: bool) -> Result<KeptOutput, DriverError> {
        let (life, task) = (self.life()?, self.task(id)?);
        let log = life.engine.logs(&task.container, 0, follow).await.map_err(|e| image::unknown(&e))?;
        let (sender, output) = KeptOutput::channel();
        let wanted = if stream == Stream::Stderr { Channel::Stderr } else { Channel::Stdout };
        let decoder = Decoder::new(task.own.tty);
        crate::sys::task::spawn(async move {
            if let Err(error) = pass_on(log, decoder, wanted, &sender).await {
                // The reader may be gone.
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(output)
    }
}

/// Ends with the log, or when nobody reads it any more.
async fn pass_on(
    mut log: LogStream,
    mut decoder: Decoder,
    wanted: Channel,
    sender: &mpsc::Sender<io::Result<Vec<u8>>>,
) -> io::Result<()> {
    loop {
        let bytes = tokio::select! {
            bytes = log.next() => bytes.map_err(io::Error::other)?,
            () = sender.closed() => return Ok(()),
        };
        let Some(bytes) = bytes else { break };
        decoder.push(&bytes);
        while let Some(message) = decoder.next_message().map_err(io::Error::other)? {
            if message.channel == wanted && sender.send(Ok(message.data)).await.is_err() {
                return Ok(());
            }
        }
    }
    if let Some(message) = decoder.finish().filter(|message| message.channel == wanted) {
        // The reader may be gone.
        let _ = sender.send(Ok(message.data)).await;
    }
    Ok(())
}
