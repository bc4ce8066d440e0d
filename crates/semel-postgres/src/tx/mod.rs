//! What runs inside your own transaction: marks and events that commit with your rows, or not at all.
