//! `semel.toml`.
