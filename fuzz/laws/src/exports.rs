//! exports(5): whatever a file contains, its entries are the same after formatting and parsing them
//! again.

use std::path::Path;

use curt_server::{ClientSpec, EXPORTS_MAX, ParsedExports, Severity};

/// The bytes are a file; its lines are also parsed as client names.
///
/// # Panics
/// If a formatted entry is parsed differently, or a problem has no position.
pub fn exports(bytes: &[u8]) {
    let mut parsed = ParsedExports::default();
    parsed.read(Path::new("exports"), bytes);
    assert!(parsed.entries.len() <= EXPORTS_MAX);
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    for problem in &parsed.problems {
        assert!(problem.place.line <= lines, "{problem}");
        assert!(!problem.message.is_empty() && !problem.to_string().contains('\n'), "{problem:?}");
    }
    for entry in &parsed.entries {
        assert!(entry.path.starts_with(b"/"), "{entry:?}");
        let line = entry.to_string();
        let mut again = ParsedExports::default();
        again.read(Path::new("exports"), line.as_bytes());
        let refused = again.problems.iter().find(|it| it.severity == Severity::Error);
        assert!(refused.is_none(), "{line:?}: {refused:?}");
        let [read] = again.entries.as_slice() else {
            panic!("{line:?} reads as {} entries", again.entries.len());
        };
        assert_eq!(
            (&read.path, &read.client, &read.options),
            (&entry.path, &entry.client, &entry.options),
            "{line:?}"
        );
    }
    for word in bytes.split(|byte| *byte == b'\n').filter_map(|word| str::from_utf8(word).ok()) {
        if let Ok(client) = ClientSpec::parse(word) {
            assert_eq!(ClientSpec::parse(&client.to_string()), Ok(client), "{word:?}");
        }
    }
}
