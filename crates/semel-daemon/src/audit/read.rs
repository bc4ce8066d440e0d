//! What arrived, as JSON lines.

use std::io::BufRead;

use serde::Deserialize;
use uuid::Uuid;

use super::compare::{Arrival, CameKey};

/// Bytes of one line at most.
const LINE_BYTES_MAX: u64 = 4 << 20;

#[derive(Deserialize)]
struct Line {
    id: Uuid,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    sha256: Option<String>,
}

/// Reads arrivals one by one; empty lines are passed over. Other fields of a line are not looked at.
pub(super) fn arrivals(input: &mut dyn BufRead, mut each: impl FnMut(&Arrival)) -> Result<(), String> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = std::io::Read::take(&mut *input, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|error| error.to_string())? == 0 {
            break;
        }
        let text = line.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let line: Line = serde_json::from_slice(text).map_err(|error| format!("line {number}: {error}"))?;
        let sha256 = match &line.sha256 {
            None => None,
            Some(hex) => {
                Some(hash(hex).ok_or_else(|| format!("line {number}: sha256 is not 64 hexadecimal digits"))?)
            }
        };
        each(&Arrival {
            id: line.id,
            key: line.key.map_or(CameKey::Untold, |key| CameKey::Told(key.into())),
            sha256,
        });
    }
    Ok(())
}

fn hash(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_order_and_a_bad_one_is_named() {
        let id = Uuid::from_u128(7);
        let text = format!(
            "{{\"id\":\"{id}\"}}\n\n{{\"id\":\"{id}\",\"key\":\"k\",\"sha256\":\"{}\",\"more\":1}}",
            "Ab".repeat(32)
        );
        let mut read = Vec::new();
        arrivals(&mut text.as_bytes(), |arrival| read.push(arrival.clone())).unwrap();
        assert_eq!(
            (read.len(), read[0].sha256, &read[1].key),
            (2, None, &CameKey::Told("k".into()))
        );
        assert_eq!(read[1].sha256, Some([0xab; 32]));
        for bad in [
            "{}",
            "{\"id\":\"x\"}",
            &format!("{{\"id\":\"{id}\",\"sha256\":\"+1\"}}"),
        ] {
            let text = format!("\n{bad}\n");
            assert!(
                arrivals(&mut text.as_bytes(), |_| {})
                    .unwrap_err()
                    .starts_with("line 2: "),
                "{bad}"
            );
        }
    }
}
