//! A Redis that does not fit, is full, or refuses: each with its code and what to do.

use std::time::Duration;

use semel_core::claim::{ClaimReply, succeeded};
use semel_core::{ErrorKind, Fingerprint, KeyStore, KeyStoreExt, Retry, StoreError};
use semel_redis::{Config, Redis};
use semel_testkit::laws::keys::{duplicate, is_ok};
use semel_testkit::servers::RedisServer;

use super::world::{Raw, completion, request};

async fn refused(server: &RedisServer) -> StoreError {
    Redis::connect(Config::new(server.url())).await.unwrap_err()
}

/// Rule K8, from INFO alone: CONFIG is barred here.
#[tokio::test]
async fn every_policy_but_noeviction_is_refused_at_start() {
    for policy in ["volatile-lru", "volatile-ttl", "allkeys-lru"] {
        let server = RedisServer::start(&["--maxmemory-policy", policy, "--rename-command", "CONFIG", ""]);
        let error = refused(&server).await;
        assert_eq!((error.code(), error.retry()), ("SEM0230", Retry::Never));
        assert!(error.to_string().contains(policy), "{error}");
        assert!(error.to_string().contains("set it to noeviction"), "{error}");
    }
}

/// Rule K8 later: claims are refused while the policy evicts; what runs may still end.
#[tokio::test]
async fn a_policy_that_changes_is_noticed_and_claims_are_refused_until_it_is_mended() {
    let server = RedisServer::start(&[]);
    let mut config = Config::new(server.url());
    config.check_every = Duration::from_millis(20);
    let store = Redis::connect(config).await.unwrap();
    let running = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    // Each claim looks whether it is time to ask again.
    let error = loop {
        match store.claim(&request()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), "SEM0230");
    let done = store
        .complete(&completion(&running, lease, "done"))
        .await
        .unwrap();
    assert!(is_ok(done), "what happened is stored");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    store.check().await.unwrap();
    assert!(store.claim(&request()).await.is_ok());
}

/// "Full" is an answer, and leaves nothing half-stored.
#[tokio::test]
async fn a_full_redis_says_so_and_stores_nothing() {
    let server = RedisServer::start(&[]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    let running = request();
    let ClaimReply::Granted { lease, .. } = store.claim(&running).await.unwrap() else {
        panic!("not granted")
    };
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let claim = request();
    let done = completion(&running, lease, "done");
    for error in [
        store.claim(&claim).await.unwrap_err(),
        store.complete(&done).await.unwrap_err(),
    ] {
        assert_eq!((error.code(), error.retry()), ("SEM0231", Retry::Later));
        assert!(error.to_string().contains("raise maxmemory"), "{error}");
    }
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(store.read(&claim.key).await.unwrap(), None);
    let mut raw = Raw::open(&server.url()).await;
    let names: u64 = raw.ask(&[b"DBSIZE"]).await;
    assert_eq!(names, 2, "the record that runs, and its registry");
    assert!(
        is_ok(store.complete(&done).await.unwrap()),
        "and can be stored later"
    );
}

#[tokio::test]
async fn a_replica_is_refused() {
    let primary = RedisServer::start(&[]);
    let replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    let error = refused(&replica).await;
    assert_eq!((error.code(), error.kind()), ("SEM0233", ErrorKind::Unavailable));
    // One that becomes a replica later refuses each write.
    let server = RedisServer::start(&[]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    server.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let error = store.claim(&request()).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("SEM0233", Retry::Later));
}

#[tokio::test]
async fn a_node_of_a_cluster_is_not_taken_for_a_single_server() {
    let node = RedisServer::start(&["--cluster-enabled", "yes"]);
    let error = refused(&node).await;
    assert_eq!(error.code(), "SEM0235");
    assert!(error.to_string().contains("set cluster = true"), "{error}");
}

#[tokio::test]
async fn a_refused_user_is_told_from_a_server_that_is_away() {
    let server = RedisServer::start(
        &[
            &["--user", "default", "on", ">secret", "~*", "&*", "+@all"][..],
            &[
                "--user", "reader", "on", ">secret", "~*", "+@read", "+info", "+ping",
            ],
        ]
        .concat(),
    );
    for (user, code) in [
        ("", "SEM0236"),
        (":wrong@", "SEM0236"),
        ("reader:secret@", "SEM0236"),
    ] {
        let url = server.url().replace("redis://", &format!("redis://{user}"));
        let error = match Redis::connect(Config::new(url)).await {
            Ok(store) => store.claim(&request()).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(
            (error.code(), error.kind()),
            (code, ErrorKind::Invalid),
            "{user}: {error}"
        );
    }
    let away = Redis::connect(Config::new("redis://127.0.0.1:1/0"))
        .await
        .unwrap_err();
    assert_eq!((away.code(), away.kind()), ("SEM0104", ErrorKind::Unavailable));
    for wrong in ["http://127.0.0.1/0", "127.0.0.1", "redis://"] {
        let error = Redis::connect(Config::new(wrong)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{wrong}: {error}");
    }
}

#[tokio::test]
async fn a_busy_redis_is_waited_for() {
    let server = RedisServer::start(&["--busy-reply-threshold", "1"]);
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    let url = server.url();
    let busy = tokio::spawn(async move {
        let client = ::redis::Client::open(url).unwrap();
        let mut other = client.get_multiplexed_async_connection().await.unwrap();
        other.set_response_timeout(Duration::from_secs(60));
        let mut endless = ::redis::cmd("EVAL");
        endless.arg("while true do end").arg(0);
        assert!(endless.query_async::<()>(&mut other).await.is_err());
    });
    let error = loop {
        if let Err(error) = store.claim(&request()).await {
            break error;
        }
    };
    assert_eq!((error.code(), error.retry()), ("SEM0234", Retry::Later));
    server.cli(&["SCRIPT", "KILL"]);
    busy.await.unwrap();
    assert!(store.claim(&request()).await.is_ok());
}

/// Fewer replicas than asked for: it was done, a fail-over may forget it, and asking again gives the same token.
#[tokio::test]
async fn a_write_that_too_few_replicas_confirm_is_unknown() {
    let server = RedisServer::start(&[]);
    let mut config = Config::new(server.url());
    config.replicas_min = 1;
    config.reply_timeout = Duration::from_millis(600);
    let store = Redis::connect(config).await.unwrap();
    let claim = request();
    let error = store.claim(&claim).await.unwrap_err();
    assert_eq!((error.code(), error.retry()), ("SEM0237", Retry::OutcomeUnknown));

    let _replica = RedisServer::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    // A replica that is only just there, or slow, may be late for one of them; asking again is safe.
    let lease = loop {
        if let Ok(ClaimReply::Granted { lease, .. }) = store.claim(&claim).await {
            break lease;
        }
    };
    let done = completion(&claim, lease, "done");
    let stored = loop {
        match store.complete(&done).await {
            Ok(reply) => break reply,
            Err(error) => assert_eq!(error.retry(), Retry::OutcomeUnknown, "{error}"),
        }
    };
    assert!(is_ok(stored));
    let ClaimReply::Done { outcome, .. } = store.claim(&claim).await.unwrap() else {
        panic!("not done")
    };
    assert_eq!(outcome, succeeded("done"));
}

/// What the record says is told whoever may forget it: it was done, somebody runs it, it is another request. A grant, and
/// that something is stored, are promises, and a repeat of the same nonce does not make one of them true.
#[tokio::test]
async fn replicas_that_are_away_cost_no_replay() {
    let server = RedisServer::start(&[]);
    let direct = Redis::connect(Config::new(server.url())).await.unwrap();
    let (kept, running) = (request(), request());
    let ClaimReply::Granted { lease, .. } = direct.claim(&kept).await.unwrap() else {
        panic!("not granted")
    };
    let done = completion(&kept, lease, "done");
    assert!(is_ok(direct.complete(&done).await.unwrap()));
    assert!(direct.claim(&running).await.is_ok());

    let mut config = Config::new(server.url());
    config.replicas_min = 1;
    config.reply_timeout = Duration::from_millis(600);
    let store = Redis::connect(config).await.unwrap();
    let mut other = duplicate(&kept);
    other.fingerprint = Fingerprint::of(b"something else");
    let fresh = request();
    let claims = [duplicate(&kept), fresh, duplicate(&running), other];
    let replies = store.claim_many(&claims).await;
    let unknown = |error: &StoreError| {
        assert_eq!((error.code(), error.retry()), ("SEM0237", Retry::OutcomeUnknown));
    };
    assert!(matches!(replies[0], Ok(ClaimReply::Done { .. })), "{replies:?}");
    unknown(replies[1].as_ref().unwrap_err());
    assert!(matches!(replies[2], Ok(ClaimReply::Busy { .. })), "{replies:?}");
    assert!(matches!(replies[3], Ok(ClaimReply::Mismatch)), "{replies:?}");
    // It is stored now, on this node alone.
    unknown(&store.claim(&claims[1]).await.unwrap_err());
    unknown(&store.complete(&done).await.unwrap_err());
}

#[test]
fn settings_that_cannot_be_meant_are_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for prefix in ["", "a:b", "a{b}", "a*", &"x".repeat(65)] {
        let config = Config {
            prefix: prefix.to_owned(),
            ..Config::new("redis://127.0.0.1:1/0")
        };
        let error = runtime.block_on(Redis::connect(config)).unwrap_err();
        assert!(error.to_string().contains("prefix"), "{error}");
    }
    let config = Config {
        cluster: true,
        replicas_min: 1,
        ..Config::new("redis://127.0.0.1:1/0")
    };
    let error = runtime.block_on(Redis::connect(config)).unwrap_err();
    assert!(error.to_string().contains("replicas_min"), "{error}");
    let shown = format!("{:?}", Config::new("redis://app:hunter2@h/0"));
    assert!(!shown.contains("hunter2"), "{shown}");
}
