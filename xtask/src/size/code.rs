//! What of a source file is code outside tests: without comments, blank lines and what is compiled
//! for tests alone.

/// Attributes of what is compiled for tests alone, as rustfmt writes them.
const TEST_ONLY: [&str; 2] = ["#[cfg(test)]", "#[cfg(all(test,"];
/// The same of a whole file.
const TEST_ONLY_FILE: &str = "#![cfg(test)]";
/// First words of items. What begins with none of them is a field, an arm or a statement.
const ITEMS: [&str; 15] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "use",
    "macro_rules",
];
/// Those of them that end with a semicolon, whatever braces they have before it.
const ENDED_BY_SEMICOLON: [&str; 4] = ["let", "static", "type", "use"];

/// A source file's share of the count.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// Lines that have code outside tests.
    pub(super) lines: usize,
    /// Modules in files of their own that are compiled for tests alone.
    pub(super) test_modules: Vec<String>,
}

impl Code {
    pub(super) fn of(text: &str) -> Self {
        let mut code = without_comments(text);
        if find(&code, TEST_ONLY_FILE, 0).is_some() {
            return Self::default();
        }
        let mut test_modules = Vec::new();
        for attribute in TEST_ONLY {
            let mut from = 0;
            while let Some(at) = find(&code, attribute, from) {
                let item = Item::at(&code, at);
                test_modules.extend(item.module);
                for letter in code[at..item.end].iter_mut().filter(|letter| **letter != '\n') {
                    *letter = ' ';
                }
                from = item.end;
            }
        }
        let lines = code.split(|letter| *letter == '\n');
        Self {
            lines: lines
                .filter(|line| line.iter().any(|letter| !letter.is_whitespace()))
                .count(),
            test_modules,
        }
    }
}

/// An item, a field, an arm or a statement.
struct Item {
    /// Behind its last letter.
    end: usize,
    /// Its name, if it is a module in a file of its own.
    module: Option<String>,
}

impl Item {
    /// What begins with the attribute at `at`.
    fn at(code: &[char], at: usize) -> Self {
        let start = behind_attributes(code, at);
        let words = first_words(code, start);
        let word = |number: usize| words.get(number).map_or("", String::as_str);
        let is_value = word(0) == "const" && !["async", "extern", "fn", "unsafe"].contains(&word(1));
        let by_semicolon = is_value || ENDED_BY_SEMICOLON.contains(&word(0));
        let is_item = ITEMS.contains(&word(0));
        let mut depth = 0_usize;
        for (place, letter) in code.iter().enumerate().skip(start) {
            match letter {
                '(' | '[' | '{' => depth += 1,
                // It is the last of what is around it.
                ')' | ']' | '}' if depth == 0 => return Self::ending(place),
                ')' | ']' | '}' => {
                    depth -= 1;
                    if depth == 0 && *letter == '}' && !by_semicolon {
                        let comma = usize::from(!is_item && code.get(place + 1) == Some(&','));
                        return Self::ending(place + 1 + comma);
                    }
                }
                ';' if depth == 0 => {
                    return Self {
                        module: (word(0) == "mod").then(|| word(1).to_owned()),
                        end: place + 1,
                    };
                }
                ',' if depth == 0 && !is_item => return Self::ending(place + 1),
                _ => {}
            }
        }
        Self::ending(code.len())
    }

    const fn ending(end: usize) -> Self {
        Self { end, module: None }
    }
}

/// Behind the attributes that begin at `at`.
fn behind_attributes(code: &[char], at: usize) -> usize {
    let (mut place, mut depth) = (at, 0_usize);
    while let Some(letter) = code.get(place) {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            '#' => {}
            letter if depth == 0 && !letter.is_whitespace() => break,
            _ => {}
        }
        place += 1;
    }
    place
}

/// The first two words behind the visibility.
fn first_words(code: &[char], start: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut place = start;
    while let Some(letter) = code.get(place).filter(|_| words.len() < 2) {
        if is_in_word(*letter) {
            let word: String = code[place..]
                .iter()
                .take_while(|letter| is_in_word(**letter))
                .collect();
            place += word.chars().count();
            if word != "pub" && word != "unsafe" {
                words.push(word);
            } else if code.get(place) == Some(&'(') {
                place += code[place..].iter().take_while(|letter| **letter != ')').count() + 1;
            }
        } else if letter.is_whitespace() {
            place += 1;
        } else {
            break;
        }
    }
    words
}

fn find(code: &[char], wanted: &str, from: usize) -> Option<usize> {
    let wanted: Vec<char> = wanted.chars().collect();
    let found = code[from..]
        .windows(wanted.len())
        .position(|window| window == wanted);
    found.map(|place| from + place)
}

const fn is_in_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The text with nothing in place of comments and underscores in place of what strings and
/// characters hold, line by line as it was.
fn without_comments(text: &str) -> Vec<char> {
    let text: Vec<char> = text.chars().collect();
    let mut code = Vec::with_capacity(text.len());
    let mut place = 0;
    while let Some(&letter) = text.get(place) {
        let next = text.get(place + 1).copied();
        let (end, filler) = match letter {
            '/' if next == Some('/') => (end_of_line(&text, place), ' '),
            '/' if next == Some('*') => (end_of_comment(&text, place), ' '),
            '"' => (end_of_string(&text, place), '_'),
            '\'' => (end_of_character(&text, place), '_'),
            'r' if starts_raw_string(&text, place) => (end_of_raw_string(&text, place), '_'),
            _ => {
                code.push(letter);
                place += 1;
                continue;
            }
        };
        code.extend(text[place..end].iter().map(|letter| match letter {
            '\n' => '\n',
            _ => filler,
        }));
        place = end;
    }
    code
}

fn end_of_line(text: &[char], start: usize) -> usize {
    start + text[start..].iter().take_while(|letter| **letter != '\n').count()
}

/// Block comments nest.
fn end_of_comment(text: &[char], start: usize) -> usize {
    let (mut place, mut depth) = (start, 0_usize);
    while place + 1 < text.len() {
        match (text[place], text[place + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                place += 1;
                continue;
            }
        }
        place += 2;
        if depth == 0 {
            return place;
        }
    }
    text.len()
}

fn end_of_string(text: &[char], start: usize) -> usize {
    let mut place = start + 1;
    while let Some(letter) = text.get(place) {
        match letter {
            '\\' => place += 2,
            '"' => return place + 1,
            _ => place += 1,
        }
    }
    text.len()
}

/// Of a character; a lifetime ends behind its apostrophe.
fn end_of_character(text: &[char], start: usize) -> usize {
    match (text.get(start + 1), text.get(start + 2)) {
        (Some('\\'), Some(_)) => {
            let rest = &text[(start + 3).min(text.len())..];
            (start + 4 + rest.iter().take_while(|letter| **letter != '\'').count()).min(text.len())
        }
        (Some(_), Some('\'')) => start + 3,
        _ => start + 1,
    }
}

/// Whether the `r` there begins `r"`, `br#"` or the like.
fn starts_raw_string(text: &[char], place: usize) -> bool {
    let before = text[..place]
        .iter()
        .rev()
        .take_while(|letter| is_in_word(**letter));
    let before: Vec<&char> = before.collect();
    let is_prefix = matches!(before[..], [] | ['b' | 'c']);
    let behind = text[place + 1..].iter().find(|letter| **letter != '#');
    is_prefix && behind == Some(&'"')
}

fn end_of_raw_string(text: &[char], start: usize) -> usize {
    let hashes = text[start + 1..]
        .iter()
        .take_while(|letter| **letter == '#')
        .count();
    let closing: String = std::iter::once('"')
        .chain(std::iter::repeat_n('#', hashes))
        .collect();
    find(text, &closing, start + hashes + 2).map_or(text.len(), |place| place + hashes + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn lines(text: &str, expected: usize) {
        assert_eq!(Code::of(text).lines, expected, "{text}");
    }

    #[test]
    fn comments_and_blank_lines_are_no_code() {
        lines("//! About.\n\nfn f() {\n    // Why.\n    g(); // here\n}\n", 3);
        lines("/* a /* b */ c\n */ x();\n/**/\n", 1);
        lines("x(); /* a\nb */ y();\n", 2);
    }

    #[test]
    fn what_looks_like_a_comment_in_a_string_is_code() {
        lines("f(\"// a\n/* b\n\");\ng();\n", 4);
        lines("f(r#\"\" /* \"#);\ng(br\"//\");\nh(\"\\\" //\");\n", 3);
        lines(
            "f('\"'); // a\ng('\\'', '\\u{22}'); // b\nfn h<'a>(x: &'a str) {} // \"\n// '\ni();\n",
            4,
        );
    }

    #[test]
    fn what_only_tests_have_is_not_counted() {
        let module =
            "fn f() {}\n#[cfg(test)]\n#[allow(x, reason = \"a]\")]\nmod tests {\n    fn a() { \"}\" }\n}\n";
        lines(module, 1);
        lines("#[cfg(test)]\nuse {a::B, c};\nfn f() {}\n", 1);
        lines(
            "#[cfg(test)]\npub(super) const X: [u8; 2] = { [1; 2] };\nfn f() {}\n",
            1,
        );
        lines(
            "#[cfg(test)]\nconst fn g<A, B>(a: A, b: B) -> (A, B) {\n}\nfn f() {}\n",
            1,
        );
        lines(
            "#[cfg(test)]\npub(in crate::x) const fn g<A, B>() {\n}\nfn f() {}\n",
            1,
        );
        lines(
            "struct X {\n    #[cfg(test)]\n    a: Vec<(u8, u8)>,\n    b: u8,\n}\n",
            3,
        );
        lines(
            "f(X {\n    #[cfg(test)]\n    a: Y { b },\n    #[cfg(test)]\n    c\n})\n",
            2,
        );
        lines("#![cfg(test)]\nfn f() {}\n", 0);
        lines(
            "#[cfg(all(test, unix))]\nfn g() {}\n#[cfg(not(test))]\nfn f() {}\n",
            2,
        );
    }

    #[test]
    fn modules_of_tests_in_files_of_their_own_are_named() {
        let code = Code::of(
            "mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub(crate) mod world;\n#[cfg(test)]\nmod b {}\n",
        );
        assert_eq!(code.test_modules, ["tests", "world"]);
        assert_eq!(code.lines, 1);
    }

    #[test]
    fn what_is_cut_off_ends() {
        for text in [
            "/* a",
            "\"a\\",
            "r#\"a\"",
            "'\\",
            "'",
            "#[cfg(test)]",
            "#[cfg(test)]\nmod",
            "#[cfg(test)]\nfn f() {",
        ] {
            lines(
                text,
                usize::from(!text.starts_with("/*") && !text.starts_with("#[")),
            );
        }
    }
}
