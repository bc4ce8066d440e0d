//! Keys for HTTP clients.
