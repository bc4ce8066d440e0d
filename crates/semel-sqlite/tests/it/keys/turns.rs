//! Batches of keys beside transactions: of this process, of another one, and at the end.

use std::time::Duration;

use futures_util::poll;
use semel_core::claim::{Claim, ClaimReply};
use semel_core::store::MixedBatch;
use semel_core::{ErrorKind, KeyStore, KeyStoreExt};
use semel_sqlite::{Config, Sqlite};

use super::{open, request, store};

fn only(claim: &Claim) -> MixedBatch {
    MixedBatch {
        claims: vec![claim.clone()],
        ..MixedBatch::default()
    }
}

#[tokio::test]
async fn writers_of_one_process_take_turns_in_the_order_in_which_they_came() {
    let (db, _clock, _dir) = store().await;
    let first = db.begin().await.unwrap();
    let claim = request();
    let batch = only(&claim);
    let mut batch = db.transact_many(&batch);
    assert!(poll!(&mut batch).is_pending());
    let mut second = Box::pin(db.begin());
    assert!(poll!(&mut second).is_pending());
    db.commit(first).await.unwrap();

    let (replies, second) = tokio::join!(batch, second);
    assert!(matches!(replies.claims[..], [Ok(ClaimReply::Granted { .. })]));
    let mut second = second.unwrap();
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM semel_key WHERE id = ?1")
        .bind(claim.key.id())
        .fetch_one(&mut *second)
        .await
        .unwrap();
    assert_eq!(seen, 1, "the batch was committed before the second began");
}

#[tokio::test]
async fn a_batch_whose_caller_has_left_is_not_begun_and_holds_nobody_up() {
    let (db, _clock, _dir) = store().await;
    let first = db.begin().await.unwrap();
    let claim = request();
    let batch = only(&claim);
    let mut left = db.transact_many(&batch);
    assert!(poll!(&mut left).is_pending());
    drop(left);
    db.commit(first).await.unwrap();

    let second = db.begin().await.unwrap();
    db.commit(second).await.unwrap();
    assert_eq!(db.read(&claim.key).await.unwrap(), None);
}

#[tokio::test]
async fn a_batch_waits_for_another_process_as_long_as_the_setting_says() {
    let (db, clock, dir) = store().await;
    let mut config = Config::new(dir.path().join("test.db"));
    (config.clock, config.busy_timeout) = (clock, Duration::from_millis(30));
    let impatient = Sqlite::open(config).await.unwrap();
    let claim = request();
    let held = db.begin().await.unwrap();
    let error = impatient.claim(&claim).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    assert!(error.to_string().contains("raise busy_timeout"), "{error}");
    db.commit(held).await.unwrap();
    let reply = impatient.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Granted { .. }));
}

/// Descriptors that this process has of a file.
#[cfg(target_os = "linux")]
fn descriptors(file: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = all.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
    targets.filter(|target| target == file).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_closed_store_has_let_go_of_its_file_and_refuses_as_not_done() {
    let (db, clock, dir) = store().await;
    let file = dir.path().canonicalize().unwrap().join("test.db");
    let (claim, other) = (request(), request());
    db.claim(&claim).await.unwrap();
    assert!(descriptors(&file) >= 4, "two of the driver, two for keys");
    let batch = only(&other);
    let mut running = db.transact_many(&batch);
    assert!(poll!(&mut running).is_pending());
    db.close().await;
    assert_eq!(descriptors(&file), 0);
    let begun = match running.await.claims.remove(0) {
        Ok(ClaimReply::Granted { .. }) => true,
        Err(error) if error.kind() == ErrorKind::NotApplied => false,
        other => panic!("{other:?}"),
    };
    let again = open(&dir, clock).await;
    assert_eq!(again.read(&other.key).await.unwrap().is_some(), begun);
    again.close().await;
    let errors = [
        db.claim(&claim).await.unwrap_err(),
        db.transact_many(&batch).await.claims.remove(0).unwrap_err(),
        db.begin().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::NotApplied, "{error}");
    }
}
