//! gRPC over plain http types: the status is behind the body.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::stream::{Iter, iter};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use semel_http::Body;
use tower::{Layer, ServiceExt, service_fn};

use super::support::*;

on_each_store![
    a_unary_call_is_judged_by_its_grpc_status_and_replayed_with_its_trailers,
    a_grpc_answer_too_large_to_keep_is_judged_by_its_trailers,
    the_trailers_of_a_stream_wait_for_its_outcome,
    a_grpc_answer_without_a_status_is_unknown_and_that_of_grpc_web_is_not,
    a_grpc_status_counts_beside_no_store,
];

on_servers_too![a_unary_call_is_judged_by_its_grpc_status_and_replayed_with_its_trailers];

pub(crate) type Frames = Vec<Result<Frame<Bytes>, Infallible>>;
pub(crate) type Message = StreamBody<Iter<<Frames as IntoIterator>::IntoIter>>;

/// Answers as tonic does: 200, a message, the status in trailers; without a message in the headers.
pub(crate) fn unary(status: &'static str, message: bool) -> Response<Message> {
    let mut fields = HeaderMap::new();
    fields.insert("grpc-status", HeaderValue::from_static(status));
    fields.insert("grpc-message", HeaderValue::from_static("as%20it%20is"));
    let frames: Frames = if message {
        vec![
            Ok(Frame::data(Bytes::from_static(b"\x00\x00\x00\x00\x02\x08\x07"))),
            Ok(Frame::trailers(fields.clone())),
        ]
    } else {
        Vec::new()
    };
    let mut response = Response::new(StreamBody::new(iter(frames)));
    if !message {
        response.headers_mut().extend(fields);
    }
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

async fn a_unary_call_is_judged_by_its_grpc_status_and_replayed_with_its_trailers(world: World) {
    for (n, (status, message, outcome, again)) in [
        ("0", true, "succeeded", "replayed"),
        ("9", true, "succeeded", "replayed"),
        ("9", false, "succeeded", "replayed"),
        ("7", true, "refused", "run"),
        ("16", false, "refused", "run"),
        ("14", true, "unknown", "unknown"),
        ("8", true, "unknown", "unknown"),
        ("13", false, "unknown", "unknown"),
    ]
    .into_iter()
    .enumerate()
    {
        let runs = Runs::default();
        let count = runs.clone();
        let service = world.layer().layer(service_fn(move |request: Request<Body>| {
            count.add();
            async move {
                let sent = request.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(sent, "{}");
                Ok::<_, Infallible>(unary(status, message))
            }
        }));
        let key = format!("grpc-{n}");
        let first = service.clone().oneshot(post(&key)).await.unwrap();
        let (head, body) = first.into_parts();
        assert_eq!(head.headers["semel-outcome"], outcome, "{status}");
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        assert_eq!(trailers.is_some(), message);
        let second = service.oneshot(post(&key)).await.unwrap();
        let (second, rest) = second.into_parts();
        match again {
            "replayed" => {
                assert_eq!(second.headers["idempotent-replayed"], "true");
                assert_eq!(second.headers.get("grpc-status"), head.headers.get("grpc-status"));
                let rest = rest.collect().await.unwrap();
                assert_eq!(rest.trailers().cloned(), trailers, "{status}");
                assert_eq!(rest.to_bytes(), body.to_bytes());
                assert_eq!(runs.count(), 1);
            }
            "run" => assert_eq!(runs.count(), 2, "{status}"),
            _ => assert_eq!(
                (second.headers["semel-outcome"].to_str().unwrap(), runs.count()),
                ("unknown", 1)
            ),
        }
    }
}

async fn a_grpc_answer_too_large_to_keep_is_judged_by_its_trailers(world: World) {
    for (status, outcome, runs_after, corrected) in [
        ("0", "succeeded", 1, None),
        ("9", "succeeded", 1, None),
        ("13", "unknown", 1, Some("unknown")),
        ("16", "succeeded", 2, Some("refused")),
    ] {
        let runs = Runs::default();
        let count = runs.clone();
        let layer = world.layer_with(|config| config.response_bytes_max = 1);
        let service = layer.layer(service_fn(move |_: Request<Body>| {
            count.add();
            async move { Ok::<_, Infallible>(unary(status, true)) }
        }));
        let key = format!("large-{status}");
        let first = service.clone().oneshot(post(&key)).await.unwrap();
        let body = first.into_body().collect().await.unwrap();
        let trailers = body.trailers().unwrap();
        assert_eq!(trailers["grpc-status"], status);
        let said = trailers.get("semel-outcome").map(|word| word.to_str().unwrap());
        assert_eq!(said, corrected, "{status}");
        let second = service.oneshot(post(&key)).await.unwrap();
        let told = second.headers()["semel-outcome"].clone();
        drop(second);
        layer.drain().await;
        assert_eq!(
            (told.to_str().unwrap(), runs.count()),
            (outcome, runs_after),
            "{status}"
        );
    }
}

/// Its server was cut off behind the message. gRPC-Web has its status in the body, where it is not looked for.
async fn a_grpc_answer_without_a_status_is_unknown_and_that_of_grpc_web_is_not(world: World) {
    for (kind, too_large, outcome) in [
        ("application/grpc", false, "unknown"),
        ("application/grpc+proto", false, "unknown"),
        ("application/grpc", true, "unknown"),
        ("application/grpc-web+proto", false, "succeeded"),
    ] {
        let layer = world.layer_with(|config| {
            if too_large {
                config.response_bytes_max = 1;
            }
        });
        let service = layer.layer(service_fn(move |_: Request<Body>| async move {
            let frames: Frames = vec![Ok(Frame::data(Bytes::from_static(b"\x00\x00\x00\x00\x00")))];
            let mut response = Response::new(StreamBody::new(iter(frames)));
            response
                .headers_mut()
                .insert("content-type", HeaderValue::from_static(kind));
            Ok::<_, Infallible>(response)
        }));
        let key = format!("bare-{kind}-{too_large}");
        let first = service.clone().oneshot(post(&key)).await.unwrap();
        drop(first.into_body().collect().await.unwrap());
        layer.drain().await;
        let again = service.oneshot(post(&key)).await.unwrap();
        assert_eq!(again.headers()["semel-outcome"], outcome, "{kind}, {too_large}");
    }
}

/// "Do not keep the answer" is no word on what came of the call.
async fn a_grpc_status_counts_beside_no_store(world: World) {
    let service = world.layer().layer(service_fn(|_: Request<Body>| async {
        let mut response = unary("14", true);
        response
            .headers_mut()
            .insert("semel-no-store", HeaderValue::from_static("1"));
        Ok::<_, Infallible>(response)
    }));
    let first = service.oneshot(post("a")).await.unwrap();
    assert_eq!(first.headers()["semel-outcome"], "unknown");
}

/// They end the call for a client of gRPC.
async fn the_trailers_of_a_stream_wait_for_its_outcome(world: World) {
    let (world, store) = world.faulty();
    store.fail("complete", Fault::Silent, 1);
    let layer = world.layer_with(|config| {
        config.response_bytes_max = 1;
        config.store_ms_max = 60_000;
    });
    let service = layer.layer(service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(unary("0", true))
    }));
    let mut body = service.oneshot(post("a")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_data());
    until("its outcome is on the way", async || store.calls("complete") == 1).await;
    let next = futures_util::future::poll_immediate(body.frame()).await;
    assert!(next.is_none(), "{next:?}");
}
