//! `sink.redis`: events as entries of Redis Streams.

use std::path::Path;
use std::time::Duration;

use super::read::{At, Table};
use super::spec::{Section, field, required, secret};
use super::store::StoreUrl;

/// `sink.redis`.
pub(crate) const REDIS: Section = Section {
    header: "sink.redis",
    about: "Each event is appended to the Redis stream of its topic. What Redis forgets in a crash or fail-over is gone: \
            set `appendonly yes` and `appendfsync always`.",
    fields: &[
        secret(required(
            "url",
            "URL",
            "`redis://user:password@host:port/database` or `rediss://`; several nodes of a cluster with commas between them",
        )),
        field("cluster", "true or false", "`false`", "whether it is a cluster"),
        field(
            "key",
            "text",
            "`{topic}`",
            "the stream's key; `{topic}` stands for the topic. A hash tag: `events:{{topic}}`",
        ),
        field(
            "entries_max",
            "number",
            "none",
            "about how many entries a stream keeps (`MAXLEN ~`); what nobody has read yet goes, too",
        ),
        field(
            "create_streams",
            "true or false",
            "`true`",
            "whether a stream that is missing is made; otherwise its shard pauses",
        ),
        field(
            "replicas_min",
            "number",
            "0",
            "replicas that must confirm events (`WAIT`) before they count as delivered; not in a cluster",
        ),
        field(
            "reply_timeout_ms",
            "ms",
            "5000",
            "how long connecting or a reply may take; replicas get half of it",
        ),
        field(
            "entry_bytes_max",
            "bytes",
            "4194304",
            "a larger event is refused: `poison` decides",
        ),
        field(
            "in_flight_max",
            "number",
            "1000",
            "events handed over at once, for each shard",
        ),
    ],
};

/// `sink.redis`.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "read and checked by every build, used by one with Redis")
)]
pub(crate) struct RedisConfig {
    /// Where it is. Shown without user and password.
    pub(crate) url: StoreUrl,
    /// Whether it is a cluster.
    pub(crate) cluster: bool,
    /// The stream's key.
    pub(crate) key: String,
    /// About how many entries a stream keeps.
    pub(crate) entries_max: Option<u64>,
    /// Whether a stream that is missing is made.
    pub(crate) create_streams: bool,
    /// Replicas that must confirm.
    pub(crate) replicas_min: u32,
    /// How long a reply may take.
    pub(crate) reply_timeout: Duration,
    /// Bytes of an event.
    pub(crate) entry_bytes_max: usize,
    /// Events handed over at once.
    pub(crate) in_flight_max: usize,
}

/// Reads it.
pub(crate) fn read(table: &Table<'_>) -> Option<RedisConfig> {
    table.require("url", "\"redis://127.0.0.1:6379/0\"");
    let url = table.text("url").and_then(|At { value, span }| {
        match StoreUrl::parse(&value, Path::new("")) {
            Ok(url) if url.is_redis() => return Some(url),
            Ok(_) => table.mistake(
                span,
                "`url` is no URL of a Redis",
                "write redis://user:password@host:port/database",
            ),
            Err(trouble) => table.mistake(span, trouble.message.replace("store URL", "URL"), trouble.fix),
        }
        None
    });
    let cluster = table.boolean("cluster").unwrap_or(false);
    let replicas_min = table.number("replicas_min", 0..=100).unwrap_or(0);
    if cluster && replicas_min > 0 {
        let fix = "leave one of them out";
        table.mistake(table.span(), "`replicas_min` does not work in a cluster", fix);
    }
    let key = table.text("key").map(|at| at.value);
    if let Some(key) = &key
        && key.len() > 512
    {
        table.mistake(table.span(), "`key` has more than 512 bytes", "use a shorter one");
    }
    let size = |name, max, default| {
        let number = table.number(name, 1..=max).unwrap_or(default);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    Some(RedisConfig {
        cluster,
        key: key.unwrap_or_else(|| "{topic}".to_owned()),
        entries_max: table.number("entries_max", 1..=u64::from(u32::MAX)),
        create_streams: table.boolean("create_streams").unwrap_or(true),
        replicas_min: u32::try_from(replicas_min).unwrap_or(u32::MAX),
        reply_timeout: Duration::from_millis(table.number("reply_timeout_ms", 1..=600_000).unwrap_or(5_000)),
        entry_bytes_max: size("entry_bytes_max", 512 << 20, 4 << 20),
        in_flight_max: size("in_flight_max", 100_000, 1_000),
        url: url?,
    })
}
