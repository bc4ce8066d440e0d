//! The in-memory outbox obeys the laws that it specifies.

semel_testkit::outbox_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
semel_testkit::delayed_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
semel_testkit::reshard_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
semel_testkit::outbox_desk_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
semel_testkit::limit_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
semel_testkit::counting_laws!(async { (semel_testkit::laws::outbox::memory(), ()) });
