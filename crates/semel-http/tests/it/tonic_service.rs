//! A service and a client of tonic, in one process with the layer between them.

use std::convert::Infallible;
use std::future::{Ready, ready};

use bytes::{Buf as _, BufMut as _, Bytes};
use http::Request;
use http_body_util::BodyExt as _;
use semel_http::{Body, Idempotency};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::UnaryService;
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::support::*;

on_each_store![
    a_unary_call_of_tonic_is_replayed_byte_for_byte_with_its_trailers,
    a_status_of_tonic_that_settles_the_call_is_replayed_and_one_of_the_moment_is_not,
    what_the_layer_refuses_reaches_a_client_of_tonic_as_a_status,
];

/// Messages are their bytes: what `prost` makes of types is not what is tested here.
#[derive(Debug, Default, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// What the handler does: places an order, or says why not.
#[derive(Clone)]
struct Orders {
    runs: Runs,
    says: Result<(), Status>,
}

impl UnaryService<Bytes> for Orders {
    type Response = Bytes;
    type Future = Ready<Result<tonic::Response<Bytes>, Status>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        self.runs.add();
        ready(self.says.clone().map(|()| {
            let text = format!("order {} of {:?}", self.runs.count(), request.into_inner());
            let mut response = tonic::Response::new(Bytes::from(text));
            response.metadata_mut().insert("x-order", "7".parse().unwrap());
            response
        }))
    }
}

impl Orders {
    fn new(says: Result<(), Status>) -> Self {
        let runs = Runs::default();
        Self { runs, says }
    }

    /// tonic's server behind the layer.
    fn behind(
        &self,
        world: &World,
    ) -> Idempotency<
        impl tower::Service<
            Request<Body>,
            Response = http::Response<tonic::body::Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + 'static,
    > {
        let orders = self.clone();
        world.layer().layer(service_fn(move |request: Request<Body>| {
            let orders = orders.clone();
            async move { Ok(tonic::server::Grpc::new(Raw).unary(orders, request).await) }
        }))
    }

    /// What tonic's client makes of a call.
    async fn ask(&self, world: &World, key: &'static str) -> Result<tonic::Response<Bytes>, Status> {
        self.ask_for(world, key, b"2 teapots").await
    }

    async fn ask_for(
        &self,
        world: &World,
        key: &'static str,
        what: &'static [u8],
    ) -> Result<tonic::Response<Bytes>, Status> {
        let mut client = tonic::client::Grpc::new(self.behind(world));
        client.ready().await.unwrap();
        let mut request = tonic::Request::new(Bytes::from_static(what));
        request
            .metadata_mut()
            .insert("idempotency-key", key.parse().unwrap());
        let path = http::uri::PathAndQuery::from_static("/shop.Orders/Place");
        client.unary(request, path, Raw).await
    }
}

async fn a_unary_call_of_tonic_is_replayed_byte_for_byte_with_its_trailers(world: World) {
    let orders = Orders::new(Ok(()));
    for _ in 0..2 {
        let answer = orders.ask(&world, "client").await.unwrap();
        assert_eq!(answer.metadata().get("x-order").unwrap(), "7");
        assert_eq!(answer.into_inner(), "order 1 of b\"2 teapots\"");
    }
    assert_eq!(orders.runs.count(), 1);

    // The same on the wire: frames and trailers.
    let wire = async || {
        let request = Request::post("http://shop/shop.Orders/Place")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("idempotency-key", "wire")
            .body(axum::body::Body::from(&b"\0\0\0\0\x01x"[..]))
            .unwrap();
        let (head, body) = orders.behind(&world).oneshot(request).await.unwrap().into_parts();
        let whole = body.collect().await.unwrap();
        let trailers = whole.trailers().cloned().unwrap();
        (head, trailers, whole.to_bytes())
    };
    let (first, first_trailers, first_bytes) = wire().await;
    let (second, second_trailers, second_bytes) = wire().await;
    assert_eq!(second.headers["idempotent-replayed"], "true");
    assert!(!first.headers.contains_key("idempotent-replayed"));
    assert_eq!(first.status, second.status);
    for name in ["content-type", "x-order"] {
        assert_eq!(first.headers[name], second.headers[name]);
    }
    assert_eq!(first_trailers["grpc-status"], "0");
    assert_eq!((first_trailers, first_bytes), (second_trailers, second_bytes));
    assert_eq!(orders.runs.count(), 2);
}

async fn a_status_of_tonic_that_settles_the_call_is_replayed_and_one_of_the_moment_is_not(world: World) {
    let refused = Orders::new(Err(Status::failed_precondition("no such teapot: ü")));
    for _ in 0..2 {
        let status = refused.ask(&world, "refused").await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (tonic::Code::FailedPrecondition, "no such teapot: ü")
        );
    }
    assert_eq!(refused.runs.count(), 1);

    let stranger = Orders::new(Err(Status::unauthenticated("sign in")));
    for _ in 0..2 {
        let status = stranger.ask(&world, "stranger").await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
    }
    assert_eq!(stranger.runs.count(), 2, "given back: judged anew");
}

/// tonic shows a client neither the status of HTTP nor the body of a problem.
async fn what_the_layer_refuses_reaches_a_client_of_tonic_as_a_status(world: World) {
    let (world, store) = world.faulty();
    let orders = Orders::new(Ok(()));
    orders.ask(&world, "once").await.unwrap();
    let other = orders.ask_for(&world, "once", b"3 teapots").await.unwrap_err();
    let empty = orders.ask(&world, "").await.unwrap_err();
    store.fail("claim", Fault::Down, 1);
    let away = orders.ask(&world, "away").await.unwrap_err();
    for (status, code, begins, outcome, pushback) in [
        (
            other,
            tonic::Code::FailedPrecondition,
            "The idempotency key was used for another request (SEM0404): ",
            "mismatch",
            None,
        ),
        (
            empty,
            tonic::Code::InvalidArgument,
            "The idempotency key is not valid (SEM0402): ",
            "refused",
            None,
        ),
        (
            away,
            tonic::Code::Unavailable,
            "Keys cannot be looked up now (SEM0411): ",
            "refused",
            Some("2000"),
        ),
    ] {
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().starts_with(begins), "{status:?}");
        let said = |name: &str| status.metadata().get(name).map(|value| value.to_str().unwrap());
        assert_eq!(said("semel-outcome"), Some(outcome));
        assert_eq!(said("grpc-retry-pushback-ms"), pushback);
    }
    assert_eq!(orders.runs.count(), 1);
}
