//! The binary `semel`.
fn main() {}
