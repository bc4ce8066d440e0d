//! `semel migrate`.

use semel_sqlite::{Config, Sqlite};

use super::daemon::{Folder, run, texts};

#[test]
fn migrating_twice_is_migrating_once() {
    let folder = Folder::new("[store]\nurl = \"sqlite:a.db\"\n[stores.b]\nurl = \"sqlite:b.db\"");
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "-c", "semel.toml"]));
    assert_eq!(code, 0);
    let known = semel_sqlite::SCHEMA_VERSION;
    assert_eq!(
        stdout,
        format!(
            "default (sqlite:a.db): schema version {known} installed by {known} scripts\n\
             b (sqlite:b.db): schema version {known} installed by {known} scripts\n"
        )
    );
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "-c", "semel.toml"]));
    assert_eq!(code, 0);
    assert_eq!(stdout.matches("was there already").count(), 2, "{stdout}");
}

#[test]
fn print_shows_the_sql_of_each_kind_and_touches_nothing() {
    let folder = Folder::new("[store]\nurl = \"sqlite:a.db\"\n[stores.b]\nurl = \"sqlite:b.db\"");
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "--print"]));
    assert_eq!(code, 0);
    assert_eq!(
        stdout.matches("CREATE TABLE IF NOT EXISTS semel_schema").count(),
        1,
        "{stdout}"
    );
    assert!(!folder.file("a.db").exists());

    let url = "postgres://127.0.0.1:1/nowhere";
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "--url", url, "--print"]));
    assert_eq!(code, 0);
    assert!(stdout.contains("CREATE SCHEMA IF NOT EXISTS semel"), "{stdout}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_by_every_command_and_left_alone() {
    let folder = Folder::new("[store]\nurl = \"sqlite:a.db\"");
    let db = Sqlite::open(Config::new(folder.file("a.db"))).await.unwrap();
    db.migrate().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    sqlx::query("INSERT INTO semel_schema (version, name, applied_at) VALUES (99, 'future', 0)")
        .execute(&mut *tx)
        .await
        .unwrap();
    db.commit(tx).await.unwrap();

    let (_, stderr, code) = texts(&run(folder.path(), &["migrate"]));
    assert_eq!(code, 1);
    let known = semel_sqlite::SCHEMA_VERSION;
    let text = format!("the schema is version 99, this build knows {known}: use a newer semel");
    assert!(stderr.contains("SEM0201") && stderr.contains(&text), "{stderr}");

    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 1);
    assert!(stdout.contains(&text), "{stdout}");

    let daemon = folder.start().await;
    super::daemon::until("readyz names the schema", async || {
        daemon.readyz().await["parts"][0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains(&text))
    })
    .await;
    assert_eq!(daemon.stop().await.0, 0);
}

#[tokio::test]
async fn a_server_that_is_away_is_named_without_its_password() {
    let folder = Folder::new("");
    let url = "postgres://app:hunter2@127.0.0.1:1/shop";
    let (stdout, stderr, code) = texts(&run(folder.path(), &["migrate", "--url", url]));
    assert_eq!(code, 1);
    assert!(
        stderr.contains("SEM0104") && stderr.contains("127.0.0.1:1"),
        "{stderr}"
    );
    assert!(!(stdout + &stderr).contains("hunter2"));
}
