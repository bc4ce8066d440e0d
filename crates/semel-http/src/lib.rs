//! semel-http
