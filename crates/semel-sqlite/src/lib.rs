//! semel-sqlite
