//! Roles: free ports, reachable receivers and upstreams, and the guarantee in force.

use std::net::SocketAddr;
use std::time::Duration;

use semel_core::error::chain;
use semel_core::store::SinkErrorClass;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::findings::Finding;
use super::gateway;
use crate::config::sink::SinkConfig;
use crate::config::{Config, RelayConfig};
use crate::sinks;

/// How long a server may take to accept a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a receiver may take to say that it is there.
const PROBE: Duration = Duration::from_secs(10);

/// Looks at the daemon's address and at every role.
pub(crate) async fn check(config: &Config, findings: &mut Vec<Finding>) {
    let running = is_semel(config.server.listen).await;
    findings.push(port("server", config.server.listen, running).await);
    for relay in &config.relays {
        let part = format!("relay {}", relay.name);
        findings.push(receiver(&part, relay).await);
        #[cfg(feature = "redis")]
        if let SinkConfig::Redis(redis) = &relay.sink {
            findings.extend(forgets(&part, redis).await);
        }
        findings.push(Finding::ok(part, "guarantee", relay_guarantee(&relay.sink)));
    }
    for gateway in &config.gateways {
        let part = format!("gateway {}", gateway.name);
        findings.push(port(&part, gateway.listen.value, running).await);
        findings.push(reachable(&part, "upstream", &gateway.upstream).await);
        for (route, text) in gateway::guarantees(gateway) {
            findings.push(Finding::ok(&part, "guarantee", format!("{route}: {text}")));
        }
        findings.extend(gateway::stop(&part, gateway, config.server.stop_max));
    }
    if let Some(api) = &config.api {
        findings.push(port("api", api.listen, running).await);
        findings.push(if api.access.asks() {
            Finding::ok(
                "api",
                "access",
                "bearer tokens, each for its scopes and operations",
            )
        } else {
            Finding::ok(
                "api",
                "access",
                "no tokens: everybody on this machine, web pages excepted",
            )
        });
        let text = "keyed where whoever claims passes the token or the key on, else guarded: an end that is not known is \
                    held, never granted again in silence unless it asks for `rerun`";
        findings.push(Finding::ok("api", "guarantee", text));
    }
    if config.saga.is_some() {
        let text = "keyed where a step's participant keeps a barrier or deduplicates, else guarded: each definition says";
        findings.push(Finding::ok("saga", "guarantee", text));
    }
}

const fn relay_guarantee(sink: &SinkConfig) -> &'static str {
    match sink {
        SinkConfig::Webhook(_) => {
            "at least once with one Idempotency-Key, in order per key; keyed where the receiver deduplicates"
        }
        SinkConfig::Kafka(kafka) if kafka.transactional.is_some() => {
            "exactly once into the log for readers with isolation.level=read_committed, in order per key, acks=all"
        }
        SinkConfig::Kafka(_) => {
            "at least once with one ce_id, in order per key, acks=all; keyed where the consumer deduplicates"
        }
        SinkConfig::Redis(_) => {
            "at least once with one ce_id, in order per key, for as long as Redis remembers; keyed where the consumer \
             deduplicates"
        }
        SinkConfig::Rabbitmq(_) => {
            "at least once with one message-id, in order per key, confirmed and routed; keyed where the consumer deduplicates"
        }
        SinkConfig::Nats(_) => {
            "at least once with one Nats-Msg-Id, in order per key, acknowledged by the stream; once inside its window"
        }
    }
}

/// What a Redis whose streams get events could lose of them.
#[cfg(feature = "redis")]
async fn forgets(part: &str, config: &crate::config::sink_redis::RedisConfig) -> Option<Finding> {
    let sink = sinks::redis_sink(config).ok()?;
    // Who does not answer is told about as a receiver.
    let all = timeout(PROBE, sink.facts()).await.ok()?.ok()?;
    let facts = all.first()?;
    let trouble = if facts.policy != "noeviction" {
        format!(
            "maxmemory-policy is {}: Redis may throw whole streams away",
            facts.policy
        )
    } else if !facts.append_only {
        "no append-only file: a crash of Redis forgets the streams".to_owned()
    } else if facts.append_fsync.as_deref() != Some("always") {
        "appendfsync is not always: a crash of the machine forgets about the last second of events".to_owned()
    } else {
        return None;
    };
    let fix = "set maxmemory-policy noeviction, appendonly yes and appendfsync always; events that were published stay in \
               the outbox for keep_ms";
    Some(Finding::warn(part, "durability", trouble, fix))
}

/// Whether the receiver of a relay is there.
async fn receiver(part: &str, relay: &RelayConfig) -> Finding {
    let shown = match &relay.sink {
        SinkConfig::Webhook(webhook) => semel_client::origin(&webhook.url),
        SinkConfig::Kafka(kafka) => kafka.brokers.join(","),
        SinkConfig::Redis(redis) => redis.url.to_string(),
        SinkConfig::Rabbitmq(rabbitmq) => without_user(&rabbitmq.url),
        SinkConfig::Nats(nats) => nats
            .url
            .split(',')
            .map(without_user)
            .collect::<Vec<_>>()
            .join(","),
    };
    let sink = match sinks::for_relay(relay, &semel_client::Destinations::default()) {
        Ok(sink) => sink,
        Err(error) => return Finding::bad(part, "receiver", chain(&error), "mend the settings of the sink"),
    };
    let (trouble, class) = match timeout(PROBE, sink.probe()).await {
        Ok(Ok(())) => return Finding::ok(part, "receiver", format!("{shown} can be reached")),
        Ok(Err(error)) => (error.to_string(), error.class),
        Err(_) => (
            format!("no answer within {} s", PROBE.as_secs()),
            SinkErrorClass::Away,
        ),
    };
    let fix = match (&relay.sink, class) {
        (SinkConfig::Rabbitmq(_), SinkErrorClass::Destination) => {
            "mend user, password or virtual host in `url`, or the user's permissions on the broker"
        }
        (SinkConfig::Nats(_), SinkErrorClass::Destination) => {
            "mend `user` and `password`, `token` or `credentials_file`, or the account on the server"
        }
        (SinkConfig::Nats(_), _) => "start it with JetStream (`nats-server -js`), or mend the sink",
        _ => "start it, or mend the sink",
    };
    Finding::bad(part, "receiver", format!("{shown}: {trouble}"), fix)
}

/// A URL without name and password.
fn without_user(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
            format!("{scheme}://{place}")
        }
        None => "the server".to_owned(),
    }
}

/// Whether a port can be had, or the daemon that is `running` has it already.
async fn port(part: &str, address: SocketAddr, running: bool) -> Finding {
    match TcpListener::bind(address).await {
        Ok(_) => Finding::ok(part, "port", format!("{address} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let port = address.port();
            if running {
                let fix = "if that is the daemon of this file all is well; a second one cannot have the port";
                return Finding::warn(
                    part,
                    "port",
                    format!("{address} is in use while a semel runs"),
                    fix,
                );
            }
            let fix = format!("stop the other process (`ss -ltnp 'sport = :{port}'`) or set another port");
            Finding::bad(part, "port", format!("{address} is in use"), fix)
        }
        Err(error) => {
            let fix = "set an address that can be had";
            Finding::bad(part, "port", format!("{address}: {error}"), fix)
        }
    }
}

/// Whether a semel answers at the daemon's own address.
async fn is_semel(address: SocketAddr) -> bool {
    let client = semel_client::HttpClient::new(semel_client::Limits::default());
    let Ok(request) = http::Request::get(format!("http://{address}/healthz")).body(bytes::Bytes::new())
    else {
        return false;
    };
    match client.send(request, CONNECT).await {
        Ok(answer) => answer.body().as_ref() == b"alive\n",
        Err(_) => false,
    }
}

/// Whether something accepts connections where the URL points.
async fn reachable(part: &str, check: &'static str, url: &http::Uri) -> Finding {
    let host = url.host().unwrap_or_default();
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") {
        443
    } else {
        80
    });
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let trouble = match timeout(CONNECT, TcpStream::connect((bare, port))).await {
        Ok(Ok(_)) => return Finding::ok(part, check, format!("{host}:{port} accepts connections")),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", CONNECT.as_secs()),
    };
    Finding::bad(
        part,
        check,
        format!("{host}:{port}: {trouble}"),
        "start it, or mend the URL",
    )
}
