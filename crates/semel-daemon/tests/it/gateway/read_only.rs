//! A file that may be read and not written to.

use semel_testkit::servers::free_port;

use super::bed::{Upstream, gateway};
use super::send;
use crate::daemon::{Folder, json, semel, texts, until};
use crate::full_disk::mounts;

/// Its folder is put before the process once more, read-only.
const READ_ONLY: &str = "mount --bind disk disk && mount -o remount,bind,ro disk && exec \"$0\"";

#[tokio::test]
async fn a_read_only_file_refuses_what_is_new_and_replays_what_is_done() {
    let Some(way) = mounts() else {
        eprintln!("skipped: this machine lets nobody mount a folder of their own");
        return;
    };
    let upstream = Upstream::start().await;
    let port = free_port();
    let lines = "principal_header = \"X-User\"\n[[gateway.route]]\npaths = [\"/upload\"]\noutage = \"open\"";
    let folder = Folder::new(&format!(
        "[store]\nurl = \"sqlite:disk/semel.db\"\n{}",
        gateway("api", port, upstream.port, lines)
    ));
    std::fs::create_dir(folder.file("disk")).unwrap();
    let mut daemon = folder.start().await;
    daemon.until_ready().await;
    assert_eq!(send(port, "/charge", "kept").await.status(), 200);
    // The files beside it stay, by which it can be read where nothing can be written.
    daemon.process.kill();

    let daemon = folder.spawn_by(way, &["sh", "-c", &format!("{READ_ONLY} run -c semel.toml")]);
    daemon.until_alive().await;
    daemon.until_ready().await;
    for path in ["/charge", "/upload"] {
        let refused = send(port, path, "new").await;
        let problem = json(&refused);
        assert_eq!(
            (
                refused.status().as_u16(),
                problem["code"].as_str(),
                problem["outcome"].as_str()
            ),
            (503, Some("SEM0411"), Some("refused")),
            "{path}: whoever `open` lets pass, somebody may have this key"
        );
        assert_eq!(problem["type"], "urn:semel:problem:store-unavailable");
        assert!(
            problem["detail"].as_str().unwrap().contains("SEM0104"),
            "{problem}"
        );
        assert!(refused.headers().contains_key("retry-after"));
    }
    let kept = send(port, "/charge", "kept").await;
    assert_eq!(kept.headers()["idempotent-replayed"], "true", "{kept:?}");
    assert_eq!(upstream.seen.requests(), ["POST /charge"]);
    assert_eq!(daemon.stop().await.0, 0);

    let mut check = std::process::Command::new(way[0]);
    let script = format!("{READ_ONLY} check");
    check
        .args(&way[1..])
        .args(["sh", "-c", &script])
        .arg(semel().get_program());
    let (stdout, _, code) = texts(&check.current_dir(folder.path()).output().unwrap());
    let line = stdout.lines().find(|line| line.contains("\twrites\t"));
    assert!(
        code == 1 && line.is_some_and(|line| line.starts_with("bad") && line.contains("read-only")),
        "{stdout}"
    );

    let daemon = folder.start().await;
    daemon.until_ready().await;
    let first = send(port, "/charge", "new").await;
    assert_eq!(
        &first.body()[..],
        b"charge 2 of 2",
        "nothing of it was half-stored"
    );
    assert_eq!(daemon.stop().await.0, 0);

    // Without them it cannot even be read, and says so.
    let daemon = folder.spawn_by(way, &["sh", "-c", &format!("{READ_ONLY} run -c semel.toml")]);
    daemon.until_alive().await;
    until("it says what is wrong", async || {
        daemon.readyz().await["parts"]
            .to_string()
            .contains("is it writable?")
    })
    .await;
    for (path, key) in [("/charge", "kept"), ("/upload", "new")] {
        let refused = send(port, path, key).await;
        assert_eq!(
            (refused.status().as_u16(), json(&refused)["code"].as_str()),
            (503, Some("SEM0411"))
        );
    }
    assert_eq!(upstream.seen.requests().len(), 2);
    assert_eq!(daemon.stop().await.0, 0);
}
