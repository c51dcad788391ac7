//! The maximum age of results: random histories of two clients, the other one acting before,
//! between and during this one's requests. Every result must have been true within the time that
//! the options permit. Directories that answer for their names (`dirfill=auto`) must keep the same
//! bounds as others.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use curt_client::{Caller, ClientOptions, InodeId, OpenFlags, RenameMode, ops};
use curt_observe::ClientCounter;
use curt_policy::{CacheOptions, FillMode, LookupCache, RacyGuard, TimeoutRange};
use curt_proto::nfs3;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::SetAttributes;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    two_clients::Dice,
    world::{BenchMount, Scripted, World, root},
};

/// Names that are created and removed in each directory.
const NAMES: u64 = 6;

/// Names in each directory that are not changed: the second directory takes several replies.
const FILLERS: [u32; 2] = [10, 300];

/// How long names are valid that were learned while the directory's times were recent: two ticks of
/// the server's clock.
const GUARD: Duration = Duration::from_millis(21);

/// The attribute lifetime.
const FILES: Duration = Duration::from_secs(1);
const DIRECTORIES: Duration = Duration::from_secs(2);

/// The states of something: each began within this interval.
type Past<T> = Vec<(T, (Duration, Duration))>;

/// All states so far.
#[derive(Default)]
struct History {
    /// By directory and name: the fileid; `None`: the name is missing.
    names: BTreeMap<(usize, u64), Past<Option<u64>>>,
    /// By file: its size.
    sizes: BTreeMap<u64, Past<u64>>,
    /// For a name: the states before this one were followed by a change of this client.
    floors: BTreeMap<(usize, u64), usize>,
}

/// Whether `told` was true at some moment from `from` to `to`, in a state from number `floor` on.
fn was<T: PartialEq>(past: &Past<T>, floor: usize, told: &T, (from, to): (Duration, Duration)) -> bool {
    (floor..past.len()).any(|index| {
        let (value, (began, _)) = &past[index];
        let ended = past.get(index + 1).map(|(_, (_, ended))| *ended);
        value == told && *began <= to && ended.is_none_or(|ended| ended >= from)
    })
}

fn name(number: u64) -> String {
    format!("name{number}")
}

/// The other client.
struct Stranger {
    mounted: BenchMount,
    directories: Vec<InodeId>,
    clock: Arc<Scripted>,
    dice: Dice,
    history: History,
    serial: u64,
}

impl Stranger {
    fn passed(&self) -> Duration {
        self.clock.passed()
    }

    fn size(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn now(&self, key: (usize, u64)) -> Option<u64> {
        self.history.names.get(&key).and_then(|past| past.last()).and_then(|(file, _)| *file)
    }

    fn note(&mut self, key: (usize, u64), file: Option<u64>, since: Duration) {
        let interval = (since, self.passed());
        self.history.names.entry(key).or_default().push((file, interval));
    }

    fn note_size(&mut self, file: u64, size: u64, since: Duration) {
        let interval = (since, self.passed());
        self.history.sizes.entry(file).or_default().push((size, interval));
    }

    /// Changes one of the names.
    fn act(&mut self) {
        let at = usize::from(self.dice.below(2) == 1);
        let (first, second) = (self.dice.below(NAMES), self.dice.below(NAMES));
        let (key, other) = ((at, first), (at, second));
        let (directory, since) = (self.directories[at], self.passed());
        match (self.now(key), self.dice.below(4)) {
            (None, _) => {
                let made = ops::make_file(
                    &self.mounted.client.op(&root()),
                    directory,
                    name(first).as_bytes(),
                    0o666,
                )
                .unwrap();
                self.note_size(made.attributes.fileid, 0, since);
                self.note(key, Some(made.attributes.fileid), since);
            }
            (Some(_), 0) => {
                ops::unlink(&self.mounted.client.op(&root()), directory, name(first).as_bytes()).unwrap();
                self.note(key, None, since);
            }
            (Some(file), 1) if first != second => {
                let (from, to) = (name(first), name(second));
                ops::rename(
                    &self.mounted.client.op(&root()),
                    directory,
                    from.as_bytes(),
                    directory,
                    to.as_bytes(),
                    RenameMode::Replace,
                )
                .unwrap();
                self.note(key, None, since);
                self.note(other, Some(file), since);
            }
            (Some(file), _) => {
                let size = self.size();
                let found = self.mounted.lookup(&root(), directory, &name(first)).unwrap();
                write(&self.mounted, found.id, size);
                self.note_size(file, size, since);
            }
        }
    }
}

/// Extends a file to `size` bytes by writing its last byte.
fn write(mounted: &BenchMount, id: InodeId, size: u64) {
    let flags = OpenFlags::writing();
    let opened = ops::open(&mounted.client.op(&root()), id, flags).unwrap();
    assert_eq!(ops::write(&mounted.client.op(&root()), &opened.file, size - 1, b"x"), Ok(1));
    ops::close(&mounted.client.op(&root()), &opened.file).unwrap();
}

/// The transport to the server, on which the other client acts.
struct InterferingTransport {
    way: Arc<dyn Transport>,
    stranger: Arc<OnceLock<Mutex<Stranger>>>,
}

impl InterferingTransport {
    fn interfere(&self) {
        // The lock is held while its holder acts itself, or excludes the other client.
        if let Some(mut stranger) = self.stranger.get().and_then(Mutex::try_lock)
            && stranger.dice.below(6) == 0
        {
            stranger.act();
        }
    }
}

impl Transport for InterferingTransport {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        self.interfere();
        let reply = self.way.call(request, interrupt);
        if request.program == nfs3::PROGRAM {
            self.interfere();
        }
        reply
    }
}

/// The result of a run.
#[derive(Debug, Default)]
struct Outcome {
    wrong: Vec<String>,
    fills: u64,
    missing: u64,
    refreshed: u64,
}

/// One client, the other one, and the parameters.
struct Run {
    world: World,
    here: BenchMount,
    directories: Vec<InodeId>,
    stranger: Arc<OnceLock<Mutex<Stranger>>>,
    dice: Dice,
    /// The factor on the permitted ages in percent: 100 except for a test of the test.
    allowance: u32,
    outcome: Outcome,
}

/// Creates the directories and the names that fill them.
fn make_directories(there: &BenchMount) -> Vec<InodeId> {
    let make = |(number, fillers): (usize, &u32)| {
        let (path, top) = (format!("d{number}"), there.client.root());
        let made = ops::mkdir(&there.client.op(&root()), top, path.as_bytes(), 0o777).unwrap();
        for filler in 0..*fillers {
            let path = format!("filler{filler}");
            let file = ops::make_file(&there.client.op(&root()), made.id, path.as_bytes(), 0o666);
            file.unwrap();
        }
        made.id
    };
    FILLERS.iter().enumerate().map(make).collect()
}

impl Run {
    fn new(cache: CacheOptions, time_step: Duration, seed: u64, allowance: u32) -> Self {
        let world = World::with_time_step(time_step);
        let there = world.mount(CacheOptions {
            attribute_cache: false,
            names: LookupCache::None,
            ..CacheOptions::default()
        });
        let directories = make_directories(&there);
        world.seconds(100);
        let stranger = Arc::new(OnceLock::new());
        let transport = InterferingTransport { way: world.way(), stranger: Arc::clone(&stranger) };
        let behaviour = ClientOptions { cache, ..ClientOptions::default() };
        let here = world.mount_over(behaviour, Arc::new(transport));
        let mut other = Stranger {
            mounted: there,
            directories,
            clock: Arc::clone(&world.clock),
            dice: Dice(seed ^ 0x5555),
            history: History::default(),
            serial: 0,
        };
        for key in (0..FILLERS.len()).flat_map(|at| (0..NAMES).map(move |name| (at, name))) {
            other.note(key, None, Duration::ZERO);
        }
        assert!(stranger.set(Mutex::new(other)).is_ok());
        let find = |number| here.lookup(&root(), here.client.root(), &format!("d{number}")).unwrap().id;
        let directories = (0..FILLERS.len()).map(find).collect();
        Self { world, here, directories, stranger, dice: Dice(seed), allowance, outcome: Outcome::default() }
    }

    fn passed(&self) -> Duration {
        self.world.clock.passed()
    }

    fn stranger(&self) -> &Mutex<Stranger> {
        self.stranger.get().unwrap()
    }

    /// The interval in which a result requested at `began` must have been true.
    fn window(&self, began: Duration, age: Duration) -> (Duration, Duration) {
        (began.saturating_sub(age * self.allowance / 100), self.passed())
    }

    fn step(&mut self) {
        let key = (usize::from(self.dice.below(2) == 1), self.dice.below(NAMES));
        match self.dice.below(16) {
            0 => self.stranger().lock().act(),
            1 => self.change(key),
            2 => self.list(key.0),
            3..6 => self.open(key),
            6..10 => self.stat(key),
            // A name that never exists, and one that always does.
            10 => assert!(self.here.lookup(&root(), self.directories[key.0], "never").is_err()),
            11 => assert!(self.here.lookup(&root(), self.directories[key.0], "filler3").is_ok()),
            _ => drop(self.look(key)),
        }
        match self.dice.below(8) {
            0 => self.world.pass(Duration::from_millis(self.dice.below(2500))),
            1..4 => self.world.pass(Duration::from_millis(self.dice.below(25))),
            _ => {}
        }
    }

    /// A change of this client, with no action of the other client meanwhile.
    fn change(&self, key: (usize, u64)) {
        let (directory, path) = (self.directories[key.0], name(key.1));
        let mut stranger = self.stranger().lock();
        let since = stranger.passed();
        let made = match stranger.now(key) {
            Some(_) => {
                ops::unlink(&self.here.client.op(&root()), directory, path.as_bytes()).unwrap();
                None
            }
            None => {
                let made = ops::make_file(&self.here.client.op(&root()), directory, path.as_bytes(), 0o666);
                let file = made.unwrap().attributes.fileid;
                stranger.note_size(file, 0, since);
                Some(file)
            }
        };
        stranger.note(key, made, since);
        let latest = stranger.history.names[&key].len() - 1;
        stranger.history.floors.insert(key, latest);
    }

    fn look(&mut self, key: (usize, u64)) -> Option<(InodeId, u64)> {
        let began = self.passed();
        let found = match self.here.lookup(&root(), self.directories[key.0], &name(key.1)) {
            Ok(found) => Some((found.id, found.attributes.fileid)),
            Err(Errno::NOENT) => None,
            Err(error) => panic!("{error}"),
        };
        let told = found.map(|(_, file)| file);
        let window = self.window(began, DIRECTORIES);
        let stranger = self.stranger().lock();
        let floor = stranger.history.floors.get(&key).copied().unwrap_or(0);
        let past = &stranger.history.names[&key];
        let wrong = (!was(past, floor, &told, window))
            .then(|| format!("{key:?} leads to {told:?} within {window:?}, floor {floor}: {past:?}"));
        drop(stranger);
        self.outcome.wrong.extend(wrong);
        found
    }

    fn check_size(&mut self, file: u64, size: u64, window: (Duration, Duration)) {
        let stranger = self.stranger().lock();
        let past = &stranger.history.sizes[&file];
        let wrong = (!was(past, 0, &size, window))
            .then(|| format!("file {file} has {size} bytes within {window:?}: {past:?}"));
        drop(stranger);
        self.outcome.wrong.extend(wrong);
    }

    fn stat(&mut self, key: (usize, u64)) {
        let Some((id, file)) = self.look(key) else { return };
        let began = self.passed();
        match ops::getattr(&self.here.client.op(&root()), id) {
            Ok(stat) => self.check_size(file, stat.attributes.size, self.window(began, FILES)),
            Err(Errno::STALE | Errno::NOENT) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Close-to-open: no state from before the open.
    fn open(&mut self, key: (usize, u64)) {
        let Some((id, file)) = self.look(key) else { return };
        let began = self.passed();
        match self.here.cat(&root(), id) {
            Ok(bytes) => self.check_size(file, bytes.len() as u64, self.window(began, Duration::ZERO)),
            Err(Errno::STALE | Errno::NOENT) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn list(&mut self, at: usize) {
        let began = self.passed();
        let client = &self.here.client;
        let open = ops::opendir(&client.op(&root()), self.directories[at]).unwrap();
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let before = cookie;
            let told = ops::readdir(&client.op(&root()), &open, cookie, true, &mut |entry| {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                curt_client::DirEmit::Taken
            });
            told.unwrap();
            if cookie == before {
                break;
            }
        }
        let fillers = names.iter().filter(|name| name.starts_with("filler")).count();
        assert_eq!(fillers, FILLERS[at] as usize);
        // It was opened just now, with a request.
        let window = self.window(began, GUARD);
        let stranger = self.stranger().lock();
        let mut wrong = Vec::new();
        for number in 0..NAMES {
            let is_listed = names.contains(&name(number));
            let past = &stranger.history.names[&(at, number)];
            let past: Past<bool> = past.iter().map(|(file, since)| (file.is_some(), *since)).collect();
            if !was(&past, 0, &is_listed, window) {
                wrong.push(format!("{} is listed: {is_listed} within {window:?}: {past:?}", name(number)));
            }
        }
        drop(stranger);
        self.outcome.wrong.extend(wrong);
    }

    fn finish(mut self) -> Outcome {
        self.outcome.fills = self.here.counter(ClientCounter::DirFill);
        self.outcome.missing = self.here.counter(ClientCounter::DirFillMissing);
        self.outcome.refreshed = self.here.counter(ClientCounter::DirFillRevalidation);
        self.outcome
    }
}

fn options(fill: FillMode, racy_guard: RacyGuard) -> CacheOptions {
    let always = |length| TimeoutRange { min: length, max: length };
    CacheOptions {
        files: always(FILES),
        directories: always(DIRECTORIES),
        fill,
        racy_guard,
        ..CacheOptions::default()
    }
}

const STEPS: u32 = 1000;

fn run(cache: CacheOptions, time_step: Duration, seed: u64, allowance: u32) -> Outcome {
    let mut run = Run::new(cache, time_step, seed, allowance);
    for _ in 0..STEPS {
        run.step();
    }
    run.finish()
}

// SEMANTICS: name-3.
#[test]
fn nothing_is_older_than_the_options_allow_with_directories_that_answer_and_without() {
    for (racy_guard, time_step) in
        [(RacyGuard::Auto, Duration::from_nanos(1)), (RacyGuard::On, Duration::from_millis(10))]
    {
        let (mut fills, mut missing, mut refreshed) = (0, 0, 0);
        for seed in 0..3 {
            for fill in [FillMode::Off, FillMode::Auto] {
                let outcome = run(options(fill, racy_guard), time_step, seed, 100);
                assert_eq!(outcome.wrong, [""; 0], "{fill:?}, {racy_guard:?}, seed {seed}");
                assert!(fill == FillMode::Auto || outcome.fills + outcome.missing + outcome.refreshed == 0);
                fills += outcome.fills;
                missing += outcome.missing;
                refreshed += outcome.refreshed;
            }
        }
        println!("{racy_guard:?}: {fills} fills, {missing} missing names, {refreshed} revalidations");
        assert!(
            fills > 50 && missing > 50 && refreshed > 5,
            "{fills} {missing} {refreshed}: nothing was shown"
        );
    }
}

/// With half of the permitted ages the same check finds stale results: it can fail.
#[test]
fn answers_are_as_old_as_the_options_allow() {
    for fill in [FillMode::Off, FillMode::Auto] {
        let found = (0..6).any(|seed| {
            let outcome = run(options(fill, RacyGuard::Auto), Duration::from_nanos(1), seed, 50);
            !outcome.wrong.is_empty()
        });
        assert!(found, "{fill:?}");
    }
}

// SEMANTICS: name-10.
#[test]
fn a_kernel_that_retries_an_open_is_not_given_a_cached_file_that_was_replaced_as_well() {
    let world = World::new();
    let (one, other) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    one.client.set_used_by_kernel();
    let (top, other_top) = (one.client.root(), other.client.root());
    let replace = |text: &[u8]| {
        world.seconds(1);
        ops::unlink(&other.client.op(&root()), other_top, b"f").unwrap();
        other.put(&root(), other_top, "f", 0o644, text)
    };
    other.put(&root(), other_top, "f", 0o644, b"first");
    world.seconds(10);
    let me = Caller { pid: 7, ..root() };
    // The kernel has cached this file.
    let first = one.lookup(&me, top, "f").unwrap();
    replace(b"second");
    // Another thread's look-up has found the second file.
    world.seconds(100);
    let second = one.lookup(&root(), top, "f").unwrap();
    assert_ne!(second.id, first.id);
    replace(b"third");
    assert_eq!(one.cat(&me, first.id), Err(Errno::STALE));
    let third = one.lookup(&me, top, "f").unwrap();
    assert_eq!(one.cat(&me, third.id), Ok(b"third".to_vec()));
    // The same for operations on a path other than open(2).
    replace(b"fourth");
    let set = SetAttributes { size: Some(5), ..SetAttributes::default() };
    let operations: [&dyn Fn(InodeId) -> Result<(), Errno>; 3] = [
        &|id| ops::setattr(&one.client.op(&me), id, &set).map(drop),
        &|id| ops::getattr(&one.client.op(&me), id).map(drop),
        &|id| ops::access(&one.client.op(&me), id, 4),
    ];
    for operation in operations {
        world.seconds(100);
        let cached = one.lookup(&root(), top, "f").unwrap();
        replace(b"a later one");
        assert_eq!(operation(first.id), Err(Errno::STALE));
        let found = one.lookup(&me, top, "f").unwrap();
        assert_ne!(found.id, cached.id, "the cached one is gone");
        assert_eq!(operation(found.id), Ok(()));
    }
}
