//! What Redis' answers to one transaction mean for its rows.

use redis::{RedisError, Value};
use semel_core::StoreError;
use semel_core::store::{SinkError, SinkErrorClass};

type Result1 = Result<(), SinkError>;

/// The results of `rows` rows that went each by itself. `answers` are those to each `XADD`, and to `WAIT` where `replicas` is not 0.
pub(super) fn judge_each(answers: Vec<Value>, rows: usize, replicas: u32) -> Vec<Result1> {
    let mut answers = answers.into_iter();
    // An answer that is missing is none.
    let results = (0..rows).map(|_| added(answers.next().unwrap_or(Value::Okay)));
    let results = results.collect();
    unless_confirmed(results, replicas, answers.next().as_ref())
}

/// The results of `rows` rows of one transaction. `answers` are those to `MULTI`, each `XADD`, `EXEC`, and `WAIT` where `replicas`
/// is not 0.
pub(super) fn judge(answers: Vec<Value>, rows: usize, replicas: u32) -> Vec<Result1> {
    let mut answers = answers.into_iter();
    let _multi = answers.next();
    // Refused when it was queued: then nothing is done, and EXEC says no more than that.
    for index in 0..rows {
        let queued = answers.next().unwrap_or(Value::Nil);
        if let Err(error) = queued.extract_error() {
            return nothing(rows, index, refused(&error));
        }
    }
    let done = match answers.next().unwrap_or(Value::Nil) {
        // Not by `extract_error`, which takes the first error in a list for that of the list.
        Value::Array(done) if done.len() == rows => done,
        error @ Value::ServerError(_) => {
            let error = error.extract_error().err();
            let why = error.as_ref().map_or_else(|| unreadable("EXEC"), refused);
            return nothing(rows, 0, why);
        }
        _ => return nothing(rows, 0, unreadable("EXEC")),
    };
    let results = done.into_iter().map(added).collect();
    unless_confirmed(results, replicas, answers.next().as_ref())
}

/// What the answer to one `XADD` means.
fn added(answer: Value) -> Result1 {
    match answer.extract_error() {
        Ok(Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. }) => Ok(()),
        Ok(Value::Nil) => Err(SinkError::new(
            SinkErrorClass::Destination,
            "the stream does not exist and create_streams is false; make it (XGROUP CREATE … MKSTREAM)",
        )),
        Ok(_) => Err(unreadable("XADD")),
        Err(error) => Err(refused(&error)),
    }
}

/// What was added is acknowledged only with enough replicas.
fn unless_confirmed(mut results: Vec<Result1>, replicas: u32, wait: Option<&Value>) -> Vec<Result1> {
    if let Err(error) = confirmed_by(replicas, wait) {
        for result in &mut results {
            if result.is_ok() {
                *result = Err(error.clone());
            }
        }
    }
    results
}

/// Whether the answer to `WAIT`, the last one, counts enough replicas.
pub(super) fn confirmed(answers: &[Value], replicas: u32) -> Result1 {
    confirmed_by(replicas, answers.last())
}

fn confirmed_by(replicas: u32, wait: Option<&Value>) -> Result1 {
    let confirmed = match wait {
        Some(Value::Int(confirmed)) => *confirmed,
        _ => 0,
    };
    if replicas == 0 || confirmed >= i64::from(replicas) {
        return Ok(());
    }
    Err(away(format!(
        "{confirmed} of {replicas} replicas have confirmed it in time; bring the replicas back, or lower replicas_min"
    )))
}

/// Nothing of it was done: the row at fault, and the others that were held back with it.
fn nothing(rows: usize, at: usize, error: SinkError) -> Vec<Result1> {
    let one = |index| Err(if index == at { error.clone() } else { held_back() });
    (0..rows).map(one).collect()
}

pub(super) fn held_back() -> SinkError {
    SinkError::new(SinkErrorClass::HeldBack, "another row of the same call failed")
}

fn unreadable(command: &str) -> SinkError {
    away(format!("Redis' answer to {command} cannot be read"))
}

fn away(text: String) -> SinkError {
    SinkError::new(SinkErrorClass::Away, text)
}

/// An answer of the server. What is not known to be lasting is taken for something that passes: then a relay waits and loses
/// nothing.
fn refused(error: &RedisError) -> SinkError {
    let class = match error.code().unwrap_or_default() {
        // The key is no stream; the user may not; it is a cluster; it does not know the command. `ERR` is everything
        // that has no code of its own, none of which passes by itself.
        "WRONGTYPE" | "NOPERM" | "NOAUTH" | "WRONGPASS" | "MOVED" | "ASK" | "CROSSSLOT" | "ERR" => {
            SinkErrorClass::Destination
        }
        // Full, loading, a replica, a fail-over, slots without a node, too few replicas, no disk, a long script.
        _ => SinkErrorClass::Away,
    };
    // In the server's own words.
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    SinkError::new(class, text)
}

/// A connection that could not be made, broke, or brought no answer.
pub(super) fn failed(error: &StoreError) -> SinkError {
    let class = match error.kind() {
        semel_core::ErrorKind::Invalid => SinkErrorClass::Destination,
        _ => SinkErrorClass::Away,
    };
    SinkError::new(class, semel_core::error::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> Value {
        let mut bytes = line.as_bytes().to_vec();
        bytes.extend_from_slice(b"\r\n");
        redis::parse_redis_value(&bytes).unwrap()
    }

    fn queued() -> Value {
        Value::SimpleString("QUEUED".to_owned())
    }

    fn id() -> Value {
        Value::BulkString(b"1-1".to_vec())
    }

    fn classes(results: &[Result1]) -> Vec<Option<SinkErrorClass>> {
        results
            .iter()
            .map(|it| it.as_ref().err().map(|error| error.class))
            .collect()
    }

    #[test]
    fn what_is_refused_when_queued_holds_all_others_back() {
        use SinkErrorClass::{Away, Destination, HeldBack};
        for (line, class) in [
            ("-OOM command not allowed when used memory > 'maxmemory'.", Away),
            ("-LOADING Redis is loading the dataset in memory", Away),
            ("-READONLY You can't write against a read only replica.", Away),
            (
                "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                Away,
            ),
            ("-CLUSTERDOWN Hash slot not served", Away),
            ("-NOREPLICAS Not enough good replicas to write.", Away),
            ("-MISCONF Redis is configured to save RDB snapshots", Away),
            ("-SOMETHING new", Away),
            (
                "-NOPERM this user has no permissions to run the 'xadd' command",
                Destination,
            ),
            ("-MOVED 3999 127.0.0.1:6381", Destination),
            ("-ERR unknown command 'XADD'", Destination),
        ] {
            let answers = vec![
                Value::Okay,
                queued(),
                error(line),
                error("-EXECABORT Transaction discarded because of previous errors."),
            ];
            let results = judge(answers, 2, 0);
            assert_eq!(
                classes(&results),
                [Some(HeldBack), Some(class)],
                "{line}: {results:?}"
            );
        }
    }

    #[test]
    fn what_fails_when_run_fails_alone() {
        let answers = vec![
            Value::Okay,
            queued(),
            queued(),
            queued(),
            Value::Array(vec![
                id(),
                error("-WRONGTYPE Operation against a key holding the wrong kind of value"),
                Value::Nil,
            ]),
        ];
        let results = judge(answers, 3, 0);
        let destination = Some(SinkErrorClass::Destination);
        assert_eq!(classes(&results), [None, destination, destination]);
    }

    #[test]
    fn what_goes_by_itself_has_an_answer_of_its_own() {
        use SinkErrorClass::{Away, Destination};
        let answers = || {
            vec![
                id(),
                error("-OOM command not allowed when used memory > 'maxmemory'."),
                error("-WRONGTYPE Operation against a key holding the wrong kind of value"),
                Value::Nil,
            ]
        };
        let each = [None, Some(Away), Some(Destination), Some(Destination)];
        assert_eq!(classes(&judge_each(answers(), 4, 0)), each);
        let missing = classes(&judge_each(answers()[..1].to_vec(), 2, 0));
        assert_eq!(missing, [None, Some(Away)]);
        let wait = |confirmed| vec![id(), Value::Int(confirmed)];
        assert_eq!(classes(&judge_each(wait(1), 1, 1)), [None]);
        assert_eq!(classes(&judge_each(wait(0), 1, 1)), [Some(Away)]);
        assert_eq!(classes(&judge_each(vec![id()], 1, 1)), [Some(Away)]);
    }

    #[test]
    fn too_few_replicas_or_no_answer_is_away() {
        let answers = |wait: Option<Value>| {
            let done = Value::Array(vec![id()]);
            let mut answers = vec![Value::Okay, queued(), done];
            answers.extend(wait);
            answers
        };
        let away = Some(SinkErrorClass::Away);
        assert_eq!(classes(&judge(answers(Some(Value::Int(2))), 1, 2)), [None]);
        assert_eq!(classes(&judge(answers(Some(Value::Int(1))), 1, 2)), [away]);
        assert_eq!(classes(&judge(answers(None), 1, 1)), [away]);
        assert_eq!(classes(&judge(Vec::new(), 1, 0)), [away]);
    }
}
