//! What operators and submitters ask of a saga's owner.

use semel_core::limits::SAGA_REQUESTS_MAX;
use semel_core::saga::Status;
use semel_core::store::{RequestReply, SagaRequest, Save, SaveReply};

use super::world::{World, first_save, id, last_save};

fn cancel(why: &str) -> SagaRequest {
    SagaRequest::Cancel {
        by: "ann".into(),
        why: why.into(),
    }
}

/// Rule S3: an owner that decided without it must decide again; one that sleeps is woken.
pub async fn a_request_raises_the_version_and_makes_the_saga_due(w: &World) {
    let held = w.held("order-1").await;
    let far = Some(w.store.saga_time().await.unwrap().plus_ms(86_400_000));
    let sleeps = Save {
        release: true,
        due_at: far,
        ..first_save(&held)
    };
    assert_eq!(w.save(&sleeps).await, SaveReply::Saved);
    assert_eq!(
        w.store
            .request_saga(&held.owned.id, &cancel("late"))
            .await
            .unwrap(),
        RequestReply::Noted
    );
    let woken = w.claim(10).await.remove(0);
    assert_eq!(woken.record.version, 3);
    assert_eq!(woken.record.requests[0].request, cancel("late"));
    w.store
        .request_saga(&held.owned.id, &SagaRequest::Retry { by: "bob".into() })
        .await
        .unwrap();
    let save = Save {
        owned: woken.owned.clone(),
        version: 3,
        ..first_save(&held)
    };
    assert_eq!(w.save(&save).await, SaveReply::WrongVersion);
}

/// A later request stays.
pub async fn requests_are_taken_up_with_the_write_that_names_them(w: &World) {
    let held = w.held("order-1").await;
    let id = held.owned.id.clone();
    for why in ["first", "second", "third"] {
        w.store.request_saga(&id, &cancel(why)).await.unwrap();
    }
    let requests = w.load(&id).await.requests;
    let whys: Vec<_> = requests.iter().map(|pending| pending.request.clone()).collect();
    assert_eq!(whys, [cancel("first"), cancel("second"), cancel("third")]);
    let misses = Save {
        version: 1,
        requests_done: requests[1].n,
        ..first_save(&held)
    };
    assert_eq!(w.save(&misses).await, SaveReply::WrongVersion);
    assert_eq!(
        w.load(&id).await.requests.len(),
        3,
        "a write that misses takes nothing up"
    );
    let save = Save { version: 4, ..misses };
    assert_eq!(w.save(&save).await, SaveReply::Saved);
    assert_eq!(w.load(&id).await.requests, requests[2..]);
}

/// They cannot pile up before an owner that does not come.
pub async fn requests_have_a_limit(w: &World) {
    let id = w.submit("order-1").await;
    for _ in 0..SAGA_REQUESTS_MAX {
        assert_eq!(
            w.store.request_saga(&id, &cancel("")).await.unwrap(),
            RequestReply::Noted
        );
    }
    assert_eq!(
        w.store.request_saga(&id, &cancel("")).await.unwrap(),
        RequestReply::TooMany
    );
    let long = SagaRequest::Retry {
        by: "x".repeat(5_000),
    };
    assert!(w.store.request_saga(&id, &long).await.is_err());
}

/// Nor one that never was.
pub async fn a_saga_that_ended_takes_no_request(w: &World) {
    let held = w.held("order-1").await;
    assert_eq!(w.save(&last_save(&held, 1)).await, SaveReply::Saved);
    let reply = w.store.request_saga(&held.owned.id, &cancel("")).await.unwrap();
    assert_eq!(reply, RequestReply::Ended(Status::Completed));
    assert_eq!(
        w.store.request_saga(&id("never"), &cancel("")).await.unwrap(),
        RequestReply::Absent
    );
    assert_eq!(w.load(&held.owned.id).await.version, 2);
}
