//! Reads tables of the file by their [`Section`], and collects every mistake on the way instead of stopping at the
//! first.

mod names;
mod tables;
mod values;

use std::cell::RefCell;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::ROOT_HEADER;
use crate::config::mistake::Mistake;
use crate::config::spec::Section;
use crate::config::store::Limited;

/// Bytes of a name at most.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Where values come from besides the file, and where mistakes go.
pub(crate) struct Reader<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    /// Every section there is, to say where a misplaced field belongs.
    sections: &'a [&'static Section],
    mistakes: RefCell<Vec<Mistake>>,
    /// What is no mistake, and does not do what its writer may think.
    doubts: RefCell<Vec<Mistake>>,
    secrets: RefCell<Vec<Range<usize>>>,
    /// The stores there are, right or wrong.
    stores: RefCell<Vec<String>>,
    /// Those of them that hold keys and nothing else.
    pub(super) limited: RefCell<Vec<(String, Limited)>>,
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
            doubts: RefCell::default(),
            secrets: RefCell::default(),
            stores: RefCell::default(),
            limited: RefCell::default(),
            names: RefCell::default(),
            addresses: RefCell::default(),
            streams: RefCell::default(),
        }
    }

    /// Notes that something listens there.
    pub(crate) fn listens_on(&self, address: SocketAddr) {
        self.addresses.borrow_mut().insert(address);
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

    /// Takes what was found that is no mistake.
    pub(crate) fn take_doubts(&self) -> Vec<Mistake> {
        self.doubts.take()
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

    /// Records that something is no mistake and does not do what its writer may think.
    pub(crate) fn doubt(&self, span: Range<usize>, message: impl Into<String>, fix: impl Into<String>) {
        self.reader.doubts.borrow_mut().push(Mistake {
            span: Some(span),
            message: message.into(),
            fix: fix.into(),
        });
    }

    /// Records those of the fields that are there as doing nothing here, and why.
    pub(crate) fn idle(&self, names: &[&'static str], why: &str) {
        for name in names {
            if let Some(value) = self.raw(name) {
                let message = format!("`{name}` of {} does nothing: {why}", self.header());
                self.doubt(value.span(), message, "leave it out");
            }
        }
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
        ROOT_HEADER => format!("unknown section `{wrong}`"),
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
