//! Paths as exports(5) writes them: a byte that would mean something else is a backslash and three octal digits.

use std::fmt::Write as _;

/// A path so that it reads back as one word.
pub(super) fn escape(path: &[u8]) -> String {
    let mut text = String::new();
    for byte in path {
        if byte.is_ascii_graphic() && !br##"\"#(),"##.contains(byte) {
            text.push(char::from(*byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "\\{byte:03o}");
        }
    }
    text
}
