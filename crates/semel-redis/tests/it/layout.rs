//! What is in Redis, for how long, and by how many commands.

use std::collections::BTreeMap;

use semel_core::claim::{
    Claim, ClaimReply, Completion, Lease, REMOVE_GRACE_MS, Release, State, StateName, WITHDRAWN_MS,
};
use semel_core::store::KeyQuery;
use semel_core::{KeyStore, KeyStoreExt};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{KEEP, LEASE_MS, duplicate};
use semel_testkit::servers::RedisServer;

use super::world::{Raw, completion, fresh, request};

async fn granted(store: &Redis, claim: &Claim) -> Lease {
    match store.claim(claim).await.unwrap() {
        ClaimReply::Granted { lease, .. } => lease,
        other => panic!("{other:?}"),
    }
}

/// Milliseconds until Redis drops the only record of the database; -1 for never.
async fn expiry(url: &str) -> i64 {
    let mut raw = Raw::open(url).await;
    let names: Vec<Vec<u8>> = raw.ask(&[b"KEYS", b"semel{*"]).await;
    assert_eq!(names.len(), 1);
    raw.ask(&[b"PTTL", &names[0]]).await
}

/// A run that has not ended never expires by itself: that would be a silent second run. What has ended does.
#[tokio::test]
async fn what_runs_never_expires_and_what_has_ended_does() {
    let (url, store) = fresh().await;
    let claim = request();
    let lease = granted(&store, &claim).await;
    assert_eq!(expiry(&url).await, -1, "claimed");
    Raw::open(&url).await.age_ms("semel", LEASE_MS).await;
    store.sweep(10).await.unwrap();
    assert_eq!(expiry(&url).await, -1, "unknown");
    store.complete(&completion(&claim, lease, "done")).await.unwrap();
    let end = KEEP.retention_ms + KEEP.tombstone_ms + REMOVE_GRACE_MS;
    let slack = 10_000;
    assert!((end..=end + WITHDRAWN_MS).contains(&expiry(&url).await), "done");
    Raw::open(&url).await.age_ms("semel", KEEP.retention_ms).await;
    assert_eq!(store.sweep(10).await.unwrap().tombstoned, 1);
    assert!(
        (end - slack..=end + WITHDRAWN_MS).contains(&expiry(&url).await),
        "tombstone"
    );

    let (url, store) = fresh().await;
    let claim = request();
    let lease = granted(&store, &claim).await;
    let (key, nonce, token) = (claim.key.clone(), lease.nonce, Some(lease.token));
    store.release(&Release { key, nonce, token }).await.unwrap();
    let end = WITHDRAWN_MS + REMOVE_GRACE_MS;
    assert!(
        (end - slack..=end + 1).contains(&expiry(&url).await),
        "withdrawal"
    );
    granted(&store, &duplicate(&claim)).await;
    assert_eq!(expiry(&url).await, -1, "claimed again");
}

/// Rule K10: a run whose process died is found without looking through all keys, and listed as what it is.
#[tokio::test]
async fn a_crashed_run_that_nobody_retries_is_found_by_the_registry() {
    let (url, store) = fresh().await;
    for _ in 0..100 {
        let claim = request();
        let lease = granted(&store, &claim).await;
        store.complete(&completion(&claim, lease, "done")).await.unwrap();
    }
    let lost = request();
    granted(&store, &lost).await;
    drop(store);
    Raw::open(&url).await.age_ms("semel", LEASE_MS).await;
    let other = Redis::connect(Config::new(&url)).await.unwrap();
    let query = KeyQuery {
        state: Some(StateName::Unknown),
        limit: 10,
        ..KeyQuery::default()
    };
    assert_eq!(all(&other, query).await, [lost.key.to_bytes()]);
    assert_eq!(other.sweep(10).await.unwrap().unknown, 1);
    // What runs that have ended left in the registry is gone with that.
    let mut raw = Raw::open(&url).await;
    let registries: Vec<Vec<u8>> = raw.ask(&[b"KEYS", b"semel:run{*"]).await;
    let mut entries = 0;
    for registry in registries {
        entries += raw.ask::<u64>(&[b"XLEN", &registry]).await;
    }
    assert_eq!(entries, 1);
}

async fn all(store: &Redis, mut query: KeyQuery) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    loop {
        let page = store.list(&query).await.unwrap();
        keys.extend(page.records.iter().map(|(key, _)| key.to_bytes()));
        query.from = page.next;
        if query.from.is_none() {
            return keys;
        }
    }
}

/// The clock of the server was set back, or a registry was written by one that ran ahead: tokens grow even so, each of
/// them is given once, and a lease is as long as it was asked for.
#[tokio::test]
async fn tokens_grow_and_leases_are_right_when_the_clock_was_set_back() {
    let (url, store) = fresh().await;
    let mut raw = Raw::open(&url).await;
    let first = granted(&store, &request()).await;
    // An hour ahead, and the millisecond's ids are nearly used up.
    let ahead = (first.token.0 / 8_192 + 1_767_225_600_000 + 3_600_000).to_string() + "-120";
    let _: String = raw
        .ask(&[b"XADD", b"semel:run{00}", ahead.as_bytes(), b"k", b"x"])
        .await;
    let claims: Vec<Claim> = (0..1_000).map(|_| request()).collect();
    let mut tokens = BTreeMap::new();
    for round in [&claims[..], &claims] {
        for (claim, reply) in round.iter().zip(store.claim_many(round).await) {
            let ClaimReply::Granted { lease, .. } = reply.unwrap() else {
                panic!("not granted")
            };
            assert!(lease.token > first.token);
            let owner = tokens.entry(lease.token).or_insert_with(|| claim.key.clone());
            assert_eq!(owner, &claim.key, "a token was given twice");
        }
    }
    assert_eq!(tokens.len(), claims.len());
    let ClaimReply::Busy { lease_left_ms } = store.claim(&duplicate(&claims[0])).await.unwrap() else {
        panic!("not busy")
    };
    assert!((1..=LEASE_MS).contains(&lease_left_ms), "{lease_left_ms}");
    // By itself, too: there the id of the registry's entry is the time, unless it runs ahead.
    let alone = request();
    granted(&store, &alone).await;
    let ClaimReply::Busy { lease_left_ms } = store.claim(&duplicate(&alone)).await.unwrap() else {
        panic!("not busy")
    };
    assert!((1..=LEASE_MS).contains(&lease_left_ms), "{lease_left_ms}");
    // The same key again and again, beyond what one millisecond holds.
    let claim = Claim {
        owner_lost: semel_core::OwnerLost::Rerun,
        ..request()
    };
    let mut last = granted(&store, &claim).await;
    for _ in 0..200 {
        let (key, nonce, token) = (claim.key.clone(), last.nonce, Some(last.token));
        store.release(&Release { key, nonce, token }).await.unwrap();
        let next = granted(&store, &duplicate(&claim)).await;
        assert!(next.token > last.token);
        last = next;
    }
}

/// An entry about several runs stays as long as one of them goes on, whoever looks at it, and each of them is listed.
#[tokio::test]
async fn an_entry_about_several_runs_stays_until_the_last_of_them_has_ended() {
    let (url, store) = fresh().await;
    let claims: Vec<Claim> = (0..40).map(|_| request()).collect();
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(store.claim_many(&claims).await) {
        let Ok(ClaimReply::Granted { lease, .. }) = reply else {
            panic!("{reply:?}")
        };
        done.push(completion(claim, lease, "done"));
    }
    let mut raw = Raw::open(&url).await;
    assert_eq!(raw.ask::<u64>(&[b"XLEN", b"semel:run{00}"]).await, 1);
    let last = done.split_off(38);
    assert!(store.complete_many(&done).await.iter().all(Result::is_ok));
    // Another process, which does not know what the entry is about.
    let other = Redis::connect(Config::new(&url)).await.unwrap();
    other.sweep(10).await.unwrap();
    let running = KeyQuery {
        state: Some(StateName::Claimed),
        limit: 1,
        ..KeyQuery::default()
    };
    let mut listed = all(&other, running).await;
    listed.sort_unstable();
    let mut left: Vec<Vec<u8>> = last.iter().map(|done| done.key.to_bytes()).collect();
    left.sort_unstable();
    assert_eq!(listed, left);
    assert!(other.complete_many(&last).await.iter().all(Result::is_ok));
    other.sweep(10).await.unwrap();
    assert_eq!(raw.ask::<u64>(&[b"XLEN", b"semel:run{00}"]).await, 0);
}

/// The entry where a page ended may be gone when the next one is asked for.
#[tokio::test]
async fn a_page_that_ended_with_a_run_that_has_ended_since_leaves_none_out() {
    let (url, store) = fresh().await;
    let claims: Vec<Claim> = (0..3).map(|_| request()).collect();
    let mut leases = Vec::new();
    for claim in &claims {
        leases.push(granted(&store, claim).await);
    }
    let mut query = KeyQuery {
        state: Some(StateName::Claimed),
        limit: 1,
        ..KeyQuery::default()
    };
    let page = store.list(&query).await.unwrap();
    assert_eq!(page.records[0].0, claims[0].key);
    query.from = page.next;
    store
        .complete(&completion(&claims[0], leases[0], "done"))
        .await
        .unwrap();
    store.sweep(10).await.unwrap();
    assert_eq!(
        Raw::open(&url)
            .await
            .ask::<u64>(&[b"XLEN", b"semel:run{00}"])
            .await,
        2
    );
    let left: Vec<Vec<u8>> = claims[1..].iter().map(|claim| claim.key.to_bytes()).collect();
    assert_eq!(all(&store, query).await, left);
}

/// Runs that go on, of one call each 64.
async fn many(store: &Redis) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..40 {
        let claims: Vec<Claim> = (0..64).map(|_| request()).collect();
        for (claim, reply) in claims.iter().zip(store.claim_many(&claims).await) {
            let Ok(ClaimReply::Granted { lease, .. }) = reply else {
                panic!("{reply:?}")
            };
            done.push(completion(claim, lease, "done"));
        }
    }
    done
}

/// More than one sweep may look at: what it removes does not count.
#[tokio::test]
async fn a_sweep_removes_all_entries_of_runs_that_another_process_ended() {
    let (url, store) = fresh().await;
    let done = many(&store).await;
    let other = Redis::connect(Config::new(&url)).await.unwrap();
    for piece in done.chunks(64) {
        assert!(other.complete_many(piece).await.iter().all(Result::is_ok));
    }
    let mut raw = Raw::open(&url).await;
    assert_eq!(raw.ask::<u64>(&[b"XLEN", b"semel:run{00}"]).await, 40);
    other.sweep(1).await.unwrap();
    assert_eq!(raw.ask::<u64>(&[b"XLEN", b"semel:run{00}"]).await, 0);
}

#[tokio::test]
async fn many_open_runs_do_not_keep_a_sweep_from_what_has_ended() {
    let (url, store) = fresh().await;
    let claim = request();
    let lease = granted(&store, &claim).await;
    store.complete(&completion(&claim, lease, "done")).await.unwrap();
    // No registry names it any more.
    store.sweep(10).await.unwrap();
    Raw::open(&url).await.age_ms("semel", KEEP.retention_ms).await;
    assert_eq!(many(&store).await.len(), 2_560);
    let mut tombstoned = 0;
    for _ in 0..12 {
        tombstoned += store.sweep(1).await.unwrap().tombstoned;
    }
    assert_eq!(tombstoned, 1);
}

/// Its owner stops at the end that it knows; nobody may take over before.
#[tokio::test]
async fn a_lease_is_never_shorter_than_asked() {
    let (url, store) = fresh().await;
    let mut raw = Raw::open(&url).await;
    for _ in 0..50 {
        let (seconds, micros): (i64, i64) = raw.ask(&[b"TIME"]).await;
        let claim = request();
        let ClaimReply::Granted { until: told, .. } = store.claim(&claim).await.unwrap() else {
            panic!("not granted")
        };
        let State::Claimed { until, .. } = store.read(&claim.key).await.unwrap().unwrap().state else {
            panic!("not claimed")
        };
        let asked = seconds * 1_000_000 + micros;
        assert!(until.0 - asked >= LEASE_MS * 1_000, "{} µs", until.0 - asked);
        assert_eq!(until, told);
    }
}

/// How many commands Redis carries out, by its own count.
#[tokio::test]
async fn a_new_key_and_a_replay_take_few_commands() {
    let server = RedisServer::start(&[]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    granted(&store, &request()).await;
    let warm = request();
    let lease = granted(&store, &warm).await;
    store.complete(&completion(&warm, lease, "done")).await.unwrap();

    server.cli(&["CONFIG", "RESETSTAT"]);
    let claim = request();
    let lease = granted(&store, &claim).await;
    store.complete(&completion(&claim, lease, "done")).await.unwrap();
    let single = [("evalsha", 2), ("time", 1), ("get", 2), ("xadd", 1), ("set", 2)];
    assert_eq!(commands(&server), counts(&single), "a new key by itself");

    server.cli(&["CONFIG", "RESETSTAT"]);
    assert!(matches!(
        store.claim(&duplicate(&claim)).await.unwrap(),
        ClaimReply::Done { .. }
    ));
    assert_eq!(
        commands(&server),
        counts(&[("evalsha", 1), ("time", 1), ("get", 1)]),
        "a replay by itself"
    );

    // In batches what is not about a key is shared: four for each.
    server.cli(&["CONFIG", "RESETSTAT"]);
    let claims: Vec<Claim> = (0..64).map(|_| request()).collect();
    let mut done = Vec::new();
    for (claim, reply) in claims.iter().zip(store.claim_many(&claims).await) {
        let Ok(ClaimReply::Granted { lease, .. }) = reply else {
            panic!("{reply:?}")
        };
        done.push(completion(claim, lease, "done"));
    }
    assert!(store.complete_many(&done).await.iter().all(Result::is_ok));
    let batch = commands(&server);
    let wanted = [
        ("evalsha", 2),
        ("time", 2),
        ("get", 128),
        ("xadd", 1),
        ("set", 128),
    ];
    assert_eq!(batch, counts(&wanted), "64 new keys in a batch");
}

fn counts(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter()
        .map(|(name, calls)| ((*name).to_owned(), *calls))
        .collect()
}

fn commands(server: &RedisServer) -> BTreeMap<String, u64> {
    let stats = server.cli(&["INFO", "commandstats"]);
    let lines = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_"));
    let count = |line: &str| {
        let (name, rest) = line.split_once(":calls=").unwrap();
        (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap())
    };
    let ours = |(name, _): &(String, u64)| !name.starts_with("config") && name != "info" && name != "command";
    lines.map(count).filter(ours).collect()
}
