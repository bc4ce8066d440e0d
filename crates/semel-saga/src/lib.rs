//! semel-saga
