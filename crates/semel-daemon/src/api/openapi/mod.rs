//! The OpenAPI 3.1 document, made from the table of routes, the table of problems and the limits that the code goes by.

mod problems;
mod schemas;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::problem::Kind;
use super::routes::{OPENAPI, ROUTES, Route};

const ABOUT: &str = "Idempotency keys for services in any language: claim a key, do the work, complete it with what came of \
it. Whoever claims it again gets that outcome instead of a second effect.\n\n\
Scopes, ids, inputs and outputs are bytes. A JSON string stands for its UTF-8 bytes, `{\"base64\": \"…\"}` (RFC 4648, \
section 4) for any bytes; what is answered is a string whenever the bytes are UTF-8. Sizes count bytes, not characters.\n\n\
Errors are problem details (RFC 9457); `code` has a page. A 4xx has changed nothing. After 503 `reply-lost` or a broken \
connection send the same request again.";

/// The members of the document in the order in which people read them.
#[derive(Serialize)]
struct Document {
    openapi: &'static str,
    info: Value,
    servers: Value,
    security: Value,
    paths: Value,
    components: Value,
}

/// The document; `token` says whether bearer tokens are asked for.
pub(crate) fn text(token: bool) -> String {
    serde_json::to_string_pretty(&document(token)).unwrap_or_default()
}

fn document(token: bool) -> Document {
    let mut paths: Map<String, Value> = ROUTES
        .iter()
        .map(|route| (route.path.to_owned(), json!({ "post": operation(route) })))
        .collect();
    paths.insert(OPENAPI.to_owned(), json!({ "get": itself() }));
    let mut schemas = schemas::all();
    schemas.extend(problems::all());
    let mut components = json!({ "schemas": schemas });
    if token && let Some(members) = components.as_object_mut() {
        let bearer = json!({
            "type": "http",
            "scheme": "bearer",
            "description": "A token of `[[api.token]]` in semel.toml, which says for which scopes and operations it is.",
        });
        members.insert("securitySchemes".to_owned(), json!({ "token": bearer }));
    }
    Document {
        openapi: "3.1.0",
        info: json!({
            "title": "Semel: the key API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        }),
        servers: json!([{ "url": "/" }]),
        security: if token {
            json!([{ "token": [] }])
        } else {
            json!([])
        },
        paths: paths.into(),
        components,
    }
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn operation(route: &Route) -> Value {
    let example: Value = serde_json::from_str(route.example).unwrap_or_default();
    let mut responses: Map<String, Value> = route
        .answers
        .iter()
        .map(|(status, schema, means)| (status.to_string(), success(route, schema, means)))
        .collect();
    responses.extend(problems::responses(route));
    json!({
        "operationId": route.id,
        "summary": route.summary,
        "description": route.about,
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": reference(route.body), "example": example } },
        },
        "responses": responses,
    })
}

fn success(route: &Route, schema: &str, means: &str) -> Value {
    let mut response = json!({
        "description": means,
        "content": { "application/json": { "schema": reference(schema) } },
    });
    if matches!(schema, "Granted" | "Finished" | "Record")
        && let Some(members) = response.as_object_mut()
    {
        members.insert("headers".to_owned(), json!({ "Semel-Outcome": outcome_header() }));
    }
    if schema == "Granted"
        && let Some(members) = response.as_object_mut()
    {
        members.insert("links".to_owned(), links());
    }
    debug_assert!(
        schemas::all().contains_key(schema),
        "{}: no schema {schema}",
        route.id
    );
    response
}

/// What a granted claim leads to: the same key, with the token and nonce of the answer.
fn links() -> Value {
    let link = |operation: &str, means: &str| {
        json!({
            "operationId": operation,
            "description": means,
            "requestBody": {
                "scope": "$request.body#/scope",
                "id": "$request.body#/id",
                "token": "$response.body#/token",
                "nonce": "$response.body#/nonce",
            },
        })
    };
    json!({
        "extend": link("extend", "Keep it longer."),
        "complete": link("complete", "Store what came of it; add `outcome` and `output`."),
        "release": link("release", "Give it back."),
        "abandon": link("abandon", "Nobody knows what came of it."),
    })
}

fn outcome_header() -> Value {
    json!({
        "description": "What is known of the key's operation.",
        "required": true,
        "schema": { "type": "string", "enum": ["succeeded", "refused", "running", "unknown", "mismatch"] },
    })
}

/// The document describes itself, too.
fn itself() -> Value {
    json!({
        "operationId": "openapi",
        "summary": "This document",
        "description": "Needs no token.",
        "security": [],
        "responses": {
            "200": {
                "description": "OpenAPI 3.1",
                "content": { "application/json": { "schema": { "type": "object" } } },
            },
        },
    })
}

/// Kinds with these statuses, in the order of the table.
fn kinds_of(route: &Route) -> impl Iterator<Item = Kind> {
    Kind::COMMON.iter().chain(route.problems).copied()
}
