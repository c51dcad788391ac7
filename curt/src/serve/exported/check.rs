//! `curt serve --check`: whether exports(5) files can be served, and their errors.

use std::{net::ToSocketAddrs, process::ExitCode};

use anyhow::{Context, Result};
use curt_server::{
    ClientSpec, EXPORTS_DIRECTORY, EXPORTS_FILE, ExportsEntry, ExportsProblem, ParsedExports, Severity,
    read_exports,
};

use super::{
    super::arguments::ServeArguments,
    definitions::{self, DirectoryClaims, ResolvedExports},
    mounts_now, state_directory, trees,
};

use crate::output::{self, say};

/// Checks everything that can be checked without serving, and prints messages as `FILE:LINE: …` on
/// standard error. The status is 1 if anything cannot be served as written.
pub(in crate::serve) fn check(arguments: &ServeArguments) -> ExitCode {
    let (parsed, problems) = match problems(arguments) {
        Ok(found) => found,
        Err(error) => return output::failed("curt serve", &error),
    };
    if parsed.entries.is_empty() && arguments.config.is_empty() {
        eprintln!("{EXPORTS_FILE} and {EXPORTS_DIRECTORY}/*.exports export nothing");
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    if errors > 0 {
        eprintln!("{errors} errors");
        return ExitCode::FAILURE;
    }
    let paths = definitions::groups(&parsed).len();
    match say!("no errors: {paths} directories, {} client entries", parsed.entries.len()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::failed("curt serve", &error),
    }
}

/// The entries that would be served now, as far as this is known without opening directories.
pub(crate) struct ServableEntries<'p> {
    /// Why the other entries would not be served.
    pub(crate) problems: Vec<ExportsProblem>,
    served: Vec<&'p ExportsEntry>,
}

impl<'p> ServableEntries<'p> {
    /// Checks the directories and the mounts.
    ///
    /// # Errors
    /// The mounts cannot be read.
    pub(crate) fn of(parsed: &'p ParsedExports) -> Result<Self> {
        let mounts = mounts_now()?;
        let (mut problems, mut served) = (Vec::new(), Vec::new());
        let mut claims = DirectoryClaims::default();
        for group in definitions::groups(parsed) {
            let Some((place, entries)) = group.resolve_path(&mounts, &mut problems) else {
                continue;
            };
            if let Some(first) = entries.first()
                && claims.claim(&place, first, &mut problems)
            {
                served.extend(entries);
            }
        }
        Ok(Self { problems, served })
    }

    /// Why an entry is not served; `None` if it is.
    pub(crate) fn refusal(&self, entry: &ExportsEntry) -> Option<&str> {
        if self.served.iter().any(|served| std::ptr::eq(*served, entry)) {
            return None;
        }
        let path = entry.path.escape_ascii().to_string();
        let of_path = || self.problems.iter().filter(|problem| problem.word == path);
        // An error applies to all entries of a path, a missing mount to one.
        let error = of_path().find(|problem| problem.severity == Severity::Error);
        let own = error.or_else(|| of_path().find(|problem| problem.place == entry.place));
        let reason = own.and_then(|problem| problem.message.split(": not served").next());
        Some(reason.unwrap_or("another line reports the reason"))
    }
}

/// The entries of the files, and all their errors. Directories are opened as by a server.
pub(super) fn problems(arguments: &ServeArguments) -> Result<(ParsedExports, Vec<ExportsProblem>)> {
    let parsed = read_exports(&arguments.config);
    let mut problems = parsed.problems.clone();
    // A server may be using its own tables; these are removed at the end.
    let tables = tempfile::Builder::new().prefix("curt-check-").tempdir();
    let tables = tables.context("cannot create a temporary directory for handle tables")?;
    let mut trees = trees(arguments, state_directory(arguments)?, tables.path().to_owned());
    let ResolvedExports { problems: of_meaning, .. } =
        definitions::resolve(&parsed, &mounts_now()?, &mut trees);
    problems.extend(of_meaning);
    problems.extend(parsed.entries.iter().filter_map(unknown_host));
    Ok((parsed, problems))
}

/// A host name that does not resolve is not an error: it may resolve later.
fn unknown_host(entry: &ExportsEntry) -> Option<ExportsProblem> {
    let ClientSpec::Host(name) = &entry.client else {
        return None;
    };
    let resolves = (name.as_str(), 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some());
    (!resolves).then(|| ExportsProblem {
        severity: Severity::Warning,
        place: entry.place.clone(),
        word: name.clone(),
        message: "unknown host: nothing is exported to it until its name resolves".into(),
    })
}
