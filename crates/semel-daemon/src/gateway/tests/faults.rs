//! Whose fault it is.

use futures_util::stream;

use super::upstream::{Does, Upstream, answer};
use super::{World, post, request};

fn failures(world: &World) -> u64 {
    ["not_sent", "broken", "slow"]
        .iter()
        .map(|reason| world.stats.failed.get(reason).get())
        .sum()
}

/// A bad chunk, or a client that left.
#[tokio::test]
async fn a_body_that_its_client_breaks_off_is_not_the_upstreams_failure() {
    let upstream = Upstream::start(|_| Does::Hangs("")).await;
    let world = World::new(upstream.address, "");
    let pieces = [Ok("ab"), Err(std::io::Error::other("the chunk has no size"))];
    let mut broken = request("PUT", "/orders", "a");
    *broken.body_mut() = axum::body::Body::from_stream(stream::iter(pieces));
    let answer = world.send(broken).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "SEM0475"));
    assert_eq!(failures(&world), 0);
}

#[tokio::test]
async fn an_upstream_that_breaks_off_is_counted() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let world = World::new(upstream.address, "");
    let answer = world.send(request("PUT", "/orders", "a")).await;
    assert_eq!((answer.status, answer.code().as_str()), (502, "SEM0422"));
    assert_eq!(failures(&world), 1);
}

/// Its body would reach the client as it is, under a head that does not say so any more.
#[tokio::test]
async fn an_answer_in_a_transfer_coding_that_is_not_known_here_is_no_answer() {
    let coded = "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n2\r\n\x1f\x00\r\n0\r\n\r\n";
    let upstream = Upstream::start(move |_| Does::Sends(coded.to_owned())).await;
    let world = World::new(upstream.address, "");
    for method in ["PUT", "POST"] {
        let answer = world.send(request(method, "/orders", "a")).await;
        assert_eq!((answer.status, answer.outcome()), (502, "unknown"), "{method}");
    }
    let plain = Upstream::start(|_| answer("200 OK", &[], "")).await;
    assert_eq!(World::new(plain.address, "").send(post("a")).await.status, 200);
}
