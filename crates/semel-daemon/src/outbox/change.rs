//! What an operator changes of events that were set aside: shown first, asked for, and kept with who and why.

use std::collections::HashSet;

use bytes::Bytes;
use semel_core::error::chain;
use semel_core::relay::DeskRefusal;
use semel_core::store::{DeskChange, DeskQuery, DeskRequest, DeskRow, OutboxStore, Wish};
use semel_core::{Event, Retry, StoreError};

use super::args::{DropArgs, EditArgs, RetryArgs, WhichArgs};
use super::failed;
use super::show::{collect, described, desk, find, is_list, look, print_rows};
use crate::exit::Exit;
use crate::keys::{self, PersonArgs};
use crate::out;

/// Events that one command asks for at most.
const ASKED_MAX: u32 = 10_000;

/// `semel outbox parked edit`.
pub(super) async fn edit(store: &dyn OutboxStore, args: &EditArgs) -> Exit {
    let row = match find(store, args.row).await {
        Ok(row) => row,
        Err(exit) => return exit,
    };
    let event = match edited(&row.stored.row.row.event, args) {
        Ok(event) => event,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    let mut after = row.clone();
    after.stored.row.row.event = event.clone();
    if args.dry_run {
        out::data(described(&after));
        out::note("nothing was changed");
        return Exit::Ok;
    }
    if let Err(exit) = keys::asked(&described(&after), "let it be sent so from now on", &args.person) {
        return exit;
    }
    let change = DeskChange::Edit {
        event: Box::new(event),
        edits: row.edits,
    };
    match request(store, args.row, change, &args.person).await {
        Ok(Ok(())) => {
            out::note(format_args!(
                "row {} edited, by {}: {}; it is sent when it is asked for: semel outbox parked retry",
                args.row, args.person.by, args.person.why
            ));
            Exit::Ok
        }
        Ok(Err(refusal)) => refused(args.row, &refusal),
        Err(error) => unanswered(&error),
    }
}

/// The event as the arguments want it.
fn edited(event: &Event, args: &EditArgs) -> Result<Event, String> {
    let mut event = event.clone();
    if let Some(topic) = &args.topic {
        event.topic.clone_from(topic);
    }
    if let Some(kind) = &args.kind {
        event.kind.clone_from(kind);
    }
    if let Some(content_type) = &args.content_type {
        event.content_type = Some(content_type.clone());
    }
    if let Some(data) = &args.data {
        event.data = Some(Bytes::from(keys::bytes(data)?));
    }
    if let Some(path) = &args.data_file {
        let data = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        event.data = Some(data.into());
    }
    if args.no_data {
        event.data = None;
    }
    if args.no_headers {
        event.headers.clear();
    }
    let mut replaced = HashSet::new();
    for header in &args.header {
        let (name, value) = header
            .split_once('=')
            .ok_or_else(|| format!("`{header}` is no header; write NAME=VALUE"))?;
        if replaced.insert(name) {
            event.headers.retain(|(of, _)| of != name);
        }
        event.headers.push((name.to_owned(), keys::bytes(value)?.into()));
    }
    event.check().map_err(|limit| limit.to_string())?;
    Ok(event)
}

async fn request(
    store: &dyn OutboxStore,
    row: i64,
    change: DeskChange,
    person: &PersonArgs,
) -> Result<Result<(), DeskRefusal>, StoreError> {
    let request = DeskRequest {
        row,
        change,
        by: person.by.clone(),
        why: person.why.clone(),
    };
    desk(store)?.change(&request).await
}

fn refused(row: i64, refusal: &DeskRefusal) -> Exit {
    out::error(format_args!("row {row}: {refusal}; nothing was changed"));
    match refusal {
        DeskRefusal::Absent => Exit::Absent,
        DeskRefusal::Invalid(_) => Exit::Usage,
        _ => Exit::Changed,
    }
}

fn unanswered(error: &StoreError) -> Exit {
    let then = match error.retry() {
        Retry::OutcomeUnknown => "it may have been done: the same command may be repeated",
        Retry::Later | Retry::Never => "nothing was changed",
    };
    out::error(format_args!("{}; {then}", chain(error)));
    Exit::Failed
}

/// `semel outbox parked retry`.
pub(super) async fn retry(store: &dyn OutboxStore, args: &RetryArgs) -> Exit {
    ask(store, &args.which, Wish::Retry, &args.person).await
}

/// `semel outbox parked drop`.
pub(super) async fn drop(store: &dyn OutboxStore, args: &DropArgs) -> Exit {
    let wish = if args.release { Wish::Release } else { Wish::Drop };
    ask(store, &args.which, wish, &args.person).await
}

async fn ask(store: &dyn OutboxStore, which: &WhichArgs, wish: Wish, person: &PersonArgs) -> Exit {
    let rows = match chosen(store, which, wish).await {
        Ok(rows) => rows,
        Err(exit) => return exit,
    };
    let count = rows.len();
    let what = match wish {
        Wish::Retry => format!("ask for {count} to be sent again, and what is behind them of their keys"),
        Wish::Drop => format!("ask for {count} to be forgotten: they are never sent"),
        Wish::Release => {
            format!("ask for {count} to be forgotten, and for what is behind them of their keys to be sent")
        }
    };
    if which.dry_run {
        print_rows(&rows);
        out::note(format_args!("would {what}; nothing was changed"));
        return Exit::Ok;
    }
    let shown = match rows.as_slice() {
        [only] => described(only),
        _ => format!("{count} events, rows {} to {}", first_row(&rows), last_row(&rows)),
    };
    if let Err(exit) = keys::asked(&shown, &what, person) {
        return exit;
    }
    let (mut done, mut worst) = (0_usize, Exit::Ok);
    for row in &rows {
        let number = row.stored.exception.row;
        match request(store, number, DeskChange::Ask(wish), person).await {
            Ok(Ok(())) => done += 1,
            Ok(Err(refusal)) => worst = refused(number, &refusal),
            Err(error) => {
                out::note(format_args!("{done} of {count} were asked for"));
                return unanswered(&error);
            }
        }
    }
    let word = wish.as_str();
    out::note(format_args!(
        "{word} asked of {done} of {count}, by {}: {}",
        person.by, person.why
    ));
    if done > 0 {
        tell_owners(store, &rows).await;
    }
    worst
}

fn first_row(rows: &[DeskRow]) -> i64 {
    rows.first().map_or(0, |row| row.stored.exception.row)
}

fn last_row(rows: &[DeskRow]) -> i64 {
    rows.last().map_or(0, |row| row.stored.exception.row)
}

/// Says where nobody is there to carry it out.
async fn tell_owners(store: &dyn OutboxStore, rows: &[DeskRow]) {
    let Ok((_, standing)) = look(store).await else {
        return;
    };
    for shard in standing.shards.iter().filter(|shard| !shard.held) {
        if rows.iter().any(|row| row.stored.shard == shard.shard) {
            out::note(format_args!(
                "no relay owns shard {} now; whichever takes it next carries this out",
                shard.shard
            ));
        }
    }
}

/// The rows that are meant: as numbered, or all that can be asked of a key or of everything.
async fn chosen(store: &dyn OutboxStore, which: &WhichArgs, wish: Wish) -> Result<Vec<DeskRow>, Exit> {
    if !which.rows.is_empty() {
        let mut rows = Vec::new();
        for row in &which.rows {
            rows.push(find(store, *row).await?);
        }
        return Ok(rows);
    }
    let key = which
        .key
        .as_deref()
        .map(keys::bytes)
        .transpose()
        .map_err(|message| {
            out::error(message);
            Exit::Usage
        })?;
    let query = DeskQuery {
        stream: which.stream.clone(),
        key: key.map(Bytes::from),
        ..DeskQuery::default()
    };
    let (rows, more) = collect(store, query, ASKED_MAX)
        .await
        .map_err(|error| failed(&error))?;
    let mut lists = HashSet::new();
    let rows: Vec<DeskRow> = rows
        .into_iter()
        .filter(|row| {
            let first = !is_list(row) || lists.insert((row.stored.shard.clone(), row.list().cloned()));
            // To be sent, a list is asked by its first row; to be forgotten, all of it.
            row.asked.is_none() && (first || wish == Wish::Drop)
        })
        .collect();
    if more {
        out::note(format_args!(
            "only the first {ASKED_MAX} events set aside were looked at; run it again for the others"
        ));
    }
    if rows.is_empty() {
        out::error("nothing that is set aside fits, or something is asked of all of it already");
        return Err(Exit::Absent);
    }
    Ok(rows)
}
