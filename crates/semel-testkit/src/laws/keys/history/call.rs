//! What a history is made of.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::sample::select;

pub(super) const KEYS: usize = 3;
pub(super) const NONCES: usize = 12;

/// One call. Keys, nonces and grants by number; a grant's number is taken modulo those there are.
#[derive(Debug, Clone)]
pub(super) enum Call {
    Claim(Vec<Asked>),
    Complete(Vec<(Held, u8, bool)>),
    Extend(Vec<(Held, bool)>),
    Release(Vec<(Held, bool)>),
    Abandon(Vec<Held>),
    /// Key and nonce.
    Withdraw(Vec<(usize, usize)>),
    /// The grant, and the outcome if it happened.
    Settle(Vec<(Held, Option<u8>)>),
    Read,
    Sweep,
    /// The clock moves by so many milliseconds, back where that is negative.
    Pass(i64),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) key: usize,
    pub(super) nonce: usize,
    pub(super) other_request: bool,
    pub(super) rerun: bool,
    pub(super) long: bool,
}

/// Which lease a caller names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    pub(super) grant: usize,
    /// Another nonce under the same token.
    pub(super) forged: bool,
}

const STEPS_MS: &[i64] = &[10_000, 20_000, 60_000, 130_000];
const JUMPS_MS: &[i64] = &[
    10_000, 20_000, 60_000, 130_000, 3_600_000, -10_000, -20_000, -70_000, -130_000, -3_600_000,
];

/// `jumps`: the clock is also set back, and set on by far more than a lease.
pub(super) fn calls(jumps: bool) -> impl Strategy<Value = Vec<Call>> {
    let mostly_not = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let asked = (0..KEYS, 0..NONCES, mostly_not(), any::<bool>(), any::<bool>()).prop_map(
        |(key, nonce, other_request, rerun, long)| Asked {
            key,
            nonce,
            other_request,
            rerun,
            long,
        },
    );
    // Recent grants are the interesting ones: count from the last.
    let held = (prop_oneof![6 => 0..2_usize, 2 => 0..16_usize], mostly_not())
        .prop_map(|(grant, forged)| Held { grant, forged });
    let call = prop_oneof![
        6 => vec(asked, 1..4).prop_map(Call::Claim),
        4 => vec((held.clone(), 0..2_u8, any::<bool>()), 1..3).prop_map(Call::Complete),
        2 => vec((held.clone(), any::<bool>()), 1..3).prop_map(Call::Extend),
        2 => vec((held.clone(), any::<bool>()), 1..3).prop_map(Call::Release),
        2 => vec(held.clone(), 1..3).prop_map(Call::Abandon),
        2 => vec((0..KEYS, 0..NONCES), 1..3).prop_map(Call::Withdraw),
        2 => vec((held, prop_oneof![Just(None), (0..2_u8).prop_map(Some)]), 1..3).prop_map(Call::Settle),
        1 => Just(Call::Read),
        2 => Just(Call::Sweep),
        if jumps { 6 } else { 4 } => select(if jumps { JUMPS_MS } else { STEPS_MS }).prop_map(Call::Pass),
    ];
    vec(call, 1..40)
}
