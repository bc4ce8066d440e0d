//! Each reply of the store, as status, code, outcome and body.

use serde_json::{Value, json};

use super::{MINE, THEIRS, World};

#[tokio::test]
async fn a_new_key_is_granted_with_token_nonce_end_and_attempt() {
    let world = World::new();
    let granted = world.claim(MINE).await;
    assert_eq!(
        (granted.status, granted.header("semel-outcome")),
        (201, Some("running"))
    );
    assert_eq!(granted.body["result"], "granted");
    assert_eq!(granted.body["nonce"], MINE);
    assert_eq!(granted.body["attempt"], 1);
    assert!(granted.body["token"].is_i64());
    assert!(granted.body["until"].as_str().unwrap().ends_with('Z'));

    let again = world.claim(MINE).await;
    assert_eq!(
        (again.status, &again.body),
        (201, &granted.body),
        "rule K3: a lost answer is asked for again"
    );
}

#[tokio::test]
async fn a_nonce_that_the_caller_leaves_out_is_drawn_and_told() {
    let world = World::new();
    let body = json!({"scope": "orders", "id": "o-7", "input": ""});
    let granted = world.ask("claim", body.clone()).await;
    assert_eq!(granted.body["nonce"].as_str().unwrap().len(), 32);
    assert_eq!(
        world.ask("claim", body).await.problem().1,
        "SEM0707",
        "the next one is a stranger"
    );
}

#[tokio::test]
async fn a_duplicate_is_told_how_long_the_first_may_take() {
    let world = World::new();
    world.claim(MINE).await;
    let busy = world.claim(THEIRS).await;
    assert_eq!(busy.problem(), (409, "SEM0707", Some("running")));
    assert_eq!(busy.header("retry-after"), Some("5"));
    assert_eq!(busy.body["lease_left_ms"], 30_000);
    world.clock.advance_ms(28_500);
    assert_eq!(
        world.claim(THEIRS).await.header("retry-after"),
        Some("2"),
        "the lease ends in 1.5 s"
    );
}

#[tokio::test]
async fn what_is_done_is_answered_with_its_outcome() {
    for (word, output, header) in [
        ("succeeded", Some(json!("order 7")), "succeeded"),
        ("succeeded", Some(json!({"base64": "/w=="})), "succeeded"),
        ("refused", Some(json!("no stock")), "refused"),
        ("forgotten", None, "succeeded"),
    ] {
        let world = World::new();
        let lease = world.claim(MINE).await;
        let more = match &output {
            Some(output) => json!({"outcome": word, "output": output}),
            None => json!({"outcome": word}),
        };
        let stored = world.leased("complete", &lease, more.clone()).await;
        assert_eq!(stored.status, 200, "{stored:?}");
        let repeated = world.leased("complete", &lease, more).await;
        assert_eq!(
            repeated.body, stored.body,
            "rule K2: the same completion again is fine"
        );

        let done = world.claim(THEIRS).await;
        assert_eq!((done.status, done.header("semel-outcome")), (200, Some(header)));
        assert_eq!(done.body["result"], "done");
        assert_eq!(done.body["outcome"], word);
        assert_eq!(done.body.get("output"), output.as_ref());
        assert_eq!(done.body["retain_until"], stored.body["retain_until"]);
    }
}

#[tokio::test]
async fn another_input_is_a_mismatch_and_sees_nothing() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    world
        .leased(
            "complete",
            &lease,
            json!({"outcome": "succeeded", "output": "secret"}),
        )
        .await;
    let other = json!({"scope": "orders", "id": "o-7", "input": "3 teapots"});
    let mismatch = world.ask("claim", other).await;
    assert_eq!(mismatch.problem(), (422, "SEM0709", Some("mismatch")));
    assert!(!mismatch.body.to_string().contains("secret"));
}

#[tokio::test]
async fn a_fingerprint_made_elsewhere_names_the_same_input() {
    let world = World::new();
    world.claim(MINE).await;
    let made = semel_core::key::hex(&semel_core::Fingerprint::of(b"2 teapots").to_bytes());
    let claim = |fingerprint: &str| json!({"scope": "orders", "id": "o-7", "fingerprint": fingerprint, "nonce": MINE});
    assert_eq!(world.ask("claim", claim(&made)).await.status, 201);
    assert_eq!(world.ask("claim", claim(&made.to_uppercase())).await.status, 201);
    assert_eq!(
        world.ask("claim", claim(&"01".repeat(33))).await.problem().1,
        "SEM0709"
    );
}

#[tokio::test]
async fn a_lost_owner_makes_the_key_unknown_until_it_is_settled() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    world.clock.advance_ms(30_000);
    let unknown = world.claim(THEIRS).await;
    assert_eq!(unknown.problem(), (409, "SEM0708", Some("unknown")));
    assert_eq!(
        unknown.header("retry-after"),
        None,
        "rule K11: time does not change it"
    );
    assert_eq!(unknown.body["token"], lease.body["token"]);

    let settle = |token: &Value, verdict: &str| json!({"scope": "orders", "id": "o-7", "token": token, "verdict": verdict, "by": "ann", "why": "asked the bank"});
    let wrong = world.ask("settle", settle(&json!(99), "succeeded")).await;
    assert_eq!(
        wrong.problem(),
        (409, "SEM0712", None),
        "another run is not judged"
    );
    let mut found = settle(&unknown.body["token"], "succeeded");
    found["output"] = json!("payment 7");
    let settled = world.ask("settle", found.clone()).await;
    assert!(
        settled.status == 200 && settled.body["retain_until"].is_string(),
        "{settled:?}"
    );
    assert_eq!(world.ask("settle", found).await.status, 200, "a repeat is fine");
    let otherwise = world
        .ask("settle", settle(&unknown.body["token"], "did_not_happen"))
        .await;
    assert_eq!(otherwise.problem(), (409, "SEM0713", None));
    assert_eq!(world.claim(THEIRS).await.body["output"], "payment 7");
}

#[tokio::test]
async fn what_did_not_happen_may_be_claimed_again() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let abandoned = world.leased("abandon", &lease, json!({})).await;
    assert!(
        abandoned.status == 200 && abandoned.body["at"].is_string(),
        "{abandoned:?}"
    );
    let unknown = world.claim(THEIRS).await;
    assert_eq!(unknown.problem().1, "SEM0708", "unknown at once");
    let settled = world
        .ask(
            "settle",
            json!({"scope": "orders", "id": "o-7", "token": unknown.body["token"], "verdict": "did_not_happen",
                   "by": "ann", "why": "not at the bank"}),
        )
        .await;
    assert!(
        settled.status == 200 && settled.body["at"].is_string(),
        "{settled:?}"
    );
    let next = world.claim(THEIRS).await;
    assert_eq!(next.status, 201);
    assert!(
        next.body["token"].as_i64() > lease.body["token"].as_i64(),
        "tokens only grow"
    );
    let late = world
        .leased("complete", &lease, json!({"outcome": "succeeded"}))
        .await;
    assert_eq!(
        late.problem(),
        (409, "SEM0712", None),
        "the late owner has lost its lease"
    );
}

#[tokio::test]
async fn under_rerun_the_next_claim_takes_over_with_a_larger_token() {
    let world = World::new();
    let claim = |nonce: &str| json!({"scope": "s", "id": "i", "input": "x", "owner_lost": "rerun", "lease_ms": 1_000, "nonce": nonce});
    let first = world.ask("claim", claim(MINE)).await;
    world.clock.advance_ms(1_000);
    let second = world.ask("claim", claim(THEIRS)).await;
    assert_eq!((second.status, &second.body["attempt"]), (201, &json!(2)));
    assert!(second.body["token"].as_i64() > first.body["token"].as_i64());
}

#[tokio::test]
async fn an_extension_moves_the_end_of_the_lease() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let longer = world.leased("extend", &lease, json!({"lease_ms": 60_000})).await;
    assert!(
        longer.status == 200 && longer.body["until"].as_str() > lease.body["until"].as_str(),
        "{longer:?}"
    );
    assert_eq!(
        world.claim(MINE).await.problem().1,
        "SEM0707",
        "rule K3: an extended claim is not granted again"
    );
    world
        .leased("complete", &lease, json!({"outcome": "succeeded"}))
        .await;
    assert_eq!(
        world.leased("extend", &lease, json!({})).await.problem().1,
        "SEM0712"
    );
}

#[tokio::test]
async fn what_is_released_is_free_and_its_nonce_is_spent() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let back = world.leased("release", &lease, json!({})).await;
    assert!(back.status == 200 && back.body["at"].is_string(), "{back:?}");
    assert_eq!(
        world.claim(MINE).await.problem(),
        (409, "SEM0711", None),
        "rule K4"
    );
    assert_eq!(world.claim(THEIRS).await.status, 201);

    let withdrawn = json!({"scope": "orders", "id": "o-8", "nonce": MINE});
    assert_eq!(
        world.ask("release", withdrawn).await.status,
        200,
        "before the claim arrives"
    );
    let late = json!({"scope": "orders", "id": "o-8", "input": "x", "nonce": MINE});
    assert_eq!(world.ask("claim", late).await.problem().1, "SEM0711");
}

#[tokio::test]
async fn an_end_is_not_changed_into_another_one() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    world
        .leased("complete", &lease, json!({"outcome": "succeeded", "output": "a"}))
        .await;
    for (operation, more) in [
        ("complete", json!({"outcome": "succeeded", "output": "b"})),
        ("complete", json!({"outcome": "refused", "output": "a"})),
        ("release", json!({})),
        ("abandon", json!({})),
    ] {
        let conflict = world.leased(operation, &lease, more).await;
        assert_eq!(conflict.problem(), (409, "SEM0713", None), "{operation}");
    }
}

#[tokio::test]
async fn a_nonce_without_its_token_is_not_enough_and_a_token_without_its_nonce_neither() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    for (token, nonce) in [
        (json!(lease.body["token"].as_i64().unwrap() + 1), MINE),
        (lease.body["token"].clone(), THEIRS),
    ] {
        let done =
            json!({"scope": "orders", "id": "o-7", "token": token, "nonce": nonce, "outcome": "succeeded"});
        assert_eq!(
            world.ask("complete", done).await.problem().1,
            "SEM0712",
            "rule K9"
        );
    }
}

#[tokio::test]
async fn a_refusal_is_never_told_as_succeeded_after_its_retention() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let keep = json!({"outcome": "refused", "output": "x", "retention_ms": 1_000, "tombstone_ms": 5_000});
    world.leased("complete", &lease, keep).await;
    world.clock.advance_ms(1_000);
    let gone = world.claim(THEIRS).await;
    assert_eq!(gone.problem(), (410, "SEM0710", Some("unknown")));
    assert!(gone.body["until"].is_string());
    let read = world.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
    assert_eq!((read.status, &read.body["state"]), (200, &json!("tombstone")));
    world.clock.advance_ms(5_000);
    assert_eq!(
        world.claim(THEIRS).await.status,
        201,
        "forgotten: it is a new key"
    );
}

#[tokio::test]
async fn a_look_shows_every_state_and_never_the_nonce() {
    let world = World::new();
    let look = async || world.ask("read", json!({"scope": "orders", "id": "o-7"})).await;
    assert_eq!(look().await.problem(), (404, "SEM0706", None));
    let lease = world.claim(MINE).await;
    let claimed = look().await;
    assert_eq!(claimed.header("semel-outcome"), Some("running"));
    assert_eq!(claimed.body["state"], "claimed");
    assert_eq!(claimed.body["owner_lost"], "hold");
    assert_eq!(claimed.body["until"], lease.body["until"]);
    world.leased("abandon", &lease, json!({})).await;
    let unknown = look().await;
    assert_eq!(unknown.header("semel-outcome"), Some("unknown"));
    assert_eq!(unknown.body["state"], "unknown");
    world
        .leased("complete", &lease, json!({"outcome": "refused", "output": "no"}))
        .await;
    let done = look().await;
    assert_eq!(done.header("semel-outcome"), Some("refused"));
    assert_eq!(done.body["output"], "no");
    assert_eq!(done.body["output_bytes"], 2);
    for shown in [claimed, unknown, done] {
        assert!(!shown.body.to_string().contains(MINE), "{shown:?}");
        assert_eq!(shown.body["token"], lease.body["token"]);
    }
}

#[tokio::test]
async fn a_batch_answers_each_item_as_if_it_were_alone() {
    let world = World::new();
    let lease = world.claim(MINE).await;
    let claims = json!({"claims": [
        {"scope": "orders", "id": "o-7", "input": "2 teapots", "nonce": THEIRS},
        {"scope": "orders", "id": "o-8", "input": "x", "nonce": MINE},
        {"scope": "orders", "id": "o-8", "input": "x"},
        {"scope": "orders", "id": "o-7", "input": "other"},
    ]});
    let many = world.ask("claim_many", claims).await;
    assert_eq!(many.status, 200);
    let statuses: Vec<_> = many.body["replies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["status"].clone())
        .collect();
    assert_eq!(statuses, [409, 201, 409, 422]);
    assert_eq!(
        many.body["replies"][2]["body"]["code"], "SEM0707",
        "decided in the order asked"
    );
    let granted = &many.body["replies"][1]["body"];
    let completions = json!({"completions": [
        {"scope": "orders", "id": "o-7", "token": lease.body["token"], "nonce": MINE, "outcome": "succeeded"},
        {"scope": "orders", "id": "o-8", "token": 99, "nonce": MINE, "outcome": "succeeded"},
        {"scope": "orders", "id": "o-8", "token": granted["token"], "nonce": MINE, "outcome": "refused"},
    ]});
    let many = world.ask("complete_many", completions).await;
    let statuses: Vec<_> = many.body["replies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["status"].clone())
        .collect();
    assert_eq!(statuses, [200, 409, 200]);
}

#[tokio::test]
async fn keys_are_listed_by_scope_and_state_page_by_page() {
    let world = World::new();
    for (scope, id) in [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1")] {
        world
            .ask(
                "claim",
                json!({"scope": scope, "id": id, "input": "x", "nonce": MINE, "lease_ms": 1_000}),
            )
            .await;
    }
    world
        .ask("release", json!({"scope": "a", "id": "3", "nonce": MINE}))
        .await;
    let mut ids = Vec::new();
    let mut query = json!({"scope": "a", "limit": 1});
    loop {
        let page = world.ask("list", query.clone()).await;
        assert_eq!(page.status, 200, "{page:?}");
        ids.extend(
            page.body["keys"]
                .as_array()
                .unwrap()
                .iter()
                .map(|key| key["id"].clone()),
        );
        match page.body.get("next") {
            Some(next) => query["page"] = next.clone(),
            None => break,
        }
    }
    ids.sort_by_key(ToString::to_string);
    assert_eq!(ids, ["1", "2"]);
    let all = world.ask("list", json!({})).await;
    assert_eq!(all.body["keys"].as_array().unwrap().len(), 3);
    let none = world.ask("list", json!({"state": "unknown"})).await;
    assert_eq!(none.body["keys"], json!([]));
    world.clock.advance_ms(1_000);
    let lost = world.ask("list", json!({"state": "unknown"})).await;
    assert_eq!(
        lost.body["keys"].as_array().unwrap().len(),
        3,
        "by the store's time, swept or not"
    );
    let wrong = world.ask("list", json!({"page": "AAAA"})).await;
    assert_eq!(wrong.problem(), (400, "SEM0701", None));
}

/// A thousand outputs of a mebibyte would be an answer of a gigabyte.
#[tokio::test]
async fn outputs_beyond_the_limit_of_an_answer_are_left_out_by_name_and_can_be_asked_for_alone() {
    let world = World::new();
    for id in ["a", "b", "c"] {
        let claim = json!({"scope": "s", "id": id, "input": "x", "nonce": MINE});
        let granted = world.ask("claim", claim).await;
        let complete = json!({
            "scope": "s", "id": id, "token": granted.body["token"], "nonce": MINE, "outcome": "succeeded",
            "output": "x".repeat(if id == "b" { 1 << 20 } else { 900_000 }),
        });
        assert_eq!(world.ask("complete", complete).await.status, 200);
    }
    let claim = |id: &str| json!({"scope": "s", "id": id, "input": "x"});
    // Limits of the tests: 4 MiB.
    let ids = ["a", "b", "c", "a", "b", "new", "c"];
    let many = json!({"claims": ids.map(claim)});
    let answer = world.ask("claim_many", many).await;
    let statuses: Vec<_> = answer.body["replies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["status"].as_u64().unwrap())
        .collect();
    assert_eq!(
        statuses,
        [200, 200, 200, 200, 413, 201, 413],
        "a grant always has room"
    );
    let left_out = &answer.body["replies"][4]["body"];
    assert_eq!(
        (&left_out["code"], &left_out["outcome"]),
        (&json!("SEM0720"), &json!("succeeded"))
    );
    assert!(
        left_out["detail"]
            .as_str()
            .unwrap()
            .contains("reply_bytes_max = 4194304"),
        "{left_out}"
    );
    assert_eq!(world.ask("claim", claim("b")).await.status, 200);
}
