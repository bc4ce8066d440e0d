//! Blocks of code in a page of documentation, so that tests run what a reader would copy.

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The heading of the second level that it stands under.
    pub chapter: String,
    /// What is between the fences, without the indentation of a list.
    pub text: String,
}

/// The blocks of this language in a page of Markdown, in order.
///
/// # Panics
/// A block does not end.
#[must_use]
pub fn blocks(page: &str, language: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut chapter = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("## ") {
            chapter = heading;
        }
        let Some(of) = line.trim_start().strip_prefix("```") else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let mut text = String::new();
        loop {
            let line = lines.next().expect("a block ends");
            if line.trim() == "```" {
                break;
            }
            text.push_str(line.get(indent..).unwrap_or(""));
            text.push('\n');
        }
        if of == language {
            found.push(Block {
                chapter: chapter.to_owned(),
                text,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_language_are_found_with_their_chapter_and_without_indentation() {
        let page = "# P\n```sql\na\n```\n## One\n```sh\n## no\n```\n- list\n  ```sql\n  b\n\n    c\n  ```\n### sub\n## Two\n```sql\nd\n```";
        let block = |chapter: &str, text: &str| Block {
            chapter: chapter.to_owned(),
            text: text.to_owned(),
        };
        let wanted = [block("", "a\n"), block("One", "b\n\n  c\n"), block("Two", "d\n")];
        assert_eq!(blocks(page, "sql"), wanted);
    }
}
