//! What a run of one shop leaves behind.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::audit::Audit;
use super::load::Traffic;
use super::process::Counts;

/// Which shop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shop {
    /// The usual patterns, written by hand.
    ByHand,
    /// The same services with Semel.
    Semel,
}

impl Shop {
    /// In JSON and as the name of its folder.
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::ByHand => "by-hand",
            Self::Semel => "semel",
        }
    }

    /// In the table and in the progress line.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::ByHand => "By hand",
            Self::Semel => "With Semel",
        }
    }
}

/// What the shop went through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Ordeal {
    /// Requests that customers sent.
    pub(crate) requests: u64,
    /// Those beyond the first of their order.
    pub(crate) duplicates: u64,
    /// Connections cut before the answer.
    pub(crate) cut: u64,
    /// Processes killed by SIGKILL.
    pub(crate) kills: u64,
    /// Processes stopped by SIGSTOP and continued later.
    pub(crate) pauses: u64,
    /// Processes started again.
    pub(crate) restarts: u64,
    /// Processes that ended although nobody killed them.
    pub(crate) fell_over: u64,
}

impl Ordeal {
    pub(crate) fn of(traffic: &Traffic, counts: &Counts) -> Self {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Self {
            requests: get(&traffic.requests),
            duplicates: get(&traffic.duplicates),
            cut: get(&traffic.cut),
            kills: get(&counts.kills),
            pauses: get(&counts.pauses),
            restarts: get(&counts.restarts),
            fell_over: get(&counts.fell_over),
        }
    }
}

/// One shop's run.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) shop: Shop,
    pub(crate) ordeal: Ordeal,
    pub(crate) audit: Audit,
    /// From the first process to the last row counted, in milliseconds.
    pub(crate) took_ms: u64,
}
