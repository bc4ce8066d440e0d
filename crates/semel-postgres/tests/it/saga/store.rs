//! What only PostgreSQL can get wrong about sagas.

use std::collections::HashSet;
use std::time::Duration;

use semel_core::saga::Status;
use semel_core::store::{
    RequestReply, SagaLookup, SagaRequest, SagaStore as _, Save, SaveReply, Submission, SubmitReply,
};
use semel_core::{ErrorKind, Nonce, Retry};
use semel_postgres::{Config, Postgres};
use semel_testkit::laws::saga::{Held, LEASE_MS, World, first_save, id, last_save, moved, submission};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::PostgresServer;

use super::{fresh, world};

fn orders(n: usize) -> Vec<Submission> {
    (0..n)
        .map(|n| submission(&id(&format!("order-{n}")), "{}"))
        .collect()
}

fn cancel(why: &str) -> SagaRequest {
    SagaRequest::Cancel {
        by: "ann".into(),
        why: why.into(),
    }
}

/// Every saga of the store, claimed.
async fn all_held(world: &World, n: usize) -> Vec<Held> {
    world.store.submit_sagas(&orders(n)).await.unwrap();
    let held = world.claim(u32::MAX).await;
    assert_eq!(held.len(), n);
    held
}

async fn number(db: &Postgres, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(db.pool()).await.unwrap()
}

/// Rule R3: whatever the number of sagas, accepting, taking over and writing them is one commit each.
#[tokio::test]
async fn two_hundred_sagas_share_each_commit() {
    let (lent, db) = fresh().await;
    let (world, _lent) = (super::world_over(&db), lent);
    let commits = "SELECT count(DISTINCT xmin::text) FROM semel.saga";
    world.store.submit_sagas(&orders(200)).await.unwrap();
    assert_eq!(number(&db, commits).await, 1);
    let held = world.claim(u32::MAX).await;
    assert_eq!(number(&db, commits).await, 1);
    let saves: Vec<Save> = held.iter().map(first_save).collect();
    let replies = db.save_sagas(&saves).await.unwrap();
    assert_eq!(replies, vec![SaveReply::Saved; 200]);
    let with_log = "SELECT count(DISTINCT xmin) FROM (SELECT xmin::text FROM semel.saga UNION ALL
                      SELECT xmin::text FROM semel.saga_log) t";
    assert_eq!(
        number(&db, with_log).await,
        1,
        "the log is in the commit of its transitions"
    );
    assert_eq!(number(&db, "SELECT count(*) FROM semel.saga_log").await, 200);
}

/// Sagas that somebody has just locked are left to whoever comes next, not waited for.
#[tokio::test]
async fn a_claim_waits_for_nobody() {
    let (lent, db) = fresh().await;
    let (world, _lent) = (super::world_over(&db), lent);
    world.store.submit_sagas(&orders(10)).await.unwrap();
    let mut other = db.begin().await.unwrap();
    let locked: Vec<String> =
        sqlx::query_scalar("SELECT id FROM semel.saga ORDER BY claim_at, id LIMIT 4 FOR UPDATE")
            .fetch_all(&mut *other)
            .await
            .unwrap();
    let taken: HashSet<String> = world
        .claim(100)
        .await
        .iter()
        .map(|held| held.owned.id.to_string())
        .collect();
    assert_eq!(taken.len(), 6);
    assert!(locked.iter().all(|saga| !taken.contains(saga)));
    other.rollback().await.unwrap();
    assert_eq!(world.claim(100).await.len(), 4);
}

/// Two coordinators in two processes, each with its own pool, claim and finish 300 sagas between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_coordinators_share_all_sagas_and_finish_each_once() {
    let (lent, one) = fresh().await;
    let two = Postgres::connect(Config::new(&lent.url)).await.unwrap();
    one.submit_sagas(&orders(300)).await.unwrap();
    let work = async |db: Postgres| {
        let world = super::world_over(&db);
        let mut finished = 0;
        loop {
            let held = world.claim(7).await;
            if held.is_empty() {
                return finished;
            }
            let ends: Vec<Save> = held.iter().map(|held| last_save(held, 1)).collect();
            let replies = db.save_sagas(&ends).await.unwrap();
            assert_eq!(replies, vec![SaveReply::Saved; held.len()]);
            finished += held.len();
        }
    };
    let (a, b) = tokio::join!(work(one.clone()), work(two));
    let rest = work(one.clone()).await;
    assert_eq!(a + b + rest, 300);
    assert_eq!(one.count_sagas().await.unwrap(), [(Status::Completed, 300)]);
    let twice = "SELECT count(*) FROM semel.saga WHERE epoch <> 1 OR version <> 2";
    assert_eq!(number(&one, twice).await, 0);
}

/// Terminal sagas are in no index that a claim reads, whatever due time came with their end.
#[tokio::test]
async fn ended_sagas_are_in_no_index_that_a_claim_reads() {
    let (world, lent) = world().await;
    let db = Postgres::connect(Config::new(&lent.url)).await.unwrap();
    for status in Status::ALL {
        let held = world.held(status.as_str()).await;
        let save = Save {
            due_at: Some(held.record.accepted_at),
            release: false,
            ..moved(&held, 1, status)
        };
        assert_eq!(world.save(&save).await, SaveReply::Saved);
    }
    world.pass(LEASE_MS * 2).await;
    let due = "SELECT count(*) FROM semel.saga WHERE claim_at IS NOT NULL AND ended_at IS NOT NULL";
    assert_eq!(number(&db, due).await, 0);
    let claimed = world.claim(100).await;
    assert!(claimed.iter().all(|held| !held.record.status.is_terminal()));
    assert_eq!(claimed.len(), 4);
}

/// Lost replies on the wire are unknown, and repeating the call is safe.
#[tokio::test]
async fn lost_replies_are_unknown_and_asked_for_again() {
    let (lent, direct) = fresh().await;
    let port: u16 = lent
        .url
        .rsplit_once('/')
        .unwrap()
        .0
        .rsplit_once(':')
        .unwrap()
        .1
        .parse()
        .unwrap();
    let proxy = Proxy::to_port(port).await.unwrap();
    let url = lent
        .url
        .replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let db = Postgres::connect(Config::new(url)).await.unwrap();
    let world = super::world_over(&direct);

    let nonce = Nonce::random();
    let claimed = world.claimed_submission(&id("order-1"), nonce).await;
    proxy.drop_reply_to(&nonce.0);
    let lost = db.submit_sagas(std::slice::from_ref(&claimed)).await.unwrap_err();
    assert_eq!(
        (lost.kind(), lost.retry()),
        (ErrorKind::ReplyLost, Retry::OutcomeUnknown)
    );
    assert_eq!(
        db.submit_sagas(&[claimed]).await.unwrap(),
        [SubmitReply::Accepted]
    );

    world.pass(LEASE_MS + 1).await;
    let held = world.claim(1).await.remove(0);
    let mut save = first_save(&held);
    save.log[0].text = "the-marker-of-this-write".into();
    proxy.drop_reply_to(b"the-marker-of-this-write");
    let batch = std::slice::from_ref(&save);
    let lost = db.save_sagas(batch).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ReplyLost);
    assert_eq!(db.save_sagas(batch).await.unwrap(), [SaveReply::WrongVersion]);
    assert_eq!(proxy.hits(), 2);
    let saga = world.load(&held.owned.id).await;
    assert_eq!(saga.version, 2);
    let log = direct.saga_log(&held.owned.id, 100).await.unwrap();
    let told: Vec<_> = log.into_iter().filter(|row| row.version == 2).collect();
    assert!(
        told.iter().map(|row| &row.entry).eq(&save.log),
        "logged once: {told:?}"
    );
}

/// A row that somebody's open transaction holds is waited for as long as the configuration says; then the whole batch is
/// certainly not written.
#[tokio::test]
async fn a_batch_behind_a_held_row_is_written_whole_or_not_at_all() {
    let (lent, direct) = fresh().await;
    let mut config = Config::new(&lent.url);
    config.lock_wait = Duration::from_millis(50);
    let db = Postgres::connect(config).await.unwrap();
    let world = super::world_over(&direct);
    let held = all_held(&world, 5).await;
    let saves: Vec<Save> = held.iter().map(first_save).collect();
    // As an operator in psql who does not commit.
    let mut operator = direct.begin().await.unwrap();
    sqlx::query("SELECT * FROM semel.saga_request($1, 'cancel', 'ann', 'the customer called')")
        .bind(held[3].owned.id.as_str())
        .execute(&mut *operator)
        .await
        .unwrap();
    let error = db.save_sagas(&saves).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    assert_eq!(number(&direct, "SELECT count(*) FROM semel.saga_log").await, 0);
    let error = db.request_saga(&held[3].owned.id, &cancel("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotApplied);
    direct.commit(operator).await.unwrap();
    let mut expected = vec![SaveReply::Saved; 5];
    expected[3] = SaveReply::WrongVersion;
    assert_eq!(db.save_sagas(&saves).await.unwrap(), expected);
    assert_eq!(world.load(&held[3].owned.id).await.requests.len(), 1);
}

/// A write that waited for a request sees it: the version has moved on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_waited_for_a_request_is_decided_again() {
    let (lent, db) = fresh().await;
    let (world, _lent) = (super::world_over(&db), lent);
    let held = world.held("order-1").await;
    let mut operator = db.begin().await.unwrap();
    let asked: (String, String) = sqlx::query_as(
        "SELECT reply, status FROM semel.saga_request('order-1', 'cancel', by_whom => 'ann', why => 'late')",
    )
    .fetch_one(&mut *operator)
    .await
    .unwrap();
    assert_eq!(asked, ("noted".to_owned(), "running".to_owned()));
    let parks = Save {
        due_at: None,
        release: true,
        ..moved(&held, 1, Status::Stuck)
    };
    let (writer, save) = (db.clone(), parks.clone());
    let waiting = tokio::spawn(async move { writer.save_sagas(&[save]).await });
    crate::keys::until_someone_waits(&db, 1).await;
    db.commit(operator).await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), [SaveReply::WrongVersion]);
    assert_eq!(
        world.load(&held.owned.id).await.requests[0].request,
        cancel("late")
    );
}

/// A submission that waited for another one of its id hears what became of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_that_waited_hears_what_it_waited_for() {
    let (lent, db) = fresh().await;
    let (world, _lent) = (super::world_over(&db), lent);
    for (commits, expected) in [
        (true, SubmitReply::Existing(Status::Running)),
        (false, SubmitReply::Accepted),
    ] {
        let name = format!("order-{commits}");
        let mut open = db.begin().await.unwrap();
        let template = world.submit(&format!("like-{commits}")).await;
        sqlx::query(
            "INSERT INTO semel.saga (id, definition, fingerprint, input, status, state, version, epoch)
             SELECT $2, definition, fingerprint, input, status, state, version, epoch FROM semel.saga WHERE id = $1",
        )
        .bind(template.as_str())
        .bind(&name)
        .execute(&mut *open)
        .await
        .unwrap();
        let (store, it) = (db.clone(), submission(&id(&name), "{}"));
        let waiting = tokio::spawn(async move { store.submit_sagas(&[it]).await });
        crate::keys::until_someone_waits(&db, 1).await;
        if commits {
            db.commit(open).await.unwrap();
        } else {
            open.rollback().await.unwrap();
        }
        assert_eq!(waiting.await.unwrap().unwrap(), [expected]);
    }
}

/// PostgreSQL has no NUL in texts; a participant's answer may.
#[tokio::test]
async fn a_nul_in_a_text_for_people_fails_nothing() {
    let (world, _lent) = world().await;
    let held = world.held("order-1").await;
    let asked = world
        .store
        .request_saga(&held.owned.id, &cancel("a\0b"))
        .await
        .unwrap();
    assert_eq!(asked, RequestReply::Noted);
    assert_eq!(
        world.load(&held.owned.id).await.requests[0].request,
        cancel("a\u{fffd}b")
    );
    let mut save = moved(&held, 2, Status::Stuck);
    save.log[0].text = "no\0".into();
    save.state = semel_core::store::SaveState::Unreadable("c\0d".into());
    assert_eq!(world.save(&save).await, SaveReply::Saved);
    let log = world.store.saga_log(&held.owned.id, 1).await.unwrap();
    assert_eq!(log[0].entry.text, "no\u{fffd}");
    let listed = world.store.list_sagas(None, None, 1).await.unwrap();
    assert_eq!(listed[0].why.as_deref(), Some("c\u{fffd}d"));
}

/// A batch too large for one message to the server goes in several.
#[tokio::test]
async fn a_batch_of_large_inputs_is_accepted_whole() {
    let (world, _lent) = world().await;
    let large = vec![7_u8; semel_core::limits::SAGA_PAYLOAD_BYTES_MAX];
    let batch: Vec<Submission> = orders(70)
        .into_iter()
        .map(|it| Submission {
            input: large.clone().into(),
            ..it
        })
        .collect();
    let replies = world.store.submit_sagas(&batch).await.unwrap();
    assert_eq!(replies, vec![SubmitReply::Accepted; 70]);
    assert_eq!(world.load(&batch[69].id).await.input, large);
}

/// Rule R4: what was accepted is there after the server was killed; what was claimed and written too.
#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_of_the_server_nothing_accepted_is_lost() {
    let mut server = tokio::task::spawn_blocking(PostgresServer::start).await.unwrap();
    let url = server.fresh_database();
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    // The database's own default must not decide (rule K7).
    sqlx::raw_sql("ALTER ROLE postgres SET synchronous_commit = off")
        .execute(db.pool())
        .await
        .unwrap();
    db.close().await;
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    let world = super::world_over(&db);
    let held = all_held(&world, 50).await;
    let saves: Vec<Save> = held[..20].iter().map(first_save).collect();
    db.save_sagas(&saves).await.unwrap();
    let late: Vec<Submission> = (0..50)
        .map(|n| submission(&id(&format!("late-{n}")), "{}"))
        .collect();
    assert_eq!(
        db.submit_sagas(&late).await.unwrap(),
        vec![SubmitReply::Accepted; 50]
    );
    server.kill();
    let down = world.store.submit_sagas(&orders(1)).await.unwrap_err();
    assert_ne!(down.retry(), Retry::Never, "{down}");
    db.close().await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    })
    .await
    .unwrap();

    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    let world = super::world_over(&db);
    for (n, held) in held.iter().enumerate() {
        let saga = world.load(&held.owned.id).await;
        let version = if n < 20 { 2 } else { 1 };
        assert_eq!((saga.version, saga.owner), (version, Some(held.owned.nonce)));
    }
    let found = db
        .load_sagas(&late.iter().map(|it| it.id.clone()).collect::<Vec<_>>())
        .await
        .unwrap();
    assert!(found.iter().all(|it| matches!(it, SagaLookup::Found(_))));
    assert_eq!(
        world.claim(u32::MAX).await.len(),
        50,
        "the late ones, owned by nobody"
    );
    assert_eq!(number(&db, "SELECT count(*) FROM semel.saga_log").await, 20);
    drop(server);
}
