//! Parked messages that are handled again, and that are not.

use semel_core::ErrorKind;

use super::*;

/// Everything is parked behind a first `refuse` of its key; what waits there is handled by the next version.
async fn parked(messages: &[&str]) -> World<Sqlite> {
    let mut w = sqlite(true, Poison::Park, messages).await;
    let end = committed(w.settle().await);
    assert_eq!(end.parked, messages.len());
    w.calls();
    w
}

fn failed(done: &Redriven) -> Vec<&[u8]> {
    done.failed.iter().map(|message| &message.id[..]).collect()
}

#[tokio::test]
async fn a_parked_key_that_fails_again_does_not_hold_up_the_others() {
    for bad in ["constraint", "later"] {
        let first = "k:refuse";
        let bad = format!("k:{bad}");
        let w = parked(&[first, &bad, "l:refuse", "k:c", ":refuse", "l:d"]).await;
        let fixed = Fixed(Ledger::default());
        let done = redrive(&w.store, &fixed, &w.options, 100).await.unwrap();
        assert_eq!((done.settled, done.keys_failed), (4, 1));
        assert_eq!(failed(&done), [b"1"]);
        assert_eq!(done.failed[0].key.as_deref(), Some(&b"k"[..]));
        assert_eq!(
            w.entries().await,
            ["mended", "mended", "d", "mended"],
            "what is before the bad message is settled, and so is every other key"
        );
        // A later message of the key does not overtake it.
        let done = redrive(&w.store, &fixed, &w.options, 100).await.unwrap();
        assert_eq!((done.settled, failed(&done)), (0, vec![&b"1"[..]]));
    }
}

#[tokio::test]
async fn a_discarded_message_lets_those_behind_it_go_on_and_is_never_handled() {
    let mut w = parked(&["k:refuse", "k:c"]).await;
    let id = Bytes::from("0");
    for (by, why) in [("", "broken"), ("ann", " ")] {
        let error = discard(&w.store, &w.options, &id, by, why).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let message = discard(&w.store, &w.options, &id, "ann", "no such account").await;
    assert_eq!(message.unwrap().unwrap().data.as_deref(), Some(&b"refuse"[..]));
    let again = discard(&w.store, &w.options, &id, "ann", "no such account").await;
    assert_eq!(again.unwrap(), None);
    let done = redrive(&w.store, &w.ledger, &w.options, 100).await.unwrap();
    assert_eq!((done.settled, done.keys_failed), (1, 0));
    assert_eq!(w.entries().await, ["c"]);

    // Delivered again under another position, it is a duplicate.
    w.log.extend(log(&["k:refuse"]));
    let end = committed(w.settle().await);
    assert_eq!((end.duplicates, end.parked), (1, 0));
}

#[tokio::test]
async fn a_call_settles_no_more_than_its_limit() {
    let w = parked(&["k:refuse", "k:a", "k:b"]).await;
    let fixed = Fixed(Ledger::default());
    for settled in [2, 1, 0] {
        let done = redrive(&w.store, &fixed, &w.options, 2).await.unwrap();
        assert_eq!(done.settled, settled);
    }
    assert_eq!(w.entries().await, ["mended", "a", "b"]);
}

/// A thousand keys whose cause is not mended must not keep one call busy for hours, nor those behind them from being tried.
#[tokio::test]
async fn a_call_ends_when_so_many_keys_have_failed_and_the_next_goes_on_behind_them() {
    let bad: Vec<String> = (0..=KEYS_FAILED_MAX).map(|n| format!("k{n}:refuse")).collect();
    let mut messages: Vec<&str> = bad.iter().map(String::as_str).collect();
    messages.extend(["l:refuse", "l:c"]);
    let w = parked(&messages).await;
    let first = redrive(&w.store, &w.ledger, &w.options, 2).await.unwrap();
    assert_eq!((first.settled, first.keys_failed), (0, KEYS_FAILED_MAX));
    assert_eq!(first.failed.len(), KEYS_FAILED_MAX);
    // Only the key behind them is new, and one that is mended; then nothing is left to try.
    let fixed = Fixed(Ledger::default());
    let rest = redrive_after(&w.store, &fixed, &w.options, first.next.unwrap(), 3)
        .await
        .unwrap();
    assert_eq!((rest.settled, rest.keys_failed), (3, 0));
    assert_eq!(w.entries().await, ["mended", "mended", "c"]);
    let end = redrive_after(&w.store, &fixed, &w.options, rest.next.unwrap(), 3)
        .await
        .unwrap();
    assert_eq!(end, Redriven::default());
}
