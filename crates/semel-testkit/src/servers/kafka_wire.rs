//! The requests of the Kafka protocol that the launcher needs: is it ready, and make a topic; beside it
//! [`kafka_log`](super::kafka_log) reads one.
//!
//! Old request versions without tagged fields, which Kafka 4 still answers. A client library would do this too, but
//! would make every crate that uses the testkit build librdkafka.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const METADATA: i16 = 3;
const CREATE_TOPICS: i16 = 19;
const TIMEOUT: Duration = Duration::from_secs(10);

/// What a broker knows of its cluster.
#[derive(Debug)]
pub(super) struct Metadata {
    /// Brokers that are registered and not fenced.
    pub(super) brokers: usize,
    /// Partitions of the topic asked for that have a leader.
    pub(super) led_partitions: usize,
}

/// Asks for the brokers and, when given, one topic.
pub(super) fn metadata(port: u16, topic: Option<&str>) -> io::Result<Metadata> {
    let mut body = Vec::new();
    let topics: Vec<&str> = topic.into_iter().collect();
    put_count(&mut body, topics.len());
    for topic in topics {
        put_text(&mut body, topic);
    }
    let answer = ask(port, METADATA, 1, &body)?;
    let mut rest = answer.as_slice();
    let brokers = take_count(&mut rest)?;
    for _ in 0..brokers {
        take(&mut rest, 4)?; // node id
        take_text(&mut rest)?; // host
        take(&mut rest, 4)?; // port
        take_text(&mut rest)?; // rack
    }
    take(&mut rest, 4)?; // controller id
    let mut led_partitions = 0;
    for _ in 0..take_count(&mut rest)? {
        take(&mut rest, 2)?; // error
        take_text(&mut rest)?;
        take(&mut rest, 1)?; // internal
        for _ in 0..take_count(&mut rest)? {
            take(&mut rest, 2 + 4)?; // error, partition
            led_partitions += usize::from(take_i32(&mut rest)? >= 0);
            for _ in 0..2 {
                let nodes = take_count(&mut rest)?; // replicas, then those in sync
                take(&mut rest, nodes * 4)?;
            }
        }
    }
    Ok(Metadata {
        brokers,
        led_partitions,
    })
}

/// Makes a topic with one replica; the broker's answer as its error code (0 is success, 36 exists already).
pub(super) fn create_topic(
    port: u16,
    name: &str,
    partitions: u16,
    settings: &[(&str, &str)],
) -> io::Result<i16> {
    let mut body = Vec::new();
    put_count(&mut body, 1);
    put_text(&mut body, name);
    body.extend(i32::from(partitions).to_be_bytes());
    body.extend(1_i16.to_be_bytes());
    put_count(&mut body, 0); // no assignment by hand
    put_count(&mut body, settings.len());
    for (setting, value) in settings {
        put_text(&mut body, setting);
        put_text(&mut body, value);
    }
    body.extend(10_000_i32.to_be_bytes());
    body.push(0); // not only a validation
    let answer = ask(port, CREATE_TOPICS, 2, &body)?;
    let mut rest = answer.as_slice();
    take(&mut rest, 4 + 4)?; // throttle, count
    take_text(&mut rest)?;
    let code = take(&mut rest, 2)?;
    Ok(i16::from_be_bytes([code[0], code[1]]))
}

pub(super) fn ask(port: u16, request: i16, version: i16, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut message = Vec::new();
    message.extend(request.to_be_bytes());
    message.extend(version.to_be_bytes());
    message.extend(1_i32.to_be_bytes()); // correlation id
    put_text(&mut message, "semel-testkit");
    message.extend(body);
    stream.write_all(&i32::try_from(message.len()).unwrap().to_be_bytes())?;
    stream.write_all(&message)?;
    let mut size = [0; 4];
    stream.read_exact(&mut size)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(size)).map_err(io::Error::other)?];
    stream.read_exact(&mut answer)?;
    Ok(answer.split_off(4.min(answer.len()))) // correlation id
}

pub(super) fn put_count(into: &mut Vec<u8>, count: usize) {
    into.extend(i32::try_from(count).unwrap().to_be_bytes());
}

pub(super) fn put_text(into: &mut Vec<u8>, text: &str) {
    into.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    into.extend(text.as_bytes());
}

pub(super) fn take<'a>(rest: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count).ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = left;
    Ok(taken)
}

pub(super) fn take_i32(rest: &mut &[u8]) -> io::Result<i32> {
    let bytes = take(rest, 4)?;
    Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// The length of an array; −1 stands for none.
pub(super) fn take_count(rest: &mut &[u8]) -> io::Result<usize> {
    Ok(usize::try_from(take_i32(rest)?).unwrap_or(0))
}

/// Skips a text that may be absent.
pub(super) fn take_text(rest: &mut &[u8]) -> io::Result<()> {
    let size = take(rest, 2)?;
    let size = usize::try_from(i16::from_be_bytes([size[0], size[1]])).unwrap_or(0);
    take(rest, size).map(drop)
}
