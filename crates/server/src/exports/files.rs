//! Reading the files that define the exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::Fsid;
use super::escape::escape;
use super::parser::{ExportsEntry, ExportsProblem, FileLine, ParsedExports, Severity};

/// The default file.
pub const EXPORTS_FILE: &str = "/etc/exports";
/// The directory whose `*.exports` are read as well by default.
pub const EXPORTS_DIRECTORY: &str = "/etc/exports.d";
/// Maximum size of a file in bytes, far above that of a real one.
const FILE_MAX: u64 = 4 << 20;

/// Reads the given files, or those of exports(5). Of a directory, reads its `*.exports` in the
/// order of their names.
///
/// A file that cannot be read is reported as a problem. The default files may be missing.
#[must_use]
pub fn read_exports(named: &[PathBuf]) -> ParsedExports {
    let mut parsed = ParsedExports::default();
    for source in named {
        read_source(source, IfMissing::Refused, &mut parsed);
    }
    if named.is_empty() {
        for source in [EXPORTS_FILE, EXPORTS_DIRECTORY] {
            read_source(Path::new(source), IfMissing::Allowed, &mut parsed);
        }
    }
    check(&mut parsed);
    parsed
}

/// Whether a file may be missing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IfMissing {
    Allowed,
    Refused,
}

fn read_source(source: &Path, missing: IfMissing, parsed: &mut ParsedExports) {
    let files = if source.is_dir() { exports_in(source) } else { Ok(vec![source.to_owned()]) };
    let files = match files {
        Ok(files) => files,
        Err(error) => return cannot_read(source, &error, parsed),
    };
    for file in files {
        match read(&file) {
            Ok(text) => parsed.read(&file, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && missing == IfMissing::Allowed => {}
            Err(error) => cannot_read(&file, &error, parsed),
        }
    }
}

/// Hidden files are skipped, as exportfs does.
fn exports_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.ends_with(b".exports") && !name.starts_with(b".") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = File::open(file)?.take(FILE_MAX + 1).read_to_end(&mut text)?;
    if u64::try_from(read).is_ok_and(|read| read <= FILE_MAX) {
        Ok(text)
    } else {
        Err(io::Error::other(format!("more than {FILE_MAX} bytes")))
    }
}

fn cannot_read(file: &Path, error: &io::Error, parsed: &mut ParsedExports) {
    parsed.problems.push(ExportsProblem {
        severity: Severity::Error,
        place: FileLine { file: file.into(), line: 0 },
        word: String::new(),
        message: format!("cannot be read: {error}"),
    });
}

/// Finds contradictory lines.
fn check(parsed: &mut ParsedExports) {
    let mut problems = Vec::new();
    let mut say = |severity, entry: &ExportsEntry, message| {
        problems.push(ExportsProblem {
            severity,
            place: entry.place.clone(),
            word: escape(&entry.path),
            message,
        });
    };
    let mut seen: BTreeMap<(&[u8], String), &FileLine> = BTreeMap::new();
    let mut known_by: BTreeMap<&[u8], (Option<Fsid>, &FileLine)> = BTreeMap::new();
    let mut doubled = BTreeSet::new();
    for (at, entry) in parsed.entries.iter().enumerate() {
        let key = (entry.path.as_slice(), entry.client.to_string());
        if let Some(first) = seen.get(&key) {
            let message = format!("exported to {} at {first} already: that line holds", key.1);
            say(Severity::Warning, entry, message);
            doubled.insert(at);
            continue;
        }
        seen.insert(key, &entry.place);
        let fsid = entry.options.fsid();
        let (known, first) = *known_by.entry(&entry.path).or_insert_with(|| (fsid, &entry.place));
        if known != fsid {
            let message =
                format!("has another fsid= at {first}: clients of one file system must agree on it");
            say(Severity::Error, entry, message);
        }
    }
    // Compared as clients see them: two UUIDs, or a UUID and a number, may have one fsid.
    let mut by_fsid: BTreeMap<u64, &[u8]> = BTreeMap::new();
    for entry in &parsed.entries {
        let Some(fsid) = entry.options.fsid() else {
            continue;
        };
        let first = *by_fsid.entry(fsid.number()).or_insert(&entry.path);
        if first != entry.path {
            let message = format!(
                "fsid={fsid} is that of {} too: clients take them for one file system",
                escape(first)
            );
            say(Severity::Warning, entry, message);
        }
    }
    parsed.problems.append(&mut problems);
    let mut at = 0;
    parsed.entries.retain(|_| {
        at += 1;
        !doubled.contains(&(at - 1))
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn messages(parsed: &ParsedExports) -> String {
        let lines: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn a_directorys_exports_are_read_in_order_and_nothing_else_of_it() {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in
            [("b.exports", "/b *"), ("a.exports", "/a *"), (".c.exports", "/c *"), ("d.txt", "/d *")]
        {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let alone = directory.path().join("d.txt");
        let parsed = read_exports(&[directory.path().to_owned(), alone]);
        let paths: Vec<_> =
            parsed.entries.iter().map(|entry| entry.path.escape_ascii().to_string()).collect();
        assert_eq!(paths, ["/a", "/b", "/d"]);
        assert_eq!(parsed.problems, []);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let parsed = read_exports(&["/nowhere/exports".into()]);
        assert!(parsed.has_errors());
        assert!(messages(&parsed).starts_with("/nowhere/exports: error: cannot be read: No such file"));
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("huge");
        let bytes = usize::try_from(FILE_MAX).unwrap();
        std::fs::write(&file, vec![b'#'; bytes]).unwrap();
        assert!(!read_exports(std::slice::from_ref(&file)).has_errors());
        std::fs::write(&file, vec![b'#'; bytes + 1]).unwrap();
        assert!(messages(&read_exports(&[file])).contains("more than 4194304 bytes"));
    }

    // SEMANTICS: export-6.
    #[test]
    fn contradictory_lines_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("exports");
        let text = "/a x(rw)\n/a x(ro)\n/b x(fsid=1) y(fsid=1)\n/b z(fsid=2)\n/c x(fsid=1)\n\
            /d x(fsid=00000000-0000-0001-0000-000000000000)\n";
        std::fs::write(&file, text).unwrap();
        let parsed = read_exports(&[file]);
        let said = messages(&parsed);
        for part in [
            ":2: warning: /a: exported to x at ",
            ":4: error: /b: has another fsid= at ",
            ":5: warning: /c: fsid=1 is that of /b too",
            ":6: warning: /d: fsid=00000000-0000-0001-0000-000000000000 is that of /b too",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(parsed.problems.len(), 4, "{said}");
        assert_eq!(parsed.entries.iter().filter(|entry| entry.path == b"/a").count(), 1);
    }
}
