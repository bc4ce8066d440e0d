//! What a retry gets, byte for byte.

use http::{HeaderName, HeaderValue};
use semel_core::Scope;
use semel_http::{IdempotencyLayer, ScopeError};
use semel_testkit::faulty::Fault;

use super::support::*;

on_each_store![
    a_retry_gets_the_first_answer_and_the_handler_runs_once,
    status_headers_and_body_are_equal_on_replay,
    a_handlers_own_guarantee_is_told_unless_it_is_none,
    two_users_with_the_same_key_get_two_runs_and_two_answers,
    a_key_reused_for_another_request_is_a_mismatch_and_leaves_the_first_untouched,
    the_same_body_under_a_new_key_runs,
    a_stored_error_is_replayed_and_marked,
    a_refusal_is_never_told_as_succeeded_after_its_retention,
    after_retention_a_retry_is_told_expired_and_after_the_tombstone_it_runs_anew,
    long_bodies_that_differ_only_at_the_end_are_a_mismatch,
];

on_servers_too![
    a_retry_gets_the_first_answer_and_the_handler_runs_once,
    status_headers_and_body_are_equal_on_replay,
    two_users_with_the_same_key_get_two_runs_and_two_answers,
    a_key_reused_for_another_request_is_a_mismatch_and_leaves_the_first_untouched,
];

async fn a_retry_gets_the_first_answer_and_the_handler_runs_once(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    let first = send(&app, post("a")).await;
    let again = send(&app, post("\"a\"")).await;
    assert_eq!(
        (first.status, &first.body[..], first.outcome()),
        (201, &b"run 1"[..], "succeeded")
    );
    assert_eq!(
        (again.status, &again.body[..], again.outcome()),
        (201, &b"run 1"[..], "succeeded")
    );
    assert!(!first.replayed() && again.replayed());
    assert_eq!(runs.count(), 1);
    assert!(
        first.header("semel-retained-until").is_some(),
        "every answer says the window"
    );
    assert_eq!(
        first.header("semel-retained-until"),
        again.header("semel-retained-until")
    );
    let survives = world.store.capabilities().token_survives_failover;
    let strength = if survives {
        "guarded"
    } else {
        "guarded;failover=forgets"
    };
    assert_eq!(first.header("semel-guarantee"), Some(strength));
    assert_eq!(again.header("semel-guarantee"), Some(strength));
}

/// An inner Semel whose store is away says `none` of itself; this layer remembers the key all the same.
async fn a_handlers_own_guarantee_is_told_unless_it_is_none(world: World) {
    let own = send(&counting(&world.layer(), &Runs::default()), post("own")).await;
    let own = own.header("semel-guarantee");
    for (key, says, told) in [
        ("a", "none", own),
        ("b", "best-effort", own),
        ("c", "atomic", Some("atomic")),
        ("d", "keyed;failover=forgets", Some("keyed;failover=forgets")),
    ] {
        let app = app(&world.layer(), &Runs::default(), move |_| async move {
            let mut response = answer(201, "done");
            let says = HeaderValue::from_static(says);
            response.headers_mut().insert("semel-guarantee", says);
            response
        });
        for _ in 0..2 {
            let answer = send(&app, post(key)).await;
            assert_eq!(answer.header("semel-guarantee"), told, "{says}");
        }
    }
}

/// concerns_on_rails#47, fiber#4693: `Location` and `ETag`, commas in a value, duplicates, bytes that are no UTF-8.
async fn status_headers_and_body_are_equal_on_replay(world: World) {
    let runs = Runs::default();
    let own: [(&str, &[u8]); 7] = [
        ("location", b"/orders/7"),
        ("etag", b"\"1\""),
        ("link", b"</a>; rel=next"),
        ("link", b"</b>; rel=prev"),
        ("content-disposition", b"attachment; filename=\"a,b.txt\""),
        ("x-name", b"caf\xe9"),
        ("content-type", b"application/octet-stream"),
    ];
    let app = app(&world.layer(), &runs, move |_| async move {
        let mut response = answer(201, &b"\x00\xff\r\n"[..]);
        for (name, value) in own {
            response.headers_mut().append(
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value).unwrap(),
            );
        }
        response
            .headers_mut()
            .insert("set-cookie", HeaderValue::from_static("session=first"));
        response
            .headers_mut()
            .insert("date", HeaderValue::from_static("then"));
        response
    });
    let first = send(&app, post("a")).await;
    let again = send(&app, post("a")).await;
    assert!(again.replayed());
    assert_eq!((first.status, &first.body), (again.status, &again.body));
    for answer in [&first, &again] {
        for (name, _) in own {
            let got: Vec<&[u8]> = answer
                .headers
                .get_all(name)
                .iter()
                .map(HeaderValue::as_bytes)
                .collect();
            let sent: Vec<&[u8]> = own
                .iter()
                .filter(|(n, _)| *n == name)
                .map(|(_, value)| *value)
                .collect();
            assert_eq!(got, sent, "{name}");
        }
    }
    assert!(first.headers.contains_key("set-cookie") && first.headers.contains_key("date"));
    assert!(
        !again.headers.contains_key("set-cookie"),
        "a cookie is the first caller's"
    );
    assert!(!again.headers.contains_key("date"), "a date is of the moment");
}

/// hono-idempotency#126.
async fn two_users_with_the_same_key_get_two_runs_and_two_answers(world: World) {
    let runs = Runs::default();
    let layer = IdempotencyLayer::builder(world.store.clone())
        .scope(|request: &http::request::Parts| {
            let user = request.headers.get("x-user").ok_or(ScopeError::NoPrincipal)?;
            Ok(Scope::of_parts(&[b"orders", user.as_bytes()]))
        })
        .build()
        .unwrap();
    let app = counting(&layer, &runs);
    let by = |user: &'static str| {
        let mut request = post("a");
        request
            .headers_mut()
            .insert("x-user", HeaderValue::from_static(user));
        request
    };
    assert_eq!(send(&app, by("alice")).await.body, "run 1");
    assert_eq!(send(&app, by("bob")).await.body, "run 2");
    assert_eq!(send(&app, by("alice")).await.body, "run 1");
    let nobody = send(&app, post("a")).await;
    assert_eq!((nobody.status, nobody.code().as_str()), (401, "SEM0409"));
    assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
}

/// Truxify#3539, remitlend#1680 under the profile `raw`.
async fn a_key_reused_for_another_request_is_a_mismatch_and_leaves_the_first_untouched(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    let first = send(&app, request("POST", "/orders?x=1", "a", r#"{"a":1,"b":2}"#)).await;
    for other in [
        request("POST", "/refunds?x=1", "a", r#"{"a":1,"b":2}"#),
        request("POST", "/orders?x=2", "a", r#"{"a":1,"b":2}"#),
        request("PATCH", "/orders?x=1", "a", r#"{"a":1,"b":2}"#),
        request("POST", "/orders?x=1", "a", r#"{"b":2,"a":1}"#),
        request("POST", "/orders?x=1", "a", ""),
    ] {
        let answer = send(&app, other).await;
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.outcome()),
            (422, "SEM0404", "mismatch")
        );
        assert!(
            !String::from_utf8_lossy(&answer.body).contains("run 1"),
            "the stored answer is not shown"
        );
    }
    let mut traced = request("POST", "/orders?x=1", "a", r#"{"a":1,"b":2}"#);
    traced
        .headers_mut()
        .insert("traceparent", HeaderValue::from_static("00-1-2-03"));
    let again = send(&app, traced).await;
    assert!(again.replayed());
    assert_eq!((again.status, again.body), (first.status, first.body));
    assert_eq!(runs.count(), 1);
}

async fn the_same_body_under_a_new_key_runs(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    assert_eq!(send(&app, post("a")).await.body, "run 1");
    assert_eq!(send(&app, post("b")).await.body, "run 2");
}

/// KeeperHub#1849.
async fn a_stored_error_is_replayed_and_marked(world: World) {
    let runs = Runs::default();
    let app = app(&world.layer(), &runs, |n| async move {
        answer(402, format!("declined {n}"))
    });
    let first = send(&app, post("a")).await;
    let again = send(&app, post("a")).await;
    assert_eq!((again.status, &again.body[..]), (402, &b"declined 1"[..]));
    assert!(!first.replayed() && again.replayed());
}

/// Rule K11: of what is past its retention nobody knows any more which of the two it was.
async fn a_refusal_is_never_told_as_succeeded_after_its_retention(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| config.keep.retention_ms = 1_000);
    let app = app(&layer, &runs, |_| async {
        let mut response = answer(422, "no such account");
        response
            .headers_mut()
            .insert("semel-outcome", HeaderValue::from_static("refused"));
        response
    });
    // The store has no room for the text of the refusal.
    store.fail("complete", Fault::TooLarge, 1);
    assert_eq!(send(&app, post("a")).await.outcome(), "refused");
    let again = send(&app, post("a")).await;
    assert_eq!(
        (again.status, again.outcome(), again.replayed()),
        (422, "refused", true)
    );
    world.clock.advance_ms(1_000);
    let late = send(&app, post("a")).await;
    assert_eq!(
        (late.status, late.code().as_str(), late.outcome()),
        (410, "SEM0408", "unknown")
    );
    assert_eq!(runs.count(), 1);
}

/// asgi-idempotency-header#11.
async fn after_retention_a_retry_is_told_expired_and_after_the_tombstone_it_runs_anew(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        config.keep.retention_ms = 1_000;
        config.keep.tombstone_ms = 2_000;
    });
    let app = counting(&layer, &runs);
    send(&app, post("a")).await;
    world.clock.advance_ms(1_000);
    let late = send(&app, post("a")).await;
    assert_eq!(
        (late.status, late.code().as_str(), late.outcome()),
        (410, "SEM0408", "unknown")
    );
    let other = send(&app, request("POST", "/orders", "a", "other")).await;
    assert_eq!(other.status, 422, "a tombstone still knows what was asked");
    world.clock.advance_ms(2_000);
    assert_eq!(send(&app, post("a")).await.body, "run 2");
}

/// IdempotencyGuard: a hash of the first megabyte.
async fn long_bodies_that_differ_only_at_the_end_are_a_mismatch(world: World) {
    let runs = Runs::default();
    let app = counting(
        &world.layer_with(|config| config.request_bytes_max = 3 << 20),
        &runs,
    );
    let with = |last: u8| {
        let mut body = vec![b'x'; 2 << 20];
        body.push(last);
        post("a").map(|_| axum::body::Body::from(body))
    };
    assert_eq!(send(&app, with(b'1')).await.status, 201);
    assert_eq!(send(&app, with(b'2')).await.status, 422);
    assert_eq!(send(&app, with(b'1')).await.status, 201);
    assert_eq!(runs.count(), 1);
}
