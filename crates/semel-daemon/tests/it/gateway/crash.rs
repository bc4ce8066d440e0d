//! The gateway dies at each of its points; another process meets what it left.

use semel_core::crash::LAST_WORDS;
use semel_testkit::servers::free_port;

use super::bed::{Upstream, gateway};
use super::send;
use crate::daemon::{Folder, LIMIT, json, until};

#[tokio::test]
async fn a_crash_around_sending_leaves_a_key_that_is_unknown_and_is_not_sent_again() {
    for (point, sends) in [("gateway.before_send", 0), ("gateway.answered", 1)] {
        let upstream = Upstream::start().await;
        let port = free_port();
        let lines = "principal_header = \"X-User\"\nlease_ms = 1000\nwait_ms_max = 0";
        let folder = Folder::new(&format!(
            "[store]\nurl = \"sqlite:semel.db\"\n{}",
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
        assert!(log.contains(&format!("{LAST_WORDS} {point}")), "{log}");

        let daemon = folder.start().await;
        daemon.until_ready().await;
        until("the lease of the dead one has ended", async || {
            let answer = send(port, "/charge", "k").await;
            assert_eq!(answer.status(), 409, "{point}: {answer:?}");
            json(&answer)["code"] == "SEM0406"
        })
        .await;
        assert_eq!(upstream.seen.charges(), sends, "{point}");
    }
}
