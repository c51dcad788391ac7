//! `curt serve --check`: whether files of exports(5) could be served, and what is wrong with them
//! if not.

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

/// Checks everything that can be checked without serving, and prints what is to be said as
/// `FILE:LINE: …` on standard error. The status is 1 if anything cannot be served as it is written.
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
    let errors = problems
        .iter()
        .filter(|problem| problem.severity == Severity::Error)
        .count();
    if errors > 0 {
        eprintln!("{errors} errors");
        return ExitCode::FAILURE;
    }
    let paths = definitions::groups(&parsed).len();
    match say!(
        "no errors: {paths} directories, {} client entries",
        parsed.entries.len()
    ) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::failed("curt serve", &error),
    }
}

/// What of the files' lines would be served at this moment, as far as that can be told without
/// opening anything.
pub(crate) struct ServableEntries<'p> {
    /// Why others would not.
    pub(crate) problems: Vec<ExportsProblem>,
    served: Vec<&'p ExportsEntry>,
}

impl<'p> ServableEntries<'p> {
    /// Looks at the directories, and at what is mounted.
    ///
    /// # Errors
    /// What is mounted cannot be read.
    pub(crate) fn of(parsed: &'p ParsedExports) -> Result<Self> {
        let mounts = mounts_now()?;
        let (mut problems, mut served) = (Vec::new(), Vec::new());
        let mut claims = DirectoryClaims::default();
        for group in definitions::groups(parsed) {
            let Some((place, entries)) = group.look(&mounts, &mut problems) else {
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

    /// Why a line's client is not served; `None` if it is.
    pub(crate) fn refusal(&self, entry: &ExportsEntry) -> Option<&str> {
        if self.served.iter().any(|served| std::ptr::eq(*served, entry)) {
            return None;
        }
        let path = entry.path.escape_ascii().to_string();
        let of_path = || self.problems.iter().filter(|problem| problem.word == path);
        // An error is about all lines of a path, what is not mounted about one.
        let error = of_path().find(|problem| problem.severity == Severity::Error);
        let own = error.or_else(|| of_path().find(|problem| problem.place == entry.place));
        let reason = own.and_then(|problem| problem.message.split(": not served").next());
        Some(reason.unwrap_or("what keeps it is told with another line"))
    }
}

/// What the files say, and all that is wrong with it. Directories are opened as a server does.
pub(super) fn problems(arguments: &ServeArguments) -> Result<(ParsedExports, Vec<ExportsProblem>)> {
    let parsed = read_exports(&arguments.config);
    let mut problems = parsed.problems.clone();
    // Those of a server may be in use by it; these go when this ends.
    let tables = tempfile::Builder::new().prefix("curt-check-").tempdir();
    let tables = tables.context("cannot create a temporary directory for handle tables")?;
    let mut trees = trees(arguments, state_directory(arguments)?, tables.path().to_owned());
    let ResolvedExports {
        problems: of_meaning, ..
    } = definitions::resolve(&parsed, &mounts_now()?, &mut trees);
    problems.extend(of_meaning);
    problems.extend(parsed.entries.iter().filter_map(unknown_host));
    Ok((parsed, problems))
}

/// A host whose name does not resolve now is no error: it may tomorrow.
fn unknown_host(entry: &ExportsEntry) -> Option<ExportsProblem> {
    let ClientSpec::Host(name) = &entry.client else {
        return None;
    };
    let known = (name.as_str(), 0)
        .to_socket_addrs()
        .is_ok_and(|mut found| found.next().is_some());
    (!known).then(|| ExportsProblem {
        severity: Severity::Warning,
        place: entry.place.clone(),
        word: name.clone(),
        message: "unknown host: nothing is exported to it until its name resolves".into(),
    })
}
