//! Checks of SEMANTICS.md: each statement ends in an id, such as `[cto-1]`, and each id has tests.
//! A test names the ids of its statements in a comment directly above `#[test]`. The index of both
//! is generated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Complaints, RepositoryFile};

/// The document with the statements.
pub(super) const SEMANTICS: &str = "SEMANTICS.md";
/// The index of the tests of each statement.
const INDEX: &str = "docs/semantics-tests.md";
/// The start of a comment with ids.
const MARK: &str = "// SEMANTICS: ";
/// Text that all similar comments contain.
const MARK_WORD: &str = "SEMANTICS:";
/// The attribute of a test that only `CURT_FULL=1 cargo xtask test` runs.
pub(super) const ONLY_IN_FULL: &str = r#"#[ignore = "CURT_FULL=1"]"#;

/// An item of a list, or a row of a table.
struct Statement<'a> {
    section: &'a str,
    line: usize,
    id: Option<&'a str>,
}

/// A function with `#[test]`.
pub(super) struct TestFunction<'a> {
    pub(super) name: &'a str,
    /// Whether only `CURT_FULL=1` runs it.
    is_only_in_full: bool,
    /// The lines directly above it with ids: the line's number, and the text after the mark.
    marks: Vec<(usize, &'a str)>,
}

/// The tests of each id.
type Index<'a> = BTreeMap<&'a str, BTreeSet<TestOfStatement<'a>>>;

/// A test of a statement, in the order of the index.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct TestOfStatement<'a> {
    path: &'a Path,
    name: &'a str,
    is_only_in_full: bool,
}

/// Writes the index below `root`.
///
/// # Errors
/// git fails, SEMANTICS.md does not exist, or the index cannot be written.
pub(crate) fn write(root: &Path) -> Result<()> {
    let files = super::files(root)?;
    let semantics = find(&files, SEMANTICS).with_context(|| format!("there is no {SEMANTICS}"))?;
    // `tidy` reports wrong marks.
    let index = index(&files, &mut Complaints::default());
    let text = index_text(&statements(&semantics.text), &index);
    std::fs::write(root.join(INDEX), text).with_context(|| format!("{INDEX} cannot be written"))
}

pub(super) fn check(files: &[RepositoryFile], complaints: &mut Complaints) {
    let Some(semantics) = find(files, SEMANTICS) else {
        return;
    };
    let statements = statements(&semantics.text);
    let index = index(files, complaints);
    let mut known = BTreeSet::new();
    for statement in &statements {
        let wrong = match statement.id {
            None => "the statement does not end in an id such as [cto-1]".to_owned(),
            Some(id) if !known.insert(id) => format!("another statement has the id {id}"),
            Some(id) if !index.contains_key(id) => format!("no test has {MARK}{id}."),
            Some(_) => continue,
        };
        complaints.add(&semantics.path, statement.line, wrong);
    }
    for (id, tests) in index.iter().filter(|(id, _)| !known.contains(**id)) {
        for TestOfStatement { path, name, .. } in tests {
            let line = line_of(files, path, &format!("fn {name}"));
            complaints.add(path, line, format!("{SEMANTICS} has no statement {id}"));
        }
    }
    let written = find(files, INDEX).map_or("", |file| &file.text);
    let wanted = index_text(&statements, &index);
    if written != wanted {
        let same = written.lines().zip(wanted.lines()).take_while(|(is, should)| is == should);
        complaints.add(
            Path::new(INDEX),
            same.count() + 1,
            "is not what the tests say: run `cargo xtask semantics`",
        );
    }
}

fn find<'a>(files: &'a [RepositoryFile], name: &str) -> Option<&'a RepositoryFile> {
    files.iter().find(|file| file.path.as_os_str() == name)
}

fn line_of(files: &[RepositoryFile], path: &Path, text: &str) -> usize {
    let file = files.iter().find(|file| file.path == path);
    let line = file.and_then(|file| file.text.lines().position(|line| line.contains(text)));
    line.map_or(1, |line| line + 1)
}

fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut found: Vec<Statement<'_>> = Vec::new();
    let mut section = "";
    let (mut in_statement, mut in_table) = (false, false);
    for (number, line) in text.lines().enumerate() {
        section = line.strip_prefix("## ").unwrap_or(section);
        // The rows below the rule. The header is above it.
        in_table = line.starts_with("|---") || in_table && line.starts_with('|');
        let begins = line.starts_with("- ") || in_table && line.starts_with("| ");
        in_statement = begins || in_statement && line.starts_with("  ");
        if begins {
            found.push(Statement { section, line: number + 1, id: None });
        }
        if in_statement && let Some(last) = found.last_mut() {
            last.id = id_at_end(line);
        }
    }
    found
}

fn id_at_end(line: &str) -> Option<&str> {
    let text = line.strip_suffix('|').unwrap_or(line).trim_end();
    let (_, id) = text.strip_suffix(']')?.rsplit_once('[')?;
    is_id(id).then_some(id)
}

/// Whether the word is an area and a number: `cto-1`.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(area, number)| {
        let lower = |letter: char| letter.is_ascii_lowercase();
        let digits = number.chars().all(|letter| letter.is_ascii_digit());
        !area.is_empty()
            && area.chars().all(lower)
            && digits
            && !number.is_empty()
            && !number.starts_with('0')
    })
}

/// The tests of a source: the next function after each `#[test]`.
pub(super) fn tests(file: &RepositoryFile) -> Vec<TestFunction<'_>> {
    let mut found = Vec::new();
    let mut marks = Vec::new();
    let mut lines = file.text.lines().map(str::trim_start).enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(ids) = line.strip_prefix(MARK) {
            marks.push((number + 1, ids));
            continue;
        }
        let marks = std::mem::take(&mut marks);
        if line == "#[test]" {
            let mut is_only_in_full = false;
            let function = lines.by_ref().find_map(|(_, line)| {
                is_only_in_full |= line == ONLY_IN_FULL;
                line.strip_prefix("fn ")
            });
            let name = function.and_then(|rest| rest.split(['(', '<']).next());
            found.extend(name.map(|name| TestFunction { name, is_only_in_full, marks }));
        }
    }
    found
}

/// The tests of each id. Reports malformed lines of ids.
fn index<'a>(files: &'a [RepositoryFile], complaints: &mut Complaints) -> Index<'a> {
    let mut index = Index::new();
    for file in files.iter().filter(|file| file.has_ending("rs")) {
        let mut marks = BTreeSet::new();
        for test in tests(file) {
            for (line, text) in test.marks {
                let ids: Option<Vec<_>> = text.strip_suffix('.').map(|ids| ids.split(", ").collect());
                let Some(ids) = ids.filter(|ids| ids.iter().all(|id| is_id(id))) else {
                    continue;
                };
                marks.insert(line);
                for id in ids {
                    let TestFunction { name, is_only_in_full, .. } = test;
                    let test = TestOfStatement { path: &file.path, name, is_only_in_full };
                    index.entry(id).or_default().insert(test);
                }
            }
        }
        for (number, line) in file.text.lines().enumerate() {
            let is_comment = line.trim_start().starts_with("//") && line.contains(MARK_WORD);
            if is_comment && !marks.contains(&(number + 1)) {
                let wrong = format!("`{MARK}cto-1, cto-2.` stands directly above #[test], in this form");
                complaints.add(&file.path, number + 1, wrong);
            }
        }
    }
    index
}

fn index_text(statements: &[Statement<'_>], index: &Index<'_>) -> String {
    let mut text = format!(
        "# Tests of what applications see\n\n\
         `cargo xtask semantics` writes this page; do not edit it. For each id of [SEMANTICS.md](../{SEMANTICS}) it lists the\n\
         tests that check the statement. These are the tests that name the id in a line `{MARK}…` above them. `cargo xtask test`\n\
         runs those with (CURT_FULL=1) only if this variable is set.\n"
    );
    let mut section = "";
    for statement in statements {
        let Some(id) = statement.id else {
            continue;
        };
        if section != statement.section {
            section = statement.section;
            text += &format!("\n## {section}\n");
        }
        text += &format!("\n### {id}\n\n");
        for TestOfStatement { path, name, is_only_in_full } in index.get(id).into_iter().flatten() {
            let when = if *is_only_in_full { " (CURT_FULL=1)" } else { "" };
            text += &format!("- [`{name}`](../{}){when}\n", path.display());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATEMENTS: &str = "- no heading [a-1]\n\n## One\n\n- first\n  goes on. [cto-1]\n- second [cto-2]\n\n| x | id |\n|---|---|\n| y | [cto-3] |\n\n## Two\ntext\n- third [attr-1]\n";

    fn file(path: &str, text: &str) -> RepositoryFile {
        RepositoryFile { path: path.into(), text: text.into() }
    }

    fn complaints(files: &[RepositoryFile]) -> Vec<String> {
        let mut complaints = Complaints::default();
        check(files, &mut complaints);
        complaints.violations
    }

    /// The files, and the generated index.
    fn with_index(mut files: Vec<RepositoryFile>) -> Vec<RepositoryFile> {
        let index = index(&files, &mut Complaints::default());
        let text = index_text(&statements(&files[0].text), &index);
        files.push(file(INDEX, &text));
        files
    }

    #[test]
    fn statements_are_items_and_rows_and_their_ids_stand_at_their_end() {
        let text =
            format!("{STATEMENTS}- [cto-4] at the start\n- [link](x)\n- [Cto-1]\n- [cto-01]\n- [cto-]\n");
        let found = statements(&text);
        let ids: Vec<_> = found.iter().map(|statement| statement.id).collect();
        let wanted = ["a-1", "cto-1", "cto-2", "cto-3", "attr-1"].map(Some);
        assert_eq!(ids, [wanted.as_slice(), &[None; 5]].concat());
        let lines: Vec<_> = found.iter().take(5).map(|statement| statement.line).collect();
        assert_eq!(lines, [1, 5, 7, 11, 15]);
        assert_eq!(found[3].section, "One");
    }

    #[test]
    fn the_index_lists_the_tests_of_each_id_in_the_order_of_the_statements() {
        let text = format!(
            "// SEMANTICS: b-2, a-1.\n// SEMANTICS: c-1.\n#[test]\n#[cfg(x)]\nfn one() {{\n\
            \x20   // SEMANTICS: b-2.\n    #[test]\n    {ONLY_IN_FULL}\n    fn two() {{\n#[test]\nfn three() {{\n"
        );
        let semantics = file(SEMANTICS, "## X\n- x [b-2]\n- x [a-1]\n## Y\n- x [c-1]\n");
        let files = with_index(vec![semantics, file("t/x.rs", &text)]);
        assert_eq!(complaints(&files), [""; 0]);
        let one = "- [`one`](../t/x.rs)\n";
        let (first, second) = (
            format!("X\n\n### b-2\n\n{one}- [`two`](../t/x.rs) (CURT_FULL=1)\n\n### a-1\n\n{one}"),
            format!("Y\n\n### c-1\n\n{one}"),
        );
        let sections: Vec<_> = files[2].text.split("\n## ").skip(1).collect();
        assert_eq!(sections, [first, second]);
    }

    #[test]
    fn statements_ids_and_tests_that_do_not_match_are_complained_of() {
        let semantics = file(SEMANTICS, "- x [a-1]\n- x\n- x [a-1]\n- x [a-2]\n");
        let source = file("x.rs", "// SEMANTICS: a-1, a-3.\n#[test]\nfn one() {\n");
        let found = complaints(&with_index(vec![semantics, source]));
        assert_eq!(
            found,
            [
                "SEMANTICS.md:2: the statement does not end in an id such as [cto-1]",
                "SEMANTICS.md:3: another statement has the id a-1",
                "SEMANTICS.md:4: no test has // SEMANTICS: a-2.",
                "x.rs:3: SEMANTICS.md has no statement a-3",
            ]
        );
    }

    #[test]
    fn an_index_that_would_be_written_otherwise_is_complained_of() {
        let semantics = file(SEMANTICS, "- x [a-1]\n");
        let test = |name: &str| {
            let text = format!("// SEMANTICS: a-1.\n#[test]\nfn {name}() {{\n");
            file("x.rs", &text)
        };
        let mut files = with_index(vec![semantics, test("one")]);
        files[1] = test("two");
        let found = complaints(&files);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with("run `cargo xtask semantics`"), "{found:?}");
        files.pop();
        assert!(complaints(&files)[0].starts_with("docs/semantics-tests.md:1:"));
    }

    #[test]
    fn lines_that_name_ids_in_another_form_or_place_are_complained_of() {
        for (text, lines) in [
            ("// SEMANTICS: a-1\n#[test]\nfn x() {", "1"),
            ("// SEMANTICS: a-1, the-end.\n#[test]\nfn x() {", "1"),
            ("/// SEMANTICS: a-1.\n#[test]\nfn x() {", "1"),
            ("// SEMANTICS: a-1.\n\n#[test]\nfn x() {", "1"),
            ("#[test]\n// SEMANTICS: a-1.\nfn x() {", "2"),
            ("// SEMANTICS: a-1.\nfn x() {", "1"),
        ] {
            let mut complaints = Complaints::default();
            let files = [file("x.rs", text)];
            assert!(index(&files, &mut complaints).is_empty(), "{text}");
            let found: Vec<_> =
                complaints.violations.iter().filter_map(|message| message.split(':').nth(1)).collect();
            assert_eq!(found, [lines], "{text}");
        }
    }
}
