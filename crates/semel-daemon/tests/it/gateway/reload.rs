//! SIGHUP: another configuration in force, and no request dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use semel_testkit::servers::free_port;

use super::bed::{Bed, Raw, blocking, gateway};
use crate::daemon::until;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

fn write(bed: &Bed, gateways: &str) {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{}\"\n[store]\nurl = \"memory:\"\n{gateways}",
        bed.folder.port
    );
    std::fs::write(bed.folder.file("semel.toml"), text).unwrap();
}

async fn reloaded(bed: &Bed, result: &str, times: u32) {
    bed.daemon.hang_up();
    let name = format!("semel_config_reloads_total{{result=\"{result}\"}}");
    until("the file was read again", async || {
        bed.daemon.metric(&name).await == Some(f64::from(times))
    })
    .await;
}

#[tokio::test]
async fn under_load_no_request_is_dropped_and_each_meets_one_configuration_whole() {
    let bed = Bed::start("").await;
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut clients = Vec::new();
    for client in 0..4 {
        let (stop, sent, port) = (Arc::clone(&stop), Arc::clone(&sent), bed.port);
        clients.push(tokio::task::spawn_blocking(move || {
            // Two keep their connection, two make one for each request.
            let mut raw = Raw::connect(port);
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                if client % 2 == 0 {
                    raw = Raw::connect(port);
                }
                n += 1;
                raw.send(&format!(
                    "POST /charge HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {client}-{n}\r\nContent-Length: 2\r\n\r\n{{}}"
                ));
                let answer = raw.answer();
                assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("semel-outcome: succeeded"), "{answer}");
                sent.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for n in 1..=5 {
        let at = sent.load(Ordering::SeqCst);
        let lines = format!("anonymous = true\nwait_ms_max = {n}");
        write(&bed, &gateway("api", bed.port, bed.upstream.port, &lines));
        reloaded(&bed, "taken", n).await;
        until("requests met it", async || sent.load(Ordering::SeqCst) > at + 20).await;
    }
    // A file with a mistake changes nothing and says why.
    let at = sent.load(Ordering::SeqCst);
    write(
        &bed,
        &gateway(
            "api",
            bed.port,
            bed.upstream.port,
            "anonymous = true\nwait_max = 1",
        ),
    );
    reloaded(&bed, "refused", 1).await;
    until("requests go on", async || sent.load(Ordering::SeqCst) > at + 20).await;
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(
        bed.upstream.seen.charges(),
        sent.load(Ordering::SeqCst),
        "each key once"
    );
    let (code, log) = bed.daemon.stop().await;
    assert_eq!(code, 0, "{log}");
    for says in [
        "SEM0474",
        "semel.toml:10:1: unknown field `wait_max`",
        "did you mean `wait_ms_max`?",
    ] {
        assert!(log.contains(says), "{says} is not in\n{log}");
    }
}

#[tokio::test]
async fn a_request_that_runs_ends_under_the_configuration_that_it_met() {
    let bed = Bed::start("").await;
    let port = bed.port;
    let slow = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect(port);
        raw.send("POST /slow HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n");
        raw.answer()
    });
    until("it is with the upstream", async || {
        bed.upstream.seen.charges() == 1
    })
    .await;
    write(
        &bed,
        &gateway(
            "api",
            bed.port,
            bed.upstream.port,
            "anonymous = true\nkey = \"required\"",
        ),
    );
    reloaded(&bed, "taken", 1).await;
    let refused = bed
        .raw("POST /charge HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(
        refused.contains("SEM0401"),
        "the new one asks for keys: {refused}"
    );
    bed.upstream.seen.go.notify_one();
    assert!(slow.await.unwrap().ends_with("slow 1"));
    // The record is in the same store.
    let again = bed
        .raw("POST /slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(
        again.contains("idempotent-replayed: true") && again.ends_with("slow 1"),
        "{again}"
    );
}

#[tokio::test]
async fn gateways_come_go_and_move_while_the_others_go_on() {
    let bed = Bed::start("").await;
    let (second, moved) = (free_port(), free_port());
    let port = bed.port;
    let mut kept = blocking(move || {
        let mut raw = Raw::connect(port);
        raw.send(GET);
        assert!(raw.answer().ends_with("hello"));
        raw
    })
    .await;
    let own = gateway("api", bed.port, bed.upstream.port, "anonymous = true");
    let other = |port| gateway("other", port, bed.upstream.port, "anonymous = true");
    write(&bed, &format!("{own}{}", other(second)));
    reloaded(&bed, "taken", 1).await;
    blocking(move || {
        let mut raw = Raw::connect(second);
        raw.send(GET);
        assert!(raw.answer().ends_with("hello"));
    })
    .await;
    write(&bed, &format!("{own}{}", other(moved)));
    reloaded(&bed, "taken", 2).await;
    blocking(move || {
        let mut raw = Raw::connect(moved);
        raw.send(GET);
        assert!(raw.answer().ends_with("hello"));
    })
    .await;
    until("the old address is free", async || {
        std::net::TcpStream::connect(("127.0.0.1", second)).is_err()
    })
    .await;
    write(&bed, &own);
    reloaded(&bed, "taken", 3).await;
    until("the other is gone", async || {
        std::net::TcpStream::connect(("127.0.0.1", moved)).is_err()
            && !bed.daemon.readyz().await.to_string().contains("other")
    })
    .await;
    // The first one's connection was there all the time.
    blocking(move || {
        kept.send(GET);
        assert!(kept.answer().ends_with("hello"));
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_had_while_it_runs_is_refused_with_the_reason() {
    let bed = Bed::start("").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_port = taken.local_addr().unwrap().port();
    let own = gateway(
        "api",
        bed.port,
        bed.upstream.port,
        "anonymous = true\nkey = \"required\"",
    );
    write(
        &bed,
        &format!(
            "{own}{}",
            gateway("b", taken_port, bed.upstream.port, "anonymous = true")
        ),
    );
    reloaded(&bed, "refused", 1).await;
    let stores = "[stores.new]\nurl = \"sqlite:new.db\"\n";
    write(
        &bed,
        &format!(
            "{stores}{}",
            gateway(
                "api",
                bed.port,
                bed.upstream.port,
                "anonymous = true\nstore = \"new\""
            )
        ),
    );
    reloaded(&bed, "refused", 2).await;
    let log = bed.daemon.log();
    for says in ["SEM0302", "the store new is new; stores are opened at start"] {
        assert!(log.contains(says), "{says} is not in\n{log}");
    }
    let passes = bed
        .raw("POST /charge HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert!(
        passes.starts_with("HTTP/1.1 200"),
        "the earlier one asks for no key: {passes}"
    );
}
