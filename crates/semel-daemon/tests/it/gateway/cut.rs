//! Gateways whose keys are on a server of their own: a key's ordinary life there, and the server cut off for real, at the
//! claim, at a renewal and at the completion.

use std::sync::Mutex;

use bytes::Bytes;
use http::Response;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{free_port, mariadb, postgres, redis};

use super::bed::{Upstream, gateway};
use super::send;
use crate::daemon::{Daemon, Folder, json, post, until};

/// Two gateways of one name with one upstream: `cut` reaches its store through the proxy, `beside` past it.
struct Bed {
    upstream: Upstream,
    proxy: Proxy,
    cut: Gateway,
    beside: Gateway,
    /// Whether values travel as hexadecimal digits.
    in_digits: bool,
}

struct Gateway {
    port: u16,
    daemon: Daemon,
    _folder: Folder,
}

const LEASE_MS: u32 = 1_000;

async fn start(store: &str, upstream: u16) -> Gateway {
    let port = free_port();
    let lines = format!(
        "principal_header = \"X-User\"\nlease_ms = {LEASE_MS}\nwait_ms_max = 0\n\
         [[gateway.route]]\npaths = [\"/upload\"]\noutage = \"open\""
    );
    // Redis has no tables to install.
    let migrate = if store.starts_with("redis") {
        ""
    } else {
        "migrate = true"
    };
    let folder = Folder::new(&format!(
        "[store]\nurl = \"{store}\"\n{migrate}\n{}",
        gateway("api", port, upstream, &lines)
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    Gateway {
        port,
        daemon,
        _folder: folder,
    }
}

impl Gateway {
    async fn counted(&self, event: &str) -> f64 {
        let name = format!("semel_gateway_keys_total{{gateway=\"api\",event=\"{event}\"}}");
        self.daemon.metric(&name).await.unwrap_or_default()
    }
}

impl Bed {
    async fn before(url: String) -> Self {
        let upstream = Upstream::start().await;
        let beside = start(&url, upstream.port).await;
        let (proxy, through) = Proxy::before_url(&url).await.unwrap();
        let cut = start(&through, upstream.port).await;
        Self {
            upstream,
            proxy,
            cut,
            beside,
            in_digits: url.starts_with("mysql"),
        }
    }

    /// Sends a request that the upstream holds until it is let go, and returns when it is there.
    async fn held(&self, key: &'static str) -> tokio::task::JoinHandle<Response<Bytes>> {
        let (port, before) = (self.cut.port, self.upstream.seen.charges());
        let sending = tokio::spawn(async move { send(port, "/slow", key).await });
        until("it is with the upstream", async || {
            self.upstream.seen.charges() == before + 1
        })
        .await;
        sending
    }

    /// What the other gateway says of a key that is held, until it says the last of these.
    async fn told_beside(&self, key: &str, words: &[&str]) -> Response<Bytes> {
        let told = Mutex::new(None);
        until("the other gateway says it", async || {
            let answer = send(self.beside.port, "/slow", key).await;
            assert!(words.contains(&outcome(&answer)), "{answer:?}");
            let done = Some(&outcome(&answer)) == words.last();
            *told.lock().unwrap() = Some(answer);
            done
        })
        .await;
        told.into_inner().unwrap().unwrap()
    }
}

fn outcome(answer: &Response<Bytes>) -> &str {
    answer
        .headers()
        .get("semel-outcome")
        .map_or("none", |word| word.to_str().unwrap())
}

fn replayed(answer: &Response<Bytes>) -> bool {
    answer
        .headers()
        .get("idempotent-replayed")
        .is_some_and(|value| value == "true")
}

fn body(answer: &Response<Bytes>) -> &str {
    std::str::from_utf8(answer.body()).unwrap()
}

async fn a_key_is_new_then_replayed_busy_while_it_runs_and_a_mismatch_for_another_request(bed: Bed) {
    let (one, other) = (bed.cut.port, bed.beside.port);
    let first = send(one, "/charge", "a").await;
    assert_eq!(
        (body(&first), outcome(&first), replayed(&first)),
        ("charge 1 of 2", "succeeded", false)
    );
    for port in [one, other] {
        let again = send(port, "/charge", "a").await;
        assert_eq!(
            (again.status().as_u16(), body(&again), replayed(&again)),
            (200, "charge 1 of 2", true)
        );
        let headers = [("idempotency-key", "a"), ("x-user", "alice")];
        let changed = post(format!("http://127.0.0.1:{port}/charge"), &headers, "{\"n\":2}").await;
        assert_eq!(
            (
                changed.status().as_u16(),
                json(&changed)["code"].as_str(),
                outcome(&changed)
            ),
            (422, Some("SEM0404"), "mismatch")
        );
    }
    let running = bed.held("b").await;
    for port in [one, other] {
        let busy = send(port, "/slow", "b").await;
        assert_eq!(
            (
                busy.status().as_u16(),
                json(&busy)["code"].as_str(),
                outcome(&busy)
            ),
            (409, Some("SEM0405"), "running")
        );
        assert!(busy.headers().contains_key("retry-after"), "{busy:?}");
    }
    bed.upstream.seen.go.notify_one();
    assert_eq!(body(&running.await.unwrap()), "slow 2");
    let again = send(other, "/slow", "b").await;
    assert_eq!((body(&again), replayed(&again)), ("slow 2", true));
    assert_eq!(bed.upstream.seen.charges(), 2);
}

async fn cut_at_the_claim_a_closed_route_refuses_and_an_open_one_sends_and_counts(bed: Bed) {
    let port = bed.cut.port;
    assert_eq!(body(&send(port, "/charge", "before").await), "charge 1 of 2");
    assert_eq!(body(&send(port, "/upload", "open").await), "2");
    let sent = bed.upstream.seen.requests().len();

    bed.proxy.away(true);
    for key in ["before", "new"] {
        let refused = send(port, "/charge", key).await;
        assert_eq!(
            (
                refused.status().as_u16(),
                json(&refused)["code"].as_str(),
                outcome(&refused)
            ),
            (503, Some("SEM0411"), "refused")
        );
        assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    }
    assert_eq!(bed.upstream.seen.requests().len(), sent, "nothing was sent");
    for n in 1..=2 {
        let passed = send(port, "/upload", "open").await;
        assert_eq!(
            (passed.status().as_u16(), body(&passed), outcome(&passed)),
            (200, "2", "succeeded")
        );
        assert_eq!(passed.headers()["semel-guarantee"], "none");
        assert!(!replayed(&passed), "{passed:?}");
        assert_eq!(bed.upstream.seen.requests().len(), sent + n, "each is sent");
    }
    assert_eq!(
        (
            bed.cut.counted("store_down").await,
            bed.cut.counted("open_passed").await,
            bed.beside.counted("open_passed").await
        ),
        (2.0, 2.0, 0.0)
    );

    bed.proxy.away(false);
    assert!(replayed(&send(port, "/charge", "before").await));
    assert!(replayed(&send(port, "/upload", "open").await));
    assert_eq!(body(&send(port, "/charge", "new").await), "charge 2 of 2");
}

async fn cut_at_a_renewal_the_request_goes_on_and_its_late_end_counts(bed: Bed) {
    let first = bed.held("renewed").await;
    // One that only loses its reply is made good by the next.
    let key = b"renewed";
    if bed.in_digits {
        bed.proxy.drop_reply_to(semel_core::key::hex(key).as_bytes());
    } else {
        bed.proxy.drop_reply_to(key);
    }
    bed.proxy.hit(1).await;
    bed.proxy.away(true);
    bed.told_beside("renewed", &["running", "unknown"]).await;
    bed.proxy.away(false);
    bed.upstream.seen.go.notify_one();
    let first = first.await.unwrap();
    assert_eq!((body(&first), outcome(&first)), ("slow 1", "succeeded"));
    let again = bed.told_beside("renewed", &["unknown", "succeeded"]).await;
    assert_eq!((body(&again), replayed(&again)), ("slow 1", true));
    assert_eq!(bed.upstream.seen.charges(), 1);
}

/// The hard case: done, and its outcome is lost. It is unknown to everybody until the completion comes through.
async fn cut_at_the_completion_it_ends_unknown_and_is_settled_by_the_completion(bed: Bed) {
    let first = bed.held("charge").await;
    bed.proxy.away(true);
    bed.upstream.seen.go.notify_one();
    let first = first.await.unwrap();
    assert_eq!((first.status().as_u16(), body(&first)), (200, "slow 1"));
    assert!(!first.headers().contains_key("semel-retained-until"), "{first:?}");
    let unknown = bed.told_beside("charge", &["running", "unknown"]).await;
    assert_eq!(json(&unknown)["code"], "SEM0406");
    bed.proxy.away(false);
    let again = bed.told_beside("charge", &["unknown", "succeeded"]).await;
    assert_eq!((body(&again), replayed(&again)), ("slow 1", true));
    assert_eq!(bed.upstream.seen.charges(), 1, "it was sent once");
}

macro_rules! on_each_server {
    ($($name:ident),+ $(,)?) => {
        mod on_postgres {
            use super::*;
            $(#[tokio::test] async fn $name() { super::$name(Bed::before(postgres().fresh_database()).await).await; })+
        }
        mod on_mariadb {
            use super::*;
            $(#[tokio::test] async fn $name() { super::$name(Bed::before(mariadb().fresh_database()).await).await; })+
        }
        mod on_redis {
            use super::*;
            $(#[tokio::test] async fn $name() { super::$name(Bed::before(redis().fresh_database()).await).await; })+
        }
    };
}

on_each_server![
    a_key_is_new_then_replayed_busy_while_it_runs_and_a_mismatch_for_another_request,
    cut_at_the_claim_a_closed_route_refuses_and_an_open_one_sends_and_counts,
    cut_at_a_renewal_the_request_goes_on_and_its_late_end_counts,
    cut_at_the_completion_it_ends_unknown_and_is_settled_by_the_completion,
];
