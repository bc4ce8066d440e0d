//! Keys on Redis.
