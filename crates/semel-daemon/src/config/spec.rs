//! What `semel.toml` may say: every section with its fields, in one form that the reader, the suggestions and
//! `docs/configuration.md` share.

/// One field.
#[derive(Debug)]
pub(crate) struct Field {
    /// Its name in the file.
    pub(crate) name: &'static str,
    /// What it holds, for the documentation: `text`, `ms`, `bytes`, …
    pub(crate) kind: &'static str,
    /// The default as shown in the documentation; empty when the field is required.
    pub(crate) default: &'static str,
    /// What it does, in a line.
    pub(crate) doc: &'static str,
    /// Its value is never shown.
    pub(crate) secret: bool,
}

/// A table of the file.
#[derive(Debug)]
pub(crate) struct Section {
    /// How it is named in messages and in the documentation, such as `[server]`.
    pub(crate) header: &'static str,
    /// What it is for.
    pub(crate) about: &'static str,
    /// What it may hold.
    pub(crate) fields: &'static [Field],
}

/// A field that may be left out.
pub(crate) const fn field(
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    doc: &'static str,
) -> Field {
    Field {
        name,
        kind,
        default,
        doc,
        secret: false,
    }
}

/// A field that must be there.
pub(crate) const fn required(name: &'static str, kind: &'static str, doc: &'static str) -> Field {
    field(name, kind, "", doc)
}

/// The same field with a value that is never shown.
pub(crate) const fn secret(field: Field) -> Field {
    Field {
        secret: true,
        ..field
    }
}

impl Section {
    /// The field of this name.
    pub(crate) fn get(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The known field that `wrong` was probably meant to be.
    pub(crate) fn suggest(&self, wrong: &str) -> Option<&'static str> {
        nearest(wrong, self.fields.iter().map(|field| field.name))
    }
}

/// The candidate nearest to `wrong`, when it is near enough to be a slip or an abbreviation.
pub(crate) fn nearest<'a>(wrong: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    candidates
        .filter_map(|name| {
            let distance = strsim::damerau_levenshtein(&wrong, &name.to_lowercase());
            let slip = distance <= wrong.len().max(name.len()).div_ceil(3) && distance < wrong.len();
            let short = wrong.len() >= 3 && name.starts_with(&wrong);
            (slip || short).then_some((distance, name))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let names = ["listen", "token", "body_bytes_max"];
        let near = |wrong| nearest(wrong, names.into_iter());
        assert_eq!(near("lisen"), Some("listen"));
        assert_eq!(near("Listen"), Some("listen"));
        assert_eq!(near("body-bytes-max"), Some("body_bytes_max"));
        assert_eq!(near("tokne"), Some("token"));
        assert_eq!(near("body"), Some("body_bytes_max"));
        assert_eq!(near("colour"), None);
        assert_eq!(nearest("q", ["a"].into_iter()), None);
    }
}
