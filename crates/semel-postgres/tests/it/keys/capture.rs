//! What others have put into the schema `public` is not called by Semel's statements and functions, though the search path
//! shows it: it would run with the rights of whoever calls Semel.

use semel_core::claim::{ClaimReply, Extension, Release, succeeded};
use semel_core::{Fingerprint, KeyStore as _, KeyStoreExt as _};
use semel_postgres::tx::{Mark, Once, OnceOptions, OnceOutcome, TxError, once, transact_once};
use semel_postgres::{Config, Postgres};
use semel_testkit::servers::postgres;

use super::request;

/// Operators and functions that fit more exactly than those of the system would, were the types left to be guessed.
const TRAPS: &str = "
CREATE FUNCTION public.trap(bigint, interval) RETURNS interval LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.trap(numeric, integer) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.trap(integer, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR public.* (LEFTARG = bigint, RIGHTARG = interval, FUNCTION = public.trap);
CREATE OPERATOR public.* (LEFTARG = numeric, RIGHTARG = integer, FUNCTION = public.trap);
CREATE OPERATOR public.|| (LEFTARG = integer, RIGHTARG = text, FUNCTION = public.trap);
CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.setval(text, bigint, boolean) RETURNS bigint LANGUAGE plpgsql
  AS $$ BEGIN RAISE 'trapped'; END $$;";

/// Each once, in a session that looks into `public`.
const CALLS: &str = "
SELECT verdict FROM semel.claim(semel.scope_of('a', 'b'), 'k', semel.fingerprint('x'), nonce => repeat('n', 16)::bytea);
SELECT e.verdict FROM semel.outcome(semel.scope_of('a', 'b'), 'k') AS o,
  semel.extend(semel.scope_of('a', 'b'), 'k', o.token, repeat('n', 16)::bytea) AS e;
SELECT e.verdict FROM semel.outcome(semel.scope_of('a', 'b'), 'k') AS o,
  semel.complete(semel.scope_of('a', 'b'), 'k', o.token, repeat('n', 16)::bytea) AS e;
SELECT verdict FROM semel.claim(semel.scope_of('a', 'b'), 'k', semel.fingerprint('x'));
SELECT verdict FROM semel.release(semel.scope_of('a', 'b'), 'other', repeat('n', 16)::bytea);
SELECT semel.once_done('s', 'once', (semel.once('s', 'once', semel.fingerprint('x'))).token);
SELECT verdict FROM semel.once('s', 'once', semel.fingerprint('x'));
SELECT verdict FROM semel.once_with('s', 'with', semel.fingerprint('x'), 'known');
SELECT semel.once_last('s', 'last', semel.fingerprint('x'));
SELECT semel.us(now()), semel.created_us(now()), semel.in_ms(1), semel.left_ms(now());
SELECT semel.keys_moved(), semel.adopt_keys();";

#[tokio::test]
async fn operators_and_functions_of_others_are_not_called() {
    let url = postgres().fresh_database();
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql(TRAPS).execute(db.pool()).await.unwrap();
    let trapped = sqlx::query("SELECT 1::bigint * interval '1 day'");
    assert!(trapped.execute(db.pool()).await.is_err(), "the trap works");

    let claim = request();
    let ClaimReply::Granted { lease, .. } = db.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    let wish = Extension {
        key: claim.key.clone(),
        lease,
        lease_ms: 1_000,
    };
    db.extend_many(&[wish]).await.remove(0).unwrap();
    let free = Release {
        key: claim.key,
        nonce: lease.nonce,
        token: Some(lease.token),
    };
    db.release(&free).await.unwrap();
    db.sweep(10).await.unwrap();
    db.now().await.unwrap();

    let (key, asked) = (request().key, Fingerprint::of(b"x"));
    let mut tx = db.begin().await.unwrap();
    let Once::First(pending) = once(&mut tx, &key, asked, OnceOptions::default()).await.unwrap() else {
        panic!("not the first")
    };
    pending.complete(&mut tx, succeeded("done")).await.unwrap();
    db.commit(tx).await.unwrap();
    for mark in [Mark::First, Mark::Last] {
        let key = request().key;
        let done = transact_once(&db, &key, asked, mark, OnceOptions::default(), |_| {
            Box::pin(async { Ok::<_, TxError<()>>(succeeded("done")) })
        });
        assert!(matches!(done.await.unwrap(), OnceOutcome::First(_)));
    }
    for call in CALLS.split_inclusive(';') {
        let called = sqlx::raw_sql(call).execute(db.pool()).await;
        assert!(called.is_ok(), "{call}: {called:?}");
    }
}

/// What the functions name that every first run goes through and that therefore set no path of their own, made anew where
/// the session looks before it looks into the system's schema.
const NEARER: &str = "
CREATE FUNCTION public.trap(bytea, bytea) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.trap_sum(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.trap_is(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.nextval(regclass) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.octet_length(bytea) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE OPERATOR public.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = public.trap);
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.trap);
CREATE OPERATOR public.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.trap_is);
CREATE OPERATOR public.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.trap_is);
CREATE OPERATOR public.+ (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = public.trap_sum);";

#[tokio::test]
async fn a_first_run_calls_only_the_system_whatever_the_session_looks_into_first() {
    let url = postgres().fresh_database();
    let db = Postgres::connect(Config::new(&url)).await.unwrap();
    db.migrate().await.unwrap();
    sqlx::raw_sql(NEARER).execute(db.pool()).await.unwrap();
    let mut session = db.pool().acquire().await.unwrap();
    let print = format!("E'\\\\x01{}'", "ab".repeat(32));
    let look = "SET search_path = public, pg_catalog";
    sqlx::raw_sql(look).execute(&mut *session).await.unwrap();
    let trapped = sqlx::raw_sql("SELECT 1::bigint + 1::bigint");
    assert!(trapped.execute(&mut *session).await.is_err(), "the trap works");
    for call in [
        format!("SELECT semel.once_done('s', 'once', (semel.once('s', 'once', {print})).token)"),
        format!("SELECT semel.once('s', 'once', {print})"),
        format!("SELECT semel.once_with('s', 'with', {print}, 'known')"),
        format!("SELECT semel.once_with('s', 'with', {print}, 'known')"),
        format!("SELECT semel.once_last('s', 'last', {print})"),
        format!("SELECT semel.once_last('s', 'end', {print}, '', 'f', nonce => '0123456789abcdef')"),
        "SELECT semel.once_end('s', 'end', '0123456789abcdef', 'x', 's')".to_owned(),
    ] {
        let called = sqlx::raw_sql(sqlx::AssertSqlSafe(call.clone()));
        let called = called.execute(&mut *session).await;
        assert!(called.is_ok(), "{call}: {called:?}");
    }
    let done = "SELECT semel.once_done('s', 'other', 1)";
    let refused = sqlx::raw_sql(done).execute(&mut *session).await.unwrap_err();
    assert!(refused.to_string().contains("SEM0211"), "{refused}");
}
