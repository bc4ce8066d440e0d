//! The gateway dies at each of its points, over each store that outlives it; another process meets what it left.

use futures_util::future::join_all;
use semel_core::crash::{CRASH_POINTS, LAST_WORDS};
use semel_testkit::servers::{free_port, mariadb, postgres, redis};

use super::bed::{Upstream, gateway};
use super::send;
use crate::daemon::{Folder, LIMIT, json, until};

/// Requests that reach the upstream before a death at this point.
fn sent_before(point: &str) -> u32 {
    match point {
        "gateway.before_send" => 0,
        "gateway.answered" => 1,
        _ => panic!("what should a death at {point} leave?"),
    }
}

#[tokio::test]
async fn a_crash_around_sending_leaves_a_key_that_is_unknown_and_is_not_sent_again() {
    let points: Vec<&str> = CRASH_POINTS
        .iter()
        .copied()
        .filter(|point| point.starts_with("gateway."))
        .collect();
    assert!(points.len() >= 2, "{points:?}");
    let tables = |url: String| format!("url = \"{url}\"\nmigrate = true");
    let deaths = points.iter().flat_map(|point| {
        [
            tables("sqlite:semel.db".to_owned()),
            tables(postgres().fresh_database()),
            tables(mariadb().fresh_database()),
            format!("url = \"{}\"", redis().fresh_database()),
        ]
        .map(|store| dies(store, point))
    });
    join_all(deaths).await;
}

/// One death over the store of these lines, and what comes after it.
async fn dies(store: String, point: &str) {
    let upstream = Upstream::start().await;
    let port = free_port();
    let lines = "principal_header = \"X-User\"\nlease_ms = 1000\nwait_ms_max = 0";
    let folder = Folder::new(&format!(
        "[store]\n{store}\n{}",
        gateway("api", port, upstream.port, lines)
    ));
    let mut daemon = folder.spawn(&[("SEMEL_CRASH_POINT", point)]);
    daemon.until_alive().await;
    daemon.until_ready().await;
    let request = http::Request::post(format!("http://127.0.0.1:{port}/charge"))
        .header("idempotency-key", "k")
        .header("x-user", "alice")
        .body(bytes::Bytes::from_static(b"{}"))
        .unwrap();
    let client = semel_client::HttpClient::new(semel_client::Limits::default());
    assert!(client.send(request, LIMIT).await.is_err(), "{point}: it died");
    let (_, log) = daemon.ended().await;
    assert!(log.contains(&format!("{LAST_WORDS} {point}")), "{store}: {log}");

    let daemon = folder.start().await;
    daemon.until_ready().await;
    until("the lease of the dead one has ended", async || {
        let answer = send(port, "/charge", "k").await;
        assert_eq!(answer.status(), 409, "{store}, {point}: {answer:?}");
        json(&answer)["code"] == "SEM0406"
    })
    .await;
    assert_eq!(upstream.seen.charges(), sent_before(point), "{store}, {point}");
}
