//! What bad input gets: each its status, its code and what to send; nothing is done.

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use super::{MINE, World, request};

/// A claim with one field otherwise.
fn claim(field: &str, value: Value) -> Value {
    let mut body = json!({"scope": "orders", "id": "o-7", "input": "x", "nonce": MINE});
    body[field] = value;
    body
}

#[tokio::test]
async fn a_body_that_cannot_be_read_names_the_field_and_shows_one_that_can() {
    let world = World::new();
    let base64_256 = json!({"base64": format!("{}AA==", "AAAA".repeat(85))});
    for (body, detail) in [
        (claim("lease", json!(1)), "unknown field `lease`"),
        (
            claim("lease_ms", json!("30000")),
            "lease_ms: invalid type: string",
        ),
        (claim("lease_ms", json!(2.5)), "lease_ms: invalid value"),
        (claim("lease_ms", json!(null)), "lease_ms: invalid type: null"),
        (claim("lease_ms", json!(0)), "lease: 0 ms is outside 1..=86400000"),
        (
            claim("lease_ms", json!(-1)),
            "lease: -1 ms is outside 1..=86400000",
        ),
        (
            claim("lease_ms", json!(86_400_001)),
            "lease: 86400001 ms is outside",
        ),
        (
            claim("wait_ms", json!(300_001)),
            "wait: 300001 ms is outside 0..=300000",
        ),
        (claim("wait_ms", json!(-1)), "wait: -1 ms is outside 0..=300000"),
        (
            claim("nonce", json!("00")),
            "nonce: a nonce is 32 hexadecimal digits",
        ),
        (
            claim("owner_lost", json!("retry")),
            "owner_lost: unknown variant `retry`, expected `hold` or `rerun`",
        ),
        (claim("scope", json!("")), "scope: 0 bytes is outside 1..=255"),
        (
            claim("scope", json!("é".repeat(128))),
            "scope: 256 bytes is outside 1..=255",
        ),
        (
            claim("id", json!("x".repeat(256))),
            "key id: 256 bytes is outside 1..=255",
        ),
        (claim("id", base64_256), "key id: 256 bytes is outside 1..=255"),
        (
            claim("id", json!(7)),
            "id: invalid type: integer `7`, expected text, or {\"base64\"",
        ),
        (claim("id", json!({"base64": "?"})), "id: this is no base64"),
        (claim("id", json!({"hex": "00"})), "unknown field `hex`"),
        (
            claim("fingerprint", json!("00".repeat(33))),
            "send either `input`",
        ),
        (json!({"scope": "s", "id": "i"}), "send either `input`"),
        (
            json!({"scope": "s", "id": "i", "fingerprint": "00"}),
            "a fingerprint is 66 hexadecimal digits",
        ),
        (json!({"id": "i", "input": "x"}), "missing field `scope`"),
        (json!([]), "invalid length 0"),
        (json!("x"), "invalid type"),
    ] {
        let answer = world.ask("claim", body.clone()).await;
        assert_eq!(answer.problem(), (400, "SEM0701", None), "{body}");
        assert!(answer.detail().contains(detail), "{body}: {}", answer.detail());
        let example = answer.body["example"].clone();
        assert_eq!(
            World::new().ask("claim", example).await.status,
            201,
            "the example can be sent as it is"
        );
    }
    let listed = world.ask("list", json!({})).await;
    assert_eq!(listed.body["keys"], json!([]), "nothing was done");
}

#[tokio::test]
async fn every_operation_refuses_what_is_not_json_of_its_form() {
    let world = World::new();
    for route in super::super::routes::ROUTES {
        let operation = route.path.rsplit('/').next().unwrap();
        for body in [
            "",
            "{",
            "{}}",
            "nul",
            "{\"scope\":",
            "[1]",
            "{\"a\":1}",
            "\u{feff}{}",
            "{\"\\ud800\":1}",
        ] {
            if operation == "list" && body == "{}}" {
                assert!(
                    world
                        .send(request(operation, body))
                        .await
                        .detail()
                        .contains("after the JSON")
                );
            }
            let answer = world.send(request(operation, body)).await;
            assert_eq!(answer.problem(), (400, "SEM0701", None), "{operation} {body:?}");
        }
        let not_utf8 = Body::from(&b"{\"scope\":\"\xff\"}"[..]);
        assert_eq!(
            world.send(request(operation, not_utf8)).await.status,
            400,
            "{operation}"
        );
        let example: Value = serde_json::from_str(route.example).unwrap();
        let mut more = example.clone();
        more["surprise"] = json!(1);
        assert!(
            world
                .ask(operation, more)
                .await
                .detail()
                .contains("unknown field `surprise`"),
            "{operation}"
        );
        for field in example.as_object().unwrap().keys() {
            let mut null = example.clone();
            null[field] = json!(null);
            let answer = world.ask(operation, null).await;
            assert_eq!(answer.status, 400, "{operation}: {field} is null");
        }
    }
}

#[tokio::test]
async fn a_field_twice_is_refused() {
    let body = format!(r#"{{"scope":"a","scope":"b","id":"i","input":"x","nonce":"{MINE}"}}"#);
    let answer = World::new().send(request("claim", body)).await;
    assert!(answer.detail().contains("duplicate field `scope`"), "{answer:?}");
}

#[tokio::test]
async fn outputs_and_times_have_their_limits() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    for (more, detail) in [
        (json!({"outcome": "done"}), "unknown variant `done`"),
        (json!({"outcome": "forgotten", "output": ""}), "has no `output`"),
        (
            json!({"outcome": "succeeded", "retention_ms": 0}),
            "retention: 0 ms is outside 1..=",
        ),
        (
            json!({"outcome": "succeeded", "tombstone_ms": -1}),
            "tombstone: -1 ms is outside 0..=",
        ),
        (
            json!({"outcome": "succeeded", "output": "x".repeat((1 << 20) + 1)}),
            "outcome: 1048577 bytes is outside 0..=1048576",
        ),
    ] {
        let answer = world.leased("complete", &lease, more).await;
        assert_eq!(answer.problem(), (400, "SEM0701", None));
        assert!(answer.detail().contains(detail), "{}", answer.detail());
    }
    let largest = json!({"outcome": "succeeded", "output": "x".repeat(1 << 20)});
    assert_eq!(world.leased("complete", &lease, largest).await.status, 200);
    for (more, detail) in [
        (
            json!({"verdict": "succeeded", "by": "", "why": "x"}),
            "by: 0 bytes is outside 1..=200",
        ),
        (
            json!({"verdict": "succeeded", "by": "ann", "why": ""}),
            "why: 0 bytes is outside 1..=1000",
        ),
        (
            json!({"verdict": "succeeded", "by": "ann"}),
            "missing field `why`",
        ),
        (
            json!({"verdict": "did_not_happen", "output": "", "by": "ann", "why": "x"}),
            "has no `output`",
        ),
    ] {
        let mut body = json!({"scope": "orders", "id": "o-7", "token": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let answer = world.ask("settle", body).await;
        assert!(
            answer.status == 400 && answer.detail().contains(detail),
            "{answer:?}"
        );
    }
    for limit in [json!(0), json!(201), json!(-1)] {
        let answer = world.ask("list", json!({"limit": limit})).await;
        assert!(answer.detail().contains("outside 1..=200"), "{answer:?}");
    }
}

#[tokio::test]
async fn batches_have_their_limits_and_are_refused_whole() {
    let world = World::new();
    let item = |id: usize| json!({"scope": "s", "id": id.to_string(), "input": ""});
    let batch = |items: usize| json!({"claims": (0..items).map(item).collect::<Vec<_>>()});
    for items in [0, 1_001] {
        let answer = world.ask("claim_many", batch(items)).await;
        assert!(
            answer
                .detail()
                .contains(&format!("batch: {items} items is outside 1..=1000")),
            "{answer:?}"
        );
    }
    let mut bad = batch(3);
    bad["claims"][1]["id"] = json!("");
    let answer = world.ask("claim_many", bad).await;
    assert!(
        answer.detail().contains("claims[1]: key id: 0 bytes"),
        "{answer:?}"
    );
    let mut waits = batch(1);
    waits["claims"][0]["wait_ms"] = json!(1);
    assert!(
        world
            .ask("claim_many", waits)
            .await
            .detail()
            .contains("single claim")
    );
    assert_eq!(
        world.ask("list", json!({})).await.body["keys"],
        json!([]),
        "none of them was claimed"
    );
    assert_eq!(
        world.ask("claim_many", batch(1_000)).await.body["replies"]
            .as_array()
            .unwrap()
            .len(),
        1_000
    );
}

#[tokio::test]
async fn a_body_over_the_cap_is_refused_with_the_caps_name() {
    let world = World::new();
    let large = world.send(request("claim", vec![b' '; (2 << 20) + 1])).await;
    assert_eq!(large.problem(), (413, "SEM0702", None));
    assert!(
        large.detail().contains("body_bytes_max = 2097152 of [api]"),
        "{large:?}"
    );
}

#[tokio::test]
async fn a_body_must_call_itself_json() {
    let world = World::new();
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("application/jsonp"),
    ] {
        let mut request = Request::post("/v1/keys/list");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let answer = world.send(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(answer.problem(), (415, "SEM0703", None), "{kind:?}");
    }
    let request = Request::post("/v1/keys/list").header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(
        world.send(request.body(Body::from("{}")).unwrap()).await.status,
        200
    );
}

#[tokio::test]
async fn a_body_that_breaks_off_or_never_comes_does_nothing() {
    let world = World::new();
    let broken = futures_util::stream::iter([Ok("{\"scope\""), Err(std::io::Error::other("gone"))]);
    let answer = world.send(request("claim", Body::from_stream(broken))).await;
    assert_eq!(answer.problem(), (400, "SEM0701", None));
    assert!(answer.detail().contains("broke off"));

    let quick = super::Limits {
        request_max: std::time::Duration::from_millis(20),
        ..super::LIMITS
    };
    let store = std::sync::Arc::new(semel_core::model::MemoryKeys::default());
    let world = World::with(store, super::Access::default(), quick, world.clock);
    let never = futures_util::stream::pending::<Result<&str, std::io::Error>>();
    let answer = world.send(request("claim", Body::from_stream(never))).await;
    assert_eq!(answer.problem(), (408, "SEM0702", None));
    assert!(
        answer.detail().contains("request_ms_max = 20 of [api]"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn other_paths_and_methods_say_where_to_look() {
    let world = World::new();
    for path in [
        "/",
        "/v1",
        "/v1/keys",
        "/v1/keys/claim/",
        "/v1/keys/Claim",
        "/v2/keys/claim",
    ] {
        let answer = world.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem(), (404, "SEM0700", None), "{path}");
        assert!(answer.detail().contains("/v1/openapi.json"));
    }
    for method in [
        Method::GET,
        Method::PUT,
        Method::DELETE,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ] {
        let request = Request::builder().method(method).uri("/v1/keys/claim");
        let answer = world.send(request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem(), (405, "SEM0700", None));
        assert_eq!(answer.header("allow"), Some("POST"));
    }
    let posted = world
        .send(Request::post("/v1/openapi.json").body(Body::empty()).unwrap())
        .await;
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET")));
}
