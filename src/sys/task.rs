//! Tasks of tokio. The task code is instantiated for each type of future that is spawned, some 1.5 KiB each, so futures are boxed
//! first: then there is one instance for each output type.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// A boxed future, known only by its output type.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Boxes a future, for a `JoinSet`.
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
