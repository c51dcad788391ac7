//! The NFSv4 clients that have state, so that they, and no others, reclaim it after a restart (RFC
//! 8881 section 8.4.3).
//!
//! As text: `lease SECONDS`, then for each change `client PRINCIPAL OWNER` or `gone OWNER`, with
//! the owner in hexadecimal, and the principal `anonymous` or a uid. Changes are appended; the file
//! is replaced when it is opened and at the end of the grace period. An incomplete last line is
//! ignored: its change was not made durable, and nothing depends on it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;

use super::{StateError, damaged, files};
use crate::state::{Principal, RecordedClient};

/// The list of a run of the server.
pub(crate) struct ClientRecords(Mutex<RecordsFile>);

struct RecordsFile {
    /// None for a state in memory.
    path: Option<PathBuf>,
    /// Open for appending.
    file: Option<File>,
    lease: Duration,
    /// The clients that this run has recorded.
    recorded: HashMap<Box<[u8]>, Principal>,
}

/// What the last run has left.
#[derive(Debug, Default)]
pub(crate) struct LastRun {
    /// Its lease; zero if there was none.
    pub(crate) lease: Duration,
    /// The clients that had state at its end.
    pub(crate) clients: Vec<RecordedClient>,
}

impl Default for ClientRecords {
    /// A list in memory.
    fn default() -> Self {
        let (path, file) = (None, None);
        Self(Mutex::new(RecordsFile { path, file, lease: Duration::ZERO, recorded: HashMap::new() }))
    }
}

impl ClientRecords {
    /// Opens the list at `path`, and returns what it contains.
    pub(super) fn open(path: &Path, lease: Duration) -> Result<(Self, LastRun), StateError> {
        let last = parse(&files::read(path)?.unwrap_or_default()).map_err(|what| damaged(path, what))?;
        let mut records =
            RecordsFile { path: Some(path.to_owned()), file: None, lease, recorded: HashMap::new() };
        // The lease of the last run counts until its clients have reclaimed their state.
        let kept = RecordsFile {
            path: records.path.clone(),
            file: None,
            lease: lease.max(last.lease),
            recorded: last.clients.iter().map(|client| (client.owner.clone(), client.principal)).collect(),
        };
        records.file = kept.replace()?;
        Ok((Self(Mutex::new(records)), last))
    }

    /// Records a client. It is durable on return.
    pub(crate) fn add(&self, client: &RecordedClient) -> Result<(), StateError> {
        let mut records = self.0.lock();
        if records.recorded.get(&client.owner) == Some(&client.principal) {
            return Ok(());
        }
        records.append(&line_of(&client.owner, client.principal))?;
        records.recorded.insert(client.owner.clone(), client.principal);
        Ok(())
    }

    /// Removes clients, also those of the last run. It is durable on return.
    pub(crate) fn remove<'o>(&self, owners: impl Iterator<Item = &'o [u8]>) -> Result<(), StateError> {
        let mut records = self.0.lock();
        let mut text = String::new();
        for owner in owners {
            records.recorded.remove(owner);
            text.push_str("gone ");
            push_hex(&mut text, owner);
            text.push('\n');
        }
        if text.is_empty() { Ok(()) } else { records.append(&text) }
    }

    /// Removes the clients of the last run that this one has not recorded. It is durable on return.
    pub(crate) fn forget_last_run(&self) -> Result<(), StateError> {
        let mut records = self.0.lock();
        records.file = records.replace()?;
        Ok(())
    }
}

impl RecordsFile {
    fn append(&mut self, text: &str) -> Result<(), StateError> {
        let (Some(file), Some(path)) = (&mut self.file, &self.path) else { return Ok(()) };
        let appended = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        appended.map_err(|source| {
            // The next change must not follow a part of this one.
            let _ = file.write_all(b"\n");
            StateError::Io { path: path.clone(), source }
        })
    }

    /// Replaces the file with the recorded clients, and opens it.
    fn replace(&self) -> Result<Option<File>, StateError> {
        let Some(path) = &self.path else { return Ok(None) };
        let mut text = format!("lease {}\n", self.lease.as_secs());
        for (owner, principal) in &self.recorded {
            text.push_str(&line_of(owner, *principal));
        }
        files::replace(path, text.as_bytes())?;
        let opened = OpenOptions::new().append(true).open(path);
        opened.map(Some).map_err(|source| StateError::Io { path: path.clone(), source })
    }
}

fn line_of(owner: &[u8], principal: Principal) -> String {
    let mut line = match principal {
        Principal::Anonymous => "client anonymous ".to_owned(),
        Principal::Uid(uid) => format!("client {uid} "),
    };
    push_hex(&mut line, owner);
    line.push('\n');
    line
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

fn from_hex(text: &str) -> Option<Box<[u8]>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

fn parse(bytes: &[u8]) -> Result<LastRun, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut last = LastRun::default();
    let mut seen = HashMap::new();
    for line in complete.lines().filter(|line| !line.is_empty()) {
        let words: Vec<_> = line.split(' ').collect();
        let parsed = match words[..] {
            ["lease", seconds] => seconds.parse().ok().map(|seconds| {
                last.lease = Duration::from_secs(seconds);
            }),
            ["client", "anonymous", owner] => from_hex(owner).map(|owner| {
                seen.insert(owner, Principal::Anonymous);
            }),
            ["client", uid, owner] => uid.parse().ok().zip(from_hex(owner)).map(|(uid, owner)| {
                seen.insert(owner, Principal::Uid(uid));
            }),
            ["gone", owner] => from_hex(owner).map(|owner| {
                seen.remove(&owner);
            }),
            _ => None,
        };
        parsed.ok_or_else(|| format!("line \"{line}\""))?;
    }
    last.clients = seen.into_iter().map(|(owner, principal)| RecordedClient { owner, principal }).collect();
    Ok(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::collections::HashSet;

    use super::*;

    fn client(owner: &[u8], principal: Principal) -> RecordedClient {
        RecordedClient { owner: owner.into(), principal }
    }

    fn open(path: &Path) -> (ClientRecords, HashSet<RecordedClient>) {
        let (records, last) = ClientRecords::open(path, Duration::from_secs(90)).unwrap();
        (records, last.clients.into_iter().collect())
    }

    #[test]
    fn recorded_clients_survive_until_the_next_run_has_forgotten_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let one = client(b"\0one two\n\xff", Principal::Uid(0));
        let two = client(b"two", Principal::Anonymous);
        let three = client(b"", Principal::Uid(u32::MAX));
        let (records, last) = open(&path);
        assert!(last.is_empty());
        [&one, &two, &three, &one].into_iter().for_each(|client| records.add(client).unwrap());
        records.remove([&b"two"[..], b"none"].into_iter()).unwrap();
        let expected = HashSet::from([one.clone(), three.clone()]);
        // A run that is killed in its grace period leaves them to the next one.
        assert_eq!(open(&path).1, expected);
        let (records, last) = open(&path);
        assert_eq!(last, expected);
        records.add(&one).unwrap();
        records.add(&two).unwrap();
        assert_eq!(open(&path).1, HashSet::from([one.clone(), two.clone(), three]));
        records.forget_last_run().unwrap();
        assert_eq!(open(&path).1, HashSet::from([one, two]));
    }

    #[test]
    fn a_client_that_comes_back_after_it_was_removed_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let one = client(b"one", Principal::Uid(5));
        let (records, _) = open(&path);
        for _ in 0..2 {
            records.add(&one).unwrap();
            records.remove([&b"one"[..]].into_iter()).unwrap();
            assert!(open(&path).1.is_empty());
        }
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_other_damage_is_not() {
        let complete = b"lease 10\nclient 7 6f6e65\n";
        let last = parse(complete).unwrap();
        assert_eq!(last.lease, Duration::from_secs(10));
        assert_eq!(last.clients, [client(b"one", Principal::Uid(7))]);
        for cut in complete.len()..complete.len() + 9 {
            let with_part = [&complete[..], b"gone 6f6e"].concat();
            assert_eq!(parse(&with_part[..cut]).unwrap().clients.len(), 1);
        }
        for damage in
            ["client 7 6f6", "client -1 6f", "client 7 zz", "gone", "lease x", "client 7 \u{e9}\u{e9}"]
        {
            assert!(parse(format!("{damage}\n").as_bytes()).is_err(), "{damage}");
        }
        assert!(parse(b"\xff\n").is_err());
    }
}
