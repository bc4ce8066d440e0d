//! A key in the caller's own transaction, by functions.

use semel_core::claim::{ClaimReply, LeaseReply, succeeded};
use semel_core::{KeyStore as _, KeyStoreExt as _, StoredOutcome};
use semel_postgres::Postgres;
use semel_testkit::laws::keys::{LEASE_MS, duplicate};
use sqlx::PgConnection;
use sqlx::postgres::PgPool;

use crate::keys::{Lent, age_ms, request, rerun_request, until_someone_waits};

async fn shop() -> (Lent, Postgres) {
    let (lent, db) = Lent::take().await;
    let table = "CREATE TABLE IF NOT EXISTS effect (id bytea); TRUNCATE effect";
    sqlx::raw_sql(table).execute(db.pool()).await.unwrap();
    (lent, db)
}

async fn effects(db: &PgPool) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM effect")
        .fetch_one(db)
        .await
        .unwrap()
}

/// `(verdict, token, outcome)`.
type Once = (String, Option<i64>, Option<Vec<u8>>);

async fn once(tx: &mut PgConnection, id: &[u8]) -> Result<Once, sqlx::Error> {
    let sql =
        "SELECT verdict, token, outcome FROM semel.once('tests', $1, semel.fingerprint('what was asked'))";
    sqlx::query_as(sql).bind(id).fetch_one(tx).await
}

async fn effect(tx: &mut PgConnection, id: &[u8]) {
    let effect = sqlx::query("INSERT INTO effect (id) VALUES ($1)").bind(id);
    effect.execute(tx).await.unwrap();
}

async fn done(tx: &mut PgConnection, id: &[u8], token: Option<i64>) -> Result<(), sqlx::Error> {
    let sql = "SELECT semel.once_done('tests', $1, $2, 'charged')";
    sqlx::query(sql).bind(id).bind(token).execute(tx).await.map(drop)
}

/// Runs the effect if it is the first, and commits.
async fn run(db: &PgPool, id: &[u8]) -> Result<Once, sqlx::Error> {
    let mut tx = db.begin().await?;
    let answer = once(&mut tx, id).await?;
    if answer.0 == "first" {
        effect(&mut tx, id).await;
        done(&mut tx, id, answer.1).await?;
    }
    tx.commit().await?;
    Ok(answer)
}

#[tokio::test]
async fn mark_outcome_and_effect_commit_together_and_a_rollback_leaves_nothing() {
    let (_lent, db) = shop().await;
    let claim = request();
    let id = claim.key.id();
    let mut tx = db.pool().begin().await.unwrap();
    let (verdict, token, _) = once(&mut tx, id).await.unwrap();
    assert_eq!(verdict, "first");
    effect(&mut tx, id).await;
    done(&mut tx, id, token).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(
        (db.read(&claim.key).await.unwrap(), effects(db.pool()).await),
        (None, 0)
    );

    assert_eq!(run(db.pool(), id).await.unwrap().0, "first");
    let again = run(db.pool(), id).await.unwrap();
    assert_eq!(
        (again.0.as_str(), again.2.as_deref()),
        ("done", Some(&b"charged"[..]))
    );
    assert_eq!(effects(db.pool()).await, 1);
    // The key store sees the same record.
    let reply = db.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("charged")));
}

#[tokio::test]
async fn duplicate_waits_for_the_first_and_gets_its_outcome_or_is_the_first_itself() {
    let (_lent, db) = shop().await;
    for commits in [true, false] {
        let claim = request();
        let id = claim.key.id();
        let before = effects(db.pool()).await;
        let mut tx = db.pool().begin().await.unwrap();
        let (_, token, _) = once(&mut tx, id).await.unwrap();
        let waiting = tokio::spawn({
            let (pool, id) = (db.pool().clone(), id.to_vec());
            async move { run(&pool, &id).await.unwrap() }
        });
        until_someone_waits(&db, 1).await;
        effect(&mut tx, id).await;
        done(&mut tx, id, token).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let answer = waiting.await.unwrap();
        assert_eq!(answer.0, if commits { "done" } else { "first" });
        assert_eq!(effects(db.pool()).await, before + 1);
    }
}

/// Rule K6: the same expiry rule as a claim.
#[tokio::test]
async fn what_is_claimed_or_unknown_is_never_passed() {
    let (_lent, db) = shop().await;
    let (held, rerun) = (request(), rerun_request());
    for claim in [&held, &rerun] {
        db.claim(claim).await.unwrap();
        assert_eq!(run(db.pool(), claim.key.id()).await.unwrap().0, "busy");
    }
    age_ms(&db, LEASE_MS).await;
    for _ in 0..2 {
        assert_eq!(run(db.pool(), held.key.id()).await.unwrap().0, "unknown");
        db.sweep(100).await.unwrap();
    }
    assert_eq!(effects(db.pool()).await, 0);
    assert_eq!(run(db.pool(), rerun.key.id()).await.unwrap().0, "first");
}

/// The effect is there although the answer was never stored: the key must not run again.
#[tokio::test]
async fn committed_without_an_outcome_is_done_with_the_outcome_forgotten() {
    let (_lent, db) = shop().await;
    let claim = request();
    let mut tx = db.pool().begin().await.unwrap();
    once(&mut tx, claim.key.id()).await.unwrap();
    tx.commit().await.unwrap();
    let reply = db.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == StoredOutcome::Forgotten));
}

#[tokio::test]
async fn an_outcome_is_stored_once_and_only_for_its_own_mark() {
    let (_lent, db) = shop().await;
    let id = request().key;
    let (_, token, _) = run(db.pool(), id.id()).await.unwrap();
    let mut connection = db.pool().acquire().await.unwrap();
    for token in [token, Some(token.unwrap() + 1), None] {
        let error = done(&mut connection, id.id(), token).await.unwrap_err();
        let code = error.as_database_error().unwrap().code().unwrap().into_owned();
        assert_eq!(code, "SM211", "{error}");
    }
}

/// The work is done first; the duplicate's is rolled back by the error that it gets.
#[tokio::test]
async fn once_last_takes_back_the_work_of_a_duplicate() {
    let (_lent, db) = shop().await;
    let claim = request();
    let last = "SELECT semel.once_last('tests', $1, semel.fingerprint('what was asked'), 'charged')";
    for first in [true, false] {
        let mut tx = db.pool().begin().await.unwrap();
        effect(&mut tx, claim.key.id()).await;
        match sqlx::query(last).bind(claim.key.id()).execute(&mut *tx).await {
            Ok(_) => {
                assert!(first);
                tx.commit().await.unwrap();
            }
            Err(error) => {
                assert!(!first, "{error}");
                let code = error.as_database_error().unwrap().code().unwrap().into_owned();
                assert_eq!(code, "SM212", "{error}");
                tx.rollback().await.unwrap();
            }
        }
    }
    assert_eq!(effects(db.pool()).await, 1);
    let sql = "SELECT state, outcome FROM semel.outcome('tests', $1)";
    let told: (String, Vec<u8>) = sqlx::query_as(sql)
        .bind(claim.key.id())
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(told, ("done".to_owned(), b"charged".to_vec()));
}

/// Rule K6: after other work a duplicate cannot be seen by a snapshot; the whole transaction is repeated.
#[tokio::test]
async fn repeatable_read_gets_a_serialisation_failure_and_the_repeat_the_outcome() {
    let (_lent, db) = shop().await;
    let key = request().key;
    let mut late = db.pool().begin().await.unwrap();
    let begin = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM effect";
    sqlx::raw_sql(begin).execute(&mut *late).await.unwrap();
    run(db.pool(), key.id()).await.unwrap();
    let error = once(&mut late, key.id()).await.unwrap_err();
    let code = error.as_database_error().unwrap().code().unwrap().into_owned();
    assert_eq!(code, "40001", "{error}");
    late.rollback().await.unwrap();
    assert_eq!(run(db.pool(), key.id()).await.unwrap().0, "done");
    assert_eq!(effects(db.pool()).await, 1);
}

/// Mark, work and outcome in one call: a function of the caller's own.
#[tokio::test]
async fn folds_into_one_call() {
    let (_lent, db) = shop().await;
    let own = "CREATE OR REPLACE FUNCTION charge(id bytea) RETURNS text LANGUAGE plpgsql AS $$
        DECLARE o record;
        BEGIN
          SELECT * INTO o FROM semel.once('tests', id, semel.fingerprint('what was asked'));
          IF o.verdict = 'first' THEN
            INSERT INTO effect VALUES (id);
            PERFORM semel.once_done('tests', id, o.token, 'charged');
          END IF;
          RETURN o.verdict;
        END $$";
    sqlx::raw_sql(own).execute(db.pool()).await.unwrap();
    let key = request().key;
    for verdict in ["first", "done"] {
        let said: String = sqlx::query_scalar("SELECT charge($1)")
            .bind(key.id())
            .fetch_one(db.pool())
            .await
            .unwrap();
        assert_eq!(said, verdict);
    }
    assert_eq!(effects(db.pool()).await, 1);
}

/// The mark carries the answer; work and mark are one statement, of which a duplicate does nothing.
#[tokio::test]
async fn an_answer_known_beforehand_is_marked_with_the_key_in_one_statement() {
    let (_lent, db) = shop().await;
    let claim = request();
    let charge = "WITH o AS MATERIALIZED (
          SELECT * FROM semel.once_with('tests', $1, semel.fingerprint($2), 'charged')
        ), work AS (
          INSERT INTO effect SELECT $1 FROM o WHERE o.verdict = 'first'
        )
        SELECT verdict, token, outcome FROM o";
    let charge = async |what: &str| -> Once {
        let call = sqlx::query_as(charge).bind(claim.key.id()).bind(what.as_bytes());
        call.fetch_one(db.pool()).await.unwrap()
    };
    let (verdict, token, outcome) = charge("what was asked").await;
    assert_eq!((verdict.as_str(), outcome), ("first", None));
    assert!(token.is_some());
    for _ in 0..2 {
        let told = charge("what was asked").await;
        assert_eq!(told, ("done".to_owned(), None, Some(b"charged".to_vec())));
    }
    assert_eq!(charge("something else").await.0, "mismatch");
    assert_eq!(effects(db.pool()).await, 1);
    let reply = db.claim(&claim).await.unwrap();
    assert!(matches!(reply, ClaimReply::Done { outcome, .. } if outcome == succeeded("charged")));
}

/// What a function refuses it refuses before it writes, by the name of the argument.
#[tokio::test]
async fn arguments_outside_their_limits_are_refused_by_every_function_that_marks() {
    let (_lent, db) = shop().await;
    let print = "semel.fingerprint('x')";
    let long = "repeat('x', 256)::bytea";
    let large = "convert_to(repeat('x', 1048577), 'UTF8')";
    let cases = [
        (format!("semel.once('', 'k', {print})"), "scope"),
        (format!("semel.once('s', {long}, {print})"), "key id"),
        (format!("semel.once(NULL, 'k', {print})"), "scope"),
        ("semel.once('s', 'k', 'x')".to_owned(), "fingerprint"),
        (format!("semel.once('s', 'k', {print}, 0)"), "retention"),
        (
            format!("semel.once('s', 'k', {print}, 9223372036854775807)"),
            "retention",
        ),
        (
            format!("semel.once_with('s', 'k', {print}, 'x', 's', 9223372036854775807)"),
            "retention",
        ),
        (format!("semel.once('s', 'k', {print}, 1, NULL)"), "tombstone"),
        (format!("semel.once_with('s', 'k', {print}, {large})"), "outcome"),
        (format!("semel.once_with('s', 'k', {print}, NULL)"), "outcome"),
        (format!("semel.once_with('s', 'k', {print}, 'x', 'f')"), "outcome"),
        (
            format!("semel.once_last('s', 'k', {print}, 'x', 'x')"),
            "outcome code",
        ),
        (format!("semel.once_last('s', '', {print})"), "key id"),
        (format!("semel.once_done('s', 'k', 1, {large})"), "outcome"),
        (
            "semel.once_done('s', 'k', 1, 'x', NULL)".to_owned(),
            "outcome code",
        ),
        ("semel.once_done('', 'k', 1)".to_owned(), "scope"),
    ];
    for (call, what) in cases {
        let asked = sqlx::query(sqlx::AssertSqlSafe(format!("SELECT {call}")));
        let error = asked.execute(db.pool()).await.expect_err(&call).to_string();
        assert!(error.contains(&format!("SEM0210: {what}: ")), "{call}: {error}");
    }
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM semel.key WHERE scope = 's'")
        .fetch_one(db.pool())
        .await
        .unwrap();
    assert_eq!(rows, 0);
}

/// Rule K7: a claim must not be forgotten by a crash although its transaction was told that it is committed.
#[tokio::test]
async fn a_claim_is_durable_where_commits_are_not_by_default() {
    let (_lent, db) = shop().await;
    let mut tx = db.pool().begin().await.unwrap();
    sqlx::raw_sql("SET LOCAL synchronous_commit = off")
        .execute(&mut *tx)
        .await
        .unwrap();
    let sql = "SELECT verdict FROM semel.claim('tests', $1, semel.fingerprint('x'))";
    let call = sqlx::query(sql).bind(request().key.id().to_vec());
    call.execute(&mut *tx).await.unwrap();
    let setting: String = sqlx::query_scalar("SHOW synchronous_commit")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    assert_eq!(setting, "on");
}

/// An application's role needs no more than this.
#[tokio::test]
async fn an_ordinary_role_may_use_it() {
    let (lent, db) = shop().await;
    let claim = request();
    // Roles belong to the whole server.
    let role = format!("shop_{}", semel_core::key::hex(&claim.nonce.0));
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA semel TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON semel.key TO {role}; GRANT USAGE ON SEQUENCE semel.token TO {role};
         GRANT SELECT, INSERT ON effect TO {role}"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(grants))
        .execute(db.pool())
        .await
        .unwrap();
    let url = lent.url.replace("postgres@", &format!("{role}@"));
    let app = Postgres::connect(semel_postgres::Config::new(url)).await.unwrap();
    assert_eq!(run(app.pool(), claim.key.id()).await.unwrap().0, "first");
    assert!(matches!(
        app.claim(&duplicate(&claim)).await.unwrap(),
        ClaimReply::Done { .. }
    ));
    let other = request();
    let ClaimReply::Granted { lease, .. } = app.claim(&other).await.unwrap() else {
        panic!("not granted")
    };
    let sql = "SELECT verdict FROM semel.complete('tests', $1, $2, $3, 'x')";
    let verdict: String = sqlx::query_scalar(sql)
        .bind(other.key.id())
        .bind(lease.token.0)
        .bind(lease.nonce.0)
        .fetch_one(app.pool())
        .await
        .unwrap();
    assert_eq!(verdict, "ok");
    let done = semel_core::claim::Completion {
        key: other.key,
        lease,
        outcome: succeeded("x"),
        keep: semel_core::claim::Keep::default(),
    };
    assert!(matches!(app.complete(&done).await.unwrap(), LeaseReply::Ok(_)));
    app.sweep(10).await.unwrap();
    app.close().await;
    let drop_role = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(drop_role))
        .execute(db.pool())
        .await
        .unwrap();
}
