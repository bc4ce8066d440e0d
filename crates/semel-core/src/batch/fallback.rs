//! What becomes of a batch that failed as a whole.

use crate::error::ErrorKind;

/// How often parts of one batch are sent again after lost replies. A store that is gone is not asked once per item.
pub const REPEATS_MAX: u32 = 24;

/// What to do with a batch that was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// Hand the answers out.
    No,
    /// Send each half again: one item may have failed its neighbours. In the end the bad one goes alone.
    Halves,
}

/// What to do after a batch whose items were answered so (`None`: not an error), when `repeats` parts of it have been
/// sent again already.
///
/// Repeating is safe for every transition of a key: a claim under the same nonce gets the same token (rule K3), the same
/// outcome is recognised (rule K2), and extensions, releases, abandonments and settlements say the same thing twice.
///
/// ```
/// use semel_core::ErrorKind::{Constraint, Unavailable};
/// use semel_core::batch::{Repeat, after};
/// assert_eq!(after(&[Some(Constraint), Some(Constraint)], 0), Repeat::Halves);
/// assert_eq!(after(&[Some(Constraint), None], 0), Repeat::No, "answered one by one");
/// assert_eq!(after(&[Some(Constraint)], 0), Repeat::No, "this is the bad one");
/// assert_eq!(after(&[Some(Unavailable), Some(Unavailable)], 0), Repeat::No, "no item's fault");
/// ```
#[must_use]
pub fn after(errors: &[Option<ErrorKind>], repeats: u32) -> Repeat {
    let [Some(first), _, ..] = errors else {
        return Repeat::No;
    };
    if !errors.iter().all(|error| *error == Some(*first)) {
        return Repeat::No;
    }
    let worth_it = match first {
        // An item may have done this to its neighbours, and they must not hear it. However often: it ends.
        ErrorKind::LimitExceeded | ErrorKind::Constraint | ErrorKind::Corrupt => true,
        // An item may have made the store hang up on all. Whoever is left over asks again by its own policy.
        ErrorKind::ReplyLost => repeats < REPEATS_MAX,
        ErrorKind::LeaseLost
        | ErrorKind::NotApplied
        | ErrorKind::Unavailable
        | ErrorKind::Schema
        | ErrorKind::IdentityChanged
        | ErrorKind::Invalid => false,
    };
    if worth_it { Repeat::Halves } else { Repeat::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_replies_are_asked_again_only_so_often() {
        let lost = [Some(ErrorKind::ReplyLost); 4];
        assert_eq!(after(&lost, REPEATS_MAX - 1), Repeat::Halves);
        assert_eq!(after(&lost, REPEATS_MAX), Repeat::No);
        assert_eq!(
            after(&[Some(ErrorKind::Constraint); 4], u32::MAX),
            Repeat::Halves,
            "neighbours of a bad item never hear its error"
        );
    }

    #[test]
    fn different_errors_were_answered_item_by_item() {
        let errors = [Some(ErrorKind::Constraint), Some(ErrorKind::LimitExceeded)];
        assert_eq!(after(&errors, 0), Repeat::No);
        assert_eq!(after(&[], 0), Repeat::No);
    }
}
