//! MariaDB answers generated histories as the model does.

use semel_testkit::laws::keys::history::{compare_where_clocks_jump, compare_with_model};

use super::world;

#[test]
fn generated_histories_get_the_answers_of_the_model() {
    compare_with_model(world, 50, 9_000);
}

#[test]
fn clocks_that_jump_bring_no_token_back_and_forget_nothing_early() {
    compare_where_clocks_jump(world, 30, 9_000);
}
