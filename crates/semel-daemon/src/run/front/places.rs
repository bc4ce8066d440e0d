//! Places for connections, whose number changes while some are taken.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for connections.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    number: Mutex<Number>,
}

#[derive(Debug)]
struct Number {
    max: usize,
    /// How many more than that are taken: so many go as they come back.
    debt: usize,
}

/// A place, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    permit: Option<OwnedSemaphorePermit>,
    places: Arc<Places>,
}

impl Places {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(max)),
            number: Mutex::new(Number { max, debt: 0 }),
        })
    }

    /// So many from now on, those that are taken among them.
    pub(super) fn set(&self, max: usize) {
        let mut number = self.number();
        let (more, fewer) = (max.saturating_sub(number.max), number.max.saturating_sub(max));
        let paid = more.min(number.debt);
        number.debt -= paid;
        self.free.add_permits(more - paid);
        number.debt += fewer - self.free.forget_permits(fewer);
        number.max = max;
    }

    /// A place, once there is one.
    pub(super) async fn take(self: Arc<Self>) -> Option<Place> {
        loop {
            let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
            if let Some(permit) = self.number().pay(permit) {
                return Some(Place {
                    permit: Some(permit),
                    places: Arc::clone(&self),
                });
            }
        }
    }

    fn number(&self) -> MutexGuard<'_, Number> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Number {
    /// The permit, unless there is one too many.
    fn pay(&mut self, permit: OwnedSemaphorePermit) -> Option<OwnedSemaphorePermit> {
        if self.debt == 0 {
            return Some(permit);
        }
        self.debt -= 1;
        permit.forget();
        None
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            let mut number = self.places.number();
            drop(number.pay(permit));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place that is there now.
    async fn now(places: &Arc<Places>) -> Option<Place> {
        super::super::now(Arc::clone(places).take()).await.flatten()
    }

    #[tokio::test]
    async fn connections_of_before_a_reload_count() {
        let places = Places::new(2);
        let (first, second) = (now(&places).await.unwrap(), now(&places).await.unwrap());
        places.set(2);
        assert!(now(&places).await.is_none(), "two are taken");
        places.set(1);
        drop(first);
        assert!(now(&places).await.is_none(), "one is taken");
        drop(second);
        let one = now(&places).await.unwrap();
        assert!(now(&places).await.is_none(), "one is taken again");
        // Fewer and more again, while they are taken.
        places.set(3);
        let all = [now(&places).await.unwrap(), now(&places).await.unwrap()];
        places.set(1);
        places.set(2);
        drop(one);
        assert!(now(&places).await.is_none(), "two are taken of two");
        drop(all);
        assert!(now(&places).await.is_some());
    }

    #[tokio::test]
    async fn more_places_are_had_by_who_waits() {
        let places = Places::new(1);
        let _taken = now(&places).await.unwrap();
        let waits = tokio::spawn(Arc::clone(&places).take());
        tokio::task::yield_now().await;
        places.set(2);
        assert!(waits.await.unwrap().is_some());
    }
}
