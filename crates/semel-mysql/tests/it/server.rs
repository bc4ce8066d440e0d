//! Servers, users and URLs that do not do: each is refused by name.

use semel_core::{ErrorKind, KeyStore, KeyStoreExt, Retry};
use semel_mysql::{Config, Mysql};
use semel_testkit::servers::{MariadbServer, mariadb};

use crate::keys::{Lent, request};

async fn refused(url: &str) -> semel_core::StoreError {
    Mysql::connect(Config::new(url)).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_can_forget_what_it_acknowledged_is_refused_by_name() {
    let server = MariadbServer::start_with(&["--log-bin", "--sync-binlog=1", "--server-id=1"]);
    let url = server.fresh_database();
    assert!(
        Mysql::connect(Config::new(&url))
            .await
            .unwrap()
            .capabilities()
            .durable
    );
    for (global, back, name, code) in [
        (
            "innodb_flush_log_at_trx_commit = 2",
            "innodb_flush_log_at_trx_commit = 1",
            "innodb_flush_log_at_trx_commit = 2",
            "SEM0220",
        ),
        (
            "innodb_flush_log_at_trx_commit = 0",
            "innodb_flush_log_at_trx_commit = 1",
            "innodb_flush_log_at_trx_commit = 0",
            "SEM0220",
        ),
        ("sync_binlog = 0", "sync_binlog = 1", "sync_binlog = 0", "SEM0220"),
        (
            "binlog_format = 'STATEMENT'",
            "binlog_format = 'MIXED'",
            "binlog_format = STATEMENT",
            "SEM0221",
        ),
        (
            "max_allowed_packet = 1048576",
            "max_allowed_packet = 16777216",
            "max_allowed_packet = 1048576",
            "SEM0221",
        ),
    ] {
        server.run_sql(&format!("SET GLOBAL {global}"));
        let error = refused(&url).await;
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Invalid, Retry::Never));
        assert!(
            error.to_string().contains(name) && error.to_string().contains(code),
            "{error}"
        );
        if code == "SEM0220" {
            // Whoever insists gets a store that says what it is.
            let mut config = Config::new(&url);
            config.accept_lossy_server = true;
            assert!(!Mysql::connect(config).await.unwrap().capabilities().durable);
        }
        server.run_sql(&format!("SET GLOBAL {back}"));
        Mysql::connect(Config::new(&url)).await.unwrap();
    }
}

#[tokio::test]
async fn url_user_password_and_database_that_are_wrong_are_told() {
    let server = mariadb();
    let url = server.fresh_database();
    let database = url.rsplit_once('/').unwrap().1;
    server.run_sql(
        "CREATE USER 'guarded'@'127.0.0.1' IDENTIFIED BY 'right'; CREATE USER 'poor'@'127.0.0.1' IDENTIFIED BY 'poor'",
    );
    server.run_sql(&format!("GRANT SELECT ON {database}.* TO 'poor'@'127.0.0.1'"));
    let at = |user: &str, database: &str| format!("mysql://{user}@127.0.0.1:{}/{database}", server.port());
    for (url, wanted) in [
        (
            at("guarded:wrong", database),
            "refuses this user, password or database",
        ),
        (
            at("guarded:right", database),
            "refuses this user, password or database",
        ),
        (at("nobody", database), "refuses this user, password or database"),
        (
            at("root", "no_such_database"),
            "refuses this user, password or database",
        ),
        (at("root", ""), "names no database"),
        (
            "postgres://root@127.0.0.1/x".to_owned(),
            "not of the form mysql://",
        ),
        ("mysql:".to_owned(), "not of the form mysql://"),
    ] {
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(error.to_string().contains(wanted), "{url}: {error}");
        assert!(!format!("{error:?}").contains("wrong"), "{error:?}");
    }
    let closed = at("root", database).replace(&format!(":{}/", server.port()), ":1/");
    assert_eq!(refused(&closed).await.kind(), ErrorKind::Unavailable);

    // Rights that are missing are found when they are needed, and named.
    Mysql::connect(Config::new(&url))
        .await
        .unwrap()
        .migrate()
        .await
        .unwrap();
    let poor = Mysql::connect(Config::new(at("poor:poor", database)))
        .await
        .unwrap();
    let error = poor.claim(&request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("lacks a right"), "{error}");
    assert_eq!(poor.read(&request().key).await.unwrap(), None);
}

/// Our sessions are strict, in UTC and at READ COMMITTED, whatever the server's defaults are.
#[tokio::test]
async fn sessions_do_not_inherit_the_servers_defaults() {
    let (_lent, db) = Lent::take().await;
    let session: (String, String, String) = sqlx::query_as(
        "SELECT CAST(@@session.sql_mode AS CHAR), CAST(@@session.time_zone AS CHAR), CAST(@@session.tx_isolation AS CHAR)",
    )
    .fetch_one(db.pool())
    .await
    .unwrap();
    assert!(session.0.contains("STRICT_ALL_TABLES"), "{session:?}");
    assert_eq!(
        (session.1.as_str(), session.2.as_str()),
        ("+00:00", "READ-COMMITTED")
    );
}

/// A server that takes no writes: nothing is done, and it says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_server_is_told_and_nothing_is_done() {
    let server = MariadbServer::start();
    let url = server.fresh_database();
    let database = url.rsplit_once('/').unwrap().1;
    Mysql::connect(Config::new(&url))
        .await
        .unwrap()
        .migrate()
        .await
        .unwrap();
    // root may write even then.
    server.run_sql(&format!(
        "CREATE USER 'app'@'127.0.0.1'; GRANT ALL ON {database}.* TO 'app'@'127.0.0.1'; SET GLOBAL read_only = 1"
    ));
    let app = url.replace("root@", "app@");
    let db = Mysql::connect(Config::new(app)).await.unwrap();
    let error = db.claim(&request()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Later),
        "{error}"
    );
    assert!(error.to_string().contains("read_only"), "{error}");
    server.run_sql("SET GLOBAL read_only = 0");
    assert!(db.claim(&request()).await.is_ok());
}
