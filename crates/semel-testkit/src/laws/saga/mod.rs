//! Laws of [`SagaStore`](semel_core::SagaStore) and of the participants' barrier: each runs over the in-memory model and
//! every backend.

mod barrier;
mod batches;
pub mod history;
mod keeping;
mod owners;
mod requests;
mod submits;
mod times;
mod world;
mod writes;

pub use barrier::*;
pub use batches::*;
pub use keeping::*;
pub use owners::*;
pub use requests::*;
pub use submits::*;
pub use times::*;
pub use world::*;
pub use writes::*;

/// Writes one test per law over `$world`, an expression that makes a [`World`] of its own each time:
/// `(world, whatever must live as long)`.
///
/// ```ignore
/// semel_testkit::saga_laws!(async { (semel_testkit::laws::saga::memory(), ()) });
/// ```
#[macro_export]
macro_rules! saga_laws {
    ($world:expr) => {
        $crate::saga_laws!(@each $world;
            a_saga_is_accepted_once
            an_id_twice_in_one_batch_is_one_saga
            fifty_submissions_of_an_id_at_once_are_one_saga
            a_claimed_submission_that_is_repeated_is_accepted_again
            inputs_and_states_come_back_byte_for_byte
            an_input_over_the_limit_is_refused_with_the_limit_named
            a_pruned_saga_is_remembered_as_ended
            due_sagas_are_claimed_oldest_first_up_to_the_limit
            an_owned_saga_is_left_alone_until_its_lease_ends
            every_take_over_has_a_higher_epoch
            claims_at_once_share_nothing
            unserved_definitions_are_left_to_others_for_a_grace
            a_renewal_keeps_a_saga_and_tells_its_version
            a_saga_given_back_is_free_at_once
            a_write_needs_epoch_and_nonce_and_version
            a_write_that_misses_harms_no_neighbour_and_logs_nothing
            a_write_that_is_repeated_is_told_from_one_that_is_lost
            terminal_sagas_match_no_write
            a_write_that_releases_leaves_the_saga_to_its_timer
            the_log_tells_the_writes_in_order
            an_unreadable_state_is_kept_and_the_saga_is_stuck
            sagas_are_listed_and_counted_by_status
            a_request_raises_the_version_and_makes_the_saga_due
            requests_are_taken_up_with_the_write_that_names_them
            requests_have_a_limit
            a_saga_that_ended_takes_no_request
            submissions_of_a_batch_are_decided_in_order
            batches_have_a_limit
            two_writes_of_a_saga_in_a_batch_are_decided_in_order
            each_write_of_a_batch_is_judged_alone
            overlapping_batches_at_once_write_each_saga_once
            long_logs_are_in_order
            only_what_is_due_is_claimed
            a_saga_that_becomes_due_while_it_is_owned_waits_for_the_lease
            a_claimed_submission_is_free_when_its_lease_ends
            a_stale_owner_changes_nothing
            every_end_is_an_end
            any_due_time_is_kept
            a_request_is_never_slept_over
            requests_and_claims_at_once_miss_nothing
            ids_are_compared_byte_for_byte
            every_status_is_listed_and_counted
            reasons_come_and_go_with_the_state
            a_tombstone_is_no_saga
            after_its_tombstone_an_id_is_free
            pruning_takes_what_has_ended_up_to_its_limit
        );
    };
    (@each $world:expr; $($law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $law() {
                let (world, _keep) = $world.await;
                $crate::laws::saga::$law(&world).await;
            }
        )*
    };
}

/// Writes one test per law of the barrier over `$site`, an expression that makes a [`Site`] of its own each time:
/// `(site, whatever must live as long)`.
#[macro_export]
macro_rules! barrier_laws {
    ($site:expr) => {
        $crate::barrier_laws!(@each $site;
            an_action_happens_once_and_its_duplicates_get_the_first_answer
            a_refusal_is_kept_and_takes_back_what_the_work_wrote
            a_compensation_undoes_once
            a_compensation_before_its_action_turns_the_action_away
            a_compensation_of_a_refused_action_undoes_nothing
            a_known_action_without_a_row_is_lost_never_nothing_to_undo
            a_lower_epoch_is_turned_away_and_a_higher_one_remembered
            a_crash_before_the_commit_leaves_nothing
            steps_and_sagas_do_not_meet
            ten_duplicates_at_once_happen_once
            action_and_compensation_at_once_leave_nothing_done
        );
    };
    (@each $site:expr; $($law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $law() {
                let (site, _keep) = $site.await;
                $crate::laws::saga::$law(&site).await;
            }
        )*
    };
}
