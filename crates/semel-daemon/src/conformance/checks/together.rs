//! Duplicates while the first is at work, and clients that leave.

use http::StatusCode;
use http::header::RETRY_AFTER;

use super::{ended, runs};
use crate::conformance::bench::{Bench, Leave, is_running};
use crate::conformance::report::{Check, Finding, Level};
use crate::conformance::wire::Answer;

const BURST: Check = Check {
    id: "burst",
    level: Level::Required,
    title: "equal requests at the same moment run once",
    fix: "Claim the key in one atomic step (an insert that fails for the second, one script); never look first and write then.",
};
const RUNNING: Check = Check {
    id: "running",
    level: Level::Required,
    title: "a duplicate that comes while the first runs waits for its answer or gets 409",
    fix: "Write the claim before the operation begins, and answer 409 (or wait) while it is there.",
};
const RUNNING_RETRY_AFTER: Check = Check {
    id: "running-retry-after",
    level: Level::Recommended,
    title: "the 409 of a running request says when to come again",
    fix: "Add Retry-After to it, or let the duplicate wait.",
};
const UNRELATED: Check = Check {
    id: "unrelated",
    level: Level::Required,
    title: "another key does not wait for a slow one",
    fix: "Lock the key, not the table, the user or the process.",
};
const GONE: Check = Check {
    id: "client-gone",
    level: Level::Required,
    title: "a client that leaves in the middle and comes again gets the one run's answer",
    fix: "Let the operation and its record outlive the connection (a task of its own), and keep the claim until it ends.",
};
const HALF: Check = Check {
    id: "client-half-closed",
    level: Level::Required,
    title: "a client that closes its sending side in the middle causes no second run",
    fix: "Do not take the end of the client's stream for the end of its interest; let the operation outlive the connection.",
};
const BROKEN_BODY: Check = Check {
    id: "broken-body",
    level: Level::Required,
    title: "a request whose body breaks off does not run and does not use up the key",
    fix: "Claim the key when the whole body is there.",
};

#[cfg(test)]
pub(super) const CHECKS: &[&Check] = &[
    &BURST,
    &RUNNING,
    &RUNNING_RETRY_AFTER,
    &UNRELATED,
    &GONE,
    &HALF,
    &BROKEN_BODY,
];

/// Bursts that are tried: a race shows itself now and then.
const BURSTS: usize = 5;
const NO_SLOW_PATH: &str = "needs --slow-path";
const NO_COUNT: &str = "needs --slow-path and --count-path";

pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let mut findings = vec![ended(&BURST, burst(bench).await)];
    findings.extend(running(bench).await.unwrap_or_else(|why| {
        vec![
            RUNNING.failed(why),
            RUNNING_RETRY_AFTER.not_checked("see running"),
        ]
    }));
    findings.push(ended(&UNRELATED, unrelated(bench).await));
    findings.push(ended(&GONE, left(bench, &GONE, Leave::Close).await));
    findings.push(ended(&HALF, left(bench, &HALF, Leave::HalfClose).await));
    findings.push(ended(&BROKEN_BODY, broken_body(bench).await));
    findings
}

async fn burst(bench: &Bench) -> Result<Finding, String> {
    let (mut most, mut statuses, mut unlike) = (0, std::collections::BTreeMap::new(), 0);
    for _ in 0..BURSTS {
        let key = bench.new_key();
        // The slow operation leaves more time for a race.
        let ask = bench.ask_slow(&key).unwrap_or_else(|| bench.ask(&key));
        let before = bench.count().await?;
        let answers = bench.burst(&ask).await?;
        let last = bench.send_to_the_end(&ask).await?;
        let mut marks = std::collections::BTreeSet::new();
        for answer in answers.iter().flatten().chain([&last]) {
            if answer.status.is_success() {
                marks.insert(bench.mark(answer)?);
            }
        }
        for answer in &answers {
            let word = match answer {
                Ok(answer) => answer.status.as_u16().to_string(),
                Err(_) => "no answer".to_owned(),
            };
            unlike += usize::from(!answer.as_ref().is_ok_and(may_be_told));
            *statuses.entry(word).or_insert(0) += 1;
        }
        let counted = bench.runs_since(before).await?.unwrap_or(0);
        most = most.max(counted).max(marks.len() as u64);
    }
    let statuses: Vec<String> = statuses.iter().map(|(word, n)| format!("{n} × {word}")).collect();
    let found = format!(
        "{BURSTS} bursts of {}: at most {} each; {}",
        bench.options.burst,
        runs(most),
        statuses.join(", ")
    );
    Ok(BURST.judged(most == 1 && unlike == 0, found))
}

/// What a duplicate of a burst may be told: the answer, or to come again.
fn may_be_told(answer: &Answer) -> bool {
    answer.status.is_success()
        || matches!(answer.status.as_u16(), 409 | 425 | 429)
        || (answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.headers.contains_key(RETRY_AFTER))
}

async fn running(bench: &Bench) -> Result<Vec<Finding>, String> {
    let Some(ask) = bench.ask_slow(&bench.new_key()) else {
        return Ok(vec![
            RUNNING.not_checked(NO_SLOW_PATH),
            RUNNING_RETRY_AFTER.not_checked(NO_SLOW_PATH),
        ]);
    };
    let before = bench.count().await?;
    let first = bench.send(&ask);
    let duplicate = async {
        bench.begun(before).await?;
        bench.send(&ask).await
    };
    let (first, duplicate) = futures_util::future::join(first, duplicate).await;
    let (first, duplicate) = (first?, duplicate?);
    let last = bench.send_to_the_end(&ask).await?;
    let ran = bench.runs_since(before).await?.unwrap_or(1);
    let one = bench.same_run(&first, &last) && ran == 1;
    let told = duplicate.status.as_u16();
    let (finding, retry_after) = if bench.same_run(&first, &duplicate) {
        (
            RUNNING.judged(one, format!("the duplicate waited and got the answer ({told})")),
            RUNNING_RETRY_AFTER.passed("it waits instead"),
        )
    } else if is_running(&duplicate) {
        let after = duplicate.header(RETRY_AFTER.as_str());
        let text = after.map_or_else(
            || "no Retry-After".to_owned(),
            |after| format!("Retry-After: {after}"),
        );
        (
            RUNNING.judged(one, format!("the duplicate was told {told}, then {}", runs(ran))),
            RUNNING_RETRY_AFTER.judged(after.is_some(), text),
        )
    } else {
        (
            RUNNING.failed(format!(
                "the duplicate was answered {told} by another run or an error"
            )),
            RUNNING_RETRY_AFTER.not_checked("see running"),
        )
    };
    Ok(vec![finding, retry_after])
}

async fn unrelated(bench: &Bench) -> Result<Finding, String> {
    // On a busy machine the quick one may be slow by chance: one clear case is enough.
    for _ in 0..UNRELATED_TRIALS {
        let Some(slow) = bench.ask_slow(&bench.new_key()) else {
            return Ok(UNRELATED.not_checked(NO_SLOW_PATH));
        };
        let before = bench.count().await?;
        let slow = bench.send(&slow);
        tokio::pin!(slow);
        let quick = async {
            bench.begun(before).await?;
            bench.send(&bench.ask(&bench.new_key())).await
        };
        tokio::select! {
            biased;
            answer = &mut slow => {
                answer?;
            }
            answer = quick => {
                let status = answer?.status;
                // Who waited for one lock is answered together with the slow one.
                let pending = tokio::time::timeout(CLEARLY_BEFORE, &mut slow).await.is_err();
                if pending {
                    slow.await?;
                    let found = format!("answered {} before the slow one", status.as_u16());
                    return Ok(UNRELATED.judged(status.is_success(), found));
                }
            }
        }
    }
    Ok(UNRELATED
        .failed("it was answered with the slow one (or --slow-path is not slow: half a second or more)"))
}

const UNRELATED_TRIALS: usize = 3;
const CLEARLY_BEFORE: std::time::Duration = std::time::Duration::from_millis(100);

async fn left(bench: &Bench, check: &'static Check, leave: Leave) -> Result<Finding, String> {
    let Some(ask) = bench
        .ask_slow(&bench.new_key())
        .filter(|_| bench.options.count_path.is_some())
    else {
        return Ok(check.not_checked(NO_COUNT));
    };
    let before = bench.count().await?;
    let held = bench.leave(&ask, leave).await?;
    let again = bench.send_to_the_end(&ask).await?;
    let last = bench.send_to_the_end(&ask).await?;
    let ran = bench.runs_since(before).await?.unwrap_or(0);
    drop(held);
    let good = ran == 1 && again.status.is_success() && bench.same_run(&again, &last);
    let found = format!("{}, the retry was answered {}", runs(ran), again.status.as_u16());
    Ok(check.judged(good, found))
}

async fn broken_body(bench: &Bench) -> Result<Finding, String> {
    let ask = bench.ask(&bench.new_key());
    if ask.body.len() < 2 {
        return Ok(BROKEN_BODY.not_checked("the body is too short to break off"));
    }
    let before = bench.count().await?;
    bench.break_off(&ask).await?;
    let whole = bench.send_to_the_end(&ask).await?;
    let ran = bench.runs_since(before).await?;
    let counted = ran.map_or_else(String::new, |ran| format!(", {}", runs(ran)));
    let good = whole.status.is_success() && ran.is_none_or(|ran| ran == 1);
    Ok(BROKEN_BODY.judged(
        good,
        format!(
            "the whole request with its key was answered {}{counted}",
            whole.status.as_u16()
        ),
    ))
}
