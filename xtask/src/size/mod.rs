//! `cargo xtask size`: the lines of code outside tests, by package, and the difference of a change.

mod code;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use code::Code;

use crate::tidy;

/// Directories of development tools, which are not installed.
const TOOLS: [&str; 3] = ["fuzz", "tools", "xtask"];
/// Directories of tests and examples, in the repository or in a package.
const TESTS: [&str; 3] = ["benches", "examples", "tests"];
/// Source files whose modules are in their own directory.
const FOLDERS_OWN: [&str; 3] = ["lib", "main", "mod"];

/// Lines of code by package directory.
type Sizes = BTreeMap<PathBuf, usize>;

/// Prints the size of each package below `root`, with that at the revision `base` if given.
///
/// # Errors
/// git fails, or there is no such revision.
pub(crate) fn run(root: &Path, base: Option<&str>, as_json: bool) -> Result<()> {
    let report = Report {
        now: sizes(&sources_now(root)?)?,
        before: base.map(|base| sizes(&sources_at(root, base)?)).transpose()?,
    };
    if as_json {
        println!("{:#}", report.json());
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// The lines of all packages below `root`.
///
/// # Errors
/// git fails, or a source is not valid Rust.
pub(crate) fn total(root: &Path) -> Result<usize> {
    Ok(sizes(&sources_now(root)?)?.values().sum())
}

/// The result.
struct Report {
    now: Sizes,
    before: Option<Sizes>,
}

impl Report {
    /// Each package with its lines now and before.
    fn rows(&self) -> BTreeMap<&Path, (usize, usize)> {
        let mut rows: BTreeMap<&Path, (usize, usize)> = BTreeMap::new();
        for (package, lines) in &self.now {
            rows.entry(package).or_default().0 = *lines;
        }
        for (package, lines) in self.before.iter().flatten() {
            rows.entry(package).or_default().1 = *lines;
        }
        rows
    }

    /// Lines now and before of the installed packages, and of all.
    fn sums(&self) -> [(&'static str, (usize, usize)); 2] {
        let sum = |is_wanted: fn(&Path) -> bool| {
            let rows = self.rows();
            let wanted = rows.iter().filter(|(package, _)| is_wanted(package));
            wanted.fold((0, 0), |sum, (_, lines)| (sum.0 + lines.0, sum.1 + lines.1))
        };
        [("product", sum(|package| !is_tool(package))), ("total", sum(|_| true))]
    }

    fn table(&self) -> String {
        let difference = |now: usize, before: usize| now.cast_signed() - before.cast_signed();
        let line = |name: &str, lines: (usize, usize)| match self.before {
            None => format!("{name:<20} {:>8}\n", lines.0),
            Some(_) => {
                let changed = difference(lines.0, lines.1);
                format!("{name:<20} {:>8} {:>8} {changed:>+8}\n", lines.1, lines.0)
            }
        };
        let mut table = match self.before {
            None => format!("{:<20} {:>8}\n", "package", "lines"),
            Some(_) => format!("{:<20} {:>8} {:>8} {:>8}\n", "package", "before", "now", "change"),
        };
        for (package, lines) in self.rows() {
            table += &line(&package.display().to_string(), lines);
        }
        table.push('\n');
        for (name, lines) in self.sums() {
            table += &line(name, lines);
        }
        table
    }

    fn json(&self) -> Value {
        let lines = |(now, before): (usize, usize)| match self.before {
            None => json!({ "lines": now }),
            Some(_) => json!({ "lines": now, "before": before }),
        };
        let rows = self.rows().into_iter();
        let packages = rows.map(|(package, rows)| (package.display().to_string(), lines(rows)));
        let mut report = json!({ "packages": packages.collect::<serde_json::Map<_, _>>() });
        for (name, sum) in self.sums() {
            report[name] = lines(sum);
        }
        report
    }
}

fn is_tool(package: &Path) -> bool {
    TOOLS.iter().any(|tool| package.starts_with(tool))
}

/// The size of each package with code outside tests.
///
/// # Errors
/// A source is not valid Rust.
fn sizes(sources: &BTreeMap<PathBuf, String>) -> Result<Sizes> {
    let code: BTreeMap<&Path, Code> = sources
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|is| is == "rs") && !is_test(path))
        .map(|(path, text)| {
            let code = Code::of(text).with_context(|| path.display().to_string())?;
            Ok((path.as_path(), code))
        })
        .collect::<Result<_>>()?;
    let test_modules: Vec<PathBuf> = code
        .iter()
        .flat_map(|(path, code)| code.test_modules.iter().map(|name| modules_of(path).join(name)))
        .collect();
    let mut sizes = Sizes::new();
    for (path, code) in &code {
        let is_of_tests = |module: &PathBuf| path.starts_with(module) || *path == module.with_extension("rs");
        if !test_modules.iter().any(is_of_tests) {
            *sizes.entry(package(sources, path)).or_default() += code.lines.len();
        }
    }
    Ok(sizes)
}

/// Whether a source is in a directory of tests.
fn is_test(path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    TESTS.iter().any(|tests| folder.iter().any(|part| part == *tests))
}

/// The directory of a source's modules.
fn modules_of(source: &Path) -> PathBuf {
    let is_folders_own = FOLDERS_OWN.iter().any(|name| source.file_stem() == Some(name.as_ref()));
    if is_folders_own { source.parent().unwrap_or(source).to_owned() } else { source.with_extension("") }
}

/// The directory of a source's package: the nearest one with a manifest.
fn package(sources: &BTreeMap<PathBuf, String>, source: &Path) -> PathBuf {
    let mut folders = source.ancestors().skip(1);
    let nearest = folders.find(|folder| sources.contains_key(&folder.join("Cargo.toml")));
    nearest.unwrap_or_else(|| Path::new("")).to_owned()
}

/// The sources and manifests that are tracked or not ignored by git.
fn sources_now(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let files = tidy::files(root)?.into_iter();
    let counted = files.filter(|file| is_counted(&file.path));
    Ok(counted.map(|file| (file.path, file.text)).collect())
}

/// The sources and manifests of a revision.
fn sources_at(root: &Path, revision: &str) -> Result<BTreeMap<PathBuf, String>> {
    let listed = tidy::git(root, &["ls-tree", "-r", "-z", "--name-only", "--full-tree", revision])?;
    let mut command = Command::new("git");
    command.args(["cat-file", "--batch"]).current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().context("git cannot be started")?;
    let mut requests = child.stdin.take().context("git cat-file has no standard input")?;
    let mut replies = BufReader::new(child.stdout.take().context("git cat-file has no standard output")?);
    let mut texts = BTreeMap::new();
    for name in tidy::names(&listed).filter(|name| is_counted(name)) {
        writeln!(requests, "{revision}:{}", name.display())?;
        let mut head = String::new();
        replies.read_line(&mut head)?;
        let size = head.split_whitespace().next_back().and_then(|size| size.parse().ok());
        let size: u64 = size.with_context(|| format!("git cat-file: {}", head.trim_end()))?;
        let mut text = Vec::new();
        // A line feed follows it.
        replies.by_ref().take(size + 1).read_to_end(&mut text)?;
        text.pop();
        texts.insert(name, String::from_utf8_lossy(&text).into_owned());
    }
    drop(requests);
    ensure!(child.wait()?.success(), "git cat-file failed");
    Ok(texts)
}

fn is_counted(path: &Path) -> bool {
    path.ends_with("Cargo.toml") || path.extension().is_some_and(|is| is == "rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        let files = files.iter();
        files.map(|(path, text)| (path.into(), (*text).to_owned())).collect()
    }

    fn report(base: Option<&[(&str, &str)]>) -> Report {
        let now = sources(&[
            ("Cargo.toml", ""),
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "mod b;\n#[cfg(test)]\nmod tests;\n"),
            ("crates/a/src/tests.rs", "fn t() {}\nmod inner;\n"),
            ("crates/a/src/tests/inner.rs", "fn t() {}\n"),
            ("crates/a/src/b.rs", "// A comment.\nfn f() {}\n#[cfg(test)]\nmod world;\n"),
            ("crates/a/src/b/world.rs", "fn t() {}\n"),
            ("crates/a/src/world.rs", "fn f() {}\n"),
            ("crates/a/tests/x.rs", "fn t() {}\n"),
            ("tests/Cargo.toml", ""),
            ("tests/src/lib.rs", "fn t() {}\n"),
            ("xtask/Cargo.toml", ""),
            ("xtask/src/main.rs", "fn f() {\n}\n"),
            ("xtask/README.md", "text\n"),
        ]);
        Report {
            now: sizes(&now).expect("it is Rust"),
            before: base.map(|base| sizes(&sources(base)).expect("it is Rust")),
        }
    }

    #[test]
    fn each_package_is_counted_without_its_tests() {
        let report = report(None);
        let rows: Vec<_> = report.rows().into_iter().collect();
        assert_eq!(rows, [(Path::new("crates/a"), (3, 0)), (Path::new("xtask"), (2, 0))]);
        assert_eq!(report.sums(), [("product", (3, 0)), ("total", (5, 0))]);
        assert_eq!(report.json()["packages"]["crates/a"], json!({ "lines": 3 }));
    }

    #[test]
    fn a_base_shows_what_came_and_went() {
        let base = [
            ("crates/a/Cargo.toml", ""),
            ("crates/a/src/lib.rs", "fn f() {}\n"),
            ("crates/old/Cargo.toml", ""),
            ("crates/old/src/lib.rs", "fn f() {\n}\nfn g() {\n}\n"),
        ];
        let report = report(Some(&base));
        let table = report.table();
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["crates/a", "1", "3", "+2"]);
        assert_eq!(rows[2], ["crates/old", "4", "0", "-4"]);
        assert_eq!(rows[5], ["product", "5", "3", "-2"]);
        assert_eq!(rows[6], ["total", "5", "5", "+0"]);
        assert_eq!(report.json()["total"], json!({ "lines": 5, "before": 5 }));
    }

    #[test]
    fn a_revision_is_counted_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("it is below the top")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        let run = |arguments: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
            tidy::git(root, &[&who, arguments].concat()).expect("git");
        };
        write("a/Cargo.toml", "[package]\n");
        write("a/src/lib.rs", "fn f() {}\n\nfn g() {}\n");
        write("a/empty.rs", "");
        run(&["init", "--quiet"]);
        run(&["add", "."]);
        run(&["commit", "--quiet", "-m", "x"]);
        write("a/src/lib.rs", "fn f() {}\n");
        write("a/src/new.rs", "fn h() {}\nfn i() {}\n");
        let lines = |sources: Result<BTreeMap<PathBuf, String>>| {
            let sizes = sizes(&sources.expect("git")).expect("it is Rust");
            sizes.get(Path::new("a")).copied()
        };
        assert_eq!(lines(sources_at(root, "HEAD")), Some(2));
        assert_eq!(lines(sources_now(root)), Some(3));
        assert!(sources_at(root, "nowhere").is_err());
    }
}
