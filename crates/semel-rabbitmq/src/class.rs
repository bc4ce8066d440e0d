//! What an error of RabbitMQ means, in one table.

use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::{Error, ErrorKind};
use semel_core::store::{SinkError, SinkErrorClass};

/// What an error means for the row that met it alone. What is not known to be the row's or the destination's own fault is
/// the broker's: a relay then waits and loses nothing.
pub(crate) fn class(error: &Error) -> SinkErrorClass {
    let ErrorKind::ProtocolError(error) = error.kind() else {
        return match error.kind() {
            ErrorKind::AuthProviderError(_) => SinkErrorClass::Destination,
            // It cannot be written in AMQP.
            ErrorKind::SerialisationError(_) => SinkErrorClass::Message,
            _ => SinkErrorClass::Away,
        };
    };
    match error.kind() {
        AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::CONTENTTOOLARGE)
        | AMQPErrorKind::Hard(AMQPHardError::FRAMEERROR | AMQPHardError::SYNTAXERROR) => {
            SinkErrorClass::Message
        }
        AMQPErrorKind::Soft(
            AMQPSoftError::NOTFOUND | AMQPSoftError::ACCESSREFUSED | AMQPSoftError::NOROUTE,
        )
        | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED | AMQPHardError::INVALIDPATH) => {
            SinkErrorClass::Destination
        }
        _ => SinkErrorClass::Away,
    }
}

/// Whether the exchange is not there: nothing else of a publish can be missing without being returned.
pub(crate) fn is_missing(error: &Error) -> bool {
    let ErrorKind::ProtocolError(error) = error.kind() else {
        return false;
    };
    matches!(error.kind(), AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND))
}

/// The error of the row, or of the connection, that met this alone.
pub(crate) fn explain(error: &Error) -> SinkError {
    SinkError::new(class(error), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lapin::protocol::AMQPError;

    fn of(kind: impl Into<AMQPErrorKind>) -> SinkErrorClass {
        class(&ErrorKind::ProtocolError(AMQPError::new(kind.into(), "why".into())).into())
    }

    #[test]
    fn only_what_is_known_to_be_the_rows_own_fault_spends_an_attempt() {
        use SinkErrorClass::{Away, Destination, Message};
        assert_eq!(of(AMQPSoftError::PRECONDITIONFAILED), Message);
        assert_eq!(of(AMQPSoftError::CONTENTTOOLARGE), Message);
        assert_eq!(of(AMQPHardError::FRAMEERROR), Message);
        assert_eq!(of(AMQPSoftError::NOTFOUND), Destination);
        assert_eq!(of(AMQPSoftError::ACCESSREFUSED), Destination);
        assert_eq!(of(AMQPHardError::NOTALLOWED), Destination);
        assert_eq!(of(AMQPSoftError::RESOURCELOCKED), Away);
        assert_eq!(of(AMQPHardError::CONNECTIONFORCED), Away);
        assert_eq!(of(AMQPHardError::RESOURCEERROR), Away);
        assert_eq!(of(AMQPHardError::INTERNALERROR), Away);
        assert_eq!(class(&ErrorKind::MissingHeartbeatError.into()), Away);
        let broken = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(class(&broken.into()), Away);
    }
}
