//! Any header value is a key within the limit or an error; what strict takes, lenient takes as the same key.
use semel_http::key::{KeyForm, parse};

/// Panics where it is not so.
pub(super) fn check(value: &[u8]) {
    let lenient = parse(value, KeyForm::Lenient, 255);
    if let Ok(key) = &lenient {
        assert!((1..=255).contains(&key.len()));
        assert!(key.iter().all(|byte| (0x20..0x7f).contains(byte)));
    }
    if let Ok(key) = parse(value, KeyForm::Strict, 255) {
        assert_eq!(lenient.as_ref(), Ok(&key));
    }
}
