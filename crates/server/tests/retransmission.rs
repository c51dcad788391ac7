//! Calls that a client retransmits because its connection ended before the reply: over a new
//! connection and from another port. The second one gets the reply to the first and changes
//! nothing, whatever happened in between.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use curt_observe::{ServerCounter, ServerCounters};
use curt_proto::mount3::{self, DirPath, MountReply};
use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, DirOpArgs, Fattr, Filename, LinkArguments, MkdirArguments,
    MknodArguments, MknodData, NfsFh3, NfsPath, NfsProcedure, NfsResult, NfsStat3, NfsTime, PROGRAM,
    RenameArguments, Sattr, SetattrArguments, StableHow, SymlinkArguments, VERSION, WccData, WriteArguments,
};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::message::encode_call_header;
use curt_rpc::server::{Limits, RpcServer, RpcServerHandle};
use curt_server::{
    ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, RECORD_MAX, Squash,
};
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::{Encode, Opaque, decode_all};

/// The sizes of a record mark, and of an accepted reply's header after it, in bytes.
const MARK: usize = 4;
const HEADER: usize = 24;

struct Bed {
    address: SocketAddr,
    handle: RpcServerHandle,
    thread: Option<JoinHandle<()>>,
    counters: Arc<ServerCounters>,
    xid: AtomicU32,
    root: NfsFh3,
}

impl Bed {
    fn new() -> Self {
        let counters = Arc::new(ServerCounters::default());
        let rules = ExportRules { squash: Squash::None, secure_ports: false, ..ExportRules::default() };
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        let exports = vec![ExportDefinition::for_everyone(b"/export".to_vec(), vfs, rules)];
        let service = NfsService::new(NfsServiceConfig {
            state: PersistentState::ephemeral().unwrap(),
            exports,
            counters: Arc::clone(&counters),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { record: RECORD_MAX, ..Limits::default() };
        let server = RpcServer::new(vec![listener], Arc::new(service.unwrap()), limits).unwrap();
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        let mut bed = Self {
            address,
            handle,
            thread,
            counters,
            xid: AtomicU32::new(1),
            root: NfsFh3::new(&[]).unwrap(),
        };
        let path = DirPath(Opaque::new(b"/export").unwrap());
        let procedure = mount3::MountProcedure::Mount.number();
        let reply = bed.send(&bed.record((mount3::PROGRAM, 3, procedure), &path));
        match decode_all(&reply[HEADER..]).unwrap() {
            MountReply::Ok(ok) => bed.root = ok.root,
            MountReply::Failed(status) => panic!("{status}"),
        }
        bed
    }

    /// A call with a new xid, as it is sent.
    fn record(&self, procedure: (u32, u32, u32), arguments: &dyn Encode) -> Vec<u8> {
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"test"),
            uid: 0,
            gid: 0,
            groups: AuthSysGids::first_of(&[]),
        });
        let mut body = Vec::new();
        let xid = self.xid.fetch_add(1, Ordering::Relaxed);
        let (program, version, number) = procedure;
        encode_call_header(&mut body, xid, program, version, number, &credential);
        arguments.encode(&mut body);
        let mark = 0x8000_0000 | u32::try_from(body.len()).unwrap();
        [&mark.to_be_bytes(), &*body].concat()
    }

    fn nfs(&self, procedure: NfsProcedure, arguments: &dyn Encode) -> Vec<u8> {
        self.record((PROGRAM, VERSION, procedure.number()), arguments)
    }

    /// Sends a record over a new connection and returns the body of the reply.
    fn send(&self, record: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(record).unwrap();
        let mut mark = [0; MARK];
        stream.read_exact(&mut mark).unwrap();
        let mut body = vec![0; usize::try_from(u32::from_be_bytes(mark) & 0x7fff_ffff).unwrap()];
        stream.read_exact(&mut body).unwrap();
        body
    }

    /// The status of a new call.
    fn status(&self, procedure: NfsProcedure, arguments: &dyn Encode) -> NfsStat3 {
        let reply = self.send(&self.nfs(procedure, arguments));
        NfsStat3::from_number(u32::from_be_bytes(reply[HEADER..HEADER + 4].try_into().unwrap())).unwrap()
    }

    fn must(&self, procedure: NfsProcedure, arguments: &dyn Encode) {
        assert_eq!(self.status(procedure, arguments), NfsStat3::Ok, "{procedure}");
    }

    fn at<'n>(&self, name: &'n str) -> DirOpArgs<'n> {
        DirOpArgs { directory: self.root, name: Filename::new(name.as_bytes()).unwrap() }
    }

    fn exists(&self, name: &str) -> bool {
        self.status(NfsProcedure::Lookup, &self.at(name)) == NfsStat3::Ok
    }

    /// Creates a file of three bytes.
    fn file(&self, name: &str) -> NfsFh3 {
        let how = CreateHow::Guarded(Sattr::default());
        let arguments = CreateArguments { place: self.at(name), how };
        let reply = self.send(&self.nfs(NfsProcedure::Create, &arguments));
        let NfsResult::Ok(created) = decode_all::<NfsResult<CreateOk, WccData>>(&reply[HEADER..]).unwrap()
        else {
            panic!("{name} is not made")
        };
        let file = created.object.unwrap();
        self.write(file);
        file
    }

    fn write(&self, file: NfsFh3) {
        let arguments = WriteArguments {
            file,
            offset: 0,
            count: 3,
            stable: StableHow::FileSync,
            data: Opaque::new(b"abc").unwrap(),
        };
        self.must(NfsProcedure::Write, &arguments);
    }

    fn attributes(&self, file: NfsFh3) -> Fattr {
        let reply = self.send(&self.nfs(NfsProcedure::Getattr, &file));
        match decode_all::<NfsResult<Fattr>>(&reply[HEADER..]).unwrap() {
            NfsResult::Ok(attributes) => attributes,
            NfsResult::Failed(status, ()) => panic!("{status}"),
        }
    }

    fn ctime(&self, file: NfsFh3) -> NfsTime {
        self.attributes(file).ctime
    }

    fn size(&self, file: NfsFh3) -> u64 {
        self.attributes(file).size
    }

    /// Sends a call, calls `between`, sends the same call over another connection, and compares the
    /// replies.
    fn twice(&self, procedure: NfsProcedure, arguments: &dyn Encode, between: impl FnOnce()) {
        let hits = || self.counters.events.value(ServerCounter::ReplyCacheHit);
        let (record, before) = (self.nfs(procedure, arguments), hits());
        let first = self.send(&record);
        assert_eq!(first[HEADER..HEADER + 4], [0; 4], "{procedure}");
        between();
        assert_eq!(self.send(&record), first, "{procedure}");
        assert_eq!(hits(), before + 1, "{procedure}");
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.handle.shutdown();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn truncation() -> Sattr {
    Sattr { size: Some(0), ..Sattr::default() }
}

// SEMANTICS: rpc-11.
#[test]
fn what_was_made_is_not_made_again_when_it_is_gone() {
    let bed = Bed::new();
    let attributes = Sattr::default();
    let remove = |name: &'static str| bed.must(NfsProcedure::Remove, &bed.at(name));

    let place = bed.at("directory");
    let mkdir = MkdirArguments { place, attributes };
    bed.twice(NfsProcedure::Mkdir, &mkdir, || bed.must(NfsProcedure::Rmdir, &place));
    let place = bed.at("link");
    let target = NfsPath::new(b"target").unwrap();
    let symlink = SymlinkArguments { place, attributes, target };
    bed.twice(NfsProcedure::Symlink, &symlink, || remove("link"));
    let place = bed.at("pipe");
    let what = MknodData::Fifo(attributes);
    bed.twice(NfsProcedure::Mknod, &MknodArguments { place, what }, || remove("pipe"));
    let place = bed.at("file");
    let how = CreateHow::Guarded(attributes);
    bed.twice(NfsProcedure::Create, &CreateArguments { place, how }, || remove("file"));
    let file = bed.file("first");
    let place = bed.at("second");
    bed.twice(NfsProcedure::Link, &LinkArguments { file, place }, || remove("second"));
    for name in ["directory", "link", "pipe", "file", "second"] {
        assert!(!bed.exists(name), "{name} was made a second time");
    }
}

// SEMANTICS: rpc-11.
#[test]
fn what_was_removed_or_cut_is_not_again_when_it_is_back() {
    let bed = Bed::new();
    bed.file("old");
    bed.twice(NfsProcedure::Remove, &bed.at("old"), || {
        bed.file("old");
    });
    let place = bed.at("directory");
    let mkdir = MkdirArguments { place, attributes: Sattr::default() };
    bed.must(NfsProcedure::Mkdir, &mkdir);
    bed.twice(NfsProcedure::Rmdir, &place, || bed.must(NfsProcedure::Mkdir, &mkdir));
    bed.file("from");
    let (from, to) = (bed.at("from"), bed.at("to"));
    bed.twice(NfsProcedure::Rename, &RenameArguments { from, to }, || {
        bed.file("from");
    });
    for name in ["old", "directory", "from", "to"] {
        assert!(bed.exists(name), "{name} was taken a second time");
    }
    let object = bed.file("data");
    for guarded in [false, true] {
        let guard = guarded.then(|| bed.ctime(object));
        let setattr = SetattrArguments { object, attributes: truncation(), guard };
        bed.twice(NfsProcedure::Setattr, &setattr, || bed.write(object));
        assert_eq!(bed.size(object), 3, "cut a second time");
    }
    let (place, how) = (bed.at("data"), CreateHow::Unchecked(truncation()));
    bed.twice(NfsProcedure::Create, &CreateArguments { place, how }, || bed.write(object));
    assert_eq!(bed.size(object), 3, "cut a second time");
}

#[test]
fn what_failed_fails_in_the_same_way_and_other_calls_of_that_number_do_not() {
    let bed = Bed::new();
    let record = bed.nfs(NfsProcedure::Remove, &bed.at("late"));
    let refused = bed.send(&record);
    assert_eq!(refused[HEADER..HEADER + 4], 2_u32.to_be_bytes(), "NFS3ERR_NOENT");
    bed.file("late");
    assert_eq!(bed.send(&record), refused);
    assert!(bed.exists("late"));
    // The xid is used again, for a name of the same length; and once more for the first.
    bed.file("more");
    let again = |name| {
        bed.xid.store(u32::from_be_bytes(record[4..8].try_into().unwrap()), Ordering::Relaxed);
        bed.nfs(NfsProcedure::Remove, &bed.at(name))
    };
    for name in ["more", "late"] {
        let reply = bed.send(&again(name));
        assert_eq!(reply[HEADER..HEADER + 4], [0; 4], "{name}");
    }
    bed.xid.store(1000, Ordering::Relaxed);
    assert!(!bed.exists("late") && !bed.exists("more"));
}

#[test]
fn a_client_that_left_before_the_reply_came_finds_it_when_it_is_back() {
    let bed = Bed::new();
    let record = bed.nfs(
        NfsProcedure::Mkdir,
        &MkdirArguments { place: bed.at("directory"), attributes: Sattr::default() },
    );
    // More would be dropped while the first is executed.
    for _ in 0..20 {
        // The first may be executed at any time: before, during and after the next one.
        let mut stream = TcpStream::connect(bed.address).unwrap();
        stream.write_all(&record).unwrap();
        drop(stream);
    }
    assert_eq!(bed.send(&record)[HEADER..HEADER + 4], [0; 4]);
    assert_eq!(bed.counters.events.value(ServerCounter::ReplyCacheMiss), 1);
}
