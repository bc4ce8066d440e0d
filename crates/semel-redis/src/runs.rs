//! Entries of the registries that this process made, and which of their runs have not ended.
//!
//! An entry names all runs that one call was granted. It is removed when the last of them has ended, together with others;
//! one that is left over (this process dies, or another one ends a run) is removed by a sweep.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use semel_core::claim::Token;

use crate::names::{Names, TOKENS, spread};

/// Entries of one registry that are removed at once.
const ENDED: usize = 32;
/// Entries that are remembered; beyond it all are left to the sweep.
const ENTRIES_MAX: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Hashes of the records whose runs go on, by the tag of the registry and its entry.
    running: HashMap<(u8, i64), Vec<u64>>,
    ended: HashMap<u8, Vec<Token>>,
}

impl Runs {
    /// Notes the runs that a call's scripts have granted: all of them, before one of them can end, and at once, so that no
    /// entry is forgotten while only some of its runs are noted.
    pub(crate) fn began<'r>(&self, names: &Names, runs: impl IntoIterator<Item = (&'r [u8], Token)>) {
        let mut runs = runs.into_iter().peekable();
        if runs.peek().is_none() {
            return;
        }
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.running.len() >= ENTRIES_MAX {
            state.running.clear();
        }
        for (record, token) in runs {
            let entry = (names.registry_tag(record), entry(token));
            state.running.entry(entry).or_default().push(spread(record));
        }
    }

    /// Notes that a run is over; the entries to be removed from the registry of this tag, when there are enough.
    pub(crate) fn ended(&self, names: &Names, record: &[u8], token: Token) -> Option<(u8, Vec<Token>)> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tag = names.registry_tag(record);
        let running = state.running.get_mut(&(tag, entry(token)))?;
        let hash = spread(record);
        running.retain(|other| *other != hash);
        if !running.is_empty() {
            return None;
        }
        state.running.remove(&(tag, entry(token)));
        let ended = state.ended.entry(tag).or_default();
        ended.push(token);
        (ended.len() >= ENDED).then(|| (tag, std::mem::take(ended)))
    }
}

/// A number for the entry of a token.
fn entry(token: Token) -> i64 {
    token.0.div_euclid(i64::from(TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_when_the_last_of_its_runs_has_ended_however_often_an_end_is_told() {
        let (runs, names) = (Runs::default(), Names::new("semel", false));
        let mut removed = Vec::new();
        for n in 0..i64::try_from(ENDED).unwrap() {
            let (one, two) = (Token(64 * n), Token(64 * n + 1));
            let call: [(&[u8], _); 2] = [(b"semel{00}\x01aa", one), (b"semel{01}\x01ab", two)];
            runs.began(&names, call);
            for _ in 0..2 {
                assert_eq!(runs.ended(&names, b"semel{00}\x01aa", one), None);
            }
            removed.extend(runs.ended(&names, b"semel{01}\x01ab", two));
            assert_eq!(runs.ended(&names, b"semel{01}\x01ab", two), None);
        }
        let [(0, tokens)] = &removed[..] else {
            panic!("{removed:?}")
        };
        assert_eq!(tokens.len(), ENDED);
    }

    /// Of an entry that is not remembered it is not known what else it names.
    #[test]
    fn what_is_forgotten_is_left_to_the_sweep() {
        let (runs, names) = (Runs::default(), Names::new("semel", false));
        let record = &b"semel{00}\x01aa"[..];
        runs.began(&names, [(record, Token(-1))]);
        for n in 0..i64::try_from(ENTRIES_MAX).unwrap() {
            runs.began(&names, [(record, Token(64 * n))]);
        }
        assert_eq!(runs.0.lock().unwrap().running.len(), 1);
        assert_eq!(runs.ended(&names, record, Token(-1)), None);
    }

    /// Rule K10: an entry of which some runs are not known would be removed while they go on.
    #[test]
    fn entries_that_are_forgotten_while_a_call_is_noted_are_not_half_known() {
        let (runs, names) = (Runs::default(), Names::new("semel", false));
        let (one, two, three) = (b"semel{00}\x01aa", b"semel{00}\x01ab", b"semel{00}\x01ac");
        // Room for one entry more; the call has two.
        for n in 1..i64::try_from(ENTRIES_MAX).unwrap() {
            runs.began(&names, [(&one[..], Token(-64 * n))]);
        }
        let call: [(&[u8], _); 3] = [(one, Token(0)), (two, Token(64)), (three, Token(1))];
        runs.began(&names, call);
        assert_eq!(runs.ended(&names, three, Token(1)), None);
        let state = runs.0.lock().unwrap();
        assert!(state.ended.is_empty(), "{:?}", state.ended);
        assert_eq!(state.running.get(&(0, 0)).map(Vec::len), Some(1));
    }
}
