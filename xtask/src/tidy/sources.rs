//! Of source files: lengths, where `unsafe` may be, names and words.

use super::{Complaints, RepositoryFile};

/// The most lines of a file. It is far above the guide of CONTRIBUTING.md: a file this long has
/// more than one concept.
const FILE_LINES_MAX: usize = 1000;
/// The most lines of a function, from `fn` to its closing brace. The guide is 70.
const FUNCTION_LINES_MAX: usize = 100;
/// The column at which lines of comments end.
const COMMENT_COLUMNS_MAX: usize = 100;
/// The one file that may say the words below: this one.
const OWN_PATH: &str = "xtask/src/tidy/sources.rs";
/// File names that say nothing of what is in the file.
const EMPTY_NAMES: [&str; 7] = [
    "utils.rs",
    "util.rs",
    "helpers.rs",
    "manager.rs",
    "common.rs",
    "misc.rs",
    "types.rs",
];
/// What is not done, or tells of one machine alone.
const UNFINISHED: [&str; 8] = [
    "todo!(",
    "unimplemented!(",
    "dbg!(",
    "#[ignore",
    "TODO",
    "FIXME",
    "/work/",
    "/home/",
];

pub(super) fn check(file: &RepositoryFile, complaints: &mut Complaints) {
    let lines = file.text.lines().count();
    if lines > FILE_LINES_MAX {
        complaints.add(
            &file.path,
            lines,
            format!("{lines} lines; {FILE_LINES_MAX} are the limit: split it by concept"),
        );
    }
    for (number, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("//") && line.chars().count() > COMMENT_COLUMNS_MAX {
            complaints.add(
                &file.path,
                number + 1,
                format!("the comment goes beyond column {COMMENT_COLUMNS_MAX}"),
            );
        }
    }
    if EMPTY_NAMES.contains(&file.name()) {
        complaints.add(&file.path, 1, "the name says nothing of what is in it");
    }
    if !file.text.starts_with("//!") {
        complaints.add(
            &file.path,
            1,
            "a module opens with //!: what it owns and must not know",
        );
    }
    for (line, name, length) in long_functions(&file.text) {
        complaints.add(
            &file.path,
            line,
            format!("fn {name} has {length} lines; {FUNCTION_LINES_MAX} are the limit"),
        );
    }
    check_unsafe(file, complaints);
}

fn check_unsafe(file: &RepositoryFile, complaints: &mut Complaints) {
    let uses: Vec<_> = file
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| uses_unsafe(line))
        .collect();
    if file.name() != "sys.rs" {
        for (number, _) in uses {
            complaints.add(&file.path, number + 1, "unsafe lives in files named sys.rs");
        }
    } else if !file.text.contains("JUSTIFICATION:") {
        complaints.add(
            &file.path,
            1,
            "sys.rs says JUSTIFICATION: why safe code would not do",
        );
    }
}

/// Whether a line has the keyword in code; comments and the lint's name are none.
fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    // Written in two parts, so that this line is none itself.
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
    for (number, line) in file.text.lines().enumerate() {
        for word in UNFINISHED.iter().filter(|word| line.contains(*word)) {
            complaints.add(&file.path, number + 1, format!("{word:?} has no place here"));
        }
    }
}

/// Functions over the limit: line, name and length. Works by indentation, which the formatter
/// guarantees.
fn long_functions(text: &str) -> Vec<(usize, String, usize)> {
    let mut found = Vec::new();
    let mut open: Vec<(usize, usize, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indentation = line.len() - code.len();
        if let Some(name) = function_name(code) {
            open.push((indentation, number, name.to_owned()));
        }
        let ends = |&(own, start, _): &(usize, usize, String)| {
            own == indentation && (code == "}" || number == start && code.ends_with('}'))
        };
        if let Some((_, start, name)) = open.pop_if(|last| ends(last)) {
            let length = number - start + 1;
            if length > FUNCTION_LINES_MAX {
                found.push((start + 1, name, length));
            }
        } else if code.ends_with(';') {
            // A function of a trait, without a body.
            open.pop_if(|(own, start, _)| *own == indentation && *start == number);
        }
    }
    found
}

fn function_name(code: &str) -> Option<&str> {
    let mut rest = code;
    if let Some(after) = rest.strip_prefix("pub") {
        rest = after
            .strip_prefix('(')
            .map_or(after, |inner| {
                inner.split_once(')').map_or(inner, |(_, after)| after)
            })
            .trim_start();
    }
    for word in ["const ", "async ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    rest = rest.strip_prefix(concat!("un", "safe ")).unwrap_or(rest);
    let name = rest.strip_prefix("fn ")?;
    Some(
        name.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .next()
            .unwrap_or(name),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!(
            "impl X {{\n    pub(crate) fn long(\n{}    }}\n}}\nfn short() {{}}\n",
            "        1;\n".repeat(lines - 2)
        )
    }

    #[test]
    fn functions_at_the_limit_pass_and_longer_ones_do_not() {
        assert_eq!(long_functions(&function(FUNCTION_LINES_MAX)), []);
        let found = long_functions(&function(FUNCTION_LINES_MAX + 1));
        assert_eq!(found, [(2, "long".to_owned(), FUNCTION_LINES_MAX + 1)]);
    }

    #[test]
    fn functions_without_a_body_swallow_nothing() {
        let text = format!(
            "trait T {{\n    fn a();\n    fn b() -> u8;\n}}\n{}",
            function(FUNCTION_LINES_MAX + 1)
        );
        assert_eq!(long_functions(&text).len(), 1);
    }

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
    fn a_file_with_every_fault_is_complained_of() {
        let text = format!(
            "{}{}\n// TODO later\n//{}\n",
            concat!("un", "safe fn f() {}\n"),
            "\n".repeat(FILE_LINES_MAX),
            "-".repeat(COMMENT_COLUMNS_MAX - 1)
        );
        let file = RepositoryFile {
            path: "a/utils.rs".into(),
            text,
        };
        let mut complaints = Complaints::default();
        check(&file, &mut complaints);
        check_words(&file, &mut complaints);
        assert_eq!(complaints.0.len(), 6, "{:?}", complaints.0);
    }
}
