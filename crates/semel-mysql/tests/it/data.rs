//! Data that its column does not take. There is no inbox on MySQL; a service's own handler judges by the kind, as Semel's
//! inbox does on other stores: blame the message, and do not send it again.

use semel_core::{ErrorKind, Retry};
use semel_mysql::{Mysql, classify};

use crate::keys::Lent;

async fn kind(db: &Mysql, sql: &'static str, text: &str) -> ErrorKind {
    let error = sqlx::query(sql).bind(text).execute(db.pool()).await.unwrap_err();
    classify("runs", error).kind()
}

#[tokio::test]
async fn data_that_does_not_fit_its_column_is_refused_as_data() {
    let (_lent, db) = Lent::take().await;
    sqlx::raw_sql(
        "DROP TABLE IF EXISTS fit;
         CREATE TABLE fit (t VARCHAR(3) CHARACTER SET utf8mb3, n SMALLINT, e ENUM('a'), d DATE, j JSON);
         CREATE TRIGGER ruled BEFORE INSERT ON fit FOR EACH ROW BEGIN
           IF NEW.t = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF; END",
    )
    .execute(db.pool())
    .await
    .unwrap();
    for (sql, bad) in [
        ("INSERT INTO fit (t) VALUES (?)", "too long"),
        // Four bytes, where the column takes three.
        ("INSERT INTO fit (t) VALUES (?)", "\u{1f389}"),
        ("INSERT INTO fit (t) VALUES (?)", "bad"),
        ("INSERT INTO fit (n) VALUES (?)", "70000"),
        ("INSERT INTO fit (n) VALUES (?)", "x"),
        ("INSERT INTO fit (n) VALUES (1 / (? - 7))", "7"),
        (
            "INSERT INTO fit (n) VALUES (CAST(? AS SIGNED) * 9223372036854775807)",
            "7",
        ),
        ("INSERT INTO fit (e) VALUES (?)", "b"),
        ("INSERT INTO fit (d) VALUES (?)", "2026-02-31"),
        ("INSERT INTO fit (d) VALUES (CAST(? AS DATE))", "x"),
        ("INSERT INTO fit (j) VALUES (?)", "{"),
    ] {
        let kind = kind(&db, sql, bad).await;
        assert_eq!(
            (kind, kind.retry()),
            (ErrorKind::Constraint, Retry::Never),
            "{sql} {bad}"
        );
    }
    // A mistake in the statement is no fault of the data.
    assert_ne!(
        kind(&db, "INSERT INTO nowhere VALUES (?)", "x").await,
        ErrorKind::Constraint
    );
    assert_ne!(
        kind(&db, "INSERT INTO fit (t) VALUE (?, )", "x").await,
        ErrorKind::Constraint
    );
}
