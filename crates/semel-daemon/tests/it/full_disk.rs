//! A full disk: named, nothing half-written, the process stays up and goes on when there is room.

use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::daemon::{Folder, json, until};

/// How a process gets mounts of its own, which end with it. `None` where this machine does not let us.
pub(crate) fn mounts() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [
        &["unshare", "--mount"],
        &["unshare", "--mount", "--map-root-user"],
    ];
    ways.iter().copied().find(|way| {
        let mut command = Command::new(way[0]);
        command
            .args(&way[1..])
            .args(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]);
        command.output().is_ok_and(|output| output.status.success())
    })
}

#[tokio::test]
async fn a_full_disk_is_named_and_survived() {
    let Some(way) = mounts() else {
        eprintln!("skipped: this machine lets nobody mount a tmpfs of their own");
        return;
    };
    let folder = Folder::new("[store]\nurl = \"sqlite:disk/semel.db\"\n[saga]\n");
    let disk = folder.file("disk");
    std::fs::create_dir(&disk).unwrap();
    let script = "mount -t tmpfs -o size=4m tmpfs disk && exec \"$0\" run -c semel.toml";
    let daemon = folder.spawn_by(way, &["sh", "-c", script]);
    daemon.until_alive().await;
    daemon.until_ready().await;
    let order = |id: &str| {
        json!({
            "id": id,
            "definition": { "name": "order", "steps": [
                { "name": "charge", "action": "http://127.0.0.1:1/", "participant": "barrier", "pivot": true },
            ]},
            "input": "x".repeat(200_000),
        })
    };
    assert_eq!(daemon.post("/sagas", order("before")).await.status(), 201);

    let inside = PathBuf::from(format!("/proc/{}/root", daemon.process.id()));
    let filler = inside.join(disk.strip_prefix("/").unwrap()).join("filler");
    let full = std::fs::write(&filler, vec![0_u8; 8 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);

    let refused = daemon.post("/sagas", order("during")).await;
    assert_eq!(refused.status(), 503, "{refused:?}");
    let problem = json(&refused);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the disk is full"), "{detail}");
    assert!(detail.contains("nothing was"), "{detail}");
    assert_eq!(problem["code"], "SEM0104");
    assert_eq!(daemon.get("/healthz").await.status(), 200);
    assert_eq!(
        daemon.get("/sagas/before").await.status(),
        200,
        "reading needs no room"
    );
    assert_eq!(
        daemon.get("/sagas/during").await.status(),
        404,
        "nothing half-written"
    );

    std::fs::remove_file(&filler).unwrap();
    until("there is room again", async || {
        daemon.post("/sagas", order("during")).await.status() == 201
    })
    .await;
    let (code, log) = daemon.stop().await;
    assert_eq!(code, 0, "{log}");
}
