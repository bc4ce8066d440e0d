//! The operator's desk: what was set aside is looked at, changed, and carried out by its shard's owner.

use bytes::Bytes;
use semel_core::Event;
use semel_core::host::{random_16, uuid_v7};
use semel_core::relay::DeskRefusal;
use semel_core::store::{
    DeskChange, DeskQuery, DeskRequest, DeskRow, Exception, ExceptionKind, Guarded, KeptState, OutboxDesk,
    PageSize, REPLAY_HEADER, REPLAY_OF_HEADER, RESHARD_HOLD_MS, RESHARD_REST_MS, RedriveSave, Refused,
    Replay, Taken, Wish,
};
use semel_core::{SystemClock, Timestamp};
use uuid::Uuid;

use super::reshard::{drain, own};
use super::world::{LEASE_MS, Reader, World, event, texts};

fn desk(world: &World) -> &dyn OutboxDesk {
    world.store.desk().expect("this store has a desk")
}

fn request(row: i64, change: DeskChange) -> DeskRequest {
    DeskRequest {
        row,
        change,
        by: "ann".to_owned(),
        why: "the receiver's bug is mended; it's \"ok\"".to_owned(),
    }
}

async fn ask(world: &World, row: i64, wish: Wish) -> Result<(), DeskRefusal> {
    desk(world)
        .change(&request(row, DeskChange::Ask(wish)))
        .await
        .unwrap()
}

async fn rows(world: &World) -> Vec<DeskRow> {
    let all = DeskQuery {
        limit: 100,
        ..DeskQuery::default()
    };
    desk(world).desk_rows(&all).await.unwrap()
}

/// Row, kind and wish of everything set aside.
async fn stands(world: &World) -> Vec<(i64, ExceptionKind, Option<Wish>)> {
    let rows = rows(world).await;
    rows.iter()
        .map(|row| (row.stored.exception.row, row.stored.exception.kind, row.asked))
        .collect()
}

/// Settles a batch of these events with these kinds of exceptions, `None` for those that were sent.
async fn set_aside(world: &World, events: &[(Event, Option<ExceptionKind>)]) -> (Reader, Vec<i64>) {
    let mut reader = world.reader().await;
    let all: Vec<Event> = events.iter().map(|(event, _)| event.clone()).collect();
    let rows = world.write(&all).await;
    assert!(reader.open().await);
    let mut save = reader.saving(*rows.last().unwrap(), true);
    for (row, (event, kind)) in rows.iter().zip(events) {
        if let Some(kind) = *kind {
            save.exceptions.push(Exception {
                row: *row,
                event_id: event.id,
                kind,
                attempts: 2,
                reason: "400".to_owned(),
            });
        }
    }
    reader.write(&save).await;
    (reader, rows)
}

const PARKED: Option<ExceptionKind> = Some(ExceptionKind::Parked);
const BEHIND: Option<ExceptionKind> = Some(ExceptionKind::Behind);
const SKIPPED: Option<ExceptionKind> = Some(ExceptionKind::Skipped);
const ALL: PageSize = PageSize {
    rows: 100,
    bytes: 1 << 20,
};

async fn take(world: &World, reader: &Reader, size: PageSize) -> Taken {
    match desk(world).take(reader.lease(), size).await.unwrap() {
        Guarded::Done(taken) => taken,
        other => panic!("{other:?}"),
    }
}

async fn settle(world: &World, reader: &Reader, save: &RedriveSave) -> Vec<Bytes> {
    match desk(world).settle(reader.lease(), save).await.unwrap() {
        Guarded::Done(left) => left,
        other => panic!("{other:?}"),
    }
}

fn numbers(taken: &Taken) -> Vec<i64> {
    taken.rows.iter().map(|row| row.stored.exception.row).collect()
}

/// Law: what was set aside is shown whole, by stream, key and kind, a page at a time.
pub async fn what_was_set_aside_is_shown_by_key_and_kind(world: &World) {
    let bad = event("a", "1").with_header("h", b"\0\xff".to_vec());
    let events = [
        (bad.clone(), PARKED),
        (event("b", "2"), SKIPPED),
        (event("a", "3"), BEHIND),
    ];
    let (_reader, numbers) = set_aside(world, &events).await;
    let shown = rows(world).await;
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[0].stored.row.row.event, bad);
    assert_eq!((shown[0].asked, shown[0].edits, shown[0].taken), (None, 0, 0));
    let query = DeskQuery {
        stream: Some("default".to_owned()),
        limit: 100,
        ..DeskQuery::default()
    };
    let found = async |query: DeskQuery| {
        let rows = desk(world).desk_rows(&query).await.unwrap();
        rows.iter()
            .map(|row| row.stored.exception.row)
            .collect::<Vec<_>>()
    };
    let key = DeskQuery {
        key: Some(Bytes::from("a")),
        ..query.clone()
    };
    assert_eq!(found(key.clone()).await, [numbers[0], numbers[2]]);
    let kind = DeskQuery {
        kind: Some(ExceptionKind::Behind),
        ..key
    };
    assert_eq!(found(kind).await, [numbers[2]]);
    let page = DeskQuery {
        after: numbers[0],
        limit: 1,
        ..query.clone()
    };
    assert_eq!(found(page).await, [numbers[1]]);
    let other = DeskQuery {
        stream: Some("other".to_owned()),
        ..query
    };
    assert!(found(other).await.is_empty());
    let one = desk(world).desk_row(numbers[1]).await.unwrap();
    assert_eq!(one.as_ref(), Some(&shown[1]));
    assert_eq!(desk(world).desk_row(numbers[2] + 1).await.unwrap(), None);
}

/// Law, rule O15: a list goes in order, from its first row on, with what came to it since; a skipped row goes alone. Who
/// asked, and why, is kept.
pub async fn a_list_is_taken_in_order_and_a_skipped_row_alone(world: &World) {
    let events = [
        (event("k", "1"), PARKED),
        (event("s", "2"), SKIPPED),
        (event("k", "3"), BEHIND),
        (event("other", "4"), PARKED),
        (event("s", "5"), SKIPPED),
    ];
    let (reader, rows) = set_aside(world, &events).await;
    assert_eq!(
        take(world, &reader, ALL).await,
        Taken::default(),
        "nothing is asked"
    );
    assert_eq!(
        ask(world, rows[2], Wish::Retry).await,
        Err(DeskRefusal::NotFirst { first: rows[0] })
    );
    assert_eq!(ask(world, rows[0], Wish::Retry).await, Ok(()));
    assert_eq!(ask(world, rows[0], Wish::Retry).await, Ok(()), "twice is once");
    assert_eq!(
        ask(world, rows[0], Wish::Drop).await,
        Err(DeskRefusal::Asked(Wish::Retry))
    );
    assert_eq!(
        ask(world, rows[2], Wish::Drop).await,
        Err(DeskRefusal::BeingSent { first: rows[0] })
    );
    assert_eq!(ask(world, rows[4], Wish::Retry).await, Ok(()));
    assert_eq!(
        ask(world, rows[4] + 1, Wish::Retry).await,
        Err(DeskRefusal::Absent)
    );

    let taken = take(world, &reader, ALL).await;
    assert_eq!(
        (numbers(&taken), taken.more),
        (vec![rows[0], rows[2], rows[4]], false)
    );
    let marks: Vec<_> = taken.rows.iter().map(|row| (row.asked, row.taken)).collect();
    assert_eq!(marks, [(Some(Wish::Retry), 1), (None, 0), (Some(Wish::Retry), 1)]);
    let first = take(world, &reader, PageSize { rows: 1, bytes: 1 }).await;
    assert_eq!(
        (numbers(&first), first.more, first.rows[0].taken),
        (vec![rows[0]], true, 2)
    );

    // A part of the list is sent: the mark goes on to the next row, which stands for the key now.
    let key = Bytes::from("k");
    let part = RedriveSave {
        removed: vec![rows[0], rows[4]],
        next: vec![(key.clone(), Some(Wish::Retry))],
        ..RedriveSave::default()
    };
    for _ in 0..2 {
        assert_eq!(settle(world, &reader, &part).await, std::slice::from_ref(&key));
        let expected = [
            (rows[1], ExceptionKind::Skipped, None),
            (rows[2], ExceptionKind::Parked, Some(Wish::Retry)),
            (rows[3], ExceptionKind::Parked, None),
        ];
        assert_eq!(stands(world).await, expected);
    }
    let last = RedriveSave {
        removed: vec![rows[2]],
        ..part
    };
    assert!(
        settle(world, &reader, &last).await.is_empty(),
        "the list is empty"
    );
    let log = desk(world).desk_log(0, 10).await.unwrap();
    let asked: Vec<_> = log
        .iter()
        .map(|it| (it.row, it.action.as_str(), it.by.as_str()))
        .collect();
    assert_eq!(asked, [(rows[0], "retry", "ann"), (rows[4], "retry", "ann")]);
    assert_eq!(log[0].why, request(0, DeskChange::Ask(Wish::Drop)).why);
    assert_eq!(desk(world).desk_log(log[0].entry, 10).await.unwrap(), log[1..]);
}

/// Law: what was refused again stays, with its reason and an attempt more, and stands for its key; a settling that is
/// repeated because its answer was lost takes nothing away that was asked since.
pub async fn a_row_that_is_refused_again_loses_its_mark_and_stands_for_its_key(world: &World) {
    let events = [
        (event("k", "1"), PARKED),
        (event("k", "2"), BEHIND),
        (event("k", "3"), BEHIND),
    ];
    let (reader, numbers) = set_aside(world, &events).await;
    ask(world, numbers[0], Wish::Retry).await.unwrap();
    take(world, &reader, ALL).await;
    let save = RedriveSave {
        removed: vec![numbers[0]],
        failed: vec![Refused {
            row: numbers[1],
            attempts: 2,
            reason: "no such 'order'".to_owned(),
        }],
        next: Vec::new(),
    };
    settle(world, &reader, &save).await;
    let shown = rows(world).await;
    let first = &shown[0].stored.exception;
    assert_eq!(
        (first.row, first.kind, first.attempts),
        (numbers[1], ExceptionKind::Parked, 3)
    );
    assert_eq!(first.reason, "no such 'order'");
    assert_eq!((shown[0].asked, shown.len()), (None, 2));
    assert_eq!(take(world, &reader, ALL).await, Taken::default());
    ask(world, numbers[1], Wish::Retry).await.unwrap();
    settle(world, &reader, &save).await;
    let again = rows(world).await;
    assert_eq!(
        (again[0].asked, again[0].stored.exception.attempts),
        (Some(Wish::Retry), 3)
    );
}

/// Law: a drop leaves those behind where they are, a release sends them; the dropped event is kept in the log.
pub async fn a_drop_keeps_those_behind_and_a_release_sends_them(world: &World) {
    let events = [
        (event("k", "1"), PARKED),
        (event("k", "2"), BEHIND),
        (event("k", "3"), BEHIND),
        (event("k", "4"), BEHIND),
    ];
    let (reader, rows) = set_aside(world, &events).await;
    let key = Bytes::from("k");
    ask(world, rows[0], Wish::Drop).await.unwrap();
    ask(world, rows[2], Wish::Drop).await.unwrap();
    assert_eq!(numbers(&take(world, &reader, ALL).await), [rows[0], rows[2]]);
    let save = RedriveSave {
        removed: vec![rows[0], rows[2]],
        next: vec![(key.clone(), None)],
        ..RedriveSave::default()
    };
    assert_eq!(settle(world, &reader, &save).await, std::slice::from_ref(&key));
    let expected = [
        (rows[1], ExceptionKind::Parked, None),
        (rows[3], ExceptionKind::Behind, None),
    ];
    assert_eq!(stands(world).await, expected);
    ask(world, rows[1], Wish::Release).await.unwrap();
    assert_eq!(numbers(&take(world, &reader, ALL).await), [rows[1], rows[3]]);
    let log = desk(world).desk_log(0, 10).await.unwrap();
    let before = log[0].before.as_ref().expect("the dropped event is kept");
    assert!(
        before.contains(&events[0].0.id.to_string()) && before.contains("\"1\""),
        "{before}"
    );
    assert_eq!((log.len(), log[2].action.as_str()), (3, "release"));
}

/// Law: an edit changes what is sent, not who it is; of two at once one is refused; the event before it is kept.
pub async fn an_edit_is_kept_with_who_why_and_what_was_there(world: &World) {
    let (reader, rows) = set_aside(world, &[(event("k", "bad"), PARKED)]).await;
    let shown = desk(world).desk_row(rows[0]).await.unwrap().unwrap();
    let mut good = shown.stored.row.row.event.clone();
    good.data = Some(Bytes::from_static(b"good\0\xff"));
    good.headers = vec![("x".to_owned(), Bytes::from_static(b"\xfe"))];
    good.kind = "order.mended".to_owned();
    good.topic = "mended".to_owned();
    good.content_type = None;
    let edit = |event: &Event, edits| DeskChange::Edit {
        event: Box::new(event.clone()),
        edits,
    };
    let change = async |change| desk(world).change(&request(rows[0], change)).await.unwrap();
    assert_eq!(change(edit(&good, 0)).await, Ok(()));
    assert_eq!(
        change(edit(&good, 0)).await,
        Err(DeskRefusal::Edited { edits: 1 })
    );
    let other_key = good.clone().with_key("other");
    assert!(matches!(
        change(edit(&other_key, 1)).await,
        Err(DeskRefusal::Invalid(_))
    ));
    ask(world, rows[0], Wish::Retry).await.unwrap();
    assert_eq!(change(edit(&good, 1)).await, Err(DeskRefusal::Asked(Wish::Retry)));
    let taken = take(world, &reader, ALL).await;
    assert_eq!(taken.rows[0].stored.row.row.event, good);
    let log = desk(world).desk_log(0, 10).await.unwrap();
    assert_eq!((log[0].action.as_str(), log[0].event_id), ("edit", good.id));
    assert!(
        log[0]
            .before
            .as_ref()
            .is_some_and(|before| before.contains("\"bad\""))
    );
    assert_eq!(log[1].before, None, "a retry changes nothing");
}

/// Law, rule O15: who lost the shard carries nothing out, and the next owner finds what was asked.
pub async fn only_the_owner_carries_out_what_was_asked(world: &World) {
    let (old, rows) = set_aside(world, &[(event("k", "1"), PARKED), (event("k", "2"), BEHIND)]).await;
    ask(world, rows[0], Wish::Retry).await.unwrap();
    take(world, &old, ALL).await;
    world.pass_ms(LEASE_MS + 1).await;
    let new = world.take_over().await.expect("the lease has ended");
    assert_eq!(new.owned.parked, ["k"], "the whole list parks its key");
    let save = RedriveSave {
        removed: vec![rows[0]],
        next: vec![(Bytes::from("k"), Some(Wish::Retry))],
        ..RedriveSave::default()
    };
    let store = desk(world);
    assert_eq!(store.take(old.lease(), ALL).await.unwrap(), Guarded::Lost);
    assert_eq!(store.settle(old.lease(), &save).await.unwrap(), Guarded::Lost);
    assert_eq!(store.note(old.lease(), Some("x")).await.unwrap(), Guarded::Lost);
    assert_eq!(stands(world).await.len(), 2);
    let taken = take(world, &new, ALL).await;
    assert_eq!((numbers(&taken), taken.rows[0].taken), (rows, 2));
    // A key whose first row is gone is parked as long as there is one behind.
    settle(
        world,
        &new,
        &RedriveSave {
            next: Vec::new(),
            ..save
        },
    )
    .await;
    world.pass_ms(LEASE_MS + 1).await;
    assert_eq!(
        world.take_over().await.expect("the lease has ended").owned.parked,
        ["k"]
    );
}

/// Law: what holds a shard can be seen by others: owner, until when, and what it said last.
pub async fn a_shard_says_why_it_sends_nothing(world: &World) {
    let (reader, rows) = set_aside(world, &[(event("a", "1"), PARKED), (event("b", "2"), SKIPPED)]).await;
    let of = async || desk(world).standing().await.unwrap();
    let shard = of().await.shards.remove(0);
    assert_eq!(
        (shard.owner.as_str(), shard.held, shard.note),
        ("law", true, None)
    );
    assert_eq!((shard.parked_keys, shard.asked), (1, 0));
    assert!(shard.until > Some(of().await.now) && shard.oldest_exception.is_some());
    ask(world, rows[1], Wish::Drop).await.unwrap();
    let said = "away: connection refused to 'orders'";
    assert_eq!(
        desk(world).note(reader.lease(), Some(said)).await.unwrap(),
        Guarded::Done(())
    );
    world.pass_ms(LEASE_MS + 1).await;
    let shard = of().await.shards.remove(0);
    assert_eq!(
        (shard.held, shard.note.as_deref(), shard.asked),
        (false, Some(said), 1)
    );
    assert!(shard.noted_at.is_some());
    assert_eq!(
        desk(world).note(reader.lease(), None).await.unwrap(),
        Guarded::Done(())
    );
    let shard = of().await.shards.remove(0);
    assert_eq!((shard.note, shard.noted_at), (None, None));
}

/// Law, rules O12 and O15: the map is not replaced while something that was set aside may be on its way again, since the
/// new shards are free at once; what is asked, and was asked on the way, goes on with the shard that has the key now.
pub async fn another_number_of_shards_waits_for_what_is_being_sent_again(world: &World) {
    let events = [
        (event("k", "1"), PARKED),
        (event("k", "2"), BEHIND),
        (event("s", "3"), SKIPPED),
    ];
    let (mut reader, rows) = set_aside(world, &events).await;
    ask(world, rows[0], Wish::Retry).await.unwrap();
    take(world, &reader, ALL).await;
    world.store.register_stream("default", 2).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        assert!(drain(&mut reader, &mut seen).await, "its owner may be sending");
    }
    ask(world, rows[2], Wish::Retry).await.unwrap();
    let key = Bytes::from("k");
    let part = RedriveSave {
        removed: vec![rows[0]],
        next: vec![(key.clone(), Some(Wish::Retry))],
        ..RedriveSave::default()
    };
    settle(world, &reader, &part).await;
    // On a machine that is too slow the mark holds no longer: the next one.
    let mut tries = 0;
    while drain(&mut reader, &mut seen).await {
        assert!(tries < 5, "nothing is on its way any more");
        tries += 1;
        world.pass_ms(RESHARD_HOLD_MS + RESHARD_REST_MS + 1).await;
    }
    assert_eq!(
        desk(world).take(reader.lease(), ALL).await.unwrap(),
        Guarded::Lost
    );
    let readers = own(world).await;
    assert_eq!((readers.len(), seen.len()), (2, 0));
    for reader in &readers {
        let slots = reader.owned.lease.slots.range();
        let mut mine = Vec::new();
        for (row, (event, _)) in rows.iter().zip(&events).skip(1) {
            mine.extend(
                slots
                    .contains(&event.slot())
                    .then_some((*row, Some(Wish::Retry), 1)),
            );
        }
        let has = slots.contains(&events[1].0.slot());
        assert_eq!(reader.owned.parked.contains(&key), has);
        let taken = take(world, reader, ALL).await;
        let marks = taken.rows.iter();
        let marks: Vec<_> = marks
            .map(|row| (row.stored.exception.row, row.asked, row.taken))
            .collect();
        assert_eq!(marks, mine);
    }
}

/// Law: a rescan sends everything that is kept again, in order and with its id, and takes the shards from their owners. A
/// dry run does nothing.
pub async fn a_rescan_begins_at_the_beginning(world: &World) {
    let mut reader = world.reader().await;
    let events = [event("k", "1"), event("k", "2")];
    let rows = world.write(&events).await;
    let mut last = reader.batch().await[1].sequence();
    reader.save(rows[1], true).await;
    let dry = desk(world).rescan(None, "ann", "a restore", true).await.unwrap();
    assert_eq!((dry.rows, dry.shards), (2, 1));
    assert_eq!(dry.owned, [(reader.lease().shard.clone(), "law".to_owned())]);
    assert!(reader.batch().await.is_empty(), "a dry run changes nothing");
    for stream in [None, Some("default")] {
        let done = desk(world)
            .rescan(stream, "ann", "a restore", false)
            .await
            .unwrap();
        assert_eq!((done.rows, done.shards), (2, 1));
        assert_eq!(world.store.load(reader.lease()).await.unwrap(), Guarded::Lost);
        let before = reader.cursor.batch_no;
        reader = world.take_over().await.expect("the shard is free");
        assert!(reader.cursor.batch_no > before && reader.owned.takeovers == 0);
        // More than any restored copy can have given out before: the time in microseconds.
        assert!(reader.cursor.batch_no > 1_700_000_000_000_000);
        let all = reader.batch().await;
        assert_eq!(texts(&all), ["1", "2"]);
        assert!(all[0].sequence() > last && all[1].sequence() > all[0].sequence());
        last = all[1].sequence();
        assert_eq!((all[0].event.id, all[1].event.id), (events[0].id, events[1].id));
        reader.save(rows[1], true).await;
    }
    let nothing = desk(world).rescan(Some("typo"), "ann", "x", false).await.unwrap();
    assert_eq!((nothing.rows, nothing.shards), (0, 0));
    let log = desk(world).desk_log(0, 10).await.unwrap();
    assert!(
        log.iter().all(|it| it.action == "rescan" && it.by == "ann"),
        "{log:?}"
    );
    assert_eq!(log[0].stream, "*");
}

fn replay(upto: i64) -> Replay {
    Replay {
        stream: "default".to_owned(),
        from: None,
        to: None,
        key: None,
        topic: None,
        after: 0,
        upto,
        limit: 100,
        id: uuid_v7(&SystemClock),
        fresh_ids: false,
        dry_run: false,
    }
}

/// Law: a replay sends settled events again as new rows, in order, a page at a time; it passes over what waits, what is set
/// aside, what a person has edited or dropped, and its own copies.
pub async fn a_replay_sends_settled_events_once_more(world: &World) {
    let events = [
        (event("a", "1"), None),
        (event("b", "2"), None),
        (event("c", "parked"), PARKED),
        (event("d", "dropped"), SKIPPED),
        (event("a", "3"), None),
    ];
    let (mut reader, rows) = set_aside(world, &events).await;
    ask(world, rows[3], Wish::Drop).await.unwrap();
    let dropped = RedriveSave {
        removed: vec![rows[3]],
        ..RedriveSave::default()
    };
    settle(world, &reader, &dropped).await;
    world.write(&[event("a", "waits")]).await;
    let kept = desk(world).kept("default", 0, 100).await.unwrap();
    let states: Vec<_> = kept.iter().map(|row| row.state).collect();
    let sent = KeptState::Sent;
    assert_eq!(
        states,
        [
            sent,
            sent,
            KeptState::SetAside,
            KeptState::Dropped,
            sent,
            KeptState::Waiting
        ]
    );
    assert_eq!(
        (kept[0].event_id, kept[0].key.as_deref()),
        (events[0].0.id, Some(&b"a"[..]))
    );
    assert_eq!(
        semel_core::key::hex(&kept[0].sha256)[..8],
        *"6b86b273",
        "SHA-256 of 1"
    );
    assert_eq!(desk(world).kept("default", rows[1], 1).await.unwrap(), kept[2..3]);
    let upto = desk(world).last_row().await.unwrap();
    let run = async |replay: Replay| desk(world).replay(&replay).await.unwrap();
    let dry = Replay {
        dry_run: true,
        limit: 2,
        ..replay(upto)
    };
    let found = run(dry.clone()).await;
    assert_eq!(
        found.rows.iter().map(|row| row.row).collect::<Vec<_>>(),
        rows[..2]
    );
    assert!(found.more && found.rows[0].copy_id == Uuid::nil());
    let rest = run(Replay {
        after: rows[1],
        ..dry
    })
    .await;
    assert_eq!(
        (rest.rows.len(), rest.rows[0].row, rest.more),
        (1, rows[4], false)
    );
    assert_eq!(
        texts(&reader.batch().await),
        ["waits"],
        "a dry run changes nothing"
    );
    let last = reader.rest().await[0].row;
    reader.save(last, true).await;

    let key = Replay {
        key: Some(Bytes::from("a")),
        ..replay(rows[4])
    };
    let done = run(key.clone()).await;
    assert_eq!((done.rows.len(), done.more), (2, false));
    // An id is in the outbox once: the shard's owner sends these as it sends what was set aside.
    assert!(reader.batch().await.is_empty() && run(key.clone()).await.rows.is_empty());
    let taken = take(world, &reader, ALL).await;
    assert_eq!(numbers(&taken), [rows[0], rows[4]]);
    let sent: Vec<&Event> = taken.rows.iter().map(|row| &row.stored.row.row.event).collect();
    assert_eq!((sent[0].id, sent[1].id), (events[0].0.id, events[4].0.id));
    let headers = [(REPLAY_HEADER.to_owned(), Bytes::from(key.id.to_string()))];
    assert_eq!(sent[0].headers, headers);
    let sent = RedriveSave {
        removed: vec![rows[0], rows[4]],
        ..RedriveSave::default()
    };
    settle(world, &reader, &sent).await;

    let fresh = Replay {
        topic: Some("orders".to_owned()),
        fresh_ids: true,
        ..replay(desk(world).last_row().await.unwrap())
    };
    let done = run(fresh).await;
    let sent = reader.batch().await;
    assert_eq!(texts(&sent), ["1", "2", "3", "waits"], "copies are not copied");
    assert_eq!(sent[0].event.id, done.rows[0].copy_id);
    assert_ne!(sent[0].event.id, events[0].0.id);
    let of = (
        REPLAY_OF_HEADER.to_owned(),
        Bytes::from(events[0].0.id.to_string()),
    );
    assert!(sent[0].event.headers.contains(&of));
    reader.save(sent[3].row, true).await;

    for nothing in [
        Replay {
            topic: Some("x".to_owned()),
            ..replay(rows[4])
        },
        Replay {
            from: Some(Timestamp(i64::MAX / 2)),
            ..replay(rows[4])
        },
        Replay {
            to: Some(Timestamp(0)),
            ..replay(rows[4])
        },
        Replay {
            stream: "x".to_owned(),
            ..replay(rows[4])
        },
        Replay {
            key: Some(Bytes::from(random_16().to_vec())),
            ..replay(rows[4])
        },
    ] {
        assert_eq!(run(nothing).await.rows, []);
    }
    assert!(reader.batch().await.is_empty());
    desk(world)
        .log_about("default", "replay", "ann", "lost by them")
        .await
        .unwrap();
    let log = desk(world).desk_log(0, 10).await.unwrap();
    assert_eq!(
        log.last().map(|it| (it.action.as_str(), it.row)),
        Some(("replay", 0))
    );
}
