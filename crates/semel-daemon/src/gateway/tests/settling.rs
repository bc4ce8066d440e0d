//! Upstreams that know more: that deduplicate, that say what became of a key, that say how long to keep an answer.

use semel_core::claim::{Reconcile as _, Token};
use semel_core::quiet::QUIET_MS;
use semel_core::{Clock as _, Key, Scope, SystemClock};

use super::super::reconcile::{Hook, Reconciler};
use super::upstream::{Does, Upstream, answer};
use super::{World, config, post};
use crate::api::tests::Log;

/// Rule K12.
#[tokio::test]
async fn an_upstream_that_deduplicates_gets_the_same_key_again_instead_of_holding_it() {
    let upstream = Upstream::start(|n| match n {
        1 => Does::Closes,
        2 => answer("502 Bad Gateway", &[], "proxy"),
        3 => Does::Hangs(""),
        _ => answer("201 Created", &[], "done"),
    })
    .await;
    let lines = "upstream_deduplicates = true\nfirst_byte_timeout_ms = 200\ntotal_timeout_ms = 30000";
    let world = World::new(upstream.address, lines);
    let first = world.send(post("a")).await;
    assert_eq!((first.status, first.outcome()), (201, "succeeded"));
    assert!(world.send(post("a")).await.replayed());
    let seen = upstream.seen();
    assert_eq!(seen.len(), 4);
    for request in seen {
        let request = request.to_ascii_lowercase();
        assert!(
            request.contains("idempotency-key: a\r\n") && request.ends_with("{}"),
            "{request}"
        );
    }
}

#[tokio::test]
async fn what_is_not_known_after_all_tries_is_held() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let world = World::new(
        upstream.address,
        "upstream_deduplicates = true\ntotal_timeout_ms = 3000",
    );
    let first = world.send(post("a")).await;
    assert_eq!((first.status, first.outcome()), (502, "unknown"));
    let sent = upstream.count();
    assert!(sent >= 2, "{sent}");
    world.leases_end();
    assert_eq!(world.send(post("a")).await.code(), "SEM0406");
    assert_eq!(upstream.count(), sent);
}

const DEDUPLICATES: &str = "upstream_deduplicates = true\ntotal_timeout_ms = 3000\ntrust_unavailable = true";

/// What the first sending came to is not in the answer to the second.
#[tokio::test]
async fn an_answer_to_a_second_sending_that_says_nothing_of_the_first_is_not_believed() {
    for (status, field) in [
        ("429 Slow Down", "x: y"),
        ("401 Who", "x: y"),
        ("425 Early", "x: y"),
        ("501 No", "x: y"),
        ("503 Away", "retry-after: 1"),
        ("409 Busy", "x: y"),
        ("429 Slow Down", "semel-outcome: succeeded"),
    ] {
        let upstream = Upstream::start(move |n| match n {
            1 => Does::Closes,
            2 => answer(status, &[field], "not now"),
            _ => answer("201 Created", &[], "done"),
        })
        .await;
        let world = World::new(upstream.address, DEDUPLICATES);
        let first = world.send(post("a")).await;
        assert_eq!((first.status, first.outcome()), (201, "succeeded"), "{status}");
        assert_eq!(upstream.count(), 3);
    }
}

#[tokio::test]
async fn what_no_sending_after_the_first_clears_up_is_unknown() {
    let upstream = Upstream::start(|n| match n {
        1 => Does::Closes,
        _ => answer("409 Busy", &[], "in progress"),
    })
    .await;
    let world = World::new(
        upstream.address,
        "upstream_deduplicates = true\ntotal_timeout_ms = 500",
    );
    let first = world.send(post("a")).await;
    assert_eq!((first.status, first.outcome()), (502, "unknown"));
    world.leases_end();
    assert_eq!(world.send(post("a")).await.code(), "SEM0406");
}

/// gRPC says it behind the body, where nothing can be sent again.
#[tokio::test]
async fn a_word_on_the_key_is_believed_after_a_second_sending_and_a_grpc_status_is_not() {
    for (status, fields, outcome) in [
        ("429 No", &["semel-outcome: refused"][..], "refused"),
        ("500 No", &["semel-not-executed: 1"], "refused"),
        ("409 Taken", &["semel-outcome: refused"], "refused"),
        ("409 Taken", &["semel-outcome: succeeded"], "succeeded"),
        ("404 None", &[], "succeeded"),
        (
            "200 OK",
            &["content-type: application/grpc", "grpc-status: 16"],
            "unknown",
        ),
    ] {
        let upstream = Upstream::start(move |n| match n {
            1 => Does::Closes,
            _ => answer(status, fields, ""),
        })
        .await;
        let world = World::new(upstream.address, DEDUPLICATES);
        let first = world.send(post("a")).await;
        assert_eq!(first.outcome(), outcome, "{status} {fields:?}");
        assert_eq!(upstream.count(), 2, "{status} {fields:?}");
    }
}

/// The gateway that sent it is gone; nobody knows what the upstream did with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_after_a_lost_owner_is_a_second_sending() {
    let upstream = Upstream::start(|n| match n {
        1 => Does::Hangs(""),
        2 => answer("429 Slow Down", &[], "not now"),
        _ => answer("201 Created", &[], "done"),
    })
    .await;
    let world = World::new(
        upstream.address,
        &format!("{DEDUPLICATES}\nowner_lost = \"rerun\""),
    );
    world.crashes_in(post("a"), &upstream);
    world.leases_end();
    let again = world.send(post("a")).await;
    assert_eq!((again.status, again.outcome()), (201, "succeeded"));
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn an_answer_whose_end_nobody_knows_says_where_the_key_can_be_looked_up() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let world = World::new(
        upstream.address,
        "status_url = \"https://shop.example/ops/{key}\"",
    );
    for status in [502, 409] {
        let answer = world.send(post("\"a b\"")).await;
        assert_eq!((answer.status, answer.outcome()), (status, "unknown"));
        assert_eq!(
            answer.header("link"),
            Some("<https://shop.example/ops/a%20b>; rel=\"monitor\"")
        );
    }
}

fn reconciled_by(probe: &Upstream) -> String {
    format!(
        "reconcile_url = \"http://{}/what-became-of\"\nreconcile_ms_max = 5000",
        probe.address
    )
}

#[tokio::test]
async fn a_word_of_the_reconcile_url_settles_what_was_not_known() {
    for (word, outcome, replayed) in [
        ("semel-outcome: succeeded", "succeeded", true),
        ("semel-outcome: refused", "refused", true),
        (
            "semel-outcome: refused\r\nsemel-not-executed: 1",
            "refused",
            false,
        ),
    ] {
        let upstream = Upstream::start(|n| match n {
            1 => Does::Closes,
            _ => answer("200 OK", &[], "sent again"),
        })
        .await;
        let probe = Upstream::start(move |n| match n {
            1 => answer("200 OK", &["semel-outcome: running"], ""),
            _ => answer("200 OK", &[word, "x-id: 7"], "charge 7"),
        })
        .await;
        let world = World::new(upstream.address, &reconciled_by(&probe));
        let first = world.send(post("a")).await;
        assert_eq!(
            (
                first.status,
                &first.body[..],
                first.outcome(),
                first.header("x-id")
            ),
            (200, &b"charge 7"[..], outcome, Some("7"))
        );
        let again = world.send(post("a")).await;
        assert_eq!(again.replayed(), replayed, "{word}");
        assert_eq!(upstream.count(), if replayed { 1 } else { 2 });
        let asked = probe.seen().remove(0).to_ascii_lowercase();
        for line in [
            "get /what-became-of http/1.1",
            "idempotency-key: a",
            "semel-token: 1",
        ] {
            assert!(
                asked.lines().any(|found| found == line),
                "{line} is not in\n{asked}"
            );
        }
    }
}

/// It cannot say what became of a key that it is not told.
#[tokio::test]
async fn a_key_that_came_in_another_header_or_in_the_body_is_asked_for_too() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let probe = Upstream::start(|_| answer("200 OK", &["semel-outcome: succeeded"], "")).await;
    let lines = "\nkey_headers = [\"X-Request-Id\"]\nkey_pointers = [\"/id\"]";
    let world = World::new(upstream.address, &(reconciled_by(&probe) + lines));
    for (n, body) in [(0, "{}"), (1, "{\"id\":\"b\\\"c\"}")] {
        let mut request = post("x");
        request.headers_mut().remove("idempotency-key");
        if n == 0 {
            let id = http::HeaderValue::from_static("a");
            request.headers_mut().insert("x-request-id", id);
        }
        *request.body_mut() = axum::body::Body::from(body);
        assert_eq!(world.send(request).await.status, 200);
        let asked = probe.seen().remove(n).to_ascii_lowercase();
        let line = ["idempotency-key: \"a\"", "idempotency-key: \"b\\\"c\""][n];
        assert!(
            asked.lines().any(|found| found == line),
            "{line} is not in\n{asked}"
        );
    }
}

#[tokio::test]
async fn an_answer_that_says_nothing_of_the_end_is_asked_about_too() {
    let upstream = Upstream::start(|_| answer("500 Oops", &[], "?")).await;
    let probe = Upstream::start(|_| answer("200 OK", &["semel-outcome: succeeded"], "charge 7")).await;
    let world = World::new(upstream.address, &reconciled_by(&probe));
    assert_eq!(world.send(post("a")).await.body, "charge 7");
    assert!(world.send(post("a")).await.replayed());
}

/// Nobody knew at first; or the gateway that sent it is gone, and its lease has run out. With the key as it was sent, the
/// token of the run, and the caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_meets_an_unknown_key_asks_the_reconcile_url_again() {
    let with_user = || {
        let mut request = post("a");
        let alice = http::HeaderValue::from_static("alice");
        request.headers_mut().insert("x-user", alice);
        request
    };
    for crash in [false, true] {
        for (word, status, body) in [
            ("semel-outcome: succeeded", 200, "charge 7"),
            ("semel-outcome: refused", 200, "charge 7"),
        ] {
            let probe = Upstream::start(move |n| match n {
                1 if !crash => answer("404 Not Found", &[], ""),
                _ => answer("200 OK", &[word], "charge 7"),
            })
            .await;
            let upstream = Upstream::start(move |n| match n {
                1 if crash => Does::Hangs(""),
                1 => Does::Closes,
                _ => answer("200 OK", &[], "sent again"),
            })
            .await;
            let lines = reconciled_by(&probe) + "\nprincipal_header = \"X-User\"";
            let world = World::with(upstream.address, &lines);
            if crash {
                world.crashes_in(with_user(), &upstream);
                world.leases_end();
            } else {
                assert_eq!(world.send(with_user()).await.outcome(), "unknown");
            }
            let again = world.send(with_user()).await;
            assert_eq!(
                (again.status, &again.body[..]),
                (status, body.as_bytes()),
                "{word}"
            );
            assert!(again.replayed() && word.ends_with(again.outcome()), "{word}");
            assert_eq!(upstream.count(), 1, "{word}");
            let asked = probe.seen().pop().unwrap().to_ascii_lowercase();
            for line in ["idempotency-key: a", "semel-token: 1", "x-user: alice"] {
                assert!(
                    asked.lines().any(|found| found == line),
                    "{line} is not in\n{asked}"
                );
            }
        }
    }
}

/// What did not happen may be run again by the same retry that asked.
#[tokio::test]
async fn a_retry_that_learns_that_nothing_happened_is_sent() {
    let upstream = Upstream::start(|n| match n {
        1 => Does::Closes,
        _ => answer("201 Created", &[], "done"),
    })
    .await;
    let probe = Upstream::start(|n| match n {
        1 => answer("404 Not Found", &[], ""),
        _ => answer("200 OK", &["semel-outcome: refused", "semel-not-executed: 1"], ""),
    })
    .await;
    let world = World::new(upstream.address, &reconciled_by(&probe));
    assert_eq!(world.send(post("a")).await.outcome(), "unknown");
    let again = world.send(post("a")).await;
    assert_eq!(
        (again.status, &again.body[..], again.replayed()),
        (201, &b"done"[..], false)
    );
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_about_at_once() {
    let broken = "HTTP/1.1 201 Created\r\ncontent-length: 9\r\n\r\nhalf";
    let upstream = Upstream::start(move |_| Does::Sends(broken.to_owned())).await;
    let probe = Upstream::start(|_| answer("200 OK", &["semel-outcome: succeeded"], "charge 7")).await;
    let world = World::new(upstream.address, &reconciled_by(&probe));
    let first = world.send(post("a")).await;
    assert_eq!(
        (first.outcome(), &first.body[..]),
        ("succeeded", &b"charge 7"[..])
    );
    assert!(world.send(post("a")).await.replayed());
    assert_eq!(upstream.count(), 1);
}

/// "I know no such key" may be said while the request is still on its way.
#[tokio::test]
async fn nothing_but_a_word_settles() {
    for says in ["404 Not Found", "200 OK", "500 Oops"] {
        let upstream = Upstream::start(|_| Does::Closes).await;
        let probe = Upstream::start(move |_| answer(says, &[], "")).await;
        let world = World::new(upstream.address, &reconciled_by(&probe));
        let first = world.send(post("a")).await;
        assert_eq!((first.status, first.outcome()), (502, "unknown"), "{says}");
        world.leases_end();
        assert_eq!(world.send(post("a")).await.code(), "SEM0406", "{says}");
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn the_upstream_may_say_that_nothing_was_done_and_how_long_an_answer_is_kept() {
    let upstream = Upstream::start(|n| match n {
        1 => answer("500 Oops", &["semel-not-executed: 1"], "not yet"),
        _ => answer("200 OK", &["semel-persist-for: 60"], "done"),
    })
    .await;
    let world = World::new(upstream.address, "");
    let first = world.send(post("a")).await;
    assert_eq!((first.status, first.outcome()), (500, "refused"));
    assert_eq!(first.header("semel-not-executed"), None);
    let done = world.send(post("a")).await;
    assert_eq!(
        (&done.body[..], done.header("semel-persist-for")),
        (&b"done"[..], None)
    );
    assert!(world.send(post("a")).await.replayed());
    world.clock.advance_ms(60_001);
    assert_eq!(
        world.send(post("a")).await.code(),
        "SEM0408",
        "a minute, not a day"
    );
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_refusal_that_a_route_gives_back_is_judged_anew() {
    let upstream = Upstream::start(|n| match n {
        1 => answer("422 Wrong code", &[], "wrong"),
        _ => answer("200 OK", &[], "right"),
    })
    .await;
    let world = World::new(upstream.address, "release_on = 422");
    assert_eq!(world.send(post("a")).await.status, 422);
    assert_eq!(world.send(post("a")).await.body, "right");
}

/// Two callers may have the same key: the answer could be the other's.
#[tokio::test]
async fn nobody_is_asked_about_without_the_principal_that_keys_belong_to() {
    let probe = Upstream::start(|_| answer("200 OK", &["semel-outcome: succeeded"], "")).await;
    for (caller, asked) in [("principal_header = \"X-User\"", 0), ("anonymous = true", 1)] {
        let lines = format!("{caller}\n{}", reconciled_by(&probe));
        let world = World::with(probe.address, &lines);
        let read = config(probe.address, &lines);
        let who = read.routes[0].sending.reconcile.as_ref().unwrap();
        let hook = Hook::new(Reconciler::new(who, &read.proxy.kept), world.stats);
        let key = Key::new(Scope::of_parts(&[b"alice"]), "a").unwrap();
        // Outside of any request, as after its client has gone.
        let settled = hook.reconcile(&key, Token(1)).await.unwrap();
        assert_eq!(
            (settled.is_some(), probe.count()),
            (asked == 1, asked),
            "{caller}"
        );
    }
}

/// Clients that retry must not fill the log.
#[tokio::test]
async fn a_hundred_retries_that_nobody_can_settle_or_name_are_a_line_of_each_kind() {
    let upstream = Upstream::start(|_| Does::Closes).await;
    let away = Upstream::start(|_| answer("500 Oops", &[], "")).await;
    let lines = reconciled_by(&away);
    let named = format!(
        "principal_header = \"X-User\"\nauth_url = \"http://{}/who\"",
        away.address
    );
    for (lines, says) in [
        (
            format!("anonymous = true\n{lines}"),
            "does not know what became of",
        ),
        (named, "auth_url answers neither"),
    ] {
        let world = World::with(upstream.address, &lines);
        let (log, _listening) = Log::listen();
        let began = SystemClock.monotonic();
        for _ in 0..100 {
            world.send(post("a")).await;
        }
        let took = SystemClock.monotonic() - began;
        let most = 1 + took.as_millis() / u128::from(QUIET_MS);
        let lines = log.text().lines().filter(|line| line.contains(says)).count();
        assert!((1..=most).contains(&(lines as u128)), "{lines} lines");
    }
}
