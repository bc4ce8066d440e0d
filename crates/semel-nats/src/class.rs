//! What an error of NATS means, in one place.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::{ConnectError, ConnectErrorKind};
use semel_core::error::chain;
use semel_core::store::{SinkError, SinkErrorClass};

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

/// A row was not acknowledged.
pub(crate) fn published(error: &PublishError, subject: &str) -> SinkError {
    let code = std::error::Error::source(error)
        .and_then(|source| source.downcast_ref::<async_nats::jetstream::Error>())
        .map(async_nats::jetstream::Error::error_code);
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            let text =
                format!("no stream takes the subject {subject}: create one, or mend the sink's subject");
            SinkError::new(SinkErrorClass::Destination, text)
        }
        PublishErrorKind::MaxPayloadExceeded => {
            let text = format!("{}: lower message_bytes_max or raise max_payload", chain(error));
            SinkError::new(SinkErrorClass::Message, text)
        }
        _ => SinkError::new(code.map_or(SinkErrorClass::Away, of_code), chain(error)),
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
        let error = published(&PublishError::new(PublishErrorKind::StreamNotFound), "a.b");
        assert_eq!(error.class, Destination);
        assert!(error.message.contains("a.b"), "{error}");
        assert_eq!(
            published(&PublishError::new(PublishErrorKind::BrokenPipe), "a").class,
            Away
        );
        assert_eq!(
            published(&PublishError::new(PublishErrorKind::TimedOut), "a").class,
            Away
        );
    }
}
