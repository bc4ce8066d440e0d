//! Every section and field as a page: `semel check --fields`, and `docs/configuration.md`. Made from what the reader
//! accepts, so that the two cannot differ.

use std::fmt::Write as _;

use super::SECTIONS;
use super::spec::Section;

const HEAD: &str = "\
# semel.toml

`semel check --fields` prints this page. It is made from the source, so do not edit it here:
`UPDATE_DOCS=1 cargo test -p semel-daemon --bin semel docs`.

`semel check -c semel.toml` reads the file, names every mistake with its line and the fix, and tries each server.
[semel.example.toml](../semel.example.toml) is a whole file to start from.

- A field that is not listed here is a mistake, not ignored.
- `${NAME}` in any text is the environment variable NAME, so that secrets need not be in the file; one that is not set
  is a mistake. `$${` stands for `${`.
- Names are at most 64 of `a-z A-Z 0-9 - _ .` and differ within a section.
- Fields ending in `_ms` are milliseconds, in `_bytes_max` bytes. A value out of range is a mistake that names the
  range.
";

/// The page, in Markdown.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for section in SECTIONS {
        let _ = write!(page, "\n## {}\n{}\n\n", title(section), section.about);
        page.push_str("| field | holds | default | |\n| --- | --- | --- | --- |\n");
        for field in section.fields {
            let default = match field.default {
                "" if section.header == super::ROOT_HEADER || section.header == "sink" => "",
                "" => "**required**",
                default => default,
            };
            let _ = writeln!(
                page,
                "| `{}` | {} | {default} | {} |",
                field.name, field.kind, field.doc
            );
        }
    }
    page
}

fn title(section: &Section) -> String {
    match section.header {
        super::ROOT_HEADER => "Sections".to_owned(),
        header => format!("`{header}`"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::super::{ROOT_HEADER, SECTIONS, parse};
    use super::page;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn the_documentation_says_what_the_sections_say() {
        let path = root().join("docs/configuration.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == page(),
            "docs/configuration.md is out of date; its first lines say how to make it"
        );
    }

    #[test]
    fn the_example_is_accepted_and_shows_every_section() {
        let path = root().join("semel.example.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let env = |name: &str| Some(format!("value-of-{name}"));
        let config = parse(&path, &text, &env).unwrap_or_else(|report| panic!("{report}"));
        assert!(!config.relays.is_empty() && !config.gateways.is_empty() && config.saga.is_some());
        for section in SECTIONS {
            let word = section
                .header
                .trim_matches(['[', ']'])
                .split('.')
                .next_back()
                .unwrap();
            assert!(
                text.contains(word) || section.header == ROOT_HEADER || word == "NAME",
                "{word}"
            );
        }
    }
}
