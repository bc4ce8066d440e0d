//! `${NAME}` in a text: the value of an environment variable. `$${` stands for `${`.

/// Why a text could not be expanded. Holds no value of any variable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// This variable is not set, or is not UTF-8.
    Missing(String),
    /// A `${` without `}`, or with an empty or strange name.
    Malformed,
}

/// Expands every `${NAME}` of `text`; what a variable holds is not expanded again.
pub(crate) fn expand(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<String, Vec<Trouble>> {
    let mut out = String::with_capacity(text.len());
    let mut troubles = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, found) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &found[2..];
            continue;
        }
        out.push_str(before);
        let Some(end) = found.find('}') else {
            troubles.push(Trouble::Malformed);
            return Err(troubles);
        };
        let name = &found[2..end];
        rest = &found[end + 1..];
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(plain) {
            troubles.push(Trouble::Malformed);
        } else if let Some(value) = env(name) {
            out.push_str(&value);
        } else {
            troubles.push(Trouble::Missing(name.to_owned()));
        }
    }
    out.push_str(rest);
    if troubles.is_empty() {
        Ok(out)
    } else {
        Err(troubles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("db".to_owned()),
            "TRICK" => Some("${HOST}".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_once_and_escapes_are_kept() {
        let ok = |text| expand(text, &env).unwrap();
        assert_eq!(ok("a ${HOST}:${HOST} z"), "a db:db z");
        assert_eq!(ok("${TRICK}"), "${HOST}");
        assert_eq!(ok("$${HOST} $HOST $"), "${HOST} $HOST $");
    }

    #[test]
    fn every_missing_variable_is_named() {
        let missing = |name: &str| Trouble::Missing(name.to_owned());
        assert_eq!(
            expand("${A}-${HOST}-${B}", &env),
            Err(vec![missing("A"), missing("B")])
        );
        assert_eq!(expand("x ${A", &env), Err(vec![Trouble::Malformed]));
        assert_eq!(expand("${}", &env), Err(vec![Trouble::Malformed]));
        assert_eq!(expand("${a b}", &env), Err(vec![Trouble::Malformed]));
    }
}
