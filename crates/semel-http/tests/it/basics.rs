//! One request, sent again.

use super::support::*;

#[tokio::test]
async fn a_retry_gets_the_first_answer_and_the_handler_runs_once() {
    let (store, _) = memory();
    let runs = Runs::default();
    let app = counting(&anonymous(&store), &runs);
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
    assert_eq!(
        first.header("semel-retained-until"),
        again.header("semel-retained-until")
    );
    assert_eq!(
        first.header("semel-guarantee"),
        Some("guarded;failover=forgets"),
        "memory forgets"
    );
}

#[tokio::test]
async fn a_client_that_gives_up_changes_nothing_and_its_retry_replays() {
    let (store, _) = memory();
    let runs = Runs::default();
    let layer = anonymous(&store);
    let gate = Gate::default();
    let app = {
        let (runs, gate) = (runs.clone(), gate.clone());
        app(&layer, move || {
            let (runs, gate) = (runs.clone(), gate.clone());
            async move {
                let n = runs.add();
                gate.pass().await;
                answer(201, format!("run {n}"))
            }
        })
    };
    let first = tokio::spawn({
        let app = app.clone();
        async move { send(&app, post("a")).await }
    });
    gate.arrived().await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled(), "the client is gone");
    gate.open();
    layer.drain().await;
    let again = send(&app, post("a")).await;
    assert_eq!((again.status, &again.body[..]), (201, &b"run 1"[..]));
    assert!(again.replayed());
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn a_panic_is_unknown_and_is_not_run_again() {
    let (store, clock) = memory();
    let runs = Runs::default();
    let layer = anonymous(&store);
    let app = {
        let runs = runs.clone();
        app(&layer, move || {
            runs.add();
            async move { panic!("charged, then this") }
        })
    };
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (500, "SEM0413", "unknown")
    );
    clock.forward_ms(30_001);
    let again = send(&app, post("a")).await;
    assert_eq!(
        (again.status, again.code().as_str(), again.outcome()),
        (409, "SEM0406", "unknown")
    );
    assert_eq!(
        again.header("retry-after"),
        None,
        "time does not settle it (rule K11)"
    );
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn the_store_down_before_the_claim_runs_nothing_and_says_when_to_come_back() {
    let (memory, _) = memory();
    let faulty = Faulty::over(memory);
    let store: std::sync::Arc<dyn semel_core::KeyStore> = faulty.clone();
    let runs = Runs::default();
    let app = counting(&anonymous(&store), &runs);
    faulty.fail("claim", Fault::Down, 1);
    let first = send(&app, post("a")).await;
    assert_eq!(
        (first.status, first.code().as_str(), first.outcome()),
        (503, "SEM0411", "refused")
    );
    assert_eq!(first.header("retry-after"), Some("2"));
    assert_eq!(runs.count(), 0);
    assert_eq!(send(&app, post("a")).await.status, 201);
}
