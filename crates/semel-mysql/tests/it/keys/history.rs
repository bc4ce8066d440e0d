//! MariaDB answers generated histories as the model does.

use semel_testkit::laws::keys::history::compare_with_model;

use super::world;

#[test]
fn generated_histories_get_the_answers_of_the_model() {
    compare_with_model(world, 50, 9_000);
}
