//! From an error of Redis to what a caller may do next, in one place.

use std::sync::Arc;

use redis::{ErrorKind as Driver, RedisError};
use semel_core::{ErrorKind, Retry, StoreError};

/// Redis may evict records under memory pressure (rule K8).
pub(crate) const EVICTS: &str = "SEM0230";
/// Redis is full.
pub(crate) const FULL: &str = "SEM0231";
/// Redis is older than 7.
pub(crate) const OLD: &str = "SEM0232";
/// A replica.
pub(crate) const READ_ONLY: &str = "SEM0233";
/// It loads its data or is busy.
pub(crate) const BUSY: &str = "SEM0234";
/// A cluster, or none.
pub(crate) const CLUSTER: &str = "SEM0235";
/// User, password or rights.
pub(crate) const RIGHTS: &str = "SEM0236";
/// Too few replicas.
pub(crate) const REPLICAS: &str = "SEM0237";
/// It cannot write its files.
pub(crate) const DISK: &str = "SEM0238";

/// What a call was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Making a connection: nothing was asked yet.
    Connecting,
    /// Reading.
    Reading,
    /// Changing something: a reply that does not come is an unknown outcome.
    Writing,
}

/// The kind of a failed call.
///
/// A refusal of the server proves that nothing was done: scripts are refused as a whole, or by their first write. A
/// connection that breaks or a reply that does not come in time proves nothing.
pub(crate) fn classify(operation: &'static str, doing: Doing, error: RedisError) -> StoreError {
    let refused = |kind, code, text: &'static str| StoreError::new(kind, operation, text).with_code(code);
    let code = error.code().unwrap_or_default().to_owned();
    let found = match code.as_str() {
        "OOM" => refused(
            ErrorKind::NotApplied,
            FULL,
            "Redis is full, nothing was written; raise maxmemory, keep outcomes for less time, or sweep",
        )
        .full(),
        "READONLY" => refused(
            ErrorKind::Unavailable,
            READ_ONLY,
            "this Redis is a read-only replica; connect to the primary",
        )
        .read_only(),
        "LOADING" | "MASTERDOWN" | "BUSY" => refused(
            ErrorKind::Unavailable,
            BUSY,
            "Redis loads its data or is busy with somebody's script; it will answer later",
        ),
        "CLUSTERDOWN" | "TRYAGAIN" => refused(
            ErrorKind::Unavailable,
            CLUSTER,
            "the cluster does not serve this key now; it will when its slots are covered again",
        ),
        "MOVED" | "ASK" | "CROSSSLOT" => refused(
            ErrorKind::Invalid,
            CLUSTER,
            "this Redis is part of a cluster; set cluster = true",
        ),
        "NOAUTH" | "WRONGPASS" | "NOPERM" => rights(operation),
        "NOREPLICAS" => refused(
            ErrorKind::NotApplied,
            REPLICAS,
            "Redis has fewer replicas than its min-replicas-to-write, nothing was written; bring them back",
        ),
        "MISCONF" => refused(
            ErrorKind::NotApplied,
            DISK,
            "Redis cannot write its files and takes no writes; free its disk, see its log",
        ),
        _ => return by_kind(operation, doing, error),
    };
    found.with_source(error)
}

fn rights(operation: &'static str) -> StoreError {
    let text =
        "Redis refuses this user, password or command; mend the URL, or grant the user the commands of Semel";
    StoreError::new(ErrorKind::Invalid, operation, text).with_code(RIGHTS)
}

fn by_kind(operation: &'static str, doing: Doing, error: RedisError) -> StoreError {
    let found = match (error.kind(), doing) {
        (Driver::AuthenticationFailed, _) => rights(operation),
        (Driver::RESP3NotSupported, _) => old(operation, "older than 6"),
        (Driver::InvalidClientConfig, _) => {
            let text = "the URL is not of the form redis://user:password@host:port/database (rediss:// for TLS), or ca_pem or \
                        the client's certificate is not PEM";
            StoreError::new(ErrorKind::Invalid, operation, text)
        }
        (Driver::Server(_) | Driver::Extension, Doing::Connecting | Doing::Reading | Doing::Writing) => {
            let text = "Redis refused the command; its answer is the source of this error";
            StoreError::new(ErrorKind::Invalid, operation, text)
        }
        (_, Doing::Connecting) if is_tls(&error).is_some() => {
            let text = is_tls(&error).unwrap_or_default();
            StoreError::new(ErrorKind::Invalid, operation, text)
        }
        (_, Doing::Connecting) if hung_up(&error) => {
            let text = "the server took the connection and closed it at once; is this its TLS port? then use rediss://";
            StoreError::new(ErrorKind::Unavailable, operation, text)
        }
        (_, Doing::Connecting) | (Driver::ClusterConnectionNotFound, _) => {
            let text = "Redis cannot be reached; is it running, and is the URL right?";
            StoreError::new(ErrorKind::Unavailable, operation, text)
        }
        (_, Doing::Reading) => {
            let text = "the connection broke or the answer took too long; nothing was changed";
            StoreError::new(ErrorKind::NotApplied, operation, text).away()
        }
        (_, Doing::Writing) => lost(operation),
    };
    found.with_source(error)
}

/// What is wrong with an encrypted connection that could not be made.
fn is_tls(error: &RedisError) -> Option<&'static str> {
    #[cfg(feature = "tls")]
    return crate::tls::explain(error);
    #[cfg(not(feature = "tls"))]
    {
        let _ = error;
        None
    }
}

fn hung_up(error: &RedisError) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let closed = |kind| {
        matches!(
            kind,
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        )
    };
    io_error(error).map_or_else(|| error.is_connection_dropped(), |error| closed(error.kind()))
}

/// What the operating system or TLS said.
pub(crate) fn io_error(error: &RedisError) -> Option<&std::io::Error> {
    use std::error::Error;
    let source = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    source.as_ref().downcast_ref()
}

/// The time for connecting was up.
pub(crate) fn connect_timed_out(operation: &'static str, encrypted: bool) -> StoreError {
    let text = if encrypted {
        "Redis did not answer in time: it stands still, or it does not speak TLS on this port; then use redis://"
    } else {
        "Redis did not answer in time; is it running, and is the URL right?"
    };
    StoreError::new(ErrorKind::Unavailable, operation, text)
}

/// The reply did not come.
pub(crate) fn lost(operation: &'static str) -> StoreError {
    let text = "the answer did not come: it may have been done";
    StoreError::new(ErrorKind::ReplyLost, operation, text)
}

/// A write's error in a cluster. The driver may have sent it several times and tells of the last one only: that nothing was
/// done by this one says nothing of those before.
pub(crate) fn repeated(operation: &'static str, error: StoreError) -> StoreError {
    if error.retry() != Retry::Later {
        return error;
    }
    // It answered that it has no room: it is there, whatever became of the tries before.
    let lost = if error.is_full() {
        lost(operation).full()
    } else {
        lost(operation)
    };
    lost.with_source(error)
}

/// Too old.
pub(crate) fn old(operation: &'static str, version: &str) -> StoreError {
    let text = format!("this Redis is {version}; use Redis 7 or later");
    StoreError::new(ErrorKind::Invalid, operation, text).with_code(OLD)
}

/// What was stored or answered cannot be read.
pub(crate) fn corrupt(operation: &'static str, text: &'static str) -> StoreError {
    StoreError::new(ErrorKind::Corrupt, operation, text)
}

/// Whether one item of several may be the cause, so that the others should be tried without it.
pub(crate) fn may_be_one_item(error: &StoreError) -> bool {
    use std::error::Error as _;
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<RedisError>());
    let plain = |error: &RedisError| matches!(error.code(), Some("ERR" | "WRONGTYPE"));
    error.kind() == ErrorKind::Invalid && source.is_some_and(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first try may have been carried out and its reply lost; the second was refused.
    #[test]
    fn a_refusal_of_a_clusters_last_try_does_not_prove_that_nothing_was_done() {
        for kind in [ErrorKind::Unavailable, ErrorKind::NotApplied] {
            let error = repeated("claim", StoreError::new(kind, "claim", "not now"));
            assert_eq!(error.kind(), ErrorKind::ReplyLost);
            assert_eq!(error.retry(), Retry::OutcomeUnknown);
        }
        // A cluster that says it has no room is there.
        let error = repeated(
            "claim",
            StoreError::new(ErrorKind::NotApplied, "claim", "full").full(),
        );
        assert_eq!(error.kind(), ErrorKind::ReplyLost);
        assert!(error.is_full() && !error.is_outage());
        // What no try can get through stays what it is.
        let error = repeated("claim", StoreError::new(ErrorKind::Invalid, "claim", "never"));
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
