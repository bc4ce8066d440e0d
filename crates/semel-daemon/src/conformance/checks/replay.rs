//! The same request again, when the first has ended.

use std::collections::BTreeSet;

use http::header::{HeaderName, SET_COOKIE};
use semel_core::wire as names;

use super::{ended, runs};
use crate::conformance::bench::{Bench, excerpt};
use crate::conformance::report::{Check, Finding, Level};
use crate::conformance::wire::Answer;

const REPLAY: Check = Check {
    id: "replay",
    level: Level::Required,
    title: "the same request again gets the first answer and does not run",
    fix: "Store status, headers and body under the key when the operation ends, and answer from the record.",
};
const MARKED: Check = Check {
    id: "replay-marked",
    level: Level::Recommended,
    title: "a replayed answer is marked as one",
    fix: "Add Idempotent-Replayed: true to answers from the record, and to no others.",
};
const HEADERS: Check = Check {
    id: "replay-headers",
    level: Level::Required,
    title: "Location, ETag, Content-* and others are the same on replay",
    fix: "Store the headers with the answer; leave out those of the connection, of the moment and of credentials only.",
};
const LINES: Check = Check {
    id: "replay-header-lines",
    level: Level::Required,
    title: "a header that came in several lines comes in the same lines again",
    fix: "Store headers as a list of lines, not as a map.",
};
const BYTES: Check = Check {
    id: "replay-header-bytes",
    level: Level::Required,
    title: "a header value with bytes above 127 comes back unchanged",
    fix: "Store header values as bytes.",
};
const COOKIES: Check = Check {
    id: "replay-cookies",
    level: Level::Recommended,
    title: "Set-Cookie is not replayed",
    fix: "Leave Set-Cookie out of the record: a stored session is handed out for as long as the key is kept.",
};

pub(super) const CHECKS: &[&Check] = &[&REPLAY, &MARKED, &HEADERS, &LINES, &BYTES, &COOKIES];

pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let (first, again, finding) = match twice(bench).await {
        Ok(ended) => ended,
        Err(why) => return vec![REPLAY.failed(why)],
    };
    let replayed = bench.same_run(&first, &again);
    let mut findings = vec![finding];
    if replayed {
        findings.extend([
            marked(&first, &again),
            headers(&first, &again),
            lines(&first, &again),
            bytes(&first, &again),
            cookies(&first, &again),
        ]);
    } else {
        let rest = CHECKS[1..].iter();
        findings.extend(rest.map(|check| check.not_checked("nothing was replayed")));
    }
    findings
}

async fn twice(bench: &Bench) -> Result<(Answer, Answer, Finding), String> {
    let ask = bench.ask(&bench.new_key());
    let before = bench.count().await?;
    let first = bench.send(&ask).await?;
    let again = bench.send_to_the_end(&ask).await?;
    let ran = bench.runs_since(before).await?;
    let counted = ran.map_or_else(String::new, |ran| format!(", {}", runs(ran)));
    let statuses = format!("{}, then {}", first.status.as_u16(), again.status.as_u16());
    let finding = if ran.is_some_and(|ran| ran != 1) {
        REPLAY.failed(format!("{statuses}{counted}"))
    } else if bench.same_run(&first, &again) {
        let exact = bench.options.run_pointer.is_none() || first.body == again.body;
        let note = if exact {
            ""
        } else {
            ", another body with the same run"
        };
        REPLAY.passed(format!("{statuses}{counted}{note}"))
    } else {
        let again = excerpt(&again.body);
        REPLAY.failed(format!(
            "{statuses}{counted}; the second answer is not the first: {again}"
        ))
    };
    Ok((first, again, ended(&REPLAY, Ok(finding))))
}

fn marked(first: &Answer, again: &Answer) -> Finding {
    let marker = |answer: &Answer| {
        let mut names = answer.headers.keys();
        names.find(|name| name.as_str().contains("replay")).cloned()
    };
    match (marker(first), marker(again)) {
        (None, Some(name)) => MARKED.passed(name.to_string()),
        (None, None) => MARKED.failed("no header says that the answer was stored"),
        (Some(name), Some(_)) if first.headers.get(&name) != again.headers.get(&name) => {
            MARKED.passed(format!("{name} has another value"))
        }
        (Some(name), _) => MARKED.failed(format!("the first answer has {name}, too")),
    }
}

/// Headers that a replay makes anew.
fn is_of_the_moment(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-connection"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "via"
            | "date"
            | "age"
            | "server"
            | "set-cookie"
            | "www-authenticate"
            | "alt-svc"
            | "content-length"
            | "retry-after"
            | "server-timing"
            | "traceparent"
            | "tracestate"
            | names::OUTCOME
            | names::RETAINED_UNTIL
            | names::GUARANTEE
    ) || ["ratelimit", "x-ratelimit", "access-control-"]
        .iter()
        .any(|start| name.starts_with(start))
        || ["request-id", "correlation-id", "trace-id", "runtime"]
            .iter()
            .any(|end| name.ends_with(end))
        || name.contains("replay")
}

fn all_of<'a>(answer: &'a Answer, name: &HeaderName) -> Vec<&'a [u8]> {
    answer
        .headers
        .get_all(name)
        .iter()
        .map(http::HeaderValue::as_bytes)
        .collect()
}

fn kept(answer: &Answer) -> BTreeSet<&str> {
    let names = answer.headers.keys().filter(|name| !is_of_the_moment(name));
    names.map(HeaderName::as_str).collect()
}

/// Names whose lines differ, of those that `which` takes.
fn differing(first: &Answer, again: &Answer, which: impl Fn(&[&[u8]]) -> bool) -> (usize, Vec<String>) {
    let mut seen = 0;
    let mut bad = Vec::new();
    for name in kept(first) {
        let Ok(name) = name.parse::<HeaderName>() else {
            continue;
        };
        let lines = all_of(first, &name);
        if which(&lines) {
            seen += 1;
            if lines != all_of(again, &name) {
                bad.push(name.to_string());
            }
        }
    }
    (seen, bad)
}

fn headers(first: &Answer, again: &Answer) -> Finding {
    let (seen, bad) = differing(first, again, |_| true);
    let found = if bad.is_empty() {
        format!("{seen} headers")
    } else {
        format!("lost or changed: {}", bad.join(", "))
    };
    HEADERS.judged(bad.is_empty(), found)
}

fn lines(first: &Answer, again: &Answer) -> Finding {
    match differing(first, again, |lines| lines.len() > 1) {
        (0, _) => LINES.not_checked("no header of the answer came twice"),
        (_, bad) if bad.is_empty() => LINES.passed("same lines in the same order"),
        (_, bad) => LINES.failed(format!("lost or changed: {}", bad.join(", "))),
    }
}

fn bytes(first: &Answer, again: &Answer) -> Finding {
    let high = |lines: &[&[u8]]| lines.iter().any(|line| !line.is_ascii());
    match differing(first, again, high) {
        (0, _) => BYTES.not_checked("no header of the answer has such a byte"),
        (_, bad) if bad.is_empty() => BYTES.passed("unchanged"),
        (_, bad) => BYTES.failed(format!("lost or changed: {}", bad.join(", "))),
    }
}

fn cookies(first: &Answer, again: &Answer) -> Finding {
    let count = |answer: &Answer| answer.headers.get_all(SET_COOKIE).iter().count();
    match (count(first), count(again)) {
        (0, _) => COOKIES.not_checked("the answer sets no cookie"),
        (sent, again) => COOKIES.judged(again == 0, format!("{again} of {sent} replayed")),
    }
}
