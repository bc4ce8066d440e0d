//! Codes of what a person reads in a saga's log, state and traces. Errors of this module and of `semel-saga` carry
//! theirs in their texts.

/// The saga is stuck and needs a person.
pub const NEEDS_PERSON: &str = "SEM0504";
/// A participant has seen a later epoch than the owner's.
pub const STALE_EPOCH: &str = "SEM0505";
/// A participant has lost the barrier row of an action that happened.
pub const BARRIER_LOST: &str = "SEM0506";
