//! What the server is and how it is set (rule K8).

use redis::Value;
use semel_core::{ErrorKind, StoreError};

use crate::error::{CLUSTER, EVICTS, READ_ONLY, old};
use crate::link::Link;

/// The smallest major version.
const VERSION_MIN: u32 = 7;

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// Such as `7.0.15`.
    pub version: String,
    /// Whether it is a node of a cluster.
    pub cluster: bool,
    /// Whether it is a replica.
    pub replica: bool,
    /// Replicas that follow it.
    pub replicas: u32,
    /// `maxmemory-policy`.
    pub policy: String,
    /// `maxmemory` in bytes; 0 for no limit.
    pub memory_max: u64,
    /// Whether it writes an append-only file.
    pub append_only: bool,
    /// `appendfsync`; `None` where the user may not read it.
    pub append_fsync: Option<String>,
}

impl Facts {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.strip_prefix(':'))
                .map(str::trim)
                .unwrap_or_default()
        };
        Self {
            version: field("redis_version").to_owned(),
            cluster: field("redis_mode") == "cluster",
            replica: field("role") == "slave",
            replicas: field("connected_slaves").parse().unwrap_or(0),
            policy: field("maxmemory_policy").to_owned(),
            memory_max: field("maxmemory").parse().unwrap_or(0),
            append_only: field("aof_enabled") == "1",
            append_fsync: None,
        }
    }

    /// Whether a crash of this server forgets nothing that it has acknowledged.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.append_only && self.append_fsync.as_deref() == Some("always")
    }

    /// Refuses a server on which keys would not be safe.
    ///
    /// # Errors
    /// SEM0230 for a policy that evicts, SEM0232 for one that is too old, SEM0233 for a replica, SEM0235 for a cluster that
    /// was not said to be one, or the other way round.
    pub fn check(&self, cluster: bool) -> Result<(), StoreError> {
        let major = self
            .version
            .split('.')
            .next()
            .and_then(|it| it.parse::<u32>().ok());
        if major.is_none_or(|major| major < VERSION_MIN) {
            return Err(old("check", &format!("version {}", self.version)));
        }
        if self.policy != "noeviction" {
            let text = format!(
                "maxmemory-policy is {}: Redis may throw keys away and their requests would run again; set it to noeviction",
                self.policy
            );
            return Err(StoreError::new(ErrorKind::Invalid, "check", text).with_code(EVICTS));
        }
        if self.replica {
            let text = "this Redis is a replica; connect to the primary";
            return Err(StoreError::new(ErrorKind::Unavailable, "check", text).with_code(READ_ONLY));
        }
        if self.cluster != cluster {
            let text = if cluster {
                "this Redis is no cluster; leave cluster out"
            } else {
                "this Redis is part of a cluster; set cluster = true"
            };
            return Err(StoreError::new(ErrorKind::Invalid, "check", text).with_code(CLUSTER));
        }
        Ok(())
    }

    /// What a crash or a fail-over may cost, in plain words; `None` when nothing is to be said.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        if !self.append_only {
            return Some(
                "no append-only file: a crash of Redis forgets keys, and their requests would run again; set \
                 appendonly yes"
                    .to_owned(),
            );
        }
        match self.append_fsync.as_deref() {
            Some("always") => None,
            Some(fsync) => Some(format!(
                "appendfsync is {fsync}: a crash of the machine forgets about the last second of keys, and their requests \
                 would run again; set appendfsync always"
            )),
            None => Some(
                "appendfsync cannot be read (CONFIG is barred): unless it is always, a crash of the machine forgets about \
                 the last second of keys"
                    .to_owned(),
            ),
        }
    }
}

/// Asks every server that holds keys.
pub(crate) async fn ask(link: &Link) -> Result<Vec<Facts>, StoreError> {
    let mut all = Vec::new();
    for node in link.nodes("check").await? {
        let info = link.ask("check", &node, redis::cmd("INFO")).await?;
        let mut facts = Facts::read(&text(&info));
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("appendfsync");
        // Managed servers bar CONFIG; then it is not known.
        if let Ok(answer) = link.ask("check", &node, command).await {
            facts.append_fsync = fsync_of(answer);
        }
        all.push(facts);
    }
    Ok(all)
}

/// Looks at the settings, by the link's own idea of whether it is a cluster.
pub(crate) fn judge(all: &[Facts], cluster: bool) -> Result<(), StoreError> {
    all.iter().try_for_each(|facts| facts.check(cluster))
}

/// Whether this answer to `INFO` is a replica's.
pub(crate) fn is_replica(info: &Value) -> bool {
    Facts::read(&text(info)).replica
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    }
}

fn fsync_of(answer: Value) -> Option<String> {
    match answer {
        Value::Map(pairs) => pairs.first().map(|(_, value)| text(value)),
        Value::Array(values) => values.get(1).map(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n# Memory\r\nmaxmemory:0\r\n\
                        maxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\n\
                        connected_slaves:2\r\n";

    #[test]
    fn every_policy_that_evicts_is_refused() {
        for policy in [
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
            "",
        ] {
            let facts = Facts::read(&INFO.replace("noeviction", policy));
            let error = facts.check(false).unwrap_err();
            assert_eq!(error.code(), EVICTS, "{policy}");
        }
        assert!(Facts::read(INFO).check(false).is_ok());
    }

    #[test]
    fn a_server_that_does_not_fit_is_named() {
        for (from, to, code) in [
            ("7.0.15", "6.2.1", "SEM0232"),
            ("7.0.15", "?", "SEM0232"),
            ("role:master", "role:slave", "SEM0233"),
            ("standalone", "cluster", "SEM0235"),
        ] {
            let error = Facts::read(&INFO.replace(from, to)).check(false).unwrap_err();
            assert_eq!(error.code(), code);
        }
        assert!(Facts::read(INFO).check(true).is_err());
        assert_eq!(Facts::read(INFO).replicas, 2);
    }

    #[test]
    fn only_a_file_that_is_flushed_for_each_reply_is_durable() {
        let mut facts = Facts::read(INFO);
        assert!(!facts.is_durable());
        for (fsync, durable) in [("always", true), ("everysec", false), ("no", false)] {
            facts.append_fsync = Some(fsync.to_owned());
            assert_eq!(facts.is_durable(), durable);
            assert_eq!(facts.warning().is_none(), durable);
        }
        let off = Facts::read(&INFO.replace("aof_enabled:1", "aof_enabled:0"));
        assert!(off.warning().is_some_and(|text| text.contains("appendonly yes")));
    }
}
