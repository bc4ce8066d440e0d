//! Keys on Redis, beside a hash and two scripts by hand.

use std::cell::RefCell;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use semel_core::claim::{Claim, ClaimReply, Completion, Keep, LeaseReply, Nonce, OwnerLost, succeeded};
use semel_core::{Fingerprint, Key, KeyStore, Scope};
use semel_keys::Batched;
use semel_redis::{Config, Redis};
use semel_testkit::servers::RedisServer;

use crate::Plan;
use crate::harness::{Sample, Table, callers};

/// Callers at once: what a busy service has.
const CALLERS: usize = 64;
/// Keys in a batch.
const BATCH: usize = 256;
/// Bytes of an answer.
const ANSWER: &[u8] = &[b'a'; 220];

/// What one writes by hand: a hash, one script for each end, the server's time, a token in the hash.
const CLAIM: &str = r"
local r = redis.call('HMGET', KEYS[1], 's', 'f', 'u', 't', 'r')
if r[1] then
  if r[2] ~= ARGV[1] then return {2} end
  if r[1] == 'd' then return {3, r[5]} end
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if r[1] and tonumber(r[3]) > now then return {1} end
local token = (tonumber(r[4] or '0')) + 1
redis.call('HSET', KEYS[1], 's', 'c', 'f', ARGV[1], 'u', now + ARGV[2], 't', token)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {0, token}
";
const FINISH: &str = r"
if redis.call('HGET', KEYS[1], 't') ~= ARGV[1] then return 0 end
if ARGV[3] == '1' then redis.call('DEL', KEYS[1]) return 1 end
redis.call('HSET', KEYS[1], 's', 'd', 'r', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
";
const KEEP_MS: u64 = 3_600_000;

/// The two scripts on one connection.
#[derive(Clone)]
struct ByHand {
    connection: MultiplexedConnection,
    claim: Arc<redis::Script>,
    finish: Arc<redis::Script>,
}

impl ByHand {
    async fn connect(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        // As generous as the store's.
        let config = redis::AsyncConnectionConfig::new()
            .set_response_timeout(Some(std::time::Duration::from_secs(5)))
            .set_pipeline_buffer_size(1_000);
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .unwrap();
        let (claim, finish) = (redis::Script::new(CLAIM), redis::Script::new(FINISH));
        claim.load_async(&mut connection).await.unwrap();
        finish.load_async(&mut connection).await.unwrap();
        Self {
            connection,
            claim: Arc::new(claim),
            finish: Arc::new(finish),
        }
    }

    async fn claim(mut self, key: Vec<u8>) -> Vec<redis::Value> {
        let fingerprint = Fingerprint::of(b"an order").to_bytes();
        let mut call = self.claim.key(key);
        call.arg(&fingerprint[..]).arg(30_000).arg(KEEP_MS);
        call.invoke_async(&mut self.connection).await.unwrap()
    }

    async fn new_key(self) -> u64 {
        let key = name();
        let granted = self.clone().claim(key.clone()).await;
        let [redis::Value::Int(0), redis::Value::Int(token)] = granted[..] else {
            panic!("{granted:?}")
        };
        let mut connection = self.connection;
        let mut call = self.finish.key(key);
        call.arg(token).arg(ANSWER).arg(0).arg(KEEP_MS);
        let done: i64 = call.invoke_async(&mut connection).await.unwrap();
        assert_eq!(done, 1);
        1
    }

    async fn replay(self, key: Vec<u8>) -> u64 {
        let reply = self.claim(key).await;
        assert!(matches!(
            reply[..],
            [redis::Value::Int(3), redis::Value::BulkString(_)]
        ));
        1
    }

    /// The same scripts, sent in one go.
    async fn new_keys(mut self, count: usize) -> u64 {
        let keys: Vec<Vec<u8>> = (0..count).map(|_| name()).collect();
        let fingerprint = Fingerprint::of(b"an order").to_bytes();
        let mut claims = redis::pipe();
        for key in &keys {
            let call = claims.cmd("EVALSHA").arg(self.claim.get_hash()).arg(1).arg(key);
            call.arg(&fingerprint[..]).arg(30_000).arg(KEEP_MS);
        }
        let granted: Vec<(i64, i64)> = claims.query_async(&mut self.connection).await.unwrap();
        let mut ends = redis::pipe();
        for (key, (_, token)) in keys.iter().zip(granted) {
            let call = ends.cmd("EVALSHA").arg(self.finish.get_hash()).arg(1).arg(key);
            call.arg(token).arg(ANSWER).arg(0).arg(KEEP_MS);
        }
        let done: Vec<i64> = ends.query_async(&mut self.connection).await.unwrap();
        assert!(done.iter().all(|done| *done == 1));
        count as u64
    }
}

fn name() -> Vec<u8> {
    [b"byhand:", &Nonce::random().0[..]].concat()
}

fn request() -> Claim {
    Claim {
        key: Key::new(Scope::new("bench/tenant-1").unwrap(), Nonce::random().0).unwrap(),
        fingerprint: Fingerprint::of(b"an order"),
        nonce: Nonce::random(),
        owner_lost: OwnerLost::Hold,
        lease_ms: 30_000,
    }
}

async fn new_keys(store: Arc<dyn KeyStore>, count: usize) -> u64 {
    let claims: Vec<Claim> = (0..count).map(|_| request()).collect();
    let replies = store.claim_many(&claims).await;
    let done = claims.into_iter().zip(replies).map(|(claim, reply)| {
        let Ok(ClaimReply::Granted { lease, .. }) = reply else {
            panic!("a fresh key was not granted: {reply:?}");
        };
        Completion {
            key: claim.key,
            lease,
            outcome: succeeded(ANSWER),
            keep: Keep::default(),
        }
    });
    let done: Vec<Completion> = done.collect();
    let replies = store.complete_many(&done).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(LeaseReply::Ok(_)))));
    count as u64
}

async fn replay(store: Arc<dyn KeyStore>, claim: Claim) -> u64 {
    let reply = store.claim_many(&[claim]).await;
    assert!(matches!(reply[..], [Ok(ClaimReply::Done { .. })]), "{reply:?}");
    1
}

/// CPU time that contenders took, which says more than the rate where other work runs beside them.
struct Cpu<'a> {
    server: &'a RedisServer,
    /// Name, keys, µs of this process, µs of the server.
    taken: RefCell<Vec<(&'static str, u64, f64, f64)>>,
}

impl Cpu<'_> {
    fn now(&self) -> (f64, f64) {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let nanos = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        let info = self.server.cli(&["INFO", "cpu"]);
        let seconds = info.lines().filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let ours = ["used_cpu_sys", "used_cpu_user"].contains(&name);
            ours.then(|| value.trim().parse::<f64>().ok()).flatten()
        });
        (nanos.sum::<f64>() / 1e3, seconds.sum::<f64>() * 1e6)
    }

    async fn of(&self, name: &'static str, run: impl Future<Output = Sample>) -> Sample {
        let before = self.now();
        let sample = run.await;
        let after = self.now();
        let (here, there) = (after.0 - before.0, after.1 - before.1);
        let mut taken = self.taken.borrow_mut();
        match taken.iter_mut().find(|(other, ..)| *other == name) {
            Some((_, keys, client, server)) => {
                *keys += sample.done;
                *client += here;
                *server += there;
            }
            None => taken.push((name, sample.done, here, there)),
        }
        sample
    }

    /// Prints what was taken since the last time.
    fn print(&self) {
        println!("\n| CPU, µs per key | client | Redis | both, of the limit |");
        println!("| --- | ---: | ---: | ---: |");
        let mut limit = None;
        for (name, keys, client, server) in self.taken.take() {
            let (client, server) = (client / keys as f64, server / keys as f64);
            let limit = *limit.get_or_insert(client + server);
            println!(
                "| {name} | {client:.1} | {server:.1} | {:.2} |",
                (client + server) / limit
            );
        }
    }
}

pub(crate) async fn run(plan: Plan) {
    let server = RedisServer::start(&["--appendonly", "yes"]);
    let by_hand = ByHand::connect(&server).await;
    let store = Redis::connect(Config::new(server.url())).await.unwrap();
    let batched: Arc<dyn KeyStore> = Arc::new(Batched::new(store.clone()));
    let store: Arc<dyn KeyStore> = Arc::new(store);

    let cpu = Cpu {
        server: &server,
        taken: RefCell::default(),
    };
    let ours = |name, store: &Arc<dyn KeyStore>, at_once, count| {
        let store = Arc::clone(store);
        let keys = callers(at_once, plan.run, move |_| new_keys(Arc::clone(&store), count));
        cpu.of(name, keys)
    };
    let hand = |at_once, count| {
        let by_hand = by_hand.clone();
        let keys = callers(at_once, plan.run, move |_| {
            let by_hand = by_hand.clone();
            async move {
                if count == 1 {
                    by_hand.new_key().await
                } else {
                    by_hand.new_keys(count).await
                }
            }
        });
        cpu.of("by hand", keys)
    };
    Table::new(
        format!("New keys on Redis (claim, then complete), {CALLERS} callers at once, append-only file each second"),
        "keys",
    )
    .contender("by hand: a hash and two scripts", || hand(CALLERS, 1))
    .contender("Semel", || ours("Semel", &store, CALLERS, 1))
    .contender("Semel, calls gathered (the default in front of it)", || {
        ours("Semel, calls gathered", &batched, CALLERS, 1)
    })
    .measure(plan.rounds)
    .await;
    cpu.print();
    Table::new(
        format!("New keys on Redis, {BATCH} in a call, 2 callers at once"),
        "keys",
    )
    .contender("by hand: its scripts in a pipeline", || hand(2, BATCH))
    .contender("Semel", || ours("Semel", &store, 2, BATCH))
    .measure(plan.rounds)
    .await;
    cpu.print();

    let done = request();
    let name = name();
    let granted = by_hand.clone().claim(name.clone()).await;
    let redis::Value::Int(token) = granted[1] else {
        panic!()
    };
    let mut connection = by_hand.connection.clone();
    let mut call = by_hand.finish.key(&name[..]);
    call.arg(token).arg(ANSWER).arg(0).arg(KEEP_MS);
    let _: i64 = call.invoke_async(&mut connection).await.unwrap();
    let replies = store.claim_many(std::slice::from_ref(&done)).await;
    let Ok(ClaimReply::Granted { lease, .. }) = replies[0] else {
        panic!()
    };
    let completion = Completion {
        key: done.key.clone(),
        lease,
        outcome: succeeded(ANSWER),
        keep: Keep::default(),
    };
    store.complete_many(&[completion]).await;
    let replays = |name, store: &Arc<dyn KeyStore>| {
        let (store, done) = (Arc::clone(store), done.clone());
        let keys = callers(CALLERS, plan.run, move |_| {
            let again = Claim {
                nonce: Nonce::random(),
                ..done.clone()
            };
            replay(Arc::clone(&store), again)
        });
        cpu.of(name, keys)
    };
    Table::new(format!("Replays on Redis, {CALLERS} callers at once"), "keys")
        .contender("by hand: a hash and a script", || {
            let (by_hand, name) = (by_hand.clone(), name.clone());
            let keys = callers(CALLERS, plan.run, move |_| by_hand.clone().replay(name.clone()));
            cpu.of("by hand", keys)
        })
        .contender("Semel", || replays("Semel", &store))
        .contender("Semel, calls gathered", || {
            replays("Semel, calls gathered", &batched)
        })
        .measure(plan.rounds)
        .await;
    cpu.print();
}
