//! Lost replies, a server that stands still, and two processes at once.

use std::time::Duration;

use semel_core::claim::{Claim, ClaimReply, LeaseReply};
use semel_core::store::KeyQuery;
use semel_core::{ErrorKind, KeyStore, KeyStoreExt, Retry};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{duplicate, is_ok};
use semel_testkit::proxy::Proxy;
use semel_testkit::servers::{RedisServer, redis};

use super::world::{Raw, completion, fresh, request};

/// Rules K2 and K3 end to end: the reply is lost on the wire, the call is unknown, and repeating it is safe.
#[tokio::test]
async fn lost_replies_of_claim_and_complete_are_asked_for_again() {
    let (url, direct) = fresh().await;
    let proxy = Proxy::to_port(redis().port()).await.unwrap();
    let through = url.replace(&format!(":{}/", redis().port()), &format!(":{}/", proxy.port()));
    let store = Redis::connect(Config::new(through)).await.unwrap();
    let claim = request();

    proxy.drop_reply_to(&claim.nonce.0);
    let lost = store.claim(&claim).await.unwrap_err();
    assert_eq!(
        (lost.kind(), lost.retry()),
        (ErrorKind::ReplyLost, Retry::OutcomeUnknown)
    );
    let held = direct
        .read(&claim.key)
        .await
        .unwrap()
        .and_then(|record| record.lease());
    let ClaimReply::Granted { lease, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not granted")
    };
    assert_eq!(Some(lease), held, "the same token as the first time");

    let done = completion(&claim, lease, "charged");
    proxy.drop_reply_to(b"charged");
    assert_eq!(
        store.complete(&done).await.unwrap_err().kind(),
        ErrorKind::ReplyLost
    );
    assert!(is_ok(store.complete(&done).await.unwrap()));
    assert_eq!(
        proxy.hits(),
        2,
        "two replies were dropped, and none asked for again by itself"
    );
}

/// A request that never arrives is unknown, too: nobody can tell it from the other case.
#[tokio::test]
async fn a_request_that_is_cut_off_is_unknown_and_sent_once() {
    let (url, direct) = fresh().await;
    let proxy = Proxy::to_port(redis().port()).await.unwrap();
    let through = url.replace(&format!(":{}/", redis().port()), &format!(":{}/", proxy.port()));
    let store = Redis::connect(Config::new(through)).await.unwrap();
    let claim = request();
    proxy.drop_request(&claim.nonce.0);
    assert_eq!(
        store.claim(&claim).await.unwrap_err().kind(),
        ErrorKind::ReplyLost
    );
    assert_eq!(
        direct.read(&claim.key).await.unwrap(),
        None,
        "not sent again by itself"
    );
    assert!(matches!(
        store.claim(&claim).await.unwrap(),
        ClaimReply::Granted { .. }
    ));
}

/// A server that is away is told from one whose reply was lost: nothing can have been done.
#[tokio::test]
async fn a_server_that_is_away_is_unavailable_and_found_again() {
    let mut server = RedisServer::start(&["--appendonly", "yes"]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    assert!(store.claim(&request()).await.is_ok());
    server.kill();
    // The first call may meet the end of the connection.
    let error = loop {
        let error = store.claim(&request()).await.unwrap_err();
        if error.kind() != ErrorKind::ReplyLost {
            break error;
        }
    };
    assert_eq!(
        (error.kind(), error.retry()),
        (ErrorKind::Unavailable, Retry::Later)
    );
    server.restart();
    assert!(store.claim(&request()).await.is_ok());
}

/// SIGSTOP: the reply does not come in time, the outcome is unknown; when the server goes on, the same nonce gets the
/// token that it was given then.
#[tokio::test]
async fn a_server_that_stands_still_makes_outcomes_unknown_and_nothing_is_claimed_twice() {
    let server = RedisServer::start(&[]);
    let mut config = Config::new(server.url());
    config.reply_timeout = Duration::from_millis(200);
    let store = Redis::connect(config).await.unwrap();
    let claim = request();
    server.pause();
    let error = store.claim(&claim).await.unwrap_err();
    server.resume();
    assert_eq!(error.retry(), Retry::OutcomeUnknown, "{error}");
    // On a busy machine it may be too late for these as well.
    let answered = async |claim: &Claim| loop {
        match store.claim(claim).await {
            Ok(reply) => break reply,
            Err(error) => assert_eq!(error.retry(), Retry::OutcomeUnknown, "{error}"),
        }
    };
    let ClaimReply::Granted { attempt, .. } = answered(&claim).await else {
        panic!("not granted")
    };
    assert_eq!(attempt, 1);
    let reply = answered(&duplicate(&claim)).await;
    assert!(matches!(reply, ClaimReply::Busy { .. }));
}

/// A fail-over that leaves connections open: the address leads to another server, and the old one refuses.
#[tokio::test]
async fn a_primary_that_became_a_replica_is_left() {
    let (old, new) = (RedisServer::start(&[]), RedisServer::start(&[]));
    let proxy = Proxy::to_port(old.port()).await.unwrap();
    let url = format!("redis://127.0.0.1:{}/", proxy.port());
    let store = Redis::connect(Config::new(url)).await.unwrap();
    assert!(store.claim(&request()).await.is_ok());
    old.cli(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    proxy.set_upstream(([127, 0, 0, 1], new.port()).into());
    let refused = store.claim(&request()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(store.claim(&request()).await.is_ok());
}

/// A server that has lost its scripts, by a restart or a flush, is told them again.
#[tokio::test]
async fn scripts_that_the_server_has_forgotten_are_sent_again() {
    let (url, store) = fresh().await;
    let claim = request();
    for _ in 0..2 {
        let mut raw = Raw::open(&url).await;
        let _: ::redis::Value = raw.ask(&[b"SCRIPT", b"FLUSH"]).await;
        assert!(matches!(
            store.claim(&claim).await.unwrap(),
            ClaimReply::Granted { .. }
        ));
    }
}

/// Two handles, as of two processes, 32 tasks each claim, complete and replay: every key has one owner and one outcome.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_handles_grant_each_key_once() {
    let (url, one) = fresh().await;
    let two = Redis::connect(Config::new(&url)).await.unwrap();
    let keys: Vec<Claim> = (0..50).map(|_| request()).collect();
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let store = if n % 2 == 0 { one.clone() } else { two.clone() };
            let mut claims: Vec<Claim> = keys.iter().map(duplicate).collect();
            if n % 3 == 0 {
                claims.reverse();
            }
            tokio::spawn(async move {
                let mut done = Vec::new();
                for (claim, reply) in claims.iter().zip(store.claim_many(&claims).await) {
                    if let ClaimReply::Granted { lease, .. } = reply.unwrap() {
                        done.push(completion(claim, lease, "done"));
                    }
                }
                for reply in store.complete_many(&done).await {
                    assert!(matches!(reply.unwrap(), LeaseReply::Ok(_)));
                }
                done.len()
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += task.await.unwrap();
    }
    assert_eq!(granted, keys.len());
}

/// Somebody else's data under one of our names, or a record of a later build: that item fails, its neighbours do not, and
/// nothing is overwritten.
#[tokio::test]
async fn a_name_that_holds_something_else_fails_alone() {
    let (url, store) = fresh().await;
    let claims: Vec<Claim> = (0..3).map(|_| request()).collect();
    assert!(store.claim_many(&claims).await.iter().all(Result::is_ok));
    let mut raw = Raw::open(&url).await;
    let names: Vec<Vec<u8>> = raw.ask(&[b"KEYS", b"semel{*"]).await;
    let name = |claim: &Claim| {
        let bytes = claim.key.to_bytes();
        names.iter().find(|name| name.ends_with(&bytes)).unwrap().clone()
    };
    let _: ::redis::Value = raw.ask(&[b"DEL", &name(&claims[0])]).await;
    let _: ::redis::Value = raw.ask(&[b"LPUSH", &name(&claims[0]), b"x"]).await;
    let _: ::redis::Value = raw.ask(&[b"SETRANGE", &name(&claims[1]), b"40", b"\x09"]).await;
    let again: Vec<Claim> = claims.iter().map(duplicate).collect();
    let replies = store.claim_many(&again).await;
    assert_eq!(replies[0].as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(matches!(replies[2], Ok(ClaimReply::Busy { .. })), "{replies:?}");
    // Neither sweeping nor listing stumbles over them.
    raw.age_ms("semel", 100_000).await;
    assert_eq!(store.sweep(10).await.unwrap().unknown, 1);
    let query = KeyQuery {
        limit: 10,
        ..KeyQuery::default()
    };
    assert_eq!(store.list(&query).await.unwrap().records.len(), 1);
    let kind: String = raw.ask(&[b"TYPE", &name(&claims[0])]).await;
    assert_eq!(kind, "list");
}
