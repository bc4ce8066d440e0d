//! Reads what lies in a partition of a topic: one request and the format of record batches (version 2).

use std::io;

use super::kafka_wire::{ask, put_count, put_text, take, take_count, take_i32, take_text};

const FETCH: i16 = 1;
/// The oldest that Kafka 4 answers.
const VERSION: i16 = 4;
const PAGE: i32 = 1 << 20;
/// Bits of a batch's attributes.
const COMPRESSED: i16 = 0b111;
const CONTROL: i16 = 1 << 5;

/// One record as it lies in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaRecord {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; nothing is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Its headers in their order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

impl KafkaRecord {
    /// The first header of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(found, _)| found == name);
        found.and_then(|(_, value)| value.as_deref())
    }
}

/// Everything in a partition now, committed or not, without the records by which transactions end.
pub(super) fn records(port: u16, topic: &str, partition: u16) -> io::Result<Vec<KafkaRecord>> {
    let (mut offset, mut records) = (0, Vec::new());
    loop {
        let (end, page) = fetch(port, topic, partition, offset)?;
        offset = decode(&page, offset, &mut records)?;
        if offset >= end {
            return Ok(records);
        }
    }
}

/// The offset behind the last record, and batches from this offset on.
fn fetch(port: u16, topic: &str, partition: u16, offset: i64) -> io::Result<(i64, Vec<u8>)> {
    let mut body = Vec::new();
    body.extend((-1_i32).to_be_bytes()); // no replica
    body.extend(0_i32.to_be_bytes()); // wait for nothing
    body.extend(0_i32.to_be_bytes());
    body.extend(PAGE.to_be_bytes());
    body.push(0); // read uncommitted
    put_count(&mut body, 1);
    put_text(&mut body, topic);
    put_count(&mut body, 1);
    body.extend(i32::from(partition).to_be_bytes());
    body.extend(offset.to_be_bytes());
    body.extend(PAGE.to_be_bytes());
    let answer = ask(port, FETCH, VERSION, &body)?;
    let mut rest = answer.as_slice();
    take(&mut rest, 4 + 4)?; // throttle, count
    take_text(&mut rest)?;
    take(&mut rest, 4 + 4)?; // count, partition
    let error = take_i16(&mut rest)?;
    if error != 0 {
        return Err(io::Error::other(format!("{topic}: Kafka's error {error}")));
    }
    let end = take_i64(&mut rest)?;
    take(&mut rest, 8)?; // the last stable offset
    let aborted = take_count(&mut rest)?;
    take(&mut rest, aborted * 16)?;
    let size = take_count(&mut rest)?;
    Ok((end, take(&mut rest, size)?.to_vec()))
}

/// Adds the records of whole batches; the offset behind them.
fn decode(mut page: &[u8], mut next: i64, into: &mut Vec<KafkaRecord>) -> io::Result<i64> {
    while page.len() >= 12 {
        let base = take_i64(&mut page)?;
        let size = usize::try_from(take_i32(&mut page)?).map_err(io::Error::other)?;
        // A page may end in the middle of one.
        let Ok(mut batch) = take(&mut page, size) else {
            break;
        };
        take(&mut batch, 4)?; // leader epoch
        if take(&mut batch, 1)? != [2] {
            return Err(io::Error::other("a batch of another format"));
        }
        take(&mut batch, 4)?; // checksum
        let attributes = take_i16(&mut batch)?;
        let last = take_i32(&mut batch)?;
        take(&mut batch, 8 + 8 + 8 + 2 + 4)?; // timestamps, producer, epoch, sequence
        next = base + i64::from(last) + 1;
        if attributes & COMPRESSED != 0 {
            return Err(io::Error::other("a compressed batch"));
        }
        if attributes & CONTROL == 0 {
            for _ in 0..take_i32(&mut batch)? {
                into.push(record(&mut batch)?);
            }
        }
    }
    Ok(next)
}

fn record(rest: &mut &[u8]) -> io::Result<KafkaRecord> {
    take_varint(rest)?; // its size
    take(rest, 1)?; // attributes
    take_varint(rest)?; // timestamp
    take_varint(rest)?; // offset
    let (key, value) = (take_bytes(rest)?, take_bytes(rest)?);
    let mut headers = Vec::new();
    for _ in 0..take_varint(rest)? {
        let name = String::from_utf8(take_bytes(rest)?.unwrap_or_default()).map_err(io::Error::other)?;
        headers.push((name, take_bytes(rest)?));
    }
    Ok(KafkaRecord { key, value, headers })
}

/// Bytes with their length before them; −1 stands for none.
fn take_bytes(rest: &mut &[u8]) -> io::Result<Option<Vec<u8>>> {
    match usize::try_from(take_varint(rest)?) {
        Ok(size) => Ok(Some(take(rest, size)?.to_vec())),
        Err(_) => Ok(None),
    }
}

/// Seven bits a byte, lowest first, the sign in the lowest of all.
fn take_varint(rest: &mut &[u8]) -> io::Result<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

fn take_i16(rest: &mut &[u8]) -> io::Result<i16> {
    let bytes = take(rest, 2)?;
    Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
}

fn take_i64(rest: &mut &[u8]) -> io::Result<i64> {
    let bytes = take(rest, 8)?;
    Ok(i64::from_be_bytes(bytes.try_into().map_err(io::Error::other)?))
}
