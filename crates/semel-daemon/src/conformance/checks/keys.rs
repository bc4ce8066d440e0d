//! The key's header: its forms, and what is no key.

use http::StatusCode;

use super::{ended, runs};
use crate::conformance::bench::{Bench, Form};
use crate::conformance::report::{Check, Finding, Level};

const FORMS: Check = Check {
    id: "quoted-and-bare",
    level: Level::Recommended,
    title: "a key in double quotes and the same key bare name one record",
    fix: "Decode the header as a Structured Field String and take a bare token for the same; or refuse one of the two.",
};
const MISSING: Check = Check {
    id: "key-missing",
    level: Level::Required,
    title: "without a key: 400, and nothing runs",
    fix: "Answer 400 where a key is required; where it is not, say --key-optional.",
};
const EMPTY: Check = Check {
    id: "key-empty",
    level: Level::Required,
    title: "an empty key: 400, and nothing runs",
    fix: "Refuse it before anything else; it is a fault of the client, not a request without a key.",
};
const TWICE: Check = Check {
    id: "key-twice",
    level: Level::Required,
    title: "two keys in one request: 400, and nothing runs",
    fix: "Count the lines of the header; never take the first, the last or their concatenation.",
};
const LONG: Check = Check {
    id: "key-long",
    level: Level::Required,
    title: "a key of 5000 bytes is refused, or kept whole",
    fix: "Limit keys (255 bytes is common) and answer 400; never cut them.",
};
const NON_ASCII: Check = Check {
    id: "key-non-ascii",
    level: Level::Recommended,
    title: "a key with bytes above 127: 400, and nothing runs",
    fix: "Refuse it: a Structured Field String is ASCII, and stores fold or replace other bytes.",
};
const STILL_GOOD: Check = Check {
    id: "after-refusals",
    level: Level::Required,
    title: "after all these a valid key works",
    fix: "Refuse before anything is stored.",
};

#[cfg(test)]
pub(super) const CHECKS: &[&Check] = &[&FORMS, &MISSING, &EMPTY, &TWICE, &LONG, &NON_ASCII, &STILL_GOOD];

pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let mut findings = vec![ended(&FORMS, forms(bench).await)];
    let missing = ended(&MISSING, refused(bench, &MISSING, Vec::new()).await);
    findings.push(if bench.options.key_optional {
        MISSING.not_checked("--key-optional").at(Level::Informative)
    } else {
        missing
    });
    findings.push(ended(&EMPTY, refused(bench, &EMPTY, vec![Vec::new()]).await));
    let two = vec![bench.written(&bench.new_key()), bench.written(&bench.new_key())];
    findings.push(ended(&TWICE, refused(bench, &TWICE, two).await));
    findings.push(ended(&LONG, long(bench).await));
    let non_ascii = [bench.new_key().as_bytes(), b"\xc3\xa9\xff"].concat();
    let written = match bench.form {
        Form::Bare => non_ascii,
        Form::Quoted => [b"\"", &non_ascii[..], b"\""].concat(),
    };
    findings.push(ended(&NON_ASCII, refused(bench, &NON_ASCII, vec![written]).await));
    findings.push(ended(&STILL_GOOD, still_good(bench).await));
    findings
}

/// Sends what is no single key: it should be answered 400 and not run.
async fn refused(bench: &Bench, check: &'static Check, keys: Vec<Vec<u8>>) -> Result<Finding, String> {
    let before = bench.count().await?;
    let answer = bench.send(&bench.ask_raw(keys)).await?;
    let ran = bench.runs_since(before).await?.unwrap_or(0);
    let status = answer.status;
    Ok(match status {
        StatusCode::BAD_REQUEST if ran == 0 => check.passed("400"),
        _ if status.is_success() => check.failed(format!("it ran ({})", status.as_u16())),
        _ if ran > 0 => check.failed(format!("{} after {}", status.as_u16(), runs(ran))),
        _ => check.failed(format!("{} instead of 400", status.as_u16())),
    })
}

async fn long(bench: &Bench) -> Result<Finding, String> {
    let ask = bench.ask(&format!("{}{}", "k".repeat(4_968), bench.new_key()));
    let answer = bench.send(&ask).await?;
    let status = answer.status.as_u16();
    if matches!(status, 400 | 413 | 431) {
        return Ok(LONG.passed(status.to_string()));
    }
    if !answer.status.is_success() {
        return Ok(LONG.failed(format!("{status} instead of 400")));
    }
    let again = bench.send_to_the_end(&ask).await?;
    if !bench.same_run(&answer, &again) {
        return Ok(LONG.failed("it ran, and again on its retry"));
    }
    // Cut keys meet each other.
    let other = bench.ask(&format!("{}{}", "k".repeat(4_968), bench.new_key()));
    let other = bench.send(&other).await?;
    Ok(if bench.same_run(&answer, &other) {
        LONG.failed("another key with the same beginning got its answer")
    } else {
        LONG.passed("kept whole")
    })
}

async fn forms(bench: &Bench) -> Result<Finding, String> {
    let key = bench.new_key();
    let (bare, quoted) = (key.as_bytes().to_vec(), format!("\"{key}\"").into_bytes());
    let (one, other, word) = match bench.form {
        Form::Bare => (bare, quoted, "quoted"),
        Form::Quoted => (quoted, bare, "bare"),
    };
    let first = bench.send(&bench.ask_raw(vec![one])).await?;
    let second = bench.send_to_the_end(&bench.ask_raw(vec![other])).await?;
    Ok(if bench.same_run(&first, &second) {
        FORMS.passed("one record")
    } else if second.status.is_client_error() {
        FORMS.passed(format!("{word} keys are refused ({})", second.status.as_u16()))
    } else {
        FORMS.failed("two records: a client that changes how it writes keys runs its operations again")
    })
}

async fn still_good(bench: &Bench) -> Result<Finding, String> {
    let ask = bench.ask(&bench.new_key());
    let (first, again) = (bench.send(&ask).await?, bench.send_to_the_end(&ask).await?);
    let good = first.status.is_success() && bench.same_run(&first, &again);
    let found = format!("{}, then {}", first.status.as_u16(), again.status.as_u16());
    Ok(STILL_GOOD.judged(good, found))
}
