//! The laws of a [`KeyStore`](semel_core::KeyStore).
//!
//! [`key_laws!`](crate::key_laws) makes one test per law. Each law gets a [`World`] of its own: a store in which
//! nothing is stored yet, and a way to let time pass in it.

mod abandon;
mod batch;
mod claim;
mod end;
mod expiry;
pub mod history;
mod list;
mod release;
mod settle;
mod world;

pub use abandon::*;
pub use batch::*;
pub use claim::*;
pub use end::*;
pub use expiry::*;
pub use list::*;
pub use release::*;
pub use settle::*;
pub use world::*;

/// One test per law over the worlds that `$world` (an async function) makes.
#[macro_export]
macro_rules! key_laws {
    ($world:expr) => {
        $crate::key_laws! { $world;
            first_claim_is_granted_and_a_duplicate_is_busy
            duplicate_of_a_finished_key_gets_the_stored_outcome
            mismatched_fingerprint_never_sees_the_stored_output
            mismatch_is_judged_at_take_over
            keys_that_differ_in_any_byte_are_different_keys
            repeated_nonce_gets_the_same_token_and_deadline
            repeated_nonce_after_an_extension_is_a_stranger
            repeated_nonce_after_the_lease_is_a_stranger
            one_of_many_concurrent_claims_is_granted
            held_key_becomes_unknown_when_its_lease_ends
            rerun_key_goes_to_the_next_claimant_with_a_larger_token
            rerun_key_that_nobody_retries_is_forgotten_long_after_its_lease
            stored_policy_decides_not_the_takers
            stale_owner_changes_nothing
            one_of_many_racing_owners_completes
            slow_owner_completes_an_unknown_key
            slow_owner_that_extends_is_the_owner_again
            extension_never_makes_a_lease_shorter
            token_grows_across_purge
            outcome_becomes_a_tombstone_and_is_forgotten
            sweep_marks_drops_and_removes_what_has_ended
            sweep_takes_no_more_than_its_limit
            repeated_complete_is_ok_and_another_outcome_a_conflict
            complete_needs_token_and_nonce
            every_outcome_is_kept_byte_for_byte
            released_key_is_free_and_release_can_be_repeated
            withdrawn_claim_that_arrives_late_is_not_granted
            withdrawal_is_remembered_beside_other_runs
            withdrawal_frees_a_claimed_and_an_unknown_key
            done_key_cannot_be_released
            abandoned_key_is_unknown_at_once_and_its_owner_may_still_complete
            abandoned_rerun_key_is_free_for_the_next_claimant
            only_the_owner_abandons
            list_pages_through_a_scope_and_shows_each_record_once
            list_by_state_tells_what_records_read_as_now
            usage_counts_records_and_bytes_of_a_scope
            settled_outcome_is_given_to_duplicates
            settled_as_not_happened_the_key_is_free
            settlement_of_an_older_run_touches_no_later_one
            closed_key_keeps_a_tombstone_and_no_outcome_whatever_it_was
            closing_names_the_run_that_was_seen_and_can_be_repeated
            same_key_twice_in_a_batch_is_decided_in_order
            refused_item_does_not_fail_its_neighbours
            batch_over_the_limit_is_refused_and_names_the_limit
            full_batch_is_answered_in_order
        }
    };
    ($world:expr; $($law:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $law() {
                let world = $world().await;
                $crate::laws::keys::$law(&world).await;
            }
        )*
    };
}
