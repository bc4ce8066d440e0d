//! Load for HTTP/1.1 over loopback: keep-alive connections, each with one request at a time. By wrk, or where that is not
//! installed by a generator of our own: smaller than a real client, so that it takes little of the processor that it shares
//! with the server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::Sample;

/// 316 bytes.
pub(crate) const BODY: &str = concat!(
    r#"{"customer":"cus_8f3b2c1d","total":129900,"currency":"EUR","items":[{"sku":"A-100234","count":2,"price":49950},"#,
    r#"{"sku":"B-558120","count":1,"price":30000}],"address":{"name":"Ada Lovelace","street":"12 St James Square","#,
    r#""city":"London","zip":"SW1Y 4JH","country":"GB"},"note":"please ring twice, the bell is old ...."}"#,
);

/// What wrk posts.
pub(crate) struct Posted {
    pub(crate) target: &'static str,
    pub(crate) body: &'static str,
    pub(crate) authorization: Option<&'static str>,
}

/// Waits until something listens there.
pub(crate) async fn until_there(port: u16) {
    for _ in 0..400 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("nothing listens on port {port}");
}

pub(crate) fn wrk_is_there() -> bool {
    let quiet = std::process::Command::new("wrk").arg("--version").output();
    quiet.is_ok()
}

/// Sends requests with one thread of wrk: whole seconds, at least one. `mode` is `new`, `replay` or `none`; wrk's script is
/// put into `dir`.
pub(crate) async fn wrk(
    dir: &Path,
    port: u16,
    connections: usize,
    posted: &Posted,
    mode: &'static str,
    run: Duration,
) -> Sample {
    let script = dir.join("load.lua");
    std::fs::write(&script, include_str!("load.lua")).unwrap();
    let seconds = run.as_secs_f64().ceil().max(1.0);
    let output = tokio::process::Command::new("wrk")
        .args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s"), "-s"])
        .arg(script)
        .arg(format!("http://127.0.0.1:{port}"))
        .envs(posted.authorization.map(|value| ("AUTHORIZATION", value)))
        .env("TARGET", posted.target)
        .env("BODY", posted.body)
        .env("MODE", mode)
        .env("SEED", semel_core::host::dice().to_bits().to_string())
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<u64> = text
        .lines()
        .find_map(|line| line.strip_prefix("FOUND "))
        .unwrap_or_else(|| panic!("wrk: {text}{}", String::from_utf8_lossy(&output.stderr)))
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let [done, micros, p50, p99, errors] = found[..] else {
        panic!("{text}")
    };
    assert_eq!(errors, 0, "requests failed: {text}");
    // wrk keeps the latencies; two stand for them, so that the table shows these two.
    let mut latencies = vec![u32::try_from(p50).unwrap_or(u32::MAX); 98];
    latencies.extend([u32::try_from(p99).unwrap_or(u32::MAX); 2]);
    Sample {
        done,
        elapsed: Duration::from_micros(micros),
        latencies,
        ..Sample::default()
    }
}

/// Sends POST requests for `run`, each under a key that was never used before.
pub(crate) async fn post(port: u16, connections: usize, run: Duration, keys: Arc<AtomicU64>) -> Sample {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..connections)
        .map(|_| tokio::spawn(one_connection(port, begun, run, Some(Arc::clone(&keys)))))
        .collect();
    let mut all = Sample::default();
    for task in tasks {
        all = all.merge(task.await.unwrap());
    }
    all
}

/// Sends the same request again and again: all but the first are replays.
pub(crate) async fn repeat_one(port: u16, connections: usize, run: Duration) -> Sample {
    let begun = Instant::now();
    let tasks: Vec<_> = (0..connections)
        .map(|_| tokio::spawn(one_connection(port, begun, run, None)))
        .collect();
    let mut all = Sample::default();
    for task in tasks {
        all = all.merge(task.await.unwrap());
    }
    all
}

async fn one_connection(port: u16, begun: Instant, run: Duration, keys: Option<Arc<AtomicU64>>) -> Sample {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut sample = Sample::default();
    let mut answer = Vec::with_capacity(4_096);
    while begun.elapsed() < run {
        let key = keys
            .as_ref()
            .map_or(0, |keys| keys.fetch_add(1, Ordering::Relaxed));
        let request = format!(
            "POST /bench HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer ada\r\n\
             idempotency-key: \"order-{key:012}\"\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let from = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        read_answer(&mut stream, &mut answer).await;
        sample.record(from, 1);
    }
    sample.elapsed = begun.elapsed();
    sample
}

/// Reads one whole answer; anything but 201 is a broken bench.
async fn read_answer(stream: &mut TcpStream, answer: &mut Vec<u8>) {
    answer.clear();
    loop {
        let read = stream.read_buf(answer).await.unwrap();
        assert!(read > 0, "the server closed the connection");
        let Some(end) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
            continue;
        };
        let head = std::str::from_utf8(&answer[..end]).unwrap().to_ascii_lowercase();
        assert!(head.starts_with("http/1.1 201"), "{head}");
        let length: usize = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.split('\r').next())
            .and_then(|digits| digits.parse().ok())
            .expect("an answer with a length");
        if answer.len() >= end + 4 + length {
            return;
        }
    }
}
