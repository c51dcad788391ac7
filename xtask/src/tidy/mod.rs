//! `cargo xtask tidy`: checks of the rules in CONTRIBUTING.md.

mod documents;
mod imports;
mod manifests;
mod names;
pub(crate) mod semantics;
mod sources;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::size;

/// A file of the repository.
pub(crate) struct RepositoryFile {
    /// Its path in the repository.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

impl RepositoryFile {
    fn name(&self) -> &str {
        self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    fn has_ending(&self, ending: &str) -> bool {
        self.path.extension().is_some_and(|is| is == ending)
    }
}

/// The results of the checks.
#[derive(Default)]
struct Complaints {
    /// A rule is violated.
    violations: Vec<String>,
    /// A guide is exceeded, for which there may be a reason.
    advice: Vec<String>,
}

impl Complaints {
    fn add(&mut self, file: &Path, line: usize, what: impl AsRef<str>) {
        self.violations.push(format!("{}:{line}: {}", file.display(), what.as_ref()));
    }

    fn advise(&mut self, file: &Path, line: usize, what: impl AsRef<str>) {
        self.advice.push(format!("{}:{line}: advice: {}", file.display(), what.as_ref()));
    }
}

/// Checks all files below `root` that are tracked or not ignored by git; returns whether all are
/// valid. Advice is printed, and makes no file invalid.
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
    documents::check_size(&files, size::total(root)?, &mut complaints);
    semantics::check(&files, &mut complaints);
    for complaint in complaints.advice.iter().chain(&complaints.violations) {
        println!("{complaint}");
    }
    let (violations, advice) = (complaints.violations.len(), complaints.advice.len());
    println!("tidy: {} files, {violations} complaints, {advice} pieces of advice", files.len());
    Ok(complaints.violations.is_empty())
}

/// The files that git knows or would know.
///
/// # Errors
/// git cannot be asked.
pub(crate) fn files(root: &Path) -> Result<Vec<RepositoryFile>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let listed = git(root, &arguments)?;
    // What is no text (or was removed and is still in the index) has no style.
    let files = names(&listed).filter_map(|path| {
        let text = std::fs::read_to_string(root.join(&path)).ok()?;
        Some(RepositoryFile { path, text })
    });
    Ok(files.collect())
}

/// The paths in a list of git's, each with a NUL behind it.
pub(crate) fn names(listed: &[u8]) -> impl Iterator<Item = PathBuf> {
    let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned()))
}

/// The output of git below `root`.
///
/// # Errors
/// It cannot be started, or fails.
pub(crate) fn git(root: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let mut command = Command::new("git");
    let output = command.args(arguments).current_dir(root).output();
    let output = output.context("git cannot be started")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments[0], said.trim_end());
    Ok(output.stdout)
}
