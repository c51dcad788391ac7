//! Exports are replaced while clients work: no request may fail, and what is no longer exported is stale at once.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calling;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use curt_proto::mount3::{self, ExportPath, MountReply};
use curt_proto::nfs3::{
    self, DirectoryName, Fattr, FileHandle, Filename, LookupOk, Outcome, Procedure, Stability, Status,
    WccData, WriteArguments, WriteOk,
};
use curt_rpc::client::{Interrupt, NoEvents, PortSource, Server as Address, TcpOptions, TcpTransport};
use curt_rpc::server::{Limits, Server};
use curt_server::{
    Client, ExportClient, ExportDefinition, ExportRules, NfsService, Setup, Squash, State, record_bounds,
};
use curt_trace::ServerCounters;
use curt_vfs::{Caller, CreateMode, MemoryOptions, MemoryVfs, SetAttributes, Vfs};
use curt_xdr::{Encode, Opaque, decode_all};

use calling::call;

/// User and group of those who call.
const ROOT: (u32, u32) = (0, 0);
/// How often the exports are replaced.
const RELOADS: usize = 50;
/// How many clients work meanwhile, each on a connection of its own.
const CLIENTS: usize = 4;
/// How much each of them must have done between two reloads.
const CALLS_BETWEEN: usize = 20;

fn rules() -> ExportRules {
    ExportRules {
        squash: Squash::None,
        secure_ports: false,
        ..ExportRules::default()
    }
}

/// The tree for everybody or for a network, with or without neighbours, by rules that all let a client go on.
fn exports(round: usize, tree: &Arc<MemoryVfs>) -> Vec<ExportDefinition> {
    let vfs: Arc<dyn Vfs> = Arc::<MemoryVfs>::clone(tree);
    let mut rules = rules();
    rules.asynchronous = round.is_multiple_of(3);
    rules.readdirplus = !round.is_multiple_of(5);
    let everyone = ExportDefinition::for_everyone(b"/tree".to_vec(), vfs, rules);
    let clients = ["127.0.0.0/8", "*.nowhere.invalid", "@nobody", "*"].map(|client| ExportClient {
        client: Client::parse(client).unwrap(),
        ..ExportClient::everyone(rules)
    });
    let mut exports = vec![match round % 2 {
        0 => everyone,
        _ => ExportDefinition {
            clients: clients.to_vec(),
            ..everyone
        },
    }];
    for neighbour in 0..round % 4 {
        let path = format!("/neighbour{neighbour}").into_bytes();
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        exports.push(ExportDefinition::for_everyone(path, vfs, rules));
    }
    exports
}

/// A server of the tree, which ends with the test's process.
fn serve(tree: &Arc<MemoryVfs>) -> (Arc<NfsService>, SocketAddr) {
    let service = NfsService::new(Setup {
        state: State::with_key([9; 16]),
        exports: exports(0, tree),
        counters: Arc::new(ServerCounters::default()),
    });
    let service = Arc::new(service.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let limits = Limits {
        records: record_bounds(),
        ..Limits::default()
    };
    let server = Server::new(vec![listener], Arc::<NfsService>::clone(&service), limits).unwrap();
    std::thread::spawn(|| server.run());
    (service, address)
}

/// A connection of its own, and the file on it.
struct Worker {
    transport: TcpTransport,
    root: FileHandle,
    file: FileHandle,
}

impl Worker {
    fn new(address: SocketAddr) -> Self {
        let options = TcpOptions::new(Address::Address(address.ip()), PortSource::Fixed(address.port()));
        let transport = TcpTransport::connect(options, Arc::new(NoEvents), &Interrupt::never()).unwrap();
        let path = ExportPath(Opaque::new(b"/tree").unwrap());
        let mounted = call(&transport, ROOT, (mount3::PROGRAM, 1), &path);
        let MountReply::Ok(mounted) = decode_all(&mounted).unwrap() else {
            panic!("not mounted")
        };
        let mut worker = Self {
            transport,
            root: mounted.root,
            file: mounted.root,
        };
        worker.file = worker.lookup().unwrap();
        worker
    }

    fn nfs<T>(&self, procedure: Procedure, arguments: &(dyn Encode + Sync), read: impl Fn(&[u8]) -> T) -> T {
        read(&call(
            &self.transport,
            ROOT,
            (nfs3::PROGRAM, procedure.number()),
            arguments,
        ))
    }

    fn lookup(&self) -> Result<FileHandle, Status> {
        let wanted = DirectoryName {
            directory: self.root,
            name: Filename::new(b"file").unwrap(),
        };
        let found: Outcome<LookupOk, Option<Fattr>> =
            self.nfs(Procedure::Lookup, &wanted, |results| decode_all(results).unwrap());
        match found {
            Outcome::Ok(found) => Ok(found.object),
            Outcome::Failed(status, _) => Err(status),
        }
    }

    fn getattr(&self) -> Status {
        let told: Outcome<Fattr, ()> = self.nfs(Procedure::Getattr, &self.file, |results| {
            decode_all(results).unwrap()
        });
        told.status()
    }

    fn write(&self) -> Status {
        let arguments = WriteArguments {
            file: self.file,
            offset: 0,
            count: 4,
            stability: Stability::FileSync,
            data: Opaque::new(b"data").unwrap(),
        };
        let written: Outcome<WriteOk, WccData> = self.nfs(Procedure::Write, &arguments, |results| {
            decode_all(results).unwrap()
        });
        written.status()
    }

    /// One of each, and what became of them.
    fn work(&self) -> [Status; 3] {
        let looked = self.lookup().map_or_else(|status| status, |_| Status::Ok);
        [looked, self.getattr(), self.write()]
    }
}

#[test]
fn fifty_reloads_fail_no_request_and_the_last_makes_all_handles_stale() {
    let tree = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let set = SetAttributes::with_mode(0o644);
    let made = tree.create(&Caller::ROOT, &tree.root(), b"file", CreateMode::Guarded(&set));
    made.value.unwrap();
    let (service, address) = serve(&tree);
    let (done, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let work = || {
            let worker = Worker::new(address);
            while !done.load(Ordering::Acquire) {
                assert_eq!(worker.work(), [Status::Ok; 3]);
                calls.fetch_add(3, Ordering::Relaxed);
            }
            worker
        };
        let workers: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        for round in 1..=RELOADS {
            let wanted = calls.load(Ordering::Relaxed) + CALLS_BETWEEN * CLIENTS;
            while calls.load(Ordering::Relaxed) < wanted {
                assert!(
                    !workers.iter().any(std::thread::ScopedJoinHandle::is_finished),
                    "a request failed"
                );
                std::thread::yield_now();
            }
            service.replace_exports(exports(round, &tree)).unwrap();
        }
        done.store(true, Ordering::Release);
        let workers: Vec<Worker> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        service.replace_exports(Vec::new()).unwrap();
        for worker in &workers {
            assert_eq!(worker.work(), [Status::Stale; 3]);
        }
        assert_eq!(
            Arc::strong_count(&tree),
            1,
            "a connection keeps what is exported no longer"
        );
    });
}
