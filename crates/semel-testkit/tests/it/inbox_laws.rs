//! The laws of the inbox over the in-memory model.

use semel_core::model::MemoryInbox;

semel_testkit::inbox_laws!(async { (MemoryInbox::default(), ()) });
