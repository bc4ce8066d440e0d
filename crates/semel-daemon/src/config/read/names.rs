//! Names, and what they refer to: unique where they must be, and there where they are used.

use toml::Spanned;
use toml::de::DeValue;

use super::{At, NAME_BYTES_MAX, Table};
use crate::config::spec::nearest;
use crate::config::store::{DEFAULT, Limited};

impl Table<'_> {
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
            if !stores.iter().any(|name| name == DEFAULT) {
                let fix = "add [store] with url = \"sqlite:semel.db\", or name one of [stores] with `store`";
                let message = format!("{} has no store: there is no [store]", self.header());
                self.mistake(self.span(), message, fix);
            }
            return Some(DEFAULT.to_owned());
        }
        let wanted = self.text("store")?;
        if !stores.contains(&wanted.value) {
            let fix = match nearest(&wanted.value, stores.iter().map(String::as_str)) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("add [stores.{}] with its url", wanted.value),
            };
            let message = format!("there is no store called `{}`", wanted.value);
            self.mistake(wanted.span.clone(), message, fix);
        }
        Some(wanted.value)
    }

    /// The same for a relay: a store that holds no outbox is a mistake.
    pub(crate) fn outbox_store(&self) -> Option<String> {
        self.store_that(|limited| limited.outbox)
    }

    /// The same for sagas: a store that does not hold everything is a mistake.
    pub(crate) fn saga_store(&self) -> Option<String> {
        self.store_that(|_| false)
    }

    fn store_that(&self, does: impl Fn(&Limited) -> bool) -> Option<String> {
        let store = self.store()?;
        let kinds = self.reader.limited.borrow();
        let found = kinds.iter().find(|(name, kind)| *name == store && !does(kind));
        if let Some((_, Limited { needed, is, .. })) = found {
            let message = format!("{} needs {needed}; `{store}` is {is}", self.header());
            let fix = "name a SQLite or PostgreSQL store with `store`; keep this one for gateways";
            let span = self.text("store").map_or_else(|| self.span(), |name| name.span);
            self.mistake(span, message, fix);
        }
        Some(store)
    }

    /// Notes that this store does not hold everything.
    pub(crate) fn is_limited(&self, store: &str, kind: Limited) {
        self.reader.limited.borrow_mut().push((store.to_owned(), kind));
    }

    /// Two relays of one store cannot publish the same stream: it has one cursor and one sink.
    pub(crate) fn claim_stream(&self, stream: &At<String>) {
        let store = match self.raw("store").map(Spanned::get_ref) {
            Some(DeValue::String(name)) => name.to_string(),
            _ => DEFAULT.to_owned(),
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
}
