//! What an operator changes: shown first, asked for, done under the token that was shown, and said on stderr with who and
//! why.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use semel_core::claim::{Keep, LeaseReply, Record, Release, Settlement, State, Token, Verdict};
use semel_core::error::chain;
use semel_core::store::KeyQuery;
use semel_core::{
    Clock as _, Key, KeyStore as _, KeyStoreExt as _, Retry, Scope, StoreError, StoredOutcome, SystemClock,
};

use super::args::{PersonArgs, ReleaseArgs, SettleArgs};
use super::show::{described, find, named, text};
use crate::api::request::Person;
use crate::exit::Exit;
use crate::out;
use crate::store::Store;

/// `semel keys settle`.
pub(super) async fn settle(store: &Store, key: &Key, args: &SettleArgs) -> Exit {
    let verdict = match verdict(args) {
        Ok(verdict) => verdict,
        Err(message) => {
            out::error(message);
            return Exit::Usage;
        }
    };
    let record = match find(store, key).await {
        Ok(record) => record,
        Err(exit) => return exit,
    };
    let token = match (args.token, &record.state) {
        (Some(token), _) => Token(token),
        (None, State::Unknown { lease, .. }) => lease.token,
        (None, _) => {
            out::note(described(key, &record));
            out::error("only an unknown key can be settled; nothing was changed");
            return Exit::Changed;
        }
    };
    let what = match &verdict {
        Verdict::Happened(StoredOutcome::Succeeded(_)) => "as succeeded",
        Verdict::Happened(StoredOutcome::Refused(_)) => "as refused",
        Verdict::Happened(StoredOutcome::Forgotten) => "as done, without an output",
        Verdict::DidNotHappen => "as not happened: the next claim runs it",
        Verdict::Closed => "as closed",
    };
    if let Err(exit) = agreed(key, &record, &format!("settle it {what}"), &args.person) {
        return exit;
    }
    let settlement = Settlement {
        key: key.clone(),
        token,
        verdict,
        keep: Keep::default(),
    };
    if let Err(limit) = settlement.check() {
        out::error(limit);
        return Exit::Usage;
    }
    let reply = store.keys().settle(&settlement).await;
    ended(key, &format!("settled {what}"), token, &args.person, reply)
}

fn verdict(args: &SettleArgs) -> Result<Verdict, String> {
    let output = || -> Result<bytes::Bytes, String> {
        match (&args.output, &args.output_file) {
            (Some(text), _) => Ok(text.clone().into()),
            (None, Some(path)) => std::fs::read(path)
                .map(Into::into)
                .map_err(|error| format!("{}: {error}", path.display())),
            (None, None) => Ok(bytes::Bytes::new()),
        }
    };
    Ok(if args.succeeded {
        Verdict::Happened(StoredOutcome::Succeeded(output()?))
    } else if args.refused {
        Verdict::Happened(StoredOutcome::Refused(output()?))
    } else if args.forgotten {
        Verdict::Happened(StoredOutcome::Forgotten)
    } else {
        Verdict::DidNotHappen
    })
}

/// `semel keys release`.
pub(super) async fn release(store: &Store, key: &Key, args: &ReleaseArgs) -> Exit {
    let record = match find(store, key).await {
        Ok(record) => record,
        Err(exit) => return exit,
    };
    let State::Claimed { lease, .. } = record.state else {
        out::note(described(key, &record));
        let hint = match record.state {
            State::Unknown { .. } => "settle it instead (--did-not-happen)",
            _ => "it has ended",
        };
        out::error(format_args!(
            "only a claimed key can be released: {hint}; nothing was changed"
        ));
        return Exit::Changed;
    };
    let what = "release it: the next claim runs it, although its owner may be alive";
    if let Err(exit) = agreed(key, &record, what, &args.person) {
        return exit;
    }
    let release = Release {
        key: key.clone(),
        nonce: lease.nonce,
        token: Some(lease.token),
    };
    let reply = store.keys().release(&release).await;
    ended(key, "released", lease.token, &args.person, reply)
}

/// `semel keys close`.
pub(super) async fn close(store: &Store, scope: &Scope, person: &PersonArgs) -> Exit {
    let name = text(scope.as_bytes());
    let keys = store.keys();
    let look = KeyQuery {
        scope: Some(scope.clone()),
        limit: 1,
        ..KeyQuery::default()
    };
    match keys.list(&look).await {
        Ok(page) if page.records.is_empty() && page.next.is_none() => {
            out::error(format_args!("there is no key in the scope {name}"));
            return Exit::Absent;
        }
        Ok(_) => {}
        Err(error) => {
            out::error(chain(&error));
            return Exit::Failed;
        }
    }
    let shown = format!("scope   {name}");
    let what = "close it: of every key only a tombstone stays, and what runs may not store its outcome";
    if let Err(exit) = asked(&shown, what, person) {
        return exit;
    }
    match semel_keys::close_scope(&*keys, scope, Keep::default()).await {
        Ok(closed) => {
            out::note(format_args!(
                "{} {name} closed, {closed} keys, by {}: {}",
                SystemClock.now().rfc3339(),
                person.by,
                person.why
            ));
            Exit::Ok
        }
        Err(error) => {
            out::error(format_args!(
                "{}; what was closed stays closed: repeat the command",
                chain(&error)
            ));
            Exit::Failed
        }
    }
}

/// Shows what is about to change, and asks unless told not to.
fn agreed(key: &Key, record: &Record, what: &str, person: &PersonArgs) -> Result<(), Exit> {
    asked(&described(key, record), what, person)
}

/// Shows what is about to change, and asks unless told not to.
pub(crate) fn asked(shown: &str, what: &str, person: &PersonArgs) -> Result<(), Exit> {
    let checked = Person {
        by: person.by.clone(),
        why: person.why.clone(),
    };
    if let Err(limit) = checked.check() {
        out::error(limit);
        return Err(Exit::Usage);
    }
    if person.yes {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        out::error("this asks a person; add --yes where there is none");
        return Err(Exit::Usage);
    }
    out::note(shown);
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "\n{what}? [y/N] ").and_then(|()| stderr.flush());
    drop(stderr);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    out::note("nothing was changed");
    Err(Exit::Failed)
}

fn ended(
    key: &Key,
    did: &str,
    token: Token,
    person: &PersonArgs,
    reply: Result<LeaseReply, StoreError>,
) -> Exit {
    match reply {
        Ok(LeaseReply::Ok(_)) => {
            out::note(format_args!(
                "{} {} (token {}) {did}, by {}: {}",
                SystemClock.now().rfc3339(),
                named(key),
                token.0,
                person.by,
                person.why
            ));
            Exit::Ok
        }
        Ok(LeaseReply::LeaseLost | LeaseReply::Conflict) => {
            out::error("the key stands otherwise by now; nothing was changed: look at it again");
            Exit::Changed
        }
        Err(error) => {
            let then = match error.retry() {
                Retry::OutcomeUnknown => "it may have been done: the same command may be repeated",
                Retry::Later | Retry::Never => "nothing was changed",
            };
            out::error(format_args!("{}; {then}", chain(&error)));
            Exit::Failed
        }
    }
}
