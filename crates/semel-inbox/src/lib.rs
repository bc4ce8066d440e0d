//! semel-inbox
