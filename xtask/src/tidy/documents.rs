//! Checks of documents: links, paths and named items exist, each dependency has a reason, each
//! named test exists.

use std::collections::BTreeSet;
use std::path::Path;

use super::semantics::{SEMANTICS, tests};
use super::{Complaints, RepositoryFile};

/// The document with the reasons of the dependencies.
const ARCHITECTURE: &str = "ARCHITECTURE.md";
/// The document with the lines of code.
const SIZE: &str = "docs/decisions/size.md";
/// The text before the number of files of a look-up, whose table follows.
const FILES_OF_A_LOOKUP: &str = "It executes code of these ";
/// The manifest without workspace dependencies, because another compiler builds it.
const FUZZ: &str = "fuzz/Cargo.toml";
/// Minimum number of underscores of a test's name: shorter words may be options or functions.
const SHORTEST_TEST: usize = 4;
/// Top-level names of paths in the repository.
const TOPS: [&str; 10] =
    [".ci", "crates", "curt", "docs", "fuzz", "packaging", "tests", "tools", "workloads", "xtask"];
/// Required documents.
const DOCUMENTS: [&str; 8] = [
    ARCHITECTURE,
    "BENCHMARKS.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    SEMANTICS,
    "tests/kernel/README.md",
];

pub(super) fn check(root: &Path, files: &[RepositoryFile], complaints: &mut Complaints) {
    let text = |name: &str| files.iter().find(|file| file.path.as_os_str() == name);
    for name in DOCUMENTS.into_iter().filter(|name| text(name).is_none()) {
        complaints.add(Path::new(name), 1, "is missing");
    }
    for file in files.iter().filter(|file| file.has_ending("md")) {
        check_links(root, file, complaints);
    }
    if let (Some(workspace), Some(architecture)) = (text("Cargo.toml"), text(ARCHITECTURE)) {
        let fuzz = text(FUZZ).map_or("", |file| &file.text);
        check_dependencies(&[&workspace.text, fuzz], architecture, complaints);
        check_file_table(architecture, files, complaints);
    }
    let tests = test_names(files);
    for file in files.iter().filter(|file| file.has_ending("md")) {
        if !names_others(&file.path) {
            check_tests(file, &tests, complaints);
        }
        check_paths(root, file, complaints);
        check_items(file, files, complaints);
    }
}

/// The page that states the total of `cargo xtask size` must be within 1 % of `total`.
pub(super) fn check_size(files: &[RepositoryFile], total: usize, complaints: &mut Complaints) {
    let Some(page) = files.iter().find(|file| file.path.as_os_str() == SIZE) else { return };
    let stated = page.text.split("**State:** ").nth(1).and_then(|rest| rest.split(' ').next());
    let stated = stated.and_then(|number| number.replace(',', "").parse::<usize>().ok());
    if stated.is_none_or(|stated| stated.abs_diff(total) > total / 100) {
        complaints.add(&page.path, 1, format!("states {stated:?} lines; there are {total}"));
    }
}

/// The table of files of ARCHITECTURE.md has as many files as its introduction says, each exists,
/// and none is listed twice.
fn check_file_table(architecture: &RepositoryFile, files: &[RepositoryFile], complaints: &mut Complaints) {
    let Some((before, behind)) = architecture.text.split_once(FILES_OF_A_LOOKUP) else { return };
    let line = before.lines().count();
    let count = behind.split(' ').next().and_then(|number| number.parse().ok());
    let table: Vec<_> = behind.lines().skip(1).skip_while(|line| !line.starts_with('|')).collect();
    let rows = table.iter().take_while(|line| line.starts_with('|'));
    let mut named = BTreeSet::new();
    for name in rows.flat_map(|row| row.split('`').skip(1).step_by(2)) {
        let path = name.split_once('/').map(|(crate_name, path)| format!("crates/{crate_name}/src/{path}"));
        if !files.iter().any(|file| path.as_ref().is_some_and(|path| file.path.as_os_str() == path.as_str()))
        {
            complaints.add(&architecture.path, line, format!("there is no {name}"));
        }
        if !named.insert(name) {
            complaints.add(&architecture.path, line, format!("{name} is listed twice"));
        }
    }
    if count != Some(named.len()) {
        complaints.add(&architecture.path, line, format!("the table has {} files", named.len()));
    }
}

/// An item that is named as `` `Owner::item` `` must exist: some source, by its path or in its
/// text, has both names.
fn check_items(document: &RepositoryFile, files: &[RepositoryFile], complaints: &mut Complaints) {
    for (number, line) in document.text.lines().enumerate() {
        for (owner, item) in line.split('`').skip(1).step_by(2).filter_map(item_name) {
            let mut sources = files.iter().filter(|file| file.has_ending("rs"));
            if !sources.any(|source| names(source, owner) && names(source, item)) {
                complaints.add(&document.path, number + 1, format!("there is no {owner}::{item}"));
            }
        }
    }
}

/// The last two parts of a Rust path.
fn item_name(word: &str) -> Option<(&str, &str)> {
    let (path, item) = word.rsplit_once("::")?;
    let owner = path.rsplit("::").next()?;
    let is_name = |part: &str| {
        part.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    (is_name(owner) && is_name(item)).then_some((owner, item))
}

/// Whether a part of the source's path is `name`, or a word of its text.
fn names(source: &RepositoryFile, name: &str) -> bool {
    let is_part = |part: &str| part.strip_suffix(".rs").unwrap_or(part) == name;
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    source.path.iter().filter_map(|part| part.to_str()).any(is_part)
        || source.text.match_indices(name).any(|(at, _)| {
            !source.text[..at].ends_with(is_letter) && !source.text[at + name.len()..].starts_with(is_letter)
        })
}

/// Whether a document contains names that are not tests, such as those of events and metrics.
fn names_others(path: &Path) -> bool {
    path.parent().is_some_and(|parent| parent.as_os_str() == "docs")
}

/// Paths in the repository must exist.
fn check_paths(root: &Path, file: &RepositoryFile, complaints: &mut Complaints) {
    let is_path = |word: &&str| {
        let known = word.split_once('/').is_some_and(|(top, _)| TOPS.contains(&top));
        known && !word.contains([' ', '*', '<', '{'])
    };
    for (number, line) in file.text.lines().enumerate() {
        for path in line.split('`').skip(1).step_by(2).filter(is_path) {
            if !root.join(path).exists() {
                complaints.add(&file.path, number + 1, format!("there is no {path}"));
            }
        }
    }
}

fn check_links(root: &Path, file: &RepositoryFile, complaints: &mut Complaints) {
    let directory = file.path.parent().unwrap_or_else(|| Path::new(""));
    for (number, line) in file.text.lines().enumerate() {
        for target in
            line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
        {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:") || path.is_empty();
            if !elsewhere && !root.join(directory).join(path).exists() {
                complaints.add(&file.path, number + 1, format!("the link leads nowhere: {target}"));
            }
        }
    }
}

fn check_dependencies(manifests: &[&str], architecture: &RepositoryFile, complaints: &mut Complaints) {
    let used: BTreeSet<&str> = manifests.iter().flat_map(|text| dependencies(text)).collect();
    let table = architecture.text.split("\n## Dependencies").nth(1).unwrap_or_default();
    let explained: BTreeSet<&str> = table.lines().filter_map(row_name).collect();
    for name in used.difference(&explained) {
        complaints.add(&architecture.path, 1, format!("no row says why {name} is a dependency"));
    }
    for name in explained.difference(&used) {
        complaints.add(&architecture.path, 1, format!("{name} has a row and is no dependency"));
    }
}

/// The names in `[workspace.dependencies]`, or otherwise in `[dependencies]`, that are not crates
/// of this repository.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest
        .lines()
        .skip_while(|line| !["[workspace.dependencies]", "[dependencies]"].contains(line))
        .skip(1);
    let entries = section.take_while(|line| !line.starts_with('[')).filter(|line| !line.contains("path = "));
    entries.filter_map(|line| line.split_once(" = ").map(|(name, _)| name.trim()))
}

/// The first cell of a table's row; `None` for the header and the line below it.
fn row_name(line: &str) -> Option<&str> {
    let name = line.strip_prefix("| ")?.split(" |").next()?.trim();
    (name != "crate" && !name.starts_with('-')).then_some(name)
}

fn test_names(files: &[RepositoryFile]) -> BTreeSet<&str> {
    let sources = files.iter().filter(|file| file.has_ending("rs"));
    sources.flat_map(tests).map(|test| test.name).collect()
}

/// Each test that the document names must exist. A test is named as `` `name` ``.
fn check_tests(document: &RepositoryFile, tests: &BTreeSet<&str>, complaints: &mut Complaints) {
    for (number, line) in document.text.lines().enumerate() {
        for name in line.split('`').skip(1).step_by(2).filter(is_test_name) {
            let last = name.rsplit("::").next().unwrap_or(name);
            if !tests.contains(last) {
                complaints.add(&document.path, number + 1, format!("there is no test {name}"));
            }
        }
    }
}

fn is_test_name(word: &&str) -> bool {
    let own = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_' || letter == ':'
    };
    word.chars().all(own) && word.matches('_').count() >= SHORTEST_TEST
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> RepositoryFile {
        RepositoryFile { path: path.into(), text: text.into() }
    }

    #[test]
    fn rows_and_dependencies_have_to_match() {
        let workspace = "[workspace]\n[workspace.dependencies]\nours = { path = \"x\" }\nclap = \"4\"\nserde = { version = \"1\" }\n[profile]\nx = 1\n";
        let architecture = file(
            ARCHITECTURE,
            "| rows | before |\n\n## Dependencies\n| crate | why |\n|---|---|\n| clap | x |\n| old | y |\n",
        );
        let mut complaints = Complaints::default();
        check_dependencies(&[workspace], &architecture, &mut complaints);
        assert_eq!(complaints.violations.len(), 2, "{:?}", complaints.violations);
        assert!(complaints.violations[0].contains("serde") && complaints.violations[1].contains("old"));
    }

    #[test]
    fn tests_that_are_named_have_to_exist() {
        let source =
            file("a.rs", "#[test]\n#[cfg(x)]\nfn it_really_and_always_holds() {\nfn it_is_not_a_test() {\n");
        let files = [source];
        let document = file(
            "docs/decisions/x.md",
            "- a `it_really_and_always_holds`\n- b `x::it_is_not_a_test` `acregmin` `a_b_c_d`\n",
        );
        let mut complaints = Complaints::default();
        check_tests(&document, &test_names(&files), &mut complaints);
        assert_eq!(complaints.violations.len(), 1, "{:?}", complaints.violations);
        assert!(complaints.violations[0].contains("it_is_not_a_test"));
    }

    #[test]
    fn the_table_of_files_has_the_number_that_is_stated_and_each_once() {
        let files = [file("crates/a/src/b.rs", ""), file("crates/a/src/c/d.rs", "")];
        let complaints = |text: &str| {
            let mut complaints = Complaints::default();
            check_file_table(&file(ARCHITECTURE, text), &files, &mut complaints);
            complaints.violations.len()
        };
        let text = "It executes code of these 2 files:\n\n| x | y |\n|---|---|\n| `a/b.rs` | `a/c/d.rs` |\n\n`a/e.rs`\n";
        assert_eq!(complaints(text), 0);
        assert_eq!(complaints(&text.replace("these 2", "these 3")), 1);
        assert_eq!(complaints(&text.replace("a/b.rs", "a/c/d.rs")), 2);
        assert_eq!(complaints(&text.replace("a/b.rs", "a/f.rs")), 1);
    }

    #[test]
    fn the_stated_size_is_within_a_hundredth() {
        let page = [file(SIZE, "# Size\n\n**State:** 10,000 lines of code\n")];
        for (total, count) in [(9_910, 0), (10_000, 0), (10_100, 0), (9_900, 1), (10_200, 1)] {
            let mut complaints = Complaints::default();
            check_size(&page, total, &mut complaints);
            assert_eq!(complaints.violations.len(), count, "{total}");
        }
    }

    #[test]
    fn items_that_are_named_have_to_exist() {
        let files = [
            file("crates/vfs/src/pins.rs", "pub(crate) enum Pin { Kept }"),
            file("x.rs", "struct Pinned; fn keep() {}"),
        ];
        let document = file(
            "docs/decisions/x.md",
            "`Pin::Kept` `vfs::Pin` `vfs::pins` `pins::Pin::Kept` `fd00::1` `::`\n`Pin::keep` `Pi::Kept` `vfs::Pinned`\n",
        );
        let mut complaints = Complaints::default();
        check_items(&document, &files, &mut complaints);
        let wanted = ["Pin::keep", "Pi::Kept", "vfs::Pinned"];
        assert_eq!(
            complaints.violations,
            wanted.map(|item| format!("docs/decisions/x.md:2: there is no {item}"))
        );
    }

    #[test]
    fn paths_that_do_not_exist_are_reported() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let document =
            file("docs/x.md", "`xtask/src/main.rs` `xtask/nowhere.rs`\n`a/b` `tests/*.rs` `curt mount`\n");
        let mut complaints = Complaints::default();
        check_paths(&root, &document, &mut complaints);
        assert_eq!(complaints.violations, ["docs/x.md:1: there is no xtask/nowhere.rs"]);
    }

    #[test]
    fn links_have_to_lead_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let document = file(
            "src/x.md",
            "[a](main.rs) [b](../Cargo.toml#x) [c](https://x.org) [d](#e)\n[f](nowhere.md)\n",
        );
        let mut complaints = Complaints::default();
        check_links(root, &document, &mut complaints);
        assert_eq!(complaints.violations.len(), 1, "{:?}", complaints.violations);
        assert!(complaints.violations[0].starts_with("src/x.md:2"));
    }
}
