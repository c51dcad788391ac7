//! The cost of a warm call besides its transport through the socket: system calls, counted in a
//! traced server process, and allocations, counted in a server in this process. Warm means: after
//! 100 equal calls on one connection. Where tracing is not permitted, that part is skipped with a
//! message.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../rpc/tests/warm/sys.rs"]
mod counting;
mod sys;
#[path = "../wire/mod.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared by the tests of this folder")]
mod wire;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use curt_observe::events::{Event, EventWatch};
use curt_observe::stages::StageTimes;
use curt_proto::nfs3::{
    self, AccessArguments, CreateArguments, CreateHow, DirOpArgs, Filename, NfsFh3, NfsProcedure, NfsResult,
    ReadArguments, Sattr, StableHow, WriteArguments,
};
use curt_proto::nfs4::{
    self, Attribute, AttributeValues, ChannelAttributes, ClientOwner, CompoundEncoder, CompoundResults,
    CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4, ExchangeIdArgs4, ExchangeIdFlags,
    ExchangeIdOk4, Fattr4, Ftype4, GetattrArgs4, LookupArgs4, Nfs4Operation, Nfs4Procedure, NfsFh4,
    NverifyArgs4, PutfhArgs4, ReaddirArgs4, RemoveArgs4, SequenceArgs4, SequenceId, SessionId, SlotId,
    StateProtectArgs, Verifier4,
};
use curt_rpc::message::{CallMessage, encode_call_header};
use curt_rpc::record;
use curt_rpc::server::{CallContext, CallFailure, Limits, RpcService};
use curt_server::{ExportRules, NfsService, Squash};
use curt_vfs::{LocalOptions, LocalVfs};
use curt_xdr::{Encode, Opaque, VarArray};
use parking_lot::Mutex;
use wire::{PATIENCE, Served, Wire, export, open_rules, user};

/// Marks this process as the traced server, and contains the kind of its tree.
const TRACED: &str = "CURT_TRACED";
const PATH: &str = "/warm";
const WARM: usize = 100;
/// How often, in as many calls, the right to write may be checked again. This happens four times a
/// second: far less than once per call.
const CHECKS_MAX: usize = 20;
const SIZE: u32 = 4096;
/// The system calls of a socket: one to receive, one to send.
const SOCKET: [libc::c_long; 5] =
    [libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_sendto, libc::SYS_sendmsg, libc::SYS_sendfile];

fn main() -> ExitCode {
    if let Some(directory) = std::env::var_os(TRACED) {
        serve_until_killed(Path::new(&directory));
    }
    // In memory, so that the latency of a disk makes no difference.
    let parent = Path::new("/dev/shm");
    let directory = if parent.is_dir() { tempfile::tempdir_in(parent) } else { tempfile::tempdir() };
    let directory = directory.unwrap();
    make_file(directory.path());
    let mut good = count_allocations(directory.path());
    // Enabled events cost no allocation and no system call either.
    let watch = EventWatch::begin(Event::ALL).unwrap();
    good &= count_allocations(directory.path());
    let mut told = Vec::new();
    watch.drain(&mut told);
    assert!(!told.is_empty() && watch.lost() == 0);
    drop(watch);
    good &= trace(directory.path(), Place::Memory);
    let on_disk = tempfile::tempdir().unwrap();
    make_file(on_disk.path());
    good &= trace(on_disk.path(), Place::Disk);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The storage of the exported tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Memory,
    /// A local directory, whose contents are in the page cache. There is no WRITE, because after a
    /// slow one another thread reads the connection, and tracing makes it slow. An object that was
    /// not used for a while is opened again.
    Disk,
}

/// Counts the system calls of a traced server, if tracing is permitted.
fn trace(directory: &Path, place: Place) -> bool {
    println!("{place:?}");
    match start_traced(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            println!("system calls not counted: tracing is not allowed here");
            true
        }
        started => count_calls(started.unwrap(), place, directory.to_owned()),
    }
}

/// The caller whose calls are counted: an unprivileged one if that can be chosen.
fn caller() -> (u32, u32) {
    if rustix::process::geteuid().is_root() {
        (1000, 1000)
    } else {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }
}

/// A file of the caller that is old enough for cached results about it to be used.
fn make_file(directory: &Path) {
    let path = directory.join("file");
    std::fs::write(&path, [7; SIZE as usize]).unwrap();
    let (uid, gid) = caller();
    for made in [directory, &path] {
        std::os::unix::fs::chown(made, Some(uid), Some(gid)).unwrap();
    }
    wait_until_old(&path);
}

fn wait_until_old(path: &Path) {
    let changed = || {
        let modified = std::fs::metadata(path).unwrap().modified().unwrap();
        modified.elapsed().unwrap_or_default()
    };
    while changed() < Duration::from_millis(50) {
        std::thread::yield_now();
    }
}

fn serve(directory: &Path) -> Served {
    let options = LocalOptions { table: Some(directory.join(".table")), ..LocalOptions::default() };
    let vfs = LocalVfs::open(directory, &options).unwrap();
    let (uid, gid) = caller();
    let rules = ExportRules { squash: Squash::All, anonymous_uid: uid, anonymous_gid: gid, ..open_rules() };
    Served::wrapped(vec![export(PATH, Arc::new(vfs), rules)], Limits::default(), |service| {
        Arc::new(CountedService(service))
    })
}

/// Counts the allocations of the threads that execute its calls.
struct CountedService(Arc<NfsService>);

impl RpcService for CountedService {
    fn call(
        &self,
        call: &CallMessage<'_>,
        context: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        counting::choose_this_thread();
        self.0.call(call, context, reply)
    }

    fn stages(&self) -> Option<Arc<StageTimes>> {
        self.0.stages()
    }
}

fn serve_until_killed(directory: &Path) -> ! {
    let served = serve(directory);
    // All events are enabled, for a reader that never reads.
    let _watch = EventWatch::begin(Event::ALL).unwrap();
    println!("{}", served.address);
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// The counted calls: the name and record of each, and the maximum number of its system calls.
fn calls(wire: &mut Wire) -> Vec<(&'static str, Vec<u8>, usize)> {
    let directory = wire.mount(PATH);
    let NfsResult::Ok(found) = wire.lookup(directory, b"file") else {
        panic!("there is a file");
    };
    let file: NfsFh3 = found.object;
    let access = AccessArguments { object: file, access: 0x2d };
    let name = DirOpArgs { directory, name: Filename::new(b"file").unwrap() };
    let read = ReadArguments { file, offset: 0, count: SIZE };
    let data = [9; SIZE as usize];
    let write = WriteArguments {
        file,
        offset: 0,
        count: SIZE,
        stable: StableHow::Unstable,
        data: Opaque::new(&data).unwrap(),
    };
    vec![
        ("GETATTR", encoded(NfsProcedure::Getattr, &file), 1),
        ("ACCESS", encoded(NfsProcedure::Access, &access), 1),
        ("LOOKUP", encoded(NfsProcedure::Lookup, &name), 2),
        ("READ", encoded(NfsProcedure::Read, &read), 2),
        ("WRITE", encoded(NfsProcedure::Write, &write), 3),
    ]
}

fn encoded(procedure: NfsProcedure, arguments: &dyn Encode) -> Vec<u8> {
    let mut out = Vec::new();
    let body = record::begin_record(&mut out);
    let number = procedure.number();
    encode_call_header(&mut out, 1, nfs3::PROGRAM, nfs3::VERSION, number, &user(1000, 1000, &[1001]));
    arguments.encode(&mut out);
    record::finish_record(&mut out, body, 0);
    out
}

/// Sends a call and receives its reply, which has to be a success. Allocates nothing.
fn exchange(stream: &mut TcpStream, call: &[u8], reply: &mut [u8]) {
    stream.write_all(call).unwrap();
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let length = usize::try_from(u32::from_be_bytes(mark) & 0x7fff_ffff).unwrap();
    stream.read_exact(&mut reply[..length]).unwrap();
    // xid, reply, accepted, no verifier (two words), success; then the procedure's own status.
    let words = reply[4..28].chunks(4).map(|word| word[3]).collect::<arrayvec::ArrayVec<u8, 6>>();
    assert_eq!(words[..], [1, 0, 0, 0, 0, 0]);
}

fn count_allocations(directory: &Path) -> bool {
    let served = serve(directory);
    let mut wire = served.connect();
    let mut reply = vec![0; 2 * SIZE as usize];
    let mut good = true;
    for (name, call, _) in calls(&mut wire) {
        for _ in 0..WARM {
            exchange(&mut wire.stream, &call, &mut reply);
        }
        let until = Instant::now() + PATIENCE;
        good &= loop {
            let before = counting::allocations_chosen();
            for _ in 0..WARM {
                exchange(&mut wire.stream, &call, &mut reply);
            }
            let allocations = counting::allocations_chosen() - before;
            println!("{name}: {allocations} allocations in {WARM} warm calls");
            // If the client is not scheduled for long, its connection becomes idle and gives its
            // buffers back. So the best round counts.
            if allocations == 0 || Instant::now() > until {
                break allocations == 0;
            }
        };
    }
    good
}

/// State that the tracer and the client share.
#[derive(Default)]
struct Count {
    armed: AtomicBool,
    /// Whether the serving thread waits for a call.
    waits: AtomicBool,
    socket: AtomicUsize,
    others: Mutex<BTreeMap<libc::c_long, usize>>,
}

impl Count {
    fn see(&self, is_serving: bool, number: Option<libc::c_long>) {
        if !is_serving {
            return;
        }
        let receives = number.is_some_and(|number| number == libc::SYS_recvfrom);
        if self.armed.load(Ordering::SeqCst)
            && let Some(number) = number
        {
            if SOCKET.contains(&number) {
                self.socket.fetch_add(1, Ordering::SeqCst);
            } else {
                *self.others.lock().entry(number).or_default() += 1;
            }
        }
        self.waits.store(receives, Ordering::SeqCst);
    }

    /// Begins or ends counting while no call is in progress.
    fn arm(&self, armed: bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.waits.load(Ordering::SeqCst) {
            assert!(Instant::now() < deadline, "the server never waits for calls");
            std::thread::yield_now();
        }
        self.armed.store(armed, Ordering::SeqCst);
    }
}

fn start_traced(directory: &Path) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.env(TRACED, directory).stdout(Stdio::piped());
    sys::spawn(&mut command)
}

/// Traces `server` on this thread, which started it, while another thread is its client.
fn count_calls(mut server: Child, place: Place, directory: PathBuf) -> bool {
    let count = Arc::new(Count::default());
    let stdout = BufReader::new(server.stdout.take().unwrap());
    let pid = server.id();
    let counted = Arc::clone(&count);
    let client = std::thread::spawn(move || {
        let good = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let address = stdout.lines().next().unwrap().unwrap();
            count_each(address.parse().unwrap(), &counted, place, &directory)
        }));
        // On success and on failure, the tracer ends with the traced process.
        let killed = server.kill();
        good.is_ok_and(|good| good) && killed.is_ok()
    });
    let mut serving: BTreeMap<libc::pid_t, bool> = BTreeMap::new();
    let traced = sys::trace(|event| {
        let is_serving = *serving.entry(event.thread).or_insert_with(|| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/task/{}/comm", event.thread));
            name.is_ok_and(|name| name.trim() == "curt-serve")
        });
        // The first calls of a thread include setting its name.
        if !is_serving && event.number == Some(libc::SYS_recvfrom) {
            serving.insert(event.thread, true);
        }
        count.see(serving[&event.thread], event.number);
    });
    traced.unwrap();
    client.join().unwrap()
}

fn count_each(address: SocketAddr, count: &Count, place: Place, directory: &Path) -> bool {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut wire = Wire { stream, xid: 0, who: user(1000, 1000, &[1001]) };
    let mut reply = vec![0; 2 * SIZE as usize];
    let mut good = true;
    for (name, call, most) in calls(&mut wire) {
        if name == "WRITE" && place == Place::Disk {
            continue;
        }
        for _ in 0..WARM {
            exchange(&mut wire.stream, &call, &mut reply);
        }
        let checks = if name == "WRITE" { CHECKS_MAX } else { 0 };
        let until = Instant::now() + PATIENCE;
        good &= loop {
            let (all, socket) = count_round(name, count, || {
                exchange(&mut wire.stream, &call, &mut reply);
            });
            let is_good = all <= most * WARM + checks && socket <= 2 * WARM;
            // If the client is not scheduled for long, the server makes other calls to wait for it.
            // So the best round counts.
            if is_good || Instant::now() > until {
                break is_good;
            }
        };
    }
    match place {
        Place::Memory => good & count_names(&mut wire, count) & count_removals(&mut wire, count, directory),
        // Names are durable before the reply, so the connection is handed over meanwhile.
        Place::Disk => good,
    }
}

/// The number of system calls of so many calls, and the number of those on the socket.
fn count_round(name: &str, count: &Count, mut exchange: impl FnMut()) -> (usize, usize) {
    count.arm(true);
    (0..WARM).for_each(|_| exchange());
    count.arm(false);
    let socket = count.socket.swap(0, Ordering::SeqCst);
    let others = std::mem::take(&mut *count.others.lock());
    let all = others.values().sum();
    println!("{name}: {all} system calls in {WARM} warm calls, by number {others:?}; {socket} of the socket");
    (all, socket)
}

/// Maximum number of system calls of a CREATE and the REMOVE after it: stat of the directory before
/// and after each; open, stat, handle and close of the new file; its handle, stat, and unlink.
const MADE_AND_REMOVED: usize = 6 + 5;

/// Names that are created and removed. Each call has its own xid, because otherwise it would be a
/// duplicate.
fn count_names(wire: &mut Wire, count: &Count) -> bool {
    let directory = wire.mount(PATH);
    let place = DirOpArgs { directory, name: Filename::new(b"made").unwrap() };
    let how = CreateHow::Guarded(Sattr { mode: Some(0o644), ..Sattr::default() });
    let create = encoded(NfsProcedure::Create, &CreateArguments { place, how });
    let remove = encoded(NfsProcedure::Remove, &place);
    let (mut reply, mut xid) = (vec![0; 2 * SIZE as usize], 1_u32);
    let mut both = |stream: &mut TcpStream| {
        for call in [&create, &remove] {
            let mut call = call.clone();
            xid += 1;
            call[4..8].copy_from_slice(&xid.to_be_bytes());
            exchange(stream, &call, &mut reply);
        }
    };
    let mut round = || (0..WARM).for_each(|_| both(&mut wire.stream));
    round();
    let until = Instant::now() + PATIENCE;
    loop {
        count.arm(true);
        round();
        count.arm(false);
        let mut others = std::mem::take(&mut *count.others.lock());
        // Cached replies need memory; and a debug build checks each descriptor that it closes.
        for number in [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_brk, libc::SYS_fcntl] {
            others.remove(&number);
        }
        let all: usize = others.values().sum();
        println!("CREATE and REMOVE: {all} system calls in {WARM} warm pairs, by number {others:?}");
        let is_good = all <= MADE_AND_REMOVED * WARM;
        if is_good || Instant::now() > until {
            return is_good;
        }
    }
}

/// Maximum number of system calls of a REMOVE over NFSv4.1 that first compares the type of what a
/// listing has returned: the name's status in LOOKUP; its status again, stat of the directory
/// before and after, and unlink in REMOVE. NVERIFY and GETATTR use what these have returned.
const COMPARED_AND_REMOVED: usize = 1 + 4;

/// A session of NFSv4.1 with one slot.
struct Session {
    id: SessionId,
    sequence: u32,
}

impl Session {
    fn new(wire: &mut Wire) -> Self {
        let channel = ChannelAttributes {
            header_padding: 0,
            request_max: 1 << 16,
            response_max: 1 << 16,
            response_cached_max: 4096,
            operations_max: 16,
            requests_max: 1,
            rdma_ird: VarArray::default(),
        };
        let owner = Opaque::new(b"warm").unwrap();
        let presented = ExchangeIdArgs4 {
            owner: ClientOwner { verifier: Verifier4([1; 8]), owner },
            flags: ExchangeIdFlags(0),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::default(),
        };
        let reply = ask_compound(wire, &|compound| compound.push(&presented));
        let mut results = CompoundResults::new(&reply).unwrap();
        let exchanged: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).unwrap();
        let creation = CreateSessionArgs4 {
            clientid: exchanged.clientid,
            sequence: exchanged.sequence,
            flags: CreateSessionFlags(0),
            fore: channel.clone(),
            back: channel,
            callback_program: 1,
            callback_security: VarArray::default(),
        };
        let reply = ask_compound(wire, &|compound| compound.push(&creation));
        let mut results = CompoundResults::new(&reply).unwrap();
        let created: CreateSessionOk4 = results.next(Nfs4Operation::CreateSession).unwrap();
        Self { id: created.session, sequence: 0 }
    }

    /// The record of the next compound.
    fn encoded(&mut self, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
        self.sequence += 1;
        let sequence = SequenceArgs4 {
            session: self.id,
            sequence: SequenceId(self.sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        let arguments = compound(&|compound| {
            compound.push(&sequence);
            operations(compound);
        });
        let mut out = Vec::new();
        let body = record::begin_record(&mut out);
        let (program, version, procedure) = COMPOUND;
        encode_call_header(&mut out, 1, program, version, procedure, &user(1000, 1000, &[1001]));
        out.extend_from_slice(&arguments);
        record::finish_record(&mut out, body, 0);
        out
    }
}

const COMPOUND: (u32, u32, u32) = (nfs4::PROGRAM, nfs4::VERSION, Nfs4Procedure::Compound.number());

fn compound(operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    let mut arguments = Vec::new();
    let mut encoder = CompoundEncoder::new(&mut arguments, Opaque::default(), 1);
    operations(&mut encoder);
    encoder.finish();
    arguments
}

fn ask_compound(wire: &mut Wire, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    wire.raw(COMPOUND, &compound(operations)).unwrap()
}

/// Removes files by compounds as Curt's client sends them.
fn count_removals(wire: &mut Wire, count: &Count, parent: &Path) -> bool {
    let (mut session, root) = (Session::new(wire), wire.mount(PATH));
    let root = NfsFh4::new(root.as_bytes()).unwrap();
    let names: Vec<String> = (0..WARM).map(|number| format!("removed-{number}")).collect();
    let values = AttributeValues { kind: Some(Ftype4::Directory), ..AttributeValues::default() };
    let (mask, mut encoded) = (Attribute::set(&[Attribute::Type]), Vec::new());
    values.encode_values(mask, &mut encoded);
    let directory_type = Fattr4 { mask, values: Opaque::new(&encoded).unwrap() };
    let wanted = Attribute::set(&[Attribute::Type, Attribute::Change, Attribute::Fileid]);
    let mut reply = vec![0; 1 << 16];
    let until = Instant::now() + PATIENCE;
    loop {
        let paths = names.iter().map(|name| parent.join(name));
        paths.clone().for_each(|path| std::fs::write(path, "").unwrap());
        paths.clone().for_each(|path| wait_until_old(&path));
        let listing = session.encoded(&|compound| {
            compound.push(&PutfhArgs4 { object: root });
            compound.push(&ReaddirArgs4 {
                cookie: 0,
                verifier: Verifier4::default(),
                directory_count: 1 << 15,
                max_count: 1 << 15,
                attributes: wanted,
            });
        });
        exchange(&mut wire.stream, &listing, &mut reply);
        let calls: Vec<_> = names
            .iter()
            .map(|name| {
                let name = Opaque::new(name.as_bytes()).unwrap();
                session.encoded(&|compound| {
                    compound.push(&PutfhArgs4 { object: root });
                    compound.bare(Nfs4Operation::Savefh);
                    compound.push(&LookupArgs4 { name });
                    compound.push(&NverifyArgs4 { attributes: directory_type });
                    compound.bare(Nfs4Operation::Restorefh);
                    compound.push(&RemoveArgs4 { name });
                    compound.push(&GetattrArgs4 { attributes: wanted });
                })
            })
            .collect();
        let mut calls = calls.iter();
        let (all, socket) = count_round("NFSv4.1 REMOVE", count, || {
            exchange(&mut wire.stream, calls.next().unwrap(), &mut reply);
        });
        assert!(paths.clone().all(|path| !path.exists()));
        let is_good = all <= COMPARED_AND_REMOVED * WARM && socket <= 2 * WARM;
        if is_good || Instant::now() > until {
            return is_good;
        }
    }
}
