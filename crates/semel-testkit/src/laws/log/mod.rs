//! The laws of a [`LogSink`](semel_core::store::LogSink): a log whose transactions hold events and the cursor, so that no
//! event is in it twice. What Kafka's transactions do; yours, where your log can do it.
//!
//! A log's tests write a [`LogBed`]: processes that publish into one log, the line to it and a way to read what is
//! committed. [`log_laws!`](crate::log_laws) makes one test per law over it. What a log cannot do (refuse a row) its bed says with
//! `None`, and the law is passed over.
//!
//! ```ignore
//! async fn bed() -> MyBed {
//!     MyBed::start().await
//! }
//!
//! semel_testkit::log_laws!(bed);
//! ```
//!
//! The specification is [`MemoryLog`](semel_core::model::MemoryLog). A whole bed over it is `tests/it/log_laws` of this crate; it
//! also breaks that log in every way that a law is there for, and sees the law fail. The bed over Kafka is in `tests/it` of
//! `semel-kafka`.
//!
//! # What the laws show
//! - The rows of transactions are there in the order in which these were handed over, once each, and the place with them; a
//!   transaction without rows moves the place, too.
//! - All or nothing: a refused row leaves nothing of its transaction nor of those behind it, is blamed alone, and the next one may
//!   begin when its caller has heard of it.
//! - Who takes a shard over reads the place of the last transaction that came in, and none of the one before comes in afterwards:
//!   neither what it left open nor what it still hands over. Other shards are not disturbed.
//! - Where nobody knows how a transaction ended, that is the answer, within the deadline: what is read back then says whether it
//!   came in. A lost connection is no row's fault.
//!
//! # Not shown
//! That readers of uncommitted records see nothing twice, and that the log survives the loss of its own replicas.

mod bed;
mod broken;
mod owner;
mod places;
mod refusals;

pub use bed::LogBed;
pub use broken::*;
pub use places::*;
pub use refusals::*;

/// Writes one test per law over the beds that `$bed` makes, an async function to a [`LogBed`].
#[macro_export]
macro_rules! log_laws {
    ($bed:expr) => {
        $crate::log_laws! { @each $bed;
            the_place_of_the_last_transaction_is_read_back
            transactions_are_there_in_the_order_of_their_handing_over_and_once
            nothing_is_committed_before_the_place_was_read
            who_takes_over_fences_the_one_before
            what_the_one_before_left_open_does_not_come_in_later
            a_shard_that_is_taken_over_disturbs_no_other
            a_refused_row_leaves_nothing_of_its_transaction
            an_oversized_row_hurts_no_neighbour
            a_connection_cut_in_the_middle_loses_and_doubles_nothing
            nothing_comes_in_without_what_was_handed_over_before_it
            a_log_that_cannot_be_reached_decides_nothing
        }
    };
    (@each $bed:expr; $($law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let bed = $bed().await;
                $crate::laws::log::$law(&bed).await;
            }
        )*
    };
}
