//! Where state lives: `[store]`, and `[stores.NAME]` for more than one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_keys::QuotaConfig;

use super::read::{At, Table};
use super::spec::{Section, field, nearest, required};

/// The name of the store in `[store]`.
pub(crate) const DEFAULT: &str = "default";

/// Records or bytes of a quota: 1 to this many.
pub(crate) const QUOTA_MAX: u64 = 1 << 50;

/// Connections to PostgreSQL: 2 to this many.
pub(crate) const CONNECTIONS_MAX: u64 = 200;

/// `[store]`.
pub(crate) const STORE: Section = Section {
    header: "[store]",
    about: "The store that every role uses unless it names another one.",
    fields: FIELDS,
};

/// `[stores.NAME]`.
pub(crate) const STORES: Section = Section {
    header: "[stores.NAME]",
    about: "More stores, each with a name that a role's `store` can say.",
    fields: FIELDS,
};

/// `[store.quota]`, and `[stores.NAME.quota]`.
pub(crate) const QUOTA: Section = Section {
    header: "[store.quota]",
    about: "How much each scope may hold (an API or a gateway with one of its callers), in front of the store's keys for every \
            role: [stores.md](stores.md#growth). Of another store `[stores.NAME.quota]`. Without this table nothing is \
            limited; with it a field that is left out has its default.",
    fields: &[
        field(
            "records_max",
            "number",
            "1000000",
            "records of a scope, tombstones included; beyond it new keys are refused, and what is there is answered as ever",
        ),
        field(
            "bytes_max",
            "bytes",
            "1073741824",
            "bytes of stored outcomes of a scope",
        ),
        field(
            "remember_ms",
            "ms",
            "30000",
            "how long a count of a scope is remembered; what other processes add meanwhile is not seen",
        ),
        field(
            "scopes_max",
            "number",
            "10000",
            "scopes whose count is remembered",
        ),
    ],
};

const FIELDS: &[super::spec::Field] = &[
    required(
        "url",
        "store URL",
        "`sqlite:FILE` or `postgres://user:password@host:port/database`; \
         a relative FILE is looked for beside the configuration file; for keys and the outbox also \
         `mysql://user:password@host:port/database` (MariaDB or MySQL), for keys alone \
         `redis://user:password@host:port/database` or `rediss://`, several nodes of a cluster with commas between them. \
         `memory:` for gateways only (no other role may name it): **everything is forgotten when semel stops**, so a retry after that is sent again",
    ),
    field(
        "migrate",
        "true or false",
        "`true` for SQLite, else `false`",
        "install or upgrade the tables at start; where it is off, run `semel migrate` first",
    ),
    field(
        "connections_max",
        "number",
        "8",
        "connections to PostgreSQL, MariaDB or MySQL for all but keys, which have up to 4 more of their own; on PostgreSQL \
         one more listens for the ends of runs. SQLite: reading connections, 4 of them at most whatever is written, beside \
         the one that writes",
    ),
    field(
        "acquire_timeout_ms",
        "ms",
        "10000",
        "how long a statement waits for a connection, or for another process that holds the SQLite file; \
         Redis: how long connecting and each answer may take",
    ),
    field(
        "known_streams_only",
        "true or false",
        "what is set stays; at first `false`",
        "whether events of streams that no relay has registered are refused at enqueue (SEM0261), from anybody; set when a relay \
         of this store begins, and only where there is one",
    ),
    field(
        "quota",
        "table",
        "none: scopes grow as they will",
        "how much each scope may hold",
    ),
    field(
        "cluster",
        "true or false",
        "false",
        "Redis: whether it is a cluster",
    ),
    field(
        "prefix",
        "text",
        "`semel`",
        "Redis: what every name begins with; 1 to 64 letters, digits, `.`, `_` and `-`",
    ),
    field(
        "replicas_min",
        "number",
        "0",
        "Redis: replicas that must confirm each write in time, else its outcome is unknown; not in a cluster",
    ),
];

/// One store.
#[derive(Debug, Clone)]
pub(crate) struct StoreConfig {
    /// How roles, logs and metrics call it.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) url: StoreUrl,
    /// Whether `semel run` may install or upgrade the tables.
    pub(crate) migrate: bool,
    /// Connections.
    pub(crate) connections_max: u32,
    /// How long to wait for one.
    pub(crate) acquire_timeout: Duration,
    /// What only Redis has.
    pub(crate) redis: RedisSettings,
    /// Whether only registered streams may be written to, where the file says.
    pub(crate) known_streams_only: Option<bool>,
    /// How much each scope may hold, where the file says.
    pub(crate) quota: Option<QuotaConfig>,
}

/// What only Redis has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RedisSettings {
    /// Whether it is a cluster.
    pub(crate) cluster: bool,
    /// What every name begins with, when the file says.
    pub(crate) prefix: Option<String>,
    /// Replicas that must confirm each write.
    pub(crate) replicas_min: u32,
}

impl RedisSettings {
    fn read(table: &Table<'_>, url: Option<&StoreUrl>) -> Self {
        if url.is_some_and(|url| !url.is_redis()) {
            for name in ["cluster", "prefix", "replicas_min"] {
                if table.has(name) {
                    let message = format!("`{name}` is a setting of Redis, and this store is none");
                    table.mistake(table.span(), message, "leave it out");
                }
            }
        }
        let cluster = table.boolean("cluster").unwrap_or(false);
        let replicas_min = table.number("replicas_min", 0..=100).unwrap_or(0);
        if cluster && replicas_min > 0 {
            let fix = "leave one of them out";
            table.mistake(table.span(), "`replicas_min` does not work in a cluster", fix);
        }
        let prefix = table.text("prefix").map(|At { value, span }| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if !(1..=64).contains(&value.len()) || !value.chars().all(plain) {
                table.mistake(
                    span,
                    "this prefix cannot be used",
                    "use 1 to 64 of a-z A-Z 0-9 - _ .",
                );
            }
            value
        });
        Self {
            cluster,
            prefix,
            replicas_min: u32::try_from(replicas_min).unwrap_or(u32::MAX),
        }
    }
}

/// Where a store is. Its `Debug` and `Display` leave passwords out.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A file.
    Sqlite(PathBuf),
    /// A server's URL.
    Postgres(String),
    /// This process, as long as it lives.
    Memory,
    /// A server's URL, of MariaDB or MySQL.
    Mysql(String),
    /// A server's URL, or several of a cluster's nodes.
    Redis(String),
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => write!(f, "postgres://{}", shown(url)),
            Self::Mysql(url) => write!(f, "mysql://{}", shown(url)),
            Self::Memory => f.write_str("memory:"),
            Self::Redis(urls) => {
                let shown = urls.split(',').map(|url| {
                    let (scheme, rest) = url.trim().split_once("://").unwrap_or(("redis", ""));
                    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                    format!("{scheme}://{}", rest.split(['?', '#']).next().unwrap_or(""))
                });
                f.write_str(&shown.collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// Host and database: neither user and password nor parameters.
fn shown(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    rest.split('?').next().unwrap_or("")
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A kind of store that does not hold everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limited {
    /// What other roles need instead.
    pub(crate) needed: &'static str,
    /// What it is, and the code.
    pub(crate) is: &'static str,
    /// Whether it holds an outbox beside its keys.
    pub(crate) outbox: bool,
}

/// What is wrong with a store URL, and the fix. Says nothing of what stands after the scheme.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UrlTrouble {
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) fix: String,
}

/// The schemes there are.
const SCHEMES: [&str; 8] = [
    "sqlite",
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
    "redis",
    "rediss",
    "memory",
];

impl StoreUrl {
    /// Reads a URL; a relative SQLite file is taken from `folder`.
    pub(crate) fn parse(text: &str, folder: &Path) -> Result<Self, UrlTrouble> {
        let trouble = |message: String, fix: &str| UrlTrouble {
            message,
            fix: fix.to_owned(),
        };
        let forms = "write sqlite:semel.db or postgres://user:password@host:port/database";
        let scheme = text.split(':').next().unwrap_or_default();
        let plausible = scheme.len() <= 20
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !text.contains(':') || scheme.is_empty() || !plausible {
            return Err(trouble("the store URL has no scheme".to_owned(), forms));
        }
        let rest = &text[scheme.len() + 1..];
        match scheme {
            "sqlite" => {
                let path = rest.strip_prefix("//").unwrap_or(rest);
                if path.is_empty() || path.starts_with(":memory:") {
                    let fix =
                        "name a file, such as sqlite:semel.db: state in memory would not outlive the process";
                    return Err(trouble("the store URL names no file".to_owned(), fix));
                }
                if path.contains('?') {
                    let fix = "leave out what follows the file's name; settings are fields of this section";
                    return Err(trouble("the store URL has parameters".to_owned(), fix));
                }
                Ok(Self::Sqlite(folder.join(path)))
            }
            "postgres" | "postgresql" if !cfg!(feature = "postgres") => Err(trouble(
                "this build of semel has no PostgreSQL".to_owned(),
                "build it with: cargo build --release --features postgres",
            )),
            "postgres" | "postgresql" => {
                let host = rest.strip_prefix("//").is_some_and(|rest| !rest.is_empty());
                if !host {
                    return Err(trouble("the store URL names no server".to_owned(), forms));
                }
                Ok(Self::Postgres(text.to_owned()))
            }
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => Err(trouble(
                "the store URL names something after memory:".to_owned(),
                "write memory: alone, and only where all keys may be forgotten when semel stops",
            )),
            "mysql" | "mariadb" if !cfg!(feature = "mysql") => Err(trouble(
                "this build of semel has no MySQL".to_owned(),
                "build it with: cargo build --release --features mysql",
            )),
            "mysql" | "mariadb" => {
                let rest = rest.strip_prefix("//").unwrap_or_default();
                let forms = "write mysql://user:password@host:port/database";
                if rest.is_empty() || rest.starts_with('/') {
                    return Err(trouble("the store URL names no server".to_owned(), forms));
                }
                let path = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                let path = path.split('?').next().unwrap_or_default();
                if path
                    .split_once('/')
                    .is_none_or(|(_, database)| database.is_empty())
                {
                    return Err(trouble("the store URL names no database".to_owned(), forms));
                }
                Ok(Self::Mysql(text.to_owned()))
            }
            "redis" | "rediss" if !cfg!(feature = "redis") => Err(trouble(
                "this build of semel has no Redis".to_owned(),
                "build it with: cargo build --release --features redis",
            )),
            "redis" | "rediss" => {
                let nodes = text.split(',').map(|url| url.trim().split_once("://"));
                let each = |node: Option<(&str, &str)>| {
                    node.is_some_and(|(one, rest)| one == scheme && !rest.is_empty())
                };
                if !nodes.into_iter().all(each) {
                    let forms = "write redis://user:password@host:port/database, \
                                 or for a cluster several of them with commas between";
                    return Err(trouble("the store URL names no server".to_owned(), forms));
                }
                Ok(Self::Redis(text.to_owned()))
            }
            other => {
                let known = "known schemes: sqlite:, postgres://, mysql://, redis://, rediss://";
                let fix = match nearest(other, SCHEMES.into_iter()) {
                    Some(near) => format!("did you mean `{near}`? {known}"),
                    None => known.to_owned(),
                };
                Err(trouble(
                    format!("unknown scheme `{other}` in the store URL"),
                    &fix,
                ))
            }
        }
    }

    /// Whether it is this process's memory.
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// Whether it is a file of this machine.
    pub(crate) const fn is_sqlite(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// What to say where it does not hold what a role needs.
    pub(crate) const fn limited(&self) -> Option<Limited> {
        match self {
            Self::Sqlite(_) | Self::Postgres(_) | Self::Memory => None,
            Self::Mysql(_) => Some(Limited {
                needed: "SQLite or PostgreSQL",
                is: "a MariaDB or MySQL, for which only keys and the outbox are built yet (SEM0222)",
                outbox: true,
            }),
            Self::Redis(_) => Some(Limited {
                needed: "an SQL store",
                is: "a Redis, which holds keys only (SEM0239)",
                outbox: false,
            }),
        }
    }

    /// Whether it is a Redis.
    pub(crate) const fn is_redis(&self) -> bool {
        matches!(self, Self::Redis(_))
    }
}

/// Reads one store's table.
pub(crate) fn read(name: &str, table: &Table<'_>, folder: &Path) -> Option<StoreConfig> {
    table.require("url", "\"sqlite:semel.db\"");
    let url = table.text("url").and_then(|At { value, span }| {
        StoreUrl::parse(&value, folder)
            .map_err(|trouble| table.mistake(span, trouble.message, trouble.fix))
            .ok()
    });
    let migrate = table.boolean("migrate");
    let connections = table.number("connections_max", 2..=CONNECTIONS_MAX);
    let acquire = table.number("acquire_timeout_ms", 1..=600_000);
    let known_streams_only = table.boolean("known_streams_only");
    let redis = RedisSettings::read(table, url.as_ref());
    let quota = table
        .table("quota", &QUOTA)
        .map(|table| quota(&table, url.as_ref()));
    let url = url?;
    if url.is_memory() {
        let idle = [
            "migrate",
            "connections_max",
            "acquire_timeout_ms",
            "known_streams_only",
        ];
        table.idle(&idle, "the store is in memory");
    } else if url.is_redis() {
        let idle = ["migrate", "connections_max", "known_streams_only"];
        table.idle(&idle, "the store is a Redis");
    }
    if let Some(kind) = url.limited() {
        table.is_limited(name, kind);
    }
    Some(StoreConfig {
        known_streams_only,
        redis,
        quota,
        name: name.to_owned(),
        migrate: migrate.unwrap_or_else(|| url.is_sqlite()),
        url,
        connections_max: connections.map_or(8, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        acquire_timeout: Duration::from_millis(acquire.unwrap_or(10_000)),
    })
}

/// Reads a store's `quota`.
fn quota(table: &Table<'_>, url: Option<&StoreUrl>) -> QuotaConfig {
    if url.is_some_and(StoreUrl::is_redis) {
        let message = "a Redis cannot count what a scope holds, so it keeps no quota";
        let fix = "leave it out, or keep these keys in SQLite, PostgreSQL, MariaDB or MySQL";
        table.mistake(table.span(), message, fix);
    }
    let default = QuotaConfig::default();
    let remember = table.number("remember_ms", 0..=3_600_000);
    let scopes = table.number("scopes_max", 1..=1_000_000);
    QuotaConfig {
        records_max: table
            .number("records_max", 1..=QUOTA_MAX)
            .unwrap_or(default.records_max),
        bytes_max: table
            .number("bytes_max", 1..=QUOTA_MAX)
            .unwrap_or(default.bytes_max),
        remember: remember.map_or(default.remember, Duration::from_millis),
        scopes_max: scopes.map_or(default.scopes_max, |n| usize::try_from(n).unwrap_or(usize::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<StoreUrl, UrlTrouble> {
        StoreUrl::parse(text, Path::new("/etc/semel"))
    }

    #[test]
    fn a_relative_file_stands_beside_the_configuration() {
        let file = |path: &str| StoreUrl::Sqlite(path.into());
        assert_eq!(parse("sqlite:semel.db"), Ok(file("/etc/semel/semel.db")));
        assert_eq!(parse("sqlite://semel.db"), Ok(file("/etc/semel/semel.db")));
        assert_eq!(parse("sqlite:/var/lib/s.db"), Ok(file("/var/lib/s.db")));
        assert_eq!(parse("sqlite:///var/lib/s.db"), Ok(file("/var/lib/s.db")));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_repeating_it() {
        for (url, message) in [
            ("hunter2", "the store URL has no scheme"),
            ("sqlite:", "the store URL names no file"),
            ("sqlite::memory:", "the store URL names no file"),
            ("sqlite:a.db?mode=ro", "the store URL has parameters"),
            (
                "oracle://u:hunter2@h/d",
                "unknown scheme `oracle` in the store URL",
            ),
            ("mysql:", "the store URL names no server"),
            ("mysql://u:hunter2@h:3306", "the store URL names no database"),
            (
                "mysql://u:hunter2@h/?ssl-mode=required",
                "the store URL names no database",
            ),
            ("postgres:", "the store URL names no server"),
            ("redis://", "the store URL names no server"),
            ("redis://u:hunter2@h,h2", "the store URL names no server"),
        ] {
            let trouble = parse(url).unwrap_err();
            assert_eq!(trouble.message, message, "{url}");
            assert!(!trouble.fix.contains("hunter2"));
        }
        let fix = parse("postgress://h/d").unwrap_err().fix;
        assert!(fix.starts_with("did you mean `postgres`?"), "{fix}");
    }

    #[test]
    fn shown_urls_hold_no_password() {
        let url = parse("postgres://u:p@ss@db:5432/shop?password=x").unwrap();
        assert_eq!(url.to_string(), "postgres://db:5432/shop");
        assert_eq!(format!("{url:?}"), "postgres://db:5432/shop");
        let url = parse("mysql://u:p@ss@db:3306/shop?ssl-mode=required").unwrap();
        assert_eq!(url.to_string(), "mysql://db:3306/shop");
        let url = parse("rediss://u:p@ss@one:1/0,rediss://:x@two:2").unwrap();
        assert_eq!(url.to_string(), "rediss://one:1/0,rediss://two:2");
    }
}
