//! A process that publishes a shard, as a relay does.

use std::sync::Arc;
use std::time::Duration;

use semel_core::relay::{LogPlace, ShardId};
use semel_core::store::{
    LogSink, OutboxRow, Sink, SinkErrorClass, SinkOrder, TransactionEnd, TransactionFuture,
};
use semel_core::{Event, Nonce};
use tokio::time::Instant;

use super::bed::LogBed;
use crate::laws::sink::{Arrived, LIMIT, drive};

/// Rows of a transaction in these laws.
pub(super) const ROWS: i64 = 10;

/// One process and its shard.
pub(super) struct Owner {
    sink: Arc<dyn Sink>,
    shard: ShardId,
}

impl Owner {
    pub(super) fn new(bed: &dyn LogBed) -> Self {
        Self::of(bed, 0)
    }

    pub(super) fn of(bed: &dyn LogBed, index: u16) -> Self {
        let stream = "default".to_owned();
        Self {
            sink: bed.process(),
            shard: ShardId { stream, index },
        }
    }

    pub(super) fn log(&self) -> &dyn LogSink {
        self.sink
            .log()
            .expect("a sink whose order is transactional is a log")
    }

    /// How many transactions may be open at once.
    pub(super) fn ahead(&self) -> usize {
        match self.sink.order() {
            SinkOrder::Transactional { rows_max, ahead, .. } => {
                assert!(rows_max >= 1 && ahead >= 1, "something can be handed over");
                ahead
            }
            other => panic!("a log's order is transactional, not {other:?}"),
        }
    }

    /// Rows that one transaction may hold in these laws.
    pub(super) fn rows_max(&self) -> usize {
        match self.sink.order() {
            SinkOrder::Transactional { rows_max, .. } => rows_max.min(ROWS as usize),
            other => panic!("a log's order is transactional, not {other:?}"),
        }
    }

    pub(super) fn takes(&self, event: &Event) -> bool {
        event.check().and_then(|()| self.sink.check(event)).is_ok()
    }

    pub(super) fn go_on(&self) {
        self.log().go_on(&self.shard);
    }

    pub(super) fn close(&self) {
        self.log().close(&self.shard);
    }

    /// Asks once for the place.
    pub(super) async fn try_resume(&self) -> Result<Option<LogPlace>, SinkErrorClass> {
        let asked = tokio::time::timeout(LIMIT, self.log().resume(&self.shard)).await;
        asked.expect("it ends").map_err(|error| {
            assert!(!error.message.is_empty(), "an error says why");
            error.class
        })
    }

    /// Asks until there is an answer; the line is whole.
    pub(super) async fn resume(&self) -> Option<LogPlace> {
        let until = Instant::now() + LIMIT;
        loop {
            match self.try_resume().await {
                Ok(place) => return place,
                Err(class) => assert_eq!(class, SinkErrorClass::Away, "nobody else is to blame"),
            }
            assert!(Instant::now() < until, "the log is there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Hands a transaction over.
    pub(super) fn hand_over(
        &self,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionFuture {
        for row in rows {
            assert!(self.takes(&row.event), "row {} is refused by check", row.row);
        }
        self.log().commit(&self.shard, rows, place, deadline)
    }

    /// Its end, and what must be true of every end.
    pub(super) async fn commit(
        &self,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        deadline: Duration,
    ) -> TransactionEnd {
        ended(rows.len(), self.hand_over(rows, place, deadline), deadline).await
    }

    /// Fails unless it is committed.
    pub(super) async fn committed(&self, rows: &[Arc<OutboxRow>], place: LogPlace) {
        let end = self.commit(rows, place, LIMIT).await;
        assert!(matches!(end, TransactionEnd::Committed), "{end:?}");
    }

    /// As a relay does when connections break: until it is in the log. `before` is the place without it.
    pub(super) async fn deliver(
        &self,
        rows: &[Arc<OutboxRow>],
        place: LogPlace,
        before: Option<LogPlace>,
        deadline: Duration,
    ) {
        let until = Instant::now() + LIMIT;
        loop {
            match self.commit(rows, place, deadline).await {
                TransactionEnd::Committed => return,
                TransactionEnd::Aborted(errors) => {
                    self.go_on();
                    let blamed = errors.iter().find(|it| it.class == SinkErrorClass::Message);
                    assert!(blamed.is_none(), "no row is to blame: {blamed:?}");
                }
                TransactionEnd::Unknown(error) => {
                    assert_ne!(
                        error.class,
                        SinkErrorClass::Message,
                        "no row is to blame: {error}"
                    );
                    let found = self.resume().await;
                    if found == Some(place) {
                        return;
                    }
                    assert_eq!(found, before, "the place is that of a transaction that came in");
                }
            }
            assert!(Instant::now() < until, "it is not in the log in time");
        }
    }
}

/// Waits for the end of a transaction of so many rows.
pub(super) async fn ended(rows: usize, future: TransactionFuture, deadline: Duration) -> TransactionEnd {
    let end = tokio::time::timeout(deadline + Duration::from_secs(10), future)
        .await
        .expect("a transaction ends within its deadline");
    match &end {
        TransactionEnd::Committed => {}
        TransactionEnd::Aborted(errors) => {
            assert_eq!(errors.len(), rows, "one error for each row");
            assert!(errors.iter().all(|error| !error.message.is_empty()));
        }
        TransactionEnd::Unknown(error) => assert!(!error.message.is_empty(), "an error says why"),
    }
    end
}

/// The place behind transaction `n`.
pub(super) fn place(n: i64) -> LogPlace {
    LogPlace {
        log: Nonce([7; 16]),
        batch_no: n,
        batch: Nonce([n.to_le_bytes()[0]; 16]),
        last_id: n * 100,
        finished: n % 2 == 0,
    }
}

/// Fails unless exactly these rows are there, once each, every key's in order.
pub(super) fn exactly(found: &[Arrived], rows: &[Arc<OutboxRow>]) {
    drive::all_there(found, rows);
    assert_eq!(found.len(), rows.len(), "none is there twice");
}
