//! The laws of a [`Sink`](semel_core::Sink): what every sink must do, ours and yours.
//!
//! A sink's tests write a [`SinkBed`]: the sink, its receiver, the line between them and a way to read back what
//! arrived. [`sink_laws!`](crate::sink_laws) makes one test per law over it. What a receiver cannot do (refuse a row,
//! miss a destination) its bed says with `None`, and the law is passed over; what a sink cannot do is no excuse.
//!
//! ```ignore
//! async fn bed(receiver: Receiver) -> MyBed {
//!     // `Receiver::Alone`: the law kills the receiver, so that no other test may use it meanwhile.
//!     MyBed::start(receiver).await
//! }
//!
//! semel_testkit::sink_laws!(bed);
//! ```
//!
//! A whole bed, over a sink in memory, is `tests/it/sink_laws` of this crate; it also breaks that sink in every way that
//! a law is there for, and sees the law fail. Beds over real servers stand in `tests/it` of the crates of our sinks.
//!
//! # What the laws show
//! - Every byte of an event arrives, and nothing of it is taken for something else.
//! - The rows of a key arrive in order; when one of them fails, nothing later of it arrives before it is settled.
//! - `Ok` comes only after the receiver has the row durably.
//! - A row that is sent again carries its id; a replay that a person asked for arrives all the same.
//! - What is lost on the way is no row's fault ([`Away`](semel_core::store::SinkErrorClass::Away)), and goes out again
//!   with the same id; a missing destination says so; a refused row is blamed alone.
//!
//! # Not shown
//! That a receiver's own redundancy works (replicas, fsync at power loss): a killed process keeps its page cache.

mod away;
mod bed;
mod bytes;
pub(crate) mod drive;
mod order;
mod refusals;

pub use away::*;
pub use bed::{Arrived, HeaderForm, LIMIT, Line, Receiver, SinkBed};
pub use bytes::*;
pub use order::*;
pub use refusals::*;

/// Writes one test per law over the beds that `$bed` makes, an async function from [`Receiver`] to a [`SinkBed`].
#[macro_export]
macro_rules! sink_laws {
    ($bed:expr) => {
        $crate::sink_laws! { @each $bed, Shared;
            every_byte_of_an_event_arrives
            no_page_at_all_is_answered_with_nothing
            rows_of_a_key_arrive_in_order_and_once
            a_full_page_is_answered_row_by_row
            a_row_that_is_sent_again_carries_its_id
            a_replay_arrives_under_the_id_that_it_repeats
            a_dropped_call_leaves_the_sink_as_it_was
            nothing_of_a_key_arrives_before_its_refused_row_is_settled
            one_refused_row_is_blamed_alone
            an_oversized_row_hurts_no_neighbour
            a_missing_destination_is_named_and_costs_no_attempt
            nothing_is_acknowledged_before_it_arrived_and_a_call_ends_at_its_deadline
            a_receiver_that_cannot_be_reached_is_away
            a_connection_cut_while_rows_leave_loses_nothing
            a_connection_cut_while_answers_come_loses_nothing
        }
        $crate::sink_laws! { @each $bed, Alone;
            what_was_acknowledged_survives_the_death_of_the_receiver
            a_receiver_that_died_costs_no_attempt_and_no_order
        }
    };
    (@each $bed:expr, $receiver:ident; $($law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let bed = $bed($crate::laws::sink::Receiver::$receiver).await;
                $crate::laws::sink::$law(&bed).await;
            }
        )*
    };
}
