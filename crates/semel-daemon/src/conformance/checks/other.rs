//! The same key for something else, or by somebody else.

use http::StatusCode;

use super::ended;
use crate::conformance::bench::{Bench, excerpt};
use crate::conformance::report::{Check, Finding, Level};
use crate::conformance::wire::{Answer, Ask};

const BODY: Check = Check {
    id: "other-body",
    level: Level::Required,
    title: "the same key with another body neither runs nor gets the first answer",
    fix: "Keep a hash of the whole request beside the key and refuse what differs.",
};
const BODY_422: Check = Check {
    id: "other-body-422",
    level: Level::Recommended,
    title: "it is refused with 422",
    fix: "Answer 422, as the draft asks.",
};
const UNTOUCHED: Check = Check {
    id: "first-untouched",
    level: Level::Required,
    title: "after that the first request still gets its answer",
    fix: "Refuse without touching the record.",
};
const PATH: Check = Check {
    id: "other-path",
    level: Level::Required,
    title: "the same key on another path does not get the first answer",
    fix: "Let method and target be a part of what is compared.",
};
const PATH_422: Check = Check {
    id: "other-path-422",
    level: Level::Recommended,
    title: "it is refused with 422",
    fix: "Refuse it: a key that is used twice is a fault of the client, better told than run.",
};
const PRINCIPAL: Check = Check {
    id: "other-principal",
    level: Level::Required,
    title: "the same key of another caller is another operation",
    fix: "Look keys up within the verified caller: tenant and principal, never the token's bytes.",
};

#[cfg(test)]
pub(super) const CHECKS: &[&Check] = &[&BODY, &BODY_422, &UNTOUCHED, &PATH, &PATH_422, &PRINCIPAL];

pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let mut findings = body(bench).await.unwrap_or_else(|why| {
        vec![
            BODY.failed(why),
            BODY_422.not_checked("see other-body"),
            UNTOUCHED.not_checked("see other-body"),
        ]
    });
    findings.extend(
        path(bench)
            .await
            .unwrap_or_else(|why| vec![PATH.failed(why), PATH_422.not_checked("see other-path")]),
    );
    findings.push(ended(&PRINCIPAL, principal(bench).await));
    findings
}

/// How a key's second use came out.
enum Use {
    FirstAnswer,
    Refused(StatusCode),
    Ran(StatusCode),
    Odd(String),
}

async fn used(bench: &Bench, first: &Answer, second: &Ask) -> Result<Use, String> {
    let answer = bench.send(second).await?;
    Ok(if bench.same_run(first, &answer) {
        Use::FirstAnswer
    } else if answer.status.is_client_error() {
        Use::Refused(answer.status)
    } else if answer.status.is_success() {
        Use::Ran(answer.status)
    } else {
        Use::Odd(format!("{} {}", answer.status, excerpt(&answer.body)))
    })
}

async fn body(bench: &Bench) -> Result<Vec<Finding>, String> {
    let ask = bench.ask(&bench.new_key());
    let first = bench.send(&ask).await?;
    let before = bench.count().await?;
    let other = Ask {
        body: bench.options.other_body.clone(),
        ..ask.clone()
    };
    let mut findings = match used(bench, &first, &other).await? {
        Use::Refused(status) => vec![
            BODY.passed(format!("refused, {}", status.as_u16())),
            BODY_422.judged(status == StatusCode::UNPROCESSABLE_ENTITY, status.to_string()),
        ],
        Use::FirstAnswer => vec![
            BODY.failed("it got the first request's answer, as if the first body had been sent again"),
            BODY_422.not_checked("not refused"),
        ],
        Use::Ran(status) => vec![
            BODY.failed(format!("it ran ({})", status.as_u16())),
            BODY_422.not_checked("not refused"),
        ],
        Use::Odd(text) => vec![BODY.failed(text), BODY_422.not_checked("not refused")],
    };
    if bench.runs_since(before).await?.is_some_and(|ran| ran > 0) {
        findings[0] = BODY.failed("it ran");
    }
    let again = bench.send_to_the_end(&ask).await?;
    findings.push(UNTOUCHED.judged(
        bench.same_run(&first, &again),
        format!("answered {}", again.status.as_u16()),
    ));
    Ok(findings)
}

async fn path(bench: &Bench) -> Result<Vec<Finding>, String> {
    let Some(path) = bench.options.other_path.clone() else {
        let why = "needs --other-path";
        return Ok(vec![PATH.not_checked(why), PATH_422.not_checked(why)]);
    };
    let ask = bench.ask(&bench.new_key());
    let first = bench.send(&ask).await?;
    let other = Ask { path, ..ask };
    Ok(match used(bench, &first, &other).await? {
        Use::Refused(status) => vec![
            PATH.passed(format!("refused, {}", status.as_u16())),
            PATH_422.judged(status == StatusCode::UNPROCESSABLE_ENTITY, status.to_string()),
        ],
        Use::FirstAnswer => vec![
            PATH.failed("it got the first request's answer"),
            PATH_422.not_checked("not refused"),
        ],
        Use::Ran(status) => {
            let found = format!("a record of its own ({})", status.as_u16());
            vec![PATH.passed(found.clone()), PATH_422.failed(found)]
        }
        Use::Odd(text) => vec![PATH.failed(text), PATH_422.not_checked("not refused")],
    })
}

async fn principal(bench: &Bench) -> Result<Finding, String> {
    let Some(other) = bench.options.other_principal.clone() else {
        return Ok(PRINCIPAL.not_checked("needs --other-principal"));
    };
    let ask = bench.ask(&bench.new_key());
    let first = bench.send(&ask).await?;
    let other = Ask {
        instead: Some(other),
        ..ask
    };
    Ok(match used(bench, &first, &other).await? {
        Use::FirstAnswer => PRINCIPAL.failed("it got the first caller's answer"),
        Use::Ran(status) => PRINCIPAL.passed(format!("a run of its own ({})", status.as_u16())),
        Use::Refused(status) => PRINCIPAL.failed(format!(
            "refused ({}): somebody else's key, or a wrong --other-principal",
            status.as_u16()
        )),
        Use::Odd(text) => PRINCIPAL.failed(text),
    })
}
