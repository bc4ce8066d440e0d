//! The in-memory saga store obeys the laws that it specifies.

semel_testkit::saga_laws!(async { (semel_testkit::laws::saga::memory(), ()) });
