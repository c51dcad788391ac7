//! Paths in the syntax of exports(5): a byte with a special meaning is a backslash and three octal
//! digits.

use std::fmt::{self, Write};

/// A path, escaped so that it is parsed as one word.
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

/// A writer that keeps its output on one line: control characters are escaped as in a path.
pub(super) struct EscapedLine<'f, 'a>(pub(super) &'f mut fmt::Formatter<'a>);

impl Write for EscapedLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|it| self.write_char(it))
    }

    fn write_char(&mut self, it: char) -> fmt::Result {
        if !it.is_control() {
            return self.0.write_char(it);
        }
        let mut bytes = [0; 4];
        let mut bytes = it.encode_utf8(&mut bytes).bytes();
        bytes.try_for_each(|byte| write!(self.0, "\\{byte:03o}"))
    }
}
