//! Policies: the gateway's own, and its routes'.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use http::{Method, StatusCode};
use semel_core::issued::IssuedIds;
use semel_core::{OwnerLost, limits};
use semel_http::key::KeyForm;
use semel_http::{BodyKey, IssuedKeys, Mode, Outage, Pointer, Profile};
use semel_keys::Issuer;

use super::super::path::{PATTERN_FIX, Pattern};
use super::{KeyRule, Principal, ROUTE, RouteConfig, Sending, StatusUrl, bare_url, ms};
use crate::config::read::{At, Table};

/// The policy of what meets no route.
pub(super) fn gateway(table: &Table<'_>) -> Option<RouteConfig> {
    let base = RouteConfig {
        methods: vec![Method::POST, Method::PATCH],
        paths: Pattern::parse("/").into_iter().collect(),
        key: KeyRule::Optional,
        principal: Principal::Anonymous,
        layer: semel_http::Config {
            running_max: 1_024,
            status: semel_http::StatusPolicy {
                distrust_unavailable: true,
                defer_to_inner: true,
                ..semel_http::StatusPolicy::default()
            },
            ..semel_http::Config::default()
        },
        sending: Sending {
            first_byte: Duration::from_secs(60),
            total: Duration::from_secs(60),
            answer_idle: Duration::from_secs(600),
            deduplicates: false,
            reconcile: None,
            status_url: None,
        },
        issuer: None,
    };
    let issuer = crate::config::api::issuer(table).map(Arc::new);
    read(table, &base, None, issuer.as_ref())
}

/// The routes, in their order; one that nothing can reach is a mistake.
pub(super) fn routes(table: &Table<'_>, own: Option<&RouteConfig>) -> Vec<RouteConfig> {
    let tables = table.tables("route", &ROUTE);
    let Some(own) = own else { return Vec::new() };
    let issuer = own.issuer.clone();
    let mut routes: Vec<RouteConfig> = Vec::with_capacity(tables.len());
    for table in tables {
        table.require("paths", "[\"/payments\"]");
        let Some(route) = read(&table, own, Some(&own.principal), issuer.as_ref()) else {
            continue;
        };
        if let Some(at) = routes.iter().position(|earlier| earlier.hides(&route)) {
            let n = at + 1;
            table.mistake(
                table.span(),
                format!("nothing reaches this route: route {n} of this gateway covers all of it and stands before it"),
                "the first route that matches counts: move the narrower one up, or leave this one out",
            );
        }
        routes.push(route);
    }
    if issuer.is_some()
        && !routes
            .iter()
            .chain([own])
            .any(|route| route.layer.issued.is_some())
    {
        let fix =
            "add issued_keys = \"accepted\" or \"required\" to the gateway or to a route, or leave it out";
        table.mistake(
            table.span(),
            "`issue_secret` does nothing: no route takes issued keys",
            fix,
        );
    }
    routes
}

/// Reads a policy; what is left out is as in `base`. Routes inherit the principal of the gateway.
fn read(
    table: &Table<'_>,
    base: &RouteConfig,
    inherited: Option<&Principal>,
    issuer: Option<&Arc<Issuer>>,
) -> Option<RouteConfig> {
    let principal = principal(table, inherited);
    let methods = methods(table, &base.methods);
    let paths = paths(table, &base.paths);
    let words = [
        ("off", KeyRule::Off),
        ("optional", KeyRule::Optional),
        ("required", KeyRule::Required),
    ];
    let key = table.word("key", &words).unwrap_or(base.key);
    // Of a gateway's own policy its routes inherit.
    if key == KeyRule::Off && inherited.is_some() {
        table.idle(OF_KEYS, "keys are off on this route");
    }
    let mut layer = layer(table, &base.layer);
    layer.required_for = if key == KeyRule::Required {
        methods.clone()
    } else {
        Vec::new()
    };
    layer.issued = issued(table, &base.layer, issuer);
    if layer.issued.is_some() && principal == Some(Principal::Anonymous) {
        let fix = "say who calls with principal_header or auth_url, or leave `issued_keys` out";
        table.mistake(
            table.span(),
            "`issued_keys` needs callers that can be told apart: these are anonymous",
            fix,
        );
    }
    let sending = sending(table, &base.sending);
    // The time-out ends a run long before its claim is no longer renewed.
    let asking = sending
        .reconcile
        .as_ref()
        .map_or(Duration::ZERO, |(_, most)| *most);
    let whole_ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    layer.run_ms_max = whole_ms(sending.total + asking).saturating_add(60_000);
    // Whoever asks keeps the time, and needs a moment to say so.
    layer.reconcile_ms_max = whole_ms(asking).saturating_add(1_000);
    if layer.owner_lost == OwnerLost::Rerun && !sending.deduplicates {
        let fix = "add `upstream_deduplicates = true` if the upstream does each Idempotency-Key once, or leave \
                   `owner_lost` out";
        table.mistake(
            table.span(),
            "`owner_lost = \"rerun\"` sends a request again that may have been done",
            fix,
        );
    }
    Some(RouteConfig {
        methods,
        paths,
        key,
        principal: principal?,
        layer,
        sending,
        issuer: issuer.cloned(),
    })
}

/// Keys that the server gave out.
fn issued(table: &Table<'_>, base: &semel_http::Config, issuer: Option<&Arc<Issuer>>) -> Option<IssuedKeys> {
    let words = [("off", None), ("accepted", Some(false)), ("required", Some(true))];
    let Some(word) = table.word("issued_keys", &words) else {
        return base.issued.clone();
    };
    let required = word?;
    let Some(issuer) = issuer else {
        let fix =
            "add issue_secret = \"${SEMEL_ISSUE_SECRET}\" to the [[gateway]], the same as that of [api]";
        table.mistake(table.span(), "`issued_keys` without an `issue_secret`", fix);
        return None;
    };
    Some(IssuedKeys {
        ids: Arc::clone(issuer) as Arc<dyn IssuedIds>,
        required,
    })
}

fn principal(table: &Table<'_>, inherited: Option<&Principal>) -> Option<Principal> {
    let timeout = ms(table, "auth_timeout_ms", Duration::from_secs(3));
    let anonymous = table.boolean("anonymous").unwrap_or(false);
    let fix = "leave them out: they are never sent, and it is asked with the credentials of each caller";
    let auth = bare_url(table, "auth_url", fix);
    let header = table.text("principal_header");
    if !table.has("auth_url") {
        table.idle(&["auth_timeout_ms"], "there is no `auth_url` beside it");
    }
    if let Some(header) = &header
        && is_credential(&header.value)
    {
        let message = format!(
            "`principal_header` is {}, a credential that changes while its caller stays",
            header.value
        );
        let fix =
            "name a header that holds the caller's id, set by a proxy that verifies it, or ask an `auth_url`";
        table.doubt(header.span.clone(), message, fix);
    }
    if let (Some(inherited), false) = (
        inherited,
        ["anonymous", "auth_url", "principal_header"]
            .into_iter()
            .any(|name| table.has(name)),
    ) {
        return Some(inherited.clone());
    }
    let Some(header) = header else {
        if anonymous && auth.is_none() {
            return Some(Principal::Anonymous);
        }
        if let Some(auth) = auth {
            let fix = "add `principal_header = \"X-Auth-User\"`: the header of its answer that holds the caller's id";
            table.mistake(auth.span, "nothing says where `auth_url` names the caller", fix);
        } else if !table.has("principal_header") && !table.has("auth_url") {
            // A wrong value has its own mistake already.
            let fix = "add `principal_header = \"X-Authenticated-User\"`, set by a proxy that verifies it, \
                       `auth_url`, or `anonymous = true` where all callers may see each other's answers";
            table.mistake(table.span(), "nothing says whose keys these are", fix);
        }
        return None;
    };
    if anonymous {
        let fix = "keep one of the two";
        table.mistake(
            header.span,
            "`principal_header` and `anonymous` exclude each other",
            fix,
        );
        return None;
    }
    let Ok(name) = HeaderName::from_bytes(header.value.as_bytes()) else {
        let fix = "write it like `principal_header = \"X-Authenticated-User\"`";
        table.mistake(header.span, "this is no name of a header", fix);
        return None;
    };
    match auth {
        Some(url) => Some(Principal::Auth {
            url: url.value,
            header: name,
            timeout,
        }),
        None if table.has("auth_url") => None,
        None => Some(Principal::Header(name)),
    }
}

/// Whether a header holds what proves who calls: it must neither name a caller nor an operation.
fn is_credential(header: &str) -> bool {
    ["authorization", "proxy-authorization", "cookie"]
        .iter()
        .any(|name| header.eq_ignore_ascii_case(name))
}

/// What only a keyed request asks for.
const OF_KEYS: &[&str] = &[
    "key_headers",
    "key_pointers",
    "key_fields",
    "issued_keys",
    "key_form",
    "fingerprint",
    "outage",
    "shadow",
    "request_bytes_max",
    "response_bytes_max",
    "lease_ms",
    "retention_ms",
    "tombstone_ms",
    "wait_ms_max",
    "running_max",
    "behind_max",
    "behind_bytes_max",
    "owner_lost",
    "challenge",
    "status_url",
    "release_on",
    "trust_unavailable",
    "upstream_deduplicates",
    "total_timeout_ms",
    "reconcile_url",
    "reconcile_ms_max",
];

fn methods(table: &Table<'_>, base: &[Method]) -> Vec<Method> {
    let Some(names) = table.texts("methods") else {
        return base.to_vec();
    };
    let mut methods = Vec::with_capacity(names.len());
    for name in names {
        match Method::from_bytes(name.value.as_bytes()) {
            Ok(method)
                if !method.is_safe()
                    && method != Method::CONNECT
                    && name.value.bytes().all(|byte| byte.is_ascii_uppercase()) =>
            {
                methods.push(method);
            }
            _ => {
                let fix = "name methods that change something, in capitals: POST, PATCH, PUT, DELETE";
                table.mistake(name.span, "this method cannot be keyed", fix);
            }
        }
    }
    methods
}

fn paths(table: &Table<'_>, base: &[Pattern]) -> Vec<Pattern> {
    let Some(paths) = table.texts("paths") else {
        return base.to_vec();
    };
    let mut found = Vec::with_capacity(paths.len());
    for path in paths {
        match Pattern::parse(&path.value) {
            Some(pattern) => found.push(pattern),
            None => table.mistake(path.span, "this is no path", PATTERN_FIX),
        }
    }
    found
}

fn layer(table: &Table<'_>, base: &semel_http::Config) -> semel_http::Config {
    let retention = limits::RETENTION_MS_MAX as u64;
    let ms = |name, range, default: i64| {
        let given = table.number(name, range);
        given.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(default)
    };
    let count = |name, range, default: usize| {
        let given = table.number(name, range);
        given
            .and_then(|count| usize::try_from(count).ok())
            .unwrap_or(default)
    };
    let keep = semel_core::Keep {
        retention_ms: ms("retention_ms", 1..=retention, base.keep.retention_ms),
        tombstone_ms: ms("tombstone_ms", 0..=retention, base.keep.tombstone_ms),
    };
    let words = [("hold", OwnerLost::Hold), ("rerun", OwnerLost::Rerun)];
    let forms = [("lenient", KeyForm::Lenient), ("strict", KeyForm::Strict)];
    let outages = [("closed", Outage::Closed), ("open", Outage::Open)];
    semel_http::Config {
        aliases: key_headers(table).unwrap_or_else(|| base.aliases.clone()),
        body_keys: body_keys(table, &base.body_keys),
        key_form: table.word("key_form", &forms).unwrap_or(base.key_form),
        profile: profile(table).unwrap_or_else(|| base.profile.clone()),
        outage: table.word("outage", &outages).unwrap_or(base.outage),
        mode: match table.boolean("shadow") {
            Some(true) => Mode::Shadow,
            Some(false) => Mode::Enforce,
            None => base.mode,
        },
        request_bytes_max: count("request_bytes_max", 0..=1 << 30, base.request_bytes_max),
        response_bytes_max: count(
            "response_bytes_max",
            0..=limits::OUTCOME_BYTES_MAX as u64,
            base.response_bytes_max,
        ),
        lease_ms: ms("lease_ms", 1_000..=limits::LEASE_MS_MAX as u64, base.lease_ms),
        keep,
        wait_ms_max: table
            .number("wait_ms_max", 0..=600_000)
            .unwrap_or(base.wait_ms_max),
        waiters_per_key_max: count("waiters_per_key_max", 0..=1_000_000, base.waiters_per_key_max),
        waiters_max: count("waiters_max", 0..=1_000_000, base.waiters_max),
        store_ms_max: table
            .number("store_ms_max", 1..=semel_core::claim::WITHDRAWN_MS as u64)
            .unwrap_or(base.store_ms_max),
        running_max: count("running_max", 1..=100_000, base.running_max),
        behind_max: count("behind_max", 1..=1_000_000, base.behind_max),
        behind_bytes_max: count("behind_bytes_max", 0..=1 << 40, base.behind_bytes_max),
        owner_lost: table.word("owner_lost", &words).unwrap_or(base.owner_lost),
        status: semel_http::StatusPolicy {
            distrust_unavailable: table
                .boolean("trust_unavailable")
                .map_or(base.status.distrust_unavailable, |trust| !trust),
            release_on: release_on(table).unwrap_or_else(|| base.status.release_on.clone()),
            ..base.status.clone()
        },
        challenge: challenge(table).unwrap_or_else(|| base.challenge.clone()),
        ..base.clone()
    }
}

/// What counts as the same body; pointers alone say that it is JSON.
fn profile(table: &Table<'_>) -> Option<Profile> {
    let words = [("raw", 0), ("json", 1), ("form", 2), ("multipart", 3)];
    let word = table.word("fingerprint", &words);
    let only = pointers(table, "fingerprint_only", "/amount");
    let except = pointers(table, "fingerprint_except", "/sent_at");
    if only.as_ref().is_some_and(Vec::is_empty) && !table.has("fingerprint_except") {
        let fix = "name the places that make two requests the same, such as \"/amount\"";
        table.mistake(table.span(), "no place counts in `fingerprint_only`", fix);
        return None;
    }
    if only.is_some() && except.is_some() {
        let fix = "keep one of the two";
        table.mistake(
            table.span(),
            "`fingerprint_only` and `fingerprint_except` exclude each other",
            fix,
        );
        return None;
    }
    if (only.is_some() || except.is_some()) && word.is_some_and(|word| word != 1) {
        let fix = "write `fingerprint = \"json\"`, or leave the pointers out";
        table.mistake(
            table.span(),
            "pointers lead into JSON, and `fingerprint` is not \"json\"",
            fix,
        );
        return None;
    }
    match (only, except, word) {
        (Some(only), _, _) => Some(Profile::JsonOnly(only)),
        (_, Some(except), _) => Some(Profile::JsonExcept(except)),
        (.., Some(1)) => Some(Profile::Json),
        (.., Some(2)) => Some(Profile::Form),
        (.., Some(3)) => Some(Profile::Multipart),
        (.., Some(_)) => Some(Profile::Raw),
        (.., None) => None,
    }
}

fn pointers(table: &Table<'_>, name: &'static str, example: &str) -> Option<Vec<Pointer>> {
    let mut pointers = Vec::new();
    for text in table.texts(name)? {
        match Pointer::new(text.value) {
            Ok(pointer) => pointers.push(pointer),
            Err(error) => {
                let fix = format!("write it like \"{example}\"");
                table.mistake(text.span, error.to_string(), &fix);
            }
        }
    }
    Some(pointers)
}

fn key_headers(table: &Table<'_>) -> Option<Vec<HeaderName>> {
    let mut headers = Vec::new();
    for name in table.texts("key_headers")? {
        match HeaderName::from_bytes(name.value.as_bytes()) {
            Ok(header) => {
                if is_credential(header.as_str()) {
                    let message = format!(
                        "`key_headers` names {header}, a credential: every request of a caller would be the same operation"
                    );
                    let fix = "name the header that carries a key per operation, or leave it out";
                    table.doubt(name.span, message, fix);
                }
                headers.push(header);
            }
            Err(_) => table.mistake(
                name.span,
                "this is no name of a header",
                "write it like \"X-Idempotency-Key\"",
            ),
        }
    }
    Some(headers)
}

/// Pointers and fields, each as in `base` where the table does not say.
fn body_keys(table: &Table<'_>, base: &[BodyKey]) -> Vec<BodyKey> {
    let of_base = |json: bool| {
        let kept = base.iter().filter(|key| matches!(key, BodyKey::Json(_)) == json);
        kept.cloned().collect::<Vec<_>>()
    };
    let mut keys = key_pointers(table).unwrap_or_else(|| of_base(true));
    keys.extend(match table.texts("key_fields") {
        Some(names) => names.into_iter().map(|name| BodyKey::Form(name.value)).collect(),
        None => of_base(false),
    });
    keys
}

fn key_pointers(table: &Table<'_>) -> Option<Vec<BodyKey>> {
    let pointers = pointers(table, "key_pointers", "/request_id")?;
    Some(pointers.into_iter().map(BodyKey::Json).collect())
}

fn release_on(table: &Table<'_>) -> Option<Vec<StatusCode>> {
    let numbers = table.numbers("release_on", 400..=499)?;
    Some(
        numbers
            .into_iter()
            .filter_map(|number| StatusCode::from_u16(u16::try_from(number).ok()?).ok())
            .collect(),
    )
}

fn challenge(table: &Table<'_>) -> Option<HeaderValue> {
    let At { value, span } = table.text("challenge")?;
    match HeaderValue::from_str(&value) {
        Ok(challenge) if !challenge.is_empty() => Some(challenge),
        _ => {
            let fix = "write it like \"Bearer\" or \"Basic realm=shop\"";
            table.mistake(span, "no `WWW-Authenticate` can say this", fix);
            None
        }
    }
}

/// Where a key can be looked up: an address with a place for the key.
fn status_url(table: &Table<'_>) -> Option<StatusUrl> {
    let At { value, span } = table.text("status_url")?;
    let url = StatusUrl::parse(&value);
    if url.is_none() {
        let fix = "write it like \"https://shop.example/operations/{key}\"";
        table.mistake(span, "this is no http URL with one `{key}` behind its host", fix);
    }
    url
}

fn sending(table: &Table<'_>, base: &Sending) -> Sending {
    let most = base
        .reconcile
        .as_ref()
        .map_or(Duration::from_secs(5), |(_, most)| *most);
    let most = ms(table, "reconcile_ms_max", most);
    let fix = "leave them out: they are never sent; let nobody but the gateway reach it";
    let reconcile = match bare_url(table, "reconcile_url", fix) {
        Some(url) => Some((url.value, most)),
        None => base.reconcile.as_ref().map(|(url, _)| (url.clone(), most)),
    };
    if reconcile.is_none() && !table.has("reconcile_url") {
        table.idle(&["reconcile_ms_max"], "there is no `reconcile_url` beside it");
    }
    Sending {
        first_byte: ms(table, "first_byte_timeout_ms", base.first_byte),
        total: ms(table, "total_timeout_ms", base.total),
        answer_idle: ms(table, "answer_idle_ms", base.answer_idle),
        deduplicates: table
            .boolean("upstream_deduplicates")
            .unwrap_or(base.deduplicates),
        reconcile,
        status_url: status_url(table).or_else(|| base.status_url.clone()),
    }
}
