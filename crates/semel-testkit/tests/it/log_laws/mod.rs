//! The laws of logs hold for the specification, [`MemoryLog`](semel_core::model::MemoryLog), and each of them can fail.

mod memory;

use semel_testkit::laws::log::{self, LogBed};

use memory::{Flaw, Memory};

semel_testkit::log_laws!(memory::bed);

/// Runs a law over a log with this flaw, in a runtime of its own; whether it failed.
fn fails(flaw: Flaw, law: impl AsyncFnOnce(&dyn LogBed) + Send + 'static) -> bool {
    let bed = Memory::new(flaw);
    let run = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(law(&bed));
    });
    run.join().is_err()
}

/// One test per flaw: the law that is there for it fails, and holds without it.
macro_rules! caught {
    ($($name:ident: $flaw:ident by $law:ident)*) => {
        $(
            #[test]
            fn $name() {
                assert!(!fails(Flaw::None, log::$law), "the law fails without a flaw");
                assert!(fails(Flaw::$flaw, log::$law), "the law does not see it");
            }
        )*
    };
}

caught! {
    a_log_that_keeps_no_place_of_empty_transactions_is_caught: SkipsEmpty by the_place_of_the_last_transaction_is_read_back
    a_log_that_rounds_places_is_caught: RoundsPlaces by the_place_of_the_last_transaction_is_read_back
    a_log_that_lets_transactions_pass_each_other_is_caught: LetsPass by transactions_are_there_in_the_order_of_their_handing_over_and_once
    a_log_that_commits_for_strangers_is_caught: TakesStrangers by nothing_is_committed_before_the_place_was_read
    a_log_that_fences_nobody_is_caught: FencesNobody by who_takes_over_fences_the_one_before
    a_log_that_tells_a_zombie_it_is_done_is_caught: Hopes by who_takes_over_fences_the_one_before
    a_log_in_which_what_was_left_open_comes_in_later_is_caught: FencesNobody by what_the_one_before_left_open_does_not_come_in_later
    a_log_with_one_place_for_all_shards_is_caught: MixesShards by a_shard_that_is_taken_over_disturbs_no_other
    a_log_that_commits_halves_is_caught: Halves by a_refused_row_leaves_nothing_of_its_transaction
    a_log_that_blames_the_neighbours_is_caught: BlamesAll by a_refused_row_leaves_nothing_of_its_transaction
    a_log_that_goes_on_behind_a_refusal_is_caught: GoesOn by a_refused_row_leaves_nothing_of_its_transaction
    a_log_that_blames_the_neighbours_of_a_large_row_is_caught: BlamesAll by an_oversized_row_hurts_no_neighbour
    a_log_that_calls_a_lost_end_none_is_caught: CallsItNone by a_connection_cut_in_the_middle_loses_and_doubles_nothing
    a_log_that_only_hopes_is_caught: Hopes by a_connection_cut_in_the_middle_loses_and_doubles_nothing
    a_log_that_blames_a_row_for_the_line_is_caught: BlamesTheRow by a_connection_cut_in_the_middle_loses_and_doubles_nothing
    a_log_that_goes_on_behind_what_nobody_knows_is_caught: Stumbles by nothing_comes_in_without_what_was_handed_over_before_it
    a_log_that_never_ends_is_caught: NeverEnds by a_log_that_cannot_be_reached_decides_nothing
    a_log_that_makes_places_up_is_caught: MakesPlacesUp by a_log_that_cannot_be_reached_decides_nothing
}
