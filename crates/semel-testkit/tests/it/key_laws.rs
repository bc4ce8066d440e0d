//! The model obeys the laws of keys.

use semel_testkit::laws::keys::World;

async fn memory() -> World {
    World::memory()
}

semel_testkit::key_laws!(memory);
