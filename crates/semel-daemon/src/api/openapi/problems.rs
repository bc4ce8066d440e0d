//! Problems as schemas and responses.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::problem::Kind;
use super::super::routes::{ROUTES, Route};
use super::{kinds_of, outcome_header, reference, schemas};

/// The schema's name of a kind: `key-running` is `ProblemKeyRunning`.
pub(super) fn name(kind: Kind) -> String {
    let words = kind.row().slug.split('-');
    words.fold("Problem".to_owned(), |name, word| {
        let (first, rest) = word.split_at(1);
        name + &first.to_uppercase() + rest
    })
}

/// A schema of every kind that a route may answer.
pub(super) fn all() -> Map<String, Value> {
    let kinds = ROUTES.iter().flat_map(kinds_of);
    kinds.map(|kind| (name(kind), schema(kind))).collect()
}

fn schema(kind: Kind) -> Value {
    let row = kind.row();
    let mut properties = json!({
        "type": { "const": kind.type_uri() },
        "title": { "const": row.title },
        "status": { "const": row.status },
        "detail": { "type": "string", "description": "What happened this time, and what to do." },
        "code": { "const": row.code, "description": "Its page: docs/errors." },
    });
    let mut required = vec!["type", "title", "status", "detail", "code"];
    if let Some(members) = properties.as_object_mut() {
        if let Some(outcome) = row.outcome {
            members.insert("outcome".to_owned(), json!({ "const": outcome }));
            required.push("outcome");
        }
        for member in row.members {
            let (schema, always) = member_of(member);
            members.insert((*member).to_owned(), schema);
            if always {
                required.push(member);
            }
        }
    }
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// A member of its own, and whether it is always there.
fn member_of(member: &str) -> (Value, bool) {
    match member {
        "token" => (schemas::token("The lost owner's token, which settles it."), true),
        "lease_left_ms" => (
            json!({ "type": "integer", "minimum": 0, "description": "Until the other claim's lease ends." }),
            true,
        ),
        "until" => (schemas::moment("When even this is forgotten."), true),
        "nonce" => (
            schemas::nonce("The claim's nonce: send the same claim with it again."),
            false,
        ),
        _ => (
            json!({ "type": "object", "description": "A body that could be read." }),
            false,
        ),
    }
}

/// Every problem of a route, by status.
pub(super) fn responses(route: &Route) -> Map<String, Value> {
    let mut by_status: BTreeMap<u16, Vec<Kind>> = BTreeMap::new();
    for kind in kinds_of(route) {
        by_status.entry(kind.row().status).or_default().push(kind);
    }
    by_status
        .into_iter()
        .map(|(status, kinds)| (status.to_string(), response(&kinds)))
        .collect()
}

fn response(kinds: &[Kind]) -> Value {
    let mut titles: Vec<&str> = kinds.iter().map(|kind| kind.row().title).collect();
    titles.dedup();
    let one = |kind: &Kind| reference(&name(*kind));
    let schema = match kinds {
        [kind] => one(kind),
        kinds => json!({ "oneOf": kinds.iter().map(one).collect::<Vec<_>>() }),
    };
    let mut headers = Map::new();
    if kinds.iter().all(|kind| kind.row().outcome.is_some()) {
        headers.insert("Semel-Outcome".to_owned(), outcome_header());
    }
    if kinds.iter().any(|kind| kind.row().retry_after) {
        let header = json!({
            "description": "Seconds.",
            "required": kinds.iter().all(|kind| kind.row().retry_after),
            "schema": { "type": "integer", "minimum": 1 },
        });
        headers.insert("Retry-After".to_owned(), header);
    }
    if kinds.contains(&Kind::Unauthorized) {
        let header = json!({ "required": true, "schema": { "const": "Bearer" } });
        headers.insert("WWW-Authenticate".to_owned(), header);
    }
    json!({
        "description": titles.join("; "),
        "headers": headers,
        "content": { "application/problem+json": { "schema": schema } },
    })
}
