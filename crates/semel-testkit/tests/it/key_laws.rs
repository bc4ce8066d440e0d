//! The model obeys the laws of keys.

use semel_testkit::laws::keys::World;

async fn memory() -> World {
    World::memory()
}

semel_testkit::key_laws!(memory);

/// Rule by rule, not only against itself.
#[test]
fn clocks_that_jump_bring_no_token_back_and_forget_nothing_early() {
    semel_testkit::laws::keys::history::compare_where_clocks_jump(memory, 300, 0);
}
