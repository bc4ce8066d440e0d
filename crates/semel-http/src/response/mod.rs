//! The stored answer: what is kept of a response, and its stored form.

mod codec;
mod strip;

pub use codec::{CODEC_VERSION, CodecError, StoredResponse};
