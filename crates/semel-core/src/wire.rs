//! The header names of Semel's wire protocol, written once. Lower case, as they are compared.
//!
//! Three kinds of peers speak it: a *client* of an HTTP service (or a relay, which is the client of a webhook), the
//! *service* that answers, and an *upstream* or participant that a gateway or a coordinator calls.

/// Client to service, relay to receiver, coordinator to participant: the name of the operation, the same on every
/// retry. A Structured Field String or a bare token.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Relay to receiver, as Standard Webhooks has them: the delivery's id, the same on every attempt; when this attempt was
/// made, in seconds since 1970; signatures ([`signature`](crate::signature)).
pub const WEBHOOK_ID: &str = "webhook-id";
/// See [`WEBHOOK_ID`].
pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
/// See [`WEBHOOK_ID`].
pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";
/// Service to client: `true` on an answer that was stored earlier.
pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
/// Service to client, receiver to relay, participant to coordinator: what is known of the operation: `succeeded`,
/// `refused`, `running`, `unknown` or `mismatch` (see [`outcome`](crate::outcome)).
pub const OUTCOME: &str = "semel-outcome";
/// Service to client: the strength in force: `atomic`, `keyed` or `guarded`, with `;failover=forgets` where a fail-over of
/// the store may forget keys; `none` when the request ran without a key. [`Memory::of`] reads it.
pub const GUARANTEE: &str = "semel-guarantee";
/// Service to client: until when a retry gets the same answer. RFC 3339, UTC.
pub const RETAINED_UNTIL: &str = "semel-retained-until";
/// Handler to the layer around it, never sent on: do not store this answer.
pub const NO_STORE: &str = "semel-no-store";
/// Handler to the layer around it, never sent on: for how many seconds this answer is kept.
pub const PERSIST_FOR: &str = "semel-persist-for";
/// Handler to the layer around it, never sent on: nothing was done, so a retry may run.
pub const NOT_EXECUTED: &str = "semel-not-executed";

/// Gateway to upstream: the claim's fencing token, a number.
pub const TOKEN: &str = "semel-token";
/// Gateway to upstream: which attempt this is, from 1.
pub const ATTEMPT: &str = "semel-attempt";
/// Gateway to upstream: milliseconds that the caller will wait, from when it sent the request.
pub const DEADLINE_MS: &str = "semel-deadline-ms";

/// Gateway to upstream, and back on an answer: bytes that a Semel which receives them sends back with a `running` or
/// `unknown` that it has of this very key. It takes them out of the request: nobody behind it can send them back.
pub const HOP: &str = "semel-hop";

/// Relay to receiver: the event's topic.
pub const TOPIC: &str = "semel-topic";
/// Relay to receiver: `1` on an event without data.
pub const TOMBSTONE: &str = "semel-tombstone";

/// Coordinator to participant: the saga's id.
pub const SAGA_ID: &str = "semel-saga-id";
/// Coordinator to participant: the step's name.
pub const STEP: &str = "semel-step";
/// Coordinator to participant: `action` or `compensation`.
pub const OP: &str = "semel-op";
/// Coordinator to participant: the owner's epoch, a number.
pub const EPOCH: &str = "semel-epoch";
/// Coordinator to participant: when the attempt ends at the latest, in milliseconds since 1970.
pub const DEADLINE: &str = "semel-deadline";
/// Coordinator to participant, on a compensation: the key of its action.
pub const ACTION_KEY: &str = "semel-action-key";
/// Coordinator to participant, on a compensation: `succeeded` when its action is known to have happened, `unknown`
/// otherwise.
pub const ACTION: &str = "semel-action";
/// Participant to coordinator: why the barrier refused, a [`BarrierCode`](crate::saga::barrier::BarrierCode).
pub const CODE: &str = "semel-code";

/// What a value of [`GUARANTEE`] says of the receiver's memory for keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// It remembers none: `none`, or a word that is not Semel's.
    None,
    /// It remembers keys until a fail-over.
    UntilFailover,
    /// It remembers keys.
    Keys,
}

impl Memory {
    /// Reads a header's value.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        let mut parts = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        match parts.next() {
            Some(b"atomic" | b"keyed" | b"guarded") if parts.any(|part| part == b"failover=forgets") => {
                Self::UntilFailover
            }
            Some(b"atomic" | b"keyed" | b"guarded") => Self::Keys,
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_words_of_a_guarantee_promise_memory() {
        for word in ["atomic", "keyed", "guarded", " guarded ", "keyed; colour=red"] {
            assert_eq!(Memory::of(word.as_bytes()), Memory::Keys, "{word}");
        }
        for word in ["guarded;failover=forgets", "atomic; failover=forgets"] {
            assert_eq!(Memory::of(word.as_bytes()), Memory::UntilFailover, "{word}");
        }
        for word in [
            "",
            "none",
            "none;failover=forgets",
            "Guarded",
            "guarded, none",
            "best-effort",
        ] {
            assert_eq!(Memory::of(word.as_bytes()), Memory::None, "{word}");
        }
    }
}
