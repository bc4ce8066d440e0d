//! Where the demo keeps its files.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::report::Shop;
use super::trouble::{Doing as _, Trouble};

/// The demo's folder: one that the user named and keeps, or a temporary one.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    /// Removed when it is dropped, which is after the last process is gone.
    temporary: Option<TempDir>,
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
            let temporary = tempfile::Builder::new()
                .prefix("semel-demo-")
                .tempdir()
                .doing("make a temporary folder")?;
            return Ok(Self {
                path: temporary.path().to_owned(),
                temporary: Some(temporary),
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
            temporary: None,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn of(&self, shop: Shop) -> Folder {
        Folder {
            path: self.path.join(shop.id()),
            temporary: self.temporary.as_ref().map(|_| self.path.clone()),
        }
    }

    /// Keeps a temporary folder after all.
    pub(crate) fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
    }

    /// Whether the files are still there when the demo has ended.
    pub(crate) const fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }
}
