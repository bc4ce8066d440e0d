//! semel-testkit
