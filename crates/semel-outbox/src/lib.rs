//! semel-outbox
