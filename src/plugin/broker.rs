//! Extra connections between host and plugin, arranged over one stream (`GRPCBroker`).

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::connection::{self, Address, Incoming, Sockets};
use super::tls::Tls;
use crate::sys::lock::lock;
use crate::wire::Channel;
use crate::wire::goplugin::ConnInfo;

/// How long an announced connection waits to be dialled, and a dial waits for the announcement.
const PATIENCE: Duration = Duration::from_secs(5);

/// Lets either side serve further gRPC services to the other: one accepts an id, the other dials it.
///
/// The side that chose an id announces it to the other one in a separate message. All connections use the same TLS settings as the
/// main one. Multiplexing over the main connection is not offered; Nomad never asks for it.
#[derive(Debug)]
pub struct Broker {
    last_id: AtomicU32,
    sockets: Sockets,
    tls: Option<Tls>,
    plugin: Option<u32>,
    peer: Mutex<Option<mpsc::UnboundedSender<ConnInfo>>>,
    announced: Mutex<HashMap<u32, (ConnInfo, Instant)>>,
    news: Notify,
}

impl Broker {
    /// `plugin` is the uid of the process on the other side, if known.
    pub(super) fn new(sockets: Sockets, tls: Option<Tls>, plugin: Option<u32>) -> Broker {
        Broker {
            plugin,
            last_id: AtomicU32::new(0),
            sockets,
            tls,
            peer: Mutex::new(None),
            announced: Mutex::new(HashMap::new()),
            news: Notify::new(),
        }
    }

    /// A new id, starting from 1.
    pub fn next_id(&self) -> u32 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Listens for the other side to dial `id`, and sends it the address. Waits up to 5 s for its broker stream.
    ///
    /// # Errors
    /// When no socket can be bound, or `NotConnected` when the other side has no broker stream.
    pub async fn accept(&self, id: u32) -> io::Result<Incoming> {
        let incoming = Incoming::bind(&self.sockets, self.tls.clone())?;
        let info = ConnInfo {
            service_id: id,
            network: "unix".to_owned(),
            address: incoming.socket().to_string_lossy().into_owned(),
            knock: None,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let news = self.news.notified();
            if let Some(peer) = &*lock(&self.peer)
                && peer.send(info.clone()).is_ok()
            {
                return Ok(incoming);
            }
            if tokio::time::timeout_at(deadline, news).await.is_err() {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the other side has no broker stream"));
            }
        }
    }

    /// Connects to the listener that the other side announced for `id`, waiting up to 5 s for the announcement.
    ///
    /// # Errors
    /// `TimedOut` without an announcement, Unsupported for a network that is neither unix nor tcp, else what connecting says.
    pub async fn dial(&self, id: u32) -> io::Result<Channel> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let news = self.news.notified();
            let announced = lock(&self.announced).remove(&id);
            if let Some((info, _)) = announced {
                let address = Address::parse(&info.network, &info.address)
                    .map_err(|error| io::Error::new(io::ErrorKind::Unsupported, format!("broker id {id}: {error}")))?;
                return connection::dial(&address, self.tls.clone(), PATIENCE, self.plugin).await.map(Channel::from);
            }
            if tokio::time::timeout_at(deadline, news).await.is_err() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, format!("broker id {id} was not announced")));
            }
        }
    }

    pub(super) fn set_peer(&self, peer: mpsc::UnboundedSender<ConnInfo>) {
        *lock(&self.peer) = Some(peer);
        self.news.notify_waiters();
    }

    pub(super) fn received(&self, info: ConnInfo) {
        if info.knock.is_some() {
            // Multiplexing, which was not negotiated.
            return;
        }
        let now = Instant::now();
        let mut announced = lock(&self.announced);
        announced.retain(|_, (_, since)| now.duration_since(*since) < PATIENCE);
        announced.insert(info.service_id, (info, now));
        drop(announced);
        self.news.notify_waiters();
    }
}
