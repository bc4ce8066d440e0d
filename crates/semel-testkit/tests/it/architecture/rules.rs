//! `docs/rules.md` is complete and true: what is cited has a row, and what a row names exists.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{all, none, root};

const PAGE: &str = "docs/rules.md";
/// How many rules of each letter there are.
const RULES: [(char, u8); 5] = [('K', 14), ('S', 10), ('R', 5), ('O', 22), ('I', 3)];
const STATES: [&str; 3] = ["Kept", "Partly", "Not built yet"];

/// Words of a rule's form in a text: one of the letters and one or two digits.
fn cited(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !(letter.is_alphanumeric() || "_-#".contains(letter)))
        .filter(|word| {
            let mut letters = word.chars();
            let first = letters
                .next()
                .is_some_and(|first| RULES.iter().any(|(letter, _)| *letter == first));
            let digits = letters.as_str();
            first && (1..=2).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
        })
}

/// Number and last column of each row, and the rows that have another shape.
fn rows(page: &str) -> (Vec<(&str, &str)>, Vec<String>) {
    let mut rows = Vec::new();
    let mut found = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells[..] {
            ["rule" | "---", ..] => {}
            [number, wrong, so, place]
                if cited(number).eq([number]) && !wrong.is_empty() && !so.is_empty() =>
            {
                rows.push((number, place));
            }
            _ => found.push(format!("{PAGE}: not a row of four: {line}")),
        }
    }
    (rows, found)
}

#[test]
fn every_rule_that_is_cited_has_its_row() {
    let files = all();
    let page = &files.iter().find(|file| file.path == PAGE).unwrap().text;
    let (rows, mut found) = rows(page);
    let known: Vec<&str> = rows.iter().map(|(number, _)| *number).collect();
    let wanted: Vec<String> = RULES
        .iter()
        .flat_map(|(letter, last)| (1..=*last).map(move |number| format!("{letter}{number}")))
        .collect();
    if known != wanted {
        found.push(format!("{PAGE} has {known:?} instead of {wanted:?}"));
    }
    let known: BTreeSet<&str> = known.into_iter().collect();
    let mut places = BTreeMap::new();
    for file in files
        .iter()
        .filter(|file| file.is("rs") || file.is("sql") || file.is("md"))
    {
        for (line, text) in file.text.lines().enumerate() {
            for rule in cited(text).filter(|rule| !known.contains(rule)) {
                places
                    .entry(rule)
                    .or_insert(format!("{}:{}", file.path, line + 1));
            }
        }
    }
    found.extend(
        places
            .iter()
            .map(|(rule, place)| format!("{place}: {rule} has no row in {PAGE}")),
    );
    none("rules and their citations", &found);
}

#[test]
fn every_file_and_test_that_a_rule_names_exists() {
    let files = all();
    let page = &files.iter().find(|file| file.path == PAGE).unwrap().text;
    let functions: BTreeSet<&str> = files
        .iter()
        .filter(|file| file.is("rs"))
        .flat_map(|file| file.text.split("fn ").skip(1))
        .filter_map(|rest| {
            rest.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
                .next()
        })
        .collect();
    let mut found = Vec::new();
    for (number, place) in rows(page).0 {
        let Some(state) = STATES.iter().find(|state| place.starts_with(**state)) else {
            found.push(format!("{number} begins with none of {STATES:?}"));
            continue;
        };
        let paths: Vec<&str> = place
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .collect();
        if paths.is_empty() && *state != "Not built yet" {
            found.push(format!("{number} names no file"));
        }
        for path in paths {
            if !root().join("docs").join(path).is_file() {
                found.push(format!("{number}: no file {path}"));
            }
        }
        for test in place
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|word| word.contains('_'))
        {
            if !functions.contains(test) {
                found.push(format!("{number}: no test {test}"));
            }
        }
    }
    none(PAGE, &found);
}

#[test]
fn rules_are_told_from_other_words() {
    let text = "(rules K4, O17) S3: KK1 K123 x-K1 #K1 O a K2_b `R5`.";
    assert_eq!(cited(text).collect::<Vec<_>>(), ["K4", "O17", "S3", "R5"]);
}
