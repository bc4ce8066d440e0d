//! Keys that the server gave out: the hidden field of a form that a browser sends twice.

use std::sync::Arc;

use http::{Method, Request};
use semel_core::host::random_16;
use semel_core::{Clock as _, Scope, SystemClock, Timestamp};
use semel_http::{BodyKey, Config, IssuedKeys};
use semel_keys::{Issuer, Secret};

use super::support::*;

on_each_store![
    a_form_that_a_browser_sends_twice_is_one_run_with_one_answer,
    a_key_that_was_not_given_out_to_the_caller_is_refused_and_nothing_is_run,
    a_key_past_its_time_is_refused_unless_it_was_used_in_time,
    where_both_are_accepted_a_client_may_still_make_its_own,
    a_store_that_is_away_says_so_and_never_that_a_key_is_too_old,
];

fn issuer() -> Arc<Issuer> {
    Arc::new(Issuer::new([Secret::new([7; 32]).unwrap()]).unwrap())
}

fn later() -> Timestamp {
    SystemClock.now().plus_ms(3_600_000)
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
    let over = SystemClock.now().plus_ms(-1);
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
        (422, "SEM0433", "refused")
    );
    let text = String::from_utf8_lossy(&answer.body);
    assert!(text.contains("was not used"), "{text}");
    assert_eq!(runs.count(), 1);
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
    let over = given_out(SystemClock.now().plus_ms(-1));
    assert_eq!(send(&app, form(&over)).await.code(), "SEM0411");
    assert_eq!(send(&app, form(&over)).await.code(), "SEM0433");
}
