//! Ids given by the server: for one principal, once, and only in time.

use std::sync::Arc;

use semel_core::claim::ClaimReply;
use semel_core::host::random_16;
use semel_core::model::MemoryKeys;
use semel_core::{Clock as _, KeyStoreExt as _, Scope, SystemClock};
use semel_keys::{Issuer, Secret};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::super::request::{ClaimBody, read};
use super::{Access, Api, LIMITS, MINE, World, router};

fn world(secrets: &[u8]) -> World {
    let secrets = secrets.iter().map(|byte| Secret::new([*byte; 32]).unwrap());
    let issuer = Issuer::new(secrets).ok();
    let api = Api::new(Access::default(), LIMITS, CancellationToken::new()).with_issuer(issuer);
    let api = Arc::new(api);
    api.serve(Arc::new(MemoryKeys::default()));
    World {
        router: router(Arc::clone(&api)),
        api,
        clock: Arc::default(),
    }
}

fn claim(id: &Value, principal: &str) -> Value {
    json!({"scope": "orders", "id": id, "principal": principal, "input": "2 teapots", "nonce": MINE})
}

#[tokio::test]
async fn an_issued_id_is_claimed_by_whom_it_was_issued_to() {
    let world = world(&[1]);
    let issued = world
        .ask("issue", json!({"scope": "orders", "principal": "ada"}))
        .await;
    assert!(
        issued.status == 201 && issued.body["until"].is_string(),
        "{issued:?}"
    );
    let id = &issued.body["id"];
    assert_eq!(
        world.ask("claim", claim(id, "bob")).await.problem(),
        (422, "SEM0719", None)
    );
    assert_eq!(world.ask("claim", claim(id, "ada")).await.status, 201);
    let mut elsewhere = claim(id, "ada");
    elsewhere["scope"] = json!("carts");
    assert_eq!(world.ask("claim", elsewhere).await.problem().1, "SEM0719");
    let made_up = world.ask("claim", claim(&json!("order-7"), "ada")).await;
    assert_eq!(made_up.problem(), (422, "SEM0719", None));
    let again = world
        .ask("issue", json!({"scope": "orders", "principal": "ada"}))
        .await;
    assert_ne!(again.body["id"], *id, "never the same id twice");
}

/// It would be everybody's: whoever has read it in a form could run the operation first.
#[tokio::test]
async fn an_issued_id_without_its_principal_is_refused() {
    let world = world(&[1]);
    let issued = world
        .ask("issue", json!({"scope": "orders", "principal": "ada"}))
        .await;
    let id = &issued.body["id"];
    let bare = json!({"scope": "orders", "id": id, "input": "2 teapots", "nonce": MINE});
    let refused = world.ask("claim", bare.clone()).await;
    assert_eq!(refused.problem(), (422, "SEM0719", None));
    assert!(refused.detail().contains("`principal`"), "{refused:?}");
    let refused = world.ask("claim_many", json!({"claims": [bare]})).await;
    assert_eq!(refused.problem(), (422, "SEM0719", None));
    let ours = world.ask("claim", claim(id, "ada")).await;
    assert_eq!(ours.status, 201, "nothing was done before: {ours:?}");
}

#[tokio::test]
async fn an_id_past_its_time_is_refused_unless_it_was_used_in_time() {
    let world = world(&[1]);
    // As the API issues them, at a time that is over.
    let issuer = Issuer::new([Secret::new([1; 32]).unwrap()]).unwrap();
    let past = SystemClock.now().plus_ms(-60_000);
    let issued = || issuer.issue(&Scope::new("orders").unwrap(), b"ada", past, random_16());
    let (used, unused) = (json!(issued()), json!(issued()));
    // What an instance stored when the time was not over.
    let body = claim(&used, "ada").to_string();
    let claiming = read::<ClaimBody>(body.as_bytes()).unwrap().claim("").unwrap();
    let store = world.api.store.get().unwrap();
    let reply = store.claim(&claiming.claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Granted { .. }), "{reply:?}");
    let late = world.ask("claim", claim(&used, "ada")).await;
    assert_eq!(late.status, 201, "its record answers: the same nonce again");
    let late = world.ask("claim", claim(&unused, "ada")).await;
    assert_eq!(late.problem(), (422, "SEM0719", None));
    assert!(late.detail().contains("no record of it is here"), "{late:?}");
}

#[tokio::test]
async fn without_a_secret_nothing_is_issued() {
    let world = world(&[]);
    let issue = world
        .ask("issue", json!({"scope": "orders", "principal": "ada"}))
        .await;
    assert_eq!(issue.problem(), (404, "SEM0700", None));
    assert!(issue.detail().contains("issue_secret"), "{issue:?}");
    assert_eq!(
        world.ask("claim", claim(&json!("x"), "ada")).await.problem().1,
        "SEM0719"
    );
}

#[tokio::test]
async fn principals_and_times_have_their_limits() {
    let world = world(&[1]);
    for (body, detail) in [
        (
            json!({"scope": "s", "principal": ""}),
            "principal: 0 bytes is outside 1..=255",
        ),
        (
            json!({"scope": "s", "principal": "x".repeat(256)}),
            "principal: 256 bytes",
        ),
        (
            json!({"scope": "s", "principal": "p", "good_ms": 0}),
            "good: 0 ms is outside 1..=604800000",
        ),
        (
            json!({"scope": "s", "principal": "p", "good_ms": 604_800_001}),
            "good: 604800001 ms",
        ),
    ] {
        let answer = world.ask("issue", body).await;
        assert!(
            answer.status == 400 && answer.detail().contains(detail),
            "{answer:?}"
        );
    }
    for body in [
        json!({"principal": "p"}),
        json!({"scope": "s", "gateway": "g", "principal": "p"}),
        json!({"scope": "s", "host": "h", "principal": "p"}),
    ] {
        let answer = world.ask("issue", body).await;
        assert!(
            answer.status == 400 && answer.detail().contains("either `scope`"),
            "{answer:?}"
        );
    }
    let many = json!({"claims": [claim(&json!("x"), "ada")]});
    assert!(
        world
            .ask("claim_many", many)
            .await
            .detail()
            .contains("`principal` is for a single claim")
    );
}
