//! Tables inside tables.

use toml::de::DeValue;

use super::{At, Table, kind_of};
use crate::config::spec::Section;

impl Table<'_> {
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
