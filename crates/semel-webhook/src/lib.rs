//! semel-webhook
