//! What an error in a Kafka transaction calls for: one pure function.

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// Which call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// `init_transactions`: fences the predecessor.
    Init,
    Begin,
    /// A record was not taken by the client, or not delivered.
    Send,
    /// Waiting for the deliveries took too long.
    Drain,
    /// Input offsets into the transaction.
    Offsets,
    Commit,
    Abort,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The same call again, never another one: the operation may go on behind.
    Retry,
    /// Abort, and take every partition back to its committed offset.
    AbortAndRewind,
    /// Throw the producer away: what it did last is unknown, or it is of no use any more. The next one, under the
    /// same id, ends the open transaction, and the committed offsets tell how.
    RecreateProducer,
    /// Only a person can mend it.
    Fatal,
}

/// What is known about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) code: Code,
    /// librdkafka's flags, in the order in which they are asked.
    pub(crate) fatal: bool,
    pub(crate) requires_abort: bool,
    pub(crate) retriable: bool,
    /// Whether the transaction's time allows another try.
    pub(crate) time_left: bool,
}

impl Facts {
    /// The facts about an error of the client.
    pub(crate) fn of(error: &KafkaError, time_left: bool) -> Self {
        let code = error.rdkafka_error_code().unwrap_or(Code::Unknown);
        match error {
            KafkaError::Transaction(error) => Self {
                code: error.code(),
                fatal: error.is_fatal(),
                requires_abort: error.txn_requires_abort(),
                retriable: error.is_retriable(),
                time_left,
            },
            // From the flush in front of a commit: EndTxn has not been sent, and there are no flags.
            KafkaError::Flush(_) => Self {
                code,
                fatal: false,
                requires_abort: true,
                retriable: false,
                time_left,
            },
            _ => Self {
                code,
                fatal: code == Code::Fatal,
                requires_abort: false,
                retriable: false,
                time_left,
            },
        }
    }
}

/// The verdict on an error in this step.
pub(crate) fn verdict(step: Step, facts: &Facts) -> Verdict {
    if unmendable(facts.code) {
        return Verdict::Fatal;
    }
    if facts.fatal || fenced(facts.code) {
        return Verdict::RecreateProducer;
    }
    if step == Step::Abort {
        // An abort that asks for an abort would go on for ever (KAFKA-19250).
        return if facts.retriable && facts.time_left && !facts.requires_abort {
            Verdict::Retry
        } else {
            Verdict::RecreateProducer
        };
    }
    if facts.requires_abort || membership(facts.code) || matches!(step, Step::Send | Step::Drain) {
        return Verdict::AbortAndRewind;
    }
    if facts.retriable || passing(facts.code) {
        return match step {
            _ if facts.time_left => Verdict::Retry,
            // The offsets' request may still be on its way: it is part of this transaction, which is not committed.
            Step::Begin | Step::Offsets => Verdict::AbortAndRewind,
            _ => Verdict::RecreateProducer,
        };
    }
    match (step, facts.code) {
        // EndTxn may have been carried out.
        (Step::Commit, Code::Unknown | Code::OperationTimedOut | Code::RequestTimedOut) => {
            Verdict::RecreateProducer
        }
        (Step::Init, Code::OperationTimedOut | Code::Unknown) => Verdict::RecreateProducer,
        // Out of turn: our own mistake, or a state of the client that is not understood.
        (_, Code::State | Code::Unknown | Code::BrokerTransportFailure | Code::AllBrokersDown) => {
            Verdict::RecreateProducer
        }
        _ => Verdict::Fatal,
    }
}

const fn unmendable(code: Code) -> bool {
    matches!(
        code,
        Code::FencedInstanceId
            | Code::TransactionalIdAuthorizationFailed
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::SaslAuthenticationFailed
            | Code::UnsupportedVersion
            | Code::UnsupportedFeature
            | Code::InvalidTransactionTimeout
            | Code::InvalidConfig
            | Code::NotConfigured
    )
}

/// Somebody else uses the transactional id, or the broker has forgotten this producer.
pub(crate) const fn fenced(code: Code) -> bool {
    matches!(
        code,
        Code::Fenced
            | Code::ProducerFenced
            | Code::InvalidProducerEpoch
            | Code::InvalidProducerIdMapping
            | Code::UnknownProducerId
            | Code::OutOfOrderSequenceNumber
            | Code::InvalidTransactionalState
    )
}

/// This member does not own what it read any more.
const fn membership(code: Code) -> bool {
    matches!(
        code,
        Code::IllegalGeneration
            | Code::UnknownMemberId
            | Code::StaleMemberEpoch
            | Code::FencedMemberEpoch
            | Code::RebalanceInProgress
            | Code::AssignmentLost
    )
}

/// Passes by itself.
const fn passing(code: Code) -> bool {
    matches!(
        code,
        Code::OperationTimedOut
            | Code::RequestTimedOut
            | Code::CoordinatorLoadInProgress
            | Code::CoordinatorNotAvailable
            | Code::NotCoordinator
            | Code::ConcurrentTransactions
            | Code::UnstableOffsetCommit
            | Code::NetworkException
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `f` fatal, `a` requires abort, `r` retriable, `-` time is spent.
    fn facts(code: Code, flags: &str) -> Facts {
        Facts {
            code,
            fatal: flags.contains('f'),
            requires_abort: flags.contains('a'),
            retriable: flags.contains('r'),
            time_left: !flags.contains('-'),
        }
    }

    #[test]
    fn each_error_has_its_verdict() {
        use Step::{Abort, Begin, Commit, Drain, Init, Offsets, Send};
        use Verdict::{AbortAndRewind, Fatal, RecreateProducer, Retry};
        for (step, code, flags, expected) in [
            // The same call again, while the transaction's time lasts.
            (Init, Code::OperationTimedOut, "r", Retry),
            (Init, Code::CoordinatorLoadInProgress, "", Retry),
            (Init, Code::ConcurrentTransactions, "r", Retry),
            (Offsets, Code::OperationTimedOut, "r", Retry),
            (Offsets, Code::NotCoordinator, "", Retry),
            (Commit, Code::OperationTimedOut, "r", Retry),
            (Abort, Code::OperationTimedOut, "r", Retry),
            // Out of time: nothing was ended, so it can be aborted.
            (Offsets, Code::OperationTimedOut, "r-", AbortAndRewind),
            (Drain, Code::OperationTimedOut, "-", AbortAndRewind),
            // Out of time with EndTxn sent: unknown.
            (Commit, Code::OperationTimedOut, "r-", RecreateProducer),
            (Commit, Code::OperationTimedOut, "-", RecreateProducer),
            (Commit, Code::Unknown, "", RecreateProducer),
            (Abort, Code::OperationTimedOut, "r-", RecreateProducer),
            (Abort, Code::Unknown, "", RecreateProducer),
            (Init, Code::OperationTimedOut, "r-", RecreateProducer),
            // The transaction cannot be committed.
            (Commit, Code::RequestTimedOut, "a", AbortAndRewind),
            (Offsets, Code::IllegalGeneration, "a", AbortAndRewind),
            (Offsets, Code::UnknownMemberId, "", AbortAndRewind),
            (Offsets, Code::StaleMemberEpoch, "", AbortAndRewind),
            (Offsets, Code::RebalanceInProgress, "r", AbortAndRewind),
            (Send, Code::MessageTimedOut, "", AbortAndRewind),
            (Send, Code::MessageSizeTooLarge, "", AbortAndRewind),
            // KAFKA-19250: an abort that asks for an abort.
            (Abort, Code::Unknown, "a", RecreateProducer),
            (Abort, Code::Unknown, "ra", RecreateProducer),
            // The producer is of no use any more.
            (Commit, Code::Fenced, "f", RecreateProducer),
            (Abort, Code::Fenced, "f", RecreateProducer),
            (Begin, Code::Fenced, "f", RecreateProducer),
            (Init, Code::InvalidProducerEpoch, "", RecreateProducer),
            (Offsets, Code::InvalidProducerIdMapping, "", RecreateProducer),
            (Send, Code::OutOfOrderSequenceNumber, "a", RecreateProducer),
            (Abort, Code::InvalidTransactionalState, "f", RecreateProducer),
            (Send, Code::Fatal, "f", RecreateProducer),
            (Commit, Code::State, "", RecreateProducer),
            // A person.
            (Offsets, Code::FencedInstanceId, "f", Fatal),
            (Init, Code::TransactionalIdAuthorizationFailed, "f", Fatal),
            (Send, Code::TopicAuthorizationFailed, "a", Fatal),
            (Offsets, Code::GroupAuthorizationFailed, "a", Fatal),
            (Init, Code::UnsupportedVersion, "", Fatal),
            (Init, Code::InvalidTransactionTimeout, "f", Fatal),
            (Offsets, Code::InvalidGroupId, "", Fatal),
        ] {
            let verdict = verdict(step, &facts(code, flags));
            assert_eq!(verdict, expected, "{step:?} {code:?} {flags}");
        }
    }

    /// The flush in front of a commit ran out of time: EndTxn was never sent.
    #[test]
    fn a_flush_out_of_time_is_aborted() {
        let facts = Facts::of(&KafkaError::Flush(Code::OperationTimedOut), false);
        assert_eq!(verdict(Step::Commit, &facts), Verdict::AbortAndRewind);
    }

    #[test]
    fn an_abort_is_never_answered_with_an_abort() {
        for code in [Code::Unknown, Code::IllegalGeneration, Code::OperationTimedOut] {
            for flags in ["", "a", "r", "ra", "-", "f"] {
                let verdict = verdict(Step::Abort, &facts(code, flags));
                assert_ne!(verdict, Verdict::AbortAndRewind, "{code:?} {flags}");
            }
        }
    }
}
