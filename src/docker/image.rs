use std::fs::File;
use std::io::{self, Read as _};

use bollard::models::CreateImageInfo;
use bollard::query_parameters::{CreateImageOptions, ImportImageOptions, RemoveImageOptions};
use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};

use super::meter::{Allowance, MAX_RIDDLE};
use super::{Credentials, Engine, EngineError};

/// What the engine says while it fetches an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Which layer; empty when it speaks of the image.
    pub layer: String,
    /// In words, such as `Downloading`.
    pub status: String,
    /// Bytes so far.
    pub current: u64,
    /// Bytes in all; 0 when that is not known.
    pub total: u64,
}

/// Size of the pieces in which an archive is sent.
const PIECE: usize = 256 * 1024;

impl Engine {
    /// The id of an image that is there.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn image(&self, name: &str) -> Result<Option<String>, EngineError> {
        let call = self.client.inspect_image(name);
        match self.within("inspect the image", self.deadlines.ask, call).await {
            Ok(image) => Ok(image.id),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fetches an image; it is there when the stream has ended without an error. No deadline.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn pull(
        &self,
        repository: &str,
        tag: &str,
        credentials: Option<Credentials>,
    ) -> Result<impl Stream<Item = Result<Progress, EngineError>> + use<>, EngineError> {
        let options = CreateImageOptions {
            from_image: Some(repository.to_owned()),
            tag: Some(tag.to_owned()),
            ..CreateImageOptions::default()
        };
        let allowance = Allowance::new(MAX_RIDDLE);
        let stream = self.connector.client(Some(allowance.clone()))?.create_image(Some(options), None, credentials);
        Ok(stream.map(move |said| {
            allowance.renew();
            said.map(progress).map_err(|error| EngineError::of("pull the image", error))
        }))
    }

    /// Loads an archive that `docker save` wrote. No deadline: it takes as long as the archive is large.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn load(&self, mut archive: File) -> Result<(), EngineError> {
        let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(2);
        let reading = tokio::task::spawn_blocking(move || {
            loop {
                let mut piece = vec![0; PIECE];
                let piece = match archive.read(&mut piece) {
                    Ok(0) => return,
                    Ok(length) => {
                        piece.truncate(length);
                        Ok(Bytes::from(piece))
                    }
                    Err(error) => Err(error),
                };
                let failed = piece.is_err();
                if sender.blocking_send(piece).is_err() || failed {
                    return;
                }
            }
        });
        let allowance = Allowance::new(MAX_RIDDLE);
        let client = self.connector.client(Some(allowance.clone()))?;
        let stream = client.import_image_stream(ImportImageOptions::default(), ReceiverStream::new(pieces), None);
        let mut said = std::pin::pin!(stream);
        while let Some(said) = said.next().await {
            allowance.renew();
            said.map_err(|error| EngineError::of("load the image", error))?;
        }
        let _ended = reading.await;
        Ok(())
    }

    /// Removes an image; a conflict when a container uses it.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn remove_image(&self, id: &str) -> Result<(), EngineError> {
        let options = RemoveImageOptions { force: true, ..RemoveImageOptions::default() };
        let call = self.client.remove_image(id, Some(options), None);
        self.within("remove the image", self.deadlines.change, call).await.map(drop)
    }
}

fn progress(info: CreateImageInfo) -> Progress {
    let detail = info.progress_detail.unwrap_or_default();
    let number = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    Progress {
        layer: info.id.unwrap_or_default(),
        status: info.status.unwrap_or_default(),
        current: number(detail.current),
        total: number(detail.total),
    }
}
