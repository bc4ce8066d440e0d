//! Any bytes decode or fail; what decodes and is encoded again decodes to the same.
use bytes::Bytes;
use semel_http::response::StoredResponse;

/// Panics where it is not so.
pub(super) fn check(data: &[u8]) {
    if let Ok(answer) = StoredResponse::decode(&Bytes::copy_from_slice(data)) {
        assert_eq!(StoredResponse::decode(&answer.encode()), Ok(answer));
    }
}
