//! Texts in which parts of an event take their places: subjects, exchanges, routing keys.

use crate::event::Event;

/// What may stand in a template.
pub const PLACES: &str = "a place in a template is {topic}, {stream} or {type}";

/// Such a text, read once and filled for each event.
///
/// ```
/// # use semel_core::{Event, template::Template};
/// let subject = Template::read("shop.{topic}").unwrap();
/// let event = Event::new(uuid::Uuid::nil(), "orders", "order.placed");
/// assert_eq!(subject.fill(&event), "shop.orders");
/// assert!(Template::read("{key}").is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Topic,
    Stream,
    Type,
}

impl Template {
    /// Reads it; `None` where it names what no event has ([`PLACES`]).
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, behind) = after.split_once('}')?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(match name {
                "topic" => Part::Topic,
                "stream" => Part::Stream,
                "type" => Part::Type,
                _ => return None,
            });
            rest = behind;
        }
        parts.push(Part::Text(rest.to_owned()));
        Some(Self(parts))
    }

    /// Whether it is the same for every event.
    #[must_use]
    pub fn is_fixed(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(_)))
    }

    /// With the parts of this event.
    #[must_use]
    pub fn fill(&self, event: &Event) -> String {
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text,
                Part::Topic => &event.topic,
                Part::Stream => &event.stream,
                Part::Type => &event.kind,
            })
            .map(String::as_str)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_a_template_are_filled_and_unknown_ones_refused() {
        let event = Event::new(uuid::Uuid::from_u128(7), "orders", "placed").with_stream("shop");
        let fill = |text: &str| Template::read(text).map(|template| template.fill(&event));
        assert_eq!(fill("").unwrap(), "");
        let fixed = |text: &str| Template::read(text).unwrap().is_fixed();
        assert!(fixed("shop") && !fixed("shop.{type}"));
        assert_eq!(
            fill("a.{stream}.{topic}-{type}.b").unwrap(),
            "a.shop.orders-placed.b"
        );
        for wrong in ["{key}", "{topic", "a{"] {
            assert_eq!(fill(wrong), None, "{wrong}");
        }
    }
}
