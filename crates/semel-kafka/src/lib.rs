//! semel-kafka
