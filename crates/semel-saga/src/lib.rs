//! Sagas that survive any crash: a coordinator, participants over HTTP or in this process, three outcomes.
//!
//! The protocol is the pure machine of [`semel_core::saga`]; this crate carries it out: it claims sagas, writes what the
//! machine decides (many sagas in one commit) and then sends the calls it names.
//!
//! # Guarantees
//! - What [`SagaHandle::submit`] accepted is durable and is driven to an end by whichever coordinator lives.
//! - A call leaves only after the state that names it is durable, and only under a lease; at most one call of an
//!   operation is out in one process.
//! - Crash at any instruction: the next owner takes over when the lease ends and treats calls without a recorded answer
//!   as unknown. Effects at participants with a barrier or keys happen once; at others they are never repeated.
//!
//! # Not guaranteed
//! That a coordinator whose lease ended has stopped in the middle of a call: participants see `Semel-Epoch`.
//!
//! # Not yet
//! A breaker per destination (there is a concurrency limit and the steps' back-off), status URLs, signals, `mark`,
//! retry with edited input, submitting inside a business transaction. On Linux the lease is counted on a clock that
//! stops while the machine is suspended; a write of an owner that overslept is refused, a call that it sends just then
//! is not.
//!
//! ```
//! # async fn f(db: semel_core::model::MemorySagas) -> Result<(), Box<dyn std::error::Error>> {
//! use std::{sync::Arc, time::Duration};
//! use semel_core::saga::{Definition, SagaId, Status, Step};
//! use semel_saga::{Coordinator, CoordinatorConfig, HttpParticipants};
//! use tokio_util::sync::CancellationToken;
//!
//! let order = Definition::new("order")
//!     .step(Step::new("reserve", "http://stock/reserve").compensated_by("http://stock/release").barrier())
//!     .step(Step::new("charge", "http://payments/charge").compensated_by("http://payments/refund").barrier())
//!     .check()?;
//! let participants = Arc::new(HttpParticipants::default());
//! let coordinator = Coordinator::new(Arc::new(db), participants, CoordinatorConfig::default())?;
//! let sagas = coordinator.handle();
//! tokio::spawn(coordinator.run(CancellationToken::new()));
//!
//! let id = SagaId::new("order-7")?;
//! sagas.submit(&order, id.clone(), r#"{"amount":30}"#).await?;
//! let end = sagas.wait(&id, Duration::from_secs(30)).await?;
//! assert_eq!(end.status, Status::Completed);
//! # Ok(()) }
//! ```

mod config;
mod coordinator;
mod engine;
mod error;
mod handle;
mod http;
mod participants;

pub use config::CoordinatorConfig;
pub use coordinator::Coordinator;
pub use error::SagaError;
pub use handle::{SagaHandle, SagaView, Submitted};
pub use http::HttpParticipants;
pub use participants::{Handlers, Participants};
pub use semel_core::saga;
