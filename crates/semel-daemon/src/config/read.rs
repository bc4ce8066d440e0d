//! Reads tables of the file by their [`Section`], and collects every mistake on the way instead of stopping at the
//! first.

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::expand::{Trouble, expand};
use super::mistake::Mistake;
use super::spec::Section;

/// Bytes of a name at most.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Where values come from besides the file, and where mistakes go.
pub(crate) struct Reader<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    /// Every section there is, to say where a misplaced field belongs.
    sections: &'a [&'static Section],
    mistakes: RefCell<Vec<Mistake>>,
    secrets: RefCell<Vec<Range<usize>>>,
    /// The stores there are, right or wrong.
    stores: RefCell<Vec<String>>,
    /// Names already given, by header.
    names: RefCell<HashSet<(&'static str, String)>>,
    /// Streams that a relay publishes already, by store.
    streams: RefCell<HashSet<(String, String)>>,
    /// Addresses that something listens on already.
    addresses: RefCell<HashSet<SocketAddr>>,
}

/// A value and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At<T> {
    /// The value.
    pub(crate) value: T,
    /// Its bytes in the file.
    pub(crate) span: Range<usize>,
}

impl<'a> Reader<'a> {
    /// A reader over this environment.
    pub(crate) fn new(env: &'a dyn Fn(&str) -> Option<String>, sections: &'a [&'static Section]) -> Self {
        Self {
            env,
            sections,
            mistakes: RefCell::default(),
            secrets: RefCell::default(),
            stores: RefCell::default(),
            names: RefCell::default(),
            addresses: RefCell::default(),
            streams: RefCell::default(),
        }
    }

    /// Notes that there is a store of this name.
    pub(crate) fn add_store(&self, name: impl Into<String>) {
        self.stores.borrow_mut().push(name.into());
    }

    /// Records a mistake.
    pub(crate) fn mistake(&self, span: Range<usize>, message: impl Into<String>, fix: impl Into<String>) {
        self.mistakes.borrow_mut().push(Mistake {
            span: Some(span),
            message: message.into(),
            fix: fix.into(),
        });
    }

    /// Never shows these bytes.
    pub(crate) fn hide(&self, span: Range<usize>) {
        self.secrets.borrow_mut().push(span);
    }

    /// The mistakes and the spans that are never shown.
    pub(crate) fn into_parts(self) -> (Vec<Mistake>, Vec<Range<usize>>) {
        (self.mistakes.into_inner(), self.secrets.into_inner())
    }
}

/// One table of the file.
pub(crate) struct Table<'a> {
    reader: &'a Reader<'a>,
    section: &'static Section,
    table: &'a DeTable<'a>,
    span: Range<usize>,
}

impl<'a> Table<'a> {
    /// Opens a table; fields that its section does not know are mistakes.
    pub(crate) fn open(
        reader: &'a Reader<'a>,
        section: &'static Section,
        table: &'a DeTable<'a>,
        span: Range<usize>,
    ) -> Self {
        for (name, value) in table {
            let known = section.get(name.get_ref());
            // A misspelt secret is a secret too.
            let meant = known.or_else(|| section.get(section.suggest(name.get_ref())?));
            // The span of a table under a header is its header: nothing to hide there.
            if meant.is_none_or(|field| field.secret) && value.span().start > name.span().start {
                reader.hide(value.span());
            }
            if known.is_none() {
                unknown(reader, section, name);
            }
        }
        Self {
            reader,
            section,
            table,
            span,
        }
    }

    /// How messages name this table.
    pub(crate) const fn header(&self) -> &'static str {
        self.section.header
    }

    /// Where the table stands: its header, or its braces.
    pub(crate) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Records a mistake.
    pub(crate) fn mistake(&self, span: Range<usize>, message: impl Into<String>, fix: impl Into<String>) {
        self.reader.mistake(span, message, fix);
    }

    /// Whether the field is there, right or wrong.
    pub(crate) fn has(&self, name: &'static str) -> bool {
        self.raw(name).is_some()
    }

    fn raw(&self, name: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        debug_assert!(
            self.section.get(name).is_some(),
            "{name} is not in the section {}",
            self.section.header
        );
        self.table.get(name)
    }

    /// Says that a required field is missing when it is.
    pub(crate) fn require(&self, name: &'static str, example: &str) {
        if self.raw(name).is_none() {
            let doc = self.section.get(name).map_or("", |field| field.doc);
            let doc = if doc.len() <= 50 {
                format!(": {doc}")
            } else {
                String::new()
            };
            self.mistake(
                self.span(),
                format!("`{name}` is missing in {}", self.header()),
                format!("add `{name} = {example}`{doc}"),
            );
        }
    }

    fn wrong_type(&self, name: &str, value: &Spanned<DeValue<'_>>, wanted: &str) {
        let default = self
            .section
            .get(name)
            .map_or("", |field| field.default.trim_matches('`'));
        let example = match wanted {
            "text" | "a list of texts" if default.starts_with(['"', '[']) => default,
            "text" => "\"…\"",
            "a list of texts" => "[\"…\", \"…\"]",
            "a whole number" if default.parse::<u64>().is_ok() => default,
            "a whole number" => "1000",
            "true or false" => "true",
            _ => "{ … }",
        };
        self.mistake(
            value.span(),
            format!("`{name}` must be {wanted}, not {}", kind_of(value.get_ref())),
            format!("write it like `{name} = {example}`"),
        );
    }

    /// The role's `name`: a label of metrics and part of the owner of leases, so a small alphabet, and unique.
    pub(crate) fn name(&self) -> Option<String> {
        self.require("name", "\"orders\"");
        let name = self.text("name")?;
        if !self.check_name(&name) {
            return None;
        }
        let new = self
            .reader
            .names
            .borrow_mut()
            .insert((self.header(), name.value.clone()));
        if !new {
            self.mistake(
                name.span,
                format!("two {} are called `{}`", self.header(), name.value),
                "give each a name of its own",
            );
        }
        Some(name.value)
    }

    /// Whether a name can be used everywhere it goes; a mistake when not.
    pub(crate) fn check_name(&self, name: &At<String>) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let good = (1..=NAME_BYTES_MAX).contains(&name.value.len()) && name.value.chars().all(plain);
        if !good {
            let fix = format!("use at most {NAME_BYTES_MAX} of a-z A-Z 0-9 - _ .");
            self.mistake(name.span.clone(), "this name cannot be used", fix);
        }
        good
    }

    /// The name of the role's store: what its `store` says, or the one in `[store]`. It must be there.
    pub(crate) fn store(&self) -> Option<String> {
        let stores = self.reader.stores.borrow();
        if !self.has("store") {
            if !stores.iter().any(|name| name == super::store::DEFAULT) {
                let fix = "add [store] with url = \"sqlite:semel.db\", or name one of [stores] with `store`";
                let message = format!("{} has no store: there is no [store]", self.header());
                self.mistake(self.span(), message, fix);
            }
            return Some(super::store::DEFAULT.to_owned());
        }
        let wanted = self.text("store")?;
        if !stores.contains(&wanted.value) {
            let fix = match super::spec::nearest(&wanted.value, stores.iter().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("add [stores.{}] with its url", wanted.value),
            };
            let message = format!("there is no store called `{}`", wanted.value);
            self.mistake(wanted.span.clone(), message, fix);
        }
        Some(wanted.value)
    }

    /// Two relays of one store cannot publish the same stream: it has one cursor and one sink.
    pub(crate) fn claim_stream(&self, stream: &At<String>) {
        let store = match self.raw("store").map(Spanned::get_ref) {
            Some(DeValue::String(name)) => name.to_string(),
            _ => super::store::DEFAULT.to_owned(),
        };
        let new = self
            .reader
            .streams
            .borrow_mut()
            .insert((store, stream.value.clone()));
        if !new {
            let message = format!(
                "another relay of this store publishes the stream `{}` already",
                stream.value
            );
            let fix = "a stream has one cursor and one sink: enqueue into a stream of its own for each sink";
            self.mistake(stream.span.clone(), message, fix);
        }
    }

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
        let fix = match super::spec::nearest(&text.value, words.iter().map(|(word, _)| *word)) {
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

    /// A table inside this one.
    pub(crate) fn table(&self, name: &'static str, section: &'static Section) -> Option<Self> {
        let value = self.raw(name)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong_type(name, value, "a table");
            return None;
        };
        Some(Self::open(self.reader, section, table, value.span()))
    }

    /// A list of tables: `[[name]]`.
    pub(crate) fn tables(&self, name: &'static str, section: &'static Section) -> Vec<Self> {
        let Some(value) = self.raw(name) else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            let fix = format!("write [[{name}]], with two brackets: there may be several");
            self.mistake(
                value.span(),
                format!(
                    "`{name}` must be a list of tables, not {}",
                    kind_of(value.get_ref())
                ),
                fix,
            );
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(items.len());
        for item in items {
            match item.get_ref() {
                DeValue::Table(table) => tables.push(Self::open(self.reader, section, table, item.span())),
                _ => self.wrong_type(name, item, "a table"),
            }
        }
        tables
    }

    /// Tables by names of the user's choice: `[name.x]`, `[name.y]`.
    pub(crate) fn named_tables(
        &self,
        name: &'static str,
        section: &'static Section,
    ) -> Vec<(At<String>, Self)> {
        let Some(value) = self.raw(name) else {
            return Vec::new();
        };
        let DeValue::Table(entries) = value.get_ref() else {
            self.wrong_type(name, value, "a table of tables");
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(entries.len());
        for (key, item) in entries {
            let name = At {
                value: key.get_ref().to_string(),
                span: key.span(),
            };
            match item.get_ref() {
                DeValue::Table(table) => {
                    tables.push((name, Self::open(self.reader, section, table, item.span())));
                }
                _ => self.wrong_type(&name.value, item, "a table"),
            }
        }
        tables
    }
}

impl<T> From<At<T>> for Vec<At<T>> {
    fn from(one: At<T>) -> Self {
        vec![one]
    }
}

fn unknown(reader: &Reader<'_>, section: &Section, name: &Spanned<std::borrow::Cow<'_, str>>) {
    let wrong = name.get_ref().as_ref();
    let elsewhere = || {
        let mut owners = reader
            .sections
            .iter()
            .filter(|other| other.header != section.header && other.get(wrong).is_some());
        owners.next().map(|owner| owner.header)
    };
    let fix = if let Some(near) = section.suggest(wrong) {
        format!("did you mean `{near}`?")
    } else if let Some(owner) = elsewhere() {
        format!("it belongs to {owner}")
    } else {
        let names: Vec<&str> = section.fields.iter().map(|field| field.name).collect();
        format!("known here: {}", names.join(", "))
    };
    let message = match section.header {
        super::ROOT_HEADER => format!("unknown section `{wrong}`"),
        header => format!("unknown field `{wrong}` in {header}"),
    };
    reader.mistake(name.span(), message, fix);
}

const fn kind_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
