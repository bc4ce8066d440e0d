//! Mistakes in the file: where, what, and how to mend it. All of them at once, secrets masked.

use std::fmt;
use std::ops::Range;
use std::path::Path;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Bytes of the file it is about; `None` for the file as a whole.
    pub(crate) span: Option<Range<usize>>,
    /// What is wrong.
    pub(crate) message: String,
    /// What to do.
    pub(crate) fix: String,
}

/// A place in a file, as an editor counts it: from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Place {
    /// Line.
    pub(crate) line: usize,
    /// Column.
    pub(crate) column: usize,
}

/// All mistakes of one file, in the order of their places.
#[derive(Debug)]
pub(crate) struct Report {
    /// The file as it was named.
    pub(crate) file: String,
    text: String,
    /// Per byte of `text`: never shown.
    hidden: Vec<bool>,
    mistakes: Vec<Mistake>,
}

impl Report {
    /// Mistakes found in `text`; `secrets` are the spans that are never shown.
    pub(crate) fn new(file: &Path, text: &str, mut mistakes: Vec<Mistake>, secrets: &[Range<usize>]) -> Self {
        mistakes.sort_by_key(|mistake| mistake.span.as_ref().map(|span| (span.start, span.end)));
        mistakes.dedup();
        Self {
            file: file.display().to_string(),
            hidden: hide(text, secrets),
            text: text.to_owned(),
            mistakes,
        }
    }

    /// A report about the file as a whole, such as one that cannot be read.
    pub(crate) fn whole(file: &Path, message: impl Into<String>, fix: impl Into<String>) -> Self {
        let mistake = Mistake {
            span: None,
            message: message.into(),
            fix: fix.into(),
        };
        Self::new(file, "", vec![mistake], &[])
    }

    /// Each mistake with its place.
    pub(crate) fn mistakes(&self) -> impl Iterator<Item = (Option<Place>, &Mistake)> {
        self.mistakes.iter().map(|mistake| {
            let place = mistake.span.as_ref().map(|span| self.place(span.start).0);
            (place, mistake)
        })
    }

    /// The place of a byte, and its line with secrets masked.
    fn place(&self, byte: usize) -> (Place, String) {
        let byte = floor(&self.text, byte);
        let start = self.text[..byte].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[start..].lines().next().unwrap_or("");
        let place = Place {
            line: self.text[..start].matches('\n').count() + 1,
            column: self.text[start..byte].chars().count() + 1,
        };
        let shown = line
            .char_indices()
            .map(|(at, c)| if self.hidden[start + at] { '*' } else { c })
            .collect();
        (place, shown)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            let Some(span) = &mistake.span else {
                writeln!(f, "{}: {}", self.file, mistake.message)?;
                writeln!(f, "  = {}", mistake.fix)?;
                continue;
            };
            let (Place { line, column }, shown) = self.place(span.start);
            writeln!(f, "{}:{line}:{column}: {}", self.file, mistake.message)?;
            let number = line.to_string();
            let gap = " ".repeat(number.len());
            let marked = self.text[floor(&self.text, span.start)..floor(&self.text, span.end)]
                .lines()
                .next()
                .map_or(0, |first| first.chars().count());
            let rest = shown.chars().count().saturating_sub(column - 1);
            let carets = "^".repeat(marked.clamp(1, rest.max(1)));
            // Tabs stay tabs, so that the caret stands under the right place whatever their width.
            let before: String = shown
                .chars()
                .take(column - 1)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            writeln!(f, "  {number} | {shown}")?;
            writeln!(f, "  {gap} | {before}{carets}")?;
            writeln!(f, "  {gap} = {}", mistake.fix)?;
        }
        let count = self.mistakes.len();
        let noun = if count == 1 { "mistake" } else { "mistakes" };
        write!(f, "\n{count} {noun} in {}", self.file)
    }
}

/// The nearest character boundary at or before `byte`.
fn floor(text: &str, byte: usize) -> usize {
    let mut byte = byte.min(text.len());
    while !text.is_char_boundary(byte) {
        byte -= 1;
    }
    byte
}

/// Marks the bytes of secrets, and of passwords inside URLs. Quotes stay visible.
fn hide(text: &str, secrets: &[Range<usize>]) -> Vec<bool> {
    let mut hidden = vec![false; text.len()];
    for span in secrets {
        let end = span.end.min(text.len());
        hidden[span.start.min(end)..end].fill(true);
    }
    // Up to the last `@` of the quoted text: a password written without escapes may hold `/` or `@`.
    for (at, mark) in text.match_indices("://") {
        let from = at + mark.len();
        let end = text[from..]
            .find(['"', '\'', '\n'])
            .map_or(text.len(), |n| from + n);
        let rest = &text[from..end];
        if let (Some(colon), Some(at_sign)) = (rest.find(':'), rest.rfind('@'))
            && colon < at_sign
        {
            hidden[from + colon + 1..from + at_sign].fill(true);
        }
    }
    for (at, mark) in text.match_indices("password=") {
        let from = at + mark.len();
        let end = text[from..]
            .find(['&', '"', '\'', '\n'])
            .map_or(text.len(), |n| from + n);
        hidden[from..end].fill(true);
    }
    for (at, quote) in text.match_indices(['"', '\'']) {
        hidden[at..at + quote.len()].fill(false);
    }
    hidden
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_secrets_are_masked_where_they_stand() {
        let shown = |text: &str| -> String {
            let secret = text.find("abc").map(|at| at - 1..at + 4);
            let hidden = hide(text, secret.as_slice());
            text.char_indices()
                .map(|(at, c)| if hidden[at] { '*' } else { c })
                .collect()
        };
        for (line, expected) in [
            (
                r#"url = "postgres://app:hunter2@db/shop""#,
                r#"url = "postgres://app:*******@db/shop""#,
            ),
            (
                r#"url = "postgres://app:a/b@c@db/shop""#,
                r#"url = "postgres://app:*****@db/shop""#,
            ),
            (
                r#"url = "postgres://db/x?password=pw&a=b""#,
                r#"url = "postgres://db/x?password=**&a=b""#,
            ),
            (r#"token = "abc""#, r#"token = "***""#),
        ] {
            assert_eq!(shown(line), expected);
        }
    }

    #[test]
    fn the_caret_stands_under_the_place_with_tabs_and_umlauts_before_it() {
        let text = "\n\t\u{fc} = 1\n";
        let at = text.find('1').unwrap();
        let mistake = Mistake {
            span: Some(at..at + 1),
            message: "wrong".to_owned(),
            fix: "mend it".to_owned(),
        };
        let report = Report::new(Path::new("a.toml"), text, vec![mistake], &[]);
        let expected =
            "a.toml:2:6: wrong\n  2 | \t\u{fc} = 1\n    | \t    ^\n    = mend it\n\n1 mistake in a.toml";
        assert_eq!(report.to_string(), expected);
    }
}
