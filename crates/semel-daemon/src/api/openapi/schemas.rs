//! Bodies as schemas, with the limits of the code.

use semel_core::claim::Keep;
use semel_core::limits::{
    KEY_ID_BYTES_MAX, LEASE_MS_MAX, OUTCOME_BYTES_MAX, RETENTION_MS_MAX, SCOPE_BYTES_MAX,
};
use serde_json::{Map, Value, json};

use super::super::problem::Kind;
use super::super::request::{
    BY_BYTES_MAX, ISSUED_MS_DEFAULT, ISSUED_MS_MAX, ITEMS_MAX, LEASE_MS_DEFAULT, PAGE_DEFAULT, PAGE_MAX,
    PRINCIPAL_BYTES_MAX, WAIT_MS_MAX, WHY_BYTES_MAX,
};
use super::super::routes::CLAIM;
use super::{problems, reference};
use crate::config::read::NAME_BYTES_MAX;

/// Base64 of RFC 4648, section 4, with padding and without stray bits.
const BASE64: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// Every schema by name.
pub(super) fn all() -> Map<String, Value> {
    let named: Vec<(&str, Value)> = [requests(), replies()].concat();
    named
        .into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

fn octets(bytes_min: usize, bytes_max: usize, about: &str) -> Value {
    let chars = |bytes: usize| bytes.div_ceil(3) * 4;
    json!({
        "description": format!("{about} {bytes_min} to {bytes_max} bytes: text, which stands for its UTF-8, or base64."),
        "oneOf": [
            { "type": "string", "minLength": bytes_min, "maxLength": bytes_max },
            object(
                json!({ "base64": {
                    "type": "string",
                    "contentEncoding": "base64",
                    "pattern": BASE64,
                    "minLength": chars(bytes_min),
                    "maxLength": chars(bytes_max),
                }}),
                &["base64"],
            ),
        ],
    })
}

pub(super) fn nonce(about: &str) -> Value {
    json!({ "type": "string", "pattern": "^[0-9a-fA-F]{32}$", "description": about })
}

pub(super) fn token(about: &str) -> Value {
    json!({
        "type": "integer",
        "format": "int64",
        "minimum": i64::MIN,
        "maximum": i64::MAX,
        "description": about,
    })
}

pub(super) fn moment(about: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": about })
}

fn ms(min: i64, max: i64, default: Option<i64>, about: &str) -> Value {
    let mut schema = json!({ "type": "integer", "minimum": min, "maximum": max, "description": about });
    if let (Some(default), Some(members)) = (default, schema.as_object_mut()) {
        members.insert("default".to_owned(), default.into());
    }
    schema
}

fn lease_ms() -> Value {
    let about = "Milliseconds, by the store's clock, for which a dead owner blocks the key.";
    ms(1, LEASE_MS_MAX, Some(LEASE_MS_DEFAULT), about)
}

/// The properties of several schemas together.
fn with(properties: &[Value]) -> Value {
    let maps = properties.iter().filter_map(Value::as_object);
    Value::Object(
        maps.flatten()
            .map(|(name, schema)| (name.clone(), schema.clone()))
            .collect(),
    )
}

fn key() -> Value {
    json!({ "scope": reference("Scope"), "id": reference("Id") })
}

fn lease() -> Value {
    json!({
        "token": token("The fencing token that the claim was granted with."),
        "nonce": nonce("The nonce that the claim was granted with."),
    })
}

fn kept() -> Value {
    let keep = Keep::default();
    json!({
        "retention_ms": ms(1, RETENTION_MS_MAX, Some(keep.retention_ms), "How long the outcome is kept, from now."),
        "tombstone_ms": ms(
            0, RETENTION_MS_MAX, Some(keep.tombstone_ms), "How long it is known after that that it was done.",
        ),
    })
}

/// `output` belongs to some words of `field` only.
fn output_only_with(mut schema: Value, field: &str, with: &[&str], without: &[&str]) -> Value {
    if let Some(members) = schema.as_object_mut() {
        let one_of = json!([
            { "properties": { field: { "enum": with } } },
            { "properties": { field: { "enum": without }, "output": false } },
        ]);
        members.insert("oneOf".to_owned(), one_of);
    }
    schema
}

fn output() -> Value {
    json!({ "output": octets(0, OUTCOME_BYTES_MAX, "What later claims get; empty where it is left out.") })
}

fn claim(wait: bool) -> Value {
    let mut properties = with(&[
        key(),
        json!({
            "input": {
                "description": "What is asked for; hashed, never stored. The same key with another input is a mismatch.",
                "oneOf": [
                    { "type": "string" },
                    object(
                        json!({ "base64": {
                            "type": "string", "contentEncoding": "base64", "pattern": BASE64,
                        }}),
                        &["base64"],
                    ),
                ],
            },
            "fingerprint": {
                "type": "string",
                "pattern": "^[0-9a-fA-F]{66}$",
                "description": "In place of `input`, its fingerprint made by a library: a version byte and 32 bytes of hash.",
            },
            "nonce": nonce("128 random bits, fresh for each attempt; drawn by the daemon where it is left out."),
            "lease_ms": lease_ms(),
            "owner_lost": {
                "type": "string",
                "enum": ["hold", "rerun"],
                "default": "hold",
                "description": "When the lease ends without a completion: `hold` makes the key unknown until somebody \
                                settles it, `rerun` grants it to the next claim. Stored with the claim.",
            },
        }),
    ]);
    if wait && let Some(members) = properties.as_object_mut() {
        let max = i64::try_from(WAIT_MS_MAX).unwrap_or(i64::MAX);
        let about = "How long to wait while somebody else runs it; at most `wait_ms_max` of [api].";
        members.insert("wait_ms".to_owned(), ms(0, max, Some(0), about));
        let about = "The id must have been issued for this principal.";
        members.insert("principal".to_owned(), octets(1, PRINCIPAL_BYTES_MAX, about));
    }
    let mut schema = object(properties, &["scope", "id"]);
    if let Some(members) = schema.as_object_mut() {
        let either = json!([{ "required": ["input"] }, { "required": ["fingerprint"] }]);
        members.insert("oneOf".to_owned(), either);
    }
    schema
}

fn complete() -> Value {
    let outcome = json!({ "outcome": {
        "type": "string",
        "enum": ["succeeded", "refused", "forgotten"],
        "description": "`refused`: it is certain that nothing happened. `forgotten`: it happened, and the output is kept \
                        elsewhere.",
    }});
    let schema = object(
        with(&[key(), lease(), outcome, output(), kept()]),
        &["scope", "id", "token", "nonce", "outcome"],
    );
    output_only_with(schema, "outcome", &["succeeded", "refused"], &["forgotten"])
}

fn settle() -> Value {
    let found = json!({
        "token": token("The run that was judged, as the problem or the record says."),
        "verdict": { "type": "string", "enum": ["succeeded", "refused", "forgotten", "did_not_happen"] },
        "by": { "type": "string", "minLength": 1, "maxLength": BY_BYTES_MAX, "description": "Who; in bytes." },
        "why": {
            "type": "string", "minLength": 1, "maxLength": WHY_BYTES_MAX,
            "description": "How that was found out; in bytes.",
        },
    });
    let schema = object(
        with(&[key(), found, output(), kept()]),
        &["scope", "id", "token", "verdict", "by", "why"],
    );
    output_only_with(
        schema,
        "verdict",
        &["succeeded", "refused"],
        &["forgotten", "did_not_happen"],
    )
}

fn close_scope() -> Value {
    let closing = json!({
        "scope": reference("Scope"),
        "by": { "type": "string", "minLength": 1, "maxLength": BY_BYTES_MAX, "description": "Who; in bytes." },
        "why": { "type": "string", "minLength": 1, "maxLength": WHY_BYTES_MAX, "description": "Why; in bytes." },
        "limit": { "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT },
        "page": { "type": "string", "description": "`next` of the request before, of the same scope." },
    });
    object(with(&[closing, kept()]), &["scope", "by", "why"])
}

fn many(field: &str, item: &str) -> Value {
    let items = json!({ field: {
        "type": "array", "minItems": 1, "maxItems": ITEMS_MAX, "items": reference(item),
    }});
    object(items, &[field])
}

/// Either a scope, or a gateway with its host.
fn issue_of(mut schema: Value) -> Value {
    if let Some(members) = schema.as_object_mut() {
        let none_of = |names: &[&str]| {
            let each: Vec<Value> = names.iter().map(|name| json!({ "required": [name] })).collect();
            json!({ "not": { "anyOf": each } })
        };
        let scope = json!({ "required": ["scope"], "allOf": [none_of(&["gateway", "host"])] });
        let gateway = json!({ "required": ["gateway"], "allOf": [none_of(&["scope"])] });
        members.insert("oneOf".to_owned(), json!([scope, gateway]));
    }
    schema
}

fn requests() -> Vec<(&'static str, Value)> {
    let release = json!({
        "nonce": nonce("The claim's nonce."),
        "token": token("The claim's token, when its answer came."),
    });
    let list = json!({
        "scope": reference("Scope"),
        "state": { "type": "string", "enum": ["claimed", "unknown", "done", "tombstone"] },
        "limit": { "type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT },
        "page": { "type": "string", "description": "`next` of the page before, of the same query." },
    });
    let issue = json!({
        "scope": reference("Scope"),
        "gateway": octets(1, NAME_BYTES_MAX, "Instead of a scope: the gateway that the key will be sent to, by its name."),
        "host": octets(1, SCOPE_BYTES_MAX, "The host that is asked for, where that gateway has host = \"preserve\"."),
        "principal": octets(1, PRINCIPAL_BYTES_MAX, "Who the id is for, as the service has verified."),
        "good_ms": ms(1, ISSUED_MS_MAX, Some(ISSUED_MS_DEFAULT), "How long it may be used for the first time."),
    });
    let extend = with(&[key(), lease(), json!({ "lease_ms": lease_ms() })]);
    let wait_max = i64::try_from(WAIT_MS_MAX).unwrap_or(i64::MAX);
    let wait = json!({ "wait_ms": ms(0, wait_max, None, "At most `wait_ms_max` of [api] is waited.") });
    vec![
        (
            "Scope",
            octets(
                1,
                SCOPE_BYTES_MAX,
                "Where ids are unique: an API or handler, with its tenant.",
            ),
        ),
        (
            "Id",
            octets(1, KEY_ID_BYTES_MAX, "Names one operation in its scope."),
        ),
        ("Issue", issue_of(object(issue, &["principal"]))),
        ("Claim", claim(true)),
        ("ClaimItem", claim(false)),
        ("ClaimMany", many("claims", "ClaimItem")),
        ("Complete", complete()),
        ("CompleteMany", many("completions", "Complete")),
        ("Extend", object(extend, &["scope", "id", "token", "nonce"])),
        (
            "Release",
            object(with(&[key(), release]), &["scope", "id", "nonce"]),
        ),
        (
            "Abandon",
            object(with(&[key(), lease()]), &["scope", "id", "token", "nonce"]),
        ),
        ("KeyName", object(key(), &["scope", "id"])),
        ("Wait", object(with(&[key(), wait]), &["scope", "id", "wait_ms"])),
        ("List", object(list, &[])),
        ("Settle", settle()),
        ("CloseScope", close_scope()),
    ]
}

fn ended() -> Value {
    json!({
        "outcome": { "type": "string", "enum": ["succeeded", "refused", "forgotten"] },
        "output": octets(0, OUTCOME_BYTES_MAX, "What came of it; not there when it is forgotten."),
    })
}

/// A record in one state.
fn state(name: &str, own: Value, required: &[&str]) -> Value {
    let base = json!({ "state": { "const": name }, "token": token("The token of its last run.") });
    let required = [&["scope", "id", "state", "token"], required].concat();
    object(with(&[key(), base, own]), &required)
}

fn states(output: bool) -> Value {
    let attempt = || json!({ "attempt": { "type": "integer", "minimum": 1 } });
    let claimed = json!({
        "until": moment("When its lease ends, by the store's clock."),
        "owner_lost": { "type": "string", "enum": ["hold", "rerun"] },
    });
    let outcome = json!({ "outcome": { "type": "string", "enum": ["succeeded", "refused", "forgotten"] } });
    let done = with(&[
        if output { ended() } else { outcome },
        json!({
            "output_bytes": { "type": "integer", "minimum": 0, "maximum": OUTCOME_BYTES_MAX },
            "retain_until": moment("Until when the outcome is kept."),
            "tombstone_until": moment("Until when it is known that it was done."),
        }),
    ]);
    let tombstone = json!({ "until": moment("When even this is forgotten.") });
    let of_done = ["outcome", "output_bytes", "retain_until", "tombstone_until"];
    json!({ "oneOf": [
        state("claimed", with(&[attempt(), claimed]), &["until", "owner_lost", "attempt"]),
        state("unknown", attempt(), &["attempt"]),
        state("done", done, &of_done),
        state("tombstone", tombstone, &["until"]),
    ]})
}

/// Answers of a batch: the status and body of each item.
fn items(answers: &[(u16, &str)], own: &[Kind]) -> Value {
    let one = |status: u16, schema: String| {
        object(
            json!({ "status": { "const": status }, "body": reference(&schema) }),
            &["status", "body"],
        )
    };
    let store = [Kind::StoreTrouble, Kind::Away, Kind::ReplyLost];
    let problems = own.iter().chain(&store);
    let answers = answers
        .iter()
        .map(|(status, schema)| one(*status, (*schema).to_owned()));
    let all: Vec<Value> = answers
        .chain(problems.map(|kind| one(kind.row().status, problems::name(*kind))))
        .collect();
    let replies = json!({ "replies": { "type": "array", "items": { "oneOf": all } } });
    object(replies, &["replies"])
}

fn replies() -> Vec<(&'static str, Value)> {
    let granted = json!({
        "result": { "const": "granted" },
        "token": token("Grows with every owner of the key: pass it on to whatever the run writes to."),
        "nonce": nonce("The claim's nonce; it and the token go with every later call."),
        "until": moment("When the lease ends, by the store's clock."),
        "attempt": { "type": "integer", "minimum": 1, "description": "1 for the first owner." },
    });
    let finished = with(&[
        ended(),
        json!({
            "result": { "const": "done" },
            "retain_until": moment("Until when a claim still gets this."),
        }),
    ]);
    let one = |field: &str, about: &str| object(json!({ field: moment(about) }), &[field]);
    let page = json!({
        "keys": { "type": "array", "maxItems": PAGE_MAX, "items": reference("Listed") },
        "next": { "type": "string", "description": "Send it as `page`; not there at the end." },
    });
    let issued = json!({
        "id": { "type": "string", "minLength": 1, "maxLength": KEY_ID_BYTES_MAX },
        "until": moment("Until when it may be used for the first time, by the daemon's clock."),
    });
    let closed = json!({
        "closed": { "type": "integer", "minimum": 0, "description": "Keys of which only a tombstone is left now." },
        "changed": {
            "type": "integer", "minimum": 0,
            "description": "Keys that somebody claimed or ended in between, or whose answer was lost: begin again.",
        },
        "next": { "type": "string", "description": "Send it as `page`; not there at the end of a pass." },
    });
    vec![
        ("Issued", object(issued, &["id", "until"])),
        (
            "Granted",
            object(granted, &["result", "token", "nonce", "until", "attempt"]),
        ),
        (
            "Finished",
            object(finished, &["result", "outcome", "retain_until"]),
        ),
        (
            "ClaimReplies",
            items(
                &[(201, "Granted"), (200, "Finished")],
                &[CLAIM, &[Kind::OutputLeftOut]].concat(),
            ),
        ),
        (
            "CompleteReplies",
            items(&[(200, "RetainUntil")], &[Kind::LeaseLost, Kind::Conflict]),
        ),
        (
            "Until",
            one("until", "When the lease ends, by the store's clock."),
        ),
        (
            "RetainUntil",
            one("retain_until", "Until when the outcome is kept."),
        ),
        ("At", one("at", "By the store's clock.")),
        (
            "Settled",
            json!({ "oneOf": [reference("RetainUntil"), reference("At")] }),
        ),
        ("Record", states(true)),
        ("Listed", states(false)),
        ("Page", object(page, &["keys"])),
        ("ScopeClosed", object(closed, &["closed", "changed"])),
    ]
}
