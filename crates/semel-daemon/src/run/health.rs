//! What each part of the daemon is doing, for `/readyz` and the log.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use semel_core::{Clock as _, SystemClock, Timestamp};
use serde::Serialize;

/// What a part is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not got going yet.
    Starting,
    /// It makes progress.
    Ready,
    /// It cannot make progress now, and tries again by itself.
    Waiting(String),
    /// It stays stopped until a person mends this.
    Stopped(String),
}

impl State {
    const fn word(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Waiting(_) => "waiting",
            Self::Stopped(_) => "stopped",
        }
    }

    fn reason(&self) -> Option<&str> {
        match self {
            Self::Starting | Self::Ready => None,
            Self::Waiting(why) | Self::Stopped(why) => Some(why),
        }
    }
}

type Parts = BTreeMap<(&'static str, String), (State, Timestamp)>;

/// Every part and its state. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health(Arc<Mutex<Parts>>);

/// One part, to be told how it is. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    health: Health,
    kind: &'static str,
    name: String,
}

/// One part as `/readyz` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    kind: &'static str,
    name: String,
    state: &'static str,
    since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Health {
    /// Adds a part that is starting.
    pub(crate) fn part(&self, kind: &'static str, name: &str) -> Part {
        let part = Part {
            health: self.clone(),
            kind,
            name: name.to_owned(),
        };
        self.parts()
            .insert((kind, name.to_owned()), (State::Starting, SystemClock.now()));
        part
    }

    fn parts(&self) -> std::sync::MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether every part makes progress.
    pub(crate) fn ready(&self) -> bool {
        self.parts().values().all(|(state, _)| *state == State::Ready)
    }

    /// Every part; reasons only for those who may see them, because they name hosts.
    pub(crate) fn show(&self, reasons: bool) -> Vec<Shown> {
        self.parts()
            .iter()
            .map(|((kind, name), (state, since))| Shown {
                kind,
                name: name.clone(),
                state: state.word(),
                since: since.rfc3339(),
                reason: state.reason().filter(|_| reasons).map(str::to_owned),
            })
            .collect()
    }

    /// Kind, name and whether it is ready, of every part.
    pub(crate) fn each_ready(&self) -> Vec<(&'static str, String, bool)> {
        self.parts()
            .iter()
            .map(|((kind, name), (state, _))| (*kind, name.clone(), *state == State::Ready))
            .collect()
    }
}

impl Part {
    /// It makes progress.
    pub(crate) fn ready(&self) {
        if self.set(State::Ready) {
            tracing::info!(kind = self.kind, name = self.name, "ready");
        }
    }

    /// It cannot make progress and tries again.
    pub(crate) fn waiting(&self, why: impl Into<String>) {
        let why = why.into();
        if self.set(State::Waiting(why.clone())) {
            tracing::warn!(kind = self.kind, name = self.name, reason = why, "waiting");
        }
    }

    /// It needs a person.
    pub(crate) fn stopped(&self, why: impl Into<String>) {
        let why = why.into();
        if self.set(State::Stopped(why.clone())) {
            tracing::error!(kind = self.kind, name = self.name, reason = why, "stopped");
        }
    }

    /// It is no longer there.
    pub(crate) fn gone(&self) {
        self.health.parts().remove(&(self.kind, self.name.clone()));
    }

    /// Changes the state; false when nothing changed, so that a repeated failure is logged once.
    fn set(&self, state: State) -> bool {
        let mut parts = self.health.parts();
        let Some((current, since)) = parts.get_mut(&(self.kind, self.name.clone())) else {
            return false;
        };
        if *current == state {
            return false;
        }
        *current = state;
        *since = SystemClock.now();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_that_waits_makes_the_whole_not_ready() {
        let health = Health::default();
        assert!(health.ready(), "nothing to do is being ready");
        let (a, b) = (health.part("relay", "a"), health.part("relay", "b"));
        assert!(!health.ready());
        a.ready();
        b.waiting("the broker is away");
        assert!(!health.ready());
        let shown = serde_json::to_value(health.show(true)).unwrap();
        assert_eq!(shown[1]["reason"], "the broker is away");
        assert!(serde_json::to_value(health.show(false)).unwrap()[1]["reason"].is_null());
        b.ready();
        assert!(health.ready());
    }
}
