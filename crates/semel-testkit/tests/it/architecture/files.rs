//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the workspace.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// One file that could be committed.
pub(super) struct Source {
    /// Relative to the workspace, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// A module that exists only under `#[cfg(test)]`.
    test_only: bool,
}

impl Source {
    pub(super) fn is(&self, extension: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|this| this == extension)
    }

    /// Code that ships: not a test, not the testkit, not the benches.
    pub(super) fn is_product(&self) -> bool {
        self.is("rs")
            && self.path.starts_with("crates/")
            && self.path.contains("/src/")
            && !self.path.starts_with("crates/semel-testkit/")
            && !self.test_only
    }

    /// The modules that this file declares under `#[cfg(test)]`, as paths without an ending.
    fn test_modules(&self) -> Vec<String> {
        let path = self.path.trim_end_matches(".rs");
        let folder = match path.rsplit_once('/') {
            Some((folder, "mod" | "lib" | "main")) => folder,
            _ => path,
        };
        let items = self.text.split("#[cfg(test)]").skip(1);
        items
            .filter_map(|item| {
                let (before, rest) = item.split_once("mod ")?;
                let name = rest.split_once(';')?.0;
                if !name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
                {
                    return None; // a module in place
                }
                let (folder, name) = match before.trim().strip_prefix("#[path = \"") {
                    Some(path) => (self.path.rsplit_once('/')?.0, path.strip_suffix(".rs\"]")?),
                    None if before.trim().is_empty() || before.trim() == "pub(crate)" => (folder, name),
                    None => return None,
                };
                Some(format!("{folder}/{name}"))
            })
            .collect()
    }

    /// The lines that are code of the product, with their numbers: comments and what is under `#[cfg(test)]` left out.
    pub(super) fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut in_test = None;
        let mut after_cfg = false;
        self.text.lines().enumerate().filter_map(move |(number, line)| {
            let indent = line.len() - line.trim_start().len();
            if let Some(start) = in_test {
                // rustfmt puts the closing brace under the item that it closes.
                if indent == start && line.trim_start().starts_with('}') {
                    in_test = None;
                }
                return None;
            }
            let trimmed = line.trim_start();
            if trimmed.starts_with("#[cfg(test)]") {
                after_cfg = true;
                return None;
            }
            if after_cfg && !trimmed.starts_with("#[") {
                after_cfg = false;
                if !trimmed.ends_with(';') {
                    in_test = Some(indent);
                }
                return None;
            }
            let code = !after_cfg && !trimmed.starts_with("//");
            code.then_some((number + 1, line))
        })
    }
}

/// Every text file, without what git ignores.
pub(super) fn all() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // In a worktree .git is a file.
            if ["target", ".git", ".servers"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                let path = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                found.push(Source {
                    path,
                    text,
                    test_only: false,
                });
            }
        }
    }
    assert!(
        found.iter().any(|file| file.path == "Cargo.toml"),
        "the workspace was not found"
    );
    let test_modules: Vec<String> = found.iter().flat_map(Source::test_modules).collect();
    for file in &mut found {
        file.test_only = test_modules.iter().any(|module| {
            let rest = file.path.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Fails with all findings at once.
pub(super) fn none(rule: &str, findings: &[String]) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

#[test]
fn code_leaves_out_comments_and_tests() {
    let file = Source {
        path: "crates/x/src/y.rs".to_owned(),
        test_only: false,
        text: "//! doc\nfn a() {\n    one();\n    // two();\n}\n#[cfg(test)]\nmod tests {\n    three();\n}\nfn b() {}\n#[cfg(test)]\nmod c;\nfn d() {}\n#[cfg(test)]\n#[path = \"y_tests.rs\"]\nmod e;\n"
            .to_owned(),
    };
    let code: Vec<&str> = file.code().map(|(_, line)| line.trim()).collect();
    assert_eq!(code, ["fn a() {", "one();", "}", "fn b() {}", "fn d() {}"]);
    assert_eq!(file.test_modules(), ["crates/x/src/y/c", "crates/x/src/y_tests"]);
}
