//! A scripted server of one directory with any number of names, with optional faults.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use curt_client::{
    Background, BackgroundTask, Caller, ClientOptions, Clock, DirEmit, DirEntry, Environment, Errno,
    MountedRoot, OpenDirectory, Superblock,
    caller::RpcSecurity,
    ops,
    protocol::{Fsinfo, Pathconf, RpcClient, v3::NfsV3},
};
use curt_proto::nfs3::{NfsProcedure, NfsStat3};
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::FileHandle;
use parking_lot::Mutex;

/// Maximum bytes of a reply.
pub(crate) const REPLY_MAX: u32 = 1 << 20;

/// The fileid of the directory; those of its names are their index plus [`FIRST_FILE`].
pub(crate) const DIRECTORY: u64 = 1;
pub(crate) const FIRST_FILE: u64 = 1000;

/// The fault of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Lie {
    #[default]
    None,
    /// The cookies of this name and all later ones are refused, this number of times.
    BadCookie { from: u64, times: u64 },
    /// This name has the cookie of the name before it.
    DuplicateCookie { at: u64 },
    /// The listing continues with the first name after this one.
    Circle { at: u64 },
    /// After this name, replies have neither a name nor the end.
    Silence { at: u64 },
    /// Requests for fewer bytes fail with TOOSMALL.
    Toosmall { below: u32 },
    /// Replies to requests for fewer bytes are empty.
    EmptyBelow { below: u32 },
    /// One name is replaced with this.
    Name { at: u64, name: &'static [u8] },
    /// Names have the attributes of the next one.
    OthersAttributes,
    /// Replies have this number of bytes more than requested.
    Excess { bytes: usize },
    /// The directory is removed when this name is requested.
    Removed { at: u64 },
}

/// The mapping of the indices of names to cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cookies {
    #[default]
    Small,
    /// In no order.
    Scattered,
    /// Beyond the positive range of a signed integer.
    Huge,
}

/// One READDIR or READDIRPLUS request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) cookie: u64,
    pub(crate) count: u32,
    pub(crate) plus: bool,
}

/// The properties of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Script {
    pub(crate) count: u64,
    pub(crate) lie: Lie,
    pub(crate) cookies: Cookies,
    /// Each reply shows another state of the directory, as if a file was created before each.
    pub(crate) is_changing: bool,
    /// Each reply has another verifier, and each cookie must be sent with its own.
    pub(crate) verifiers_differ: bool,
}

pub(crate) struct Scripted {
    script: Script,
    asked: Mutex<Vec<Asked>>,
    lookups: AtomicU64,
    refused: AtomicU64,
    changes: AtomicU64,
    removed: Mutex<HashSet<u64>>,
    /// Microseconds that passed in addition to those of the clock's readings.
    passed: Arc<AtomicU64>,
}

const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
/// The inverse of [`SCATTER`] modulo 2^64.
const GATHER: u64 = 0xf1de_83e1_9937_733d;

impl Cookies {
    /// The cookie of the name after `index`.
    pub(crate) fn cookie(self, index: u64) -> u64 {
        match self {
            Self::Small => index + 3,
            Self::Scattered => (index + 1).wrapping_mul(SCATTER),
            Self::Huge => (1 << 63) + index,
        }
    }

    /// The number of names before the one at `cookie`.
    fn position(self, cookie: u64) -> u64 {
        match (self, cookie) {
            (_, 0) => 0,
            (Self::Small, _) => cookie - 2,
            (Self::Scattered, _) => cookie.wrapping_mul(GATHER),
            (Self::Huge, _) => cookie - (1 << 63) + 1,
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

pub(crate) fn name(index: u64) -> String {
    format!("{index:012}")
}

fn opaque(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    out.extend(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
}

impl Scripted {
    pub(crate) fn new(script: Script) -> Arc<Self> {
        assert_eq!(SCATTER.wrapping_mul(GATHER), 1);
        Arc::new(Self {
            script,
            asked: Mutex::default(),
            lookups: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            removed: Mutex::default(),
            passed: Arc::default(),
        })
    }

    /// Takes the recorded requests for listings.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock())
    }

    pub(crate) fn lookups(&self) -> u64 {
        self.lookups.load(Relaxed)
    }

    /// Lets time pass.
    pub(crate) fn pass(&self, microseconds: u64) {
        self.passed.fetch_add(microseconds, Relaxed);
    }

    /// Another client changes the directory.
    pub(crate) fn change(&self) {
        self.changes.fetch_add(1, Relaxed);
    }

    fn fattr(&self, fileid: u64) -> Vec<u8> {
        let is_directory = fileid == DIRECTORY;
        let mut out = words(&[if is_directory { 2 } else { 1 }, 0o755, 1, 1000, 1000]);
        let size = if is_directory { self.script.count * 24 } else { fileid };
        for value in [size, 4096, 0, 7, fileid] {
            out.extend(value.to_be_bytes());
        }
        let changes = if is_directory { self.changes.load(Relaxed) } else { 0 };
        let changed = u32::try_from(changes).unwrap();
        out.extend(words(&[1_700_000_001, 5, 1_700_000_002, 6 + changed, 1_700_000_003, 7 + changed]));
        out
    }

    fn verifier(&self, index: u64) -> [u8; 8] {
        if self.script.verifiers_differ { (index + 77).to_be_bytes() } else { [0; 8] }
    }

    fn failure(&self, status: NfsStat3) -> Vec<u8> {
        let mut out = words(&[status.number(), 1]);
        out.extend(self.fattr(DIRECTORY));
        out
    }

    fn list(&self, arguments: &[u8], plus: bool) -> Vec<u8> {
        let word = |at: usize| u64::from_be_bytes(arguments[at..at + 8].try_into().unwrap());
        let (cookie, verifier) = (word(12), word(20));
        let counts = &arguments[arguments.len() - 4..];
        let count = u32::from_be_bytes(counts.try_into().unwrap());
        self.asked.lock().push(Asked { cookie, count, plus });
        let script = self.script;
        if script.is_changing {
            self.changes.fetch_add(1, Relaxed);
        }
        let first = script.cookies.position(cookie);
        match script.lie {
            Lie::BadCookie { from, times }
                if cookie != 0 && first > from && self.refused.fetch_add(1, Relaxed) < times =>
            {
                return self.failure(NfsStat3::BadCookie);
            }
            Lie::Toosmall { below } if count < below => return self.failure(NfsStat3::Toosmall),
            Lie::Removed { at } if first > at => return words(&[NfsStat3::Stale.number(), 0]),
            _ => {}
        }
        if script.verifiers_differ && cookie != 0 && verifier.to_be_bytes() != self.verifier(first - 1) {
            return self.failure(NfsStat3::BadCookie);
        }
        self.names(first, count, plus)
    }

    fn names(&self, first: u64, count: u32, plus: bool) -> Vec<u8> {
        let lie = self.script.lie;
        let limit = match lie {
            Lie::Excess { bytes } => count as usize + bytes,
            _ => count.min(REPLY_MAX) as usize,
        };
        let is_mute = matches!(lie, Lie::Silence { at } if first > at)
            || matches!(lie, Lie::EmptyBelow { below } if count < below);
        let (mut entries, mut index) = (Vec::new(), first);
        // Status, attributes, verifier.
        let head = 4 + 4 + 84 + 8;
        let end = if is_mute { first } else { self.script.count };
        let removed = self.removed.lock();
        while index < end {
            if removed.contains(&index) {
                index += 1;
                continue;
            }
            let entry = self.entry(index, plus, 0);
            if head + entries.len() + entry.len() + 8 > limit {
                break;
            }
            entries.extend(entry);
            index += 1;
        }
        if let Lie::Excess { .. } = lie
            && index < end
        {
            // Exact to the byte, by a longer last name.
            let more = limit - (head + entries.len() + 8);
            entries.truncate(entries.len() - self.entry(index - 1, plus, 0).len());
            entries.extend(self.entry(index - 1, plus, more));
        }
        let mut out = words(&[0, 1]);
        out.extend(self.fattr(DIRECTORY));
        out.extend(self.verifier(index.saturating_sub(1)));
        out.extend(entries);
        out.extend(words(&[0, u32::from(index == self.script.count)]));
        out
    }

    /// An entry whose name is longer by `more` bytes.
    fn entry(&self, index: u64, plus: bool, more: usize) -> Vec<u8> {
        let Script { lie, cookies, .. } = self.script;
        let mut out = words(&[1]);
        out.extend((FIRST_FILE + index).to_be_bytes());
        match lie {
            Lie::Name { at, name } if at == index => opaque(name, &mut out),
            _ => opaque((name(index) + &"x".repeat(more)).as_bytes(), &mut out),
        }
        let cookie = match lie {
            Lie::DuplicateCookie { at } if at == index => cookies.cookie(index - 1),
            Lie::Circle { at } if at <= index => cookies.cookie(index - at),
            _ => cookies.cookie(index),
        };
        out.extend(cookie.to_be_bytes());
        if plus {
            let whose = FIRST_FILE + index + u64::from(lie == Lie::OthersAttributes);
            out.extend(words(&[1]));
            out.extend(self.fattr(whose));
            out.extend(words(&[1]));
            opaque(&(FIRST_FILE + index).to_be_bytes(), &mut out);
        }
        out
    }

    fn lookup(&self, arguments: &[u8]) -> Vec<u8> {
        self.lookups.fetch_add(1, Relaxed);
        let index = index_of(arguments);
        let mut out = words(&[0]);
        opaque(&(FIRST_FILE + index).to_be_bytes(), &mut out);
        out.extend(words(&[1]));
        out.extend(self.fattr(FIRST_FILE + index));
        out.extend(words(&[1]));
        out.extend(self.fattr(DIRECTORY));
        out
    }

    fn remove(&self, arguments: &[u8]) -> Vec<u8> {
        assert!(self.removed.lock().insert(index_of(arguments)));
        let before = self.fattr(DIRECTORY);
        self.changes.fetch_add(1, Relaxed);
        let mut out = words(&[0, 1]);
        // Size, mtime, ctime.
        for part in [20..28, 68..76, 76..84] {
            out.extend(&before[part]);
        }
        out.extend(words(&[1]));
        out.extend(self.fattr(DIRECTORY));
        out
    }
}

/// The index of the name in these arguments, which follows a handle.
fn index_of(arguments: &[u8]) -> u64 {
    std::str::from_utf8(&arguments[16..28]).unwrap().parse().unwrap()
}

impl Transport for Scripted {
    fn call(&self, request: &RpcRequest<'_>, _: &Interrupt) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let fileid = u64::from_be_bytes(arguments[4..12].try_into().unwrap());
        let results = match NfsProcedure::from_number(request.procedure).unwrap() {
            NfsProcedure::Getattr => [words(&[0]), self.fattr(fileid)].concat(),
            NfsProcedure::Access => [words(&[0, 1]), self.fattr(fileid), words(&[0x1f])].concat(),
            NfsProcedure::Lookup => self.lookup(&arguments),
            NfsProcedure::Remove => self.remove(&arguments),
            NfsProcedure::Readdir => self.list(&arguments, false),
            NfsProcedure::ReaddirPlus => self.list(&arguments, true),
            other => panic!("{other:?} is not asked"),
        };
        if results.len() > request.results_max {
            return Err(CallError::Malformed(curt_xdr::DecodeError::Short));
        }
        Ok(CallReply::from_results(results))
    }
}

#[derive(Debug)]
struct Ticking {
    base: Instant,
    readings: AtomicU64,
    passed: Arc<AtomicU64>,
}

impl Clock for Ticking {
    fn now(&self) -> Instant {
        let passed = self.readings.fetch_add(1, Relaxed) + self.passed.load(Relaxed);
        self.base + Duration::from_micros(passed)
    }

    fn pause(&self, _: Duration, _: &Interrupt) {}
}

#[derive(Debug)]
struct Inline;

impl Background for Inline {
    fn spawn(&self, task: BackgroundTask) {
        task();
    }

    fn spawn_after(&self, _: Duration, _: BackgroundTask) {}
}

/// A client of this server.
pub(crate) fn mount(server: &Arc<Scripted>, behaviour: &ClientOptions) -> Superblock {
    mount_in(server, behaviour, Arc::new(Inline))
}

pub(crate) fn mount_in(
    server: &Arc<Scripted>,
    behaviour: &ClientOptions,
    background: Arc<dyn Background>,
) -> Superblock {
    let clock: Arc<dyn Clock> = Arc::new(Ticking {
        base: Instant::now(),
        readings: AtomicU64::new(0),
        passed: Arc::clone(&server.passed),
    });
    let wire = Arc::new(RpcClient::new(server.clone(), Arc::clone(&clock)));
    let root = MountedRoot {
        handle: FileHandle::new(&DIRECTORY.to_be_bytes()).unwrap(),
        limits: Fsinfo { read_max: REPLY_MAX, ..Fsinfo::default() },
        path_limits: Pathconf::default(),
    };
    let environment = Environment { clock, background, observer: None };
    Superblock::new(&root, NfsV3::new(wire), RpcSecurity::sys(), behaviour, &environment).unwrap()
}

pub(crate) fn me() -> Caller {
    Caller::new(0, 0, &[])
}

/// Reads from `cookie` to the end, `room` names at a time as a kernel does. Calls `told` with each
/// name's index and cookie.
pub(crate) fn read_from(
    client: &Superblock,
    open: &OpenDirectory,
    cookie: u64,
    room: usize,
    told: &mut dyn FnMut(&DirEntry<'_>),
) -> Result<(), Errno> {
    let mut cookie = cookie;
    loop {
        let mut count = 0;
        ops::readdir(&client.op(&me()), open, cookie, false, &mut |entry| {
            if count == room {
                return DirEmit::Full;
            }
            count += 1;
            cookie = entry.cookie;
            told(entry);
            DirEmit::Taken
        })?;
        if count == 0 {
            return Ok(());
        }
    }
}

/// Lists all names; returns the number of names and of those returned twice.
pub(crate) fn list(client: &Superblock) -> (Result<(), Errno>, usize, usize) {
    let open = ops::opendir(&client.op(&me()), client.root()).unwrap();
    let mut seen = HashSet::new();
    let mut twice = 0;
    let result = read_from(client, &open, 0, 100, &mut |entry| {
        twice += usize::from(!seen.insert(entry.name.to_vec()));
    });
    (result, seen.len(), twice)
}
