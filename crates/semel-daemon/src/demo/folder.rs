//! Where the demo keeps its files.

use std::path::{Path, PathBuf};

use super::process::{REMOVAL_MAX, remove_folder};
use super::report::Shop;
use super::trouble::{Doing as _, Trouble};

/// The demo's folder: one that the user named and keeps, or a temporary one, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    kept: bool,
}

/// Where a shop keeps its files.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// A folder above it that is to be removed if the demo dies.
    pub(crate) temporary: Option<PathBuf>,
}

impl Root {
    /// The folder `wanted`, which must be empty or absent; without one, a temporary folder.
    pub(crate) fn open(wanted: Option<&Path>) -> Result<Self, Trouble> {
        let Some(wanted) = wanted else {
            let temporary = tempfile::Builder::new().prefix("semel-demo-").tempdir();
            return Ok(Self {
                path: temporary.doing("make a temporary folder")?.keep(),
                kept: false,
            });
        };
        let shown = wanted.display();
        std::fs::create_dir_all(wanted).doing(format!("make {shown}"))?;
        let mut entries = std::fs::read_dir(wanted).doing(format!("look into {shown}"))?;
        if entries.next().is_some() {
            return Err(Trouble::new(
                format!("keep files in {shown}"),
                "it is not empty; name a new folder",
            ));
        }
        Ok(Self {
            path: std::path::absolute(wanted).doing(format!("find {shown}"))?,
            kept: true,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn of(&self, shop: Shop) -> Folder {
        Folder {
            path: self.path.join(shop.id()),
            temporary: (!self.kept).then(|| self.path.clone()),
        }
    }

    /// Keeps a temporary folder after all.
    pub(crate) const fn keep(&mut self) {
        self.kept = true;
    }

    /// Whether the files are still there when the demo has ended.
    pub(crate) const fn is_kept(&self) -> bool {
        self.kept
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if !self.kept {
            // By now every process has been killed. What cannot be removed is left to the system's temporary folder.
            let _ = remove_folder(&self.path, REMOVAL_MAX);
        }
    }
}
