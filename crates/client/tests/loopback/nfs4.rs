//! NFSv4.1: the requests of each operation, and what they come to.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{DirEmit, OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::SetAttributes;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

fn mounted(world: &World) -> BenchMount {
    let mounted = world.mount_v4(CacheOptions::default());
    mounted.sent();
    mounted
}

fn names(mounted: &BenchMount) -> Vec<String> {
    let op = mounted.client.op(&root());
    let directory = ops::opendir(&op, mounted.client.root()).unwrap();
    let mut names = Vec::new();
    let mut emit = |entry: &curt_client::DirEntry<'_>| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        DirEmit::Taken
    };
    ops::readdir(&op, &directory, 0, false, &mut emit).unwrap();
    names.sort();
    names
}

#[test]
fn a_file_is_created_written_closed_and_read_in_one_compound_each() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let made = mounted.put(&root(), top, "file", 0o644, b"some bytes");
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1 NFSv4.WRITE 1", "CLOSE rides");
    assert_eq!(mounted.cat(&root(), made.id), Ok(b"some bytes".to_vec()));
    mounted.sent();
    assert_eq!(names(&mounted), [".", "..", "file"]);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    other.sent();
    assert_eq!(other.cat(&root(), found.id), Ok(b"some bytes".to_vec()));
    assert_eq!(other.sent(), "NFSv4.OPEN 1 NFSv4.READ 1", "OPEN brings attributes and rights");
}

#[test]
fn names_are_made_moved_linked_and_removed() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let directory = ops::mkdir(&op(), top, b"d", 0o755).unwrap().id;
    ops::symlink(&op(), directory, b"link", b"target").unwrap();
    let link = mounted.lookup(&root(), directory, "link").unwrap();
    assert_eq!(&*ops::readlink(&op(), link.id).unwrap(), b"target");
    let file = mounted.put(&root(), directory, "a", 0o600, b"x");
    ops::rename(&op(), directory, b"a", top, b"b", curt_client::RenameMode::Replace).unwrap();
    assert_eq!(mounted.lookup(&root(), directory, "a").unwrap_err(), Errno::NOENT);
    ops::link(&op(), file.id, top, b"c").unwrap();
    assert_eq!(ops::getattr(&op(), file.id).unwrap().attributes.nlink, 2);
    assert_eq!(ops::rmdir(&op(), top, b"b"), Err(Errno::NOTDIR));
    assert_eq!(ops::unlink(&op(), top, b"d").unwrap_err(), Errno::ISDIR);
    assert_eq!(ops::rmdir(&op(), top, b"d"), Err(Errno::NOTEMPTY));
    ops::unlink(&op(), directory, b"link").unwrap();
    ops::rmdir(&op(), top, b"d").unwrap();
    assert_eq!(names(&mounted), [".", "..", "b", "c"]);
    let set = SetAttributes { uid: Some(7), gid: Some(8), ..SetAttributes::with_mode(0o640) };
    let stat = ops::setattr(&op(), file.id, &set).unwrap().attributes;
    assert_eq!((stat.uid, stat.gid, stat.mode), (7, 8, 0o640));
    assert_eq!(mounted.cat(&user(9), file.id).unwrap_err(), Errno::ACCESS);
    assert!(ops::statfs(&op(), top).unwrap().blocks > 0);
}

#[test]
fn an_exclusive_creation_takes_one_request_and_finds_an_existing_file() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let flags = OpenFlags { exclusive: true, ..OpenFlags::writing() };
    let op = || mounted.client.op(&root());
    let (_, opened) = ops::create(&op(), top, b"new", 0o640, flags).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1");
    assert_eq!(ops::getattr(&op(), opened.file.id()).unwrap().attributes.mode, 0o640);
    assert_eq!(ops::create(&op(), top, b"new", 0o640, flags).unwrap_err(), Errno::EXIST);
}

/// What a server, or the way to it, does to a reply.
type Spoil = Box<dyn Fn(Result<Vec<u8>, CallError>) -> Result<Vec<u8>, CallError> + Send + Sync>;

/// What is done to the results of a reply.
type SpoilResults = Box<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// A transport that can be replaced, and whose replies can be spoiled.
pub(crate) struct Way {
    to: Mutex<Arc<dyn Transport>>,
    spoil: Mutex<Option<Spoil>>,
}

impl Way {
    pub(crate) fn new(world: &World) -> Arc<Self> {
        Arc::new(Self { to: Mutex::new(world.way()), spoil: Mutex::new(None) })
    }

    /// Calls another server from now on.
    pub(crate) fn replace(&self, to: Arc<dyn Transport>) {
        *self.to.lock() = to;
    }

    fn spoil(
        &self,
        spoil: impl Fn(Result<Vec<u8>, CallError>) -> Result<Vec<u8>, CallError> + Send + Sync + 'static,
    ) {
        *self.spoil.lock() = Some(Box::new(spoil));
    }

    fn repair(&self) {
        *self.spoil.lock() = None;
    }
}

impl Transport for Way {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        let to = Arc::clone(&self.to.lock());
        let reply = to.call(request, interrupt).map(|reply| reply.results().to_vec());
        let reply = match &*self.spoil.lock() {
            Some(spoil) => spoil(reply),
            None => reply,
        };
        reply.map(CallReply::from_results)
    }
}

const DELAY: u32 = 10_008;
const BADSESSION: u32 = 10_052;

/// The words of a reply: status, length of the tag (0), number of results, then the first result.
fn set_word(reply: &mut [u8], word: usize, value: u32) {
    reply[4 * word..4 * word + 4].copy_from_slice(&value.to_be_bytes());
}

/// A reply in which SEQUENCE fails.
fn refused(status: u32) -> Vec<u8> {
    [status, 0, 1, 53, status].iter().flat_map(|word| word.to_be_bytes()).collect()
}

// SEMANTICS: sessions-2.
#[test]
fn after_a_restart_of_the_server_files_stay_open() {
    let world = World::new();
    let way = Way::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<Way>::clone(&way));
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let flags = OpenFlags { read: true, ..OpenFlags::writing() };
    let (_, opened) = ops::create(&op(), top, b"file", 0o644, flags).unwrap();
    ops::write(&op(), &opened.file, 0, b"before").unwrap();
    ops::fsync(&op(), &opened.file, false).unwrap();
    mounted.sent();
    way.replace(world.way_after_restart());
    ops::write(&op(), &opened.file, 6, b" after").unwrap();
    ops::fsync(&op(), &opened.file, false).unwrap();
    // WRITE finds the session lost; the reclaim is refused, because this server knows no client.
    let sent = mounted.sent();
    for part in ["NFSv4.EXCHANGE_ID 1", "NFSv4.RECLAIM_COMPLETE 1", "NFSv4.OPEN 2"] {
        assert!(sent.contains(part), "{sent}");
    }
    ops::close(&op(), &opened.file).unwrap();
    assert_eq!(mounted.cat(&root(), opened.file.id()), Ok(b"before after".to_vec()));
}

// SEMANTICS: sessions-2.
#[test]
fn a_file_that_cannot_be_opened_after_a_restart_fails_for_its_users_alone() {
    let world = World::new();
    let way = Way::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<Way>::clone(&way));
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    let by_user = || mounted.client.op(&user(5));
    let (found, gone) = ops::create(&by_user(), top, b"gone", 0o644, OpenFlags::writing()).unwrap();
    let (_, kept) = ops::create(&op(), top, b"kept", 0o644, OpenFlags::writing()).unwrap();
    // The user may not open it again.
    let set = SetAttributes { uid: Some(0), ..SetAttributes::with_mode(0) };
    ops::setattr(&op(), found.id, &set).unwrap();
    way.replace(world.way_after_restart());
    ops::write(&by_user(), &gone.file, 0, b"lost").unwrap();
    assert_eq!(ops::fsync(&by_user(), &gone.file, false), Err(Errno::IO));
    ops::write(&op(), &kept.file, 0, b"kept").unwrap();
    assert_eq!(ops::fsync(&op(), &kept.file, false), Ok(()));
}

#[test]
fn a_server_that_asks_for_time_gets_it() {
    let world = World::new();
    let way = Way::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<Way>::clone(&way));
    mounted.sent();
    let left = AtomicU32::new(20);
    way.spoil(move |reply| {
        let is_delayed = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        if is_delayed { Ok(refused(DELAY)) } else { reply }
    });
    let before = world.clock.passed();
    // The slot is behind: the server has executed what it seemed to delay.
    let _ = mounted.lookup(&root(), mounted.client.root(), "name");
    assert!(world.clock.passed() - before > std::time::Duration::from_secs(60), "DELAY is awaited");
    way.repair();
    assert_eq!(mounted.lookup(&root(), mounted.client.root(), "name").unwrap_err(), Errno::NOENT);
}

// SEMANTICS: sessions-6.
#[test]
fn a_server_that_breaks_the_protocol_causes_errors_and_no_loop() {
    let world = World::new();
    let way = Way::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<Way>::clone(&way));
    let top = mounted.client.root();
    let file = mounted.put(&root(), top, "file", 0o644, b"x");
    let attempt = |spoil: SpoilResults| {
        way.spoil(move |reply| {
            reply.map(|mut reply| {
                spoil(&mut reply);
                reply
            })
        });
        world.seconds(100);
        mounted.sent();
        let result = ops::getattr(&mounted.client.op(&root()), file.id);
        let sent = mounted.client.counters();
        way.repair();
        world.seconds(100);
        assert!(ops::getattr(&mounted.client.op(&root()), file.id).is_ok(), "it recovers");
        drop(sent);
        result.unwrap_err()
    };
    // Fewer results than operations, and success.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 2, 2))), Errno::IO);
    // A reply for another slot: word 3 and 4 are the result's header, the session has four words.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 10, 77))), Errno::IO);
    // Another sequence number.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 9, 1_000_000))), Errno::IO);
    // Another operation.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 3, 9))), Errno::IO);
    // Nothing at all.
    assert_eq!(attempt(Box::new(|reply| reply.clear())), Errno::IO);
    // An unknown status, and a session that is never known.
    assert_eq!(attempt(Box::new(|reply| set_word(reply, 0, 4_000_000))), Errno::IO);
    assert_eq!(attempt(Box::new(|reply| *reply = refused(BADSESSION))), Errno::IO);
}

#[test]
fn an_interrupted_request_leaves_its_slot_in_doubt_until_a_sequence_settles_it() {
    let world = World::new();
    let way = Way::new(&world);
    let mounted = world.mount_v4_over(CacheOptions::default(), "one", Arc::<Way>::clone(&way));
    let top = mounted.client.root();
    let op = || mounted.client.op(&root());
    mounted.sent();
    // The server has executed it, and nobody learns that.
    way.spoil(|reply| reply.and(Err(CallError::Interrupted)));
    assert_eq!(ops::mkdir(&op(), top, b"d", 0o755).unwrap_err(), Errno::INTR);
    way.repair();
    mounted.sent();
    assert!(mounted.lookup(&root(), top, "d").is_ok());
    assert!(mounted.sent().contains("NFSv4.SEQUENCE 1"));
    ops::mkdir(&op(), top, b"e", 0o755).unwrap();
    assert_eq!(mounted.sent(), "NFSv4.CREATE 1", "and never again");
}

// SEMANTICS: sessions-1.
#[test]
fn opens_are_shared_upgraded_and_kept_for_a_second() {
    let world = World::new();
    let mounted = mounted(&world);
    let top = mounted.client.root();
    let file = mounted.put(&root(), top, "file", 0o666, b"x");
    let open = |flags| ops::open(&mounted.client.op(&root()), file.id, flags).unwrap().file;
    let close = |file: &curt_client::OpenFile| ops::close(&mounted.client.op(&root()), file).unwrap();
    mounted.sent();
    let first = open(OpenFlags::reading());
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1");
    let second = open(OpenFlags::reading());
    assert_eq!(mounted.sent(), "NFSv4.GETATTR 1", "close-to-open, by the same open");
    let writer = open(OpenFlags::writing());
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1", "an upgrade");
    close(&writer);
    close(&second);
    close(&first);
    assert_eq!(mounted.sent(), "");
    let other = ops::open(&mounted.client.op(&user(5)), file.id, OpenFlags::reading()).unwrap().file;
    assert_eq!(mounted.sent(), "NFSv4.OPEN 1", "another owner");
    close(&other);
}

// SEMANTICS: sessions-5.
#[test]
fn what_another_client_has_closed_is_read_after_the_next_open() {
    let world = World::new();
    let one = mounted(&world);
    let other = world.mount_v4_over(CacheOptions::default(), "two", world.way());
    let file = one.put(&root(), one.client.root(), "file", 0o666, b"first");
    let found = other.lookup(&root(), other.client.root(), "file").unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"first".to_vec()));
    let opened = ops::open(&one.client.op(&root()), file.id, OpenFlags::writing()).unwrap().file;
    ops::write(&one.client.op(&root()), &opened, 0, b"other").unwrap();
    ops::close(&one.client.op(&root()), &opened).unwrap();
    assert_eq!(other.cat(&root(), found.id), Ok(b"other".to_vec()));
}
