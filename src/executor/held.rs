//! Keeps the call of a session open behind the session's last message.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::Status;

use super::{ExecRequests, ExecResponses};
use crate::sys::lock::lock;
use crate::wire::drivers::{ExecTaskStreamingRequest, ExecTaskStreamingResponse};

/// How long a call stays open behind its last message for a caller that may still send.
const PATIENCE: Duration = Duration::from_millis(500);

/// Runs a session, and keeps its call open behind the session's status, or behind its error, until the caller has nothing more
/// to send: its input is closed, or it is gone, or half a second has passed.
///
/// A call that is over refuses what its caller still sends, and Nomad's hosts take a refused message for the end of the whole
/// session, also if they have not read yet what was sent to them before: a short command whose caller closes the input at the
/// moment at which it ends would end with `EOF`, without output and status. A host that got the status does not wait for the
/// end of the call.
///
/// # Errors
/// Those of `run`.
pub(crate) async fn open<E, F>(requests: ExecRequests, run: impl FnOnce(ExecRequests) -> F) -> Result<ExecResponses, E>
where
    F: Future<Output = Result<ExecResponses, E>>,
{
    let input = Input(Arc::new(Mutex::new((requests, false))));
    match run(Box::pin(input.clone())).await {
        Ok(responses) => Ok(Box::pin(Held { input, state: State::Running(responses) })),
        Err(error) => {
            let _may_still_send = tokio::time::timeout(PATIENCE, poll_fn(|context| input.poll_over(context))).await;
            Err(error)
        }
    }
}

/// The caller's messages, which the session reads first and then whoever waits for their end, and whether that was seen.
#[derive(Clone)]
struct Input(Arc<Mutex<(ExecRequests, bool)>>);

impl Input {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<ExecTaskStreamingRequest, Status>>> {
        let (requests, over) = &mut *lock(&self.0);
        let next = ready!(requests.as_mut().poll_next(context));
        *over |= match &next {
            Some(Ok(request)) => request.stdin.as_ref().is_some_and(|stdin| stdin.close),
            Some(Err(_)) | None => true,
        };
        Poll::Ready(next)
    }

    /// Reads what nobody needs any more until there is nothing more to come.
    fn poll_over(&self, context: &mut Context<'_>) -> Poll<()> {
        while !lock(&self.0).1 {
            let _unread = ready!(self.poll(context));
        }
        Poll::Ready(())
    }
}

impl Stream for Input {
    type Item = Result<ExecTaskStreamingRequest, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context)
    }
}

/// A session's responses; dropping them ends the session.
struct Held {
    input: Input,
    state: State,
}

enum State {
    Running(ExecResponses),
    /// The session has ended, with this error; until the timeout its caller may send.
    Ended(Pin<Box<Sleep>>, Option<Status>),
    Over,
}

impl Stream for Held {
    type Item = Result<ExecTaskStreamingResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Held { input, state } = &mut *self;
        if let State::Running(responses) = state {
            let next = ready!(responses.as_mut().poll_next(context));
            let ended = |error| State::Ended(Box::pin(tokio::time::sleep(PATIENCE)), error);
            match next {
                Some(Ok(response)) => {
                    if response.exited {
                        *state = ended(None);
                    }
                    return Poll::Ready(Some(Ok(response)));
                }
                Some(Err(error)) => *state = ended(Some(error)),
                None => *state = State::Over,
            }
        }
        if let State::Ended(timeout, error) = state {
            if input.poll_over(context).is_pending() {
                ready!(timeout.as_mut().poll(context));
            }
            let error = error.take();
            *state = State::Over;
            return Poll::Ready(error.map(Err));
        }
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;
    use tokio_stream::StreamExt as _;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;
    use crate::executor::ExecutorError;
    use crate::wire::drivers::{ExecTaskStreamingIoOperation, ExitResult};

    type Sender = mpsc::Sender<Result<ExecTaskStreamingRequest, Status>>;

    #[expect(clippy::unnecessary_wraps, reason = "a message of the caller's stream")]
    fn input(data: &str, close: bool) -> Result<ExecTaskStreamingRequest, Status> {
        let stdin = Some(ExecTaskStreamingIoOperation { data: data.into(), close });
        Ok(ExecTaskStreamingRequest { stdin, ..Default::default() })
    }

    #[expect(clippy::unnecessary_wraps, reason = "a message of the session's stream")]
    fn status() -> Result<ExecTaskStreamingResponse, Status> {
        Ok(ExecTaskStreamingResponse { exited: true, result: Some(ExitResult::default()), ..Default::default() })
    }

    #[expect(clippy::unnecessary_wraps, reason = "what a session returns")]
    fn answers(
        responses: impl Stream<Item = Result<ExecTaskStreamingResponse, Status>> + Send + 'static,
    ) -> Result<ExecResponses, ExecutorError> {
        Ok(Box::pin(responses))
    }

    /// A session that reads nothing, gives these responses and is over, with its caller's end.
    async fn session(responses: Vec<Result<ExecTaskStreamingResponse, Status>>) -> (Sender, ExecResponses) {
        let (sender, requests) = mpsc::channel(4);
        let run = async |_: ExecRequests| answers(tokio_stream::iter(responses));
        (sender, open(Box::pin(ReceiverStream::new(requests)), run).await.unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_may_close_its_input_behind_the_status() {
        let (sender, mut responses) = session(vec![Ok(ExecTaskStreamingResponse::default()), status()]).await;
        assert!(!responses.next().await.unwrap().unwrap().exited);
        // The status does not wait for anything.
        let began = Instant::now();
        assert!(responses.next().await.unwrap().unwrap().exited);
        assert_eq!(began.elapsed(), Duration::ZERO);
        // What comes after it is taken, whatever it is, and its end ends the call.
        let send = async {
            tokio::time::sleep(PATIENCE / 2).await;
            sender.send(Ok(ExecTaskStreamingRequest::default())).await.unwrap();
            sender.send(input("late", false)).await.unwrap();
            sender.send(input("", true)).await.unwrap();
        };
        let (end, ()) = tokio::join!(responses.next(), send);
        assert!(end.is_none());
        assert_eq!(began.elapsed(), PATIENCE / 2);
        assert!(responses.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_says_nothing_more_does_not_keep_the_call() {
        let (_sender, mut responses) = session(vec![status()]).await;
        let began = Instant::now();
        assert!(responses.next().await.is_some());
        assert!(responses.next().await.is_none());
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_done_waits_for_nothing() {
        let lost = || Err(Status::cancelled("gone"));
        for last in [None, Some(input("", true)), Some(lost())] {
            let (sender, requests) = mpsc::channel(4);
            if let Some(last) = last {
                sender.send(last).await.unwrap();
            }
            drop(sender);
            let began = Instant::now();
            // Whether the session has read the end or not.
            let reads = async |mut requests: ExecRequests| {
                let _the_end = requests.next().await;
                answers(tokio_stream::iter([status()]))
            };
            let responses = open(Box::pin(ReceiverStream::new(requests)), reads).await.unwrap();
            assert_eq!(responses.collect::<Vec<_>>().await.len(), 1);
            let (sender, responses) = session(vec![status()]).await;
            drop(sender);
            assert_eq!(responses.collect::<Vec<_>>().await.len(), 1);
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_held_back_until_the_caller_cannot_miss_it() {
        let (sender, mut responses) = session(vec![Err(Status::unknown("broken"))]).await;
        let send = async {
            tokio::time::sleep(PATIENCE / 5).await;
            sender.send(input("", true)).await.unwrap();
        };
        let began = Instant::now();
        let (error, ()) = tokio::join!(responses.next(), send);
        assert_eq!(error.unwrap().unwrap_err().message(), "broken");
        assert_eq!(began.elapsed(), PATIENCE / 5);
        assert!(responses.next().await.is_none());

        // Also that of a session that never came to be.
        let (sender, requests) = mpsc::channel(4);
        let run = async |_: ExecRequests| Err(ExecutorError::System("no".to_owned()));
        let began = Instant::now();
        assert!(open(Box::pin(ReceiverStream::new(requests)), run).await.is_err());
        assert_eq!(began.elapsed(), PATIENCE);
        drop(sender);
    }

    #[tokio::test(start_paused = true)]
    async fn the_session_ends_with_its_responses() {
        let (told, gone) = tokio::sync::oneshot::channel::<()>();
        let (_sender, requests) = mpsc::channel(4);
        let run = async |_: ExecRequests| {
            answers(tokio_stream::pending().map(move |()| {
                let _held = &told;
                status()
            }))
        };
        let responses = open(Box::pin(ReceiverStream::new(requests)), run).await.unwrap();
        drop(responses);
        gone.await.unwrap_err();
    }
}
