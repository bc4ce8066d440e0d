//! Topic ids by a metadata request of our own.
//!
//! A position belongs to one incarnation of a topic: a topic that is deleted and made again under its old name
//! starts again at offset 0. Its id tells the two apart, and librdkafka's safe interface does not give it.
//!
//! # Limits
//! Plain TCP only. Over TLS or SASL the ids must be given by hand (`ConsumerConfig::topic_ids`).

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use semel_core::{ErrorKind, StoreError};
use uuid::Uuid;

/// Metadata, in the version whose answers hold topic ids and which every broker since 3.0 speaks.
const API_KEY: i16 = 3;
const API_VERSION: i16 = 12;
const CORRELATION: i32 = 1;
/// One topic with a hundred thousand partitions is less than this.
const ANSWER_BYTES_MAX: i32 = 16 << 20;

/// The id of a topic. Asks the brokers in turn until one answers.
///
/// # Errors
/// `Unavailable` when none does, or while the topic is being made; `Invalid` when there is no such topic.
pub(crate) fn topic_id(bootstrap: &str, topic: &str, limit: Duration) -> Result<Uuid, StoreError> {
    let mut last = io::Error::other("no broker is named");
    for broker in bootstrap.split(',').map(str::trim).filter(|b| !b.is_empty()) {
        match ask(broker, topic, limit) {
            Ok((0, id)) => return Ok(id),
            Ok((3, _)) => {
                let text = format!("there is no topic {topic}; create it, or mend its name");
                return Err(StoreError::new(ErrorKind::Unavailable, "topic id", text));
            }
            Ok((29, _)) => {
                let text = format!("the broker does not let this client see topic {topic}");
                return Err(StoreError::new(ErrorKind::Invalid, "topic id", text));
            }
            Ok((code, _)) => last = io::Error::other(format!("the broker answered with error {code}")),
            Err(error) => last = error,
        }
    }
    let text = format!("no broker of {bootstrap} tells the id of topic {topic}");
    Err(StoreError::new(ErrorKind::Unavailable, "topic id", text).with_source(last))
}

fn ask(broker: &str, topic: &str, limit: Duration) -> io::Result<(i16, Uuid)> {
    // "PLAINTEXT://host:port" is understood by librdkafka too.
    let address = broker.rsplit_once("://").map_or(broker, |(_, address)| address);
    let address = if address.contains(':') {
        address.to_owned()
    } else {
        format!("{address}:9092")
    };
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(limit))?;
                stream.set_write_timeout(Some(limit))?;
                stream.write_all(&request(topic))?;
                let mut size = [0; 4];
                stream.read_exact(&mut size)?;
                let size = i32::from_be_bytes(size);
                if !(8..=ANSWER_BYTES_MAX).contains(&size) {
                    return Err(io::Error::other(
                        "the answer's size is out of bounds: is this a plain listener?",
                    ));
                }
                let mut answer = vec![0; usize::try_from(size).unwrap_or_default()];
                stream.read_exact(&mut answer)?;
                return parse(&answer);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The whole request, its length in front.
fn request(topic: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(API_KEY.to_be_bytes());
    body.extend(API_VERSION.to_be_bytes());
    body.extend(CORRELATION.to_be_bytes());
    let client = b"semel";
    body.extend((client.len() as i16).to_be_bytes());
    body.extend(client);
    body.push(0); // no tagged fields in the header
    put_length(&mut body, 1); // one topic
    body.extend([0; 16]); // asked by its name, not its id
    put_length(&mut body, topic.len());
    body.extend(topic.as_bytes());
    body.push(0); // no tagged fields in the topic
    body.push(0); // do not create it
    body.push(0); // no list of allowed operations
    body.push(0); // no tagged fields
    let mut message = (body.len() as i32).to_be_bytes().to_vec();
    message.extend(body);
    message
}

/// Error code and id of the one topic.
fn parse(answer: &[u8]) -> io::Result<(i16, Uuid)> {
    let mut rest = answer;
    if take(&mut rest, 4)? != CORRELATION.to_be_bytes() {
        return Err(io::Error::other("this answers another request"));
    }
    skip_tags(&mut rest)?;
    take(&mut rest, 4)?; // throttle time
    for _ in 0..take_length(&mut rest)? {
        take(&mut rest, 4)?; // node id
        skip_text(&mut rest)?; // host
        take(&mut rest, 4)?; // port
        skip_text(&mut rest)?; // rack
        skip_tags(&mut rest)?;
    }
    skip_text(&mut rest)?; // cluster id
    take(&mut rest, 4)?; // controller
    if take_length(&mut rest)? != 1 {
        return Err(io::Error::other("the answer is not about one topic"));
    }
    let code = take(&mut rest, 2)?;
    let code = i16::from_be_bytes([code[0], code[1]]);
    skip_text(&mut rest)?; // name
    let id = Uuid::from_slice(take(&mut rest, 16)?).map_err(io::Error::other)?;
    if code == 0 && id.is_nil() {
        return Err(io::Error::other("the broker is too old to give topics ids"));
    }
    Ok((code, id))
}

/// Lengths are written as one more, in groups of seven bits.
fn put_length(into: &mut Vec<u8>, length: usize) {
    let mut value = length + 1;
    while value >= 0x80 {
        into.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count).ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = left;
    Ok(taken)
}

fn take_varint(rest: &mut &[u8]) -> io::Result<usize> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = take(rest, 1)?[0];
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(io::Error::other("a number is longer than five bytes"))
}

/// A length; null counts as none.
fn take_length(rest: &mut &[u8]) -> io::Result<usize> {
    Ok(take_varint(rest)?.saturating_sub(1))
}

fn skip_text(rest: &mut &[u8]) -> io::Result<()> {
    let length = take_length(rest)?;
    take(rest, length).map(drop)
}

fn skip_tags(rest: &mut &[u8]) -> io::Result<()> {
    for _ in 0..take_varint(rest)? {
        take_varint(rest)?;
        let size = take_varint(rest)?;
        take(rest, size)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cut_anywhere_is_an_error_never_a_wrong_id() {
        let mut answer = CORRELATION.to_be_bytes().to_vec();
        answer.push(0); // tags
        answer.extend([0; 4]); // throttle
        answer.push(2); // one broker
        answer.extend([0, 0, 0, 1]);
        answer.extend(b"\x02h");
        answer.extend([0, 0, 0x23, 0x84]);
        answer.push(0); // no rack
        answer.push(0);
        answer.extend(b"\x02c"); // cluster id
        answer.extend([0, 0, 0, 1]);
        answer.push(2); // one topic
        answer.extend([0, 0]);
        answer.extend(b"\x02t");
        answer.extend([7; 16]);
        assert_eq!(parse(&answer).unwrap(), (0, Uuid::from_bytes([7; 16])));
        for end in 0..answer.len() {
            parse(&answer[..end]).unwrap_err();
        }
    }

    #[test]
    fn lengths_survive_the_way_there_and_back() {
        for length in [0, 1, 126, 127, 128, 249, 20_000] {
            let mut bytes = Vec::new();
            put_length(&mut bytes, length);
            assert_eq!(take_length(&mut &bytes[..]).unwrap(), length);
        }
    }
}
