//! What an error of Kafka means for a row, in one table.

use rdkafka::error::RDKafkaErrorCode as Code;
use semel_core::store::SinkErrorClass;

/// The class of a record's error. What is not known to be the record's or the topic's own fault is the broker's:
/// a relay then waits and loses nothing.
pub(crate) const fn class(code: Code) -> SinkErrorClass {
    match code {
        // The record itself: the same bytes will be refused again.
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::BadMessage => SinkErrorClass::Message,
        // The topic: missing, forbidden, or of another kind. In a rolling restart a topic can be unknown for a moment
        // (librdkafka#4401), but librdkafka has waited topic.metadata.propagation.max.ms before it says so here. Or the way
        // to the brokers: a wrong password, another protocol, a certificate that is not trusted.
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::PolicyViolation
        | Code::InvalidReplicationFactor
        | Code::UnsupportedForMessageFormat
        | Code::SaslAuthenticationFailed
        | Code::Authentication
        | Code::SSL
        | Code::UnsupportedVersion => SinkErrorClass::Destination,
        // Given up because another record failed.
        Code::PurgeQueue | Code::PurgeInflight | Code::GaplessGuarantee | Code::InvalidDifferentRecord => {
            SinkErrorClass::HeldBack
        }
        _ => SinkErrorClass::Away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_the_records_own_fault_spends_an_attempt() {
        use SinkErrorClass::{Away, Destination, HeldBack, Message};
        for (code, expected) in [
            (Code::MessageSizeTooLarge, Message),
            (Code::InvalidRecord, Message),
            (Code::UnknownTopic, Destination),
            (Code::TopicAuthorizationFailed, Destination),
            (Code::UnknownTopicOrPartition, Destination),
            (Code::Authentication, Destination),
            (Code::SSL, Destination),
            (Code::InvalidReplicationFactor, Destination),
            (Code::MessageTimedOut, Away),
            (Code::NotLeaderForPartition, Away),
            (Code::NotEnoughReplicas, Away),
            (Code::QueueFull, Away),
            (Code::AllBrokersDown, Away),
            (Code::ThrottlingQuotaExceeded, Away),
            (Code::OutOfOrderSequenceNumber, Away),
            (Code::Unknown, Away),
            (Code::InvalidDifferentRecord, HeldBack),
            (Code::PurgeQueue, HeldBack),
            (Code::GaplessGuarantee, HeldBack),
        ] {
            assert_eq!(class(code), expected, "{code:?}");
        }
    }
}
