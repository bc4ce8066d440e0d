//! A store on Redis: the gateway's keys, and what `check` says of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use http::Response;
use semel_testkit::servers::{RedisServer, free_port, redis};

use super::daemon::{Folder, post, run, texts, until};

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

#[test]
fn check_says_what_a_redis_is_and_what_to_do_about_it() {
    let server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (stdout, code) = check(&server.url());
    assert_eq!(code, 0, "{stdout}");
    assert!(line(&stdout, "settings").contains("maxmemory-policy noeviction"));
    assert!(line(&stdout, "durability").starts_with("ok"));
    let guarantee = line(&stdout, "guarantee");
    assert!(
        guarantee.contains("tokens may go back after a fail-over"),
        "{guarantee}"
    );
    assert!(!guarantee.contains("may forget"), "{guarantee}");

    server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    let (stdout, code) = check(&server.url());
    assert_eq!(code, 0, "{stdout}");
    let durability = line(&stdout, "durability");
    assert!(
        durability.starts_with("warn") && durability.contains("appendfsync always"),
        "{durability}"
    );
    assert!(line(&stdout, "guarantee").contains("a crash of the store may forget the last answers"));

    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let (stdout, code) = check(&server.url());
    assert_eq!(code, 1, "{stdout}");
    let fits = line(&stdout, "fits");
    assert!(
        fits.contains("SEM0230") && fits.contains("set it to noeviction"),
        "{fits}"
    );

    let (stdout, code) = check("redis://app:hunter2@127.0.0.1:1/0");
    assert_eq!(code, 1, "{stdout}");
    assert!(
        line(&stdout, "reachable").contains("redis://127.0.0.1:1/0: SEM0104"),
        "{stdout}"
    );
    assert!(!stdout.contains("hunter2"), "{stdout}");
}

#[test]
fn there_is_nothing_to_migrate() {
    let folder = Folder::new("[store]\nurl = \"redis://127.0.0.1:1/0\"\n");
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate"]));
    assert_eq!(
        (stdout.as_str(), code),
        ("default (redis://127.0.0.1:1/0): nothing to install\n", 0)
    );
    let (stdout, _, code) = texts(&run(folder.path(), &["migrate", "--print"]));
    assert_eq!((stdout.as_str(), code), ("-- Redis: nothing to install\n", 0));
}

async fn send(port: u16, key: &str) -> Response<Bytes> {
    let headers = [("idempotency-key", key)];
    post(format!("http://127.0.0.1:{port}/charge"), &headers, "{}").await
}

/// Two gateways share a Redis: what one has sent the other replays, also after a kill -9.
#[tokio::test]
async fn gateways_share_their_keys_on_redis() {
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

    let url = redis().fresh_database();
    let (one, two) = (free_port(), free_port());
    let folder = |port| {
        Folder::new(&format!(
            "[store]\nurl = \"{url}\"\n[[gateway]]\nname = \"api\"\nlisten = \"127.0.0.1:{port}\"\n\
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

/// Rule K8 in the daemon: a policy that evicts is waited for, named, and no key is taken meanwhile.
#[tokio::test]
async fn a_redis_that_evicts_is_named_by_readyz_until_it_is_mended() {
    let server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let folder = Folder::new(&format!("[store]\nurl = \"{}\"\n", server.url()));
    let daemon = folder.start().await;
    let reason = async || daemon.readyz().await["parts"].to_string();
    until("readyz says why", async || reason().await.contains("SEM0230")).await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    daemon.until_ready().await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    until("readyz says why again", async || {
        reason().await.contains("SEM0230")
    })
    .await;
    assert_eq!(daemon.stop().await.0, 0);
}
