//! What became of keyed requests, counted and told.

use std::sync::atomic::{AtomicU64, Ordering};

use semel_core::Key;

/// What a keyed request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// The first with its key: its handler was started.
    New,
    /// A duplicate that got the stored answer (or was told that it is not kept).
    Replayed,
    /// A duplicate that was told "still running".
    Running,
    /// The key was used for another request.
    Mismatch,
    /// A duplicate that was told "not known".
    Unknown,
    /// A duplicate after the retention: "done, expired".
    Expired,
    /// Refused for what the request itself is: no key, no valid key, no principal, a body too large or broken.
    Refused,
    /// Refused because too many run.
    TooBusy,
    /// The store gave no answer; nothing was run.
    StoreDown,
    /// The store has no room for another key; nothing was run.
    StoreFull,
    /// The caller's scope holds as much as its quota allows; nothing was run.
    ScopeFull,
    /// The store gave no answer; it was run without protection ([`Outage::Open`](crate::Outage::Open)).
    OpenPassed,
    /// A run that ended without anybody knowing what came of it.
    EndedUnknown,
    /// An outcome that was sent before it was stored, because the store gave no answer.
    StoredLater,
    /// In shadow mode: a first request.
    ShadowNew,
    /// In shadow mode: a request that would have been answered as a duplicate.
    ShadowDuplicate,
    /// In shadow mode: a request that would have been a mismatch.
    ShadowMismatch,
    /// In shadow mode: a request that would have been refused for its key, its body, its principal or its quota.
    ShadowRefused,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::New,
        Self::Replayed,
        Self::Running,
        Self::Mismatch,
        Self::Unknown,
        Self::Expired,
        Self::Refused,
        Self::TooBusy,
        Self::StoreDown,
        Self::StoreFull,
        Self::ScopeFull,
        Self::OpenPassed,
        Self::EndedUnknown,
        Self::StoredLater,
        Self::ShadowNew,
        Self::ShadowDuplicate,
        Self::ShadowMismatch,
        Self::ShadowRefused,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Replayed => "replayed",
            Self::Running => "running",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Refused => "refused",
            Self::TooBusy => "too_busy",
            Self::StoreDown => "store_down",
            Self::StoreFull => "store_full",
            Self::ScopeFull => "scope_full",
            Self::OpenPassed => "open_passed",
            Self::EndedUnknown => "ended_unknown",
            Self::StoredLater => "stored_later",
            Self::ShadowNew => "shadow_new",
            Self::ShadowDuplicate => "shadow_duplicate",
            Self::ShadowMismatch => "shadow_mismatch",
            Self::ShadowRefused => "shadow_refused",
        }
    }
}

/// Told of every keyed request. Called on the request's way, so it must be quick.
///
/// ```
/// # fn takes(_: impl semel_http::Observer) {}
/// takes(|event: semel_http::Event, key: Option<&semel_core::Key>| {
///     if event == semel_http::Event::Mismatch {
///         println!("a client reuses {key:?}");
///     }
/// });
/// ```
pub trait Observer: Send + Sync + 'static {
    /// A request came to this. The key is there where the request has a valid one and a principal.
    fn saw(&self, event: Event, key: Option<&Key>);
}

impl<F> Observer for F
where
    F: Fn(Event, Option<&Key>) + Send + Sync + 'static,
{
    fn saw(&self, event: Event, key: Option<&Key>) {
        self(event, key);
    }
}

/// Counters, one per [`Event`], since the layer was built.
#[derive(Debug, Default)]
pub struct Counts([AtomicU64; Event::ALL.len()]);

impl Counts {
    pub(crate) fn add(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often that happened.
    #[must_use]
    pub fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_has_a_counter_and_a_name_of_its_own() {
        let counts = Counts::default();
        for (place, event) in Event::ALL.into_iter().enumerate() {
            assert_eq!(event as usize, place);
            counts.add(event);
            assert_eq!(counts.get(event), 1, "{event:?}");
        }
        let names: std::collections::HashSet<_> = Event::ALL.map(Event::as_str).into();
        assert_eq!(names.len(), Event::ALL.len());
    }
}
