//! Which part of a request differs from the first one's, in words that hold nothing of the first.

use semel_core::Fingerprint;

use super::{Asked, FIRST_TAGS, Profile, of, read};

/// Names the parts that differ, such as `the target, the body in /amount`.
pub(crate) async fn explain(asked: Asked<'_>, profile: &Profile, stored: &Fingerprint) -> String {
    let now = of(asked, profile).await;
    let (before, after) = (stored.tags(), now.tags());
    let differs = |place: usize| before.get(place) != after.get(place);
    let mut parts: Vec<String> = Vec::new();
    for (place, name) in ["the method", "the target", "the content type or encoding"]
        .into_iter()
        .enumerate()
    {
        // What is taken raw in one of the two has its type with its parameters there.
        if differs(place) && (place < 2 || stored.version() == now.version()) {
            parts.push(name.to_owned());
        }
    }
    for (n, name) in asked.headers.iter().enumerate() {
        if differs(FIRST_TAGS + n) {
            parts.push(format!("the header {name}"));
        }
    }
    if differs(FIRST_TAGS - 1) {
        let fields = match read(asked, profile).await {
            Some(read) if stored.version() == now.version() => read.fields,
            _ => Vec::new(),
        };
        let from = (FIRST_TAGS + asked.headers.len()).min(before.len());
        let before = before[from..].split(|tag| *tag == 0).next();
        parts.push(in_the_body(before.unwrap_or_default(), &fields));
    }
    if parts.is_empty() {
        // Two different parts may have the same tag.
        return "a part of it".to_owned();
    }
    parts.join(", ")
}

/// Names fields of this request whose value the first one did not have; what it had in addition has no name here.
fn in_the_body(before: &[u8], fields: &[(String, u8)]) -> String {
    // Fields come in an order of their own: as many of them are most likely the same ones.
    let same_count = before.len() == fields.len();
    let new: Vec<&str> = fields
        .iter()
        .enumerate()
        .filter(|(place, (_, tag))| {
            if same_count {
                before[*place] != *tag
            } else {
                !before.contains(tag)
            }
        })
        .map(|(_, (name, _))| name.as_str())
        .collect();
    if before.is_empty() || fields.is_empty() {
        "the body".to_owned()
    } else if new.is_empty() {
        "the body, which lacks a field or has its parts in another order".to_owned()
    } else {
        format!("the body in {}", new.join(", "))
    }
}
