//! The document and the routes are the same.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::openapi;
use super::super::problem::Kind;
use super::super::routes::{OPENAPI, ROUTES, find};
use super::{World, request};

fn document() -> Value {
    serde_json::from_str(&openapi::text(true)).unwrap()
}

#[tokio::test]
async fn every_route_is_in_the_document_and_every_path_of_it_answers() {
    let document = document();
    let paths = document["paths"].as_object().unwrap();
    let written: BTreeSet<&str> = paths
        .keys()
        .map(String::as_str)
        .filter(|path| *path != OPENAPI)
        .collect();
    let routed: BTreeSet<&str> = ROUTES.iter().map(|route| route.path).collect();
    assert_eq!(written, routed);
    let world = World::new();
    for path in written {
        let operation = path.strip_prefix("/v1/keys/").unwrap();
        let answer = world.send(request(operation, "")).await;
        assert_eq!(answer.problem().1, "SEM0701", "{path} is there and takes a body");
        assert_eq!(
            paths[path].as_object().unwrap().keys().collect::<Vec<_>>(),
            ["post"]
        );
    }
}

#[test]
fn every_reference_leads_somewhere_and_every_schema_is_used() {
    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.insert(target.strip_prefix("#/components/schemas/").unwrap().to_owned());
                }
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    let there: BTreeSet<String> = document["components"]["schemas"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    assert_eq!(found, there);
}

#[test]
fn every_kind_of_problem_is_answered_somewhere_and_has_its_page() {
    let kinds = [
        Kind::Unreadable,
        Kind::TooSlow,
        Kind::TooLarge,
        Kind::NotJson,
        Kind::Unauthorized,
        Kind::Forbidden,
        Kind::Absent,
        Kind::Running,
        Kind::Unknown,
        Kind::Mismatch,
        Kind::Gone,
        Kind::Withdrawn,
        Kind::LeaseLost,
        Kind::Conflict,
        Kind::Full,
        Kind::NotIssued,
        Kind::OutputLeftOut,
        Kind::NoSuchOperation,
        Kind::Away,
        Kind::ReplyLost,
        Kind::Overloaded,
        Kind::StoreTrouble,
    ];
    let text = openapi::text(true);
    for kind in kinds {
        assert!(text.contains(&kind.type_uri()), "{kind:?}");
        assert!(ROUTES.iter().any(|route| route.answers_with(kind)), "{kind:?}");
    }
    assert!(find("/v1/keys/read").unwrap().answers_with(Kind::Absent));
}

#[test]
fn the_document_without_tokens_asks_for_none() {
    let document: Value = serde_json::from_str(&openapi::text(false)).unwrap();
    assert_eq!(document["security"], serde_json::json!([]));
    assert!(document["components"].get("securitySchemes").is_none());
    let text = openapi::text(true);
    assert!(
        text.starts_with("{\n  \"openapi\": \"3.1.0\""),
        "people read its beginning"
    );
}
