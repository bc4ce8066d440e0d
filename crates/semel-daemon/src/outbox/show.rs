//! The outbox on the screen: tables in a terminal, tab-separated lines in a pipe, JSON for programs.

use comfy_table::{Cell, Color, ContentArrangement, Table, presets};
use semel_core::StoreError;
use semel_core::Timestamp;
use semel_core::relay::event_json;
use semel_core::store::{
    Backlog, DeskEntry, DeskQuery, DeskRow, ExceptionKind, Hold, OutboxDesk, OutboxStore, Partitions,
    ShardBacklog, ShardStanding, Standing, Wish, no_desk,
};
use serde_json::{Value, json};

use super::args::{LogArgs, ParkedListArgs};
use super::failed;
use super::time::age;
use crate::exit::Exit;
use crate::{keys, out};

/// Rows read at once: each may have close to a megabyte of data.
const PAGE: u32 = 50;

/// The desk of an outbox that has one.
pub(super) fn desk(store: &dyn OutboxStore) -> Result<&dyn OutboxDesk, StoreError> {
    store.desk().ok_or_else(|| no_desk(store.capabilities().name))
}

/// Prints rows: a table with a header in a terminal, lines with tabs in a pipe.
fn print<const N: usize>(
    header: [&str; N],
    rows: &[[String; N]],
    red: impl Fn(&[String; N]) -> bool,
    none: &str,
) {
    if !out::terminal() {
        if !rows.is_empty() {
            let lines: Vec<String> = rows.iter().map(|row| row.join("\t")).collect();
            out::data(lines.join("\n"));
        }
        return;
    }
    if rows.is_empty() {
        out::note(none);
        return;
    }
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    for row in rows {
        let bad = out::colours() && red(row);
        table.add_row(row.iter().map(|text| {
            let cell = Cell::new(text);
            if bad { cell.fg(Color::Red) } else { cell }
        }));
    }
    out::data(table.trim_fmt());
}

/// `semel outbox list`.
pub(super) async fn shards(store: &dyn OutboxStore, as_json: bool) -> Exit {
    let looked = match look(store).await {
        Ok((backlog, standing)) => store
            .partitions()
            .await
            .map(|partitions| (backlog, standing, partitions)),
        Err(error) => Err(error),
    };
    match looked {
        Ok((backlog, standing, partitions)) => {
            if as_json {
                let mut shown = shards_json(&backlog, &standing);
                shown["partitions"] = partitions.as_ref().map_or(Value::Null, partitions_json);
                out::data(shown);
            } else {
                let rows: Vec<[String; 9]> = pairs(&backlog, &standing)
                    .map(|(b, s)| shard_row(b, s, standing.now))
                    .collect();
                let header = [
                    "stream",
                    "shard",
                    "owner",
                    "lease",
                    "waiting",
                    "oldest",
                    "set aside",
                    "parked keys",
                    "says",
                ];
                print(
                    header,
                    &rows,
                    |row| row[2] == "-" || !row[8].is_empty(),
                    "no stream is registered yet",
                );
                for stream in &backlog.orphan_streams {
                    out::note(format_args!(
                        "events wait in the stream {stream}, which nobody publishes"
                    ));
                }
                if let Some(found) = &partitions {
                    out::note(in_partitions(found));
                    note_holds(&found.waits);
                }
            }
            Exit::Ok
        }
        Err(error) => failed(&error),
    }
}

/// The partitions in a line.
pub(crate) fn in_partitions(found: &Partitions) -> String {
    format!(
        "the outbox is in {} partitions of {}, {} of them ahead; the oldest ended {} ago, {} bytes are of no partition's time",
        found.parts.len(),
        age(found.width_ms),
        found.ahead(),
        age(found.oldest_ms()),
        found.other_bytes()
    )
}

fn partitions_json(found: &Partitions) -> Value {
    let parts: Vec<Value> = found
        .parts
        .iter()
        .map(|part| {
            json!({
                "name": part.name,
                "first": part.first.map(Timestamp::rfc3339),
                "past": part.past.map(Timestamp::rfc3339),
                "bytes": part.bytes,
            })
        })
        .collect();
    json!({ "width_ms": found.width_ms, "parts": parts, "waits": holds_json(&found.waits) })
}

/// Both views of an outbox.
pub(super) async fn look(store: &dyn OutboxStore) -> Result<(Backlog, Standing), StoreError> {
    Ok((store.backlog().await?, desk(store)?.standing().await?))
}

/// Each shard in both views.
pub(super) fn pairs<'a>(
    backlog: &'a Backlog,
    standing: &'a Standing,
) -> impl Iterator<Item = (&'a ShardBacklog, &'a ShardStanding)> {
    backlog.shards.iter().filter_map(|shard| {
        let standing = standing.shards.iter().find(|it| it.shard == shard.shard)?;
        Some((shard, standing))
    })
}

fn shard_row(backlog: &ShardBacklog, standing: &ShardStanding, now: Timestamp) -> [String; 9] {
    let lease = standing.until.map_or_else(
        || "-".to_owned(),
        |until| {
            if standing.held {
                age(until.ms_since(now))
            } else {
                format!("ended {} ago", age(now.ms_since(until)))
            }
        },
    );
    [
        backlog.shard.stream.clone(),
        backlog.shard.index.to_string(),
        backlog.owner.clone().unwrap_or_else(|| "-".to_owned()),
        lease,
        backlog.rows.to_string(),
        backlog.oldest_ms.map_or_else(|| "-".to_owned(), age),
        backlog.exceptions.to_string(),
        standing.parked_keys.to_string(),
        standing.note.clone().unwrap_or_default(),
    ]
}

fn shards_json(backlog: &Backlog, standing: &Standing) -> Value {
    let shards: Vec<Value> = pairs(backlog, standing)
        .map(|(b, s)| {
            json!({
                "stream": b.shard.stream,
                "shard": b.shard.index,
                "owner": b.owner,
                "last_owner": s.owner,
                "lease_until": s.until.map(Timestamp::rfc3339),
                "waiting": b.rows,
                "oldest_ms": b.oldest_ms,
                "set_aside": b.exceptions,
                "parked_keys": s.parked_keys,
                "asked": s.asked,
                "batch_no": b.batch_no,
                "takeovers": b.takeovers,
                "note": s.note,
                "noted_at": s.noted_at.map(Timestamp::rfc3339),
            })
        })
        .collect();
    json!({ "shards": shards, "orphan_streams": backlog.orphan_streams, "now": standing.now.rfc3339() })
}

/// Page after page of what was set aside, up to `limit` rows; whether there are more.
pub(super) async fn collect(
    store: &dyn OutboxStore,
    mut query: DeskQuery,
    limit: u32,
) -> Result<(Vec<DeskRow>, bool), StoreError> {
    let mut rows: Vec<DeskRow> = Vec::new();
    loop {
        let left = limit
            .saturating_add(1)
            .saturating_sub(u32::try_from(rows.len()).unwrap_or(u32::MAX));
        query.limit = left.min(PAGE);
        let page = desk(store)?.desk_rows(&query).await?;
        let last = page.len() < query.limit as usize;
        query.after = page.last().map_or(query.after, |row| row.stored.exception.row);
        rows.extend(page);
        if rows.len() > limit as usize {
            rows.truncate(limit as usize);
            return Ok((rows, true));
        }
        if last {
            return Ok((rows, false));
        }
    }
}

/// `semel outbox parked list`.
pub(super) async fn parked(store: &dyn OutboxStore, args: &ParkedListArgs) -> Exit {
    let key = match args.key.as_deref().map(keys::bytes).transpose() {
        Ok(key) => key,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    let query = DeskQuery {
        stream: args.stream.clone(),
        key: key.map(Into::into),
        kind: args.kind.map(Into::into),
        after: args.after,
        limit: 0,
    };
    let (rows, more) = match collect(store, query, args.limit).await {
        Ok(found) => found,
        Err(error) => return failed(&error),
    };
    let next = rows.last().filter(|_| more).map(|row| row.stored.exception.row);
    if args.look.json {
        let shown: Vec<Value> = rows.iter().map(|row| row_json(row, false)).collect();
        out::data(json!({ "events": shown, "next": next }));
        return Exit::Ok;
    }
    print_rows(&rows);
    if let Some(next) = next {
        out::note(format_args!("there are more: --limit N, or --after {next}"));
    }
    Exit::Ok
}

/// Rows as a list.
pub(super) fn print_rows(rows: &[DeskRow]) {
    let lines: Vec<[String; 9]> = rows.iter().map(line).collect();
    let header = [
        "row", "kind", "asked", "stream", "key", "topic", "since", "tries", "reason",
    ];
    print(
        header,
        &lines,
        |row| row[1] == "parked" && row[2] == "-",
        "nothing is set aside",
    );
}

fn line(row: &DeskRow) -> [String; 9] {
    let (it, event) = (&row.stored.exception, &row.stored.row.row.event);
    [
        it.row.to_string(),
        it.kind.as_str().to_owned(),
        row.asked.map_or("-", Wish::as_str).to_owned(),
        format!("{}/{}", event.stream, row.stored.shard.index),
        event
            .key
            .as_ref()
            .map_or_else(|| "-".to_owned(), |key| keys::text(key)),
        event.topic.clone(),
        row.stored.since.rfc3339(),
        it.attempts.to_string(),
        it.reason.clone(),
    ]
}

/// One event that was set aside, as JSON; with all that it carries, or without.
pub(super) fn row_json(row: &DeskRow, whole: bool) -> Value {
    let (it, event) = (&row.stored.exception, &row.stored.row.row.event);
    let mut shown = json!({
        "row": it.row,
        "kind": it.kind.as_str(),
        "asked": row.asked.map(Wish::as_str),
        "shard": row.stored.shard.index,
        "since": row.stored.since.rfc3339(),
        "attempts": it.attempts,
        "reason": it.reason,
        "unreadable": row.stored.row.barred,
        "edits": row.edits,
        "created_at": row.stored.row.row.created_at.rfc3339(),
    });
    let mut event_shown = event_json(event);
    if !whole && let Some(fields) = event_shown.as_object_mut() {
        let bytes = event.data.as_ref().map(bytes::Bytes::len);
        fields.remove("data");
        fields.remove("headers");
        fields.insert("data_bytes".to_owned(), json!(bytes));
    }
    shown["event"] = event_shown;
    shown
}

/// Reads one row, or says that it is not there.
pub(super) async fn find(store: &dyn OutboxStore, row: i64) -> Result<DeskRow, Exit> {
    let found = match desk(store) {
        Ok(desk) => desk.desk_row(row).await,
        Err(error) => Err(error),
    };
    match found {
        Ok(Some(row)) => Ok(row),
        Ok(None) => {
            out::error(format_args!(
                "row {row} is not among the events set aside: it was sent or dropped, or never was"
            ));
            Err(Exit::Absent)
        }
        Err(error) => Err(failed(&error)),
    }
}

/// `semel outbox parked show`.
pub(super) async fn one(store: &dyn OutboxStore, row: i64, as_json: bool) -> Exit {
    match find(store, row).await {
        Ok(row) => {
            if as_json {
                out::data(row_json(&row, true));
            } else {
                out::data(described(&row));
            }
            Exit::Ok
        }
        Err(exit) => exit,
    }
}

/// One event in lines of its own; the data last, because it may be long.
pub(super) fn described(row: &DeskRow) -> String {
    use std::fmt::Write as _;
    let (it, event) = (&row.stored.exception, &row.stored.row.row.event);
    let mut text = String::new();
    let mut say = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12}  {value}");
    };
    say("row", &it.row.to_string());
    say("kind", it.kind.as_str());
    if let Some(asked) = row.asked {
        say(
            "asked",
            &format!("{}: its shard's owner carries it out", asked.as_str()),
        );
    }
    say("shard", &row.stored.shard.to_string());
    say("since", &row.stored.since.rfc3339());
    say("tries", &it.attempts.to_string());
    say("reason", &it.reason);
    if let Some(why) = &row.stored.row.barred {
        say("unreadable", why);
    }
    say("edits", &row.edits.to_string());
    say("id", &event.id.to_string());
    say("topic", &event.topic);
    say("type", &event.kind);
    say("source", &event.source);
    say(
        "key",
        &event
            .key
            .as_ref()
            .map_or_else(|| "-".to_owned(), |key| keys::text(key)),
    );
    say("written", &row.stored.row.row.created_at.rfc3339());
    say("content type", event.content_type.as_deref().unwrap_or("-"));
    for (name, value) in &event.headers {
        say("header", &format!("{name}: {}", keys::text(value)));
    }
    if let Some(traceparent) = &event.traceparent {
        say("traceparent", traceparent);
    }
    say(
        "data",
        &event
            .data
            .as_ref()
            .map_or_else(|| "none (a tombstone)".to_owned(), |data| keys::text(data)),
    );
    text.truncate(text.trim_end().len());
    text
}

/// Whether `row` is one that can be asked by itself: first of its list, or of none.
pub(super) fn is_list(row: &DeskRow) -> bool {
    row.stored.exception.kind != ExceptionKind::Skipped && row.list().is_some()
}

/// `semel outbox parked log`.
pub(super) async fn log(store: &dyn OutboxStore, args: &LogArgs) -> Exit {
    let entries = match desk(store) {
        Ok(desk) => desk.desk_log(args.after, args.limit).await,
        Err(error) => Err(error),
    };
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return failed(&error),
    };
    if args.look.json {
        let shown: Vec<Value> = entries.iter().map(entry_json).collect();
        out::data(json!({ "entries": shown }));
        return Exit::Ok;
    }
    let rows: Vec<[String; 8]> = entries
        .iter()
        .map(|it| {
            [
                it.entry.to_string(),
                it.at.rfc3339(),
                it.action.clone(),
                it.stream.clone(),
                if it.row == 0 {
                    "-".to_owned()
                } else {
                    it.row.to_string()
                },
                if it.event_id.is_nil() {
                    "-".to_owned()
                } else {
                    it.event_id.to_string()
                },
                it.by.clone(),
                it.why.clone(),
            ]
        })
        .collect();
    print(
        ["entry", "at", "what", "stream", "row", "event", "by", "why"],
        &rows,
        |_| false,
        "nothing was changed yet",
    );
    Exit::Ok
}

fn entry_json(it: &DeskEntry) -> Value {
    let before = it
        .before
        .as_deref()
        .map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)));
    json!({
        "entry": it.entry,
        "at": it.at.rfc3339(),
        "action": it.action,
        "stream": it.stream,
        "row": (it.row != 0).then_some(it.row),
        "event_id": (!it.event_id.is_nil()).then_some(it.event_id),
        "by": it.by,
        "why": it.why,
        "before": before,
    })
}

/// Says of each who it is, for how long, and what to do about it.
pub(super) fn note_holds(holds: &[Hold]) {
    for hold in holds {
        let since = hold
            .age_ms
            .map(|ms| format!(" for {}", age(ms)))
            .unwrap_or_default();
        out::note(format_args!(
            "{}{since}: {}; {}",
            hold.who, hold.detail, hold.advice
        ));
    }
}

/// The same for machines.
pub(super) fn holds_json(holds: &[Hold]) -> Vec<Value> {
    let each = |hold: &Hold| json!({ "who": hold.who, "age_ms": hold.age_ms, "detail": hold.detail, "advice": hold.advice });
    holds.iter().map(each).collect()
}
