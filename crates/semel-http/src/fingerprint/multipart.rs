//! Multipart bodies, part by part.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyDataStream, Full};
use semel_core::fingerprint::tag;

use super::profile::essence;
use super::{Asked, Read};

pub(super) async fn read(asked: Asked<'_>) -> Option<Read> {
    if essence(&asked.head.headers)? != "multipart/form-data" {
        return None;
    }
    let boundary = multer::parse_boundary(asked.head.headers.get(CONTENT_TYPE)?.to_str().ok()?).ok()?;
    let body = Full::new(Bytes::copy_from_slice(asked.body));
    let mut parts = multer::Multipart::new(BodyDataStream::new(body), boundary);
    let mut canonical = Vec::with_capacity(asked.body.len());
    let mut fields = Vec::new();
    while let Some(part) = parts.next_field().await.ok()? {
        let name = part.name().unwrap_or_default().to_owned();
        let file = part.file_name().map(str::to_owned);
        let kind = part.content_type().map(ToString::to_string);
        let content = part.bytes().await.ok()?;
        let own: [&[u8]; 4] = [
            name.as_bytes(),
            // What is absent differs from what is empty.
            &file.map_or_else(Vec::new, |file| [b"f", file.as_bytes()].concat()),
            &kind.map_or_else(Vec::new, |kind| [b"t", kind.as_bytes()].concat()),
            &content,
        ];
        for part in own {
            canonical.extend_from_slice(&(part.len() as u64).to_be_bytes());
            canonical.extend_from_slice(part);
        }
        let own = tag(&own);
        fields.push((name, own));
    }
    Some(Read { canonical, fields })
}
