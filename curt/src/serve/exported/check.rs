//! `curt serve --check`: whether files of exports(5) could be served, and what is wrong with them if not.

use std::{net::ToSocketAddrs, process::ExitCode};

use anyhow::{Context, Result};
use curt_server::{Client, EXPORTS_DIRECTORY, EXPORTS_FILE, Entry, Parsed, Problem, Severity, read_exports};

use super::{
    super::arguments::ServeArguments,
    definitions::{self, Meaning},
    mounts_now, state_directory, trees,
};

/// Checks everything that can be checked without serving, and prints what is to be said as `FILE:LINE: …` on standard error.
/// The status is 1 if anything cannot be served as it is written.
pub(in crate::serve) fn check(arguments: &ServeArguments) -> ExitCode {
    let (parsed, problems) = match problems(arguments) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("curt serve: {error:#}");
            return ExitCode::FAILURE;
        }
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
        eprintln!("not served as it is written: {errors} of the lines above are errors");
        return ExitCode::FAILURE;
    }
    let paths = definitions::groups(&parsed).len();
    println!(
        "no errors: {paths} directories, {} lines for clients",
        parsed.entries.len()
    );
    ExitCode::SUCCESS
}

/// What the files say, and all that is wrong with it. Directories are opened as a server does.
pub(super) fn problems(arguments: &ServeArguments) -> Result<(Parsed, Vec<Problem>)> {
    let parsed = read_exports(&arguments.config);
    let mut problems = parsed.problems.clone();
    // Those of a server may be in use by it; these go when this ends.
    let tables = tempfile::Builder::new().prefix("curt-check-").tempdir();
    let tables = tables.context("cannot make a directory for tables of handles")?;
    let mut trees = trees(arguments, (state_directory(arguments)?, tables.path().to_owned()));
    let Meaning {
        problems: of_meaning, ..
    } = definitions::meaning(&parsed, &mounts_now()?, &mut trees);
    problems.extend(of_meaning);
    problems.extend(parsed.entries.iter().filter_map(unknown_host));
    Ok((parsed, problems))
}

/// A host whose name does not resolve now is no error: it may tomorrow.
fn unknown_host(entry: &Entry) -> Option<Problem> {
    let Client::Host(name) = &entry.client else {
        return None;
    };
    let known = (name.as_str(), 0)
        .to_socket_addrs()
        .is_ok_and(|mut found| found.next().is_some());
    (!known).then(|| Problem {
        severity: Severity::Warning,
        place: entry.place.clone(),
        word: name.clone(),
        message: "unknown host: nothing is exported to it until its name resolves".into(),
    })
}
