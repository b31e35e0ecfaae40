//! Calls of the generated services as bytes. tonic has all the code of a call for each type of message; here a call carries bytes,
//! and a method adds how its messages become those. `build.rs` puts this between the generated code and tonic.
//!
//! Where messages come in a stream, the generated code asks for tonic's own type of it: those few methods are tonic's.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;

use prost::Message;
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::codec::{DecodeBuf, Decoder, EnabledCompressionEncodings, EncodeBuf, Encoder};
use tonic::codegen::{Body as HttpBody, StdError, http};
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, client};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_prost::ProstCodec;

use super::Channel;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// A call with one answer.
pub(crate) type Answering<T> = Boxed<Result<Response<T>, Status>>;
type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct Codec;

impl tonic::codec::Codec for Codec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Codec;
    type Decoder = Codec;

    fn encoder(&mut self) -> Codec {
        Codec
    }

    fn decoder(&mut self) -> Codec {
        Codec
    }
}

impl Encoder for Codec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(message);
        Ok(())
    }
}

impl Decoder for Codec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(message.copy_to_bytes(message.remaining())))
    }
}

fn write<M: Message>(message: &M) -> Bytes {
    message.encode_to_vec().into()
}

fn read<M: Message + Default>(message: &Bytes) -> Result<M, Status> {
    M::decode(&message[..]).map_err(|error| Status::internal(error.to_string()))
}

/// A method with one answer.
struct Unary(Box<dyn FnMut(Request<Bytes>) -> Answering<Bytes> + Send>);

impl UnaryService<Bytes> for Unary {
    type Response = Bytes;
    type Future = Answering<Bytes>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        (self.0)(request)
    }
}

/// A method with many.
struct Many(Box<dyn FnMut(Request<Bytes>) -> Answering<Messages> + Send>);

impl ServerStreamingService<Bytes> for Many {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Answering<Messages>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        (self.0)(request)
    }
}

async fn answer_one<B>(mut grpc: Grpc<Codec>, method: Unary, request: http::Request<B>) -> http::Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    grpc.unary(method, request).await
}

async fn answer_many<B>(mut grpc: Grpc<Codec>, method: Many, request: http::Request<B>) -> http::Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    grpc.server_streaming(method, request).await
}

/// The server's side of a call, in place of [`Grpc`].
pub(super) struct Server<C> {
    codec: PhantomData<C>,
    compression: (EnabledCompressionEncodings, EnabledCompressionEncodings),
    sizes: (Option<usize>, Option<usize>),
}

impl<Out, In> Server<ProstCodec<Out, In>>
where
    Out: Message + 'static,
    In: Message + Default + 'static,
{
    pub(super) fn new(_: ProstCodec<Out, In>) -> Self {
        Server { codec: PhantomData, compression: Default::default(), sizes: (None, None) }
    }

    pub(super) fn apply_compression_config(
        mut self,
        accept: EnabledCompressionEncodings,
        send: EnabledCompressionEncodings,
    ) -> Self {
        self.compression = (accept, send);
        self
    }

    pub(super) fn apply_max_message_size_config(mut self, decoding: Option<usize>, encoding: Option<usize>) -> Self {
        self.sizes = (decoding, encoding);
        self
    }

    fn with<T: tonic::codec::Codec>(&self, codec: T) -> Grpc<T> {
        Grpc::new(codec)
            .apply_compression_config(self.compression.0, self.compression.1)
            .apply_max_message_size_config(self.sizes.0, self.sizes.1)
    }

    pub(super) fn unary<S, B>(&mut self, mut method: S, request: http::Request<B>) -> Boxed<http::Response<Body>>
    where
        S: UnaryService<In, Response = Out> + Send + 'static,
        S::Future: Send + 'static,
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let call = move |request: Request<Bytes>| -> Answering<Bytes> {
            let (metadata, extensions, message) = request.into_parts();
            match read(&message) {
                Ok(message) => {
                    let answer = method.call(Request::from_parts(metadata, extensions, message));
                    Box::pin(async move { Ok(answer.await?.map(|message| write(&message))) })
                }
                Err(status) => Box::pin(std::future::ready(Err(status))),
            }
        };
        Box::pin(answer_one(self.with(Codec), Unary(Box::new(call)), request))
    }

    pub(super) fn server_streaming<S, B>(
        &mut self,
        mut method: S,
        request: http::Request<B>,
    ) -> Boxed<http::Response<Body>>
    where
        S: ServerStreamingService<In, Response = Out> + Send + 'static,
        S::ResponseStream: Send + 'static,
        S::Future: Send + 'static,
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let call = move |request: Request<Bytes>| -> Answering<Messages> {
            let (metadata, extensions, message) = request.into_parts();
            match read(&message) {
                Ok(message) => {
                    let answer = method.call(Request::from_parts(metadata, extensions, message));
                    let bytes = |message: Result<Out, Status>| message.map(|message| write(&message));
                    Box::pin(async move { Ok(answer.await?.map(|messages| Box::pin(messages.map(bytes)) as Messages)) })
                }
                Err(status) => Box::pin(std::future::ready(Err(status))),
            }
        };
        Box::pin(answer_many(self.with(Codec), Many(Box::new(call)), request))
    }

    pub(super) async fn streaming<S, B>(&mut self, method: S, request: http::Request<B>) -> http::Response<Body>
    where
        S: StreamingService<In, Response = Out> + Send,
        S::ResponseStream: Send + 'static,
        B: HttpBody + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        self.with(ProstCodec::<Out, In>::default()).streaming(method, request).await
    }
}

/// The client's side of a call with one answer, in place of [`client::Grpc::unary`].
pub(super) async fn unary<T, Out, In>(
    client: &mut client::Grpc<T>,
    request: Request<Out>,
    path: http::uri::PathAndQuery,
    _: ProstCodec<Out, In>,
) -> Result<Response<In>, Status>
where
    T: client::GrpcService<Body>,
    T::ResponseBody: HttpBody + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError>,
    Out: Message,
    In: Message + Default,
{
    let answer = Box::pin(client.unary(request.map(|message| write(&message)), path, Codec)).await?;
    let (metadata, message, extensions) = answer.into_parts();
    Ok(Response::from_parts(metadata, read(&message)?, extensions))
}

/// Most bytes of an answer, unless a call has another limit; tonic's.
const LONGEST_ANSWER: usize = 4 << 20;

/// A call of the method at `path` with a message and its answer as bytes: one copy of its code for all methods.
pub(crate) fn call(channel: Channel, path: &'static str, message: Bytes) -> Answering<Bytes> {
    call_within(channel, path, message, LONGEST_ANSWER)
}

/// What the health service says of a service, in at most `longest` bytes.
pub(crate) async fn health(channel: Channel, service: &str, longest: usize) -> Result<HealthCheckResponse, Status> {
    let question = write(&HealthCheckRequest { service: service.to_owned() });
    read(call_within(channel, "/grpc.health.v1.Health/Check", question, longest).await?.get_ref())
}

fn call_within(channel: Channel, path: &'static str, message: Bytes, longest: usize) -> Answering<Bytes> {
    Box::pin(async move {
        // Such a channel is always ready.
        let mut client = client::Grpc::new(channel).max_decoding_message_size(longest);
        client.unary(Request::new(message), http::uri::PathAndQuery::from_static(path), Codec).await
    })
}
