//! `semel check`.

use std::net::TcpListener;

use super::daemon::{Folder, run, texts, until};

/// The line of one part and check.
fn line<'a>(stdout: &'a str, part: &str, check: &str) -> &'a str {
    let wanted = format!("\t{part}\t{check}\t");
    stdout
        .lines()
        .find(|line| line.contains(&wanted))
        .unwrap_or_else(|| panic!("no line for {part} {check} in\n{stdout}"))
}

#[test]
fn a_fresh_folder_is_fine_and_stays_untouched() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    let (stdout, stderr, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(line(&stdout, "store default", "reachable").starts_with("warn"));
    assert!(!folder.file("semel.db").exists(), "check changes nothing");

    run(folder.path(), &["migrate"]);
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 0);
    assert!(line(&stdout, "store default", "schema").starts_with("ok"));
    assert!(line(&stdout, "store default", "durability").contains("journal_mode=wal, synchronous=2"));
    assert!(line(&stdout, "store default", "guarantee").contains("atomic"));
}

#[test]
fn each_server_that_is_away_is_named_and_the_exit_code_is_1() {
    let folder = Folder::new(
        "[store]\nurl = \"sqlite:nowhere/semel.db\"\n\
         [stores.pg]\nurl = \"postgres://app:hunter2@127.0.0.1:1/shop\"\n\
         [[relay]]\nname = \"r\"\nsink.webhook.url = \"http://127.0.0.1:1/events\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\nanonymous = true\nupstream = \"http://127.0.0.1:1\"\n",
    );
    let (stdout, stderr, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 1, "{stdout}{stderr}");
    for (part, check) in [
        ("store default", "reachable"),
        ("store pg", "reachable"),
        ("relay r", "receiver"),
        ("gateway g", "upstream"),
    ] {
        assert!(
            line(&stdout, part, check).starts_with("bad\t"),
            "{part}: {stdout}"
        );
    }
    assert!(!stdout.contains("hunter2"), "{stdout}");

    let (stdout, _, code) = texts(&run(folder.path(), &["check", "--json"]));
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(code, 1);
    assert_eq!(value["ok"], false);
    assert!(value["findings"].as_array().unwrap().len() > 4);

    let (_, _, code) = texts(&run(folder.path(), &["check", "--offline"]));
    assert_eq!(code, 0, "the file itself is fine");
}

/// An error that says what to do is not followed by advice for another one.
#[test]
fn only_a_server_that_is_away_is_to_be_started_and_only_a_newer_schema_needs_a_newer_semel() {
    let folder = Folder::new(
        "[store]\nurl = \"sqlite:semel.db\"\n[stores.away]\nurl = \"postgres://app@127.0.0.1:1/shop\"\n\
         acquire_timeout_ms = 500\n",
    );
    std::fs::write(folder.file("semel.db"), "this is no database".repeat(100)).unwrap();
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 1, "{stdout}");
    let damaged = line(&stdout, "store default", "reachable");
    assert!(
        damaged.contains("SEM0203") && !damaged.contains("start it"),
        "{damaged}"
    );
    let away = line(&stdout, "store away", "reachable");
    assert!(away.contains("SEM0104") && away.contains("start it"), "{away}");

    std::fs::remove_file(folder.file("semel.db")).unwrap();
    assert_eq!(
        run(folder.path(), &["migrate", "--url", "sqlite:semel.db"])
            .status
            .code(),
        Some(0)
    );
    let schema = |sql: &'static str| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let db = semel_sqlite::Sqlite::open(semel_sqlite::Config::new(folder.file("semel.db")))
                .await
                .unwrap();
            let mut tx = db.begin().await.unwrap();
            sqlx::raw_sql(sql).execute(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
            db.close().await;
        });
        let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
        assert_eq!(code, 1);
        line(&stdout, "store default", "schema").to_owned()
    };
    let newer = schema("UPDATE semel_schema SET version = version + 1000");
    assert_eq!(newer.matches("newer semel").count(), 1, "{newer}");
    let broken = schema("DROP TABLE semel_schema; CREATE TABLE semel_schema (other INTEGER)");
    assert!(
        !broken.contains("upgrade") && !broken.contains("newer"),
        "{broken}"
    );
}

#[tokio::test]
async fn a_port_in_use_is_told_apart_from_a_semel_that_runs() {
    let folder = Folder::new("");
    let other = TcpListener::bind(("127.0.0.1", folder.port)).unwrap();
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 1);
    assert!(line(&stdout, "server", "port").starts_with("bad\t"), "{stdout}");
    drop(other);

    let daemon = folder.start().await;
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 0);
    assert!(line(&stdout, "server", "port").starts_with("warn\t"), "{stdout}");
    assert_eq!(daemon.stop().await.0, 0);
}

#[test]
fn a_postgresql_is_checked_for_version_schema_and_durability() {
    let url = semel_testkit::servers::postgres().fresh_database();
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\""));
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 1, "{stdout}");
    assert!(line(&stdout, "store default", "schema").contains("run `semel migrate`"));

    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert_eq!(code, 0, "{stdout}");
    assert!(line(&stdout, "store default", "version").contains("PostgreSQL"));
    assert!(line(&stdout, "store default", "durability").contains("synchronous_commit=on"));
}

/// The partitions of an outbox, and what delays the end of one, are named wherever somebody looks.
#[tokio::test]
async fn an_outbox_in_partitions_is_named_by_check_list_and_metrics() {
    let url = semel_testkit::servers::postgres().fresh_database();
    let folder = Folder::new(&format!(
        "[store]\nurl = \"{url}\"\n[[relay]]\nname = \"orders\"\nsink.webhook.url = \"http://127.0.0.1:1/\"\n"
    ));
    assert_eq!(run(folder.path(), &["migrate"]).status.code(), Some(0));
    let db = semel_postgres::Postgres::connect(semel_postgres::Config::new(&url))
        .await
        .unwrap();
    db.partition_outbox(std::time::Duration::from_secs(3_600))
        .await
        .unwrap();
    let (stdout, _, _) = texts(&run(folder.path(), &["check"]));
    let said = line(&stdout, "store default", "partitions");
    assert!(
        said.starts_with("ok\t") && said.contains("partitions of 1h0m"),
        "{said}"
    );

    let listed = || {
        let (stdout, stderr, code) = texts(&run(folder.path(), &["outbox", "list", "--json"]));
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str::<serde_json::Value>(&stdout).unwrap()["partitions"].clone()
    };
    let parts = listed()["parts"].as_array().unwrap().clone();
    assert!(
        parts.iter().any(|part| part["name"] == "outbox_other"),
        "{parts:?}"
    );

    let daemon = folder.start().await;
    until("the metrics say it", async || {
        daemon.metric("semel_outbox_partitions{store=\"default\"}").await == Some(parts.len() as f64)
    })
    .await;
    assert_eq!(
        listed()["waits"],
        serde_json::json!([]),
        "nothing is in the way of anything"
    );
    assert_eq!(daemon.stop().await.0, 0);
}

/// The strength is that of the settings: what is sent twice, only counted or run again is not called "sent once".
#[test]
fn each_route_of_a_gateway_says_the_strength_that_its_own_settings_give() {
    let route = |path: &str, lines: &str| format!("[[gateway.route]]\npaths = [\"{path}\"]\n{lines}\n");
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[api]\nlisten = \"127.0.0.1:0\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\nanonymous = true\nupstream = \"http://127.0.0.1:1\"\n\
         {}{}{}{}{}{}",
        route("/open", "outage = \"open\""),
        route("/again", "owner_lost = \"rerun\"\nupstream_deduplicates = true"),
        route("/asked", "upstream_deduplicates = true"),
        route("/counted", "shadow = true"),
        route("/off", "key = \"off\""),
        route("/slow", "total_timeout_ms = 60000\nmethods = [\"PUT\"]"),
    ));
    let (stdout, _, _) = texts(&run(folder.path(), &["check"]));
    for (route, words) in [
        (
            "POST|PATCH /open",
            &["guarded: ", "none while the store is away"][..],
        ),
        (
            "POST|PATCH /again",
            &[
                "keyed, if the upstream deduplicates as declared",
                "sent again by the next retry",
            ],
        ),
        (
            "POST|PATCH /asked",
            &["keyed, if the upstream deduplicates as declared", "is held"],
        ),
        ("POST|PATCH /counted", &["none: keys are only counted"]),
        ("POST|PATCH /off", &["none: keys are passed through"]),
        ("PUT /slow", &["guarded: each key is sent once"]),
        ("POST|PATCH /", &["guarded: each key is sent once"]),
    ] {
        let wanted = format!("ok\tgateway g\tguarantee\t{route}: ");
        let line = stdout.lines().find_map(|line| line.strip_prefix(&wanted));
        let line = line.unwrap_or_else(|| panic!("no line for {route} in\n{stdout}"));
        for word in words {
            assert!(line.contains(word), "{route}: {line}");
        }
        assert_eq!(line.contains("store is away"), route.ends_with("/open"), "{line}");
    }
    assert!(
        line(&stdout, "api", "guarantee").contains("unless it asks for `rerun`"),
        "{stdout}"
    );
    assert!(
        !stdout.contains("\tstop\t"),
        "unless it is set, stop_ms_max is as long as any request: {stdout}"
    );
}

/// What a stop cuts off is unknown: whoever sets the times hears of it before.
#[test]
fn a_stop_that_waits_for_less_than_a_request_may_take_is_warned_of() {
    let folder = Folder::new(
        "stop_ms_max = 59999\n[store]\nurl = \"memory:\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\nanonymous = true\nupstream = \"http://127.0.0.1:1\"\n",
    );
    let (stdout, _, _) = texts(&run(folder.path(), &["check"]));
    let stop = line(&stdout, "gateway g", "stop");
    assert!(stop.starts_with("warn\t"), "{stop}");
    assert!(
        stop.contains("stop_ms_max = 59999") && stop.contains("total_timeout_ms = 60000"),
        "{stop}"
    );
    assert!(
        line(&stdout, "store default", "guarantee").contains("of this process alone"),
        "{stdout}"
    );
}

#[test]
fn a_setting_that_does_nothing_is_a_warning_with_its_line_and_no_failure() {
    let folder = Folder::new("[store]\nurl = \"memory:\"\nmigrate = true\n");
    let (stdout, _, code) = texts(&run(folder.path(), &["check", "--offline"]));
    let found = line(&stdout, "file", "settings");
    assert!(
        found.starts_with("warn\t")
            && found.contains("line 5: `migrate`")
            && found.ends_with("; leave it out"),
        "{found}"
    );
    assert_eq!(code, 0);
}

/// Rules K5 and K9: a dump of the morning is loaded in the evening, on the same cluster.
#[tokio::test]
async fn a_postgresql_put_back_from_a_dump_is_seen_and_hands_out_no_token_twice_once_it_is_adopted() {
    use semel_core::claim::{Claim, ClaimReply, Nonce, OwnerLost};
    use semel_core::{Fingerprint, Key, KeyStoreExt as _, Scope};
    use semel_postgres::{Config, Postgres};

    let server = semel_testkit::servers::postgres();
    let url = server.fresh_database();
    let open = async || Postgres::connect(Config::new(&url)).await.unwrap();
    let draw = async |db: &Postgres, id: &str| {
        let claim = Claim {
            key: Key::new(Scope::new("tests").unwrap(), id).unwrap(),
            fingerprint: Fingerprint::of(b""),
            nonce: Nonce::random(),
            owner_lost: OwnerLost::Hold,
            lease_ms: 60_000,
        };
        match db.claim(&claim).await.unwrap() {
            ClaimReply::Granted { lease, .. } => lease.token,
            other => panic!("{other:?}"),
        }
    };
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\"\n"));
    let tokens = || {
        let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
        let line = stdout.lines().find(|line| line.contains("\ttokens\t"));
        (line.unwrap_or_else(|| panic!("{stdout}")).to_owned(), code)
    };

    let db = open().await;
    db.migrate().await.unwrap();
    draw(&db, "before").await;
    let dump = server.dump(&url);
    let (line, code) = tokens();
    assert!(line.starts_with("ok") && code == 0, "{line}");
    let mut last = draw(&db, "lost").await;
    for n in 0..20 {
        last = last.max(draw(&db, &format!("lost {n}")).await);
    }
    db.close().await;

    server.put_back(&url, &dump);
    let (line, code) = tokens();
    assert!(line.starts_with("bad") && code == 1, "{line}");
    assert!(
        line.contains("SEM0213") && line.contains("SELECT semel.adopt_keys()"),
        "{line}"
    );
    let db = open().await;
    assert!(
        draw(&db, "too early").await <= last,
        "this is what the step is for"
    );

    server.run_sql(&url, "SELECT semel.adopt_keys()");
    let (line, code) = tokens();
    assert!(line.starts_with("ok") && code == 0, "{line}");
    for n in 0..20 {
        let token = draw(&db, &format!("after {n}")).await;
        assert!(token > last, "{token:?} after {last:?}");
        last = token;
    }
    db.close().await;
}

#[test]
fn a_postgresql_that_may_only_be_read_is_named() {
    let server = semel_testkit::servers::postgres();
    let url = server.fresh_database();
    let name = url.rsplit_once('/').unwrap().1;
    let folder = Folder::new(&format!("[store]\nurl = \"{url}\"\n"));
    texts(&run(folder.path(), &["migrate"]));
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    assert!(code == 0 && !stdout.contains("\twrites\t"), "{stdout}");
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    server.run_sql(&url, &read_only);
    let (stdout, _, code) = texts(&run(folder.path(), &["check"]));
    let found = line(&stdout, "store default", "writes");
    assert!(
        code == 1 && found.starts_with("bad") && found.contains("default_transaction_read_only"),
        "{stdout}"
    );
}
