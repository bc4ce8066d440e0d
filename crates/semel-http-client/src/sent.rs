//! Whether a failed attempt can have reached the receiver.

use std::error::Error;
use std::io::ErrorKind;

/// Whether an error says that no connection was made, so that it is certain that nothing was sent. With the feature
/// `hyper` it is hyper-util's client that knows it, where it is in the chain. A refused connection counts where a client
/// gives it back bare; inside another error it may be that of a send, for ICMP messages break connections that stand.
pub(crate) fn never(error: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper")]
    {
        let mut at = Some(error);
        while let Some(error) = at {
            if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
                return error.is_connect();
            }
            at = error.source();
        }
    }
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_that_was_never_made_is_certain() {
        assert!(never(&std::io::Error::from(ErrorKind::ConnectionRefused)));
        for kind in [
            ErrorKind::ConnectionReset,
            ErrorKind::TimedOut,
            ErrorKind::HostUnreachable,
            ErrorKind::BrokenPipe,
        ] {
            assert!(!never(&std::io::Error::from(kind)), "{kind:?}");
        }
    }

    /// A connection that stands can be told "refused" as well: an ICMP message for it.
    #[test]
    fn a_refused_connection_inside_a_send_error_is_not_certain() {
        #[derive(Debug, thiserror::Error)]
        #[error("sending failed")]
        struct Send(#[source] std::io::Error);
        let refused = || std::io::Error::from(ErrorKind::ConnectionRefused);
        assert!(!never(&Send(refused())));
        assert!(!never(&std::io::Error::other(refused())));
    }
}
