//! The NFSv4 clients that have state, so that they, and no others, reclaim it after a restart (RFC
//! 8881 section 8.4.3).
//!
//! As text: `lease SECONDS`, then for each change `client PRINCIPAL OWNER` or `gone OWNER`, with
//! the owner in hexadecimal, and the principal `anonymous` or a uid. ` denies` follows if the
//! client may have denied access to others, then ` delegations` if it may have some. Changes are
//! appended. The file
//! is replaced when it is opened, at the end of the grace period, when most of its lines have no
//! effect any more, and after a failure that left it in an unknown state. An incomplete last line
//! is ignored: its change was not made durable, and nothing depends on it.
//!
//! A record belongs to an instance of a client. The removal of an instance has no effect on the
//! record of a later one of the same owner. The clients of the last run stay on the list until the
//! grace period ends, because no other client gets what they had before.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use curt_proto::nfs4::Clientid;
use parking_lot::Mutex;

use super::{StateError, damaged, files};
use crate::state::{Principal, RecordedClient, RecordedState};

/// Number of lines without effect below which the file is not replaced.
const STALE_LINES_MIN: usize = 1024;

/// The list of a run of the server.
pub(crate) struct ClientRecords(Mutex<RecordsFile>);

/// The limits of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLimits {
    /// The lease of this run.
    pub(crate) lease: Duration,
    /// Maximum number of clients that this run records.
    pub(crate) clients: usize,
}

/// The recorded properties of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientEntry {
    pub(crate) principal: Principal,
    /// The state that it may have had.
    pub(crate) held: RecordedState,
}

/// The record of a client of this run.
struct StoredClient {
    entry: ClientEntry,
    /// The instance.
    client: Clientid,
}

struct RecordsFile {
    /// None for a state in memory.
    path: Option<PathBuf>,
    /// Open for appending. None if the file must be replaced first.
    file: Option<File>,
    /// Length of the file in bytes; it ends with a complete line.
    length: u64,
    /// Number of lines that have no effect any more.
    stale_lines: usize,
    limits: RecordLimits,
    /// The clients that this run has recorded.
    recorded: HashMap<Box<[u8]>, StoredClient>,
    /// The state that the last run has left, until the grace period ends.
    last: LastRun,
}

/// The state that the last run has left.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastRun {
    /// Its lease; zero if there was none.
    pub(crate) lease: Duration,
    /// The clients that had state at its end.
    pub(crate) clients: HashMap<Box<[u8]>, ClientEntry>,
}

impl Default for ClientRecords {
    /// A list in memory.
    fn default() -> Self {
        Self::new(None, RecordLimits { lease: Duration::ZERO, clients: usize::MAX }, LastRun::default())
    }
}

impl ClientRecords {
    fn new(path: Option<PathBuf>, limits: RecordLimits, last: LastRun) -> Self {
        let recorded = HashMap::new();
        Self(Mutex::new(RecordsFile { path, file: None, length: 0, stale_lines: 0, limits, recorded, last }))
    }

    /// Opens the list at `path`, and returns what it contains. On a full disk no client is recorded
    /// until [`Self::maintain`] succeeds.
    pub(super) fn open(path: &Path, limits: RecordLimits) -> Result<(Self, LastRun), StateError> {
        let last = parse(&files::read(path)?.unwrap_or_default()).map_err(|what| damaged(path, what))?;
        let records = Self::new(Some(path.to_owned()), limits, last.clone());
        match records.0.lock().replace() {
            Err(StateError::Io { path, source })
                if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
            {
                tracing::error!(path = %path.display(), error = %source, "no NFSv4 client can be recorded");
            }
            replaced => replaced?,
        }
        Ok((records, last))
    }

    /// Records a client, unless `is_removed` says that it is not one any more; then it returns
    /// `false`. It is durable on return.
    pub(crate) fn add(
        &self,
        id: Clientid,
        client: &RecordedClient,
        is_removed: impl FnOnce() -> bool,
    ) -> Result<bool, StateError> {
        let mut records = self.0.lock();
        // With the mutex locked: a removal that comes later finds the record.
        if is_removed() {
            return Ok(false);
        }
        let mut entry = ClientEntry { principal: client.principal, held: client.held };
        let present = records.recorded.get_mut(&client.owner);
        let is_new = present.is_none();
        if let Some(record) = present {
            entry = entry.with(&record.entry);
            if record.entry == entry {
                record.client = id;
                return Ok(true);
            }
        }
        if is_new && records.recorded.len() >= records.limits.clients {
            return Err(records.failed(ErrorKind::QuotaExceeded.into()));
        }
        let line = line_of(&client.owner, records.with_last(&client.owner, entry));
        records.append(&line)?;
        let record = StoredClient { entry, client: id };
        let before = records.recorded.insert(client.owner.clone(), record);
        records.stale_lines += usize::from(before.is_some());
        Ok(true)
    }

    /// Removes the records of these instances. It is durable on return.
    pub(crate) fn remove<'o>(
        &self,
        clients: impl Iterator<Item = (Clientid, &'o [u8])>,
    ) -> Result<(), StateError> {
        let mut records = self.0.lock();
        let owners: Vec<&[u8]> =
            clients.filter(|(id, owner)| records.holds(*id, owner)).map(|(_, owner)| owner).collect();
        let mut text = String::new();
        for owner in owners.iter().filter(|owner| !records.last.clients.contains_key(**owner)) {
            text.push_str("gone ");
            push_hex(&mut text, owner);
            text.push('\n');
        }
        if !text.is_empty() {
            records.append(&text)?;
        }
        for owner in owners {
            records.recorded.remove(owner);
            // Its line, and that which removes it.
            records.stale_lines += 2;
        }
        Ok(())
    }

    /// Whether this instance is recorded.
    pub(crate) fn holds(&self, id: Clientid, owner: &[u8]) -> bool {
        self.0.lock().holds(id, owner)
    }

    /// Removes the clients of the last run that this one has not recorded. It is durable on return.
    pub(crate) fn forget_last_run(&self) -> Result<(), StateError> {
        let mut records = self.0.lock();
        let last = std::mem::take(&mut records.last);
        let replaced = records.replace();
        if replaced.is_err() {
            records.last = last;
        }
        replaced
    }

    /// Replaces the file if that is due. It creates files, so a thread that serves calls must not
    /// call it.
    pub(crate) fn maintain(&self) -> Result<(), StateError> {
        let mut records = self.0.lock();
        let live = records.recorded.len() + records.last.clients.len();
        let is_due = records.file.is_none() || records.stale_lines > live.max(STALE_LINES_MIN);
        if records.path.is_some() && is_due { records.replace() } else { Ok(()) }
    }
}

#[cfg(test)]
impl ClientRecords {
    /// Lets changes fail until [`Self::maintain`] is called, as on a full disk.
    pub(crate) fn fill_disk(&self) {
        self.0.lock().file = OpenOptions::new().write(true).open("/dev/full").ok();
    }
}

impl RecordsFile {
    fn holds(&self, id: Clientid, owner: &[u8]) -> bool {
        self.recorded.get(owner).is_some_and(|record| record.client == id)
    }

    /// The entry to be written for a client of this run. What it had in the last run counts until
    /// the grace period ends.
    fn with_last(&self, owner: &[u8], entry: ClientEntry) -> ClientEntry {
        self.last.clients.get(owner).map_or(entry, |last| entry.with(last))
    }

    fn failed(&self, source: std::io::Error) -> StateError {
        StateError::Io { path: self.path.clone().unwrap_or_default(), source }
    }

    fn append(&mut self, text: &str) -> Result<(), StateError> {
        if self.path.is_none() {
            return Ok(());
        }
        let Some(file) = &mut self.file else { return Err(self.failed(ErrorKind::StorageFull.into())) };
        let length = self.length + text.len() as u64;
        if length > files::FILE_MAX {
            return Err(self.failed(ErrorKind::FileTooLarge.into()));
        }
        let appended = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if let Err(error) = appended {
            // The next change must not follow a part of this one.
            if file.set_len(self.length).is_err() {
                self.file = None;
            }
            return Err(self.failed(error));
        }
        self.length = length;
        Ok(())
    }

    /// Replaces the file with the clients of the last run and of this one, and opens it.
    fn replace(&mut self) -> Result<(), StateError> {
        let Some(path) = self.path.clone() else { return Ok(()) };
        // The lease of the last run counts until its clients have reclaimed their state.
        let last = if self.last.clients.is_empty() { Duration::ZERO } else { self.last.lease };
        let mut text = format!("lease {}\n", self.limits.lease.max(last).as_secs());
        for (owner, entry) in &self.last.clients {
            text.push_str(&line_of(owner, *entry));
        }
        for (owner, record) in &self.recorded {
            let entry = self.with_last(owner, record.entry);
            if self.last.clients.get(owner) != Some(&entry) {
                text.push_str(&line_of(owner, entry));
            }
        }
        let replaced = files::replace(&path, text.as_bytes()).and_then(|()| {
            let opened = OpenOptions::new().append(true).open(&path);
            opened.map_err(|source| self.failed(source))
        });
        match replaced {
            Ok(file) => {
                (self.file, self.length, self.stale_lines) = (Some(file), text.len() as u64, 0);
                Ok(())
            }
            Err(error) => {
                // If the old file is not there any more, nothing must be appended to it.
                if self.file.as_ref().is_some_and(|file| !is_at(file, &path)) {
                    self.file = None;
                }
                Err(error)
            }
        }
    }
}

/// Whether a file is that at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let place = |status: std::fs::Metadata| (status.dev(), status.ino());
    file.metadata().map(place).ok().zip(std::fs::metadata(path).map(place).ok()).is_some_and(|(a, b)| a == b)
}

impl ClientEntry {
    /// This entry and what an earlier one of the client contains. Another principal is another
    /// client.
    fn with(self, earlier: &Self) -> Self {
        if self.principal != earlier.principal {
            return self;
        }
        Self { held: self.held.and(earlier.held), ..self }
    }
}

fn line_of(owner: &[u8], entry: ClientEntry) -> String {
    let mut line = match entry.principal {
        Principal::Anonymous => "client anonymous ".to_owned(),
        Principal::Uid(uid) => format!("client {uid} "),
    };
    push_hex(&mut line, owner);
    line.push_str(if entry.held.denies { " denies" } else { "" });
    line.push_str(if entry.held.has_delegations { " delegations\n" } else { "\n" });
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

fn parse_held(words: &[&str]) -> Option<RecordedState> {
    let (denies, has_delegations) = match words {
        [] => (false, false),
        ["denies"] => (true, false),
        ["delegations"] => (false, true),
        ["denies", "delegations"] => (true, true),
        _ => return None,
    };
    Some(RecordedState { denies, has_delegations })
}

fn parse(bytes: &[u8]) -> Result<LastRun, String> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    if end < bytes.len() {
        tracing::warn!(
            bytes = bytes.len() - end,
            "an incomplete change of the list of NFSv4 clients is ignored"
        );
    }
    let complete = std::str::from_utf8(&bytes[..end]).map_err(|_| "it is no text".to_owned())?;
    let mut last = LastRun::default();
    for line in complete.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let parsed = match words[..] {
            ["lease", seconds] => seconds.parse().ok().map(|seconds| {
                last.lease = Duration::from_secs(seconds);
            }),
            ["client", principal, owner, ref held @ ..] => {
                let principal = match principal {
                    "anonymous" => Some(Principal::Anonymous),
                    uid => uid.parse().ok().map(Principal::Uid),
                };
                principal.zip(from_hex(owner)).zip(parse_held(held)).map(|((principal, owner), held)| {
                    last.clients.insert(owner, ClientEntry { principal, held });
                })
            }
            ["gone", owner] => from_hex(owner).map(|owner| {
                last.clients.remove(&owner);
            }),
            _ => None,
        };
        parsed.ok_or_else(|| format!("line \"{line}\""))?;
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::collections::HashSet;

    use super::*;

    const LIMITS: RecordLimits = RecordLimits { lease: Duration::from_secs(90), clients: 4 };

    fn client(owner: &[u8], principal: Principal) -> RecordedClient {
        RecordedClient { owner: owner.into(), principal, held: RecordedState::default() }
    }

    fn clients(last: LastRun) -> HashSet<RecordedClient> {
        let clients = last.clients.into_iter();
        clients
            .map(|(owner, ClientEntry { principal, held })| RecordedClient { owner, principal, held })
            .collect()
    }

    fn open(path: &Path) -> (ClientRecords, HashSet<RecordedClient>) {
        let (records, last) = ClientRecords::open(path, LIMITS).unwrap();
        (records, clients(last))
    }

    /// The clients that another run would find.
    fn content(path: &Path) -> HashSet<RecordedClient> {
        clients(parse(&std::fs::read(path).unwrap()).unwrap())
    }

    fn add(records: &ClientRecords, id: u64, client: &RecordedClient) -> Result<bool, StateError> {
        records.add(Clientid(id), client, || false)
    }

    fn remove(records: &ClientRecords, id: u64, owner: &[u8]) -> Result<(), StateError> {
        records.remove([(Clientid(id), owner)].into_iter())
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
        for (id, client) in [(1, &one), (2, &two), (3, &three), (1, &one)] {
            assert!(add(&records, id, client).unwrap());
        }
        remove(&records, 2, b"two").unwrap();
        remove(&records, 9, b"none").unwrap();
        let expected = HashSet::from([one.clone(), three.clone()]);
        // A run that is killed in its grace period leaves them to the next one.
        assert_eq!(open(&path).1, expected);
        let (records, last) = open(&path);
        assert_eq!(last, expected);
        add(&records, 1, &one).unwrap();
        add(&records, 2, &two).unwrap();
        assert_eq!(content(&path), HashSet::from([one.clone(), two.clone(), three]));
        records.forget_last_run().unwrap();
        assert_eq!(content(&path), HashSet::from([one, two]));
    }

    #[test]
    fn a_client_that_comes_back_after_it_was_removed_is_recorded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let one = client(b"one", Principal::Uid(5));
        let (records, _) = open(&path);
        for _ in 0..2 {
            add(&records, 1, &one).unwrap();
            remove(&records, 1, b"one").unwrap();
            assert!(content(&path).is_empty());
        }
    }

    #[test]
    fn a_client_is_recorded_with_what_it_had_to_the_end_of_the_next_grace_period() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let one = client(b"one", Principal::Uid(5));
        let with = |denies, has_delegations| RecordedClient {
            held: RecordedState { denies, has_delegations },
            ..one.clone()
        };
        let both = with(true, true);
        for first in [with(true, false), with(false, true)] {
            let (records, _) = open(&path);
            records.forget_last_run().unwrap();
            let second = with(!first.held.denies, first.held.denies);
            let expected =
                [(&one, &one), (&first, &first), (&one, &first), (&second, &both), (&first, &both)];
            for (added, expected) in expected {
                add(&records, 1, added).unwrap();
                assert_eq!(content(&path), HashSet::from([expected.clone()]));
            }
        }
        // The second restart finds it, whatever the client had reclaimed by then.
        for _ in 0..2 {
            let (records, last) = open(&path);
            assert_eq!(last, HashSet::from([both.clone()]));
            add(&records, 1, &one).unwrap();
            assert_eq!(content(&path), HashSet::from([both.clone()]));
        }
        let (records, _) = open(&path);
        add(&records, 1, &one).unwrap();
        records.forget_last_run().unwrap();
        assert_eq!(content(&path), HashSet::from([one]));
    }

    #[test]
    fn the_removal_of_an_instance_spares_the_next_one_of_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let one = client(b"one", Principal::Uid(5));
        let (records, _) = open(&path);
        add(&records, 1, &one).unwrap();
        add(&records, 2, &one).unwrap();
        remove(&records, 1, b"one").unwrap();
        assert!(records.holds(Clientid(2), b"one") && !records.holds(Clientid(1), b"one"));
        assert_eq!(content(&path), HashSet::from([one.clone()]));
        remove(&records, 2, b"one").unwrap();
        assert!(content(&path).is_empty());
        // One that was removed meanwhile is not recorded.
        assert!(!records.add(Clientid(3), &one, || true).unwrap());
        assert!(content(&path).is_empty());
    }

    #[test]
    fn clients_that_come_and_leave_do_not_let_the_file_grow_and_are_limited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let (records, _) = open(&path);
        let stays = client(b"stays", Principal::Uid(5));
        add(&records, 1, &stays).unwrap();
        let lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        for id in 2..600 {
            let owner = format!("{id}");
            add(&records, id, &client(owner.as_bytes(), Principal::Uid(0))).unwrap();
            remove(&records, id, owner.as_bytes()).unwrap();
            records.maintain().unwrap();
            assert!(lines() <= STALE_LINES_MIN + 4);
        }
        assert!(lines() < 1000);
        assert_eq!(content(&path), HashSet::from([stays]));
        for (id, owner) in [(1001, b"a"), (1002, b"b"), (1003, b"c")] {
            add(&records, id, &client(owner, Principal::Uid(0))).unwrap();
        }
        assert!(add(&records, 2000, &client(b"one too many", Principal::Uid(0))).is_err());
    }

    #[test]
    fn after_a_failure_nothing_is_recorded_until_the_file_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let (one, two) = (client(b"one", Principal::Uid(5)), client(b"two", Principal::Uid(5)));
        let (records, _) = open(&path);
        add(&records, 1, &one).unwrap();
        records.fill_disk();
        assert!(add(&records, 2, &two).is_err() && remove(&records, 1, b"one").is_err());
        assert!(records.holds(Clientid(1), b"one"));
        records.maintain().unwrap();
        add(&records, 2, &two).unwrap();
        assert_eq!(content(&path), HashSet::from([one, two]));
    }

    #[test]
    fn a_list_beyond_the_limit_is_refused_and_not_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("clients");
        let file = File::create(&path).unwrap();
        file.set_len(files::FILE_MAX + 1).unwrap();
        let error = ClientRecords::open(&path, LIMITS).err().unwrap().to_string();
        assert!(error.contains("larger than 64 MiB"), "{error}");
        assert_eq!(file.metadata().unwrap().len(), files::FILE_MAX + 1);
    }

    #[test]
    fn an_incomplete_last_line_is_ignored_and_other_damage_is_not() {
        let complete = b"lease 10\nclient 7 6f6e65\n";
        let last = parse(complete).unwrap();
        assert_eq!(last.lease, Duration::from_secs(10));
        assert_eq!(clients(last), HashSet::from([client(b"one", Principal::Uid(7))]));
        for part in [&b"gone 6f6e"[..], b"\0\0\0", b"\xff"] {
            for cut in 0..=part.len() {
                let with_part = [&complete[..], &part[..cut]].concat();
                assert_eq!(parse(&with_part).unwrap().clients.len(), 1);
            }
        }
        for damage in [
            "client 7 6f6",
            "client -1 6f",
            "client 7 zz",
            "client 7 6f no",
            "client 7 6f delegations denies",
            "gone",
            "lease x",
            "client 7 \u{e9}\u{e9}",
        ] {
            assert!(parse(format!("{damage}\n").as_bytes()).is_err(), "{damage}");
        }
        assert!(parse(b"\xff\n").is_err());
    }
}
