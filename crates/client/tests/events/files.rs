//! Attributes, sizes and data.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use curt_client::{ClientOptions, OpenFlags, ops};
use curt_policy::CacheOptions;
use curt_proto::nfs3::NfsProcedure;
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::SetAttributes;
use rustix::io::Errno;

use crate::world::{World, root};
use crate::{Seen, alone, field};

#[test]
fn every_change_of_a_files_size_is_traced() {
    let _alone = alone();
    let world = World::new();
    let (mine, other) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let (me, top) = (root(), mine.client.root());
    let seen = Seen::begin("nfs_size_*");
    let file = mine.put(&me, top, "f", 0o644, b"12345");
    let number = file.attributes.fileid;
    let of_file = |line: &String| line.contains(&format!(" fileid={number} "));
    let told: Vec<_> = seen.told().into_iter().filter(of_file).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with(&format!("nfs_size_grow: fileid={number} cur_size=0 new_size=5 ")),
        "{told:?}"
    );
    assert!(told[1].contains("nfs_size_wcc: ") && told[1].contains(" cur_size=0 new_size=5 "));
    let set = SetAttributes { size: Some(2), ..SetAttributes::default() };
    ops::setattr(&mine.client.op(&me), file.id, &set).unwrap();
    let told = seen.told();
    assert!(
        told[0].contains("nfs_size_truncate: ") && told[0].contains(" cur_size=5 new_size=2 "),
        "{told:?}"
    );
    assert!(told[1].contains("nfs_size_wcc: ") && told[1].contains(" cur_size=5 new_size=2 "), "{told:?}");
    assert_eq!(told.len(), 2, "{told:?}");
    // Overwriting does not change the size.
    let opened = ops::open(&mine.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    ops::write(&mine.client.op(&me), &opened.file, 0, b"ab").unwrap();
    ops::close(&mine.client.op(&me), &opened.file).unwrap();
    assert_eq!(seen.told(), Vec::<String>::new());
    // A file of another client.
    let theirs = other.lookup(&me, other.client.root(), "f").unwrap();
    let opened = ops::open(&other.client.op(&me), theirs.id, OpenFlags::writing()).unwrap();
    ops::write(&other.client.op(&me), &opened.file, 0, b"1234567").unwrap();
    ops::close(&other.client.op(&me), &opened.file).unwrap();
    world.seconds(100);
    seen.told();
    ops::getattr(&mine.client.op(&me), file.id).unwrap();
    let told = seen.told();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("nfs_size_update: ") && told[0].contains(" cur_size=2 new_size=7 "), "{told:?}");
}

#[test]
fn all_events_about_a_file_have_the_same_fields() {
    let _alone = alone();
    let world = World::new();
    let mine = world.mount(CacheOptions::default());
    let me = root();
    let file = mine.put(&me, mine.client.root(), "f", 0o644, b"12345");
    world.seconds(100);
    let seen = Seen::begin("nfs_revalidate_inode_*,nfs_refresh_inode_*");
    ops::getattr(&mine.client.op(&me), file.id).unwrap();
    let told = seen.told();
    let names: Vec<_> = told.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        names,
        [
            "nfs_revalidate_inode_enter",
            "nfs_refresh_inode_enter",
            "nfs_refresh_inode_exit",
            "nfs_revalidate_inode_exit"
        ]
    );
    let attributes = mine.client.last_attributes(file.id).unwrap().attributes;
    let subject = mine.client.event_fields(file.id);
    assert_eq!((subject.size, subject.object_type), (5, 8));
    for line in &told {
        assert_eq!(field(line, "fileid"), file.attributes.fileid);
        assert_eq!(field(line, "dev"), file.attributes.fsid);
        assert_eq!(field(line, "fhandle"), u64::from(subject.fhandle));
        let ctime = attributes.ctime;
        let version = (ctime.seconds().cast_unsigned() << 30) + u64::from(ctime.nanoseconds());
        assert_eq!(field(line, "version"), version, "{line}");
        // They had expired, and are valid now.
        let expired = if line.contains("_enter") { 0x100 } else { 0 };
        assert_eq!(field(line, "cache_validity"), expired, "{line}");
        if line.contains("_exit") {
            assert!(line.contains(" type=8 (REG) "), "{line}");
            assert_eq!((field(line, "size"), field(line, "error"), field(line, "nfsi_flags")), (5, 0, 0));
        }
    }
    // The file is open and removed. Then its handle is stale for a client that still has it.
    let opened = ops::open(&mine.client.op(&me), file.id, OpenFlags::reading()).unwrap();
    ops::unlink(&mine.client.op(&me), mine.client.root(), b"f").unwrap();
    assert_eq!(mine.client.event_fields(file.id).nfsi_flags, 0x10);
    ops::release(&mine.client, &opened.file);
    world.seconds(100);
    assert_eq!(ops::getattr(&mine.client.op(&me), file.id), Err(Errno::STALE));
    assert_eq!(mine.client.event_fields(file.id).nfsi_flags, 1);
    let told = seen.told();
    let last = told.last().unwrap();
    assert!(
        last.starts_with("nfs_revalidate_inode_exit: ") && last.contains(" error=-116 (ESTALE) "),
        "{last}"
    );
}

#[test]
fn data_that_others_changed_are_dropped_between_two_events() {
    let _alone = alone();
    let world = World::new();
    let (mine, other) = (world.mount(CacheOptions::default()), world.mount(CacheOptions::default()));
    let me = root();
    let file = mine.put(&me, mine.client.root(), "f", 0o644, b"old");
    assert_eq!(mine.cat(&me, file.id).unwrap(), b"old");
    world.seconds(1);
    other.put(&me, other.client.root(), "f", 0o644, b"newer");
    world.seconds(100);
    let seen = Seen::begin("nfs_invalidate_mapping_*,nfs_set_cache_invalid,nfs_revalidate_inode_exit");
    assert_eq!(mine.cat(&me, file.id).unwrap(), b"newer");
    let told = seen.told();
    let names: Vec<_> = told.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(
        names,
        [
            "nfs_set_cache_invalid",
            "nfs_invalidate_mapping_enter",
            "nfs_invalidate_mapping_exit",
            "nfs_revalidate_inode_exit"
        ],
        "{told:?}"
    );
    // Invalid from the moment at which the change is known until the caches have dropped the
    // copies.
    assert_eq!(field(&told[1], "cache_validity") & 2, 2, "{told:?}");
    assert_eq!(field(&told[2], "size"), 5, "{told:?}");
}

#[test]
fn write_back_is_waited_for_between_two_events() {
    let _alone = alone();
    let world = World::new();
    let mine = world.mount(CacheOptions::default());
    let me = root();
    let file = mine.put(&me, mine.client.root(), "f", 0o644, b"old");
    let opened = ops::open(&mine.client.op(&me), file.id, OpenFlags::writing()).unwrap();
    let seen = Seen::begin("nfs_writeback_*,nfs_initiate_write");
    ops::write(&mine.client.op(&me), &opened.file, 0, b"new").unwrap();
    assert_eq!(seen.names(), Vec::<String>::new(), "it is written behind");
    ops::flush(&mine.client.op(&me), &opened.file).unwrap();
    let told = seen.told();
    let expected =
        ["nfs_writeback_inode_enter", "nfs_initiate_write", "nfs_writeback_done", "nfs_writeback_inode_exit"];
    for event in expected {
        let count = told.iter().filter(|line| line.starts_with(event)).count();
        assert_eq!(count, 1, "{event}: {told:?}");
    }
    let verifier = told.iter().find(|line| line.starts_with("nfs_writeback_done"));
    assert_ne!(field(verifier.unwrap(), "verifier"), 0);
    ops::flush(&mine.client.op(&me), &opened.file).unwrap();
    assert_eq!(seen.names(), Vec::<String>::new(), "there is nothing to wait for");
}

/// Replaces the replies of the next READs.
struct Otherwise {
    next: Arc<dyn Transport>,
    /// 1: three bytes without the end of file; 2: an error; then the reply of the server.
    turn: AtomicU32,
}

impl Transport for Otherwise {
    fn call(&self, request: &RpcRequest<'_>, interrupt: &Interrupt) -> Result<CallReply, CallError> {
        if request.procedure != NfsProcedure::Read.number() {
            return self.next.call(request, interrupt);
        }
        let words: &[u32] = match self.turn.swap(0, Relaxed) {
            1 => &[0, 0, 3, 0, 3, 0x6162_6300],
            2 => &[5, 0],
            _ => return self.next.call(request, interrupt),
        };
        let bytes = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        Ok(CallReply::from_results(bytes))
    }
}

#[test]
fn a_short_or_failed_read_is_traced() {
    let _alone = alone();
    let world = World::new();
    let maker = world.mount(CacheOptions::default());
    let me = root();
    maker.put(&me, maker.client.root(), "f", 0o644, b"abcdef");
    let way = Arc::new(Otherwise { next: world.way(), turn: AtomicU32::new(0) });
    let mine = world.mount_over(ClientOptions::default(), way.clone());
    let file = mine.lookup(&me, mine.client.root(), "f").unwrap();
    let seen = Seen::begin("nfs_readpage_*,nfs_pgio_error");
    way.turn.store(1, Relaxed);
    assert_eq!(mine.cat(&me, file.id).unwrap(), b"abcdef");
    let told = seen.told();
    let number = file.attributes.fileid;
    assert!(
        told[0].starts_with(&format!("nfs_readpage_short: fileid={number} offset=0 "))
            && told[0].contains(" res=3 "),
        "{told:?}"
    );
    assert!(told[1].starts_with("nfs_readpage_done: ") && told[2].contains(" res=6 eof=1 "), "{told:?}");
    let direct = OpenFlags { direct: true, ..OpenFlags::reading() };
    let opened = ops::open(&mine.client.op(&me), file.id, direct).unwrap();
    way.turn.store(2, Relaxed);
    let read = ops::read(&mine.client.op(&me), &opened.file, 0, 6).map(|bytes| bytes.to_vec());
    assert_eq!(read, Err(Errno::IO));
    let told = seen.told();
    assert!(
        told[1].starts_with(&format!("nfs_pgio_error: fileid={number} offset=0 count=6 error=-5 (EIO) ")),
        "{told:?}"
    );
    assert_eq!(told.len(), 2, "{told:?}");
}
