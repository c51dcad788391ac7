//! Names that a kernel keeps for a moment: which, for how long, what is asked in spite of them, and
//! what waits for them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use curt_client::{Caller, ClientOptions, DirEmit, InodeId, LookupResult, OpenFlags, RenameMode, ops};
use curt_policy::{
    AccessMode, CacheOptions, FillMode, MountUsers,
    kernel_cache::{EXPIRY_DELAY, WITHHELD_AFTER_LISTING},
};
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::{Device, FileKind, SetAttributes};
use rustix::io::Errno;

use crate::world::{BenchMount, World, root, user};

const SECOND: Duration = Duration::from_secs(1);

/// `open` and `closed`, which everybody may search and only user 1000, each with a file, made an
/// hour ago; and a mount of them that serves a kernel.
fn kept(world: &World, cache: CacheOptions) -> BenchMount {
    kept_over(world, cache, world.way())
}

fn kept_over(world: &World, cache: CacheOptions, transport: Arc<dyn Transport>) -> BenchMount {
    let maker = world.mount(CacheOptions::default());
    let me = user(1000);
    for (name, mode) in [(b"open".as_slice(), 0o755), (b"closed", 0o700)] {
        let directory = ops::mkdir(&maker.client.op(&me), maker.client.root(), name, mode).unwrap();
        maker.put(&me, directory.id, "file", 0o644, b"x");
    }
    world.seconds(3600);
    let cache = CacheOptions { fill: FillMode::Off, ..cache };
    let mounted = world.mount_over(ClientOptions { cache, ..ClientOptions::default() }, transport);
    mounted.teach_time(world);
    mounted.client.set_used_by_kernel();
    mounted
}

fn directory(mounted: &BenchMount, name: &str) -> InodeId {
    let found = mounted.lookup(&user(1000), mounted.client.root(), name).unwrap();
    mounted.sent();
    found.id
}

/// For how long a kernel that looks `name` up may keep it.
fn lifetime(mounted: &BenchMount, directory: InodeId, name: &str) -> Duration {
    match ops::lookup(&mounted.client.op(&user(1000)), directory, name.as_bytes()).unwrap() {
        LookupResult::Positive(found) => found.entry_valid,
        LookupResult::Negative { entry_valid } => entry_valid,
    }
}

fn rename(
    mounted: &BenchMount,
    caller: &Caller,
    from: (InodeId, &[u8]),
    to: (InodeId, &[u8]),
) -> Result<(), Errno> {
    ops::rename(&mounted.client.op(caller), from.0, from.1, to.0, to.1, RenameMode::Replace)
}

fn mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

// SEMANTICS: name-16.
// SEMANTICS: perm-10.
#[test]
fn a_kernel_keeps_names_of_directories_that_everybody_may_search_for_as_long_as_the_option_says() {
    let world = World::new();
    for (users, in_closed) in
        [(MountUsers::Many, false), (MountUsers::One(1000), true), (MountUsers::One(1001), false)]
    {
        for access in [AccessMode::Server, AccessMode::ModeBits] {
            let world = World::new();
            let mounted = kept(&world, CacheOptions { users, access, ..CacheOptions::default() });
            let (open, closed) = (directory(&mounted, "open"), directory(&mounted, "closed"));
            for name in ["file", "missing"] {
                for _ in 0..2 {
                    assert_eq!(lifetime(&mounted, open, name), SECOND, "{name}");
                    let expected = if in_closed { SECOND } else { Duration::ZERO };
                    assert_eq!(lifetime(&mounted, closed, name), expected, "{name} {users:?}");
                    world.seconds(1);
                }
            }
        }
    }
    let mounted = kept(&world, CacheOptions { kernel_names: Duration::ZERO, ..CacheOptions::default() });
    let open = directory(&mounted, "open");
    assert_eq!(lifetime(&mounted, open, "file"), Duration::ZERO);
    assert_eq!(lifetime(&mounted, open, "missing"), Duration::ZERO);
}

#[test]
fn no_lifetime_outlasts_what_is_believed_and_programs_get_none() {
    let world = World::new();
    let half = Duration::from_millis(500);
    let cache = CacheOptions { missing_name_lifetime: SECOND, ..CacheOptions::default() };
    let mounted = kept(&world, cache);
    let open = directory(&mounted, "open");
    let _ = lifetime(&mounted, open, "missing");
    world.pass(half);
    let left = lifetime(&mounted, open, "missing");
    assert!(!left.is_zero() && left <= half, "{left:?}");
    mounted.client.suspend_kernel_names(Duration::MAX);
    assert_eq!(lifetime(&mounted, open, "file"), Duration::ZERO, "while a command is explained");
    assert!(mounted.client.kernel_names_expire_in() <= SECOND);
    let program = world.mount(CacheOptions::default());
    program.teach_time(&world);
    let open = directory(&program, "open");
    assert_eq!(lifetime(&program, open, "file"), Duration::ZERO);
}

// SEMANTICS: posix-9.
#[test]
fn what_a_kernel_opens_without_asking_it_looks_up_each_time() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let top = mounted.client.root();
    for kind in [FileKind::Fifo, FileKind::Socket] {
        let name = format!("{kind:?}");
        let op = &mounted.client.op(&root());
        let made = ops::mknod(op, top, name.as_bytes(), kind, Device::default(), 0o600).unwrap();
        assert_eq!(made.entry_valid, Duration::ZERO);
        assert_eq!(lifetime(&mounted, top, &name), Duration::ZERO);
    }
    let link = ops::symlink(&mounted.client.op(&root()), top, b"link", b"open").unwrap();
    assert_eq!(link.entry_valid, SECOND);
}

// SEMANTICS: name-6.
#[test]
fn a_name_that_is_asked_for_although_the_kernel_keeps_it_is_looked_up_at_the_server() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let open = directory(&mounted, "open");
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    mounted.sent();
    let other = world.mount(CacheOptions::default());
    let there = directory(&other, "open");
    ops::unlink(&other.client.op(&user(1000)), there, b"file").unwrap();
    world.pass(SECOND / 50);
    let found = mounted.lookup(&user(1000), open, "file");
    assert_eq!((found.map(drop), mounted.sent().as_str()), (Err(Errno::NOENT), "LOOKUP 1"));
    ops::mkdir(&mounted.client.op(&user(1000)), open, b"file", 0o755).unwrap();
    // The directory's attributes change no more, and are believed longer each time.
    for _ in 0..3 {
        world.seconds(2);
        let _ = lifetime(&mounted, open, "file");
    }
    mounted.sent();
    world.seconds(1);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    assert_eq!(mounted.sent(), "", "afterwards it is answered from memory");
}

// SEMANTICS: name-6.
#[test]
fn whoever_asks_for_a_name_at_the_same_time_as_others_is_answered_from_memory() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let open = directory(&mounted, "open");
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    // The lifetime ends, and several threads ask for the name; the first is answered.
    world.seconds(2);
    let me = user(1000);
    let others = [(); 3].map(|()| mounted.client.op(&me));
    world.pass(SECOND / 1000);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    let late = mounted.client.op(&me);
    mounted.sent();
    for op in others.iter().chain([&late]) {
        assert!(ops::lookup(op, open, b"file").is_ok());
    }
    assert_eq!(mounted.sent(), "");
}

// SEMANTICS: perm-10.
#[test]
fn whoever_came_by_a_directory_that_another_client_moved_is_let_in_where_it_is_now() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let (me, stranger) = (user(1000), user(2000));
    let top = mounted.client.root();
    let open = directory(&mounted, "open");
    let made = |parent, name: &[u8]| ops::mkdir(&mounted.client.op(&me), parent, name, 0o755).unwrap().id;
    let (other, moved) = (made(top, b"other"), made(open, b"moved"));
    let file = mounted.put(&me, moved, "file", 0o644, b"x").id;
    world.pass(SECOND / 10);
    for (parent, name) in [(top, "open"), (top, "other"), (open, "moved"), (moved, "file")] {
        assert_eq!(lifetime(&mounted, parent, name), SECOND, "{name}");
    }
    // Another client moves the directory, and closes the one that it was in.
    let there = world.mount(CacheOptions::default());
    let (from, to) = (directory(&there, "open"), directory(&there, "other"));
    rename(&there, &me, (from, b"moved"), (to, b"moved")).unwrap();
    ops::setattr(&there.client.op(&me), from, &mode(0o700)).unwrap();
    for id in [open, other] {
        let _ = ops::lookup_id(&mounted.client.op(&me), id).unwrap();
    }
    assert_eq!(mounted.cat(&stranger, file).unwrap_err(), Errno::ACCESS, "he may have come by the old path");
    let _ = lifetime(&mounted, other, "moved");
    assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
    // The other directory is removed.
    let others = ops::unlink(&there.client.op(&me), from, b"file")
        .and_then(|()| ops::rmdir(&there.client.op(&me), there.client.root(), b"open"));
    others.unwrap();
    let _ = ops::lookup_id(&mounted.client.op(&me), open).unwrap_err();
    assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
}

/// The errors for user 2000, who has found a file by names that the kernel has cached.
fn refused(mounted: &BenchMount, directory: InodeId, file: InodeId) -> Vec<Result<(), Errno>> {
    let stranger = user(2000);
    let op = || mounted.client.op(&stranger);
    let top = mounted.client.root();
    let flags = OpenFlags::reading();
    vec![
        ops::open(&op(), file, flags).map(|opened| ops::release(&mounted.client, &opened.file)),
        ops::access(&op(), file, 4),
        ops::access(&op(), file, 0),
        ops::statfs(&op(), file).map(drop),
        ops::setattr(&op(), file, &mode(0o666)).map(drop),
        ops::link(&op(), file, top, b"link").map(drop),
        ops::lookup(&op(), directory, b"file").map(drop),
        ops::opendir(&op(), directory).map(drop),
        ops::create(&op(), directory, b"new", 0o644, OpenFlags::writing()).map(drop),
        ops::mkdir(&op(), directory, b"new", 0o755).map(drop),
        ops::symlink(&op(), directory, b"new", b"x").map(drop),
        ops::unlink(&op(), directory, b"file"),
        ops::rmdir(&op(), directory, b"file"),
        rename(mounted, &stranger, (directory, b"file"), (top, b"moved")),
        rename(mounted, &stranger, (top, b"open"), (directory, b"moved")),
    ]
}

// SEMANTICS: perm-10.
#[test]
fn whoever_came_by_names_that_the_kernel_keeps_is_checked_along_the_path() {
    for access in [AccessMode::Server, AccessMode::ModeBits] {
        let world = World::new();
        let mounted = kept(&world, CacheOptions { access, ..CacheOptions::default() });
        let me = user(1000);
        let open = directory(&mounted, "open");
        let below = ops::mkdir(&mounted.client.op(&me), open, b"below", 0o777).unwrap().id;
        let file = mounted.put(&me, below, "file", 0o666, b"x").id;
        // No change can carry the same time any more.
        world.pass(SECOND / 10);
        assert_eq!(lifetime(&mounted, below, "file"), SECOND);
        assert_eq!(lifetime(&mounted, open, "below"), SECOND);
        let stranger = user(2000);
        assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x", "everybody may search the path");
        // Another client closes the directory above, which is noticed.
        let other = world.mount(CacheOptions::default());
        let there = directory(&other, "open");
        ops::setattr(&other.client.op(&me), there, &mode(0o700)).unwrap();
        let _ = ops::lookup_id(&mounted.client.op(&me), open).unwrap();
        let said = refused(&mounted, below, file);
        assert!(said.iter().all(|said| *said == Err(Errno::ACCESS)), "{access:?}: {said:?}");
        // Afterwards, whoever asks has come by another way: a working directory, a descriptor (also
        // one with O_PATH of then), a bind mount.
        world.pass(SECOND + EXPIRY_DELAY);
        assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
        assert!(ops::lookup(&mounted.client.op(&stranger), below, b"file").is_ok());
        assert!(ops::lookup(&mounted.client.op(&stranger), open, b"below").is_err());
    }
}

// SEMANTICS: perm-7.
#[test]
fn chmod_returns_when_the_kernel_keeps_no_name_of_a_directory_that_it_closes() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let open = directory(&mounted, "open");
    let chmod = |bits| {
        let before = world.clock.passed();
        ops::setattr(&mounted.client.op(&me), open, &mode(bits)).unwrap();
        world.clock.passed() - before
    };
    assert!(chmod(0o711) < SECOND / 2, "everybody may search it still");
    // No change can carry the same time any more.
    world.pass(SECOND / 10);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    assert!(chmod(0o755) < SECOND / 2);
    world.pass(SECOND / 4);
    let waited = chmod(0o700);
    assert!(waited > SECOND / 2 && waited < SECOND, "{waited:?}");
    assert_eq!(lifetime(&mounted, open, "file"), Duration::ZERO);
    assert!(chmod(0o500) < SECOND / 2, "nothing is kept any more");
}

// SEMANTICS: name-16, perm-7.
#[test]
fn a_suspend_of_the_machine_does_not_shorten_the_lifetimes_that_the_kernel_was_granted() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let open = directory(&mounted, "open");
    let chmod = |bits| {
        let before = world.clock.passed();
        ops::setattr(&mounted.client.op(&me), open, &mode(bits)).unwrap();
        world.clock.passed() - before
    };
    for hours in [1, 10] {
        chmod(0o755);
        world.pass(SECOND / 10);
        assert_eq!(lifetime(&mounted, open, "file"), SECOND);
        world.suspend(SECOND * 3600 * hours);
        assert_eq!(lifetime(&mounted, open, "other"), Duration::ZERO, "until the former have ended");
        let left = mounted.client.kernel_names_expire_in();
        assert!(left > SECOND / 2 && left <= SECOND + EXPIRY_DELAY, "{left:?}");
        let waited = chmod(0o700);
        assert!(waited > SECOND / 2 && waited < 2 * SECOND, "{waited:?}");
        assert!(chmod(0o500) < SECOND / 2, "nothing is kept any more");
        chmod(0o755);
        world.pass(SECOND / 10);
        assert_eq!(lifetime(&mounted, open, "file"), SECOND);
        world.seconds(2);
        assert!(chmod(0o700) < SECOND / 2, "it has ended");
    }
}

// SEMANTICS: perm-7.
#[test]
fn rename_into_a_closed_directory_returns_when_the_kernel_does_not_keep_the_name() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let top = mounted.client.root();
    let (open, closed) = (directory(&mounted, "open"), directory(&mounted, "closed"));
    let timed = |from: (InodeId, &[u8]), to: (InodeId, &[u8])| {
        let before = world.clock.passed();
        rename(&mounted, &me, from, to).unwrap();
        world.clock.passed() - before
    };
    let file = mounted.lookup(&me, open, "file").unwrap().id;
    assert!(timed((open, b"file"), (open, b"again")) < SECOND / 2);
    // The kernel keeps the name where it moved it: there it is checked who may search.
    assert!(timed((open, b"again"), (top, b"again")) < SECOND / 2);
    assert_eq!(mounted.cat(&user(2000), file).unwrap(), b"x");
    let waited = timed((top, b"again"), (closed, b"again"));
    assert!(waited > SECOND / 2, "{waited:?}");
    assert!(timed((closed, b"again"), (open, b"file")) < SECOND / 2);
    assert!(timed((open, b"file"), (closed, b"file")) < SECOND / 2, "nobody has looked it up");
}

#[test]
fn what_is_moved_without_a_lookup_has_new_attributes_although_its_name_was_dropped_here() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let (top, open) = (mounted.client.root(), directory(&mounted, "open"));
    let file = mounted.lookup(&me, open, "file").unwrap().id;
    let moves = |to: (InodeId, &[u8])| rename(&mounted, &me, (open, b"file"), to);
    // A change that fails drops the name; the kernel keeps its own.
    assert!(moves((top, b"closed")).is_err());
    world.pass(SECOND / 10);
    moves((open, b"again")).unwrap();
    let seen = ops::getattr(&mounted.client.op(&me), file).unwrap().attributes;
    let other = world.mount(CacheOptions::default());
    let there = other.lookup(&me, directory(&other, "open"), "again").unwrap();
    assert_eq!(seen.ctime, there.attributes.ctime);
}

#[test]
fn of_many_names_that_are_moved_into_a_closed_directory_only_the_first_takes_time() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let (open, closed) = (directory(&mounted, "open"), directory(&mounted, "closed"));
    for number in 0..100 {
        mounted.put(&me, open, &number.to_string(), 0o644, b"x");
    }
    world.seconds(3600);
    let before = world.clock.passed();
    for number in 0..100 {
        let name = number.to_string();
        let _ = lifetime(&mounted, open, &name);
        let (from, to) = ((open, name.as_bytes()), (closed, name.as_bytes()));
        rename(&mounted, &me, from, to).unwrap();
    }
    let taken = world.clock.passed() - before;
    assert!(taken > SECOND / 2 && taken < SECOND * 2, "{taken:?}");
    world.seconds(20);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND, "afterwards names are kept again");
}

/// How much time passes while names of `directory` are listed in calls that return ten, with
/// `between` after each.
fn time_of_listing(
    world: &World,
    mounted: &BenchMount,
    directory: InodeId,
    mut between: impl FnMut(),
) -> Duration {
    let me = user(1000);
    let listed = ops::opendir(&mounted.client.op(&me), directory).unwrap();
    let (mut cookie, mut waited) = (0, Duration::ZERO);
    loop {
        let (mut taken, from) = (0, cookie);
        let mut take = |entry: &curt_client::DirEntry<'_>| {
            if taken == 10 {
                return DirEmit::Full;
            }
            taken += 1;
            cookie = entry.cookie;
            DirEmit::Taken
        };
        let before = world.clock.passed();
        ops::readdir(&mounted.client.op(&me), &listed, from, false, &mut take).unwrap();
        waited += world.clock.passed() - before;
        if taken == 0 {
            return waited;
        }
        between();
    }
}

// SEMANTICS: list-9.
#[test]
fn a_long_listing_waits_once_although_missing_names_are_looked_up_beside_it() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let open = directory(&mounted, "open");
    for number in 0..300 {
        mounted.put(&user(1000), open, &number.to_string(), 0o644, b"x");
    }
    world.seconds(3600);
    let other = world.mount(CacheOptions::default());
    let there = directory(&other, "open");
    let mut number = 0;
    let waited = time_of_listing(&world, &mounted, open, || {
        number += 1;
        other.put(&user(1000), there, "changes", 0o644, b"x");
        ops::unlink(&other.client.op(&user(1000)), there, b"changes").unwrap();
        world.pass(Duration::from_millis(50));
        let _ = ops::lookup_id(&mounted.client.op(&user(1000)), open).unwrap();
        let _ = lifetime(&mounted, open, &format!("missing {number}"));
    });
    assert!(waited > SECOND / 2 && waited < SECOND * 2, "{waited:?}");
    world.pass(WITHHELD_AFTER_LISTING);
    assert_eq!(lifetime(&mounted, open, "missing"), SECOND, "afterwards they are kept again");
}

// SEMANTICS: list-9.
#[test]
fn a_listing_with_a_name_that_the_kernel_takes_for_missing_comes_when_it_does_not_any_more() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let open = directory(&mounted, "open");
    let list = || {
        let before = world.clock.passed();
        let mut names = Vec::new();
        let listed = ops::opendir(&mounted.client.op(&me), open).unwrap();
        let mut cookie = 0;
        loop {
            let (had, from) = (names.len(), cookie);
            let mut take = |entry: &curt_client::DirEntry<'_>| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                cookie = entry.cookie;
                DirEmit::Taken
            };
            ops::readdir(&mounted.client.op(&me), &listed, from, false, &mut take).unwrap();
            if names.len() == had {
                break;
            }
        }
        (names.contains(&"new".to_owned()), world.clock.passed() - before)
    };
    assert_eq!(lifetime(&mounted, open, "new"), SECOND);
    let (is_listed, waited) = list();
    assert!(!is_listed && waited < SECOND / 2, "it is as missing as before: {waited:?}");
    world.seconds(2);
    assert_eq!(lifetime(&mounted, open, "new"), SECOND);
    let other = world.mount(CacheOptions::default());
    let there = directory(&other, "open");
    other.put(&me, there, "new", 0o644, b"x");
    let _ = ops::lookup_id(&mounted.client.op(&me), open).unwrap();
    let (is_listed, waited) = list();
    assert!(is_listed && waited > SECOND / 2, "{waited:?}");
    let (is_listed, waited) = list();
    assert!(is_listed && waited < SECOND / 2, "{waited:?}");
}

// SEMANTICS: name-17.
#[test]
fn a_target_that_the_kernel_caches_is_revalidated_by_lookups_and_ends_when_the_link_changes() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let me = user(1000);
    let open = directory(&mounted, "open");
    let link = ops::symlink(&mounted.client.op(&me), open, b"link", b"where").unwrap();
    world.seconds(3600);
    let look_up = || mounted.lookup(&me, open, "link").map(drop);
    let told = || std::mem::take(&mut *mounted.told.contents.lock()).contains(&link.id);
    let read = || ops::readlink(&mounted.client.op(&me), link.id).unwrap();
    look_up().unwrap();
    assert_eq!(&*read(), b"where");
    mounted.client.set_kernel_keeps_targets();
    mounted.sent();
    // The name is still valid, the link's attributes are not.
    world.seconds(20);
    look_up().unwrap();
    assert_eq!((mounted.sent().contains("GETATTR"), told()), (true, false));
    ops::getattr(&mounted.client.op(&me), link.id).unwrap();
    // The kernel's entry of the name has expired again.
    world.seconds(2);
    look_up().unwrap();
    assert_eq!(mounted.sent(), "", "its attributes are valid");
    let other = world.mount(CacheOptions::default());
    let there = other.lookup(&me, directory(&other, "open"), "link").unwrap();
    let owner = SetAttributes { gid: Some(1000), ..SetAttributes::default() };
    ops::setattr(&other.client.op(&root()), there.id, &owner).unwrap();
    world.seconds(3600);
    look_up().unwrap();
    assert!(told(), "the kernel drops the target");
    mounted.sent();
    assert_eq!(&*read(), b"where");
    assert_eq!(mounted.sent(), "READLINK 1");
    // While a command is explained, each use of the link is seen.
    assert!(!told());
    mounted.client.suspend_kernel_names(Duration::MAX);
    assert!(told());
    let _ = read();
    assert!(told());
    mounted.client.suspend_kernel_names(Duration::ZERO);
    let _ = read();
    assert!(!told());
}

/// Runs `meanwhile` once, while a GETATTR is under way.
struct DuringGetattr {
    next: Arc<dyn Transport>,
    meanwhile: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
    has_run: OnceLock<()>,
}

impl std::fmt::Debug for DuringGetattr {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("DuringGetattr")
    }
}

impl Transport for DuringGetattr {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if request.procedure == NfsProcedure::Getattr.number()
            && let Some(meanwhile) = self.meanwhile.get()
            && self.has_run.set(()).is_ok()
        {
            meanwhile();
        }
        self.next.call(request, interrupt)
    }
}

/// A mount with a link whose attributes have expired, so that a lookup of it sends GETATTR; the
/// name has not.
fn with_old_link(world: &World, transport: Arc<dyn Transport>) -> BenchMount {
    let mounted = kept_over(world, CacheOptions::default(), transport);
    let me = user(1000);
    let open = directory(&mounted, "open");
    let link = ops::symlink(&mounted.client.op(&me), open, b"link", b"where").unwrap();
    world.seconds(3600);
    let _ = lifetime(&mounted, open, "link");
    ops::readlink(&mounted.client.op(&me), link.id).unwrap();
    mounted.client.set_kernel_keeps_targets();
    world.seconds(20);
    mounted.sent();
    mounted
}

// SEMANTICS: name-16.
#[test]
fn a_lifetime_begins_when_the_reply_is_made() {
    let world = World::new();
    let mounted = with_old_link(&world, world.way());
    let open = directory(&mounted, "open");
    let granted = lifetime(&mounted, open, "link");
    assert!(mounted.sent().contains("GETATTR"));
    assert!(!granted.is_zero());
    assert!(mounted.client.kernel_names_expire_in() >= granted + EXPIRY_DELAY);
    // The directory's record: a chmod that closes it waits for as long.
    let before = world.clock.passed();
    ops::setattr(&mounted.client.op(&user(1000)), open, &mode(0o700)).unwrap();
    assert!(world.clock.passed() - before >= granted + EXPIRY_DELAY);
}

// SEMANTICS: perm-7.
#[test]
fn a_name_that_is_renamed_while_it_is_looked_up_has_no_lifetime_that_the_rename_did_not_await() {
    let world = World::new();
    let meanwhile = Arc::new(OnceLock::new());
    let transport =
        DuringGetattr { next: world.way(), meanwhile: Arc::clone(&meanwhile), has_run: OnceLock::new() };
    let mounted = Arc::new(with_old_link(&world, Arc::new(transport)));
    let (open, closed) = (directory(&mounted, "open"), directory(&mounted, "closed"));
    let renaming = Arc::clone(&mounted);
    let renames: Box<dyn Fn() + Send + Sync> = Box::new(move || {
        rename(&renaming, &user(1000), (open, b"link"), (closed, b"link")).unwrap();
    });
    assert!(meanwhile.set(renames).is_ok());
    let granted = lifetime(&mounted, open, "link");
    assert!(mounted.lookup(&user(1000), closed, "link").is_ok(), "it was renamed");
    assert_eq!(granted, Duration::ZERO);
}

// SEMANTICS: name-6.
#[test]
fn a_file_that_another_client_created_first_is_opened_without_a_lifetime_and_then_served_from_memory() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let open = directory(&mounted, "open");
    let other = world.mount(CacheOptions::default());
    other.put(&user(1000), directory(&other, "open"), "new", 0o644, b"x");
    world.pass(SECOND / 10);
    let op = mounted.client.op(&user(1000));
    let (found, opened) = ops::create(&op, open, b"new", 0o644, OpenFlags::reading()).unwrap();
    // Before the reply, the kernel may have to drop pages.
    assert_eq!(found.entry_valid, Duration::ZERO);
    ops::release(&mounted.client, &opened.file);
    mounted.sent();
    let _ = lifetime(&mounted, open, "new");
    assert!(!mounted.sent().contains("LOOKUP"), "nobody asked in spite of a lifetime");
}

// SEMANTICS: perm-10.
#[test]
fn whoever_found_a_file_by_another_of_its_names_is_not_refused() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let (me, stranger, top) = (user(1000), user(2000), mounted.client.root());
    let open = directory(&mounted, "open");
    let file = mounted.put(&me, open, "shared", 0o666, b"x").id;
    ops::link(&mounted.client.op(&me), file, top, b"hard").unwrap();
    world.seconds(60);
    assert_eq!(lifetime(&mounted, open, "shared"), SECOND);
    let other = world.mount(CacheOptions::default());
    ops::setattr(&other.client.op(&me), directory(&other, "open"), &mode(0o700)).unwrap();
    let _ = ops::lookup_id(&mounted.client.op(&me), open).unwrap();
    assert_eq!(mounted.cat(&stranger, file).unwrap_err(), Errno::ACCESS);
    mounted.lookup(&stranger, top, "hard").unwrap();
    assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
}

#[test]
fn lifetimes_that_are_withheld_for_a_time_are_granted_again_afterwards() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let open = directory(&mounted, "open");
    mounted.client.suspend_kernel_names(SECOND * 10);
    mounted.client.suspend_kernel_names(SECOND * 5);
    world.seconds(8);
    assert_eq!(lifetime(&mounted, open, "file"), Duration::ZERO);
    world.seconds(8);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
}

// SEMANTICS: perm-10.
#[test]
fn whoever_came_by_a_name_that_a_rename_of_another_name_left_is_let_in() {
    let world = World::new();
    let mounted = kept(&world, CacheOptions::default());
    let (me, stranger) = (user(1000), user(2000));
    let top = mounted.client.root();
    let open = directory(&mounted, "open");
    let other = ops::mkdir(&mounted.client.op(&me), top, b"other", 0o755).unwrap().id;
    let file = mounted.lookup(&me, open, "file").unwrap().id;
    ops::link(&mounted.client.op(&me), file, open, b"link").unwrap();
    world.pass(SECOND / 10);
    assert_eq!(lifetime(&mounted, open, "file"), SECOND);
    assert_eq!(lifetime(&mounted, open, "link"), SECOND);
    rename(&mounted, &me, (open, b"file"), (other, b"file")).unwrap();
    assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
    // Another client closes the directory that the file was moved to: the other name is left.
    let there = world.mount(CacheOptions::default());
    let closed = directory(&there, "other");
    ops::setattr(&there.client.op(&me), closed, &mode(0o700)).unwrap();
    let _ = ops::lookup_id(&mounted.client.op(&me), other).unwrap();
    assert_eq!(mounted.cat(&stranger, file).unwrap(), b"x");
    // It closes the directory of the other name too.
    let closed = directory(&there, "open");
    ops::setattr(&there.client.op(&me), closed, &mode(0o700)).unwrap();
    let _ = ops::lookup_id(&mounted.client.op(&me), open).unwrap();
    assert_eq!(mounted.cat(&stranger, file).unwrap_err(), Errno::ACCESS);
}
