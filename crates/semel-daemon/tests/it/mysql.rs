//! A store on MariaDB: the gateway's keys, an outbox, and what `migrate` and `check` say of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::response::IntoResponse as _;
use bytes::Bytes;
use http::Response;
use semel_testkit::servers::{MariadbServer, free_port, mariadb};

use super::daemon::{Folder, post, run, texts, until};
use super::receiver::Receiver;

/// The line of one check of the default store.
fn line<'a>(stdout: &'a str, check: &str) -> &'a str {
    let wanted = format!("\tstore default\t{check}\t");
    let found = stdout.lines().find(|line| line.contains(&wanted));
    found.unwrap_or_else(|| panic!("no line for {check} in\n{stdout}"))
}

fn check(url: &str) -> (String, i32) {
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\"\nacquire_timeout_ms = 2000\n"));
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    (stdout, code)
}

fn migrate(url: &str) -> String {
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\"\n"));
    let (stdout, stderr, code) = texts(&run(folder.path(), &["migrate"]));
    assert_eq!(code, 0, "{stderr}");
    stdout
}

#[test]
fn tables_are_installed_once_and_can_be_printed() {
    let url = mariadb().fresh_database();
    let (stdout, code) = check(&url);
    assert_eq!(code, 1, "{stdout}");
    assert!(
        line(&stdout, "schema").contains("run `semel migrate`"),
        "{stdout}"
    );
    assert!(migrate(&url).contains("installed by 2 scripts"));
    assert!(migrate(&url).contains("was there already"));
    let folder = Folder::new("[store]\nurl = \"mysql://app:hunter2@db/shop\"\n");
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "--print"]));
    assert_eq!(code, 0);
    assert!(
        stdout.contains("CREATE TABLE IF NOT EXISTS semel_key")
            && stdout.contains("CREATE TABLE IF NOT EXISTS semel_outbox ("),
        "{stdout}"
    );
    assert!(!stdout.contains("hunter2"));
}

#[test]
fn check_names_each_setting_that_does_not_do_with_its_fix() {
    let server = MariadbServer::start_with(&["--log-bin", "--sync-binlog=1", "--server-id=1"]);
    let url = server.fresh_database();
    migrate(&url);
    let (stdout, code) = check(&url);
    assert_eq!(code, 0, "{stdout}");
    assert!(line(&stdout, "version").contains("MariaDB"), "{stdout}");
    assert!(line(&stdout, "durability").contains("innodb_flush_log_at_trx_commit=1"));
    assert!(line(&stdout, "strictness").starts_with("ok"));
    assert!(line(&stdout, "rights").starts_with("ok"));

    server.run_sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2; SET GLOBAL sync_binlog = 0; SET GLOBAL max_allowed_packet = 1048576");
    let (stdout, code) = check(&url);
    assert_eq!(code, 1, "{stdout}");
    for wanted in [
        "SEM0220: innodb_flush_log_at_trx_commit = 2",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 1",
        "SEM0220: sync_binlog = 0",
        "SET GLOBAL sync_binlog = 1",
        "SEM0221: max_allowed_packet = 1048576",
        "SET GLOBAL max_allowed_packet = 16777216",
    ] {
        assert!(stdout.contains(wanted), "{wanted} is not in\n{stdout}");
    }
}

#[test]
fn wrong_password_unknown_database_and_missing_rights_are_told() {
    let server = mariadb();
    let url = server.fresh_database();
    let database = url.rsplit_once('/').unwrap().1;
    migrate(&url);
    server.run_sql(&format!(
        "CREATE USER 'reader'@'127.0.0.1' IDENTIFIED BY 'hunter2'; GRANT SELECT ON {database}.* TO 'reader'@'127.0.0.1'"
    ));
    let at = |user: &str, database: &str| format!("mysql://{user}@127.0.0.1:{}/{database}", server.port());
    let (stdout, code) = check(&at("reader:wrong", database));
    assert_eq!(code, 1);
    assert!(
        line(&stdout, "reachable").contains("refuses this user, password or database"),
        "{stdout}"
    );
    let (stdout, code) = check(&at("root", "no_such_database"));
    assert_eq!(code, 1);
    assert!(
        line(&stdout, "reachable").contains("no_such_database"),
        "{stdout}"
    );
    let (stdout, code) = check(&at("reader:hunter2", database));
    assert_eq!(code, 1, "{stdout}");
    assert!(line(&stdout, "rights").contains("lacks a right"), "{stdout}");
    assert!(!stdout.contains("hunter2"), "{stdout}");
}

async fn send(port: u16, key: &str) -> Response<Bytes> {
    let headers = [("idempotency-key", key)];
    post(format!("http://127.0.0.1:{port}/charge"), &headers, "{}").await
}

/// Two gateways share a MariaDB: what one has sent the other replays, also after a kill -9.
#[tokio::test]
async fn gateways_share_their_keys_on_mariadb() {
    let done = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&done);
    let charge = move || {
        let n = count.fetch_add(1, Ordering::SeqCst) + 1;
        async move { format!("charge {n}") }
    };
    let app = axum::Router::new().route("/charge", axum::routing::post(charge));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let url = mariadb().fresh_database();
    let (one, two) = (free_port(), free_port());
    let folder = |port| {
        Folder::new(&format!(
            "[store]\nurl = \"{url}\"\nmigrate = true\n[[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{port}\"\n\
             upstream = \"http://{upstream}\"\nanonymous = true\n",
        ))
    };
    let (first, second) = (folder(one), folder(two));
    let mut a = first.start().await;
    let b = second.start().await;
    a.until_ready().await;
    b.until_ready().await;
    let answer = send(one, "a").await;
    assert_eq!(&answer.body()[..], b"charge 1");
    a.process.kill();
    let again = send(two, "a").await;
    assert_eq!(&again.body()[..], b"charge 1");
    assert_eq!(again.headers()["idempotent-replayed"], "true");
    assert_eq!(done.load(Ordering::SeqCst), 1);
    assert_eq!(b.stop().await.0, 0);
}

/// A service in another language writes by a plain INSERT; two daemons share the shards, one is killed with -9.
#[tokio::test]
async fn events_on_mariadb_arrive_in_order_when_one_of_two_relays_dies() {
    const EVENTS: usize = 120;
    let receiver = Receiver::start().await;
    let url = mariadb().fresh_database();
    let folder = || {
        Folder::new(&format!(
            "[store]\nurl = \"{url}\"\nmigrate = true\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\n\
             send_timeout_ms = 1000\nsink.webhook.url = \"{}\"\n",
            receiver.url("/events"),
        ))
    };
    let (first, second) = (folder(), folder());
    let mut a = first.start().await;
    a.until_ready().await;
    let b = second.start().await;
    b.until_ready().await;
    let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(&url))
        .await
        .unwrap();
    for n in 0..EVENTS {
        let mut tx = db.begin().await.unwrap();
        sqlx::query(
            "INSERT INTO semel_outbox (topic, type, `key`, content_type, data) VALUES ('orders', 'placed', ?, 'text/plain', ?)",
        )
        .bind(format!("order-{}", n % 7))
        .bind(n.to_string())
        .execute(&mut *tx)
        .await
        .unwrap();
        db.commit(tx).await.unwrap();
        if n == EVENTS / 2 {
            until("some have arrived", async || receiver.seen().len() > 10).await;
            a.process.kill();
        }
    }
    let mut order: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    until("all have arrived", async || {
        let ids: BTreeSet<String> = receiver.seen().iter().map(|seen| seen.header("ce-id")).collect();
        ids.len() >= EVENTS
    })
    .await;
    assert_eq!(b.stop().await.0, 0);
    let mut again = BTreeSet::new();
    for seen in receiver.seen() {
        if again.insert(seen.header("ce-id")) {
            let n = String::from_utf8(seen.body.to_vec()).unwrap().parse().unwrap();
            order.entry(seen.header("ce-partitionkey")).or_default().push(n);
        }
    }
    assert_eq!(order.len(), 7);
    assert!(order.values().all(|numbers| numbers.is_sorted()), "{order:?}");
}

#[test]
fn check_warns_of_numbers_that_are_left_out() {
    let server = MariadbServer::start_with(&["--auto-increment-increment=2"]);
    let url = server.fresh_database();
    migrate(&url);
    let (stdout, code) = check(&url);
    assert_eq!(code, 0, "{stdout}");
    assert!(
        line(&stdout, "outbox").contains("auto_increment_increment = 2"),
        "{stdout}"
    );
}

fn outbox(folder: &Folder, arguments: &[&str]) -> (String, String, i32) {
    texts(&run(folder.path(), &[&["outbox"], arguments].concat()))
}

/// The operator's desk on MariaDB: what was set aside is seen, sent again in order, replayed; and all of it is audited.
#[tokio::test]
async fn an_operator_sees_and_settles_an_outbox_on_mariadb() {
    let mended = Arc::new(AtomicU32::new(0));
    let takes = Arc::clone(&mended);
    let receiver = Receiver::scripted(move |request| {
        if request.body == "1" && takes.load(Ordering::Relaxed) == 0 {
            http::StatusCode::UNPROCESSABLE_ENTITY.into_response()
        } else {
            http::StatusCode::OK.into_response()
        }
    })
    .await;
    let url = mariadb().fresh_database();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"{url}\"\nmigrate = true\n[[relay]]\nname = \"orders\"\nlease_ms = 1500\nsend_timeout_ms = 1000\n\
         attempts_max = 1\npoison = \"park_key\"\nsink.webhook.url = \"{}\"\n",
        receiver.url("/"),
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let db = semel_mysql::Mysql::connect(semel_mysql::Config::new(&url))
        .await
        .unwrap();
    for (key, n) in [("a", "1"), ("b", "2"), ("a", "3")] {
        let mut tx = db.begin().await.unwrap();
        sqlx::query(
            "INSERT INTO semel_outbox (topic, type, `key`, content_type, data) VALUES ('orders', 'placed', ?, 'text/plain', ?)",
        )
        .bind(key)
        .bind(n)
        .execute(&mut *tx)
        .await
        .unwrap();
        db.commit(tx).await.unwrap();
    }
    until("the key is parked and the other one arrived", async || {
        let set_aside = outbox(&folder, &["parked", "list"]).0.lines().count();
        set_aside == 2 && receiver.seen().iter().any(|seen| seen.body == "2")
    })
    .await;
    let (stdout, _, code) = outbox(&folder, &["why"]);
    assert!(
        code == 1 && stdout.contains("blocks\tset_aside\tdefault/"),
        "{stdout}"
    );
    let (stdout, ..) = outbox(&folder, &["list"]);
    assert!(stdout.contains("orders pid"), "{stdout}");

    mended.store(1, Ordering::Relaxed);
    let who = ["--by", "ann", "--why", "mended", "--yes"];
    let (_, stderr, code) = outbox(&folder, &[&["parked", "retry", "--key", "a"], &who[..]].concat());
    assert!(code == 0 && stderr.contains("retry asked of 1 of 1"), "{stderr}");
    let order = |key: &str| -> Vec<String> {
        let seen = receiver.seen();
        let of = seen.iter().filter(|seen| seen.header("ce-partitionkey") == key);
        of.map(|seen| String::from_utf8(seen.body.to_vec()).unwrap())
            .collect()
    };
    until("the key's list was sent", async || order("a") == ["1", "1", "3"]).await;
    until("nothing is set aside", async || {
        outbox(&folder, &["parked", "list"]).0.is_empty()
    })
    .await;
    let all = [&["replay", "--all", "--ids", "fresh", "--dry-run"], &who[..]].concat();
    until("all are settled", async || {
        outbox(&folder, &all).0.lines().count() == 3
    })
    .await;
    let mut arrived = receiver.seen();
    // What was refused did not arrive.
    let refused = arrived.iter().position(|seen| seen.body == "1").unwrap();
    arrived.remove(refused);
    let lines: Vec<String> = arrived
        .iter()
        .map(|seen| {
            let (id, key) = (seen.header("ce-id"), seen.header("ce-partitionkey"));
            serde_json::json!({ "id": id, "key": key }).to_string()
        })
        .collect();
    std::fs::write(folder.file("arrived"), lines.join("\n")).unwrap();
    let audit = || texts(&run(folder.path(), &["audit", "outbox", "--arrived", "arrived"]));
    let (stdout, stderr, code) = audit();
    assert!(
        code == 0 && stdout.contains("all that was sent arrived"),
        "{stdout}{stderr}"
    );
    std::fs::write(folder.file("arrived"), &lines[0]).unwrap();
    assert_eq!(audit().2, 1, "two are missing");

    let (_, stderr, code) = outbox(&folder, &[&["replay", "--key", "b"], &who[..]].concat());
    assert_eq!(code, 0, "{stderr}");
    until("the event came again", async || order("b") == ["2", "2"]).await;
    assert_eq!(daemon.stop().await.0, 0);
    let (_, stderr, code) = outbox(&folder, &[&["rescan"], &who[..]].concat());
    assert!(code == 0 && stderr.contains("3 events"), "{stderr}");
    let log = outbox(&folder, &["parked", "log"]).0;
    let actions: Vec<&str> = log.lines().filter_map(|line| line.split('\t').nth(2)).collect();
    assert_eq!(actions, ["retry", "replay", "rescan"], "{log}");
}
