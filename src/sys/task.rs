//! Tasks of tokio. The task code is instantiated for each type of future that is spawned and for each type of output, some 1.5 KiB
//! each, so both are boxed: then there is one instance for tasks and one for blocking work.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinError};

/// A boxed future, known only by its output type.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Boxes a future, for a `JoinSet`.
pub fn boxed<T>(future: impl Future<Output = T> + Send + 'static) -> Boxed<T> {
    Box::pin(future)
}

type Output = Box<dyn Any + Send>;

/// As tokio's `JoinHandle`: waits for a task, which goes on if this is dropped.
pub struct JoinHandle<T> {
    task: tokio::task::JoinHandle<Output>,
    output: PhantomData<fn() -> T>,
}

impl<T> JoinHandle<T> {
    fn new(task: tokio::task::JoinHandle<Output>) -> JoinHandle<T> {
        JoinHandle { task, output: PhantomData }
    }

    /// Ends the task where it waits next. Blocking work that has begun goes on.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// What can end the task without waiting for it.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.task.abort_handle()
    }

    /// Whether the task has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }
}

impl<T: 'static> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let output = ready!(Pin::new(&mut self.task).poll(context));
        Poll::Ready(output.map(|output| *output.downcast().expect("a task's output is of its handle's type")))
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.task.fmt(f)
    }
}

/// A task whose output is boxed.
struct Erased<T>(Boxed<T>);

impl<T: Send + 'static> Future for Erased<T> {
    type Output = Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Output> {
        self.0.as_mut().poll(context).map(|output| Box::new(output) as Output)
    }
}

/// As `tokio::spawn`.
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    JoinHandle::new(tokio::spawn(boxed(Erased(boxed(future)))))
}

/// As `tokio::task::spawn_blocking`.
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    JoinHandle::new(erased(Box::new(work)))
}

fn erased<T: Send + 'static>(work: Box<dyn FnOnce() -> T + Send>) -> tokio::task::JoinHandle<Output> {
    let work: Box<dyn FnOnce() -> Output + Send> = Box::new(move || Box::new(work()));
    tokio::task::spawn_blocking(work)
}

/// As `Runtime::block_on`, whose code, some 2 KiB, is instantiated for each type of future.
pub fn block_on<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    let mut output = None;
    {
        let work: Pin<&mut dyn Future<Output = ()>> = std::pin::pin!(async { output = Some(future.await) });
        runtime.block_on(work);
    }
    output.expect("a future that has ended has an output")
}
