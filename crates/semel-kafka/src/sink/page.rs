//! One hand-over: its rows and what became of them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::store::{OutboxRow, SinkError, SinkErrorClass};
use tokio::sync::{Notify, oneshot};

type Result1 = Result<(), SinkError>;

/// Rows handed over together, with a place for each result.
#[derive(Debug)]
pub(super) struct Page {
    rows: Vec<Arc<OutboxRow>>,
    results: Mutex<Results>,
    /// A row got its result while somebody waited for one.
    settled: Notify,
}

#[derive(Debug)]
struct Results {
    /// Rows that have their result; it is among the errors, or it was delivered.
    settled: Vec<bool>,
    errors: Vec<(usize, SinkError)>,
    left: usize,
    done: Option<oneshot::Sender<()>>,
    /// Somebody waits for single rows.
    watched: bool,
}

impl Page {
    /// A page, and what hears when the last result is there.
    pub(super) fn new(rows: &[Arc<OutboxRow>]) -> (Arc<Self>, oneshot::Receiver<()>) {
        let (done, answer) = oneshot::channel();
        let mut results = Results {
            settled: vec![false; rows.len()],
            errors: Vec::new(),
            left: rows.len(),
            done: Some(done),
            watched: false,
        };
        results.tell_when_done();
        let page = Self {
            rows: rows.to_vec(),
            results: Mutex::new(results),
            settled: Notify::new(),
        };
        (Arc::new(page), answer)
    }

    fn lock(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn rows(&self) -> &[Arc<OutboxRow>] {
        &self.rows
    }

    pub(super) fn slots(&self) -> HashSet<u16> {
        self.rows.iter().map(|row| row.event.slot()).collect()
    }

    /// The first result of a row counts.
    pub(super) fn set(&self, index: usize, result: Result1) {
        let mut results = self.lock();
        let Some(settled @ false) = results.settled.get_mut(index) else {
            return;
        };
        *settled = true;
        if let Err(error) = result {
            results.errors.push((index, error));
        }
        results.left -= 1;
        results.tell_when_done();
        if results.watched {
            self.settled.notify_one();
        }
    }

    /// Waits until this row has a result; whether it was delivered. For one waiter at a time.
    pub(super) async fn delivered(&self, index: usize) -> bool {
        loop {
            {
                let mut results = self.lock();
                results.watched = true;
                if results.settled.get(index) == Some(&true) {
                    return !results.errors.iter().any(|(row, _)| *row == index);
                }
            }
            self.settled.notified().await;
        }
    }

    /// Gives every row from this one on that has no result this error.
    pub(super) fn fill(&self, error: impl Fn() -> SinkError, from: usize) {
        for index in from..self.rows.len() {
            self.set(index, Err(error()));
        }
    }

    /// Whether every row has its result.
    pub(super) fn is_settled(&self) -> bool {
        self.lock().left == 0
    }

    /// One result per row.
    pub(super) fn take(&self) -> Vec<Result1> {
        let missing = || Err(SinkError::new(SinkErrorClass::Away, "no result"));
        let mut results = self.lock();
        let settled = std::mem::take(&mut results.settled);
        let mut all: Vec<Result1> = settled
            .into_iter()
            .map(|settled| if settled { Ok(()) } else { missing() })
            .collect();
        for (index, error) in results.errors.drain(..) {
            all[index] = Err(error);
        }
        all
    }
}

impl Results {
    fn tell_when_done(&mut self) {
        if self.left == 0
            && let Some(done) = self.done.take()
        {
            // Nobody listens any more when the future was dropped.
            let _ = done.send(());
        }
    }
}
