//! Extra connections between host and plugin, arranged over one stream (`GRPCBroker`).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tonic::transport::Channel;

use super::host::dial_socket;
use super::server::{bind_socket, socket_dir};
use crate::sys::lock::lock;
use crate::wire::goplugin::ConnInfo;

/// How long an announced connection waits for the side that wants it, and the other way round.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets either side serve further gRPC services to the other: one accepts an id, the other dials it.
///
/// The side that chose an id tells the other one in a message of its own. Multiplexing over the main connection is not
/// offered; Nomad never asks for it.
#[derive(Debug)]
pub struct Broker {
    last_id: AtomicU32,
    dir: PathBuf,
    peer: Mutex<Option<mpsc::UnboundedSender<ConnInfo>>>,
    announced: Mutex<HashMap<u32, (ConnInfo, Instant)>>,
    news: Notify,
}

impl Broker {
    pub(super) fn new() -> Broker {
        Broker {
            last_id: AtomicU32::new(0),
            dir: socket_dir(),
            peer: Mutex::new(None),
            announced: Mutex::new(HashMap::new()),
            news: Notify::new(),
        }
    }

    /// A fresh id, from 1.
    pub fn next_id(&self) -> u32 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Listens for the other side to dial `id`, and tells it where.
    ///
    /// # Errors
    /// When no socket can be bound, or `NotConnected` while the other side has opened no broker stream.
    pub fn accept(&self, id: u32) -> io::Result<UnixListener> {
        let (listener, path) = bind_socket(&self.dir, None)?;
        self.announce(id, &path)?;
        listener.set_nonblocking(true)?;
        UnixListener::from_std(listener)
    }

    fn announce(&self, id: u32, path: &Path) -> io::Result<()> {
        let info = ConnInfo {
            service_id: id,
            network: "unix".to_owned(),
            address: path.to_string_lossy().into_owned(),
            knock: None,
        };
        let peer = lock(&self.peer);
        let sent = peer.as_ref().is_some_and(|peer| peer.send(info).is_ok());
        if sent {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NotConnected, "the other side has no broker stream"))
        }
    }

    /// Connects to what the other side accepts under `id`, waiting up to 5 s for its announcement.
    ///
    /// # Errors
    /// `TimedOut` without an announcement, Unsupported for anything but a unix socket, else what connecting says.
    pub async fn dial(&self, id: u32) -> io::Result<Channel> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let news = self.news.notified();
            let announced = lock(&self.announced).remove(&id);
            if let Some((info, _)) = announced {
                if info.network != "unix" {
                    return Err(io::Error::new(
                        io::ErrorKind::Unsupported,
                        format!("broker network {:?}", info.network),
                    ));
                }
                return dial_socket(Path::new(&info.address)).await.map_err(io::Error::other);
            }
            if tokio::time::timeout_at(deadline, news).await.is_err() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("broker id {id} was not announced")));
            }
        }
    }

    pub(super) fn set_peer(&self, peer: mpsc::UnboundedSender<ConnInfo>) {
        *lock(&self.peer) = Some(peer);
    }

    pub(super) fn received(&self, info: ConnInfo) {
        let now = Instant::now();
        let mut announced = lock(&self.announced);
        announced.retain(|_, (_, since)| now.duration_since(*since) < PATIENCE);
        announced.insert(info.service_id, (info, now));
        drop(announced);
        self.news.notify_waiters();
    }
}
