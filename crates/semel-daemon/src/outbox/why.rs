//! `semel outbox why`: what holds events back, since when, and what to do.

use semel_core::Timestamp;
use semel_core::error::chain;
use semel_core::store::{Backlog, Hold, ShardBacklog, ShardStanding, Standing};
use serde::Serialize;
use serde_json::json;

use super::args::LookArgs;
use super::meant;
use super::show::{look, pairs};
use super::time::age;
use crate::exit::Exit;
use crate::keys::open;
use crate::out::{self, Colour, paint};
use crate::runtime;

/// A backlog that is younger is no reason for worry while somebody works on it.
const BEHIND_MS: i64 = 10_000;
/// Owners that died on one place from which on it is told.
const DEATHS: u32 = 2;

/// One thing that holds events back, or may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    /// A word for programs.
    pub(crate) what: &'static str,
    /// Where: a shard, a stream, or what the store names.
    pub(crate) at: String,
    /// For how long.
    pub(crate) age_ms: Option<i64>,
    /// What is known.
    pub(crate) detail: String,
    /// What to do.
    pub(crate) advice: String,
    /// Whether events that are committed cannot be sent because of it.
    pub(crate) blocks: bool,
}

/// `semel outbox why`.
pub(super) fn run(args: &LookArgs) -> Exit {
    let config = match meant(&args.store) {
        Ok(config) => config,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    runtime::small(async {
        let (reasons, hidden) = match open(&config).await {
            // A schema of another version, a server that is away: these hold everything.
            Err(message) => (vec![unopened(&config.name, message)], Vec::new()),
            Ok(store) => {
                let looked = match store.outbox() {
                    Ok(outbox) => look(&*outbox).await,
                    Err(error) => Err(error),
                };
                store.close().await;
                match looked {
                    Ok((backlog, standing)) => (reasons(&backlog, &standing), standing.hidden),
                    Err(error) => (vec![unopened(&config.name, chain(&error))], Vec::new()),
                }
            }
        };
        show(&config.name, &reasons, &hidden, args.json)
    })
}

fn unopened(store: &str, detail: String) -> Reason {
    Reason {
        what: "store",
        at: store.to_owned(),
        age_ms: None,
        detail,
        advice: "no relay can work on it either; semel check says more".to_owned(),
        blocks: true,
    }
}

fn show(store: &str, reasons: &[Reason], hidden: &[String], as_json: bool) -> Exit {
    let blocked = reasons.iter().any(|reason| reason.blocks);
    if as_json {
        out::data(json!({ "store": store, "blocked": blocked, "reasons": reasons, "hidden": hidden }));
    } else if out::terminal() {
        for reason in reasons {
            let colour = if reason.blocks { Colour::Red } else { Colour::Dim };
            let since = reason
                .age_ms
                .map(|ms| format!(" for {}", age(ms)))
                .unwrap_or_default();
            let what = paint(true, colour, reason.what);
            out::data(format_args!(
                "{what}  {}{since}\n  {}\n  {}\n",
                reason.at,
                reason.detail,
                paint(true, Colour::Dim, &format!("→ {}", reason.advice))
            ));
        }
        if !blocked {
            out::note("nothing holds events back");
        }
    } else {
        for reason in reasons {
            let since = reason.age_ms.map_or_else(|| "-".to_owned(), |ms| ms.to_string());
            let word = if reason.blocks { "blocks" } else { "note" };
            let (what, at) = (reason.what, &reason.at);
            out::data(format_args!(
                "{word}\t{what}\t{at}\t{since}\t{}\t{}",
                reason.detail, reason.advice
            ));
        }
    }
    if !as_json {
        for hidden in hidden {
            out::note(format_args!("not seen: {hidden}"));
        }
    }
    if blocked { Exit::Failed } else { Exit::Ok }
}

/// What holds events back, by what the store says; what blocks comes first, then the oldest.
pub(crate) fn reasons(backlog: &Backlog, standing: &Standing) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = standing.holds.iter().map(hold).collect();
    for (shard, stands) in pairs(backlog, standing) {
        of_shard(shard, stands, standing.now, &mut reasons);
    }
    for stream in &backlog.orphan_streams {
        reasons.push(Reason {
            what: "orphan_stream",
            at: stream.clone(),
            age_ms: None,
            detail: "events name this stream, and no relay has ever published it".to_owned(),
            advice: "add it to `streams` of a [[relay]], or mend the name where events are written"
                .to_owned(),
            blocks: true,
        });
    }
    reasons.sort_by_key(|reason| (!reason.blocks, std::cmp::Reverse(reason.age_ms)));
    reasons
}

fn hold(hold: &Hold) -> Reason {
    let blocks = !matches!(
        hold.kind,
        "open_transaction" | "prepared_transaction" | "held_snapshot"
    );
    Reason {
        what: hold.kind,
        at: hold.who.clone(),
        age_ms: hold.age_ms,
        detail: hold.detail.clone(),
        advice: hold.advice.clone(),
        blocks,
    }
}

fn of_shard(shard: &ShardBacklog, stands: &ShardStanding, now: Timestamp, reasons: &mut Vec<Reason>) {
    let at = shard.shard.to_string();
    let stream = &shard.shard.stream;
    let waiting = format!(
        "{}{} events wait, the oldest for {}",
        shard.rows,
        if shard.rows >= semel_core::store::BACKLOG_ROWS_COUNTED_MAX {
            " or more"
        } else {
            ""
        },
        age(shard.oldest_ms.unwrap_or(0))
    );
    let mut add = |what, age_ms, detail: String, advice: String, blocks| {
        reasons.push(Reason {
            what,
            at: at.clone(),
            age_ms,
            detail,
            advice,
            blocks,
        });
    };
    let since_note = stands.noted_at.map(|at| now.ms_since(at));
    if !stands.held {
        let last = match (&stands.until, stands.owner.as_str()) {
            (Some(until), owner) => format!("the lease of `{owner}` ended {} ago", age(now.ms_since(*until))),
            (None, _) => "it was given back, or nobody has had it yet".to_owned(),
        };
        let said = stands
            .note
            .as_ref()
            .map(|note| format!("; its last owner said: {note}"))
            .unwrap_or_default();
        let advice = format!(
            "start `semel run` with a [[relay]] for the stream {stream}; if one runs, its /readyz and log say why it takes nothing"
        );
        let age = stands.until.map(|until| now.ms_since(until)).or(since_note);
        let blocks = shard.rows > 0 || stands.asked > 0;
        add(
            "nobody_owns_it",
            age,
            format!("{last}{said}; {waiting}"),
            advice,
            blocks,
        );
    } else if let Some(note) = &stands.note {
        let (what, advice) = match note.split(':').next() {
            Some("away") => ("receiver_away", "the receiver has to answer; the relay tries by itself, nothing is lost and no attempt spent".to_owned()),
            Some("destination") => ("destination_wrong", "make the destination or give the right; the relay tries by itself".to_owned()),
            Some("poison") => ("poison_blocks", "mend the receiver, or give the relay `poison = \"park_key\"`: then the event is set aside with its key, and the others go on".to_owned()),
            _ => ("relay_says", "see its log".to_owned()),
        };
        let detail = format!("`{}` owns it and says: {note}; {waiting}", stands.owner);
        add(
            what,
            since_note,
            detail,
            advice,
            shard.rows > 0 || stands.asked > 0 || what == "poison_blocks",
        );
    } else if shard.oldest_ms.is_some_and(|ms| ms > BEHIND_MS) {
        let lease = stands
            .until
            .map(|until| age(until.ms_since(now)))
            .unwrap_or_default();
        let detail = format!(
            "`{}` owns it for another {lease} and says nothing is wrong; {waiting}",
            stands.owner
        );
        let advice =
            "it works the backlog off, or a send takes long: look again, and at semel_relay_published_total"
                .to_owned();
        add("behind", shard.oldest_ms, detail, advice, false);
    }
    if shard.takeovers >= DEATHS {
        let detail = format!(
            "{} owners in a row died on the same place of a batch",
            shard.takeovers
        );
        let advice = "look for their last log lines; an event that kills its relay is found and becomes poison by itself".to_owned();
        add("owners_die", None, detail, advice, false);
    }
    if shard.exceptions > 0 {
        let age = stands.oldest_exception.map(|at| now.ms_since(at));
        let detail = format!(
            "{} events are set aside, {} keys parked, something is asked of {}",
            shard.exceptions, stands.parked_keys, stands.asked
        );
        let advice = format!("semel outbox parked list --stream {stream}; then retry, edit or drop them");
        add("set_aside", age, detail, advice, stands.parked_keys > 0);
    }
}

#[cfg(test)]
mod tests {
    use semel_core::relay::ShardId;

    use super::*;

    fn shard(rows: u64) -> (Backlog, Standing) {
        let id = ShardId {
            stream: "orders".to_owned(),
            index: 3,
        };
        let backlog = Backlog {
            shards: vec![ShardBacklog {
                shard: id.clone(),
                owner: Some("orders pid 7".to_owned()),
                rows,
                oldest_ms: (rows > 0).then_some(5_000),
                exceptions: 0,
                batch_no: 1,
                takeovers: 0,
            }],
            orphan_streams: Vec::new(),
        };
        let standing = Standing {
            now: Timestamp(100_000_000),
            shards: vec![ShardStanding {
                shard: id,
                owner: "orders pid 7".to_owned(),
                until: Some(Timestamp(110_000_000)),
                held: true,
                note: None,
                noted_at: None,
                parked_keys: 0,
                asked: 0,
                oldest_exception: None,
            }],
            holds: Vec::new(),
            hidden: Vec::new(),
        };
        (backlog, standing)
    }

    fn only(backlog: &Backlog, standing: &Standing) -> Reason {
        let mut reasons = reasons(backlog, standing);
        assert_eq!(reasons.len(), 1, "{reasons:?}");
        reasons.remove(0)
    }

    #[test]
    fn an_outbox_that_works_has_no_reason() {
        let (backlog, standing) = shard(4);
        assert_eq!(reasons(&backlog, &standing), []);
    }

    #[test]
    fn a_shard_without_an_owner_names_the_last_one_and_its_words() {
        let (backlog, mut standing) = shard(4);
        let stands = &mut standing.shards[0];
        (stands.held, stands.until) = (false, Some(Timestamp(40_000_000)));
        stands.note = Some("stopped: another cluster".to_owned());
        let reason = only(&backlog, &standing);
        assert_eq!(
            (reason.what, reason.at.as_str(), reason.age_ms),
            ("nobody_owns_it", "orders/3", Some(60_000))
        );
        assert!(
            reason.blocks
                && reason.detail.contains("orders pid 7")
                && reason.detail.contains("another cluster")
        );
        let (backlog, mut idle) = shard(0);
        idle.shards[0].held = false;
        assert!(!only(&backlog, &idle).blocks, "nothing waits");
    }

    #[test]
    fn what_the_owner_says_has_a_word_an_age_and_an_advice() {
        for (note, what) in [
            ("away: connection refused", "receiver_away"),
            ("destination: no such topic", "destination_wrong"),
            ("poison: 422", "poison_blocks"),
        ] {
            let (backlog, mut standing) = shard(4);
            standing.shards[0].note = Some(note.to_owned());
            standing.shards[0].noted_at = Some(Timestamp(70_000_000));
            let reason = only(&backlog, &standing);
            assert_eq!(
                (reason.what, reason.age_ms, reason.blocks),
                (what, Some(30_000), true)
            );
            assert!(reason.detail.contains(note), "{reason:?}");
        }
    }

    #[test]
    fn a_long_backlog_parked_keys_deaths_and_unknown_streams_are_told() {
        let (mut backlog, mut standing) = shard(4);
        backlog.shards[0].oldest_ms = Some(60_000);
        backlog.shards[0].takeovers = 3;
        backlog.shards[0].exceptions = 5;
        standing.shards[0].parked_keys = 2;
        standing.shards[0].oldest_exception = Some(Timestamp(10_000_000));
        backlog.orphan_streams = vec!["typo".to_owned()];
        standing.holds.push(Hold {
            kind: "open_transaction",
            who: "pid 9".to_owned(),
            age_ms: Some(5),
            detail: "idle in transaction".to_owned(),
            advice: "end it".to_owned(),
        });
        let told: Vec<_> = reasons(&backlog, &standing)
            .iter()
            .map(|it| (it.what, it.blocks))
            .collect();
        let expected = [
            ("set_aside", true),
            ("orphan_stream", true),
            ("behind", false),
            ("open_transaction", false),
            ("owners_die", false),
        ];
        assert_eq!(told, expected);
    }
}
