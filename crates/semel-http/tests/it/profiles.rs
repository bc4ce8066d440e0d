//! What counts as the same request, and what a client is told when it does not.

use std::sync::Arc;

use http::HeaderValue;
use semel_core::{Claim, Fingerprint, Key, KeyStoreExt, Nonce, OwnerLost, Scope};
use semel_http::{Pointer, Profile};

use super::support::*;

on_each_store![
    json_members_in_another_order_replay_under_the_json_profile_and_mismatch_under_raw,
    a_retry_with_a_new_traceparent_replays,
    a_mismatch_names_the_part_that_differs_and_nothing_of_the_first,
    a_mismatch_is_named_while_the_first_still_runs,
    a_record_of_another_profile_is_compared_in_its_own,
    a_record_of_an_unknown_recipe_is_a_mismatch_and_never_replayed,
];

on_servers_too![
    json_members_in_another_order_replay_under_the_json_profile_and_mismatch_under_raw,
    a_mismatch_names_the_part_that_differs_and_nothing_of_the_first,
    a_mismatch_is_named_while_the_first_still_runs,
    a_record_of_another_profile_is_compared_in_its_own,
];

/// remitlend#1680.
async fn json_members_in_another_order_replay_under_the_json_profile_and_mismatch_under_raw(world: World) {
    let (one, other) = (r#"{"amount":10.0,"to":"x"}"#, r#"{ "to": "x", "amount": 10 }"#);
    for (profile, key, same) in [(Profile::Json, "a", true), (Profile::Raw, "b", false)] {
        let runs = Runs::default();
        let app = counting(&world.layer_with(|config| config.profile = profile), &runs);
        let first = send(&app, request("POST", "/orders", key, one)).await;
        let again = send(&app, request("POST", "/orders", key, other)).await;
        assert_eq!((first.status, again.replayed(), runs.count()), (201, same, 1));
        assert_eq!(again.status, if same { 201 } else { 422 });
    }
}

/// APISIX plugin.
async fn a_retry_with_a_new_traceparent_replays(world: World) {
    let runs = Runs::default();
    let app = counting(&world.layer(), &runs);
    for (replayed, trace) in [(false, "00-a-b-01"), (true, "00-c-d-01")] {
        let mut request = post("a");
        for (name, value) in [
            ("traceparent", trace),
            ("authorization-date", trace),
            ("user-agent", trace),
        ] {
            request
                .headers_mut()
                .insert(name, HeaderValue::from_str(value).unwrap());
        }
        assert_eq!(send(&app, request).await.replayed(), replayed);
    }
    assert_eq!(runs.count(), 1);
}

fn detail(answer: &Answer) -> String {
    assert_eq!(
        (answer.status, answer.code().as_str(), answer.outcome()),
        (422, "SEM0404", "mismatch")
    );
    let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    problem["detail"].as_str().unwrap().to_owned()
}

async fn a_mismatch_names_the_part_that_differs_and_nothing_of_the_first(world: World) {
    let layer = world.layer_with(|config| config.profile = Profile::Json);
    let app = counting(&layer, &Runs::default());
    send(
        &app,
        request("POST", "/orders", "a", r#"{"amount":40,"card":"4111"}"#),
    )
    .await;
    for (method, uri, body, part) in [
        (
            "POST",
            "/orders",
            r#"{"amount":41,"card":"4111"}"#,
            "in the body in /amount;",
        ),
        (
            "POST",
            "/orders",
            r#"{"amount":40,"card":"4111","tip":1}"#,
            "in the body in /tip;",
        ),
        (
            "POST",
            "/orders",
            r#"{"amount":40}"#,
            "in the body, which lacks a field",
        ),
        (
            "POST",
            "/refunds",
            r#"{"amount":40,"card":"4111"}"#,
            "in the target;",
        ),
        (
            "PUT",
            "/orders?x",
            r#"{"amount":40,"card":"4111"}"#,
            "in the method, the target;",
        ),
        ("POST", "/orders", "no json", "in the body;"),
    ] {
        let told = detail(&send(&app, request(method, uri, "a", body)).await);
        assert!(told.contains(part), "{method} {uri} {body}: {told}");
        assert!(!told.contains("4111") && !told.contains("40"), "{told}");
    }
    let only = world.layer_with(|config| {
        config.profile = Profile::JsonOnly(vec![
            Pointer::new("/amount").unwrap(),
            Pointer::new("/to").unwrap(),
        ]);
    });
    let app = counting(&only, &Runs::default());
    send(
        &app,
        request("POST", "/orders", "b", r#"{"amount":1,"to":"x","note":"a"}"#),
    )
    .await;
    let again = send(
        &app,
        request("POST", "/orders", "b", r#"{"amount":1,"to":"x","note":"b"}"#),
    )
    .await;
    assert!(again.replayed(), "the note does not count");
    let told = detail(&send(&app, request("POST", "/orders", "b", r#"{"amount":1,"to":"y"}"#)).await);
    assert!(told.contains("in the body in /to;"), "{told}");
}

async fn a_mismatch_is_named_while_the_first_still_runs(world: World) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&world.layer(), &runs, &gate);
    let first = send_soon(&app, post("a"));
    gate.arrived().await;
    let told = detail(&send(&app, request("POST", "/refunds", "a", "{}")).await);
    assert!(told.contains("in the target;"), "{told}");
    gate.open();
    assert_eq!(first.await.unwrap().status, 201);
}

/// Rule K13: the service was given another profile while records of the old one are kept.
async fn a_record_of_another_profile_is_compared_in_its_own(world: World) {
    let runs = Runs::default();
    let body = r#"{"amount":1,"to":"x"}"#;
    let profiles = [Profile::Raw, Profile::Json, Profile::Form];
    for (n, first) in profiles.iter().enumerate() {
        let layer = |profile: &Profile| world.layer_with(|config| config.profile = profile.clone());
        let key = n.to_string();
        send(
            &counting(&layer(first), &runs),
            request("POST", "/orders", &key, body),
        )
        .await;
        for later in &profiles {
            let app = counting(&layer(later), &runs);
            let again = send(&app, request("POST", "/orders", &key, body)).await;
            assert!(again.replayed(), "{first:?} then {later:?}: {again:?}");
            let other = send(&app, request("POST", "/orders", &key, "{}")).await;
            assert_eq!(other.status, 422, "{first:?} then {later:?}");
        }
    }
    assert_eq!(runs.count(), 3);
}

/// Rule K13: written by a later build, say.
async fn a_record_of_an_unknown_recipe_is_a_mismatch_and_never_replayed(world: World) {
    let claim = Claim {
        key: Key::new(Scope::new("tests").unwrap(), "a").unwrap(),
        fingerprint: Fingerprint::builder_of(99).part(b"?").finish(),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Rerun,
        lease_ms: 1_000,
    };
    world.store.claim(&claim).await.unwrap();
    world.clock.advance_ms(2_000);
    let runs = Runs::default();
    let told = detail(&send(&counting(&world.layer(), &runs), post("a")).await);
    assert!(told.contains("does not know"), "{told}");
    assert_eq!(runs.count(), 0);
    drop(Arc::clone(&world.store));
}
