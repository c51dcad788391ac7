//! Documents that are generated from the tables.

use std::path::Path;

/// Checks that a document of the repository has this text. With `CURT_WRITE_DOCUMENTS=1` it writes
/// the document.
pub(crate) fn check(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("CURT_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&file, text).expect("a document that can be written");
    }
    let written = std::fs::read_to_string(&file).expect("the document");
    assert!(
        written == text,
        "{path} is not current: CURT_WRITE_DOCUMENTS=1 cargo test -p curt-observe document"
    );
}
