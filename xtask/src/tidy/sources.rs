//! Checks of source files: lengths, the location of `unsafe`, names and words.

use super::semantics::ONLY_IN_FULL;
use super::{Complaints, RepositoryFile};

/// Lines of a file above which tidy advises to split it.
const FILE_LINES_GUIDE: usize = 800;
/// Maximum length of comment lines.
const COMMENT_COLUMNS_MAX: usize = 100;
/// Beginnings of documentation that name no subject, or cannot be understood without the text above
/// it: rustdoc shows each item alone.
const RELATIVE_BEGINNINGS: [&str; 6] = ["What ", "Who ", "Whose ", "The same", "That of ", "Those of "];
/// Beginnings of an item's documentation that name no subject. A paragraph behind the first may
/// begin so.
const BEGINNINGS_WITHOUT_SUBJECT: [&str; 8] =
    ["It ", "They ", "Their ", "Does what ", "Nobody ", "Whoever ", "And ", "With what "];
/// The only file that may contain the words below: this one.
const OWN_PATH: &str = "xtask/src/tidy/sources.rs";
/// File names without meaning.
const EMPTY_NAMES: [&str; 7] =
    ["utils.rs", "util.rs", "helpers.rs", "manager.rs", "common.rs", "misc.rs", "types.rs"];
/// Words for unfinished code, or specific to one machine.
const UNFINISHED: [&str; 9] =
    ["todo!(", "unimplemented!(", "dbg!(", "#[ignore]", "#[ignore =", "TODO", "FIXME", "/work/", "/home/"];

pub(super) fn check(file: &RepositoryFile, complaints: &mut Complaints) {
    let lines = file.text.lines().count();
    if lines > FILE_LINES_GUIDE {
        let what = format!("{lines} lines; {FILE_LINES_GUIDE} are the guide: can it be split by concept?");
        complaints.advise(&file.path, lines, what);
    }
    for (number, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX {
            complaints.add(
                &file.path,
                number + 1,
                format!("the comment goes beyond column {COMMENT_COLUMNS_MAX}"),
            );
        }
        let documentation = line.trim_start().strip_prefix("//").unwrap_or_default();
        if documentation.trim_start_matches(['/', '!']).trim_start().starts_with("```") {
            complaints.add(&file.path, number + 1, "code in documentation is not tested: examples/ is built");
        }
    }
    if EMPTY_NAMES.contains(&file.name()) {
        complaints.add(&file.path, 1, "the name says nothing of what is in it");
    }
    if !file.text.starts_with("//!") {
        complaints.add(&file.path, 1, "a module opens with //!: what it owns and must not know");
    }
    check_beginnings(file, complaints);
    check_unsafe(file, complaints);
}

/// Documentation stands alone: no paragraph begins with a reference to another item's.
fn check_beginnings(file: &RepositoryFile, complaints: &mut Complaints) {
    let (mut is_within, mut is_documentation) = (false, false);
    for (number, line) in file.text.lines().enumerate() {
        let documentation = line.trim_start().strip_prefix("///").map(str::trim);
        let text = documentation.unwrap_or_default();
        let without_subject = BEGINNINGS_WITHOUT_SUBJECT.iter().filter(|_| !is_documentation);
        let mut refused = RELATIVE_BEGINNINGS.iter().chain(without_subject);
        let found = refused.find(|beginning| text.starts_with(**beginning));
        is_documentation = documentation.is_some();
        if let Some(beginning) = found.filter(|_| !is_within) {
            complaints.add(
                &file.path,
                number + 1,
                format!("{beginning:?} begins documentation that does not stand alone"),
            );
        }
        is_within = !text.is_empty() && !text.starts_with('#');
    }
}

fn check_unsafe(file: &RepositoryFile, complaints: &mut Complaints) {
    let uses: Vec<_> = file.text.lines().enumerate().filter(|(_, line)| uses_unsafe(line)).collect();
    if file.name() != "sys.rs" {
        for (number, _) in uses {
            complaints.add(&file.path, number + 1, "unsafe lives in files named sys.rs");
        }
    } else if !file.text.contains("JUSTIFICATION:") {
        complaints.add(&file.path, 1, "sys.rs says JUSTIFICATION: why safe code would not do");
    }
}

/// Whether a line has the keyword in code; comments and the lint's name do not count.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // In two parts, so that this line does not match.
    let keyword = concat!("un", "safe");
    let follows = [" {", " fn", " impl", " extern", " trait", "("];
    follows.iter().any(|next| {
        let found = code.find(&format!("{keyword}{next}"));
        found.is_some_and(|at| {
            !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '"')
        })
    })
}

pub(super) fn check_words(file: &RepositoryFile, complaints: &mut Complaints) {
    if file.path.as_os_str() == OWN_PATH || file.name() == "Cargo.lock" {
        return;
    }
    let lines = file.text.lines().enumerate().filter(|(_, line)| !line.contains(ONLY_IN_FULL));
    for (number, line) in lines {
        for word in UNFINISHED.iter().filter(|word| line.contains(*word)) {
            complaints.add(&file.path, number + 1, format!("{word:?} has no place here"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keyword_is_found_in_code_alone() {
        let keyword = concat!("un", "safe");
        for (line, uses) in [
            (format!("    let x = {keyword} {{ f() }};"), true),
            (format!("pub {keyword} fn f() {{"), true),
            (format!("// {keyword} {{ }}"), false),
            (format!("#![allow({keyword}_code)]"), false),
            (format!("let is_{keyword} (1);"), false),
        ] {
            assert_eq!(uses_unsafe(&line), uses, "{line}");
        }
    }

    #[test]
    fn documentation_that_refers_to_the_item_above_it_is_found_at_the_beginning_of_a_paragraph() {
        for (text, count) in [
            ("/// The same with a limit.\nfn f() {}", 1),
            ("/// A limit.\n///\n/// # Errors\n/// Those of READ.\nfn f() {}", 1),
            ("/// What is limited.\nfn f() {}", 1),
            ("/// Who is limited.\nfn f() {}", 1),
            ("/// It is limited.\nfn f() {}", 1),
            ("/// A limit.\n///\n/// It is small.\n///\n/// # Errors\n/// It is reached.\nfn f() {}", 0),
            ("/// A limit.\n/// What is limited is not said.\nfn f() {}", 0),
            ("/// A limit of these and of\n/// The same.\nfn f() {}", 0),
            ("// The same.\nfn f() {}", 0),
        ] {
            let file = RepositoryFile { path: "a/limit.rs".into(), text: text.to_owned() };
            let mut complaints = Complaints::default();
            check_beginnings(&file, &mut complaints);
            assert_eq!(complaints.violations.len(), count, "{text}");
        }
    }

    #[test]
    fn only_long_tests_may_be_ignored() {
        for (line, count) in [(ONLY_IN_FULL, 0), ("#[ignore]", 1), ("#[ignore = \"slow\"]", 1)] {
            let file = RepositoryFile { path: "a/limit.rs".into(), text: line.to_owned() };
            let mut complaints = Complaints::default();
            check_words(&file, &mut complaints);
            assert_eq!(complaints.violations.len(), count, "{line}");
        }
    }

    #[test]
    fn a_file_with_every_fault_is_complained_of() {
        let text = format!(
            "{}{}\n// TODO later\n/// ```\n//{}\n",
            concat!("un", "safe fn f() {}\n"),
            "\n".repeat(FILE_LINES_GUIDE),
            "-".repeat(COMMENT_COLUMNS_MAX - 1)
        );
        let file = RepositoryFile { path: "a/utils.rs".into(), text };
        let mut complaints = Complaints::default();
        check(&file, &mut complaints);
        check_words(&file, &mut complaints);
        assert_eq!(complaints.violations.len(), 6, "{:?}", complaints.violations);
        assert_eq!(complaints.advice.len(), 1, "{:?}", complaints.advice);
    }

    #[test]
    fn a_long_file_is_advised_to_be_split_and_is_valid() {
        for (lines, advice) in [(FILE_LINES_GUIDE, 0), (FILE_LINES_GUIDE + 1, 1), (5 * FILE_LINES_GUIDE, 1)] {
            let file = RepositoryFile { path: "src/a.rs".into(), text: "//! A file.\n".repeat(lines) };
            let mut complaints = Complaints::default();
            check(&file, &mut complaints);
            assert_eq!((complaints.violations.len(), complaints.advice.len()), (0, advice), "{lines}");
        }
    }
}
