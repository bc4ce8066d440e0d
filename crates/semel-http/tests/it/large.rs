//! Answers too large to keep, and streams.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use semel_http::{Body, Disposition, Problem, ProblemKind};
use tower::ServiceExt;

use super::support::*;

on_each_store![
    an_answer_one_byte_over_the_limit_goes_out_whole_and_its_retry_is_told_not_kept,
    an_answer_at_the_limit_is_kept,
    headers_too_large_to_store_count_as_too_large,
    a_three_part_stream_within_the_limit_is_kept_whole,
    an_event_stream_is_sent_on_and_its_retry_is_told_not_kept,
    trailers_are_replayed_behind_the_body,
    a_stream_that_breaks_is_unknown_and_never_looks_whole,
    a_body_that_breaks_with_a_problem_is_answered_with_it,
    a_refusal_too_large_to_keep_is_still_a_refusal,
    a_client_that_leaves_a_stream_does_not_stop_it,
    a_client_that_reads_nothing_more_of_a_stream_does_not_hold_its_place,
    a_silent_stream_whose_client_has_left_does_not_hold_its_place,
    a_silent_stream_with_a_client_goes_on_for_longer_than_a_run,
    an_event_stream_is_known_however_it_is_written,
];

/// A body in parts, of unknown length.
struct Parts(VecDeque<Result<Frame<Bytes>, &'static str>>);

impl HttpBody for Parts {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.0.pop_front())
    }
}

fn parts(parts: impl IntoIterator<Item = Result<&'static str, &'static str>>) -> Response<Body> {
    let frames = parts
        .into_iter()
        .map(|part| part.map(|text| Frame::data(Bytes::from_static(text.as_bytes()))));
    Response::new(Body::new(Parts(frames.collect())))
}

fn events(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(
        "content-type",
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    response
}

async fn not_kept(app: &axum::Router, runs: &Runs) {
    let again = send(app, post("a")).await;
    assert_eq!(
        (again.status, again.code().as_str(), again.outcome()),
        (410, "SEM0407", "succeeded")
    );
    assert!(again.replayed());
    assert_eq!(runs.count(), 1);
}

/// fiber#4018, #4287.
async fn an_answer_one_byte_over_the_limit_goes_out_whole_and_its_retry_is_told_not_kept(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.response_bytes_max = 1_000);
    let app = app(&layer, &runs, |_| async { answer(200, vec![b'x'; 1_001]) });
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.body.len(), first.outcome()),
        (200, 1_001, "succeeded")
    );
    not_kept(&app, &runs).await;
}

async fn an_answer_at_the_limit_is_kept(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.response_bytes_max = 1_000);
    let app = app(&layer, &runs, |_| async { answer(200, vec![b'x'; 1_000]) });
    let first = send(&app, post("a")).await;
    let again = send(&app, post("a")).await;
    assert!(again.replayed());
    assert_eq!(first.body, again.body);
}

async fn headers_too_large_to_store_count_as_too_large(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        let mut response = answer(200, vec![b'x'; 960 << 10]);
        let value = HeaderValue::from_bytes(&[b'v'; 65_000]).unwrap();
        for _ in 0..2 {
            response.headers_mut().append("x-large", value.clone());
        }
        response
    });
    assert_eq!(send(&app, post("a")).await.body.len(), 960 << 10);
    not_kept(&app, &runs).await;
}

/// actor-ts#1308: never `{}`, never a stuck 409.
async fn a_three_part_stream_within_the_limit_is_kept_whole(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        parts([Ok("one "), Ok("two "), Ok("three")])
    });
    assert_eq!(send(&app, post("a")).await.body, "one two three");
    let again = send(&app, post("a")).await;
    assert!(again.replayed());
    assert_eq!(again.body, "one two three");
}

async fn an_event_stream_is_sent_on_and_its_retry_is_told_not_kept(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        events(parts([Ok("one "), Ok("two "), Ok("three")]))
    });
    let first = send(&app, post("a")).await;
    assert_eq!((first.status, &first.body[..]), (200, &b"one two three"[..]));
    not_kept(&app, &runs).await;
}

async fn trailers_are_replayed_behind_the_body(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        let mut trailers = HeaderMap::new();
        trailers.insert("checksum", HeaderValue::from_static("1"));
        let frames = [
            Ok(Frame::data(Bytes::from_static(b"data"))),
            Ok(Frame::trailers(trailers)),
        ];
        Response::new(Body::new(Parts(frames.into())))
    });
    for replayed in [false, true] {
        let response = app.clone().oneshot(post("a")).await.unwrap();
        assert_eq!(response.headers().contains_key("idempotent-replayed"), replayed);
        let whole = response.into_body().collect().await.unwrap();
        assert_eq!(whole.trailers().unwrap()["checksum"], "1");
        assert_eq!(whole.to_bytes(), "data");
    }
    assert_eq!(runs.count(), 1);
}

async fn a_stream_that_breaks_is_unknown_and_never_looks_whole(world: World) {
    let runs = Runs::default();
    let streamed = app(&world.layer(), &runs, |_| async {
        events(parts([Ok("one "), Err("cut")]))
    });
    let response = streamed.clone().oneshot(post("a")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(
        response.into_body().collect().await.is_err(),
        "the client sees that it broke"
    );

    let whole = app(&world.layer(), &runs, |_| async {
        parts([Ok("one "), Err("cut")])
    });
    let first = send(&whole, post("b")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (500, "SEM0413", "unknown")
    );

    for (app, key) in [(&streamed, "a"), (&whole, "b")] {
        let again = send(app, post(key)).await;
        assert_eq!((again.status, again.code().as_str()), (409, "SEM0406"));
    }
    assert_eq!(runs.count(), 2);
}

async fn a_refusal_too_large_to_keep_is_still_a_refusal(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.response_bytes_max = 10);
    let app = app(&layer, &runs, |_| async {
        let mut response = answer(409, "out of stock, at length");
        response.extensions_mut().insert(Disposition::Refused);
        response
    });
    let first = send(&app, post("a")).await;
    let again = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.outcome(), &first.body[..]),
        (409, "refused", &b"out of stock, at length"[..])
    );
    assert_eq!(
        (again.status, again.outcome(), again.replayed()),
        (409, "refused", true)
    );
    assert_eq!(runs.count(), 1);
}

/// A gateway's body says by its error what to answer.
async fn a_body_that_breaks_with_a_problem_is_answered_with_it(world: World) {
    struct Broken(bool);
    impl HttpBody for Broken {
        type Data = Bytes;
        type Error = Problem;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Problem>>> {
            let first = !std::mem::replace(&mut self.0, true);
            let problem = || Problem::new(ProblemKind::UpstreamBroken, "cut");
            Poll::Ready(Some(if first {
                Ok(Frame::data(Bytes::from_static(b"{")))
            } else {
                Err(problem())
            }))
        }
    }
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |_| async {
        Response::new(Body::new(Broken(false)))
    });
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (502, "SEM0422", "unknown")
    );
}

/// The stream may be the work itself.
async fn a_client_that_leaves_a_stream_does_not_stop_it(world: World) {
    let runs = Runs::default();
    let layer = world.layer();
    let many = std::iter::repeat_n(Ok("part "), 1_000);
    let app = app(&layer, &runs, move |_| {
        let many = many.clone();
        async move { events(parts(many)) }
    });
    let response = app.clone().oneshot(post("a")).await.unwrap();
    drop(response);
    layer.drain().await;
    not_kept(&app, &runs).await;
}

/// Of an event stream that nobody reads any more nothing need ever come.
async fn a_silent_stream_whose_client_has_left_does_not_hold_its_place(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.run_ms_max = 300);
    let app = app(&layer, &runs, |_| async {
        let silent = futures_util::stream::pending::<Result<Frame<Bytes>, &'static str>>();
        events(Response::new(Body::new(http_body_util::StreamBody::new(silent))))
    });
    let response = app.clone().oneshot(post("a")).await.unwrap();
    drop(response);
    let left = tokio::time::timeout(std::time::Duration::from_secs(10), layer.drain()).await;
    assert!(left.is_ok(), "it holds its place");
    assert_eq!(send(&app, post("a")).await.outcome(), "unknown");
}

async fn a_silent_stream_with_a_client_goes_on_for_longer_than_a_run(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.run_ms_max = 1);
    let app = app(&layer, &runs, |_| async {
        let late = futures_util::stream::once(async {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            Ok::<_, &'static str>(Frame::data(Bytes::from_static(b"data: 1\n\n")))
        });
        events(Response::new(Body::new(http_body_util::StreamBody::new(late))))
    });
    assert_eq!(send(&app, post("a")).await.body, "data: 1\n\n");
}

/// Names of types have no case.
async fn an_event_stream_is_known_however_it_is_written(world: World) {
    let runs = Runs::default();
    let layer = world.layer();
    let app = app(&layer, &runs, |_| async {
        let mut response = parts([Ok("data: 1\n\n")]);
        let kind = HeaderValue::from_static("Text/Event-Stream");
        response.headers_mut().insert("content-type", kind);
        response
    });
    assert_eq!(send(&app, post("a")).await.body, "data: 1\n\n");
    not_kept(&app, &runs).await;
}

/// It keeps its connection and takes nothing: the run ends all the same, and what it got never looks whole.
async fn a_client_that_reads_nothing_more_of_a_stream_does_not_hold_its_place(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.client_idle_ms = 50;
        config.running_max = 1;
    });
    let many = std::iter::repeat_n(Ok("part "), 1_000);
    let app = app(&layer, &runs, move |_| {
        let many = many.clone();
        async move { events(parts(many)) }
    });
    let response = app.clone().oneshot(post("a")).await.unwrap();
    layer.drain().await;
    not_kept(&app, &runs).await;
    assert!(response.into_body().collect().await.is_err(), "it is broken off");
}
