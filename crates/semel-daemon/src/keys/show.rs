//! Keys on the screen: a table in a terminal, tab-separated lines in a pipe, JSON for programs.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use semel_core::claim::{OwnerLost, Record, State, StateName};
use semel_core::error::chain;
use semel_core::store::KeyQuery;
use semel_core::{Key, KeyStoreExt as _, Scope};
use serde_json::json;

use super::args::ListArgs;
use crate::api::{reply, request::PAGE_MAX};
use crate::exit::Exit;
use crate::out;
use crate::store::Store;

/// What is put before bytes that are no plain text.
const BASE64: &str = "base64:";

/// Bytes as they are written on a command line.
pub(crate) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    match text.strip_prefix(BASE64) {
        None => Ok(text.into()),
        Some(encoded) => STANDARD
            .decode(encoded)
            .map_err(|error| format!("`{text}` is no base64 (RFC 4648, section 4): {error}")),
    }
}

/// Bytes as they are shown, and understood by [`bytes`].
pub(crate) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) && !text.starts_with(BASE64) => text.to_owned(),
        _ => format!("{BASE64}{}", STANDARD.encode(bytes)),
    }
}

/// `semel keys list`.
pub(super) async fn list(store: &Store, args: &ListArgs) -> Exit {
    let query = match query(args) {
        Ok(query) => query,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    let (records, next) = match collect(store, query, args.limit).await {
        Ok(found) => found,
        Err(error) => {
            out::error(chain(&error));
            return Exit::Failed;
        }
    };
    let next = next.map(|next| URL_SAFE_NO_PAD.encode(next));
    if args.json {
        let keys: Vec<_> = records
            .iter()
            .map(|(key, record)| reply::record(key, record, false))
            .collect();
        out::data(json!({ "keys": keys, "next": next }));
        return Exit::Ok;
    }
    if out::terminal() {
        if records.is_empty() {
            out::note("no such keys");
        } else {
            out::data(table(&records));
        }
    } else if !records.is_empty() {
        out::data(lines(&records));
    }
    if let Some(next) = next {
        out::note(format_args!("there are more: --limit N, or --page {next}"));
    }
    Exit::Ok
}

fn query(args: &ListArgs) -> Result<KeyQuery, String> {
    let scope = match &args.scope {
        None => None,
        Some(scope) => Some(Scope::new(bytes(scope)?).map_err(|limit| limit.to_string())?),
    };
    let from = match &args.page {
        None => None,
        Some(page) => Some(reply::from_page(page).ok_or("--page is not what a list said")?),
    };
    Ok(KeyQuery {
        scope,
        state: args.state.map(Into::into),
        from,
        limit: 0,
    })
}

type Found = (Vec<(Key, Record)>, Option<bytes::Bytes>);

/// Page after page, up to `limit` records.
async fn collect(store: &Store, mut query: KeyQuery, limit: u32) -> Result<Found, semel_core::StoreError> {
    let keys = store.keys();
    let mut records = Vec::new();
    loop {
        let left = limit.saturating_sub(u32::try_from(records.len()).unwrap_or(u32::MAX));
        if left == 0 {
            return Ok((records, query.from));
        }
        query.limit = left.min(PAGE_MAX);
        let page = keys.list(&query).await?;
        records.extend(page.records);
        match page.next {
            Some(next) => query.from = Some(next),
            None => return Ok((records, None)),
        }
    }
}

/// `semel keys show`.
pub(super) async fn one(store: &Store, key: &Key, as_json: bool) -> Exit {
    match find(store, key).await {
        Ok(record) => {
            if as_json {
                out::data(reply::record(key, &record, true));
            } else {
                out::data(described(key, &record));
            }
            Exit::Ok
        }
        Err(exit) => exit,
    }
}

/// Reads a key, or says why not.
pub(super) async fn find(store: &Store, key: &Key) -> Result<Record, Exit> {
    match store.keys().read(key).await {
        Ok(Some(record)) => Ok(record),
        Ok(None) => {
            out::error(format_args!("there is no key {}", named(key)));
            Err(Exit::Absent)
        }
        Err(error) => {
            out::error(chain(&error));
            Err(Exit::Failed)
        }
    }
}

/// A key as an operator would type it.
pub(super) fn named(key: &Key) -> String {
    format!("{} {}", text(key.scope().as_bytes()), text(key.id()))
}

const fn word(record: &Record) -> &'static str {
    match record.state.name() {
        Some(name) => name.as_str(),
        None => "absent",
    }
}

/// What a state says beside its name: outcome and until when.
fn about(record: &Record) -> String {
    match &record.state {
        State::Absent => String::new(),
        State::Claimed {
            owner_lost, until, ..
        } => {
            let lost = match owner_lost {
                OwnerLost::Hold => "hold",
                OwnerLost::Rerun => "rerun",
            };
            format!("lease until {}, {lost}", until.rfc3339())
        }
        State::Unknown { .. } => "settle it".to_owned(),
        State::Done {
            outcome,
            retain_until,
            ..
        } => {
            let what = match outcome.code() {
                "s" => "succeeded",
                "r" => "refused",
                _ => "forgotten",
            };
            let bytes = outcome.bytes().len();
            format!("{what}, {bytes} bytes, kept until {}", retain_until.rfc3339())
        }
        State::Tombstone { until, .. } => format!("remembered until {}", until.rfc3339()),
    }
}

fn row(key: &Key, record: &Record) -> [String; 5] {
    [
        word(record).to_owned(),
        text(key.scope().as_bytes()),
        text(key.id()),
        record.lease().map_or(0, |lease| lease.token.0).to_string(),
        about(record),
    ]
}

fn lines(records: &[(Key, Record)]) -> String {
    let lines: Vec<String> = records
        .iter()
        .map(|(key, record)| row(key, record).join("\t"))
        .collect();
    lines.join("\n")
}

fn table(records: &[(Key, Record)]) -> String {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["state", "scope", "id", "token", ""]);
    for (key, record) in records {
        let [state, rest @ ..] = row(key, record);
        let state = Cell::new(state);
        let state = match record.state.name() {
            _ if !out::colours() => state,
            Some(StateName::Unknown) => state.fg(Color::Red),
            Some(StateName::Claimed) => state.fg(Color::Yellow),
            Some(StateName::Done) => state.fg(Color::Green),
            Some(StateName::Tombstone) | None => state,
        };
        let mut cells = vec![state];
        cells.extend(rest.into_iter().map(Cell::new));
        table.add_row(cells);
    }
    table.trim_fmt()
}

/// One key in lines of its own; the output last, because it may be long.
pub(super) fn described(key: &Key, record: &Record) -> String {
    let [state, scope, id, token, about] = row(key, record);
    let mut text =
        format!("scope   {scope}\nid      {id}\nstate   {state}\ntoken   {token}\n        {about}");
    if let State::Done { outcome, .. } = &record.state {
        let output = self::text(outcome.bytes());
        text.push_str("\noutput  ");
        text.push_str(&output);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_typed() {
        for shown in [
            &b"o-7"[..],
            b"\xff\x00",
            b"a b",
            b"base64:AA==",
            b"a\tb",
            "é".as_bytes(),
        ] {
            let text = text(shown);
            assert!(!text.contains('\t') && bytes(&text).unwrap() == shown, "{text}");
        }
        assert!(bytes("base64:x").unwrap_err().contains("RFC 4648"));
    }
}
