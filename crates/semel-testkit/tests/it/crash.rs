//! A crash is told from every other end.

use std::process::Command;

use semel_testkit::crash::{self, Run};

#[test]
#[cfg(feature = "crash-points")]
fn a_child_aborts_at_the_point_and_time_it_was_told() {
    let name = "crash::a_child_aborts_at_the_point_and_time_it_was_told";
    if let Some(argument) = crash::role("passes twice") {
        semel_core::crash_point("relay.sent");
        println!("passed once, argument {argument}");
        semel_core::crash_point("relay.sent");
        println!("passed twice");
        return;
    }
    let run = || Run::test(name, "passes twice", "x");
    let first = run().at("relay.sent").run();
    assert!(
        first.crashed() && !first.output.contains("passed once"),
        "{first:?}"
    );
    let second = run().at("relay.sent:2").run();
    assert!(
        second.crashed() && second.output.contains("passed once, argument x"),
        "{second:?}"
    );
    let other = run().at("relay.cursor_saved").run();
    assert!(!other.crashed() && other.succeeded(), "{other:?}");
    assert!(other.output.contains("passed twice"), "{other:?}");
}

#[test]
fn another_abort_is_no_crash_point() {
    let mut command = Command::new("sh");
    command.args(["-c", "kill -ABRT $$"]);
    let end = Run::new(command).run();
    assert!(!end.crashed() && !end.succeeded(), "{end:?}");
}

#[test]
fn a_child_that_hangs_ends_at_the_limit() {
    let mut command = Command::new("sleep");
    command.arg("1000");
    let end = Run::new(command)
        .limit(std::time::Duration::from_millis(20))
        .run();
    assert!(end.status.is_none(), "{end:?}");
    assert_eq!(crash::role("any"), None);
}

#[test]
#[should_panic(expected = "there is no crash point relay.snet")]
fn a_misspelt_point_is_an_error() {
    let _ = Run::new(Command::new("true")).at("relay.snet");
}
