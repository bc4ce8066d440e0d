//! What code must not do.

use std::collections::BTreeSet;

use semel_core::crash::CRASH_POINTS;

use super::files::{all, none};

const CLOCK: &str = "crates/semel-core/src/host.rs";
const LINES_MAX: usize = 700;

#[test]
fn the_clock_is_read_in_one_file() {
    let mut found = Vec::new();
    for file in all()
        .iter()
        .filter(|file| file.is_product() && file.path != CLOCK)
    {
        for (number, line) in file.code() {
            if line.contains("SystemTime::now") || line.contains("Instant::now") {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("time comes from semel_core::host, handed in as a Clock", &found);
}

#[test]
fn product_code_does_not_panic_on_purpose() {
    let mut found = Vec::new();
    for file in all().iter().filter(|file| file.is_product()) {
        let mut expected_until = 0;
        for (number, line) in file.code() {
            // `#[expect(clippy::expect_used, reason = …)]` covers the statement that follows it.
            if line.contains("clippy::expect_used") || line.contains("clippy::panic") {
                expected_until = number + 6;
            }
            let panics = [".unwrap()", ".expect(\"", "panic!(", "todo!(", "unimplemented!("]
                .iter()
                .any(|call| line.contains(call));
            if panics && number > expected_until {
                found.push(format!("{}:{number}: {}", file.path, line.trim()));
            }
        }
    }
    none("an error is returned, never a panic", &found);
}

#[test]
fn files_stay_small() {
    let found: Vec<String> = all()
        .iter()
        .filter(|file| file.is("rs") || file.is("sql") || file.is("md"))
        .map(|file| (file.text.lines().count(), &file.path))
        .filter(|(lines, _)| *lines >= LINES_MAX)
        .map(|(lines, path)| format!("{path}: {lines} lines"))
        .collect();
    none("a file under 700 lines can be read at once", &found);
}

#[test]
fn crash_points_in_the_code_are_those_on_the_list() {
    let mut used = BTreeSet::new();
    for file in all().iter().filter(|file| file.is_product()) {
        let code: String = file.code().map(|(_, line)| line.trim()).collect();
        for call in code.split("crash_point(\"").skip(1) {
            used.insert(call.split('"').next().unwrap().to_owned());
        }
    }
    let listed: BTreeSet<String> = CRASH_POINTS.iter().map(|name| (*name).to_owned()).collect();
    let unlisted: Vec<String> = used.difference(&listed).cloned().collect();
    none("add these to CRASH_POINTS in semel-core/src/crash.rs", &unlisted);
    let unused: Vec<String> = listed.difference(&used).cloned().collect();
    none("no code passes these crash points", &unused);
}

#[test]
fn every_crash_point_has_a_crash_test() {
    let files = all();
    let tests: Vec<_> = files
        .iter()
        .filter(|file| file.is("rs") && file.path.contains("/tests/"))
        // The testkit's own tests show that points work, not what a crash there leaves.
        .filter(|file| !file.path.starts_with("crates/semel-testkit/"))
        .collect();
    let untested: Vec<String> = CRASH_POINTS
        .iter()
        .filter(|point| {
            let name = format!("\"{point}\"");
            !tests.iter().any(|file| file.text.contains(&name))
        })
        .map(|point| (*point).to_owned())
        .collect();
    none("no test names these crash points", &untested);
}

#[test]
fn nothing_names_a_path_of_some_machine() {
    // In two pieces, so that this file does not find itself.
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/"),
        concat!("/ho", "me/"),
    ];
    let mut found = Vec::new();
    for file in all() {
        for (number, line) in file.text.lines().enumerate() {
            if paths.iter().any(|path| line.contains(path)) {
                found.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    none("paths of one machine", &found);
}
