//! Batches of a log over SQLite and PostgreSQL.

mod redrives;
mod unfit;

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use semel_core::inbox::run::{Committed, End};
use semel_core::inbox::{AdvancePosition, AssignPosition, Poison, Position, PositionKey};
use semel_core::store::InboxStore;
use semel_core::{Nonce, Scope, Timestamp};
use semel_inbox::{
    BatchOptions, Handler, HandlerError, KEYS_FAILED_MAX, Message, Redriven, discard, redrive, redrive_after,
    settle_batch,
};
use semel_postgres::Postgres;
use semel_sqlite::Sqlite;
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::postgres;
use uuid::Uuid;

/// Writes each message's text into `entry (body)`, whose constraint refuses `constraint`.
#[derive(Default)]
struct Ledger {
    calls: Mutex<Vec<Vec<String>>>,
}

fn text(message: &Message) -> String {
    String::from_utf8(message.data.clone().unwrap().to_vec()).unwrap()
}

impl Ledger {
    fn called(&self, messages: &[&Message]) -> Result<Vec<String>, HandlerError> {
        let texts: Vec<String> = messages.iter().map(|m| text(m)).collect();
        self.calls.lock().unwrap().push(texts.clone());
        if texts.iter().any(|text| text == "refuse") {
            return Err(HandlerError::Refused("no".to_owned()));
        }
        if texts.iter().any(|text| text == "later") {
            return Err(HandlerError::Later("not now".to_owned()));
        }
        Ok(texts)
    }
}

/// Runs statements in a batch's transaction, on either engine.
#[async_trait]
trait Statements {
    async fn run(&mut self, sql: &'static str, text: String) -> Result<(), HandlerError>;
}

#[async_trait]
impl Statements for semel_sqlite::InboxTx {
    async fn run(&mut self, sql: &'static str, text: String) -> Result<(), HandlerError> {
        let ran = sqlx::query(sql).bind(text).execute(self.conn()).await;
        Ok(ran
            .map(|_| ())
            .map_err(|error| semel_sqlite::classify("test", error))?)
    }
}

#[async_trait]
impl Statements for semel_postgres::InboxTx {
    async fn run(&mut self, sql: &'static str, text: String) -> Result<(), HandlerError> {
        let ran = sqlx::query(sql).bind(text).execute(self.conn()).await;
        Ok(ran
            .map(|_| ())
            .map_err(|error| semel_postgres::classify("test", error))?)
    }
}

#[async_trait]
impl<S: InboxStore<Tx: Statements>> Handler<S> for Ledger {
    async fn handle(&self, tx: &mut S::Tx, messages: &[&Message]) -> Result<(), HandlerError> {
        for text in self.called(messages)? {
            tx.run("INSERT INTO entry (body) VALUES ($1)", text).await?;
        }
        Ok(())
    }
}

/// A log of messages `key:text`, their id being their place, read by one owner.
struct World<S: InboxStore> {
    store: S,
    ledger: Ledger,
    options: BatchOptions,
    position: Position,
    log: Vec<Message>,
    _dir: Option<tempfile::TempDir>,
}

fn key() -> PositionKey {
    PositionKey {
        group: "g".to_owned(),
        topic_id: Uuid::from_u128(1),
        partition: 0,
    }
}

fn log(messages: &[&str]) -> Vec<Message> {
    messages
        .iter()
        .zip(0_i64..)
        .map(|(message, offset)| {
            let (key, text) = message.split_once(':').unwrap();
            Message {
                id: Bytes::from(offset.to_string()),
                key: (!key.is_empty()).then(|| Bytes::copy_from_slice(key.as_bytes())),
                topic: "t".to_owned(),
                partition: 0,
                offset,
                headers: Vec::new(),
                data: Some(Bytes::copy_from_slice(text.as_bytes())),
                sent_at: Timestamp(0),
            }
        })
        .collect()
}

impl<S: InboxStore> World<S>
where
    Ledger: Handler<S>,
{
    async fn new(
        store: S,
        dir: Option<tempfile::TempDir>,
        marks: bool,
        poison: Poison,
        messages: &[&str],
    ) -> Self {
        let mut world = Self {
            store,
            ledger: Ledger::default(),
            options: BatchOptions {
                scope: Scope::new("ledger").unwrap(),
                marks,
                retention: Duration::from_secs(60),
                poison,
            },
            position: Position {
                next_offset: 0,
                epoch: 0,
                owner: Nonce([0; 16]),
            },
            log: log(messages),
            _dir: dir,
        };
        world.assign().await;
        world
    }

    async fn assign(&mut self) -> i64 {
        let wish = AssignPosition {
            key: key(),
            topic: "t".to_owned(),
            owner: Nonce::random(),
            initial: 0,
        };
        self.position = self.store.assign_positions(&[wish]).await.unwrap()[0];
        self.position.next_offset
    }

    /// Settles everything from the position to the end of the log, once.
    async fn settle(&mut self) -> End {
        let from = self.position.next_offset;
        let messages = &self.log[usize::try_from(from).unwrap()..];
        let position = self.position;
        let advance = move |upto: usize| {
            vec![AdvancePosition {
                key: key(),
                epoch: position.epoch,
                owner: position.owner,
                expected: from,
                next: from + i64::try_from(upto).unwrap(),
            }]
        };
        let end = settle_batch(&self.store, &self.ledger, &self.options, messages, &advance).await;
        if let End::Committed(committed) = &end {
            self.position.next_offset += i64::try_from(committed.upto).unwrap();
        }
        end
    }

    fn calls(&self) -> Vec<Vec<String>> {
        std::mem::take(&mut self.ledger.calls.lock().unwrap())
    }
}

async fn sqlite(marks: bool, poison: Poison, messages: &[&str]) -> World<Sqlite> {
    let dir = tempfile::tempdir().unwrap();
    let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("ledger.db")))
        .await
        .unwrap();
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query(
        "CREATE TABLE entry (n INTEGER PRIMARY KEY, body TEXT NOT NULL CHECK (body <> 'constraint'))",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    db.commit(tx).await.unwrap();
    World::new(db, Some(dir), marks, poison, messages).await
}

impl World<Sqlite> {
    async fn entries(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT body FROM entry ORDER BY n")
            .fetch_all(self.store.readers())
            .await
            .unwrap()
    }
}

async fn on_postgres(url: String, marks: bool, poison: Poison, messages: &[&str]) -> World<Postgres> {
    let db = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql(
        "CREATE TABLE known (body text PRIMARY KEY);
         INSERT INTO known VALUES ('a'), ('b'), ('c'), ('d');
         CREATE TABLE entry (n bigint GENERATED ALWAYS AS IDENTITY,
                             body text NOT NULL REFERENCES known DEFERRABLE INITIALLY DEFERRED)",
    )
    .execute(db.pool())
    .await
    .unwrap();
    World::new(db, None, marks, poison, messages).await
}

impl World<Postgres> {
    async fn entries(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT body FROM entry ORDER BY n")
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }
}

fn committed(end: End) -> Committed {
    match end {
        End::Committed(committed) => committed,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_batch_is_one_call_and_its_redelivery_changes_nothing() {
    let mut w = sqlite(true, Poison::Stop, &["k:a", "l:b", "k:c"]).await;
    assert_eq!(committed(w.settle().await).new, 3);
    assert_eq!(w.calls(), [["a", "b", "c"]]);
    // Delivered again from the beginning.
    w.position.next_offset = 0;
    let end = w.settle().await;
    assert!(
        matches!(end, End::Lost(_)),
        "the position is not where this batch begins: {end:?}"
    );
    assert_eq!(w.entries().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn the_bad_message_is_found_and_what_is_before_it_commits() {
    for bad in ["refuse", "constraint"] {
        let mut w = sqlite(true, Poison::Stop, &["k:a", &format!("k:{bad}"), "k:c"]).await;
        let end = committed(w.settle().await);
        assert_eq!((end.upto, end.stopped.unwrap().at), (1, 1));
        assert!(matches!(w.settle().await, End::Stopped(_)));
        assert_eq!(w.entries().await, ["a"]);
    }
}

#[tokio::test]
async fn parked_messages_hold_their_key_until_they_are_driven_again() {
    let mut w = sqlite(true, Poison::Park, &["k:refuse", "l:b", "k:c", ":d", ":refuse"]).await;
    let end = committed(w.settle().await);
    assert_eq!((end.upto, end.new, end.parked), (5, 2, 3));
    assert_eq!(w.entries().await, ["b", "d"]);

    // The next batch's message of that key queues behind.
    w.log.extend(log(&["k:e"]).into_iter().map(|mut message| {
        message.id = "5".into();
        message
    }));
    assert_eq!(committed(w.settle().await).parked, 1);

    // Not mended yet: nothing is lost by trying.
    w.calls();
    let done = redrive(&w.store, &w.ledger, &w.options, 10).await.unwrap();
    assert_eq!((done.settled, done.keys_failed), (0, 2));
    assert_eq!(
        w.calls(),
        [vec!["refuse", "c", "e"], vec!["refuse"], vec!["refuse"]],
        "after the whole key its first message alone, then the next key"
    );
    assert_eq!(w.entries().await, ["b", "d"]);

    // Mended.
    let fixed = Fixed(Ledger::default());
    let all = Redriven {
        settled: 4,
        ..Redriven::default()
    };
    assert_eq!(redrive(&w.store, &fixed, &w.options, 10).await.unwrap(), all);
    let none = redrive(&w.store, &fixed, &w.options, 10).await.unwrap();
    assert_eq!(none, Redriven::default());
    assert_eq!(w.entries().await, ["b", "d", "mended", "c", "e", "mended"]);
}

/// A handler that has learnt what to do with `refuse`.
struct Fixed(Ledger);

#[async_trait]
impl Handler<Sqlite> for Fixed {
    async fn handle(
        &self,
        tx: &mut semel_sqlite::InboxTx,
        messages: &[&Message],
    ) -> Result<(), HandlerError> {
        for message in messages {
            let mut message = (*message).clone();
            if text(&message) == "refuse" {
                message.data = Some("mended".into());
            }
            Handler::<Sqlite>::handle(&self.0, tx, &[&message]).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn not_now_parks_nothing_and_undoes_all() {
    let mut w = sqlite(true, Poison::Park, &["k:a", "k:later"]).await;
    assert!(matches!(w.settle().await, End::Later(_)));
    assert_eq!(w.calls().len(), 1, "no message is looked for");
    assert_eq!(w.assign().await, 0);
    assert!(w.entries().await.is_empty());
}

#[tokio::test]
async fn a_stale_owner_s_batch_leaves_nothing() {
    let mut w = sqlite(false, Poison::Stop, &["k:a"]).await;
    let stale = w.position;
    w.assign().await;
    let mine = std::mem::replace(&mut w.position, stale);
    assert!(matches!(w.settle().await, End::Lost(_)));
    assert!(w.entries().await.is_empty());
    w.position = mine;
    assert_eq!(committed(w.settle().await).new, 1);
}

/// Rule I2: nobody fails until the commit.
#[tokio::test]
async fn a_deferred_constraint_parks_its_message_only() {
    let messages = ["k:a", "l:unknown", "k:c", "l:d"];
    let mut w = on_postgres(postgres().fresh_database(), true, Poison::Park, &messages).await;
    let end = committed(w.settle().await);
    assert_eq!((end.upto, end.new, end.parked), (4, 2, 2));
    assert_eq!(w.entries().await, ["a", "c"]);
}

/// The reply to COMMIT is lost: the positions tell, for certain.
#[tokio::test]
async fn a_lost_commit_reply_is_unknown_until_the_position_is_asked() {
    let url = postgres().fresh_database();
    let proxy = Proxy::to_port(postgres().port()).await.unwrap();
    let through = url.replace(&postgres().port().to_string(), &proxy.port().to_string());
    let mut w = on_postgres(through, true, Poison::Park, &["k:a", "k:b"]).await;

    proxy.drop_reply_to(b"COMMIT");
    let end = w.settle().await;
    assert!(matches!(end, End::Unknown(_)), "{end:?}");
    assert_eq!(w.assign().await, 2, "it was committed");

    w.log.extend(log(&["k:c"]));
    w.log[2].id = "2".into();
    proxy.drop_request(b"COMMIT");
    let end = w.settle().await;
    assert!(matches!(end, End::Unknown(_)), "{end:?}");
    assert_eq!(w.assign().await, 2, "it was not");
    assert_eq!(committed(w.settle().await).new, 1);
    assert_eq!(w.entries().await, ["a", "b", "c"]);
}
