//! `semel outbox replay` and `rescan`: sending again what was sent.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use semel_core::error::chain;
use semel_core::host::uuid_v7;
use semel_core::relay::Pace;
use semel_core::store::{OutboxStore, REPLAY_ROWS_MAX, Replay, ReplayedRow, Rescan};
use semel_core::{Clock as _, StoreError, SystemClock};
use serde_json::{Value, json};

use super::args::{IdsArg, ReplayArgs, RescanArgs};
use super::failed;
use super::show::desk;
use super::time;
use crate::exit::Exit;
use crate::{config, keys, out};

/// `semel outbox rescan`.
pub(super) async fn rescan(store: &dyn OutboxStore, args: &RescanArgs) -> Exit {
    let run = async |dry_run| -> Result<Rescan, StoreError> {
        desk(store)?
            .rescan(args.stream.as_deref(), &args.person.by, &args.person.why, dry_run)
            .await
    };
    let dry = match run(true).await {
        Ok(dry) => dry,
        Err(error) => return failed(&error),
    };
    if dry.shards == 0 {
        let stream = args.stream.as_deref().unwrap_or("any name");
        out::error(format_args!(
            "no stream of {stream} is registered: nothing was ever sent from here"
        ));
        return Exit::Absent;
    }
    let mut shown = format!(
        "{} events are kept and are sent again, from {} shards",
        dry.rows, dry.shards
    );
    for (shard, owner) in &dry.owned {
        let _ = write!(
            shown,
            "\nshard {shard} is owned by `{owner}`, which loses it: stop the relays first"
        );
    }
    if args.dry_run {
        if args.look.json {
            out::data(rescan_json(&dry, false));
        } else {
            out::data(shown);
            out::note("nothing was changed");
        }
        return Exit::Ok;
    }
    let what =
        "send all of it again, in order and with the same ids: receivers have to drop what they have had";
    if let Err(exit) = keys::asked(&shown, what, &args.person) {
        return exit;
    }
    match run(false).await {
        Ok(done) => {
            if args.look.json {
                out::data(rescan_json(&done, true));
            }
            out::note(format_args!(
                "{} shards begin anew, {} events are sent again, by {}: {}",
                done.shards, done.rows, args.person.by, args.person.why
            ));
            Exit::Ok
        }
        Err(error) => failed(&error),
    }
}

fn rescan_json(rescan: &Rescan, done: bool) -> Value {
    let owned: Vec<Value> = rescan
        .owned
        .iter()
        .map(|(shard, owner)| json!({ "stream": shard.stream, "shard": shard.index, "owner": owner }))
        .collect();
    json!({ "events": rescan.rows, "shards": rescan.shards, "owned": owned, "done": done })
}

/// The relay that publishes the stream into a log, by the configuration.
fn into_a_log(args: &ReplayArgs) -> Option<String> {
    let from = &args.look.store;
    // A store given by its URL may have no configuration beside it.
    let config = config::load(&from.config.path).ok()?;
    let relay = config.relays.into_iter().find(|relay| {
        relay.sink.transaction_rows().is_some()
            && relay.streams.contains(&args.stream)
            && from.name.as_ref().is_none_or(|name| *name == relay.store)
    })?;
    Some(relay.name)
}

/// `semel outbox replay`.
pub(super) async fn replay(store: &dyn OutboxStore, args: &ReplayArgs) -> Exit {
    let mut replay = match replay_of(args) {
        Ok(replay) => replay,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    if let (IdsArg::Same, Some(relay)) = (args.ids, into_a_log(args)) {
        out::error(format_args!(
            "relay {relay} publishes the stream {} in Kafka transactions, which have each event once under its id and take no repeat: \
             --ids fresh sends copies with ids of their own",
            args.stream
        ));
        return Exit::Usage;
    }
    match desk(store) {
        Ok(desk) => match desk.last_row().await {
            // What is copied lies behind it: a replay never meets its own copies, and ends while others write.
            Ok(last) => replay.upto = last,
            Err(error) => return failed(&error),
        },
        Err(error) => return failed(&error),
    }
    let dry = Replay {
        dry_run: true,
        ..replay.clone()
    };
    // What would be sent is counted first, so that a person agrees to a number.
    let found = match run(store, dry, args.limit, Pace::new(0), |_| {}).await {
        Ok(found) => found,
        Err((_, error)) => return failed(&error),
    };
    if args.dry_run {
        if args.look.json {
            let rows: Vec<Value> = found.rows.iter().map(row_json).collect();
            out::data(json!({ "events": rows, "more": found.more, "done": false }));
        } else {
            print(&found.rows);
            let more = if found.more { " or more; --limit N" } else { "" };
            out::note(format_args!(
                "would send {}{more}; nothing was sent",
                found.rows.len()
            ));
        }
        return Exit::Ok;
    }
    if found.rows.is_empty() {
        out::note("nothing that is kept and was sent fits");
        return Exit::Absent;
    }
    let ids = match args.ids {
        IdsArg::Same => {
            "with the same ids: receivers that drop what they have had take only what they have not"
        }
        IdsArg::Fresh => "with ids of their own: receivers take them once more",
    };
    let more = if found.more { ", the first of more" } else { "" };
    let count = found.rows.len();
    let shown = format!(
        "{count} events of the stream {}{more}, {ids}, in {} s at least (--rate {})",
        args.stream,
        count / args.rate as usize,
        args.rate
    );
    if let Err(exit) = keys::asked(&shown, "send them again, behind all that wait", &args.person) {
        return exit;
    }
    let why = format!(
        "{} (replay {}, {} events)",
        args.person.why,
        replay.id,
        found.rows.len()
    );
    let logged = match desk(store) {
        Ok(desk) => {
            desk.log_about(&args.stream, "replay", &args.person.by, &why)
                .await
        }
        Err(error) => Err(error),
    };
    if let Err(error) = logged {
        out::error(format_args!("{}; nothing was sent", chain(&error)));
        return Exit::Failed;
    }
    let json = args.look.json;
    let done = run(store, replay.clone(), args.limit, Pace::new(args.rate), |rows| {
        if !json {
            print(rows);
        }
    })
    .await;
    match done {
        Ok(done) => {
            if json {
                let rows: Vec<Value> = done.rows.iter().map(row_json).collect();
                out::data(json!({ "replay": replay.id, "events": rows, "more": done.more, "done": true }));
            }
            out::note(format_args!(
                "{} events are sent again (header semel-replay: {}), by {}: {}",
                done.rows.len(),
                replay.id,
                args.person.by,
                args.person.why
            ));
            Exit::Ok
        }
        Err((done, error)) => {
            let last = done.rows.last().map_or(args.after, |row| row.row);
            out::error(format_args!(
                "{}; {} events up to row {last} are sent again; go on with --after {last}, which may repeat up to {} of them",
                chain(&error),
                done.rows.len(),
                REPLAY_ROWS_MAX
            ));
            Exit::Failed
        }
    }
}

fn replay_of(args: &ReplayArgs) -> Result<Replay, String> {
    let now = SystemClock.now();
    let time = |text: &Option<String>| text.as_deref().map(|text| time::parse(text, now)).transpose();
    Ok(Replay {
        stream: args.stream.clone(),
        from: time(&args.from)?,
        to: time(&args.to)?,
        key: args.key.as_deref().map(keys::bytes).transpose()?.map(Bytes::from),
        topic: args.topic.clone(),
        after: args.after,
        upto: 0,
        limit: 0,
        id: uuid_v7(&SystemClock),
        fresh_ids: args.ids == IdsArg::Fresh,
        dry_run: false,
    })
}

fn now_ms() -> u64 {
    u64::try_from(SystemClock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// What was done, or would be.
#[derive(Default)]
struct Found {
    rows: Vec<ReplayedRow>,
    more: bool,
}

/// Page after page up to `limit`; each is a transaction of its own. With what was done where one fails.
async fn run(
    store: &dyn OutboxStore,
    mut replay: Replay,
    limit: u64,
    mut pace: Pace,
    mut each: impl FnMut(&[ReplayedRow]),
) -> Result<Found, (Found, StoreError)> {
    let mut found = Found::default();
    loop {
        let left = limit.saturating_sub(found.rows.len() as u64);
        if left == 0 {
            found.more = true;
            return Ok(found);
        }
        let now = now_ms();
        tokio::time::sleep(Duration::from_millis(pace.due_ms().saturating_sub(now))).await;
        replay.limit = u32::try_from(left)
            .unwrap_or(u32::MAX)
            .min(REPLAY_ROWS_MAX)
            .min(pace.at_once());
        let page = match desk(store) {
            Ok(desk) => desk.replay(&replay).await,
            Err(error) => Err(error),
        };
        let page = match page {
            Ok(page) => page,
            Err(error) => return Err((found, error)),
        };
        pace.done(now_ms(), u32::try_from(page.rows.len()).unwrap_or(u32::MAX));
        each(&page.rows);
        let last = page.rows.last().map(|row| row.row);
        found.rows.extend(page.rows);
        match last {
            Some(last) if page.more => replay.after = last,
            _ => return Ok(found),
        }
    }
}

fn print(rows: &[ReplayedRow]) {
    let lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let key = row
                .key
                .as_ref()
                .map_or_else(|| "-".to_owned(), |key| keys::text(key));
            let id = if row.copy_id.is_nil() {
                row.event_id
            } else {
                row.copy_id
            };
            format!(
                "{}\t{id}\t{}\t{key}\t{}",
                row.row,
                row.topic,
                row.created_at.rfc3339()
            )
        })
        .collect();
    if !lines.is_empty() {
        out::data(lines.join("\n"));
    }
}

fn row_json(row: &ReplayedRow) -> Value {
    json!({
        "row": row.row,
        "id": row.event_id,
        "copy_id": (!row.copy_id.is_nil()).then_some(row.copy_id),
        "topic": row.topic,
        "key": row.key.as_ref().map(semel_core::relay::bytes_json),
        "created_at": row.created_at.rfc3339(),
    })
}
