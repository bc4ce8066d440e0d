//! A batcher in front of a store changes no answer of it.

use std::sync::Arc;

use semel_core::model::MemoryKeys;
use semel_keys::Batched;
use semel_testkit::clock::ManualClock;
use semel_testkit::laws::keys::World;
use semel_testkit::laws::keys::history::compare_with_model;

use crate::support::sqlite;

async fn memory() -> World {
    let clock = Arc::new(ManualClock::default());
    let store = Batched::new(MemoryKeys::new(clock.clone()));
    World::new(Arc::new(store), move |ms| {
        clock.advance_ms(ms);
        std::future::ready(())
    })
}

async fn file() -> World {
    let (db, clock, dir) = sqlite().await;
    let dir = Arc::new(dir);
    World::new(Arc::new(Batched::new(db)), move |ms| {
        clock.advance_ms(ms);
        let _kept_while_the_world_is = Arc::clone(&dir);
        std::future::ready(())
    })
}

mod over_memory {
    use super::memory;
    semel_testkit::key_laws!(memory);
}

mod over_sqlite {
    use super::file;
    semel_testkit::key_laws!(file);
}

#[test]
fn generated_histories_get_the_answers_of_the_model_over_memory() {
    compare_with_model(memory, 200, 0);
}

#[test]
fn generated_histories_get_the_answers_of_the_model_over_sqlite() {
    compare_with_model(file, 60, 0);
}
