//! Tokens: missing, wrong, for another scope, for another operation, replaced.

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};

use super::super::access::{Access, Grant, Operation, Scopes, TokenDigest};
use super::{Answer, LIMITS, World, request};

fn world() -> World {
    let grant = |name: &str, scopes: &[&str], operations: &[Operation]| Grant {
        name: name.to_owned(),
        scopes: scopes.iter().map(|text| Scopes::parse(text)).collect(),
        operations: operations.to_vec(),
    };
    let shop = grant("shop", &["orders/*"], &Operation::DEFAULT);
    let tokens = vec![
        (TokenDigest::of(b"old-token-of-shop"), shop.clone()),
        (TokenDigest::of(b"new-token-of-shop"), shop),
        (
            TokenDigest::of(b"token-of-reader-0"),
            grant("reader", &["*"], &[Operation::Read, Operation::List]),
        ),
        (
            TokenDigest::of(b"token-of-operator"),
            grant("ops", &["*"], &[Operation::Settle]),
        ),
    ];
    let clock = std::sync::Arc::new(semel_testkit::clock::ManualClock::default());
    let store = std::sync::Arc::new(semel_core::model::MemoryKeys::default());
    World::with(store, Access::new(tokens), LIMITS, clock)
}

async fn ask(world: &World, token: Option<&str>, operation: &str, body: Value) -> Answer {
    let mut request = request(operation, body.to_string());
    if let Some(token) = token {
        request
            .headers_mut()
            .insert("authorization", token.parse().unwrap());
    }
    world.send(request).await
}

fn claim(scope: &str) -> Value {
    json!({"scope": scope, "id": "1", "input": "x"})
}

#[tokio::test]
async fn a_missing_or_wrong_token_is_401() {
    let world = world();
    for token in [
        None,
        Some(""),
        Some("Bearer"),
        Some("Bearer "),
        Some("Basic b2xkOnRva2Vu"),
        Some("old-token-of-shop"),
        Some("Bearer old-token-of-sho"),
        Some("Bearer old-token-of-shoq"),
        Some("Bearer old-token-of-shop, x"),
    ] {
        let answer = ask(&world, token, "claim", claim("orders/1")).await;
        assert_eq!(answer.problem(), (401, "SEM0704", None), "{token:?}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
}

#[tokio::test]
async fn a_token_is_for_its_scopes() {
    let world = world();
    let shop = Some("Bearer old-token-of-shop");
    assert_eq!(ask(&world, shop, "claim", claim("orders/1")).await.status, 201);
    for scope in ["orders", "carts/1", "order"] {
        let answer = ask(&world, shop, "claim", claim(scope)).await;
        assert_eq!(answer.problem(), (403, "SEM0705", None), "{scope}");
        assert!(
            answer.detail().contains("the token `shop` is not for this scope"),
            "{answer:?}"
        );
    }
    let batch = json!({"claims": [claim("orders/2"), claim("carts/1")]});
    assert_eq!(ask(&world, shop, "claim_many", batch).await.status, 403);
    let listed = ask(&world, shop, "list", json!({})).await;
    assert!(
        listed.status == 403 && listed.detail().contains("name one of its own"),
        "{listed:?}"
    );
    let own = ask(&world, shop, "list", json!({"scope": "orders/2"})).await;
    assert_eq!(own.body["keys"], json!([]), "the batch was refused whole");
    for operation in ["extend", "complete", "release", "abandon", "read", "wait"] {
        let example = super::super::routes::find(&format!("/v1/keys/{operation}"))
            .unwrap()
            .example;
        let answer = ask(&world, shop, operation, serde_json::from_str(example).unwrap()).await;
        assert_eq!(answer.problem(), (403, "SEM0705", None), "{operation}");
    }
}

#[tokio::test]
async fn a_token_is_for_its_operations() {
    let world = world();
    let reader = Some("Bearer token-of-reader-0");
    assert_eq!(ask(&world, reader, "list", json!({})).await.status, 200);
    let answer = ask(&world, reader, "claim", claim("orders/1")).await;
    assert_eq!(answer.problem(), (403, "SEM0705", None));
    assert!(
        answer.detail().contains("the token `reader` may not claim"),
        "{answer:?}"
    );
    let shop = Some("Bearer new-token-of-shop");
    let settle: Value =
        serde_json::from_str(super::super::routes::find("/v1/keys/settle").unwrap().example).unwrap();
    assert_eq!(
        ask(&world, shop, "settle", settle.clone()).await.status,
        403,
        "a person's work"
    );
    let ops = Some("Bearer token-of-operator");
    assert_eq!(
        ask(&world, ops, "settle", settle).await.problem().1,
        "SEM0712",
        "there is no such run"
    );
}

#[tokio::test]
async fn while_a_token_is_replaced_both_are_good() {
    let world = world();
    let old = ask(
        &world,
        Some("Bearer old-token-of-shop"),
        "claim",
        claim("orders/1"),
    )
    .await;
    assert_eq!(old.status, 201);
    let new = ask(
        &world,
        Some("bEARER new-token-of-shop"),
        "claim",
        claim("orders/2"),
    )
    .await;
    assert_eq!(new.status, 201, "the scheme's case does not matter");
}

#[tokio::test]
async fn the_document_needs_no_token() {
    let answer = world()
        .send(Request::get("/v1/openapi.json").body(Body::empty()).unwrap())
        .await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.body["security"], json!([{"token": []}]));
}

#[tokio::test]
async fn without_tokens_web_pages_are_kept_out() {
    let world = World::new();
    for (name, value) in [("origin", "http://evil.example"), ("host", "evil.example")] {
        let mut request = request("list", "{}");
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(
            world.send(request).await.problem(),
            (403, "SEM0705", None),
            "{name}"
        );
    }
    let mut request = request("list", "{}");
    request
        .headers_mut()
        .insert("host", "localhost:7081".parse().unwrap());
    assert_eq!(world.send(request).await.status, 200);
}
