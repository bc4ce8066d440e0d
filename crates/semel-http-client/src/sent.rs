//! Whether a failed attempt can have reached the receiver.

use std::error::Error;
use std::io::ErrorKind;

/// Whether an error says that no connection was made, so that it is certain that nothing was sent: a refused connection
/// and, with the feature `hyper`, what hyper-util's client says of its connecting.
pub(crate) fn never(error: &(dyn Error + 'static)) -> bool {
    let mut at = Some(error);
    while let Some(error) = at {
        #[cfg(feature = "hyper")]
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>()
            && error.is_connect()
        {
            return true;
        }
        // The one kind of which a connection that was made cannot die.
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && error.kind() == ErrorKind::ConnectionRefused
        {
            return true;
        }
        at = error.source();
    }
    false
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
}
