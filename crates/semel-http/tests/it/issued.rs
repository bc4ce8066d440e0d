//! Keys that the server gave out: the hidden field of a form that a browser sends twice.

use std::sync::Arc;

use http::{Method, Request};
use semel_core::host::random_16;
use semel_core::{Clock as _, Scope, SystemClock, Timestamp};
use semel_http::{BodyKey, Config, IssuedKeys, Profile};
use semel_keys::{Issuer, Secret};

use super::support::*;

on_each_store![
    a_form_that_a_browser_sends_twice_is_one_run_with_one_answer,
    a_form_with_a_file_that_a_browser_sends_twice_is_one_run_too,
    a_key_that_was_not_given_out_to_the_caller_is_refused_and_nothing_is_run,
    a_key_past_its_time_is_refused_unless_it_was_used_in_time,
    two_requests_around_the_end_of_a_key_are_one_run,
    a_key_whose_record_has_ended_is_not_told_as_unused,
    looking_for_an_old_key_counts_among_those_that_run,
    where_both_are_accepted_a_client_may_still_make_its_own,
    a_store_that_is_away_says_so_and_never_that_a_key_is_too_old,
];

fn issuer() -> Arc<Issuer> {
    Arc::new(Issuer::new([Secret::new([7; 32]).unwrap()]).unwrap())
}

fn later() -> Timestamp {
    SystemClock.now().plus_ms(3_600_000)
}

/// By more than `store_ms_max`.
fn long_over() -> Timestamp {
    SystemClock.now().plus_ms(-60_000)
}

/// The scope of [`World::layer_with`].
fn given_out(until: Timestamp) -> String {
    issuer().issue_in(&Scope::new("tests").unwrap(), until, random_16())
}

fn forms(required: bool) -> impl Fn(&mut Config) {
    move |config| {
        config.body_keys = vec![BodyKey::Form("order_key".to_owned())];
        config.required_for = vec![Method::POST];
        config.issued = Some(IssuedKeys {
            ids: issuer(),
            required,
        });
    }
}

fn form(key: &str) -> Request<axum::body::Body> {
    Request::post("/orders")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(axum::body::Body::from(format!("teapots=2&order_key={key}")))
        .unwrap()
}

async fn a_form_that_a_browser_sends_twice_is_one_run_with_one_answer(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer_with(forms(true)), &runs);
    let key = given_out(later());
    let first = send(&app, form(&key)).await;
    assert_eq!(first.body, "run 1");
    let second = send(&app, form(&key)).await;
    assert!(
        second.replayed() && second.body == first.body && second.status == first.status,
        "{second:?}"
    );
    // The form was opened again: another order.
    assert_eq!(send(&app, form(&given_out(later()))).await.body, "run 2");
    // In a header it is the same key.
    let again = Request::post("/orders")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("idempotency-key", &key)
        .body(axum::body::Body::from(format!("teapots=2&order_key={key}")))
        .unwrap();
    assert_eq!(send(&app, again).await.body, "run 1");
}

/// Each time it is sent with a boundary of its own.
async fn a_form_with_a_file_that_a_browser_sends_twice_is_one_run_too(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        forms(true)(config);
        config.profile = Profile::Multipart;
    });
    let app = counting(&layer, &runs);
    let key = given_out(later());
    let upload = |boundary: &str, key: &str, file: &str| {
        let part = |head: &str, text: &str| {
            format!("--{boundary}\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n")
        };
        let body = [
            part("name=\"scan\"; filename=\"scan.pdf\"", file),
            part("name=\"order_key\"", key),
            format!("--{boundary}--\r\n"),
        ];
        Request::post("/orders")
            .header(
                "content-type",
                format!("multipart/form-data; boundary={boundary}"),
            )
            .body(axum::body::Body::from(body.concat()))
            .unwrap()
    };
    assert_eq!(send(&app, upload("first", &key, "%PDF 1")).await.body, "run 1");
    let second = send(&app, upload("second", &key, "%PDF 1")).await;
    assert!(second.replayed() && second.body == "run 1", "{second:?}");
    let other = send(&app, upload("third", &key, "%PDF 2")).await;
    assert_eq!((other.status, other.code().as_str()), (422, "SEM0404"));
    let made_up = send(&app, upload("first", "made up", "%PDF 1")).await;
    assert_eq!(made_up.code(), "SEM0432");
    let cut = Request::post("/orders")
        .header("content-type", "multipart/form-data; boundary=first")
        .body(axum::body::Body::from("--first\r\n"))
        .unwrap();
    let cut = send(&app, cut).await;
    assert_eq!((cut.status, cut.code().as_str()), (400, "SEM0402"));
    assert_eq!(runs.count(), 1);
}

async fn a_key_that_was_not_given_out_to_the_caller_is_refused_and_nothing_is_run(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer_with(forms(true)), &runs);
    let to_another = issuer().issue_in(&Scope::new("others").unwrap(), later(), random_16());
    let to_a_principal = issuer().issue(&Scope::new("tests").unwrap(), b"ada", later(), random_16());
    let forger = Issuer::new([Secret::new([8; 32]).unwrap()]).unwrap();
    let forged = forger.issue_in(&Scope::new("tests").unwrap(), later(), random_16());
    let changed = given_out(later()).replace("s1.", "s2.");
    for key in ["order-7", &to_another, &to_a_principal, &forged, &changed] {
        let answer = send(&app, form(key)).await;
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.outcome()),
            (422, "SEM0432", "refused"),
            "{key}"
        );
    }
    assert_eq!((runs.count(), store.calls("claim")), (0, 0));
}

async fn a_key_past_its_time_is_refused_unless_it_was_used_in_time(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer_with(forms(true)), &runs);
    let over = long_over();
    let (used, unused) = (given_out(over), given_out(over));
    // In its time, which a layer that knows nothing of it stands for.
    let earlier = counting(
        &world.layer_with(|config| {
            forms(true)(config);
            config.issued = None;
        }),
        &runs,
    );
    assert_eq!(send(&earlier, form(&used)).await.body, "run 1");
    let late = send(&app, form(&used)).await;
    assert!(late.replayed() && late.body == "run 1", "{late:?}");
    let answer = send(&app, form(&unused)).await;
    assert_eq!(
        (answer.status, answer.code().as_str(), answer.outcome()),
        (422, "SEM0433", "unknown")
    );
    let text = answer.detail();
    assert!(text.contains("no record of it is here"), "{text}");
    assert_eq!(runs.count(), 1);
}

/// The first may have come in time and be on its way to the store: the claim decides, not two clocks.
async fn two_requests_around_the_end_of_a_key_are_one_run(world: World) {
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        forms(true)(config);
        config.store_ms_max = 60_000;
    });
    let app = counting(&layer, &runs);
    let key = given_out(SystemClock.now().plus_ms(-1));
    let (one, two) = tokio::join!(send(&app, form(&key)), send(&app, form(&key)));
    assert_eq!((&one.body[..], &two.body[..]), (&b"run 1"[..], &b"run 1"[..]));
    assert_eq!(runs.count(), 1);
}

async fn a_key_whose_record_has_ended_is_not_told_as_unused(world: World) {
    let runs = Runs::default();
    let key = given_out(long_over());
    // In its time, which a layer that knows nothing of it stands for.
    let earlier = world.layer_with(|config| {
        forms(true)(config);
        config.issued = None;
    });
    assert_eq!(send(&counting(&earlier, &runs), form(&key)).await.body, "run 1");
    let keep = Config::default().keep;
    world.clock.advance_ms(keep.retention_ms + keep.tombstone_ms + 1);
    let answer = send(&counting(&world.layer_with(forms(true)), &runs), form(&key)).await;
    assert_eq!(
        (answer.code().as_str(), answer.outcome(), runs.count()),
        ("SEM0433", "unknown", 1)
    );
    let text = answer.detail();
    assert!(text.contains("An earlier one may have been"), "{text}");
    assert!(!text.contains("not used"), "{text}");
}

async fn looking_for_an_old_key_counts_among_those_that_run(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let layer = world.layer_with(|config| {
        forms(true)(config);
        config.running_max = 1;
    });
    let app = counting(&layer, &runs);
    store.fail("read", Fault::Silent, 1);
    let looks = send_soon(&app, form(&given_out(long_over())));
    until("the store is asked", async || store.calls("read") == 1).await;
    assert_eq!(send(&app, form(&given_out(long_over()))).await.code(), "SEM0412");
    assert_eq!(store.calls("read"), 1);
    looks.abort();
}

async fn where_both_are_accepted_a_client_may_still_make_its_own(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer_with(forms(false)), &runs);
    assert_eq!(send(&app, form("order-7")).await.body, "run 1");
    assert_eq!(send(&app, form(&given_out(later()))).await.body, "run 2");
    let to_another = issuer().issue_in(&Scope::new("others").unwrap(), later(), random_16());
    assert_eq!(send(&app, form(&to_another)).await.code(), "SEM0432");
}

async fn a_store_that_is_away_says_so_and_never_that_a_key_is_too_old(world: World) {
    let (world, store) = world.faulty();
    let runs = Runs::default();
    let app = counting(&world.layer_with(forms(true)), &runs);
    store.fail("read", Fault::Down, 1);
    let over = given_out(long_over());
    assert_eq!(send(&app, form(&over)).await.code(), "SEM0411");
    assert_eq!(send(&app, form(&over)).await.code(), "SEM0433");
}
