//! What may wait in a stream, and which streams may be written to.

use semel_core::event::slot;
use semel_core::store::{BACKLOG_FULL, MEASURE_STALE_MS, STREAM_UNKNOWN, StreamLimit};
use semel_core::{ErrorKind, Event, Retry, StoreError};

use super::world::{World, event, texts};

const MINUTE_MS: i64 = 60_000;

fn rows(max: u64) -> StreamLimit {
    StreamLimit {
        rows_max: Some(max),
        age_max_ms: None,
    }
}

/// An enqueue in a transaction of its own, and what came of it.
async fn try_write(world: &World, event: &Event) -> Result<i64, StoreError> {
    let mut tx = world.begin().await;
    let done = tx.enqueue(event).await;
    match done {
        Ok(_) => tx.commit().await,
        Err(_) => tx.rollback().await,
    }
    done
}

fn full(error: &StoreError, named: &str) {
    assert_eq!(error.code(), BACKLOG_FULL, "{error}");
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::NotApplied, Retry::Later)
    );
    assert!(!error.is_outage(), "the store is there: {error}");
    assert!(error.to_string().contains(named), "{error}");
}

/// Law: while nothing is limited, nothing is measured, and any stream may be written to.
pub async fn nothing_is_limited_until_it_is_asked_for(world: &World) {
    assert_eq!(world.store.measure("default").await.unwrap(), None);
    world
        .write(&[event("k", "a").with_stream("nobodys"), event("k", "b")])
        .await;
    let too_few = world.store.limit_stream("default", rows(0)).await.unwrap_err();
    assert_eq!(too_few.kind(), ErrorKind::LimitExceeded);
    assert_eq!(world.store.measure("default").await.unwrap(), None);
}

/// Law: a stream in which as many events wait as may refuses more, whole calls of them, and says which limit it is; another
/// one takes them. When they are sent it takes them again.
pub async fn a_stream_at_its_limit_refuses_more_until_it_is_sent(world: &World) {
    let mut reader = world.reader().await;
    world.write(&[event("k", "0")]).await;
    for _ in 0..2 {
        world.store.limit_stream("default", rows(3)).await.unwrap();
    }
    world.write(&[event("k", "1"), event("k", "2")]).await;
    let measured = world.store.measure("default").await.unwrap().unwrap();
    assert_eq!(measured.waiting, 3);
    full(
        &try_write(world, &event("k", "x")).await.unwrap_err(),
        "rows_max is 3",
    );
    let mut tx = world.begin().await;
    let many = [event("k", "y"), event("k", "z")];
    full(&tx.enqueue_many(&many).await.unwrap_err(), "rows_max is 3");
    tx.rollback().await;
    try_write(world, &event("k", "elsewhere").with_stream("other"))
        .await
        .unwrap();

    let read = reader.batch().await;
    assert_eq!(texts(&read), ["0", "1", "2"]);
    reader.save(read[1].row, false).await;
    let measured = world.store.measure("default").await.unwrap().unwrap();
    assert_eq!(measured.waiting, 1);
    try_write(world, &event("k", "3")).await.unwrap();
    reader.save(read[2].row, true).await;
    assert_eq!(texts(&reader.batch().await), ["3"]);
}

/// Law: a stream whose oldest event waits for too long refuses more until it is sent.
pub async fn a_stream_whose_oldest_event_waits_too_long_refuses_more(world: &World) {
    let mut reader = world.reader().await;
    let limit = StreamLimit {
        rows_max: None,
        age_max_ms: Some(MINUTE_MS),
    };
    world.store.limit_stream("default", limit).await.unwrap();
    world.write(&[event("k", "0")]).await;
    let measured = world.store.measure("default").await.unwrap().unwrap();
    assert!(
        measured.oldest_ms.is_some_and(|ms| ms < MINUTE_MS),
        "{measured:?}"
    );
    world.write(&[event("k", "1")]).await;
    world.pass_ms(MINUTE_MS + 1_000).await;
    full(
        &try_write(world, &event("k", "x")).await.unwrap_err(),
        &MINUTE_MS.to_string(),
    );
    let read = reader.batch().await;
    assert_eq!(texts(&read), ["0", "1"]);
    reader.save(read[1].row, true).await;
    let measured = world.store.measure("default").await.unwrap().unwrap();
    assert_eq!((measured.waiting, measured.oldest_ms), (0, None));
    try_write(world, &event("k", "2")).await.unwrap();
}

/// Law: a limit that was lifted refuses nothing, and that of another stream goes on.
pub async fn a_limit_that_is_lifted_refuses_nothing(world: &World) {
    let of_other = |text: &str| event("k", text).with_stream("other");
    for stream in ["default", "other"] {
        world.store.limit_stream(stream, rows(1)).await.unwrap();
    }
    world.write(&[event("k", "0"), of_other("0")]).await;
    for stream in ["default", "other"] {
        assert_eq!(
            world.store.measure(stream).await.unwrap().unwrap().waiting,
            1,
            "a stream that nobody has registered waits whole"
        );
    }
    full(
        &try_write(world, &event("k", "x")).await.unwrap_err(),
        "rows_max is 1",
    );
    world.store.limit_stream("default", rows(2)).await.unwrap();
    try_write(world, &event("k", "1")).await.unwrap();
    for _ in 0..2 {
        world
            .store
            .limit_stream("default", StreamLimit::default())
            .await
            .unwrap();
    }
    for n in 2..5 {
        try_write(world, &event("k", &n.to_string())).await.unwrap();
    }
    full(
        &try_write(world, &of_other("x")).await.unwrap_err(),
        "rows_max is 1",
    );
    world
        .store
        .limit_stream("other", StreamLimit::default())
        .await
        .unwrap();
    try_write(world, &of_other("1")).await.unwrap();
}

/// Law: where only known streams are written to, an event of any other is refused, delayed ones too, with all of its call.
pub async fn only_known_streams_are_written_to_where_asked(world: &World) {
    let mut reader = world.reader().await;
    let nobodys = event("k", "x").with_stream("nobodys");
    for _ in 0..2 {
        world.store.only_known_streams(true).await.unwrap();
    }
    let unknown = |error: StoreError| {
        assert_eq!(error.code(), STREAM_UNKNOWN, "{error}");
        assert_eq!(error.kind(), ErrorKind::Constraint);
    };
    unknown(try_write(world, &nobodys).await.unwrap_err());
    let mut tx = world.begin().await;
    unknown(
        tx.enqueue_many(&[event("k", "y"), nobodys.clone()])
            .await
            .unwrap_err(),
    );
    tx.rollback().await;
    let mut tx = world.begin().await;
    unknown(tx.enqueue_in(&nobodys, 0).await.unwrap_err());
    tx.rollback().await;
    world.write(&[event("k", "known")]).await;
    assert_eq!(texts(&reader.batch().await), ["known"]);

    world.store.register_stream("nobodys", 1).await.unwrap();
    try_write(world, &nobodys).await.unwrap();
    world.store.only_known_streams(false).await.unwrap();
    try_write(world, &event("k", "z").with_stream("strange"))
        .await
        .unwrap();
}

/// Law: an event that was admitted before its time comes when its time has come, though its stream is full by then.
pub async fn what_was_delayed_comes_though_its_stream_is_full(world: &World) {
    let mut reader = world.reader().await;
    world.store.limit_stream("default", rows(1)).await.unwrap();
    let mut tx = world.begin().await;
    tx.enqueue_in(&event("k", "later"), -1_000).await.unwrap();
    tx.commit().await;
    world.write(&[event("k", "first")]).await;
    world.store.measure("default").await.unwrap();
    full(
        &try_write(world, &event("k", "x")).await.unwrap_err(),
        "rows_max is 1",
    );
    assert_eq!(world.store.move_due("default", 10).await.unwrap().moved, 1);
    assert_eq!(texts(&reader.batch().await), ["first", "later"]);
}

/// Law: while a relay measures and sends all that comes, nothing is refused, however many kept rows there are: a measure that
/// says the same is written again before it is old.
pub async fn while_somebody_measures_no_writer_counts_what_was_sent(world: &World) {
    let mut reader = world.reader().await;
    world.store.limit_stream("default", rows(3)).await.unwrap();
    for n in 0..12 {
        let written = try_write(world, &event("k", &n.to_string())).await;
        assert!(written.is_ok(), "event {n}: {written:?}");
        let read = reader.batch().await;
        reader.save(read[0].row, true).await;
        assert_eq!(world.store.measure("default").await.unwrap().unwrap().waiting, 0);
        world.pass_ms(1_000).await;
    }
}

/// Law: where nobody measures, whoever writes counts what was written since; so the limit holds without a relay. A store whose
/// writers count without judging by it takes one event more.
pub async fn where_nobody_measures_a_writer_counts(world: &World) {
    world.store.limit_stream("default", rows(3)).await.unwrap();
    let mut written = 0;
    let refused = loop {
        world.pass_ms(MEASURE_STALE_MS + 1_000).await;
        match try_write(world, &event("k", &written.to_string())).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written <= 4, "the limit does not hold");
    };
    assert!(written >= 3, "{written}");
    assert_eq!(refused.code(), BACKLOG_FULL);
    for _ in 0..3 {
        assert_eq!(
            try_write(world, &event("k", "x")).await.unwrap_err().code(),
            BACKLOG_FULL
        );
        world.pass_ms(MEASURE_STALE_MS + 1_000).await;
    }
    let mut reader = world.reader().await;
    assert_eq!(reader.batch().await.len(), written);
}

/// The oldest event is found in whichever shard it waits, also where so many wait that counting ends before that shard. `age`
/// makes every event in the outbox an hour older, `clear` takes them all away: in SQL, which no store offers.
pub async fn the_oldest_event_is_that_of_any_shard(
    world: &World,
    age: impl AsyncFn(),
    clear: impl AsyncFn(),
) {
    let store = &world.store;
    store.register_stream("default", 2).await.unwrap();
    let limit = StreamLimit {
        rows_max: Some(3),
        age_max_ms: Some(60_000),
    };
    store.limit_stream("default", limit).await.unwrap();
    let of_half = |upper: bool| {
        let mut keys = (0..99).map(|n| format!("k{n}"));
        keys.find(|key| (slot(key.as_bytes()) >= 2_048) == upper).unwrap()
    };
    for upper in [true, false] {
        world.write(&[event(&of_half(upper), "old")]).await;
        age().await;
        let many: Vec<_> = (0..5).map(|_| event(&of_half(!upper), "new")).collect();
        world.write(&many).await;
        let measured = store.measure("default").await.unwrap().unwrap();
        assert_eq!(measured.waiting, 3);
        assert!(
            measured.oldest_ms.is_some_and(|ms| ms >= 3_600_000),
            "{measured:?}"
        );
        clear().await;
        store.measure("default").await.unwrap();
    }
}
