//! Laws of [`InboxStore`]: each runs over the in-memory model and every backend.
//!
//! A business row is stood in for by a mark in another scope: like one, it is written through the transaction.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use semel_core::inbox::{AdvancePosition, AssignPosition, Mark, Position, PositionKey};
use semel_core::limits::BATCH_ITEMS_MAX;
use semel_core::store::{InboxStore, PARKED_REASON_BYTES_MAX, Parked};
use semel_core::{ErrorKind, Nonce, Retry, Scope, StoreError, Timestamp};
use uuid::Uuid;

const DAY_MS: i64 = 86_400_000;

/// Writes one test per law over `$store`, an expression that makes a store of its own each time:
/// `(store, whatever must live as long)`.
///
/// ```ignore
/// semel_testkit::inbox_laws!(async { (MemoryInbox::default(), ()) });
/// ```
#[macro_export]
macro_rules! inbox_laws {
    ($store:expr) => {
        $crate::inbox_laws!(@each $store;
            an_id_is_new_once
            a_rollback_leaves_no_mark
            an_id_that_stands_twice_in_a_batch_is_new_once
            answers_go_to_the_right_messages
            scopes_do_not_meet
            ids_are_bytes
            a_bad_batch_marks_nothing
            a_savepoint_takes_its_marks_with_it
            copies_in_other_orders_at_once_are_new_once
            a_first_position_begins_where_it_was_told
            a_position_moves_with_its_transaction
            a_stale_owner_moves_nothing
            one_lost_partition_keeps_the_whole_batch
            assigning_waits_for_a_move_under_way
            a_parked_key_holds_its_later_messages
            parked_messages_come_back_in_order_and_whole
            a_message_is_parked_once
            taking_parked_messages_can_be_rolled_back
            a_parked_key_can_be_passed_over
            a_parked_message_can_be_discarded
            marks_are_forgotten_only_after_their_retention
        );
    };
    (@each $store:expr; $($law:ident)*) => {
        $(
            #[tokio::test]
            async fn $law() {
                let (store, _keep) = $store.await;
                $crate::laws::inbox::$law(&store).await;
            }
        )*
    };
}

fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

fn ids(names: &[&str]) -> Vec<Bytes> {
    names
        .iter()
        .map(|name| Bytes::copy_from_slice(name.as_bytes()))
        .collect()
}

/// Marks in a transaction of its own; repeated when another one was in the way.
async fn mark<S: InboxStore>(store: &S, scope: &Scope, ids: &[Bytes]) -> Vec<Mark> {
    again(|| async {
        let mut tx = store.begin_inbox().await?;
        let marks = store.mark_many(&mut tx, scope, ids, DAY_MS).await?;
        store.commit_inbox(tx).await?;
        Ok(marks)
    })
    .await
}

async fn again<T, F: Future<Output = Result<T, StoreError>>>(mut run: impl FnMut() -> F) -> T {
    loop {
        match run().await {
            Ok(value) => return value,
            Err(error) => assert_eq!(error.retry(), Retry::Later, "{error}"),
        }
    }
}

fn topic() -> PositionKey {
    PositionKey {
        group: "g".to_owned(),
        topic_id: Uuid::from_u128(7),
        partition: 0,
    }
}

fn wish(key: &PositionKey, initial: i64) -> AssignPosition {
    AssignPosition {
        key: key.clone(),
        topic: "t".to_owned(),
        owner: Nonce::random(),
        initial,
    }
}

async fn assign<S: InboxStore>(store: &S, key: &PositionKey, initial: i64) -> Position {
    let positions = store.assign_positions(&[wish(key, initial)]).await.unwrap();
    positions[0]
}

fn step(key: &PositionKey, from: Position, next: i64) -> AdvancePosition {
    AdvancePosition {
        key: key.clone(),
        epoch: from.epoch,
        owner: from.owner,
        expected: from.next_offset,
        next,
    }
}

/// A batch as a consumer commits it: one mark as the effect, and the position.
async fn batch<S: InboxStore>(store: &S, effect: &str, steps: &[AdvancePosition]) -> Result<(), StoreError> {
    let mut tx = store.begin_inbox().await?;
    store
        .mark_many(&mut tx, &scope("effects"), &ids(&[effect]), DAY_MS)
        .await?;
    match store.advance_positions(&mut tx, steps).await {
        Ok(()) => store.commit_inbox(tx).await,
        Err(error) => {
            store.rollback_inbox(tx).await?;
            Err(error)
        }
    }
}

fn parked(id: &str, key: Option<&str>) -> Parked {
    Parked {
        id: Bytes::copy_from_slice(id.as_bytes()),
        key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
        topic: "orders".to_owned(),
        partition: 3,
        offset: 41,
        headers: vec![
            ("a".to_owned(), Some(Bytes::from_static(b"\x00\xff"))),
            ("a".to_owned(), None),
        ],
        data: Some(Bytes::from_static(b"\x00data")),
        reason: "no such account".to_owned(),
        sent_at: Timestamp(5),
    }
}

async fn park<S: InboxStore>(store: &S, scope: &Scope, messages: &[Parked]) {
    let mut tx = store.begin_inbox().await.unwrap();
    store.park_many(&mut tx, scope, messages).await.unwrap();
    store.commit_inbox(tx).await.unwrap();
}

async fn take<S: InboxStore>(store: &S, scope: &Scope, limit: u32) -> Vec<Parked> {
    let mut tx = store.begin_inbox().await.unwrap();
    let taken = store.take_parked(&mut tx, scope, 0, limit).await.unwrap();
    store.commit_inbox(tx).await.unwrap();
    taken.map(|taken| taken.messages).unwrap_or_default()
}

async fn is_parked<S: InboxStore>(store: &S, scope: &Scope, key: &str) -> bool {
    let mut tx = store.begin_inbox().await.unwrap();
    let answer = store.parked_keys(&mut tx, scope, &ids(&[key])).await.unwrap();
    store.rollback_inbox(tx).await.unwrap();
    answer[0]
}

/// The whole point.
pub async fn an_id_is_new_once<S: InboxStore>(store: &S) {
    let (s, id) = (scope("s"), ids(&["a"]));
    assert_eq!(mark(store, &s, &id).await, [Mark::New]);
    assert_eq!(mark(store, &s, &id).await, [Mark::Duplicate]);
}

/// A handler that fails after the mark takes the mark with it.
pub async fn a_rollback_leaves_no_mark<S: InboxStore>(store: &S) {
    let (s, id) = (scope("s"), ids(&["a"]));
    let mut tx = store.begin_inbox().await.unwrap();
    assert_eq!(
        store.mark_many(&mut tx, &s, &id, DAY_MS).await.unwrap(),
        [Mark::New]
    );
    store.rollback_inbox(tx).await.unwrap();

    let mut tx = store.begin_inbox().await.unwrap();
    store.mark_many(&mut tx, &s, &id, DAY_MS).await.unwrap();
    drop(tx); // A dropped transaction is a rolled back one.
    assert_eq!(mark(store, &s, &id).await, [Mark::New]);
}

/// config-db#893.
pub async fn an_id_that_stands_twice_in_a_batch_is_new_once<S: InboxStore>(store: &S) {
    let marks = mark(store, &scope("s"), &ids(&["b", "a", "b", "b"])).await;
    assert_eq!(marks, [Mark::New, Mark::New, Mark::Duplicate, Mark::Duplicate]);
}

/// wolverine#2648: a batch of 100 with one already seen.
pub async fn answers_go_to_the_right_messages<S: InboxStore>(store: &S) {
    let s = scope("s");
    mark(store, &s, &ids(&["37"])).await;
    let names: Vec<String> = (0..100).rev().map(|n: u32| n.to_string()).collect();
    let all: Vec<Bytes> = names.iter().cloned().map(Bytes::from).collect();
    let marks = mark(store, &s, &all).await;
    for (name, mark) in names.iter().zip(marks) {
        assert_eq!(mark == Mark::Duplicate, name == "37", "{name}");
    }
}

/// One id, two handlers in one service: both run.
pub async fn scopes_do_not_meet<S: InboxStore>(store: &S) {
    for (s, id) in [("h1", "a"), ("h2", "a"), ("h", "1a"), ("H1", "a"), ("h1 ", "a")] {
        assert_eq!(mark(store, &scope(s), &ids(&[id])).await, [Mark::New], "{s} {id}");
    }
}

/// Never trimmed, folded, cut at a zero byte or compared by a collation.
pub async fn ids_are_bytes<S: InboxStore>(store: &S) {
    let s = Scope::new(b"\x00\xfe").unwrap();
    let all: Vec<Bytes> = [
        &b"a"[..],
        b"A",
        b"a ",
        b" a",
        b"a\0",
        b"\0",
        b"\xff\x00",
        b"\xc3\xa9",
        b"e\xcc\x81",
        &[7; 255],
        &[7; 254],
    ]
    .iter()
    .map(|id| Bytes::copy_from_slice(id))
    .collect();
    assert_eq!(mark(store, &s, &all).await, vec![Mark::New; all.len()]);
    assert_eq!(mark(store, &s, &all).await, vec![Mark::Duplicate; all.len()]);
}

/// Limits are named and nothing is half done.
pub async fn a_bad_batch_marks_nothing<S: InboxStore>(store: &S) {
    let s = scope("s");
    let many: Vec<Bytes> = (0..=BATCH_ITEMS_MAX)
        .map(|n| Bytes::from(n.to_string()))
        .collect();
    for bad in [ids(&["a", ""]), vec!["a".into(), vec![1; 256].into()], many] {
        let mut tx = store.begin_inbox().await.unwrap();
        let error = store.mark_many(&mut tx, &s, &bad, DAY_MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        store.commit_inbox(tx).await.unwrap();
    }
    assert_eq!(mark(store, &s, &ids(&["a", "0"])).await, [Mark::New, Mark::New]);
}

/// The failing message is isolated, the rest commits.
pub async fn a_savepoint_takes_its_marks_with_it<S: InboxStore>(store: &S) {
    let s = scope("s");
    let mut tx = store.begin_inbox().await.unwrap();
    for (id, good) in [("before", true), ("bad", false), ("after", true)] {
        store.savepoint(&mut tx).await.unwrap();
        store.mark_many(&mut tx, &s, &ids(&[id]), DAY_MS).await.unwrap();
        if good {
            store.release(&mut tx).await.unwrap();
        } else {
            store.rollback_to(&mut tx).await.unwrap();
        }
    }
    store.commit_inbox(tx).await.unwrap();
    let marks = mark(store, &s, &ids(&["before", "bad", "after"])).await;
    assert_eq!(marks, [Mark::Duplicate, Mark::New, Mark::Duplicate]);
}

/// basic-memory#1208: no deadlock reaches the user, and each id is new to exactly one.
pub async fn copies_in_other_orders_at_once_are_new_once<S: InboxStore>(store: &S) {
    let s = scope("s");
    let forward: Vec<Bytes> = (0..50).map(|n: u32| Bytes::from(n.to_string())).collect();
    let backward: Vec<Bytes> = forward.iter().rev().cloned().collect();
    let (a, b, c) = tokio::join!(
        mark(store, &s, &forward),
        mark(store, &s, &backward),
        mark(store, &s, &forward)
    );
    let new = a.iter().chain(&b).chain(&c).filter(|m| **m == Mark::New).count();
    assert_eq!(new, forward.len());
}

/// The first owner is told where; later ones go on where the last stopped, whatever they are told.
pub async fn a_first_position_begins_where_it_was_told<S: InboxStore>(store: &S) {
    let key = topic();
    let first = assign(store, &key, 5).await;
    assert_eq!((first.next_offset, first.epoch), (5, 1));
    let second = assign(store, &key, 99).await;
    assert_eq!((second.next_offset, second.epoch), (5, 2));
    // The same offset in another partition, group or incarnation of the topic is another position.
    let others = [
        PositionKey {
            partition: 1,
            ..key.clone()
        },
        PositionKey {
            group: "G".to_owned(),
            ..key.clone()
        },
        PositionKey {
            topic_id: Uuid::from_u128(8),
            ..key.clone()
        },
    ];
    let wishes: Vec<_> = others.iter().map(|key| wish(key, 1)).collect();
    for position in store.assign_positions(&wishes).await.unwrap() {
        assert_eq!((position.next_offset, position.epoch), (1, 1));
    }
}

/// Position and effect are both there or both not.
pub async fn a_position_moves_with_its_transaction<S: InboxStore>(store: &S) {
    let key = topic();
    let mine = assign(store, &key, 0).await;
    let mut tx = store.begin_inbox().await.unwrap();
    store
        .advance_positions(&mut tx, &[step(&key, mine, 10)])
        .await
        .unwrap();
    store.rollback_inbox(tx).await.unwrap();

    batch(store, "one", &[step(&key, mine, 4)]).await.unwrap();
    // The same batch again: its effect is not doubled, as the position is not where it began.
    let error = batch(store, "two", &[step(&key, mine, 4)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    assert_eq!(assign(store, &key, 0).await.next_offset, 4);
    let marks = mark(store, &scope("effects"), &ids(&["one", "two"])).await;
    assert_eq!(marks, [Mark::Duplicate, Mark::New]);
}

/// A zombie wakes after its partition went to another: neither its position nor its effect gets in.
pub async fn a_stale_owner_moves_nothing<S: InboxStore>(store: &S) {
    let key = topic();
    let slow = assign(store, &key, 0).await;
    let fast = assign(store, &key, 0).await;
    let error = batch(store, "slow", &[step(&key, slow, 3)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LeaseLost);
    // Rule O11: the right epoch with another owner's nonce is as stale.
    let twin = Position {
        owner: Nonce::random(),
        ..fast
    };
    assert!(batch(store, "twin", &[step(&key, twin, 3)]).await.is_err());
    // And so is an earlier epoch of the same owner.
    let earlier = Position {
        epoch: fast.epoch - 1,
        ..fast
    };
    assert!(batch(store, "earlier", &[step(&key, earlier, 3)]).await.is_err());
    batch(store, "fast", &[step(&key, fast, 3)]).await.unwrap();
    let marks = mark(
        store,
        &scope("effects"),
        &ids(&["slow", "twin", "earlier", "fast"]),
    )
    .await;
    assert_eq!(marks, [Mark::New, Mark::New, Mark::New, Mark::Duplicate]);
}

/// A batch over several partitions commits whole or not at all.
pub async fn one_lost_partition_keeps_the_whole_batch<S: InboxStore>(store: &S) {
    let keys = [
        topic(),
        PositionKey {
            partition: 1,
            ..topic()
        },
    ];
    let mut mine = Vec::new();
    for key in &keys {
        mine.push(assign(store, key, 0).await);
    }
    assign(store, &keys[1], 0).await;
    let steps = [step(&keys[0], mine[0], 5), step(&keys[1], mine[1], 5)];
    assert!(batch(store, "one", &steps).await.is_err());
    assert_eq!(assign(store, &keys[0], 0).await.next_offset, 0);
}

/// Rule K5: after a lost commit reply an assignment tells for certain whether the batch is in.
pub async fn assigning_waits_for_a_move_under_way<S: InboxStore>(store: &S) {
    let key = topic();
    let mine = assign(store, &key, 0).await;
    let mut tx = store.begin_inbox().await.unwrap();
    store
        .advance_positions(&mut tx, &[step(&key, mine, 7)])
        .await
        .unwrap();
    let asking = assign(store, &key, 0);
    let committing = async {
        tokio::task::yield_now().await;
        store.commit_inbox(tx).await
    };
    let (position, committed) = tokio::join!(asking, committing);
    let expected = if committed.is_ok() { 7 } else { 0 };
    assert_eq!(position.next_offset, expected);
    assert_eq!(position.epoch, mine.epoch + 1);
}

/// Once a key is parked its later messages queue behind it; other keys do not.
pub async fn a_parked_key_holds_its_later_messages<S: InboxStore>(store: &S) {
    let s = scope("s");
    park(store, &s, &[parked("1", Some("k"))]).await;
    assert!(is_parked(store, &s, "k").await);
    assert!(!is_parked(store, &s, "K").await);
    assert!(!is_parked(store, &scope("other"), "k").await);

    park(store, &s, &[parked("2", Some("k"))]).await;
    assert_eq!(take(store, &s, 1).await.len(), 1);
    assert!(is_parked(store, &s, "k").await, "one is left");
    assert_eq!(take(store, &s, 1).await.len(), 1);
    assert!(!is_parked(store, &s, "k").await);
    assert_eq!(take(store, &s, 1).await, []);
}

/// Byte for byte, one key at a time, and messages without a key one by one.
pub async fn parked_messages_come_back_in_order_and_whole<S: InboxStore>(store: &S) {
    let s = scope("s");
    let tombstone = Parked {
        data: None,
        headers: Vec::new(),
        ..parked("4", Some("k"))
    };
    let long = Parked {
        reason: "\u{e9}\n".repeat(PARKED_REASON_BYTES_MAX),
        ..parked("5", None)
    };
    let all = [
        parked("9", Some("k")),
        parked("1", Some("l")),
        tombstone.clone(),
        long,
        parked("6", None),
    ];
    park(store, &s, &all).await;
    assert_eq!(take(store, &s, 10).await, [all[0].clone(), tombstone]);
    assert_eq!(take(store, &s, 10).await, [all[1].clone()]);
    let cut = take(store, &s, 10).await;
    assert_eq!(cut.len(), 1);
    assert!(cut[0].reason.len() <= PARKED_REASON_BYTES_MAX && !cut[0].reason.contains('\n'));
    assert_eq!(take(store, &s, 10).await, [all[4].clone()]);
}

/// A redelivered message that is parked already stays where it is.
pub async fn a_message_is_parked_once<S: InboxStore>(store: &S) {
    let s = scope("s");
    park(store, &s, &[parked("1", Some("k")), parked("2", Some("k"))]).await;
    park(store, &s, &[parked("1", Some("k"))]).await;
    let again: Vec<_> = take(store, &s, 10).await.into_iter().map(|m| m.id).collect();
    assert_eq!(again, ids(&["1", "2"]));
}

/// The re-drive that fails leaves everything parked.
pub async fn taking_parked_messages_can_be_rolled_back<S: InboxStore>(store: &S) {
    let s = scope("s");
    park(store, &s, &[parked("1", Some("k"))]).await;
    let mut tx = store.begin_inbox().await.unwrap();
    let taken = store.take_parked(&mut tx, &s, 0, 10).await.unwrap();
    assert_eq!(taken.unwrap().messages.len(), 1);
    store.rollback_inbox(tx).await.unwrap();
    assert!(is_parked(store, &s, "k").await);
    assert_eq!(take(store, &s, 10).await.len(), 1);
}

/// Whoever cannot handle the first key looks behind it: at the next key, never at a later message of the same.
pub async fn a_parked_key_can_be_passed_over<S: InboxStore>(store: &S) {
    let s = scope("s");
    let all = [
        parked("1", Some("k")),
        parked("2", Some("l")),
        parked("3", Some("k")),
        parked("4", None),
        parked("5", Some("l")),
    ];
    park(store, &s, &all).await;
    park(store, &scope("other"), &[parked("6", Some("m"))]).await;
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let mut tx = store.begin_inbox().await.unwrap();
        let taken = store.take_parked(&mut tx, &s, after, 10).await.unwrap();
        store.rollback_inbox(tx).await.unwrap();
        let Some(taken) = taken else { break };
        assert!(taken.first > after);
        after = taken.first;
        seen.push(taken.messages);
    }
    let [a, b, c, d, e] = all;
    assert_eq!(seen, [vec![a, c], vec![b, e], vec![d]]);
}

/// One message goes; those behind it keep their key parked.
pub async fn a_parked_message_can_be_discarded<S: InboxStore>(store: &S) {
    let s = scope("s");
    let all = [parked("1", Some("k")), parked("2", Some("k")), parked("3", None)];
    park(store, &s, &all).await;
    let discard = async |id: &str| {
        let mut tx = store.begin_inbox().await.unwrap();
        let found = store.discard_parked(&mut tx, &s, &ids(&[id])[0]).await.unwrap();
        store.commit_inbox(tx).await.unwrap();
        found
    };
    assert_eq!(discard("1").await, Some(all[0].clone()));
    assert_eq!(discard("1").await, None);
    assert!(is_parked(store, &s, "k").await);
    assert_eq!(discard("3").await, Some(all[2].clone()));
    assert_eq!(discard("2").await, Some(all[1].clone()));
    assert!(!is_parked(store, &s, "k").await);
    assert_eq!(take(store, &s, 10).await, []);
}

/// In bounded chunks, and never one whose retention has not passed.
pub async fn marks_are_forgotten_only_after_their_retention<S: InboxStore>(store: &S) {
    let s = scope("s");
    let mut tx = store.begin_inbox().await.unwrap();
    store
        .mark_many(&mut tx, &s, &ids(&["long"]), DAY_MS)
        .await
        .unwrap();
    store
        .mark_many(&mut tx, &s, &ids(&["a", "b", "c"]), 1)
        .await
        .unwrap();
    store.commit_inbox(tx).await.unwrap();

    let deadline = Instant::now() + Duration::from_secs(10);
    let mut purged = 0;
    while purged < 3 {
        assert!(Instant::now() < deadline, "only {purged} marks were purged");
        let chunk = store.purge_inbox(2).await.unwrap();
        assert!(chunk <= 2);
        purged += chunk;
    }
    assert_eq!(store.purge_inbox(10).await.unwrap(), 0);
    let marks = mark(store, &s, &ids(&["long", "a", "b", "c"])).await;
    assert_eq!(marks, [Mark::Duplicate, Mark::New, Mark::New, Mark::New]);
}
