//! Exports are replaced while clients work: no request may fail, and handles of removed exports are
//! stale at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared by the tests of this folder")]
mod calling;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use curt_proto::nfs3::{
    Fattr, NfsFh3, NfsProcedure, NfsResult, NfsStat3, StableHow, WccData, WriteArguments, WriteOk,
};
use curt_rpc::client::TcpTransport;
use curt_server::{ClientSpec, ExportClient, ExportDefinition, NfsService};
use curt_types::SetAttributes;
use curt_vfs::{CreateMode, FsCred, MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Opaque, decode_all};

/// Number of reloads.
const RELOADS: usize = 50;
/// Number of clients, each on its own connection.
const CLIENTS: usize = 4;
/// Minimum number of operations of each client between two reloads.
const CALLS_BETWEEN: usize = 20;

/// The tree for all clients or for a network, with or without other exports, by rules that permit a
/// client to continue.
fn exports(round: usize, tree: &Arc<MemoryVfs>) -> Vec<ExportDefinition> {
    let vfs: Arc<dyn Vfs> = Arc::<MemoryVfs>::clone(tree);
    let mut rules = calling::open_rules();
    rules.asynchronous = round.is_multiple_of(3);
    rules.readdirplus = !round.is_multiple_of(5);
    let everyone = ExportDefinition::for_everyone(b"/tree".to_vec(), vfs, rules);
    let clients = ["127.0.0.0/8", "*.nowhere.invalid", "@nobody", "*"].map(|client| ExportClient {
        client: ClientSpec::parse(client).unwrap(),
        ..ExportClient::everyone(rules)
    });
    let mut exports = vec![match round % 2 {
        0 => everyone,
        _ => ExportDefinition { clients: clients.to_vec(), ..everyone },
    }];
    for neighbour in 0..round % 4 {
        let path = format!("/neighbour{neighbour}").into_bytes();
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        exports.push(ExportDefinition::for_everyone(path, vfs, rules));
    }
    exports
}

/// A new connection, and the file on it.
struct Worker {
    transport: TcpTransport,
    root: NfsFh3,
    file: NfsFh3,
}

impl Worker {
    fn new(address: SocketAddr) -> Self {
        let transport = calling::connect(address);
        let root = calling::mount(&transport, calling::ROOT, "/tree");
        let file = calling::lookup(&transport, root, b"file").unwrap();
        Self { transport, root, file }
    }

    fn getattr(&self) -> NfsStat3 {
        let told = calling::nfs(&self.transport, NfsProcedure::Getattr, &self.file);
        decode_all::<NfsResult<Fattr, ()>>(&told).unwrap().status()
    }

    fn write(&self) -> NfsStat3 {
        let arguments = WriteArguments {
            file: self.file,
            offset: 0,
            count: 4,
            stable: StableHow::FileSync,
            data: Opaque::new(b"data").unwrap(),
        };
        let written = calling::nfs(&self.transport, NfsProcedure::Write, &arguments);
        decode_all::<NfsResult<WriteOk, WccData>>(&written).unwrap().status()
    }

    /// One client of each kind, and its result.
    fn work(&self) -> [NfsStat3; 3] {
        let looked = calling::lookup(&self.transport, self.root, b"file");
        let looked = looked.map_or_else(|status| status, |_| NfsStat3::Ok);
        [looked, self.getattr(), self.write()]
    }
}

// SEMANTICS: export-3.
#[test]
fn fifty_reloads_fail_no_request_and_the_last_makes_all_handles_stale() {
    let tree = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let set = SetAttributes::with_mode(0o644);
    let made = tree.create(&FsCred::ROOT, &tree.root(), b"file", CreateMode::Guarded(&set));
    made.value.unwrap();
    let service = Arc::new(NfsService::new(calling::setup(exports(0, &tree))).unwrap());
    let address = calling::serve(Arc::clone(&service));
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            let worker = Worker::new(address);
            while !done.load(Ordering::Acquire) {
                assert_eq!(worker.work(), [NfsStat3::Ok; 3]);
                calls.fetch_add(3, Ordering::Relaxed);
            }
            worker
        };
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        for round in 1..=RELOADS {
            let wanted = calls.load(Ordering::Relaxed) + CALLS_BETWEEN * CLIENTS;
            while calls.load(Ordering::Relaxed) < wanted {
                assert!(!workers.iter().any(std::thread::ScopedJoinHandle::is_finished), "a request failed");
                std::thread::yield_now();
            }
            service.replace_exports(exports(round, &tree)).unwrap();
        }
        done.store(true, Ordering::Release);
        let workers: Vec<Worker> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        service.replace_exports(Vec::new()).unwrap();
        for worker in &workers {
            assert_eq!(worker.work(), [NfsStat3::Stale; 3]);
        }
        // The last request may hold its reference for a moment after its reply.
        let end = Instant::now() + Duration::from_secs(60);
        while Arc::strong_count(&tree) > 1 {
            assert!(Instant::now() < end, "a connection keeps what is exported no longer");
            std::thread::yield_now();
        }
    });
}
