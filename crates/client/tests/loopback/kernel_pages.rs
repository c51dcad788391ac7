//! Pages of files in a kernel's cache, and the file size in a kernel, when other clients change the
//! files.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use curt_client::{Caller, ClientOptions, FoundInode, InodeId, OpenFlags, PageCacheState, ops};
use curt_policy::CacheOptions;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::world::{BenchMount, World, root};

/// A file that another mount resizes.
struct Shared<'a> {
    world: &'a World,
    there: BenchMount,
    made: FoundInode,
    here: BenchMount,
}

fn thread(pid: u32) -> Caller {
    Caller { pid, ..root() }
}

impl<'a> Shared<'a> {
    /// A file of 14 bytes, which a kernel in front of `here` has read.
    fn new(world: &'a World) -> Self {
        let there = world.mount(CacheOptions::default());
        let made = there.put(&root(), there.client.root(), "f", 0o644, b"longer before.");
        let here = world.mount(CacheOptions::default());
        here.client.set_used_by_kernel();
        world.seconds(10);
        here.teach_time(world);
        let shared = Self { world, there, made, here };
        let id = shared.look_up(7).id;
        shared.here.cat(&thread(7), id).unwrap();
        shared
    }

    fn resize(&self, size: u64) {
        self.world.seconds(1);
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        ops::setattr(&self.there.client.op(&root()), self.made.id, &set).unwrap();
        self.world.seconds(1);
    }

    fn look_up(&self, pid: u32) -> FoundInode {
        let top = self.here.client.root();
        self.here.lookup(&thread(pid), top, "f").unwrap()
    }

    /// Opens as a kernel does for a thread that has looked the name up. Returns whether the cached
    /// pages are valid.
    fn open(&self, pid: u32, id: InodeId) -> Result<PageCacheState, Errno> {
        let opened = ops::open(&self.here.client.op(&thread(pid)), id, OpenFlags::reading())?;
        ops::drop_copies(&self.here.client.op(&thread(pid)), &opened.file, false, || {});
        ops::release(&self.here.client, &opened.file);
        Ok(opened.data)
    }

    /// The number of times that pages were invalidated before a kernel looked the file up.
    fn dropped(&self) -> usize {
        self.here.told.void.lock().len()
    }
}

// SEMANTICS: cto-2.
#[test]
fn a_kernel_that_takes_a_file_for_larger_than_it_is_looks_it_up_before_it_opens_it() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    shared.resize(6);
    assert_eq!(shared.open(7, id), Err(Errno::STALE));
    assert_eq!(
        *shared.here.told.void.lock(),
        [(id, 6)],
        "no reply to what was asked before may tell another size from now on"
    );
    assert_eq!(shared.look_up(7).attributes.size, 6);
    assert_eq!(shared.open(7, id), Ok(PageCacheState::Same), "they were dropped");
    assert_eq!(shared.here.cat(&thread(7), id).unwrap(), b"longer");
    // No lookup is sent where the path leads to an open file, so the open is retried at once.
    shared.resize(4);
    assert_eq!(shared.open(7, id), Err(Errno::STALE));
    shared.resize(3);
    assert_eq!(shared.open(7, id), Ok(PageCacheState::Changed), "it comes back once");
    shared.resize(0);
    let truncating = OpenFlags { truncate: true, ..OpenFlags::writing() };
    let opened = ops::open(&shared.here.client.op(&thread(7)), id, truncating).unwrap();
    ops::release(&shared.here.client, &opened.file);
    assert!(shared.open(7, id).is_ok(), "it has set the size itself");
}

// SEMANTICS: cto-3.
#[test]
fn a_file_found_shorter_by_an_open_fails_every_open_until_a_lookup() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    // Both kernel threads got the old size before.
    shared.look_up(8);
    shared.resize(6);
    assert_eq!(shared.open(7, id), Err(Errno::STALE));
    assert_eq!(
        shared.open(8, id),
        Err(Errno::STALE),
        "its kernel takes the file for as large as that of the other one"
    );
    assert_eq!(shared.dropped(), 1, "a second time could make the kernel ignore what the first looks up");
    shared.look_up(8);
    assert_eq!(shared.open(8, id), Ok(PageCacheState::Same));
    assert_eq!(shared.open(9, id), Ok(PageCacheState::Same), "the kernel knows");
    shared.look_up(7);
    assert_eq!(shared.open(7, id), Ok(PageCacheState::Same));
    assert_eq!(shared.dropped(), 1);
}

// SEMANTICS: cto-3.
#[test]
fn a_file_found_shorter_otherwise_is_looked_up_by_the_next_open() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    shared.resize(6);
    world.seconds(60);
    let stat = ops::getattr(&shared.here.client.op(&thread(8)), id).unwrap();
    assert_eq!(stat.attributes.size, 6);
    // The kernel may have ignored that reply because of another one.
    assert_eq!(shared.open(7, id), Err(Errno::STALE));
    shared.look_up(7);
    assert!(shared.open(7, id).is_ok());
    assert!(shared.open(8, id).is_ok());
}

// SEMANTICS: cto-3.
#[test]
fn a_look_up_proves_nothing_if_the_file_was_found_changed_since_its_open_failed() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    shared.resize(6);
    assert_eq!(shared.open(7, id), Err(Errno::STALE));
    shared.look_up(7);
    shared.resize(9);
    world.seconds(60);
    // The request that finds the change invalidates the pages, and the kernel may then ignore the
    // reply to the lookup.
    ops::getattr(&shared.here.client.op(&thread(8)), id).unwrap();
    assert!(shared.open(7, id).is_ok(), "a kernel comes back once");
    assert_eq!(shared.open(8, id), Err(Errno::STALE));
    shared.look_up(8);
    assert!(shared.open(8, id).is_ok());
    assert!(shared.open(9, id).is_ok());
}

// SEMANTICS: cto-3.
#[test]
fn a_file_truncated_by_this_mount_is_not_looked_up() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    let set = SetAttributes { size: Some(6), ..SetAttributes::default() };
    ops::setattr(&shared.here.client.op(&thread(7)), id, &set).unwrap();
    assert_eq!(shared.open(8, id), Ok(PageCacheState::Same));
    assert_eq!(shared.dropped(), 0);
}

// SEMANTICS: cto-3.
#[test]
fn opens_by_unidentified_threads_fail_once() {
    let world = World::new();
    let shared = Shared::new(&world);
    let id = shared.look_up(7).id;
    shared.resize(6);
    assert_eq!(shared.open(0, id), Err(Errno::STALE));
    assert_eq!(shared.open(0, id), Ok(PageCacheState::Same));
}

const UNIT: usize = 4096;

fn sloppy() -> ClientOptions {
    let mut behaviour = ClientOptions::default();
    behaviour.cache.sloppy_open = Duration::from_secs(3);
    behaviour.data.read_ahead = 0;
    behaviour
}

/// The bytes that an open within the window reads of a file with the contents `old`, of which the
/// first `cached` bytes are cached, after it has become `new`.
fn read_sloppily(old: &[u8], cached: usize, new: &[u8]) -> (Vec<u8>, BenchMount) {
    let world = World::new();
    let there = world.mount(CacheOptions::default());
    there.put(&root(), there.client.root(), "f", 0o644, old);
    world.seconds(4);
    let here = world.mount_with(sloppy());
    here.teach_time(&world);
    let id = here.lookup(&root(), here.client.root(), "f").unwrap().id;
    let opened = ops::open(&here.client.op(&root()), id, OpenFlags::reading()).unwrap();
    let read = ops::read(&here.client.op(&root()), &opened.file, 0, cached).unwrap();
    assert_eq!(read.to_vec(), old[..cached]);
    ops::close(&here.client.op(&root()), &opened.file).unwrap();
    world.pass(Duration::from_millis(500));
    there.put(&root(), there.client.root(), "f", 0o644, new);
    world.pass(Duration::from_millis(500));
    here.sent();
    (here.cat(&root(), id).unwrap(), here)
}

// SEMANTICS: cto-4.
#[test]
fn a_read_whose_reply_shows_that_the_file_grew_continues_to_its_new_end() {
    let new = b"the new text, which is longer".as_slice();
    let (found, here) = read_sloppily(b"the old one", 0, new);
    assert_eq!(found.escape_ascii().to_string(), new.escape_ascii().to_string());
    assert_eq!(here.sent(), "READ 2", "what had been read may be of another state than the rest");
    assert_eq!(
        *here.told.found_by_reads.lock(),
        [(0..1 << 20, new.len() as u64)],
        "who keeps copies drops them before the read is answered"
    );
}

// SEMANTICS: cto-4.
#[test]
fn bytes_of_two_states_of_a_file_are_not_mixed_in_a_read_whose_reply_shows_the_change() {
    let (old, new) = (vec![b'o'; 3 * UNIT], vec![b'n'; 3 * UNIT]);
    let (found, here) = read_sloppily(&old, UNIT, &new);
    assert!(found == new, "{} old bytes", found.iter().filter(|byte| **byte == b'o').count());
    assert_eq!(here.sent(), "READ 2");
    let (found, here) = read_sloppily(&old, old.len(), &new);
    assert!(found == old, "all of it is cached, and nobody asks within the window");
    assert_eq!(here.sent(), "");
}

/// Runs a closure before the second READ.
struct BeforeTheSecondRead {
    next: Arc<dyn Transport>,
    reads: AtomicUsize,
    change: Box<dyn Fn() + Send + Sync>,
}

impl Transport for BeforeTheSecondRead {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        const READ: u32 = 6;
        if request.procedure == READ && self.reads.fetch_add(1, Relaxed) == 1 {
            (self.change)();
        }
        self.next.call(request, interrupt)
    }
}

// SEMANTICS: cto-4.
#[test]
fn a_read_of_several_replies_starts_again_if_one_of_them_shows_a_change() {
    let (old, new) = (vec![b'o'; 3 * UNIT], vec![b'n'; 3 * UNIT]);
    let world = World::new();
    let there = Arc::new(world.mount(CacheOptions::default()));
    there.put(&root(), there.client.root(), "f", 0o644, &old);
    world.seconds(4);
    let changed = (Arc::clone(&there), new.clone());
    let transport = BeforeTheSecondRead {
        next: world.way(),
        reads: AtomicUsize::new(0),
        change: Box::new(move || {
            let (there, new) = &changed;
            there.put(&root(), there.client.root(), "f", 0o644, new);
        }),
    };
    let mut behaviour = sloppy();
    behaviour.data.read_size = u32::try_from(UNIT).unwrap();
    let here = world.mount_over(behaviour, Arc::new(transport));
    let id = here.lookup(&root(), here.client.root(), "f").unwrap().id;
    let found = here.cat(&root(), id).unwrap();
    let old_bytes = found.iter().filter(|byte| **byte == b'o').count();
    assert!(found == new, "{old_bytes} old bytes");
}

// SEMANTICS: cto-4.
#[test]
fn a_read_whose_reply_shows_that_the_file_shrank_ends_at_its_new_end() {
    let (old, new) = (vec![b'o'; 3 * UNIT], vec![b'n'; UNIT + 5]);
    let (found, here) = read_sloppily(&old, UNIT, &new);
    assert!(found == new, "{} bytes", found.len());
    assert!(
        here.told.found_by_reads.lock().is_empty(),
        "the short reply tells it, which a kernel that is notified first would ignore"
    );
}
