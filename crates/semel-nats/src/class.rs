//! What an error of NATS means, in one place.

use async_nats::client::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, ConnectErrorKind, Message, StatusCode};
use semel_core::error::chain;
use semel_core::store::{SinkError, SinkErrorClass};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The class of an error that JetStream answers with. What is not known to be the row's or the destination's own fault is
/// the server's: a relay then waits and loses nothing.
fn of_code(code: ErrorCode) -> SinkErrorClass {
    match code {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => {
            SinkErrorClass::Message
        }
        ErrorCode::STREAM_NOT_FOUND
        | ErrorCode::STREAM_NOT_MATCH
        | ErrorCode::STREAM_SEALED
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => SinkErrorClass::Destination,
        _ => SinkErrorClass::Away,
    }
}

/// What JetStream answers to a message.
#[derive(Deserialize)]
struct Answer {
    error: Option<jetstream::Error>,
    stream: Option<IgnoredAny>,
    #[serde(rename = "seq")]
    sequence: Option<u64>,
}

/// What the answer to a message says. A duplicate is one that the stream has already: the acknowledgement of an earlier attempt
/// was lost.
pub(crate) fn answer(message: &Message, subject: impl FnOnce() -> String) -> Result<(), SinkError> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        let subject = subject();
        let text = format!("no stream takes the subject {subject}: create one, or mend the sink's subject");
        return Err(SinkError::new(SinkErrorClass::Destination, text));
    }
    let unreadable = |why: &str| {
        SinkError::new(
            SinkErrorClass::Away,
            format!("the answer is no acknowledgement: {why}"),
        )
    };
    match serde_json::from_slice(&message.payload) {
        Ok(Answer {
            error: Some(error), ..
        }) => Err(SinkError::new(of_code(error.error_code()), chain(&error))),
        Ok(Answer {
            stream: Some(_),
            sequence: Some(_),
            ..
        }) => Ok(()),
        Ok(_) => Err(unreadable("it names no stream and sequence")),
        Err(error) => Err(unreadable(&error.to_string())),
    }
}

/// A message did not leave.
pub(crate) fn not_sent(error: &PublishError) -> SinkError {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => {
            let text = format!("{}: lower message_bytes_max or raise max_payload", chain(error));
            SinkError::new(SinkErrorClass::Message, text)
        }
        _ => SinkError::new(SinkErrorClass::Away, chain(error)),
    }
}

/// Whether this says that the user may not do something. It is no answer to a request: the server gives none to what it
/// does not let through.
pub(crate) fn is_barred(said: &str) -> bool {
    said.to_ascii_lowercase().contains("permissions violation")
}

/// Whether that is about this subject. Where it names no subject of ours it is about the answers, which then reach nobody.
pub(crate) fn bars(said: &str, subject: &str) -> bool {
    let said = said.to_ascii_lowercase();
    let about = said.split_once("for publish to ").map(|(_, about)| about.trim());
    about.is_none_or(|about| about.trim_matches('"').eq_ignore_ascii_case(subject))
}

/// A server that is away, with what was heard last of it: it may let this user in no more, which does not pass by itself.
pub(crate) fn heard(what: &str, last: &str) -> SinkError {
    let words = last.to_ascii_lowercase();
    let refused = ["authorization", "authentication", "signing nonce"];
    let class = if refused.iter().any(|word| words.contains(word)) {
        SinkErrorClass::Destination
    } else {
        SinkErrorClass::Away
    };
    SinkError::new(class, format!("{what}; the last that was heard: {last}"))
}

/// The user may not publish there, or not hear the answer.
pub(crate) fn barred(said: &str) -> SinkError {
    let text = format!("{said}: let the user publish to the subject and subscribe to _INBOX.>");
    SinkError::new(SinkErrorClass::Destination, text)
}

/// What JetStream says of the account.
pub(crate) fn info(answer: &[u8]) -> Result<(), SinkError> {
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(answer) else {
        return Err(SinkError::new(
            SinkErrorClass::Away,
            "JetStream's answer cannot be read",
        ));
    };
    match answer.get("error") {
        None => Ok(()),
        Some(error) => Err(SinkError::new(
            SinkErrorClass::Destination,
            format!("JetStream: {error}"),
        )),
    }
}

/// Nobody answers for JetStream.
pub(crate) fn no_jetstream() -> SinkError {
    let text = "the server has no JetStream: start it with -js, or enable it for the account";
    SinkError::new(SinkErrorClass::Destination, text)
}

/// No connection could be made.
pub(crate) fn not_connected(error: &ConnectError) -> SinkError {
    let class = match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            SinkErrorClass::Destination
        }
        _ => SinkErrorClass::Away,
    };
    SinkError::new(class, chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_outside_of_an_answer_is_for_the_subject_that_it_names_or_for_all() {
        let one = "nats: Permissions Violation for Publish to \"shop.A\"";
        assert!(is_barred(one) && bars(one, "shop.A") && !bars(one, "shop.A.b"));
        let all = "nats: Permissions Violation for Subscription to \"_INBOX.x.*\"";
        assert!(is_barred(all) && bars(all, "shop.A"));
        assert!(!is_barred("nats: subscription 1 is a slow consumer"));
    }

    #[test]
    fn only_what_is_known_to_be_the_rows_own_fault_spends_an_attempt() {
        use SinkErrorClass::{Away, Destination, Message};
        for (code, class) in [
            (ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, Message),
            (ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM, Message),
            (ErrorCode::STREAM_NOT_FOUND, Destination),
            (ErrorCode::STREAM_SEALED, Destination),
            (ErrorCode::JETSTREAM_NOT_ENABLED, Destination),
            (ErrorCode::STREAM_STORE_FAILED, Away),
            (ErrorCode::STORAGE_RESOURCES_EXCEEDED, Away),
        ] {
            assert_eq!(of_code(code), class, "{code:?}");
        }
        let off = br#"{"type":"x","error":{"code":503,"err_code":10039,"description":"not enabled"}}"#;
        assert_eq!(info(off).unwrap_err().class, Destination);
        assert!(info(br#"{"type":"x","memory":0}"#).is_ok());
    }

    fn answered(payload: &str, status: Option<StatusCode>) -> Option<SinkErrorClass> {
        let message = Message {
            subject: "_INBOX.x.1".into(),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status,
            description: None,
            length: 0,
        };
        let result = answer(&message, || "a.b".to_owned());
        result.err().map(|error| {
            assert!(status.is_none() || error.message.contains("a.b"), "{error}");
            error.class
        })
    }

    #[test]
    fn only_an_answer_with_a_stream_and_a_sequence_is_an_acknowledgement() {
        use SinkErrorClass::{Away, Destination, Message};
        assert_eq!(answered(r#"{"stream":"S","seq":7}"#, None), None);
        let again = r#"{"stream":"\u003cS","seq":7,"domain":"d","duplicate":true}"#;
        assert_eq!(answered(again, None), None);
        for no in ["", "ok", "{}", r#"{"stream":"S"}"#, r#"{"seq":7}"#, "[]"] {
            assert_eq!(answered(no, None), Some(Away), "{no}");
        }
        let error = |code: u64| {
            format!(
                r#"{{"stream":"S","seq":0,"error":{{"code":400,"err_code":{code},"description":"why"}}}}"#
            )
        };
        assert_eq!(
            answered(&error(ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM.0), None),
            Some(Message)
        );
        assert_eq!(
            answered(&error(ErrorCode::STREAM_STORE_FAILED.0), None),
            Some(Away)
        );
        assert_eq!(answered("", Some(StatusCode::NO_RESPONDERS)), Some(Destination));
    }
}
