//! PostgreSQL obeys the laws of sagas, and answers generated histories as the model does.

use semel_testkit::laws::saga::history::compare_with_model;

semel_testkit::saga_laws!(super::world());

#[test]
fn generated_histories_get_the_answers_of_the_model() {
    compare_with_model(super::world, 40, 9_000);
}
