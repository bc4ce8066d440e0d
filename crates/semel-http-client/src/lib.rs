//! Keys for HTTP clients: a request keeps one `Idempotency-Key` over all its attempts, and ends in one of three outcomes.
//!
//! A [tower] layer over [`http`] requests ([`KeyedLayer`]) and, with the feature `reqwest`, a middleware for
//! `reqwest-middleware` (`KeyedMiddleware`). Both do the same: [`verdict`] says what an answer means, [`course`] what to do
//! about it; neither knows a socket or a clock.
//!
//! ```
//! use http::Request;
//! use http_body_util::Full;
//! use bytes::Bytes;
//! use hyper_util::{client::legacy::Client, rt::TokioExecutor};
//! use semel_http_client::{KeyedLayer, Outcome, Refusal, RequestKey};
//! use tower::{Layer, ServiceExt};
//!
//! # async fn f() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let client = KeyedLayer::default().layer(Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>());
//! let request = Request::post("http://127.0.0.1:8080/charges")
//!     .extension(RequestKey::new("order-7")?) // left out: 128 random bits
//!     .body(Full::new(Bytes::from_static(b"{}")))?;
//! match client.oneshot(request).await? {
//!     Outcome::Succeeded(answer) => println!("it ran to its end: {}", answer.status()),
//!     Outcome::Refused(Refusal::Answer(answer)) => println!("certain that nothing happened: {}", answer.status()),
//!     Outcome::Refused(Refusal::NotSent(error)) => println!("never reached: {error}"),
//!     Outcome::Unknown(unknown) => println!("{unknown}"), // names the key and what can be done
//! }
//! # Ok(()) }
//! ```
//!
//! # What an attempt means, and whether another one follows
//! | seen | means | another attempt |
//! | --- | --- | --- |
//! | `Semel-Outcome: succeeded`; without the word 2xx and 3xx but 307, 308 | succeeded: the operation ran to its end, its answer may be a 402 | no |
//! | `refused` or `mismatch`; without the word 4xx, 501, 307, 308 | refused | no |
//! | `refused` with 425, 429 or a 5xx; without the word 425, 429, 503 with `Retry-After`, 409 with `Retry-After` where nobody else can have sent the key | refused for now | yes |
//! | no connection could be made | refused for now | yes |
//! | `running` | an earlier attempt is at work | yes: who says so holds the key |
//! | `unknown` | unknown | **never** |
//! | 409 without the word for a key that somebody else may have sent; 502, 503, 504, 408, other answers of proxies, a broken connection, no answer in time | unknown so far | only where it is *keyed* (below), else unknown |
//! | 500 and other 5xx | unknown | no |
//!
//! A refusal that follows an attempt whose end is not known says nothing of that attempt (a 401 or 429 is given before any
//! key is looked up): such a call ends as unknown, unless the refusal comes from the key's own record (`Semel-Outcome:
//! refused` with `Semel-Retained-Until` or `Idempotent-Replayed`). A mismatch does not count: that record is another
//! request's.
//!
//! Only a key that this layer made itself is one that nobody else can have sent.
//!
//! # When a repeat is keyed
//! [`Repeat`] says it: by the caller's word ([`Repeat::Keyed`]), or because this very route answered with `Semel-Guarantee`
//! before ([`Repeat::IfShown`], the default; a service may wear the layer on one route only, so each method and path
//! speaks for itself, and neither `failover=forgets` nor `none` counts: they take back what was shown). In both cases only within the receiver's declared memory:
//! later than `window_ms` minus [`Config::margin_ms`] after the first send a repeat is not keyed any more (rule K14). For
//! a key that outlives this process keep the time of its first send and say it: [`RequestKey::first_sent`].
//!
//! # Guarantees
//! - Every attempt carries the same key and the same bytes of body.
//! - Nothing whose end is unknown is sent again unless the repeat is keyed.
//! - Keys and bodies are in no log line and in no `Debug` output.
//!
//! # Cancel safety
//! Dropping the call leaves its outcome unknown. Who must be able to ask again brings the key.
//!
//! # Limits
//! [`Config`]: attempts and total time ([`Config::retry`]), time per attempt, bytes of a body held for repeats, routes
//! remembered. The answer is judged by its head: a body that breaks off is the reader's to see; the same key again brings
//! the stored answer. Request trailers are dropped.
//!
//! [tower]: https://docs.rs/tower

mod call;
mod config;
pub mod course;
mod error;
mod key;
mod layer;
mod outcome;
#[cfg(feature = "reqwest")]
mod reqwest;
mod routes;
mod sent;
pub mod verdict;

pub use config::{Config, KeyForm, Repeat};
pub use error::{BoxError, Error, ErrorKind};
pub use key::RequestKey;
pub use layer::{KeyedClient, KeyedLayer};
pub use outcome::{CanDo, Outcome, Refusal, Report, Unknown};

#[cfg(feature = "reqwest")]
pub use crate::reqwest::{KeyedMiddleware, outcome};
