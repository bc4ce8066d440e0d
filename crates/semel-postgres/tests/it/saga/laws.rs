//! PostgreSQL obeys the laws of sagas.

semel_testkit::saga_laws!(super::world());
