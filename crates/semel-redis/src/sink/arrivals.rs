//! What a stream holds, read once from its beginning to its end: for audits.

use std::sync::Arc;

use bytes::Bytes;
use redis::{Cmd, Value};
use semel_core::store::{ARRIVED_UNREADABLE, Arrived, ArrivedRead};
use semel_core::{ErrorKind, StoreError};

use crate::config::Config;
use crate::link::{Link, Node};

/// Bytes that a page should have: how many entries are asked for follows from the page before.
const PAGE_BYTES: usize = 1 << 20;
/// Entries of the first page, and of any page.
const FIRST_ENTRIES: usize = 16;
const ENTRIES_MAX: usize = 1_000;
const OPERATION: &str = "read stream";

/// Reads a stream of Redis from its beginning to where it ended when this was called, and hands each entry over in order. No
/// group is joined and nothing is acknowledged or deleted.
///
/// # Errors
/// `Invalid` where the key is missing or no stream, or may not be read; what the connection meets. What was read before was
/// handed over.
///
/// # Limits
/// Some 1 MiB of entries wait in memory, or 16 where a stream begins with larger ones, and while Redis puts a page together it
/// does nothing else.
pub async fn read_arrivals(
    config: &Config,
    key: &str,
    mut each: impl FnMut(Arrived),
) -> Result<ArrivedRead, StoreError> {
    let link = Link::new(config.clone(), Arc::new(|_| {}))?;
    let ask = async |command: Cmd| {
        let answer = link.ask(OPERATION, &Node::Only, command).await;
        answer.map_err(|error| error.with_code(ARRIVED_UNREADABLE))
    };
    let kind = ask(command("TYPE", key)).await?;
    match text(&kind).as_deref() {
        Some("stream") => {}
        Some("none") => return Err(invalid(format!("there is no key {key}"))),
        other => {
            let other = other.unwrap_or("something else");
            return Err(invalid(format!("the key {key} holds no stream, but: {other}")));
        }
    }
    let mut last = command("XREVRANGE", key);
    last.arg("+").arg("-").arg("COUNT").arg(1);
    let mut info = command("XINFO", "STREAM");
    info.arg(key);
    let info = ask(info).await?;
    let mut read = ArrivedRead {
        messages: 0,
        gone: gone(&info),
    };
    let Some((end, _)) = entries(ask(last).await?)?.pop() else {
        return Ok(read);
    };
    let (mut from, mut count) = (b"-".to_vec(), FIRST_ENTRIES);
    loop {
        let mut range = command("XRANGE", key);
        range.arg(&from[..]).arg(&end[..]).arg("COUNT").arg(count);
        let page = entries(ask(range).await?)?;
        let (asked, mut bytes) = (count, 0);
        for (_, fields) in &page {
            bytes += fields.iter().map(|field| bytes_of(field).len()).sum::<usize>();
            read.messages += 1;
            each(arrived(fields));
        }
        let entries = page.len();
        match page.last() {
            Some((id, _)) if entries == asked && *id != end => from = [b"(", &id[..]].concat(),
            _ => return Ok(read),
        }
        count = (PAGE_BYTES / (bytes / entries).max(1)).clamp(1, ENTRIES_MAX);
    }
}

fn command(name: &str, first: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(first);
    command
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::new(ErrorKind::Invalid, OPERATION, text).with_code(ARRIVED_UNREADABLE)
}

fn unreadable() -> StoreError {
    let text = "what Redis answers cannot be read as entries of a stream";
    StoreError::new(ErrorKind::Unavailable, OPERATION, text).with_code(ARRIVED_UNREADABLE)
}

const fn bytes_of(value: &Value) -> &[u8] {
    match value {
        Value::BulkString(bytes) => bytes.as_slice(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.as_bytes(),
        _ => &[],
    }
}

fn text(value: &Value) -> Option<String> {
    String::from_utf8(bytes_of(value).to_vec()).ok()
}

/// Entries that were added and are not there any more; 0 where this Redis does not tell.
fn gone(info: &Value) -> u64 {
    let pairs: Vec<(&Value, &Value)> = match info {
        Value::Map(pairs) => pairs.iter().map(|(name, value)| (name, value)).collect(),
        Value::Array(flat) => flat
            .chunks_exact(2)
            .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
            .collect(),
        _ => Vec::new(),
    };
    let number = |name: &str| {
        let mut found = pairs.iter().filter(|(is, _)| bytes_of(is) == name.as_bytes());
        found.find_map(|(_, value)| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        })
    };
    match (number("entries-added"), number("length")) {
        (Some(added), Some(length)) => added.saturating_sub(length),
        _ => 0,
    }
}

/// An entry: its id, and fields and values in turn.
type Entry = (Vec<u8>, Vec<Value>);

fn entries(answer: Value) -> Result<Vec<Entry>, StoreError> {
    let Value::Array(answer) = answer else {
        return Err(unreadable());
    };
    let entry = |entry: Value| match entry {
        Value::Array(parts) => match <[Value; 2]>::try_from(parts) {
            Ok([id, Value::Array(fields)]) => Ok((bytes_of(&id).to_vec(), fields)),
            _ => Err(unreadable()),
        },
        _ => Err(unreadable()),
    };
    answer.into_iter().map(entry).collect()
}

fn arrived(fields: &[Value]) -> Arrived {
    let field = |name: &str| {
        let mut pairs = fields.chunks_exact(2);
        pairs.find_map(|pair| match pair {
            [is, value] if bytes_of(is) == name.as_bytes() => Some(bytes_of(value)),
            _ => None,
        })
    };
    let text = |name: &str| field(name).and_then(|bytes| std::str::from_utf8(bytes).ok());
    Arrived::read(
        text("ce_id"),
        text("content-type"),
        field("ce_partitionkey").map(Bytes::copy_from_slice),
        field("data"),
    )
}
