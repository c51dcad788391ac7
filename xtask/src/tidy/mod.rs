//! `cargo xtask tidy`: checks of the rules in CONTRIBUTING.md.

mod documents;
mod imports;
mod manifests;
mod names;
pub(crate) mod semantics;
mod sources;
mod tables;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A file of the repository.
struct RepositoryFile {
    /// Its path in the repository.
    path: PathBuf,
    text: String,
}

impl RepositoryFile {
    fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    fn has_ending(&self, ending: &str) -> bool {
        self.path.extension().is_some_and(|is| is == ending)
    }
}

/// The violations.
#[derive(Default)]
struct Complaints(Vec<String>);

impl Complaints {
    fn add(&mut self, file: &Path, line: usize, what: impl AsRef<str>) {
        self.0
            .push(format!("{}:{line}: {}", file.display(), what.as_ref()));
    }
}

/// Checks all files below `root` that are tracked or not ignored by git; returns whether all are
/// valid.
///
/// # Errors
/// git fails.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let files = files(root)?;
    let mut complaints = Complaints::default();
    for file in files.iter().filter(|file| file.has_ending("rs")) {
        sources::check(file, &mut complaints);
    }
    for file in &files {
        sources::check_words(file, &mut complaints);
    }
    names::check(&files, &mut complaints);
    imports::check(&files, &mut complaints);
    manifests::check(&files, &mut complaints);
    documents::check(root, &files, &mut complaints);
    semantics::check(&files, &mut complaints);
    tables::check(&files, &mut complaints);
    for complaint in &complaints.0 {
        println!("{complaint}");
    }
    println!("tidy: {} files, {} complaints", files.len(), complaints.0.len());
    Ok(complaints.0.is_empty())
}

fn files(root: &Path) -> Result<Vec<RepositoryFile>> {
    let mut command = Command::new("git");
    command
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root);
    let output = command.output().context("git cannot be started")?;
    ensure!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = output
        .stdout
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let mut files = Vec::new();
    for name in names {
        let path = PathBuf::from(String::from_utf8_lossy(name).into_owned());
        // Files that are not text (or were removed and are still in the index) are not checked.
        if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
            files.push(RepositoryFile { path, text });
        }
    }
    Ok(files)
}
