//! Conformance laws: what every backend must do, one public function per law. Run them over a store of your own, too.

pub mod inbox;
pub mod keys;
pub mod log;
pub mod outbox;
pub mod saga;
pub mod sink;
