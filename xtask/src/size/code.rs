//! Counts the lines of a source file outside tests: without comments, blank lines and code that is
//! compiled only for tests.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// Attributes of code that is compiled only for tests, without spaces.
const TEST_ONLY: [&str; 2] = ["cfg(test)", "cfg(all(test,"];
/// First words of items. Fields, arms and statements begin with none of them.
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
/// Items that end with a semicolon, even after braces.
const ENDED_BY_SEMICOLON: [&str; 4] = ["let", "static", "type", "use"];

/// The count of a source file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    /// Lines with code outside tests.
    pub(super) lines: BTreeSet<usize>,
    /// Modules in separate files that are compiled only for tests.
    pub(super) test_modules: Vec<String>,
}

impl Code {
    /// # Errors
    /// The text does not consist of Rust tokens.
    pub(super) fn of(text: &str) -> syn::Result<Self> {
        let mut code = Self::default();
        code.add(syn::parse_str(text)?);
        Ok(code)
    }

    fn add(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut rest = tokens.as_slice();
        while let [token, behind @ ..] = rest {
            rest = match Attribute::first(rest) {
                // A documentation comment.
                Some(attribute) if attribute.text.starts_with("doc=") => attribute.rest,
                Some(attribute) if TEST_ONLY.iter().any(|only| attribute.text.starts_with(only)) => {
                    if attribute.is_inner {
                        return;
                    }
                    self.behind_item(attribute.rest)
                }
                _ => {
                    self.add_token(token);
                    behind
                }
            };
        }
    }

    fn add_token(&mut self, token: &TokenTree) {
        let mut add = |span: Span| self.lines.extend(span.start().line..=span.end().line);
        match token {
            TokenTree::Group(group) => {
                add(group.span_open());
                add(group.span_close());
                self.add(group.stream());
            }
            other => add(other.span()),
        }
    }

    /// The tokens after the item, field, arm or statement at the start of `tokens`. Records a
    /// module in a separate file as a test module.
    fn behind_item<'a>(&mut self, mut tokens: &'a [TokenTree]) -> &'a [TokenTree] {
        while let Some(attribute) = Attribute::first(tokens) {
            tokens = attribute.rest;
        }
        let words: Vec<String> = tokens
            .iter()
            .filter(|token| !matches!(token, TokenTree::Group(_)))
            .map(ToString::to_string)
            .filter(|word| word != "pub" && word != "unsafe")
            .take(2)
            .collect();
        let word = |number: usize| words.get(number).map_or("", String::as_str);
        let is_item = ITEMS.contains(&word(0));
        let is_value = word(0) == "const" && !["async", "extern", "fn", "unsafe"].contains(&word(1));
        let by_semicolon = is_value || ENDED_BY_SEMICOLON.contains(&word(0));
        for (place, token) in tokens.iter().enumerate() {
            let behind = &tokens[place + 1..];
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace && !by_semicolon => {
                    return match behind {
                        [next, behind @ ..] if !is_item && is_punct(next, ',') => behind,
                        _ => behind,
                    };
                }
                token if is_punct(token, ';') => {
                    self.test_modules.extend((word(0) == "mod").then(|| word(1).to_owned()));
                    return behind;
                }
                token if is_punct(token, ',') && !is_item => return behind,
                _ => {}
            }
        }
        &[]
    }
}

/// An attribute at the start of tokens.
struct Attribute<'a> {
    /// Whether it is an inner attribute.
    is_inner: bool,
    /// The text between its brackets, without spaces.
    text: String,
    /// The tokens after it.
    rest: &'a [TokenTree],
}

impl<'a> Attribute<'a> {
    fn first(tokens: &'a [TokenTree]) -> Option<Self> {
        let behind =
            tokens.split_first().and_then(|(first, behind)| is_punct(first, '#').then_some(behind))?;
        let (is_inner, behind) = match behind {
            [next, behind @ ..] if is_punct(next, '!') => (true, behind),
            _ => (false, behind),
        };
        match behind {
            [TokenTree::Group(group), rest @ ..] if group.delimiter() == Delimiter::Bracket => {
                Some(Self { is_inner, text: group.stream().to_string().replace(' ', ""), rest })
            }
            _ => None,
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn lines(text: &str, expected: usize) {
        let code = Code::of(text).expect("it is Rust");
        assert_eq!(code.lines.len(), expected, "{text}");
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
        lines("f('\"'); // a\ng('\\'', '\\u{22}'); // b\nfn h<'a>(x: &'a str) {} // \"\n// '\ni();\n", 4);
    }

    #[test]
    fn what_only_tests_have_is_not_counted() {
        let module =
            "fn f() {}\n#[cfg(test)]\n#[allow(x, reason = \"a]\")]\nmod tests {\n    fn a() { \"}\" }\n}\n";
        lines(module, 1);
        lines("#[cfg(test)]\nuse {a::B, c};\nfn f() {}\n", 1);
        lines("#[cfg(test)]\npub(super) const X: [u8; 2] = { [1; 2] };\nfn f() {}\n", 1);
        lines("#[cfg(test)]\nconst fn g<A, B>(a: A, b: B) -> (A, B) {\n}\nfn f() {}\n", 1);
        lines("#[cfg(test)]\npub(in crate::x) const fn g<A, B>() {\n}\nfn f() {}\n", 1);
        lines("struct X {\n    #[cfg(test)]\n    a: Vec<(u8, u8)>,\n    b: u8,\n}\n", 3);
        lines("f(X {\n    #[cfg(test)]\n    a: Y { b },\n    #[cfg(test)]\n    c\n})\n", 2);
        lines("#![cfg(test)]\nfn f() {}\n", 0);
        lines("#[cfg(all(test, unix))]\nfn g() {}\n#[cfg(not(test))]\nfn f() {}\n", 2);
    }

    #[test]
    fn modules_of_tests_in_files_of_their_own_are_named() {
        let code = Code::of(
            "mod a;\n#[cfg(test)]\nmod tests;\n#[cfg(test)]\npub(crate) mod world;\n#[cfg(test)]\nmod b {}\n",
        )
        .expect("it is Rust");
        assert_eq!(code.test_modules, ["tests", "world"]);
        assert_eq!(code.lines.len(), 1);
    }

    #[test]
    fn what_is_cut_off_ends_or_is_an_error() {
        lines("#[cfg(test)]", 0);
        lines("#[cfg(test)]\nmod", 0);
        for text in ["/* a", "\"a\\", "r#\"a\"", "'\\", "#[cfg(test)]\nfn f() {"] {
            assert!(Code::of(text).is_err(), "{text}");
        }
    }
}
