//! The connection: one that all calls share, made anew when it breaks.
//!
//! A call is sent once. What the driver's own connection manager would do as well is to hide whether a failure came
//! while connecting (nothing was asked) or after it (nobody knows); here the two are told apart. In a cluster the driver
//! follows moved slots and may send a script again over a new connection: every script is safe to repeat (rules K2, K3;
//! a swap compares what it replaces).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo as _, Pipeline, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
};
use semel_core::StoreError;
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::error::{Doing, REPLICAS, classify, connect_timed_out, corrupt, lost, repeated};

/// How often a cluster's driver may try again.
const CLUSTER_RETRIES: u32 = 3;
/// Commands that may wait for the socket.
const QUEUE: usize = 1_000;

/// A script: its text, and the hash by which the server knows it.
pub(crate) struct Lua {
    text: &'static str,
    hash: String,
}

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident $($file:literal)+)*) => {
        $($(#[$doc])* pub(crate) static $name: LazyLock<Lua> = LazyLock::new(|| Lua::new(concat!($(include_str!($file)),+)));)*
    };
}
scripts! {
    CLAIM "lua/enter.lua" "lua/claim.lua"
    COMPLETE "lua/complete.lua"
    SWAP "lua/enter.lua" "lua/swap.lua"
    LOOK "lua/look.lua"
    WAIT "lua/wait.lua"
    SWEEP "lua/sweep.lua"
}

impl Lua {
    fn new(text: &'static str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// A node of a cluster, or the only server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Only,
    At(String, u16),
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A connection that is in use, and what has been done on it.
#[derive(Clone)]
pub(crate) struct Live {
    connection: Connection,
    dead: Arc<AtomicBool>,
    /// Set once the channel of hints is subscribed to on it.
    pub(crate) subscribed: Arc<OnceCell<()>>,
}

/// Called with the payload of each hint, and with nothing when the connection broke.
type OnHint = Arc<dyn Fn(Option<Vec<u8>>) + Send + Sync>;

pub(crate) struct Link {
    config: Config,
    target: Target,
    live: Mutex<Option<Live>>,
    connecting: tokio::sync::Mutex<()>,
    on_hint: OnHint,
}

enum Target {
    One(Box<Client>),
    Cluster(Vec<ConnectionInfo>),
}

impl Link {
    pub(crate) fn new(config: Config, on_hint: OnHint) -> Result<Self, StoreError> {
        let failed = |error| classify("connect", Doing::Connecting, error);
        let info = |url: &str| -> Result<ConnectionInfo, RedisError> {
            let info = url.into_connection_info()?;
            // With this protocol the server says on the same connection that it closes it, and sends hints over it.
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
        };
        #[cfg(feature = "tls")]
        if config.url.contains("rediss://") {
            // Fails where the process has chosen one already: then that one is used.
            let _chosen = rustls::crypto::ring::default_provider().install_default();
        }
        let target = if config.cluster {
            let nodes: Result<Vec<_>, _> = config.url.split(',').map(|url| info(url.trim())).collect();
            Target::Cluster(nodes.map_err(failed)?)
        } else {
            Target::One(Box::new(
                client(&config, info(&config.url).map_err(failed)?).map_err(failed)?,
            ))
        };
        Ok(Self {
            config,
            target,
            live: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            on_hint,
        })
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        matches!(self.target, Target::Cluster(_))
    }

    fn current(&self) -> Option<Live> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.clone().filter(|live| !live.dead.load(Ordering::Acquire))
    }

    /// Forgets the connection: it closes when the last call on it has ended.
    pub(crate) fn close(&self) {
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) async fn live(&self, operation: &'static str) -> Result<Live, StoreError> {
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(live) = self.current() {
            return Ok(live);
        }
        let dead = Arc::new(AtomicBool::new(false));
        let connecting = self.connect(Arc::clone(&dead));
        let late = || connect_timed_out(operation, self.config.url.contains("rediss://"));
        let connection = match tokio::time::timeout(self.config.connect_timeout, connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) if error.is_timeout() => return Err(late().with_source(error)),
            Ok(Err(error)) => return Err(classify(operation, Doing::Connecting, error)),
            Err(_) => return Err(late()),
        };
        let live = Live {
            connection,
            dead,
            subscribed: Arc::default(),
        };
        *self.live.lock().unwrap_or_else(PoisonError::into_inner) = Some(live.clone());
        Ok(live)
    }

    async fn connect(&self, dead: Arc<AtomicBool>) -> Result<Connection, RedisError> {
        let on_hint = Arc::clone(&self.on_hint);
        let in_cluster = self.is_cluster();
        let pushed = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Disconnection => {
                    // A cluster's driver makes its connections anew by itself.
                    if !in_cluster {
                        dead.store(true, Ordering::Release);
                    }
                    on_hint(None);
                }
                PushKind::Message => {
                    if let Some(Value::BulkString(payload)) = push.data.into_iter().nth(1) {
                        on_hint(Some(payload));
                    }
                }
                _ => {}
            }
            Ok(())
        };
        match &self.target {
            Target::One(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(self.config.connect_timeout))
                    .set_response_timeout(Some(self.config.reply_timeout))
                    .set_pipeline_buffer_size(QUEUE)
                    .set_push_sender(pushed);
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                Ok(Connection::One(connection.await?))
            }
            Target::Cluster(nodes) => {
                let builder = ClusterClient::builder(nodes.clone());
                #[cfg(feature = "tls")]
                let builder = match crate::tls::certificates(&self.config.tls) {
                    Some(certificates) => builder.certs(certificates),
                    None => builder,
                };
                let client = builder
                    .use_protocol(ProtocolVersion::RESP3)
                    .connection_timeout(self.config.connect_timeout)
                    .response_timeout(self.config.reply_timeout)
                    .retries(CLUSTER_RETRIES)
                    .push_sender(pushed)
                    .build()?;
                Ok(Connection::Cluster(client.get_async_connection().await?))
            }
        }
    }

    /// Runs a script. `fill` adds keys and arguments; where the server does not know the script, it is called twice. Beside
    /// the answer stands what those hear to whom it would promise something, where too few replicas have confirmed it.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        doing: Doing,
        script: &Lua,
        keys: usize,
        fill: impl Fn(&mut Cmd),
    ) -> Result<(Value, Option<StoreError>), StoreError> {
        let mut live = self.live(operation).await?;
        let command = |verb: &str, name: &str| {
            let mut command = redis::cmd(verb);
            command.arg(name).arg(keys);
            fill(&mut command);
            command
        };
        let mut answer = self
            .send(operation, doing, &mut live, command("EVALSHA", &script.hash))
            .await;
        // It was restarted or its scripts were flushed; nothing was done.
        if answer
            .as_ref()
            .is_err_and(|error| is_server_error(error, "NOSCRIPT"))
        {
            answer = self
                .send(operation, doing, &mut live, command("EVAL", script.text))
                .await;
        }
        answer
    }

    async fn send(
        &self,
        operation: &'static str,
        doing: Doing,
        live: &mut Live,
        command: Cmd,
    ) -> Result<(Value, Option<StoreError>), StoreError> {
        let replicas = self.config.replicas_min;
        let answer = if doing == Doing::Writing && replicas > 0 {
            let mut pipeline = Pipeline::new();
            pipeline.add_command(command);
            // Half of the time that the whole reply may take.
            let wait = wait_ms(self.config.reply_timeout);
            pipeline.cmd("WAIT").arg(replicas).arg(wait);
            live.send_all(&pipeline, 2).await.and_then(|values| {
                let mut values = values.into_iter();
                let answer = values.next().unwrap_or(Value::Nil).extract_error()?;
                Ok((answer, values.next().unwrap_or(Value::Nil)))
            })
        } else {
            live.send(&command)
                .await
                .and_then(Value::extract_error)
                .map(|answer| (answer, Value::Int(0)))
        };
        match answer {
            Ok((answer, Value::Int(confirmed))) if confirmed >= i64::from(replicas) => Ok((answer, None)),
            Ok((answer, confirmed)) => {
                let confirmed = match confirmed {
                    Value::Int(confirmed) => confirmed,
                    _ => 0,
                };
                let text = format!(
                    "{confirmed} of {replicas} replicas have confirmed it in time: a fail-over may forget it; bring the \
                     replicas back or lower replicas_min"
                );
                let kind = semel_core::ErrorKind::ReplyLost;
                Ok((
                    answer,
                    Some(StoreError::new(kind, operation, text).with_code(REPLICAS)),
                ))
            }
            Err(error) => Err(self.failed(operation, doing, live, error)),
        }
    }

    fn failed(&self, operation: &'static str, doing: Doing, live: &Live, error: RedisError) -> StoreError {
        // A silent connection may be one whose other end is gone without a word. With `replicas_min` it is kept: there `WAIT`
        // makes callers wait for each other, and a repeat over a new connection would not ask the replicas again.
        let silent = error.is_timeout() && self.config.replicas_min == 0;
        if error.is_unrecoverable_error() || silent || error.code().is_some_and(is_of_a_replica) {
            self.forget(live);
        }
        let error = classify(operation, doing, error);
        if self.is_cluster() && doing == Doing::Writing {
            repeated(operation, error)
        } else {
            error
        }
    }

    /// Sees to it that the next call connects anew: an address may lead to another server by then.
    fn forget(&self, live: &Live) {
        // A cluster's driver makes its connections anew by itself.
        if !self.is_cluster() && !live.dead.swap(true, Ordering::AcqRel) {
            (self.on_hint)(None);
        }
    }

    /// Commands that go out together, in order, once; an answer each, errors among them.
    pub(crate) async fn pipeline(
        &self,
        operation: &'static str,
        pipeline: &Pipeline,
        count: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let mut live = self.live(operation).await?;
        let answers = live.send_all(pipeline, count).await;
        let answers = answers.map_err(|error| self.failed(operation, Doing::Writing, &live, error))?;
        if answers.iter().any(says_replica) {
            self.forget(&live);
        }
        Ok(answers)
    }

    /// One command that is not about one key.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        node: &Node,
        command: Cmd,
    ) -> Result<Value, StoreError> {
        let mut live = self.live(operation).await?;
        let answer = match (&mut live.connection, node) {
            (Connection::Cluster(cluster), Node::At(host, port)) => {
                let route = SingleNodeRoutingInfo::ByAddress {
                    host: host.clone(),
                    port: *port,
                };
                cluster
                    .route_command(command, RoutingInfo::SingleNode(route))
                    .await
            }
            _ => live.send(&command).await,
        };
        answer
            .and_then(Value::extract_error)
            .map_err(|error| self.failed(operation, Doing::Reading, &live, error))
    }

    /// The servers that hold a part of the keys.
    pub(crate) async fn nodes(&self, operation: &'static str) -> Result<Vec<Node>, StoreError> {
        if !self.is_cluster() {
            return Ok(vec![Node::Only]);
        }
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let slots = self.ask(operation, &Node::Only, command).await?;
        nodes_of(&slots).ok_or_else(|| corrupt(operation, "the cluster's list of slots cannot be read"))
    }

    /// Subscribes to the channel of hints, once per connection.
    pub(crate) async fn subscribe(&self, channel: &[u8]) -> Result<(), StoreError> {
        let live = self.live("subscribe").await?;
        let mut connection = live.connection.clone();
        let subscribing: BoxFuture<'_, Result<(), RedisError>> = Box::pin(async move {
            match &mut connection {
                Connection::One(one) => one.subscribe(channel).await,
                Connection::Cluster(cluster) => cluster.subscribe(channel).await,
            }
        });
        live.subscribed
            .get_or_try_init(|| subscribing)
            .await
            .map_err(|error| self.failed("subscribe", Doing::Reading, &live, error))?;
        Ok(())
    }
}

impl Live {
    async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match &mut self.connection {
            Connection::One(one) => one.send_packed_command(command).await,
            Connection::Cluster(cluster) => cluster.req_packed_command(command).await,
        }
    }

    async fn send_all(&mut self, pipeline: &Pipeline, count: usize) -> Result<Vec<Value>, RedisError> {
        match &mut self.connection {
            Connection::One(one) => one.send_packed_commands(pipeline, 0, count).await,
            Connection::Cluster(cluster) => cluster.req_packed_commands(pipeline, 0, count).await,
        }
    }
}

fn client(config: &Config, info: ConnectionInfo) -> Result<Client, RedisError> {
    #[cfg(feature = "tls")]
    if let Some(certificates) = crate::tls::certificates(&config.tls) {
        let unreadable = |error: RedisError| {
            let kind = redis::ErrorKind::InvalidClientConfig;
            RedisError::from((kind, "certificates cannot be read", error.to_string()))
        };
        return Client::build_with_tls(info, certificates).map_err(unreadable);
    }
    let _ = config;
    Client::open(info)
}

/// Milliseconds that `WAIT` waits: half of the time that the whole reply may take, and never 0, which means for ever.
pub(crate) fn wait_ms(reply_timeout: Duration) -> u64 {
    u64::try_from(reply_timeout.as_millis() / 2)
        .unwrap_or(u64::MAX)
        .max(1)
}

/// A host that is gone without a word is noticed in half a minute, not in the quarter of an hour that the system takes.
fn tcp_settings() -> TcpSettings {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(30));
    settings
}

/// Whether this code is what a server says that is no primary, or not any more: it will say so for as long as the
/// connection lives.
fn is_of_a_replica(code: &str) -> bool {
    matches!(code, "READONLY" | "MASTERDOWN")
}

fn says_replica(answer: &Value) -> bool {
    match answer {
        Value::ServerError(error) => {
            // `EXEC` gives the reason in its text.
            let aborted = error.code() == "EXECABORT"
                && error
                    .details()
                    .is_some_and(|text| text.split([' ', ':']).any(is_of_a_replica));
            aborted || is_of_a_replica(error.code())
        }
        Value::Array(answers) => answers.iter().any(says_replica),
        _ => false,
    }
}

fn is_server_error(error: &StoreError, code: &str) -> bool {
    use std::error::Error as _;
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<RedisError>());
    source.and_then(RedisError::code) == Some(code)
}

/// The primaries in an answer to `CLUSTER SLOTS`.
fn nodes_of(slots: &Value) -> Option<Vec<Node>> {
    let Value::Array(ranges) = slots else {
        return None;
    };
    let mut nodes = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else { return None };
        let Value::Array(primary) = range.get(2)? else {
            return None;
        };
        let (host, port) = match &primary[..] {
            [Value::BulkString(host), Value::Int(port), ..] => (host, *port),
            _ => return None,
        };
        let host = String::from_utf8(host.clone()).ok()?;
        let node = Node::At(host, u16::try_from(port).ok()?);
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    Some(nodes)
}

/// For replies that are shorter than they must be.
pub(crate) fn short(operation: &'static str, doing: Doing) -> StoreError {
    match doing {
        Doing::Writing => lost(operation),
        Doing::Reading | Doing::Connecting => {
            corrupt(operation, "Redis' answer cannot be read by this build")
        }
    }
}
