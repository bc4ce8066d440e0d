//! Starting and stopping.

use std::net::TcpListener;

use super::daemon::{Folder, until};

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

/// The goal is 30 MB in a release build; an unoptimised build is larger, not smaller.
#[tokio::test]
async fn an_idle_daemon_is_small() {
    let folder = Folder::new("[store]\nurl = \"sqlite:semel.db\"");
    let daemon = folder.start().await;
    daemon.until_ready().await;
    until("memory is below 30 MB", async || {
        let bytes = daemon
            .metric("semel_process_resident_memory_bytes")
            .await
            .unwrap();
        bytes < 30e6
    })
    .await;
    assert_eq!(daemon.stop().await.0, 0);
}
