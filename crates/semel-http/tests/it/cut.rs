//! A real store that is cut off for real, at the claim, at a renewal and at the completion.

use semel_core::RetryPolicy;
use semel_http::{Event, Outage};
use semel_testkit::proxy::Proxy;

use super::support::*;

/// A server behind a proxy, and a way past it.
struct Cut {
    proxy: Proxy,
    /// Through the proxy.
    world: World,
    /// Past it, as another instance would come.
    beside: World,
    /// Whether values travel as hexadecimal digits.
    in_digits: bool,
}

const LEASE_MS: i64 = 900;

impl Cut {
    async fn before(url: String) -> Self {
        let beside = World::served(opened(&url).await);
        let (proxy, through) = Proxy::before_url(&url).await.unwrap();
        let world = World::served(opened(&through).await);
        Self {
            proxy,
            world,
            beside,
            in_digits: url.starts_with("mysql"),
        }
    }

    /// The next reply to a request that names this is lost, and its connection cut.
    fn lose_reply_to(&self, text: &str) {
        self.proxy.drop_reply_to(&self.on_the_wire(text));
    }

    fn on_the_wire(&self, text: &str) -> Vec<u8> {
        if self.in_digits {
            semel_core::key::hex(text.as_bytes()).into_bytes()
        } else {
            text.as_bytes().to_vec()
        }
    }

    fn layer(&self, world: &World, outage: Outage) -> semel_http::IdempotencyLayer {
        world.layer_with(|config| {
            config.lease_ms = LEASE_MS;
            config.outage = outage;
            config.wait_ms_max = 0;
            config.completion_retry = RetryPolicy {
                cap_ms: 100,
                ..config.completion_retry
            };
        })
    }
}

/// What another instance says of the key, until it says this.
async fn told_beside(cut: &Cut, key: &str, words: &[&str]) -> Answer {
    let runs = Runs::default();
    let app = counting(&cut.layer(&cut.beside, Outage::Closed), &runs);
    let mut last = None;
    until("the other instance says it", async || {
        let answer = send(&app, post(key)).await;
        assert!(words.contains(&answer.outcome()), "{answer:?}");
        let done = Some(&answer.outcome()) == words.last();
        last = Some(answer);
        done
    })
    .await;
    assert_eq!(runs.count(), 0, "it is not run a second time");
    last.unwrap()
}

async fn cut_at_the_claim_a_closed_route_refuses_and_an_open_one_runs_and_counts(cut: Cut) {
    let runs = Runs::default();
    let (closed, open) = (
        cut.layer(&cut.world, Outage::Closed),
        cut.layer(&cut.world, Outage::Open),
    );
    let (refuses, passes) = (counting(&closed, &runs), counting(&open, &runs));
    assert_eq!(send(&refuses, post("before")).await.body, "run 1");

    cut.proxy.away(true);
    for key in ["before", "new"] {
        let answer = send(&refuses, post(key)).await;
        assert_eq!(
            (answer.status, answer.code().as_str(), answer.outcome()),
            (503, "SEM0411", "refused")
        );
        assert_eq!((answer.header("retry-after"), runs.count()), (Some("2"), 1));
    }
    for n in 2..4 {
        let answer = send(&passes, post("new")).await;
        assert_eq!(
            (answer.status, &answer.body[..]),
            (201, format!("run {n}").as_bytes())
        );
        assert_eq!(answer.header("semel-guarantee"), Some("none"));
        assert_eq!(answer.header("semel-retained-until"), None);
    }
    assert_eq!(
        (
            closed.counts().get(Event::StoreDown),
            closed.counts().get(Event::OpenPassed),
            open.counts().get(Event::OpenPassed)
        ),
        (2, 0, 2)
    );

    cut.proxy.away(false);
    assert!(send(&refuses, post("before")).await.replayed());
    closed.drain().await;
    open.drain().await;
    assert_eq!(
        send(&refuses, post("new")).await.body,
        "run 4",
        "nothing of it was left"
    );
}

/// The claim is cut before or after it was carried out: the caller cannot tell, and it runs once.
async fn a_claim_that_is_cut_on_its_way_or_on_its_way_back_runs_once(cut: Cut) {
    let runs = Runs::default();
    let app = counting(&cut.layer(&cut.world, Outage::Open), &runs);
    cut.proxy.drop_request(&cut.on_the_wire("on its way"));
    assert_eq!(send(&app, post("\"on its way\"")).await.body, "run 1");
    cut.lose_reply_to("way back");
    assert_eq!(send(&app, post("\"way back\"")).await.body, "run 2");
    assert_eq!(cut.proxy.hits(), 2);
    for key in ["\"on its way\"", "\"way back\""] {
        assert!(send(&app, post(key)).await.replayed());
    }
    assert_eq!(runs.count(), 2);
}

async fn cut_at_a_renewal_the_run_goes_on_and_its_late_end_counts(cut: Cut) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let app = gated(&cut.layer(&cut.world, Outage::Closed), &runs, &gate);
    let first = send_soon(&app, post("renewed"));
    gate.arrived().await;
    // One that only loses its reply is made good by the next.
    cut.lose_reply_to("renewed");
    cut.proxy.hit(1).await;
    cut.proxy.away(true);
    told_beside(&cut, "renewed", &["running", "unknown"]).await;
    cut.proxy.away(false);
    gate.open();
    let first = first.await.unwrap();
    assert_eq!(
        (first.status, &first.body[..], first.outcome()),
        (201, &b"run 1"[..], "succeeded"),
        "time alone takes no key away (rule K1)"
    );
    let replayed = told_beside(&cut, "renewed", &["unknown", "succeeded"]).await;
    assert_eq!((&replayed.body[..], replayed.replayed()), (&b"run 1"[..], true));
}

/// The hard case: done, and its outcome is lost. It is unknown to everybody until the completion comes through.
async fn cut_at_the_completion_it_ends_unknown_and_is_settled_by_the_completion(cut: Cut) {
    let (runs, gate) = (Runs::default(), Gate::default());
    let layer = cut.layer(&cut.world, Outage::Closed);
    let app = gated(&layer, &runs, &gate);
    let first = send_soon(&app, post("charge"));
    gate.arrived().await;
    cut.proxy.away(true);
    gate.open();
    let first = first.await.unwrap();
    assert_eq!((first.status, &first.body[..]), (201, &b"run 1"[..]));
    assert_eq!(first.header("semel-retained-until"), None, "nothing is kept yet");
    told_beside(&cut, "charge", &["running", "unknown"]).await;
    cut.proxy.away(false);
    layer.drain().await;
    let replayed = told_beside(&cut, "charge", &["succeeded"]).await;
    assert_eq!((&replayed.body[..], replayed.replayed()), (&b"run 1"[..], true));

    // And where only its reply was lost.
    let again = send_soon(&app, post("reply"));
    gate.arrived().await;
    cut.lose_reply_to("run 2");
    assert_eq!(again.await.unwrap().body, "run 2");
    layer.drain().await;
    assert_eq!((cut.proxy.hits(), runs.count()), (1, 2));
    assert_eq!(told_beside(&cut, "reply", &["succeeded"]).await.body, "run 2");
}

macro_rules! on_each_cut_store {
    ($($name:ident),+ $(,)?) => {
        mod on_postgres {
            use super::*;
            $(#[tokio::test] async fn $name() {
                super::$name(Cut::before(semel_testkit::servers::postgres().fresh_database()).await).await;
            })+
        }
        mod on_redis {
            use super::*;
            $(#[tokio::test] async fn $name() {
                super::$name(Cut::before(semel_testkit::servers::redis().fresh_database()).await).await;
            })+
        }
        mod on_mariadb {
            use super::*;
            $(#[tokio::test] async fn $name() {
                super::$name(Cut::before(semel_testkit::servers::mariadb().fresh_database()).await).await;
            })+
        }
    };
}

on_each_cut_store![
    cut_at_the_claim_a_closed_route_refuses_and_an_open_one_runs_and_counts,
    a_claim_that_is_cut_on_its_way_or_on_its_way_back_runs_once,
    cut_at_a_renewal_the_run_goes_on_and_its_late_end_counts,
    cut_at_the_completion_it_ends_unknown_and_is_settled_by_the_completion,
];
