//! A connection while one of its reads or listings waits for a disk.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared by the tests of this folder")]
mod calling;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use curt_proto::nfs3::{
    Cookie, CookieVerf3, Fattr, FsstatOk, NfsProcedure, NfsResult, ReadArguments, ReadFail, ReadOk,
    ReaddirArguments,
};
use curt_rpc::client::TcpTransport;
use curt_server::{ExportDefinition, NfsService};
use curt_types::{SetAttributes, Stability};
use curt_vfs::{
    CreateMode, Error, FetchOptions, FetchResult, FileSystemSpace, FsCred, MayBlock, MemoryOptions,
    MemoryVfs, NodeHandle, PostOpResult, ReaddirDetail, Vfs, VfsDirEntry, VfsNode,
};
use curt_xdr::decode_all;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

/// Maximum time for which the disk waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// A tree whose reads and listings wait for a disk, and whose disk waits for an FSSTAT or a LOOKUP.
struct Cold {
    tree: MemoryVfs,
    state: Mutex<Disk>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    Idle,
    Reading,
    Asked,
}

impl Cold {
    fn become_(&self, state: Disk) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }

    /// Whether the disk reached that state in time.
    fn wait_for(&self, state: Disk) -> bool {
        let mut now = self.state.lock();
        !self.changed.wait_while_for(&mut now, |now| *now != state, PATIENCE).timed_out()
    }
}

impl Vfs for Cold {
    fn fetch(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        how: FetchOptions,
        data: &mut Vec<u8>,
    ) -> Option<PostOpResult<FetchResult>> {
        if !how.wait {
            return None;
        }
        self.become_(Disk::Reading);
        if self.wait_for(Disk::Asked) {
            return self.tree.fetch(caller, node, offset, count, how, data);
        }
        Some(PostOpResult { attributes: None, value: Err(Error::Os(Errno::TIMEDOUT)) })
    }

    fn may_block(&self) -> MayBlock {
        MayBlock::Data
    }

    fn lookup(&self, caller: &FsCred<'_>, directory: &NodeHandle, name: &[u8]) -> PostOpResult<VfsNode> {
        let found = self.tree.lookup(caller, directory, name);
        self.become_(Disk::Asked);
        found
    }

    /// Waits in the middle of the directory until a name in the same tree has been looked up.
    fn read_directory(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        cookie: u64,
        wanted: ReaddirDetail,
        visit: &mut dyn FnMut(&VfsDirEntry<'_>) -> ControlFlow<()>,
    ) -> PostOpResult<bool> {
        let mut is_first = true;
        let mut in_time = true;
        let mut wait = |entry: &VfsDirEntry<'_>| {
            if std::mem::take(&mut is_first) {
                self.become_(Disk::Reading);
                in_time = self.wait_for(Disk::Asked);
            }
            visit(entry)
        };
        let listed = self.tree.read_directory(caller, directory, cookie, wanted, &mut wait);
        let value = listed.value.and_then(|end| in_time.then_some(end).ok_or(Error::Os(Errno::TIMEDOUT)));
        PostOpResult { value, ..listed }
    }

    fn space(&self, node: &NodeHandle) -> PostOpResult<FileSystemSpace> {
        self.become_(Disk::Asked);
        self.tree.space(node)
    }

    curt_loopback::forward_to_tree!(
        pin,
        losses,
        root,
        identity,
        attributes,
        set_attributes,
        access,
        read_link,
        write,
        commit,
        make_permitted,
        remove_permitted,
        rename_permitted,
        link,
        limits,
        sync_all
    );
}

/// The disk of `tree`, and a connection to a server of it as /cold, which ends with the test's
/// process.
fn serve(tree: MemoryVfs) -> (Arc<Cold>, TcpTransport) {
    let disk = Arc::new(Cold { tree, state: Mutex::new(Disk::Idle), changed: Condvar::new() });
    let vfs = Arc::<Cold>::clone(&disk);
    let exports = vec![ExportDefinition::for_everyone(b"/cold".to_vec(), vfs, calling::open_rules())];
    let service = NfsService::new(calling::setup(exports)).unwrap();
    (disk, calling::connect(calling::serve(Arc::new(service))))
}

#[test]
fn a_lookup_beside_a_listing_is_answered_while_that_waits() {
    let tree = MemoryVfs::new(MemoryOptions::default());
    for number in 0..1000 {
        let name = format!("file{number}");
        let mode = CreateMode::Guarded(&SetAttributes::default());
        tree.create(&FsCred::ROOT, &tree.root(), name.as_bytes(), mode).value.unwrap();
    }
    let (disk, transport) = serve(tree);
    let root = calling::mount(&transport, calling::ROOT, "/cold");
    let listing = ReaddirArguments {
        directory: root,
        cookie: Cookie(0),
        verifier: CookieVerf3::default(),
        count: 4000,
    };
    std::thread::scope(|scope| {
        let lister = scope.spawn(|| calling::nfs(&transport, NfsProcedure::Readdir, &listing));
        assert!(disk.wait_for(Disk::Reading), "the listing never came to the tree");
        assert!(calling::lookup(&transport, root, b"file7").is_ok());
        let listed = lister.join().unwrap();
        assert_eq!(listed[..4], [0; 4], "the look-up waited for the listing");
    });
}

#[test]
fn a_small_read_that_waits_for_a_disk_delays_no_other_call() {
    let tree = MemoryVfs::new(MemoryOptions::default());
    let made =
        tree.create(&FsCred::ROOT, &tree.root(), b"file", CreateMode::Guarded(&SetAttributes::default()));
    let node = made.value.unwrap().node.handle;
    let written = tree.write(&FsCred::ROOT, &node, 0, b"cold data", Stability::FileSync);
    assert!(written.value.is_ok());
    let (disk, transport) = serve(tree);
    let root = calling::mount(&transport, calling::ROOT, "/cold");
    let read =
        ReadArguments { file: calling::lookup(&transport, root, b"file").unwrap(), offset: 0, count: 100 };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| calling::nfs(&transport, NfsProcedure::Read, &read));
        assert!(disk.wait_for(Disk::Reading), "the read never came to the disk");
        let space = calling::nfs(&transport, NfsProcedure::Fsstat, &root);
        let space: NfsResult<FsstatOk, Option<Fattr>> = decode_all(&space).unwrap();
        assert!(matches!(space, NfsResult::Ok(_)));
        let results = reader.join().unwrap();
        let outcome: NfsResult<ReadOk<'_>, ReadFail> = decode_all(&results).unwrap();
        let NfsResult::Ok(ok) = outcome else {
            panic!("the connection was not read while the disk was waited for: {outcome:?}")
        };
        assert_eq!(ok.data.bytes(), b"cold data");
    });
}
