//! The functions obey the laws of keys and answer generated histories as the model does.

use semel_testkit::laws::keys::history::compare_with_model;

use super::world;

semel_testkit::key_laws!(world);

#[test]
fn generated_histories_of_function_calls_get_the_answers_of_the_model() {
    compare_with_model(world, 40, 9_000);
}
