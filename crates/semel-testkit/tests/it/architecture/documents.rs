//! Documents are true: links lead somewhere, codes have pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::files::{all, none, root};

/// Every `SEM` code of four digits in a text.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("SEM").filter_map(|(at, _)| {
        let code = text.get(at..at + 7)?;
        let digits = code[3..].bytes().all(|byte| byte.is_ascii_digit());
        let ends = !text[at + 7..].starts_with(|next: char| next.is_ascii_alphanumeric());
        (digits && ends).then_some(code)
    })
}

#[test]
fn every_error_code_has_a_page_and_every_page_a_code() {
    let files = all();
    let mut used = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| (file.is_product() || file.is("sql")) && file.path.starts_with("crates/"))
    {
        for code in codes(&file.text) {
            used.entry(code.to_owned()).or_insert(file.path.clone());
        }
    }
    let pages: BTreeSet<String> = files
        .iter()
        .filter_map(|file| file.path.strip_prefix("docs/errors/")?.strip_suffix(".md"))
        .filter(|name| *name != "README")
        .map(ToOwned::to_owned)
        .collect();
    let mut found: Vec<String> = used
        .iter()
        .filter(|(code, _)| !pages.contains(*code))
        .map(|(code, path)| format!("docs/errors/{code}.md is missing ({path} uses it)"))
        .collect();
    found.extend(
        pages
            .iter()
            .filter(|page| !used.contains_key(*page))
            .map(|page| format!("docs/errors/{page}.md: no code uses it")),
    );
    let index = fs::read_to_string(root().join("docs/errors/README.md")).unwrap();
    found.extend(
        pages
            .iter()
            .filter(|page| !index.contains(&format!("({page}.md)")))
            .map(|page| format!("docs/errors/README.md does not list {page}")),
    );
    none("error codes and their pages", &found);
}

#[test]
fn a_code_belongs_to_one_crate() {
    let mut owners = BTreeMap::<String, BTreeSet<String>>::new();
    for file in all().iter().filter(|file| file.is_product()) {
        let owner = file.path.split('/').nth(1).unwrap().to_owned();
        for (_, line) in file.code() {
            for literal in line.split('"').skip(1).step_by(2) {
                if literal.len() == 7 && codes(literal).next().is_some() {
                    let code = owners.entry(literal.to_owned()).or_default();
                    code.insert(owner.clone());
                }
            }
        }
    }
    let found: Vec<String> = owners
        .iter()
        .filter(|(_, owners)| owners.len() > 1)
        .map(|(code, owners)| format!("{code}: {owners:?}"))
        .collect();
    none("one code, one meaning: these are made in several crates", &found);
}

#[test]
fn every_error_page_answers_the_three_questions() {
    let mut found = Vec::new();
    for file in all() {
        let Some(code) = file
            .path
            .strip_prefix("docs/errors/")
            .and_then(|name| name.strip_suffix(".md"))
            .filter(|name| *name != "README")
        else {
            continue;
        };
        for wanted in [
            &format!("# {code}: "),
            "\n## What happened\n",
            "\n## What it means for your data\n",
            "\n## What to do\n",
        ] {
            if !file.text.contains(wanted) {
                found.push(format!("{}: no {:?}", file.path, wanted.trim()));
            }
        }
    }
    none("error pages", &found);
}

#[test]
fn every_relative_link_leads_somewhere() {
    let mut found = Vec::new();
    for file in all().iter().filter(|file| file.is("md")) {
        let folder = root().join(&file.path).parent().unwrap().to_owned();
        for (number, line) in outside_code(&file.text) {
            for target in links(line) {
                if let Some(why) = broken(&folder, &file.text, target) {
                    found.push(format!("{}:{number}: {target}: {why}", file.path));
                }
            }
        }
    }
    none("links", &found);
}

/// The lines that are not in a fenced block, with their numbers.
fn outside_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((number + 1, line))
    })
}

/// The targets of `[text](target)` and of `src="target"`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let images = line
        .split("src=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    inline.chain(images)
}

fn broken(folder: &Path, own: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let text = if path.is_empty() {
        own.to_owned()
    } else {
        let path = folder.join(path);
        if !path.exists() {
            return Some("no such file".to_owned());
        }
        if anchor.is_empty() || path.extension().is_none_or(|this| this != "md") {
            return None;
        }
        fs::read_to_string(path).unwrap()
    };
    let known = outside_code(&text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .any(|heading| slug(heading.trim_start_matches('#')) == anchor);
    (!known).then(|| format!("no heading #{anchor}"))
}

/// The anchor that a heading gets on the usual hosting sites.
fn slug(heading: &str) -> String {
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect()
}

#[test]
fn links_and_slugs_are_read_as_hosting_sites_do() {
    assert_eq!(
        links("a [b](c.md#d) and [e](f)").collect::<Vec<_>>(),
        ["c.md#d", "f"]
    );
    assert_eq!(slug(" What `it` does: now"), "what-it-does-now");
    assert_eq!(
        codes("SEM0101, SEM01011 SEMEL SEM010").collect::<Vec<_>>(),
        ["SEM0101"]
    );
}
