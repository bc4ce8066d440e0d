//! A real cluster: keys are spread over the nodes, and each script touches one slot.

use std::sync::{Arc, OnceLock};

use semel_core::claim::ClaimReply;
use semel_core::{Claim, KeyStore};
use semel_redis::{Config, Redis, read_arrivals};
use semel_testkit::laws::keys as laws;
use semel_testkit::laws::keys::World;
use semel_testkit::laws::keys::history::compare_with_model;
use semel_testkit::servers::RedisCluster;

use super::world::{Raw, completion, request};

fn cluster() -> &'static RedisCluster {
    static CLUSTER: OnceLock<RedisCluster> = OnceLock::new();
    CLUSTER.get_or_init(RedisCluster::start)
}

/// A handle under a prefix of its own.
async fn connect(prefix: &str) -> Redis {
    let mut config = Config::new(cluster().url());
    config.cluster = true;
    config.prefix = prefix.to_owned();
    Redis::connect(config).await.unwrap()
}

fn urls() -> Vec<String> {
    cluster().nodes().iter().map(|node| node.url()).collect()
}

async fn world(prefix: &'static str) -> World {
    World::new(Arc::new(connect(prefix).await), move |ms| async move {
        for url in urls() {
            Raw::open(&url).await.age_ms(prefix, ms).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_of_a_cluster_holds_keys_and_hints_go_through_all_of_it() {
    let store = connect("spread").await;
    let claims: Vec<Claim> = (0..1_000).map(|_| request()).collect();
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(store.claim_many(&claims).await) {
        let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
            panic!("not granted")
        };
        done.push(completion(claim, lease, "done"));
    }
    let last = done.pop().unwrap();
    assert!(store.complete_many(&done).await.iter().all(Result::is_ok));
    for url in urls() {
        let names: Vec<Vec<u8>> = Raw::open(&url).await.ask(&[b"KEYS", b"spread{*"]).await;
        assert!(
            names.len() > 150,
            "{} of 1000 keys on one of three nodes",
            names.len()
        );
    }
    let hint = store.subscribe(&last.key).await.unwrap();
    let other = connect("spread").await;
    assert!(other.complete_many(&[last]).await[0].is_ok());
    hint.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_obeys_the_laws() {
    let world = world("laws").await;
    laws::same_key_twice_in_a_batch_is_decided_in_order(&world).await;
    laws::full_batch_is_answered_in_order(&world).await;
    laws::stale_owner_changes_nothing(&world).await;
    laws::withdrawal_is_remembered_beside_other_runs(&world).await;
    laws::settled_outcome_is_given_to_duplicates(&world).await;
    laws::list_by_state_tells_what_records_read_as_now(&world).await;
    laws::list_pages_through_a_scope_and_shows_each_record_once(&world).await;
}

#[test]
fn a_cluster_answers_generated_histories_as_the_model_does() {
    compare_with_model(|| world("history"), 10, 9_000);
}

/// An audit reads each stream where it lies.
#[tokio::test]
async fn what_arrived_is_read_from_whichever_node_has_the_stream() {
    let mut config = Config::new(cluster().url());
    config.cluster = true;
    let id = "00000000-0000-0000-0000-000000000007";
    for stream in ["arrived:a", "arrived:b", "arrived:c", "arrived:d"] {
        for data in ["", "x"] {
            let add = [
                "-c",
                "XADD",
                stream,
                "*",
                "ce_id",
                id,
                "ce_partitionkey",
                "k",
                "data",
                data,
            ];
            cluster().nodes()[0].cli(&add);
        }
        let first = cluster().nodes()[0].cli(&["-c", "--json", "XRANGE", stream, "-", "+", "COUNT", "1"]);
        let gone = first.split('"').nth(1).unwrap();
        cluster().nodes()[0].cli(&["-c", "XDEL", stream, gone]);
        let mut arrived = Vec::new();
        let read = read_arrivals(&config, stream, |it| arrived.push(it))
            .await
            .unwrap();
        assert_eq!((read.messages, read.gone), (1, 1), "{stream}");
        assert_eq!(
            (arrived[0].id.unwrap().to_string(), arrived[0].key.as_deref()),
            (id.to_owned(), Some(&b"k"[..]))
        );
    }
}
