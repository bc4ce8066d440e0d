//! `semel check`.

use std::net::TcpListener;

use super::daemon::{Folder, run, texts};

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
