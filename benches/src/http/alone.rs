//! The processor time that the layer adds, without sockets: requests through the service on one thread, and the time that
//! this thread was running as the kernel counts it. Other load on the machine does not count.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use http::Request;
use semel_core::model::MemoryKeys;
use tower::ServiceExt as _;

use super::{keyed, orders};
use crate::Plan;
use crate::load::BODY;

pub(crate) fn run(plan: Plan, only: Option<&str>) {
    let rounds = plan.rounds.max(1);
    let requests = plan.rows.min(20_000);
    let only = only.map(str::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // A runtime cannot be entered from within another one.
    let measured = std::thread::spawn(move || runtime.block_on(measure(rounds, requests, only.as_deref())));
    let [bare, new, replayed] = measured.join().unwrap();
    println!("\n### Processor time of one request, without sockets, least of {rounds} rounds\n");
    println!("| | µs | added |\n| --- | ---: | ---: |");
    for (name, us) in [
        ("axum without the layer", bare),
        ("new key in memory", new),
        ("replay from memory", replayed),
    ] {
        println!("| {name} | {us:.2} | {:.2} |", us - bare);
    }
}

async fn measure(rounds: usize, requests: u32, only: Option<&str>) -> [f64; 3] {
    let wanted = |name| only.is_none_or(|only| only == name);
    let bare = orders();
    let store = keyed(Arc::new(MemoryKeys::default()));
    let mut keys = 0_u64;
    let mut least = [f64::INFINITY; 3];
    for _ in 0..rounds {
        let mut unused = 0;
        if wanted("bare") {
            least[0] = least[0].min(send(&bare, requests, &mut unused, 1).await);
        }
        if wanted("new") {
            least[1] = least[1].min(send(&store, requests, &mut keys, 1).await);
        }
        let mut same = 0;
        if wanted("replay") {
            least[2] = least[2].min(send(&store, requests, &mut same, 0).await);
        }
    }
    least
}

/// Microseconds per request.
async fn send(app: &Router, requests: u32, key: &mut u64, step: u64) -> f64 {
    let began = ran_ns();
    for _ in 0..requests {
        let request = Request::post("/orders")
            .header("content-type", "application/json")
            .header("idempotency-key", format!("\"order-{key:012}\""))
            .body(Body::from(BODY))
            .unwrap();
        *key += step;
        let answer = app.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 201);
    }
    (ran_ns() - began) as f64 / 1_000.0 / f64::from(requests)
}

/// Nanoseconds that this thread has run.
fn ran_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}
