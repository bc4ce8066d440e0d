//! How refusals are told, and what a Semel service says beyond the draft.

use semel_core::wire as names;
use serde_json::Value;

use super::ended;
use crate::conformance::bench::Bench;
use crate::conformance::report::{Check, Finding, Level};
use crate::conformance::wire::{Answer, Ask};

const PROBLEM: Check = Check {
    id: "problem-details",
    level: Level::Recommended,
    title: "refusals are problem details with a type",
    fix: "Answer application/problem+json (RFC 9457) with a stable type that programs can tell apart.",
};
const OUTCOME: Check = Check {
    id: "semel-outcome",
    level: Level::Informative,
    title: "Semel-Outcome says what is known of the operation",
    fix: "Put Semel's layer or gateway in front, or send the header.",
};
const GUARANTEE: Check = Check {
    id: "semel-guarantee",
    level: Level::Informative,
    title: "Semel-Guarantee says how strong the promise is",
    fix: "Put Semel's layer or gateway in front, or send the header.",
};
const WINDOW: Check = Check {
    id: "window-told",
    level: Level::Informative,
    title: "the answer says for how long it is kept",
    fix: "Say it in Semel-Retained-Until, or in the documentation: clients must know until when a retry is safe.",
};

#[cfg(test)]
pub(super) const CHECKS: &[&Check] = &[&PROBLEM, &OUTCOME, &GUARANTEE, &WINDOW];

pub(super) async fn all(bench: &Bench) -> Vec<Finding> {
    let (first, again, refusals) = match ask(bench).await {
        Ok(answers) => answers,
        Err(why) => return vec![ended(&PROBLEM, Err(why))],
    };
    vec![
        problem(&refusals),
        outcome(&first, &again, &refusals),
        told(&GUARANTEE, names::GUARANTEE, &again),
        told(&WINDOW, names::RETAINED_UNTIL, &again),
    ]
}

/// A request, the same again, and what is refused: no key in two lines, another body.
async fn ask(bench: &Bench) -> Result<(Answer, Answer, Vec<(&'static str, Answer)>), String> {
    let ask = bench.ask(&bench.new_key());
    let first = bench.send(&ask).await?;
    let again = bench.send_to_the_end(&ask).await?;
    let two = bench.ask_raw(vec![
        bench.written(&bench.new_key()),
        bench.written(&bench.new_key()),
    ]);
    let other = Ask {
        body: bench.options.other_body.clone(),
        ..ask
    };
    let refusals = vec![
        ("two keys", bench.send(&two).await?),
        ("other body", bench.send(&other).await?),
    ];
    Ok((first, again, refusals))
}

fn problem(refusals: &[(&'static str, Answer)]) -> Finding {
    let refused: Vec<_> = refusals
        .iter()
        .filter(|(_, answer)| answer.status.is_client_error())
        .collect();
    if refused.is_empty() {
        return PROBLEM.not_checked("nothing was refused");
    }
    let mut types = Vec::new();
    for (what, answer) in refused {
        let media = answer.header("content-type").unwrap_or("no type");
        let json: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let named = json["type"]
            .as_str()
            .filter(|name| !name.is_empty() && *name != "about:blank");
        match named {
            Some(name) if media.starts_with("application/problem+json") => types.push(name.to_owned()),
            _ => return PROBLEM.failed(format!("{what}: {} with {media}", answer.status.as_u16())),
        }
    }
    PROBLEM.passed(types.join(", "))
}

fn outcome(first: &Answer, again: &Answer, refusals: &[(&'static str, Answer)]) -> Finding {
    let word = |answer: &Answer| answer.header(names::OUTCOME).unwrap_or("none").to_owned();
    let words: Vec<String> = [first, again]
        .into_iter()
        .chain(refusals.iter().map(|(_, answer)| answer))
        .map(word)
        .collect();
    if words.iter().all(|word| word == "none") {
        return OUTCOME.not_checked("not sent: no Semel service");
    }
    let good = words == ["succeeded", "succeeded", "refused", "mismatch"];
    OUTCOME.judged(good, words.join(", "))
}

fn told(check: &'static Check, name: &str, answer: &Answer) -> Finding {
    match answer.header(name) {
        Some(value) => check.passed(value.to_owned()),
        None => check.not_checked("not sent: no Semel service"),
    }
}
