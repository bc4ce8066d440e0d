//! Closing the scope of a principal that is gone (rule K13).

use serde_json::{Value, json};

use super::{MINE, World};

async fn done(world: &World, scope: &str, id: &str) {
    let claim = json!({"scope": scope, "id": id, "input": "x", "nonce": MINE});
    let granted = world.ask("claim", claim).await;
    assert_eq!(granted.status, 201, "{granted:?}");
    let complete = json!({
        "scope": scope, "id": id, "token": granted.body["token"], "nonce": MINE, "outcome": "succeeded", "output": "secret",
    });
    assert_eq!(world.ask("complete", complete).await.status, 200);
}

fn close(more: Value) -> Value {
    let mut body = json!({"scope": "orders/ada", "by": "ann", "why": "account deleted"});
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn a_closed_scope_answers_nothing_of_what_it_held() {
    let world = World::new();
    for n in 0..3 {
        done(&world, "orders/ada", &format!("o-{n}")).await;
    }
    done(&world, "orders/bob", "o-0").await;
    let (mut page, mut closed) = (None::<Value>, 0);
    loop {
        let more = page.map_or(json!({"limit": 2}), |page| json!({"limit": 2, "page": page}));
        let step = world.ask("close_scope", close(more)).await;
        assert_eq!(step.status, 200, "{step:?}");
        closed += step.body["closed"].as_u64().unwrap();
        match step.body.get("next") {
            Some(next) => page = Some(next.clone()),
            None => break,
        }
    }
    assert_eq!(closed, 3);
    let again = world.ask("close_scope", close(json!({}))).await;
    assert_eq!(again.body, json!({"closed": 0, "changed": 0}));
    for n in 0..3 {
        let claim = json!({"scope": "orders/ada", "id": format!("o-{n}"), "input": "x"});
        assert_eq!(
            world.ask("claim", claim).await.problem(),
            (410, "SEM0710", Some("unknown"))
        );
    }
    let theirs = world
        .ask("claim", json!({"scope": "orders/bob", "id": "o-0", "input": "x"}))
        .await;
    assert_eq!((theirs.status, &theirs.body["output"]), (200, &json!("secret")));
}

#[tokio::test]
async fn who_and_why_are_asked_for_and_pages_must_be_of_here() {
    let world = World::new();
    for (body, wanted) in [
        (json!({"scope": "orders/ada", "by": "ann"}), "why"),
        (close(json!({"by": ""})), "by: 0 bytes"),
        (close(json!({"limit": 0})), "limit: 0 records"),
        (close(json!({"page": "!"})), "`page` is not a `next`"),
        (close(json!({"page": "AAAA"})), "page token"),
        (close(json!({"tombstone_ms": -1})), "tombstone"),
    ] {
        let refused = world.ask("close_scope", body).await;
        assert_eq!(refused.problem(), (400, "SEM0701", None), "{wanted}");
        assert!(refused.detail().contains(wanted), "{wanted}: {refused:?}");
    }
}
