//! Changes of names, while others use the same names.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use curt_observe::ServerCounters;
use curt_proto::nfs3::{
    CreateArguments, CreateHow, DirOpArgs, Filename, NfsFh3, NfsProcedure, NfsStat3, Sattr,
};
use curt_proto::nfs4::*;
use curt_types::{Stability, Timestamp};
use curt_vfs::{
    CreatedNode, FsCred, MemoryOptions, MemoryVfs, NewNode, NodeHandle, ObjectPermit, RemovedKind,
    RenameResult, Vfs, WccResult, WriteResult,
};
use parking_lot::Mutex;

use super::delegations::{
    LONG, NameChange, bind, bind_answering, component, create, delegated, delegated_directory, give_back, ok,
    rename, v3, write,
};
use super::test_client::{Server, TestClient, creating, opening, rules};
use crate::{ExportDefinition, NfsService, NfsServiceConfig, PersistentState};

/// Sends a message when a change reaches this point, and waits for one to continue.
type Pause = Mutex<Option<(SyncSender<()>, Receiver<()>)>>;

/// A tree on a slow disk.
struct SlowTree {
    tree: MemoryVfs,
    /// A new name is visible, but its creation has not returned.
    made: Pause,
    /// A name or the data of a file are about to be changed.
    before: Pause,
}

impl SlowTree {
    fn new(options: MemoryOptions) -> Arc<Self> {
        let (made, before) = <(Pause, Pause)>::default();
        Arc::new(Self { tree: MemoryVfs::new(options), made, before })
    }
}

/// Lets the next change pause. Returns a receiver of a message when it pauses, and a sender by
/// which it continues.
fn pause_at(pause: &Pause) -> (Receiver<()>, SyncSender<()>) {
    let (reached, is_reached) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    *pause.lock() = Some((reached, may_go_on));
    (is_reached, go_on)
}

fn pass(pause: &Pause) {
    let taken = pause.lock().take();
    if let Some((reached, may_go_on)) = taken {
        reached.send(()).unwrap();
        may_go_on.recv().unwrap();
    }
}

fn serving(tree: &Arc<SlowTree>) -> Server {
    let export =
        ExportDefinition::for_everyone(b"/srv/files".to_vec(), Arc::<SlowTree>::clone(tree), rules());
    let service = NfsService::new(NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![export],
        counters: Arc::new(ServerCounters::default()),
    });
    let mut service = service.unwrap();
    service.set_directory_delegations(true);
    Server::over(Arc::new(service)).calling_back()
}

impl Vfs for SlowTree {
    fn make_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<CreatedNode> {
        pass(&self.before);
        let made = self.tree.make_permitted(caller, directory, name, object, permit);
        pass(&self.made);
        made
    }

    fn remove_permitted(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        kind: RemovedKind,
        permit: &mut ObjectPermit<'_>,
    ) -> WccResult<()> {
        pass(&self.before);
        self.tree.remove_permitted(caller, directory, name, kind, permit)
    }

    fn rename_permitted(
        &self,
        caller: &FsCred<'_>,
        from: &NodeHandle,
        from_name: &[u8],
        to: &NodeHandle,
        to_name: &[u8],
        permit: &mut ObjectPermit<'_>,
    ) -> RenameResult {
        pass(&self.before);
        self.tree.rename_permitted(caller, from, from_name, to, to_name, permit)
    }

    fn write(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> WccResult<WriteResult> {
        pass(&self.before);
        self.tree.write(caller, node, offset, data, stability)
    }

    curt_loopback::forward_to_tree!(
        may_block,
        fetch,
        pin,
        losses,
        lookup,
        read_directory,
        space,
        root,
        identity,
        attributes,
        set_attributes,
        access,
        read_link,
        commit,
        link,
        limits,
        sync_all
    );
}

fn is_delegated(client: &TestClient<'_>, name: &str) -> bool {
    let opened = client.open(&client.files(), &opening(name, "reader", ShareAccess4::READ, 0)).unwrap();
    matches!(opened.result.delegation, OpenDelegation::Read { .. })
}

// SEMANTICS: stateful-11.
#[test]
fn a_new_file_is_delegated_to_nobody_before_its_creator_has_it_open() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let clock = Arc::new(AtomicI64::new(i64::try_from(now).unwrap() - 120));
    let clock_of_tree = Arc::clone(&clock);
    let options = MemoryOptions {
        clock: Arc::new(move || Timestamp::new(clock_of_tree.load(Ordering::Relaxed), 0)),
        ..MemoryOptions::default()
    };
    let tree = SlowTree::new(options);
    let server = serving(&tree);
    let (creator, other) = (server.client("creator"), server.client("other"));
    bind_answering(&other);
    for name in ["first", "old"] {
        let old = creator.open(&creator.files(), &creating(name, "maker", ShareAccess4::BOTH, 0)).unwrap();
        let close = CloseArgs4 { seqid: 0, stateid: old.stateid };
        assert_eq!(creator.at(&old.handle, &|compound| compound.push(&close)), NfsStat4::Ok);
    }
    clock.fetch_add(120, Ordering::Relaxed);
    // While there are delegations, changes concern only their own files.
    assert!(is_delegated(&other, "first"));
    let (is_created, go_on) = pause_at(&tree.made);
    let guarded = OpenArgs4 {
        how: OpenHow::Create(CreateHow4::Guarded(Fattr4::default())),
        ..opening("new", "maker", ShareAccess4::BOTH, 0)
    };
    std::thread::scope(|scope| {
        let creation = scope.spawn(move || creator.open(&creator.files(), &guarded).map(|_| ()));
        is_created.recv().unwrap();
        let delegated = ["old", "new"].map(|name| is_delegated(&other, name));
        go_on.send(()).unwrap();
        assert_eq!(creation.join().unwrap(), Ok(()), "the creator cannot wait");
        assert_eq!(delegated, [true, false]);
    });
}

// SEMANTICS: stateful-11.
#[test]
fn a_write_whose_open_has_ended_is_over_before_the_file_is_delegated() {
    let tree = SlowTree::new(MemoryOptions::default());
    let server = serving(&tree);
    let (writer, reader) = (server.client("writer"), server.client("reader"));
    bind_answering(&reader);
    let opened = writer.open(&writer.files(), &creating("file", "o", ShareAccess4::BOTH, 0)).unwrap();
    let clients = server.service.clients();
    let id = clients.iter().find(|client| client.opens > 0).unwrap().id;
    let (is_reached, go_on) = pause_at(&tree.before);
    std::thread::scope(|scope| {
        let written = scope.spawn(move || write(&writer, &opened.handle, opened.stateid));
        is_reached.recv().unwrap();
        assert!(server.service.expire_client(id));
        let is_delegated_meanwhile = is_delegated(&reader, "file");
        go_on.send(()).unwrap();
        assert_eq!(written.join().unwrap(), NfsStat4::Ok);
        assert!(!is_delegated_meanwhile);
    });
    assert!(is_delegated(&reader, "file"));
}

// SEMANTICS: stateful-11.
#[test]
fn a_file_that_comes_to_a_name_at_the_last_moment_has_its_delegation_recalled() {
    let changes: [(&str, NameChange); 4] = [
        ("REMOVE", |client| {
            client.at(&client.files(), &|compound| {
                compound.bare(Nfs4Operation::Savefh);
                compound.push(&LookupArgs4 { name: component("file") });
                compound.bare(Nfs4Operation::Restorefh);
                compound.push(&RemoveArgs4 { name: component("file") });
            })
        }),
        ("RENAME of it", |client| rename(client, "file", "elsewhere")),
        ("RENAME over it", |client| rename(client, "other", "file")),
        ("CREATE that truncates", |client| {
            let directory = NfsFh3::new(client.files().as_bytes()).unwrap();
            let how = CreateHow::Unchecked(Sattr { size: Some(0), ..Sattr::default() });
            let place = DirOpArgs { directory, name: Filename::new(b"file").unwrap() };
            // A repeated call would get the reply of the first.
            static XID: AtomicU32 = AtomicU32::new(1);
            let xid = XID.fetch_add(1, Ordering::Relaxed);
            match v3(client.server, 0, xid, NfsProcedure::Create, &CreateArguments { place, how }) {
                NfsStat3::Ok => NfsStat4::Ok,
                NfsStat3::Jukebox => NfsStat4::Delay,
                other => panic!("CREATE: {other:?}"),
            }
        }),
    ];
    for (what, change) in changes {
        let tree = SlowTree::new(MemoryOptions::default());
        let server = serving(&tree);
        let (holder, other) = (server.client("holder"), server.client("other"));
        let calls = bind(&holder, ok);
        for name in ["file", "other"] {
            create(&holder, name);
        }
        let new = create(&holder, "new");
        let stateid = delegated(&holder, "new");
        let (is_reached, go_on) = pause_at(&tree.before);
        let other = std::thread::scope(|scope| {
            let changed = scope.spawn(move || (change(&other), other));
            is_reached.recv().unwrap();
            // The holder's own change is not in its way.
            assert_eq!(rename(&holder, "new", "file"), NfsStat4::Ok);
            go_on.send(()).unwrap();
            let (status, other) = changed.join().unwrap();
            assert_eq!(status, NfsStat4::Delay, "{what}");
            other
        });
        assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid, "{what}");
        assert_eq!(holder.walk(&["srv", "files", "file"]).unwrap(), new, "{what}");
        assert_eq!(give_back(&holder, &new, stateid), NfsStat4::Ok, "{what}");
        assert_eq!(change(&other), NfsStat4::Ok, "{what}");
    }
}

// SEMANTICS: stateful-14.
#[test]
fn a_creation_whose_file_is_removed_at_the_last_moment_recalls_the_delegation_of_the_directory() {
    let tree = SlowTree::new(MemoryOptions::default());
    let server = serving(&tree);
    let (holder, other) = (server.client("holder"), server.client("other"));
    let calls = bind(&holder, ok);
    create(&holder, "file");
    let root = holder.files();
    let stateid = delegated_directory(&holder, &root).unwrap().unwrap();
    let creation = creating("file", "maker", ShareAccess4::BOTH, 0);
    let status = |client: &TestClient<'_>| client.open(&client.files(), &creation).map(drop);
    assert_eq!(status(&other), Ok(()), "it finds the file");
    let (is_reached, go_on) = pause_at(&tree.before);
    let other = std::thread::scope(|scope| {
        let opened = scope.spawn(move || (status(&other), other));
        is_reached.recv().unwrap();
        let remove = RemoveArgs4 { name: component("file") };
        assert_eq!(holder.at(&root, &|compound| compound.push(&remove)), NfsStat4::Ok);
        go_on.send(()).unwrap();
        let (status, other) = opened.join().unwrap();
        assert_eq!(status, Err(NfsStat4::Delay));
        other
    });
    assert_eq!(holder.walk(&["srv", "files", "file"]), Err(NfsStat4::Noent));
    assert!(calls.try_recv().is_err());
    assert_eq!(status(&other), Err(NfsStat4::Delay));
    assert_eq!(calls.recv_timeout(LONG).unwrap().stateid, stateid);
    assert_eq!(give_back(&holder, &root, stateid), NfsStat4::Ok);
    assert_eq!(status(&other), Ok(()));
}
