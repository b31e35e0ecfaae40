//! Tasks of tokio. Each type of future that is spawned has all the code of a task, some 1.5 KiB, so futures are boxed first: then
//! that code is there once for all that give the same.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// A future of which nothing is known but what it gives.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The future without its type, for a `JoinSet`.
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

/// As `tokio::spawn`.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(boxed(future))
}

/// As `tokio::task::spawn_blocking`.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let work: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(work)
}
