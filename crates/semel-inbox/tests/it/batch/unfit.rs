//! Messages that break no constraint but a type's own rule.

use semel_core::host::random_16;

use super::*;

/// Runs this statement with each message's text.
struct Runs(&'static str);

#[async_trait]
impl<S: InboxStore<Tx: Statements>> Handler<S> for Runs {
    async fn handle(&self, tx: &mut S::Tx, messages: &[&Message]) -> Result<(), HandlerError> {
        for message in messages {
            tx.run(self.0, text(message)).await?;
        }
        Ok(())
    }
}

/// Between two good messages the bad one is parked, whatever its statement breaks.
async fn is_parked_alone<S: InboxStore>(
    store: S,
    dir: Option<tempfile::TempDir>,
    cases: &[(&'static str, &str)],
) where
    Ledger: Handler<S>,
    Runs: Handler<S>,
{
    let mut w = World::new(store, dir, true, Poison::Park, &[]).await;
    for (n, (statement, bad)) in (1_u128..).zip(cases) {
        w.options.scope = Scope::new(format!("runs {n}")).unwrap();
        let key = PositionKey {
            topic_id: Uuid::from_u128(n),
            ..key()
        };
        let wish = AssignPosition {
            key: key.clone(),
            topic: "t".to_owned(),
            owner: Nonce::random(),
            initial: 0,
        };
        let position = w.store.assign_positions(&[wish]).await.unwrap()[0];
        let advance = move |upto: usize| {
            vec![AdvancePosition {
                key: key.clone(),
                epoch: position.epoch,
                owner: position.owner,
                expected: 0,
                next: i64::try_from(upto).unwrap(),
            }]
        };
        let messages = log(&["k:1", &format!("l:{bad}"), "k:2"]);
        let end = settle_batch(&w.store, &Runs(statement), &w.options, &messages, &advance).await;
        let End::Committed(end) = end else {
            panic!("{statement}: {end:?}")
        };
        assert_eq!((end.upto, end.new, end.parked), (3, 2, 1), "{statement}");
    }
}

mod on_postgres {
    use super::*;

    #[tokio::test]
    async fn a_message_whose_data_does_not_fit_its_column_is_parked_alone() {
        let db = Postgres::connect(semel_postgres::Config::new(postgres().fresh_database()))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE fit (t varchar(3), n smallint, j jsonb, d date, u text UNIQUE);
             CREATE TABLE late (t text);
             CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN PERFORM NEW.t::int; RETURN NULL; END';
             CREATE CONSTRAINT TRIGGER late AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
               FOR EACH ROW EXECUTE FUNCTION late();
             CREATE TABLE ruled (t text);
             CREATE FUNCTION ruled() RETURNS trigger LANGUAGE plpgsql AS
               $$BEGIN IF NEW.t = 'bad' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END$$;
             CREATE TRIGGER ruled BEFORE INSERT ON ruled FOR EACH ROW EXECUTE FUNCTION ruled()",
        )
        .execute(db.pool())
        .await
        .unwrap();
        let deep = "[".repeat(100_000);
        // Nothing that could be compressed.
        let wide: String = (0..400)
            .map(|_| Uuid::from_bytes(random_16()).to_string())
            .collect();
        let cases = [
            // 22021: text holds no zero byte.
            ("INSERT INTO fit (t) VALUES ($1)", "a\0b"),
            // 22001
            ("INSERT INTO fit (t) VALUES ($1)", "too long"),
            // 22003
            ("INSERT INTO fit (n) VALUES ($1::text::int)", "70000"),
            // 22P02
            ("INSERT INTO fit (j) VALUES ($1::text::jsonb)", "{"),
            // 22007
            ("INSERT INTO fit (d) VALUES (('2026-11-0' || $1)::date)", "x"),
            // 22012
            ("INSERT INTO fit (n) VALUES (1 / ($1::text::int - 7))", "7"),
            // 54001: too deep for the server's stack.
            ("INSERT INTO fit (j) VALUES ($1::text::jsonb)", &deep),
            // 54000: too wide for its index.
            ("INSERT INTO fit (u) VALUES ($1)", &wide),
            // 22P02, by a deferred trigger: nobody fails until the commit.
            ("INSERT INTO late VALUES ($1)", "x"),
            // P0001: a trigger's own refusal.
            ("INSERT INTO ruled VALUES ($1)", "bad"),
        ];
        is_parked_alone(db, None, &cases).await;
    }
}

mod on_sqlite {
    use super::*;

    #[tokio::test]
    async fn a_message_whose_data_does_not_fit_its_column_is_parked_alone() {
        let dir = tempfile::tempdir().unwrap();
        let db = Sqlite::open(semel_sqlite::Config::new(dir.path().join("fit.db")))
            .await
            .unwrap();
        db.migrate().await.unwrap();
        let mut tx = db.begin().await.unwrap();
        sqlx::raw_sql(
            "CREATE TABLE fit (n INTEGER PRIMARY KEY, t TEXT);
             CREATE TABLE strict (n INT) STRICT;
             CREATE TABLE ruled (t TEXT);
             CREATE TRIGGER ruled BEFORE INSERT ON ruled WHEN NEW.t = 'bad'
               BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )
        .execute(&mut *tx)
        .await
        .unwrap();
        db.commit(tx).await.unwrap();
        let cases = [
            // SQLITE_MISMATCH: a row's number is a number.
            ("INSERT INTO fit (n) VALUES (?1)", "x"),
            // SQLITE_ERROR, of the functions that read a value.
            ("INSERT INTO fit (t) VALUES (json(?1))", "{"),
            ("INSERT INTO fit (t) SELECT value FROM json_each(?1)", "{"),
            (
                "INSERT INTO fit (t) VALUES (abs(CAST(?1 AS INTEGER)))",
                "-9223372036854775808",
            ),
            (
                "INSERT INTO fit (t) VALUES (json_extract('{}', iif(?1 = 'x', ?1, '$.a')))",
                "x",
            ),
            // SQLITE_CONSTRAINT_DATATYPE
            ("INSERT INTO strict VALUES (?1)", "x"),
            // SQLITE_CONSTRAINT_TRIGGER
            ("INSERT INTO ruled VALUES (?1)", "bad"),
        ];
        is_parked_alone(db, Some(dir), &cases).await;
    }

    /// A mistake in the handler is no fault of the messages: nothing is parked for a table that is not there.
    #[tokio::test]
    async fn a_missing_table_parks_nothing() {
        let mut w = sqlite(true, Poison::Park, &["k:a"]).await;
        let mut tx = w.store.begin().await.unwrap();
        sqlx::query("DROP TABLE entry").execute(&mut *tx).await.unwrap();
        w.store.commit(tx).await.unwrap();
        assert!(matches!(w.settle().await, End::Later(_)));
    }
}
