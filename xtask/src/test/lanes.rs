//! The tests of whole programs: files side by side where they only wait for their kernels and servers, each in a network of its
//! own; one after another where a time that is measured would be another's fault.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use anyhow::{Context, Result};

use super::cargo::{self, Sum};
use crate::root;

/// How many run at a time: as many as there are processors where there are few.
const LANES: usize = 2;
/// Files that hold counts or times against how long a run took: nothing else runs beside them.
const ALONE: [&str; 5] = ["bench", "connections", "demo", "memory", "slow_exports"];
/// The longest, first: whoever is alone at the end is done soon.
const LONGEST: [&str; 4] = ["serve", "mount", "silence", "helper"];

/// Runs those whose name contains `name`.
pub(super) fn run(name: &str) -> Result<Sum> {
    let (alone, mut together): (Vec<_>, Vec<_>) = files(&root().join("tests/tests"))?
        .into_iter()
        .partition(|file| ALONE.contains(&file.as_str()));
    let place = |file: &str| LONGEST.iter().position(|long| *long == file);
    together.sort_by_key(|file| place(file).unwrap_or(LONGEST.len()));
    // Once, and not in each lane; the tests of the programs that only tests use go with it.
    let mut sum = cargo::cargo(&["test", "-p", "curt-tests", "--lib", "--bins", "--", name])?;
    sum = sum.and(
        cargo::cargo(&["test", "-p", "curt-tests", "--tests", "--no-run"])
            .map(|built| Sum { passed: 0, ..built })?,
    );
    for (files, lanes) in [(together, LANES), (alone, 1)] {
        sum = sum.and(side_by_side(files, lanes, name)?);
    }
    Ok(sum)
}

/// The test files in a directory: `NAME.rs`, or `NAME/main.rs`.
fn files(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let is_test = path.extension().is_some_and(|it| it == "rs") || path.join("main.rs").exists();
        if let Some(name) = path.file_stem().filter(|_| is_test) {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn side_by_side(files: Vec<String>, lanes: usize, name: &str) -> Result<Sum> {
    let waiting = Mutex::new(VecDeque::from(files));
    let lane = || -> Result<Sum> {
        let mut sum = Sum::default();
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(file) = next else {
                return Ok(sum);
            };
            sum = sum.and(one(&file, name)?);
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let mut sum = Sum::default();
        for thread in running {
            let lane = thread.join().ok().context("a lane panicked")?;
            sum = sum.and(lane?);
        }
        Ok(sum)
    })
}

/// Runs one file, and prints what it has to say in one piece.
fn one(file: &str, name: &str) -> Result<Sum> {
    let start = Instant::now();
    let mut said = String::new();
    let arguments = [
        "test",
        "--quiet",
        "-p",
        "curt-tests",
        "--test",
        file,
        "--no-fail-fast",
        "--",
    ];
    let own = ["--test-threads", "1", name];
    let sum = cargo::run(&[&arguments[..], &own].concat(), |line| {
        // The sums say how many there were.
        if !line.chars().all(|letter| letter == '.') {
            said.push_str(line);
            said.push('\n');
        }
    })?;
    print!("{file}: {:.1} s\n{said}", start.elapsed().as_secs_f64());
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_is_named_is_there() -> Result<()> {
        let files = files(&root().join("tests/tests"))?;
        for named in ALONE.iter().chain(&LONGEST) {
            assert!(
                files.iter().any(|file| file == named),
                "{named} is no test file: {files:?}"
            );
        }
        Ok(())
    }
}
