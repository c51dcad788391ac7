//! An error and its causes in one line of text: from the operation to the system's error.

/// The error and its causes, joined by colons. A message that ends with that of its cause, as in
/// many libraries, is printed only once.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

    use anyhow::Context as _;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("/a: {source}")]
    struct Told {
        source: std::io::Error,
    }

    #[test]
    fn each_cause_is_printed_once() {
        let source = || std::io::Error::other("no disk");
        let result = Err::<(), _>(Told { source: source() });
        assert_eq!(line(&result.context("cannot begin").unwrap_err()), "cannot begin: /a: no disk");
        let apart = Err::<(), _>(source()).context("/b").context("cannot begin");
        assert_eq!(line(&apart.unwrap_err()), "cannot begin: /b: no disk");
    }
}
