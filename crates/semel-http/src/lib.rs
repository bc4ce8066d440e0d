//! `Idempotency-Key` as a tower layer: a request that has a key happens once, however often it is sent.
//!
//! Modelled on draft-ietf-httpapi-idempotency-key-header-07. Works with axum and with any tower service over
//! [`http`] types.
//!
//! ```
//! use std::sync::Arc;
//!
//! use axum::{Router, routing::post};
//! use semel_core::{Scope, model::MemoryKeys};
//! use semel_http::{IdempotencyLayer, ScopeError};
//!
//! #[derive(Clone)]
//! struct User { id: String } // put into the extensions by your authentication layer
//!
//! # fn f() -> Result<Router, semel_core::limits::LimitExceeded> {
//! let layer = IdempotencyLayer::builder(Arc::new(MemoryKeys::default())) // SQLite or PostgreSQL in production
//!     .scope(|request: &http::request::Parts| {
//!         let user = request.extensions.get::<User>().ok_or(ScopeError::NoPrincipal)?;
//!         Ok(Scope::of_parts(&[b"orders", user.id.as_bytes()]))
//!     })
//!     .require_key()
//!     .build()?;
//! let app = Router::new().route("/orders", post(|| async { (http::StatusCode::CREATED, "order 7") })).layer(layer.clone());
//! // After the server has stopped: layer.drain().await
//! # Ok(app) }
//! # assert!(f().is_ok());
//! ```
//!
//! # What a caller sees
//! | request | answer | code |
//! | --- | --- | --- |
//! | first with its key | the handler's | |
//! | again, done | the first answer, `Idempotent-Replayed: true` | |
//! | again, still running | waits, then 409 with `Retry-After` | SEM0405 |
//! | again, other request | 422, naming the part that differs | SEM0404 |
//! | again, end not known | 409 without `Retry-After` | SEM0406 |
//! | again, answer too large or a stream | 410 "done, answer not kept" | SEM0407 |
//! | again, long after | 410 "settled, expired" | SEM0408 |
//! | no key where one is required; not exactly one valid key | 400 | SEM0401, SEM0402 |
//! | the store is down, the store is full | 503 with `Retry-After`; nothing was run | SEM0411, SEM0430 |
//!
//! Every keyed answer carries `Semel-Outcome` (see [`policy::OutcomeWord`]) and `Semel-Guarantee` (see [`Guarantee`]).
//! Safe methods and, unless required, requests without a key pass through untouched and un-buffered. The whole contract,
//! with every setting, is the chapter `docs/http.md`.
//!
//! # Guarantees
//! - One run per key, over any number of instances that share the store. The handler's effect is *guarded*: after a
//!   crash of the process the key is unknown and is not run again in silence.
//! - A client that goes away, or a time-out layer outside of this one, does not stop the handler: it goes on in a task of
//!   its own, and its retry gets the answer. A panic is caught. What ends without anybody knowing what came of it is
//!   unknown at once.
//! - The first answer is kept byte for byte: status, headers in order with duplicates, body, trailers. A fixed list of
//!   headers is not kept (of the connection, of the moment, credentials, CORS, rate limits, traces).
//! - An answer leaves only after its outcome is durable; one too large to keep is sent as it comes, and ends only then.
//!   When the store fails at that moment the answer is sent, and storing goes on behind it for
//!   [`Config::completion_retry`]; where that ends in vain, the key reads as unknown.
//!
//! # Not guaranteed
//! That the effect is undone or repeated after a crash; for that, pass [`ClaimInfo`]'s token and [`Key::child`] keys
//! on to receivers that deduplicate, or commit the mark with the effect (`semel_sqlite::tx`, `semel_postgres::tx`).
//! Under [`Outage::Open`] and `OwnerLost::Rerun` a second run is what was chosen.
//!
//! # Not yet
//! - Storing the answer in the handler's own transaction.
//! - A streamed answer that ends within the limit is sent when it is whole; `text/event-stream` is sent on as it comes.
//!
//! # Where it goes
//! Inside authentication (the scope needs the principal), inside compression and CORS (their headers are made anew for
//! each answer), inside time-outs (or 408 would count as the handler's), outside of what parses the body. In axum, layer
//! the outer router: a nested one hides its prefix from the fingerprint ([`Builder::target`]). For browsers, CORS allows
//! `Idempotency-Key` and exposes `Idempotent-Replayed` and `Semel-Outcome`.
//!
//! # Limits
//! All in [`Config`]; the answer that reports one names it.
//!
//! [`Key::child`]: semel_core::Key::child

mod behind;
mod body;
mod builder;
mod collect;
mod config;
pub mod fingerprint;
pub mod grpc;
pub mod headers;
mod info;
mod issued;
pub mod key;
mod layer;
mod observe;
pub mod policy;
mod problem;
pub mod response;
mod route;
mod run;
mod scope;
mod service;
mod shared;
mod wait;
mod within;

pub use body::{Body, BoxError};
pub use builder::{Builder, NoScope, Scoped};
pub use config::{Config, FINGERPRINT_HEADERS_MAX, IssuedKeys, Mode, Outage};
pub use fingerprint::{Pointer, Profile};
pub use info::ClaimInfo;
pub use key::BodyKey;
pub use layer::IdempotencyLayer;
pub use observe::{Counts, Event, Observer};
pub use policy::{Disposition, Guarantee, KeepFor, SentBefore, StatusPolicy};
pub use problem::{Problem, ProblemKind};
pub use route::Route;
pub use scope::{ScopeError, ScopeResolver};
pub use service::Idempotency;
