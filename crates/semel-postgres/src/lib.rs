//! semel-postgres
