//! `semel outbox partition`: an outbox on PostgreSQL in partitions, and whole again.

use super::args::PartitionArgs;
use super::meant;
use crate::exit::Exit;
use crate::keys::with_store_of;
use crate::out;
use crate::store::Store;

/// `semel outbox partition`.
pub(super) fn run(args: &PartitionArgs) -> Exit {
    let config = match meant(&args.look.store) {
        Ok(config) => config,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    with_store_of(&config, async |store: &Store| {
        #[cfg(feature = "postgres")]
        if let Store::Postgres(db) = store {
            return of_postgres::change(db, args).await;
        }
        let _ = store;
        out::error(format_args!(
            "{} ({}): only an outbox on PostgreSQL can be in partitions; elsewhere `keep_ms` of the relay deletes what was sent",
            config.name, config.url
        ));
        Exit::Usage
    })
}

#[cfg(feature = "postgres")]
mod of_postgres {
    use std::fmt::Write as _;
    use std::time::Duration;

    use semel_core::error::chain;
    use semel_core::store::{Hold, OutboxStore as _, Partitions};
    use semel_core::{Retry, StoreError};
    use semel_postgres::{
        PARTITION_LOCK_WAIT, PARTITIONS_HELD, PARTITIONS_REFUSED, PartitionChange, Partitioning, Postgres,
    };
    use serde_json::{Value, json};

    use super::super::args::PartitionArgs;
    use super::super::time::{age, length};
    use super::super::{failed, show};
    use crate::exit::Exit;
    use crate::{keys, out};

    /// Rows that are copied in a second, for telling how long it takes.
    const COPIED_A_SECOND: u64 = 50_000;

    pub(super) async fn change(db: &Postgres, args: &PartitionArgs) -> Exit {
        let looked = match db.partitions().await {
            Ok(now) => db
                .partition_outlook(args.rows_max)
                .await
                .map(|(rows, waits)| (now, rows, waits)),
            Err(error) => Err(error),
        };
        let (now, rows, waits) = match looked {
            Ok(looked) => looked,
            Err(error) => return failed(&error),
        };
        let change = match wanted(args, now.as_ref()) {
            Ok(change) => change,
            Err(message) => {
                out::error(message);
                return Exit::Usage;
            }
        };
        let then = match change {
            PartitionChange::On(on) => Some(on),
            PartitionChange::Off { .. } => None,
        };
        if let Some(already) = already(now.as_ref(), then) {
            out::error(format_args!("{already} already; nothing was changed"));
            return Exit::Changed;
        }
        // Where it is in partitions and stays so, only what is made from now on is another.
        let copied = if now.is_some() && then.is_some() { 0 } else { rows };
        let shown = shown(now.as_ref(), then, copied, args.rows_max);
        if args.dry_run {
            if args.look.json {
                out::data(as_json(now.as_ref(), then, copied, &waits, false));
            } else {
                out::data(shown);
                show::note_holds(&waits);
                out::note("nothing was changed");
            }
            return Exit::Ok;
        }
        let wait = PARTITION_LOCK_WAIT.as_secs();
        let what = format!(
            "let everybody who writes or relays events wait meanwhile, for {wait} s at most before it begins"
        );
        if let Err(exit) = keys::asked(&shown, &what, &args.person) {
            return exit;
        }
        let said = Some((args.person.by.as_str(), args.person.why.as_str()));
        match db.change_partitions(change, said).await {
            Ok(rows) => {
                if args.look.json {
                    out::data(as_json(now.as_ref(), then, rows, &[], true));
                }
                let now = match db.partitions().await {
                    Ok(Some(found)) => show::in_partitions(&found),
                    Ok(None) => "the outbox is one table".to_owned(),
                    // It is done all the same.
                    Err(_) => then
                        .map_or("the outbox is one table", |_| "the outbox is in partitions")
                        .to_owned(),
                };
                out::note(format_args!(
                    "{now}; {rows} events were copied, by {}: {}",
                    args.person.by, args.person.why
                ));
                Exit::Ok
            }
            Err(error) => refused(&error),
        }
    }

    /// What is to become of it, by the arguments and by how it is.
    fn wanted(args: &PartitionArgs, now: Option<&Partitions>) -> Result<PartitionChange, String> {
        if args.off {
            return Ok(PartitionChange::Off {
                rows_max: args.rows_max,
            });
        }
        let usual = Partitioning::default();
        let width = match (&args.width, now) {
            (Some(text), _) => length(text)?,
            (None, Some(now)) => Duration::from_millis(now.width_ms.unsigned_abs()),
            (None, None) => usual.width,
        };
        Ok(PartitionChange::On(Partitioning {
            width,
            ahead: args
                .ahead
                .unwrap_or_else(|| now.map_or(usual.ahead, |now| now.premake)),
            rows_max: args.rows_max,
        }))
    }

    /// What is so already, if it is.
    fn already(now: Option<&Partitions>, then: Option<Partitioning>) -> Option<String> {
        match (now, then) {
            (None, None) => Some("the outbox is one table".to_owned()),
            (Some(now), Some(then)) => {
                let same = millis(then.width) == now.width_ms && then.ahead == now.premake;
                same.then(|| {
                    format!(
                        "the outbox is in partitions of {}, {} made ahead,",
                        age(now.width_ms),
                        now.premake
                    )
                })
            }
            _ => None,
        }
    }

    fn shown(now: Option<&Partitions>, then: Option<Partitioning>, rows: u64, rows_max: u64) -> String {
        let mut text = match (now, then) {
            (None, Some(then)) => format!(
                "the outbox becomes one in partitions of {}, {} made ahead",
                age(millis(then.width)),
                then.ahead
            ),
            (Some(now), Some(then)) => format!(
                "partitions made from now on are of {}, {} made ahead; until now of {} and {}",
                age(millis(then.width)),
                then.ahead,
                age(now.width_ms),
                now.premake
            ),
            (_, None) => "the outbox becomes one table again".to_owned(),
        };
        if rows > rows_max {
            let _ = write!(
                text,
                "\nmore than {rows_max} events are kept, so it is refused: --rows-max, or let them be deleted first"
            );
        } else if rows > 0 {
            let _ = write!(
                text,
                "\n{rows} events are kept and are copied, in about {} s",
                rows.div_ceil(COPIED_A_SECOND)
            );
        }
        text
    }

    fn millis(width: Duration) -> i64 {
        i64::try_from(width.as_millis()).unwrap_or(i64::MAX)
    }

    fn as_json(
        now: Option<&Partitions>,
        then: Option<Partitioning>,
        rows: u64,
        waits: &[Hold],
        done: bool,
    ) -> Value {
        json!({
            "before": now.map(|now| json!({ "width_ms": now.width_ms, "ahead": now.premake })),
            "after": then.map(|then| json!({ "width_ms": millis(then.width), "ahead": then.ahead })),
            "copied": rows,
            "waits": show::holds_json(waits),
            "done": done,
        })
    }

    fn refused(error: &StoreError) -> Exit {
        let code = error.code();
        if code == PARTITIONS_HELD || code == PARTITIONS_REFUSED {
            out::error(chain(error));
            return Exit::Changed;
        }
        let then = match error.retry() {
            Retry::OutcomeUnknown => "it may have been done: semel outbox list says how it is",
            Retry::Later | Retry::Never => "nothing was changed",
        };
        out::error(format_args!("{}; {then}", chain(error)));
        Exit::Failed
    }
}
