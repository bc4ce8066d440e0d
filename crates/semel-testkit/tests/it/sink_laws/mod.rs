//! The laws of sinks hold for a small sink of one's own, and each of them can fail.

mod memory;

use semel_core::store::SinkOrder;
use semel_testkit::laws::sink::{self, SinkBed};

use memory::{Flaw, Memory};

mod pipelined {
    semel_testkit::sink_laws!(super::memory::pipelined);
}

mod one_per_key {
    semel_testkit::sink_laws!(super::memory::one_per_key);
}

/// Runs a law over a sink with this flaw, in a runtime of its own; whether it failed.
fn fails(flaw: Flaw, law: impl AsyncFnOnce(&dyn SinkBed) + Send + 'static) -> bool {
    let bed = Memory::new(SinkOrder::Pipelined { in_flight_max: 300 }, flaw);
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
                assert!(!fails(Flaw::None, sink::$law), "the law fails without a flaw");
                assert!(fails(Flaw::$flaw, sink::$law), "the law does not see it");
            }
        )*
    };
}

caught! {
    a_sink_that_only_hopes_is_caught: Hopes by nothing_is_acknowledged_before_it_arrived_and_a_call_ends_at_its_deadline
    a_sink_that_hopes_while_lines_break_is_caught: Hopes by a_connection_cut_while_rows_leave_loses_nothing
    a_sink_that_overtakes_a_refused_row_is_caught: Overtakes by nothing_of_a_key_arrives_before_its_refused_row_is_settled
    a_sink_that_overtakes_when_the_line_breaks_is_caught: Overtakes by a_connection_cut_while_rows_leave_loses_nothing
    a_sink_that_reverses_a_page_is_caught: Reverses by rows_of_a_key_arrive_in_order_and_once
    a_sink_that_blames_a_row_for_the_line_is_caught: BlamesTheRow by a_connection_cut_while_answers_come_loses_nothing
    a_sink_that_blames_a_row_for_the_receiver_is_caught: BlamesTheRow by a_receiver_that_died_costs_no_attempt_and_no_order
    a_sink_that_blames_a_row_for_a_severed_line_is_caught: BlamesTheRow by a_receiver_that_cannot_be_reached_is_away
    a_sink_that_blames_the_neighbours_is_caught: BlamesTheNeighbours by one_refused_row_is_blamed_alone
    a_sink_that_hides_the_destination_is_caught: HidesTheDestination by a_missing_destination_is_named_and_costs_no_attempt
    a_sink_that_never_ends_is_caught: NeverEnds by nothing_is_acknowledged_before_it_arrived_and_a_call_ends_at_its_deadline
    a_sink_that_answers_too_little_is_caught: AnswersTooLittle by a_full_page_is_answered_row_by_row
    a_sink_that_forgets_tombstones_is_caught: ForgetsTombstones by every_byte_of_an_event_arrives
    a_sink_that_folds_headers_is_caught: FoldsHeaders by every_byte_of_an_event_arrives
    a_sink_that_renames_rows_is_caught: RenamesRows by a_row_that_is_sent_again_carries_its_id
    a_sink_that_takes_a_replay_for_a_repeat_is_caught: DropsRepeats by a_replay_arrives_under_the_id_that_it_repeats
    a_sink_that_stays_busy_is_caught: StaysBusy by a_dropped_call_leaves_the_sink_as_it_was
    a_sink_that_probes_nothing_is_caught: ProbesNothing by a_receiver_that_cannot_be_reached_is_away
    a_receiver_that_forgets_is_caught: Forgets by what_was_acknowledged_survives_the_death_of_the_receiver
    a_sink_that_wants_rows_is_caught: WantsRows by no_page_at_all_is_answered_with_nothing
    a_sink_that_hurts_the_neighbours_of_a_large_row_is_caught: HurtsNeighbours by an_oversized_row_hurts_no_neighbour
}
