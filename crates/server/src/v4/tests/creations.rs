//! OPENs that create files, while others open the same files.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use curt_observe::ServerCounters;
use curt_proto::nfs4::*;
use curt_types::Timestamp;
use curt_vfs::{CreatedNode, FsCred, MemoryOptions, MemoryVfs, NewNode, NodeHandle, Vfs, WccResult};
use parking_lot::Mutex;

use super::delegations::bind_answering;
use super::test_client::{Server, TestClient, creating, opening, rules};
use crate::{ExportDefinition, NfsService, NfsServiceConfig, PersistentState};

/// A tree on a slow disk: a new name is visible before its creation returns.
struct SlowTree {
    tree: MemoryVfs,
    /// Reports a name, and waits until the creation may return.
    pause: Mutex<Option<(SyncSender<()>, Receiver<()>)>>,
}

impl Vfs for SlowTree {
    fn make(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        object: NewNode<'_>,
    ) -> WccResult<CreatedNode> {
        let made = self.tree.make(caller, directory, name, object);
        if let Some((created, go_on)) = self.pause.lock().take() {
            created.send(()).unwrap();
            go_on.recv().unwrap();
        }
        made
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
        write,
        commit,
        remove,
        remove_directory,
        rename,
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
    let tree = Arc::new(SlowTree { tree: MemoryVfs::new(options), pause: Mutex::default() });
    let export =
        ExportDefinition::for_everyone(b"/srv/files".to_vec(), Arc::<SlowTree>::clone(&tree), rules());
    let service = NfsService::new(NfsServiceConfig {
        state: PersistentState::with_key([9; 16]),
        exports: vec![export],
        counters: Arc::new(ServerCounters::default()),
    });
    let service = Arc::new(service.unwrap());
    service.serve_callbacks().unwrap();
    let server = Server::over(service);
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
    let (created, is_created) = sync_channel(1);
    let (go_on, may_go_on) = sync_channel(1);
    *tree.pause.lock() = Some((created, may_go_on));
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
