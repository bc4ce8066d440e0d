//! Laws of [`OutboxStore`](semel_core::OutboxStore): each runs over the in-memory model and every backend.

mod batches;
mod delayed;
mod desk;
mod exceptions;
mod idle;
mod limits;
mod owners;
mod relays;
mod reshard;
mod rows;
mod world;
mod writing;

pub use batches::*;
pub use delayed::*;
pub use desk::*;
pub use exceptions::*;
pub use idle::*;
pub use limits::*;
pub use owners::*;
pub use relays::*;
pub use reshard::*;
pub use rows::*;
pub use world::{PAGE, Reader, World, Writer, event, memory};
pub use writing::*;

/// Writes one test per law over `$world`, an expression that makes a [`World`] of its own each time:
/// `(world, whatever must live as long)`.
///
/// ```ignore
/// semel_testkit::outbox_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
/// ```
#[macro_export]
macro_rules! outbox_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world;
            every_byte_of_an_event_arrives
            a_rollback_publishes_nothing
            what_can_never_be_sent_is_refused_at_enqueue
            a_batch_is_written_in_order_or_not_at_all
            an_id_that_was_enqueued_before_is_refused_and_named
            an_id_that_was_enqueued_before_is_passed_over_when_asked
            streams_and_shards_see_their_own_rows_only
            rows_written_before_the_stream_is_registered_are_in_its_first_batch
            a_stream_is_registered_any_number_of_times
            pages_are_bounded_and_leave_nothing_out
            an_empty_look_writes_nothing
            an_idle_cursor_moves_on_when_asked
            one_look_for_many_shards_passes_over_nothing
            one_look_for_many_shards_sees_what_else_an_opening_is_for
            a_row_committed_late_with_a_smaller_number_is_neither_lost_nor_waited_for
            a_key_keeps_its_order_when_a_transaction_begins_early_and_writes_late
            a_half_settled_batch_is_finished_under_its_own_mark
            writers_at_once_lose_nothing_and_keep_the_order_of_each_key
            a_relay_lives_for_as_long_as_it_says
            a_roster_tells_who_holds_which_shard
            a_shard_has_one_owner
            a_released_shard_is_free_at_once
            a_lease_that_ended_and_nobody_took_is_prolonged
            a_wish_that_is_repeated_gets_its_shards_again
            a_repeated_wish_prefers_the_shard_that_it_got
            a_stale_owner_changes_nothing
            a_late_write_of_the_same_owner_is_refused
            deaths_on_one_place_are_counted
            a_mark_before_a_send_is_kept_for_the_next_owner
            exceptions_move_with_the_cursor_and_are_whole
            exceptions_of_a_refused_save_are_not_written
            parked_keys_come_with_the_shard
            cleaning_follows_the_cursor
            cleaning_keeps_rows_for_as_long_as_told
            cleaning_one_stream_leaves_the_others_alone
            rows_of_a_stream_nobody_registered_stay_and_are_named
            the_backlog_counts_what_is_not_settled
        );
    };
    (@each $world:expr; $($law:ident)*) => {
        $(
            #[tokio::test]
            async fn $law() {
                let (world, _keep) = $world.await;
                $crate::laws::outbox::$law(&world).await;
            }
        )*
    };
}

/// Writes one test per law of delayed events, as [`outbox_laws`](crate::outbox_laws) does.
#[macro_export]
macro_rules! delayed_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world;
            a_delayed_event_comes_when_its_time_has_come_and_not_before
            due_events_come_in_the_order_of_their_times_some_at_a_time
            a_cancelled_event_never_comes
            a_delayed_event_belongs_to_its_transaction_and_its_id_is_taken
            an_id_that_an_open_transaction_has_written_holds_up_its_key_only
            movers_at_once_move_each_event_once_and_in_order
            delayed_events_of_one_call_come_each_in_its_time_or_none_is_written
        );
    };
}

/// Writes one test per law of another number of shards, as [`outbox_laws`](crate::outbox_laws) does.
#[macro_export]
macro_rules! reshard_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world;
            shards_are_split_and_merged_while_they_are_read
            a_shard_that_lags_holds_up_a_change_and_the_others_only_for_a_while
            a_change_that_nobody_wants_any_more_is_dropped
            another_number_of_shards_waits_for_what_is_being_sent_again
        );
    };
}

/// Writes one test per law of what may wait in a stream, as [`outbox_laws`](crate::outbox_laws) does.
#[macro_export]
macro_rules! limit_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world;
            nothing_is_limited_until_it_is_asked_for
            a_stream_at_its_limit_refuses_more_until_it_is_sent
            a_stream_whose_oldest_event_waits_too_long_refuses_more
            a_limit_that_is_lifted_refuses_nothing
            only_known_streams_are_written_to_where_asked
            what_was_delayed_comes_though_its_stream_is_full
            while_somebody_measures_no_writer_counts_what_was_sent
        );
    };
}

/// Writes the test of the law of stores whose writers count where no relay does.
#[macro_export]
macro_rules! counting_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world; where_nobody_measures_a_writer_counts);
    };
}

/// Writes one test per law of the operator's desk ([`OutboxDesk`](semel_core::store::OutboxDesk)) over `$world`, as
/// [`outbox_laws!`](crate::outbox_laws) does.
#[macro_export]
macro_rules! outbox_desk_laws {
    ($world:expr) => {
        $crate::outbox_laws!(@each $world;
            what_was_set_aside_is_shown_by_key_and_kind
            a_list_is_taken_in_order_and_a_skipped_row_alone
            a_row_that_is_refused_again_loses_its_mark_and_stands_for_its_key
            a_drop_keeps_those_behind_and_a_release_sends_them
            an_edit_is_kept_with_who_why_and_what_was_there
            only_the_owner_carries_out_what_was_asked
            a_shard_says_why_it_sends_nothing
            a_rescan_begins_at_the_beginning
            a_replay_sends_settled_events_once_more
        );
    };
}
