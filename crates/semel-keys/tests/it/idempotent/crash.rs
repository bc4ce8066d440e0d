//! A process that dies at each named point, with a batcher over SQLite: what its successor finds.

use std::path::Path;
use std::sync::Arc;

use semel_core::{Clock, Key, Scope, SystemClock};
use semel_keys::{Batched, Failed, Idempotent, NotRun, Outcome};
use semel_sqlite::Sqlite;
use semel_testkit::clock::ManualClock;
use semel_testkit::crash::{self, Run};
use semel_testkit::laws::keys::LEASE_MS;

use crate::support::open;

async fn once(folder: &Path, clock: Arc<dyn Clock>) -> Idempotent<Batched<Sqlite>> {
    Idempotent::new(Batched::new(open(folder, clock).await))
        .wait_ms_max(0)
        .lease_ms(LEASE_MS)
}

/// A function whose effect is a line in a file.
async fn charge(once: &Idempotent<Batched<Sqlite>>, folder: &Path) -> Result<Outcome, NotRun> {
    let key = Key::new(Scope::new("tests").unwrap(), "order-7").unwrap();
    let ledger = folder.join("ledger");
    let ran = once.run(&key, "40.00", move |_| async move {
        let before = std::fs::read_to_string(&ledger).unwrap_or_default();
        std::fs::write(&ledger, format!("{before}charged\n"))?;
        Ok::<_, Failed>("charged")
    });
    ran.await.map(|ran| ran.outcome)
}

fn charges(folder: &Path) -> usize {
    let ledger = std::fs::read_to_string(folder.join("ledger"));
    ledger.unwrap_or_default().lines().count()
}

/// Point, charges made, whether the outcome is known.
const CASES: [(&str, usize, bool); 6] = [
    ("key.claimed", 0, false),
    ("run.claimed", 0, false),
    ("run.before_complete", 1, false),
    ("key.before_complete", 1, false),
    ("key.completed", 1, true),
    ("run.completed", 1, true),
];

#[tokio::test]
async fn a_crash_at_any_point_never_runs_twice_and_says_what_is_known() {
    if let Some(folder) = crash::role("owner") {
        let folder = Path::new(&folder);
        let once = once(folder, Arc::new(SystemClock)).await;
        let _ = charge(&once, folder).await;
        return;
    }
    for (point, made, known) in CASES {
        let dir = tempfile::tempdir().unwrap();
        let name = "idempotent::crash::a_crash_at_any_point_never_runs_twice_and_says_what_is_known";
        let end = Run::test(name, "owner", dir.path()).at(point).run();
        assert!(end.crashed(), "{point}: {end:?}");
        let clock = Arc::new(ManualClock::at(SystemClock.now()));
        let once = once(dir.path(), clock.clone()).await;
        for expired in [false, true] {
            let outcome = charge(&once, dir.path()).await;
            match (&outcome, known, expired) {
                (Ok(Outcome::Succeeded(output)), true, _) => assert_eq!(&output[..], b"charged"),
                (Err(NotRun::Running { .. }), false, false) | (Ok(Outcome::Unknown), false, true) => {}
                _ => panic!("{point}, expired {expired}: {outcome:?}"),
            }
            clock.advance_ms(LEASE_MS);
        }
        assert_eq!(charges(dir.path()), made, "{point}");
    }
}
