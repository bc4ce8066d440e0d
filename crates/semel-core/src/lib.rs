//! Names, outcomes, errors and the protocols of Semel.
//!
//! Everything here is pure: the protocols are state machines that take events and return what to do; the traits say
//! what a store or broker must carry out; the in-memory [`model`] is the specification that every backend is compared
//! with. Only [`host`] asks the operating system for anything (time and randomness).
//!
//! Begin at [`claim`] (who may run a key; [`batch`]: many callers, few statements), [`relay`] (how events leave an outbox), [`inbox`] (how they are taken once) or
//! [`saga`] (steps and their compensations).

pub mod batch;
pub mod breaker;
pub mod claim;
pub mod cloudevents;
pub mod crash;
pub mod error;
pub mod event;
pub mod fingerprint;
pub mod host;
pub mod inbox;
pub mod issued;
pub mod key;
pub mod limits;
pub mod mapping;
pub mod model;
pub mod outcome;
pub mod quiet;
pub mod relay;
pub mod retry;
pub mod saga;
pub mod signature;
pub mod store;
pub mod template;
pub mod wire;

pub use claim::{
    Claim, ClaimReply, Completion, Extension, Keep, Lease, LeaseReply, Nonce, OwnerLost, Release, Settlement,
    Token, Verdict,
};
pub use crash::crash_point;
pub use error::{ErrorKind, StoreError};
pub use event::Event;
pub use fingerprint::Fingerprint;
pub use host::{Clock, SystemClock, Timestamp};
pub use key::{Key, Scope};
pub use outcome::StoredOutcome;
pub use retry::{Retry, RetryPolicy};
pub use store::{Capabilities, KeyStore, KeyStoreExt, OutboxStore, SagaStore, Sink};
