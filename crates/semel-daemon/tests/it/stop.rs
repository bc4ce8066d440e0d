//! Starting and stopping.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use semel_client::{HttpClient, Limits};
use semel_core::host::uuid_v7;
use semel_core::{Event, SystemClock};
use semel_testkit::servers::free_port;

use super::daemon::{Daemon, Folder, LIMIT, until};
use super::receiver::Receiver;

#[tokio::test]
async fn a_daemon_without_roles_is_alive_ready_and_stops_with_0() {
    let folder = Folder::new("");
    let daemon = folder.start().await;
    assert_eq!(daemon.get("/healthz").await.body().as_ref(), b"alive\n");
    assert_eq!(daemon.get("/readyz").await.status(), 200);
    let metrics = daemon.get("/metrics").await;
    let text = String::from_utf8(metrics.body().to_vec()).unwrap();
    assert!(text.contains("semel_build_info{version="), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let missing = daemon.get("/nowhere").await;
    assert_eq!(missing.status(), 404);
    assert_eq!(missing.headers()["content-type"], "application/problem+json");
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("stopped"), "{log}");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_what_to_do() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    let _other = TcpListener::bind(("127.0.0.1", folder.port)).unwrap();
    let (code, log) = folder.spawn(&[]).ended().await;
    assert_eq!(code, 1);
    let expected = format!(
        "SEM0302: cannot listen on 127.0.0.1:{} ([server] listen)",
        folder.port
    );
    assert!(log.contains(&expected), "{log}");
    assert!(log.contains("ss -ltnp"), "{log}");
    assert!(!folder.file("semel.db").exists(), "nothing was touched");
}

#[tokio::test]
async fn logs_are_json_lines_when_asked_for() {
    let folder = Folder::new("");
    let daemon = folder.spawn(&[("SEMEL_LOG_FORMAT", "json")]);
    daemon.until_alive().await;
    let (_, log) = daemon.stop().await;
    for line in log.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(
            value["level"].is_string() && value["message"].is_string(),
            "{line}"
        );
    }
}

/// The goal is 30 MB in a release build. An unoptimised one is several times larger on disk, and what it touches of
/// itself counts.
#[tokio::test]
async fn an_idle_daemon_with_every_role_is_small() {
    let receiver = Receiver::start().await;
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\n[saga]\n\
         [[relay]]\nname = \"r\"\nsink.webhook.url = \"{}\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:0\"\nupstream = \"{}\"\nanonymous = true\n",
        receiver.url("/"),
        receiver.url("/"),
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let bytes = daemon
        .metric("semel_process_resident_memory_bytes")
        .await
        .unwrap();
    let limit = if cfg!(debug_assertions) { 60e6 } else { 30e6 };
    assert!(bytes < limit, "{bytes} bytes");
    assert_eq!(daemon.stop().await.0, 0);
}

/// A daemon whose gateway waits for an upstream that never answers.
async fn held(more: &str) -> (Folder, Daemon, Receiver, tokio::task::JoinHandle<()>) {
    let receiver = Receiver::silent().await;
    let port = free_port();
    let folder = Folder::new(&format!(
        "{more}\n[store]\nurl = \"sqlite:semel.db\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:{port}\"\nupstream = \"{}\"\nanonymous = true\n",
        receiver.url("/"),
    ));
    let daemon = folder.start().await;
    daemon.until_ready().await;
    let request = http::Request::post(format!("http://127.0.0.1:{port}/"))
        .header("idempotency-key", "a")
        .body(bytes::Bytes::new())
        .unwrap();
    let client = tokio::spawn(async move {
        // Cut off with the daemon.
        let _ = HttpClient::new(Limits::default()).send(request, LIMIT).await;
    });
    until("the upstream was asked", async || !receiver.seen().is_empty()).await;
    (folder, daemon, receiver, client)
}

#[tokio::test]
async fn what_does_not_end_in_time_is_cut_off_and_the_exit_code_is_still_0() {
    let (_folder, daemon, _receiver, _client) = held("stop_ms_max = 200").await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("cut off what did not end in time"), "{log}");
}

#[tokio::test]
async fn a_second_signal_exits_at_once() {
    let (_folder, mut daemon, _receiver, _client) = held("stop_ms_max = 600000").await;
    daemon.process.terminate();
    until("it has heard the first", async || {
        daemon.log().contains("asked to stop")
    })
    .await;
    daemon.process.terminate();
    let (code, log) = daemon.ended().await;
    assert_eq!(code, 1, "{log}");
    assert!(log.contains("exiting at once"), "{log}");
}

/// Every metric that a daemon with every role shows is in `docs/daemon.md`, and every one there is shown.
#[tokio::test]
async fn every_metric_is_documented() {
    let receiver = Receiver::start().await;
    let (port, away, api) = (free_port(), free_port(), free_port());
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:semel.db\"\nquota = {{}}\n[saga]\n[api]\nlisten = \"127.0.0.1:{api}\"\n[[relay]]\nname = \"r\"\nsink.webhook.url = \"{}\"\n\
         [[gateway]]\nname = \"g\"\nlisten = \"127.0.0.1:{port}\"\nupstream = \"{}\"\nanonymous = true\n\
         [[gateway]]\nname = \"away\"\nlisten = \"127.0.0.1:{away}\"\nupstream = \"http://127.0.0.1:{}\"\nanonymous = true\n",
        receiver.url("/"),
        receiver.url("/"),
        free_port(),
    ));
    // Some are shown only when there is something to show: an event that nobody publishes, a request, a reload.
    let db = super::relays::shop(&folder.file("semel.db")).await;
    let mut tx = db.begin().await.unwrap();
    let event = Event::new(uuid_v7(&SystemClock), "orders", "order.placed").with_stream("nobody");
    semel_sqlite::tx::enqueue(&mut tx, &event).await.unwrap();
    db.commit(tx).await.unwrap();
    let daemon = folder.start().await;
    daemon.until_ready().await;
    for (port, path, body) in [(port, "", ""), (away, "", ""), (api, "v1/keys/list", "{}")] {
        let request = http::Request::post(format!("http://127.0.0.1:{port}/{path}"))
            .header("content-type", "application/json")
            .body(bytes::Bytes::from_static(body.as_bytes()))
            .unwrap();
        HttpClient::new(Limits::default())
            .send(request, LIMIT)
            .await
            .unwrap();
    }
    daemon.hang_up();

    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/daemon.md")).unwrap();
    let documented: BTreeSet<&str> = page
        .split("| `")
        .skip(1)
        .filter_map(|cell| cell.split('`').next())
        .collect();
    let documented: BTreeSet<&str> = documented
        .into_iter()
        .filter(|cell| cell.starts_with("semel_"))
        .collect();
    let shown = async || -> BTreeSet<String> {
        let answer = daemon.get("/metrics").await;
        let text = std::str::from_utf8(answer.body()).unwrap();
        let types = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            })
            .collect()
    };
    // Shown where an outbox on PostgreSQL is in partitions: see check.rs.
    let elsewhere = |name: &str| name.starts_with("semel_outbox_partition");
    let deadline = Instant::now() + LIMIT;
    loop {
        let shown = shown().await;
        let missing: Vec<_> = documented
            .iter()
            .filter(|name| !shown.contains(**name) && !elsewhere(name))
            .collect();
        if missing.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "not shown: {missing:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for name in shown().await {
        assert!(
            documented.contains(name.as_str()),
            "docs/daemon.md does not say {name}"
        );
    }
    assert_eq!(daemon.stop().await.0, 0);
}
