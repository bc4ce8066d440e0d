//! Values of fields, each with its own mistakes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr as _;

use toml::de::DeValue;

use super::{At, Table};
use crate::config::expand::{Trouble, expand};
use crate::config::spec::nearest;

impl Table<'_> {
    /// A text with its variables expanded.
    pub(crate) fn text(&self, name: &'static str) -> Option<At<String>> {
        let value = self.raw(name)?;
        let DeValue::String(text) = value.get_ref() else {
            self.wrong_type(name, value, "text");
            return None;
        };
        self.expanded(name, text, value.span())
    }

    fn expanded(&self, name: &str, text: &str, span: Range<usize>) -> Option<At<String>> {
        match expand(text, self.reader.env) {
            Ok(value) if value.is_empty() => {
                self.mistake(
                    span,
                    format!("`{name}` is empty"),
                    "give it a value, or leave the line out",
                );
                None
            }
            Ok(value) => Some(At { value, span }),
            Err(troubles) => {
                for trouble in troubles {
                    match trouble {
                        Trouble::Missing(variable) => self.mistake(
                            span.clone(),
                            format!("the environment variable {variable} is not set"),
                            format!("set it before starting semel: export {variable}=…"),
                        ),
                        Trouble::Malformed => self.mistake(
                            span.clone(),
                            format!("`{name}` holds a `${{` that names no variable"),
                            "write ${NAME}, or $${ for a literal ${",
                        ),
                    }
                }
                None
            }
        }
    }

    /// A list of texts; a single text stands for a list of one.
    pub(crate) fn texts(&self, name: &'static str) -> Option<Vec<At<String>>> {
        let value = self.raw(name)?;
        match value.get_ref() {
            DeValue::String(_) => Some(self.text(name)?.into()),
            DeValue::Array(items) => {
                let mut texts = Vec::with_capacity(items.len());
                for item in items {
                    let DeValue::String(text) = item.get_ref() else {
                        self.wrong_type(name, item, "a list of texts");
                        continue;
                    };
                    texts.extend(self.expanded(name, text, item.span()));
                }
                Some(texts)
            }
            _ => {
                self.wrong_type(name, value, "a list of texts");
                None
            }
        }
    }

    /// A table of texts by names of the user's choice.
    pub(crate) fn properties(&self, name: &'static str) -> BTreeMap<String, String> {
        let mut properties = BTreeMap::new();
        let Some(value) = self.raw(name) else {
            return properties;
        };
        let DeValue::Table(entries) = value.get_ref() else {
            self.wrong_type(name, value, "a table of texts");
            return properties;
        };
        for (key, item) in entries {
            self.reader.hide(item.span());
            let DeValue::String(text) = item.get_ref() else {
                self.wrong_type(key.get_ref(), item, "text");
                continue;
            };
            if let Some(text) = self.expanded(key.get_ref(), text, item.span()) {
                properties.insert(key.get_ref().to_string(), text.value);
            }
        }
        properties
    }

    /// A whole number in a range.
    pub(crate) fn number(&self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.raw(name)?;
        let DeValue::Integer(digits) = value.get_ref() else {
            self.wrong_type(name, value, "a whole number");
            return None;
        };
        let number = u64::from_str_radix(digits.as_str(), digits.radix()).ok();
        match number {
            Some(number) if range.contains(&number) => Some(number),
            _ => {
                self.mistake(
                    value.span(),
                    format!(
                        "`{name}` is {digits}, outside {} to {}",
                        range.start(),
                        range.end()
                    ),
                    format!("write a number from {} to {}", range.start(), range.end()),
                );
                None
            }
        }
    }

    /// A list of whole numbers in a range; a single one stands for a list of one.
    pub(crate) fn numbers(&self, name: &'static str, range: RangeInclusive<u64>) -> Option<Vec<u64>> {
        let value = self.raw(name)?;
        let DeValue::Array(items) = value.get_ref() else {
            return Some(vec![self.number(name, range)?]);
        };
        let mut numbers = Vec::with_capacity(items.len());
        for item in items {
            let number = match item.get_ref() {
                DeValue::Integer(digits) => u64::from_str_radix(digits.as_str(), digits.radix()).ok(),
                _ => {
                    self.wrong_type(name, item, "a list of whole numbers");
                    continue;
                }
            };
            match number.filter(|number| range.contains(number)) {
                Some(number) => numbers.push(number),
                None => self.mistake(
                    item.span(),
                    format!(
                        "`{name}` holds a number outside {} to {}",
                        range.start(),
                        range.end()
                    ),
                    format!("write numbers from {} to {}", range.start(), range.end()),
                ),
            }
        }
        Some(numbers)
    }

    /// True or false.
    pub(crate) fn boolean(&self, name: &'static str) -> Option<bool> {
        let value = self.raw(name)?;
        if let DeValue::Boolean(yes) = value.get_ref() {
            return Some(*yes);
        }
        self.wrong_type(name, value, "true or false");
        None
    }

    /// One of a few words.
    pub(crate) fn word<T: Copy>(&self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(name)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Some(*value);
        }
        let list: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let fix = match nearest(&text.value, words.iter().map(|(word, _)| *word)) {
            Some(near) => format!("did you mean \"{near}\"? Allowed: {}", list.join(", ")),
            None => format!("allowed: {}", list.join(", ")),
        };
        self.mistake(text.span, format!("`{name}` is none of the words it may be"), fix);
        None
    }

    /// An address to listen on; two sections cannot have the same. Port 0 lets the system choose.
    pub(crate) fn address(&self, name: &'static str) -> Option<At<SocketAddr>> {
        let text = self.text(name)?;
        if let Ok(value) = SocketAddr::from_str(&text.value) {
            let new = self.reader.addresses.borrow_mut().insert(value);
            if !new && value.port() != 0 {
                let message = format!("another section listens on {value} already");
                self.mistake(text.span.clone(), message, "give each a port of its own");
            }
            return Some(At {
                value,
                span: text.span,
            });
        }
        let fix = "write an IP address and a port, such as \"127.0.0.1:7080\" or \"[::1]:7080\"";
        self.mistake(text.span, format!("`{name}` is no address"), fix);
        None
    }

    /// An `http://` or `https://` URL with a host.
    pub(crate) fn http_url(&self, name: &'static str) -> Option<At<http::Uri>> {
        let text = self.text(name)?;
        let uri = http::Uri::from_str(&text.value).ok().filter(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|host| !host.is_empty())
        });
        let Some(value) = uri else {
            let fix = "write it with scheme and host, such as \"http://127.0.0.1:8080/events\"";
            self.mistake(text.span, format!("`{name}` is no http URL"), fix);
            return None;
        };
        Some(At {
            value,
            span: text.span,
        })
    }
}
