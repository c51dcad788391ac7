//! `cargo xtask bench opens`: the server's state of NFSv4, without a network: the time of compounds
//! that open, lock, unlock and close a file of a tree in memory, while the client has many opens
//! with a lock each; of an OPEN that is denied while a silent client has many; and the memory of an
//! open. The floor of its growth are the times of a `HashMap` with as many records.

use std::collections::HashMap;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use curt_bench::processes::{Machine, resident_mib};
use curt_observe::ServerCounters;
use curt_proto::nfs4::{
    Attribute, Bitmap4, Clientid, CloseArgs4, CompoundEncoder, CompoundResults, CreateHow4, Fattr4,
    GetattrArgs4, GetfhOk4, LockArgs4, LockType4, Locker, LockuArgs4, LookupArgs4, Nfs4Operation, NfsFh4,
    NfsStat4, OpaqueLimited, OpenArgs4, OpenClaim, OpenHow, OpenOk4, PROGRAM, PutfhArgs4, ReadArgs4,
    ReclaimCompleteArgs4, SequenceArgs4, SequenceId, SequenceOk4, SessionId, ShareAccess4, SlotId,
    StateOwner, Stateid, VERSION,
};
use curt_rpc::auth::{AuthSys, AuthSysGids, OpaqueAuth};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, RpcService as _};
use curt_server::{ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash};
use curt_types::FileHandle;
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::Opaque;
use serde_json::json;

use crate::latency::session;
use crate::{own_program, print_rows, say};
use curt_bench::statistics::median;

/// The numbers of opens, each of which has a lock.
const COUNTS: [u32; 5] = [10, 100, 1_000, 10_000, 100_000];
/// The number of opens by whose memory that of one is computed.
const MEMORY_COUNT: u32 = 100_000;
/// How many files are opened and closed in a round.
const BATCH: u32 = 1_000;
/// Number of owners of locks: a client may have fewer of them than locks.
const LOCK_OWNERS: u32 = 1_000;
/// The lease while a client is silent.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// The exported directory.
const EXPORT: &str = "export";

/// Arguments of `cargo xtask bench opens`.
#[derive(Debug, clap::Args)]
pub(crate) struct OpensArguments {
    /// Rounds for each number of opens
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Where the opens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OpenShape {
    /// In one file, each of an owner of its own
    Owners,
    /// Each in a file of its own, of one owner
    Files,
}

impl OpenShape {
    const fn describe(self) -> &'static str {
        match self {
            Self::Owners => "one file, an owner for each open",
            Self::Files => "a file for each open, one owner",
        }
    }

    const fn file(self, number: u32) -> u32 {
        match self {
            Self::Owners => 0,
            Self::Files => number,
        }
    }

    const fn owner(self, number: u32) -> u32 {
        match self {
            Self::Owners => number,
            Self::Files => 0,
        }
    }
}

/// A client of a server in this process.
struct DirectClient {
    service: NfsService,
    client: Clientid,
    session: SessionId,
    sequence: u32,
    root: FileHandle,
    shape: OpenShape,
}

/// An open and its lock.
#[derive(Clone)]
struct LockedOpen {
    file: FileHandle,
    open: Stateid,
    lock: Stateid,
}

impl DirectClient {
    fn new(shape: OpenShape) -> Result<Self> {
        Self::with_lease(shape, Duration::from_secs(90))
    }

    fn with_lease(shape: OpenShape, lease: Duration) -> Result<Self> {
        let setup = NfsServiceConfig {
            state: PersistentState::ephemeral()?,
            exports: vec![ExportDefinition::for_everyone(
                format!("/{EXPORT}").into_bytes(),
                Arc::new(MemoryVfs::new(MemoryOptions::default())),
                ExportRules { squash: Squash::None, secure_ports: false, ..ExportRules::default() },
            )],
            counters: Arc::new(ServerCounters::default()),
        };
        let mut service = NfsService::new(setup)?;
        service.set_lease(lease);
        let root = FileHandle::new(b"root").context("a short handle")?;
        let (client, session) = (Clientid(0), SessionId::default());
        let mut made = Self { service, client, session, sequence: 0, root, shape };
        made.become_client(b"bench")?;
        let name = Opaque::new(EXPORT.as_bytes())?;
        let reply = made.run(&|compound| {
            compound.bare(Nfs4Operation::Putrootfh);
            compound.push(&LookupArgs4 { name });
            compound.bare(Nfs4Operation::Getfh);
        })?;
        let mut results = after_sequence(&reply)?;
        results.status(Nfs4Operation::Putrootfh)?;
        results.status(Nfs4Operation::Lookup)?;
        made.root = handle(&mut results)?;
        Ok(made)
    }

    /// Goes on as another client; the present one is silent from now on.
    fn become_client(&mut self, owner: &[u8]) -> Result<()> {
        let mut ask = |arguments: Vec<u8>| execute(&self.service, &arguments);
        (self.client, self.session) = session::create(&mut ask, owner, 1, 1)?;
        self.sequence = 0;
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        self.run(&|compound| compound.push(&complete)).map(drop)
    }

    /// A client with so many opens, and a lock of each.
    fn filled(shape: OpenShape, count: u32) -> Result<(Self, Vec<LockedOpen>)> {
        let mut filled = Self::new(shape)?;
        let opens = (0..count).map(|number| filled.open_locked(number)).collect::<Result<_>>()?;
        Ok((filled, opens))
    }

    /// The reply to a compound after SEQUENCE, which succeeds.
    fn run(&mut self, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Result<Vec<u8>> {
        let (status, reply) = self.try_run(operations)?;
        ensure!(status == NfsStat4::Ok, "{status}");
        Ok(reply)
    }

    /// As [`Self::run`], with the status.
    fn try_run(&mut self, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Result<(NfsStat4, Vec<u8>)> {
        self.sequence += 1;
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(self.sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        let arguments = session::arguments(|compound| {
            compound.push(&sequence);
            operations(compound);
        });
        let reply = execute(&self.service, &arguments)?;
        let status = CompoundResults::new(&reply)?.header().status;
        Ok((status, reply))
    }

    fn open(&mut self, number: u32) -> Result<(FileHandle, Stateid)> {
        let name = format!("file-{:08}", self.shape.file(number));
        let owner = format!("{:08}@client.example", self.shape.owner(number));
        let owner = StateOwner { clientid: self.client, owner: OpaqueLimited::new(owner.as_bytes())? };
        let none = Fattr4 { mask: Bitmap4::EMPTY, values: Opaque::default() };
        let open = OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(ShareAccess4::BOTH | ShareAccess4::WANT_NO_DELEG),
            share_deny: 0,
            owner,
            how: OpenHow::Create(CreateHow4::Unchecked(none)),
            claim: OpenClaim::Null(Opaque::new(name.as_bytes())?),
        };
        let root = self.root.clone();
        let reply = self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
            compound.push(&open);
            compound.bare(Nfs4Operation::Getfh);
        })?;
        let mut results = after_sequence(&reply)?;
        results.status(Nfs4Operation::Putfh)?;
        let opened: OpenOk4<'_> = results.next(Nfs4Operation::Open)?;
        Ok((handle(&mut results)?, opened.stateid))
    }

    /// Locks bytes of the file that no other open has locked.
    fn lock(&mut self, number: u32, file: &FileHandle, open: Stateid) -> Result<Stateid> {
        self.lock_as(&format!("{:08}@client.example", number % LOCK_OWNERS), number, file, open)
    }

    /// As [`Self::lock`], for this owner.
    fn lock_as(&mut self, owner: &str, number: u32, file: &FileHandle, open: Stateid) -> Result<Stateid> {
        let owner = StateOwner { clientid: self.client, owner: OpaqueLimited::new(owner.as_bytes())? };
        let lock = LockArgs4 {
            kind: LockType4::Write,
            reclaim: false,
            offset: u64::from(number) * 16,
            length: 8,
            locker: Locker::New { open_seqid: 0, open_stateid: open, seqid: 0, owner },
        };
        let reply = self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            compound.push(&lock);
        })?;
        let mut results = after_sequence(&reply)?;
        results.status(Nfs4Operation::Putfh)?;
        Ok(results.next(Nfs4Operation::Lock)?)
    }

    fn unlock(&mut self, number: u32, LockedOpen { file, lock, .. }: &LockedOpen) -> Result<()> {
        let unlock = LockuArgs4 {
            kind: LockType4::Write,
            seqid: 0,
            stateid: *lock,
            offset: u64::from(number) * 16,
            length: 8,
        };
        self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            compound.push(&unlock);
        })
        .map(drop)
    }

    fn close(&mut self, file: &FileHandle, stateid: Stateid) -> Result<()> {
        self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            compound.push(&CloseArgs4 { seqid: 0, stateid });
        })
        .map(drop)
    }

    fn read(&mut self, LockedOpen { file, lock, .. }: &LockedOpen) -> Result<()> {
        let read = ReadArgs4 { stateid: Stateid { seqid: 0, ..*lock }, offset: 0, count: 4096 };
        self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            compound.push(&read);
        })
        .map(drop)
    }

    fn getattr(&mut self, LockedOpen { file, .. }: &LockedOpen) -> Result<()> {
        let getattr = GetattrArgs4 { attributes: Attribute::set(&[Attribute::Change, Attribute::Size]) };
        self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            compound.push(&getattr);
        })
        .map(drop)
    }

    fn open_locked(&mut self, number: u32) -> Result<LockedOpen> {
        let (file, open) = self.open(number)?;
        let lock = self.lock(number, &file, open)?;
        Ok(LockedOpen { file, open, lock })
    }
}

fn execute(service: &NfsService, arguments: &[u8]) -> Result<Vec<u8>> {
    let groups = AuthSysGids::first_of(&[]);
    let credential = OpaqueAuth::Sys(AuthSys { stamp: 0, machine_name: b"bench", uid: 0, gid: 0, groups });
    let call =
        CallMessage { xid: 1, program: PROGRAM, version: VERSION, procedure: 1, credential, arguments };
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 2049));
    let mut reply = Vec::new();
    let outcome = service.call(&call, &mut CallContext::detached(address, address), &mut reply);
    ensure!(outcome.is_ok(), "the call failed: {outcome:?}");
    Ok(reply)
}

fn after_sequence(reply: &[u8]) -> Result<CompoundResults<'_>> {
    let mut results = CompoundResults::new(reply)?;
    results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
    Ok(results)
}

fn handle(results: &mut CompoundResults<'_>) -> Result<FileHandle> {
    let handle: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh)?;
    FileHandle::new(handle.object.bytes()).context("a handle that is too long")
}

/// The times in nanoseconds of an OPEN that another owner denies, while another client has so many
/// opens, each of a file of its own, and its lease has expired.
fn measure_denied(count: u32, rounds: u32) -> Result<Vec<f64>> {
    let mut client = DirectClient::with_lease(OpenShape::Files, SHORT_LEASE)?;
    for number in 0..count {
        client.open(number)?;
    }
    client.become_client(b"other")?;
    thread::sleep(2 * SHORT_LEASE);
    let root = client.root.clone();
    let mut open = |owner: &[u8], share_deny| -> Result<NfsStat4> {
        let owner = StateOwner { clientid: Clientid(0), owner: OpaqueLimited::new(owner)? };
        let none = Fattr4 { mask: Bitmap4::EMPTY, values: Opaque::default() };
        let open = OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(ShareAccess4::BOTH | ShareAccess4::WANT_NO_DELEG),
            share_deny,
            owner,
            how: OpenHow::Create(CreateHow4::Unchecked(none)),
            claim: OpenClaim::Null(Opaque::new(b"denied")?),
        };
        let (status, _) = client.try_run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(&root) });
            compound.push(&open);
        })?;
        Ok(status)
    };
    ensure!(open(b"denying", ShareAccess4::BOTH)? == NfsStat4::Ok, "the file is open");
    let mut times = Vec::new();
    for _ in 0..rounds * BATCH / 10 {
        let begun = Instant::now();
        let status = open(b"denied", 0)?;
        times.push(begun.elapsed().as_secs_f64() * 1e9);
        ensure!(status == NfsStat4::ShareDenied, "{status}");
    }
    Ok(times)
}

/// The compounds that are measured, after the floor.
const MEASURED: [&str; 10] = [
    "map_find_ns",
    "map_replace_ns",
    "getattr_ns",
    "read_ns",
    "unlock_ns",
    "close_ns",
    "open_ns",
    "lock_ns",
    "unlock_again_ns",
    "close_locked_ns",
];

/// As many records as there are opens, as large as one in a file that others have open too.
struct Floor(HashMap<[u8; 12], Box<[u64; 40]>>);

impl Floor {
    fn new(count: u32) -> Self {
        Self((0..count).map(|number| (Self::key(number), Box::new([u64::from(number); 40]))).collect())
    }

    /// As long as what distinguishes stateids.
    fn key(number: u32) -> [u8; 12] {
        let mut key = [0; 12];
        key[8..].copy_from_slice(&number.to_be_bytes());
        key
    }

    fn find(&self, number: u32) -> bool {
        self.0.get(&Self::key(number)).is_some_and(|record| black_box(record[0]) == u64::from(number))
    }

    fn replace(&mut self, number: u32) -> bool {
        let ended = self.0.remove(&Self::key(number));
        let record = Box::new([u64::from(number); 40]);
        self.0.insert(Self::key(number), record);
        ended.is_some()
    }
}

/// A number below `count` all over the table.
const fn scattered(at: u32, count: u32) -> u32 {
    at.wrapping_mul(0x9e37_79b9) % count
}

/// Ends locks and opens all over the table, and begins them again. Returns the times of each
/// compound in nanoseconds; their medians do not show when others use the processor. The last are
/// LOCKU of a lock that is in the processor's caches, because it was taken just before, and CLOSE
/// of an open with such a lock. The floor is measured in between, so that it finds as little in the
/// caches.
fn measure(client: &mut DirectClient, opens: &mut [LockedOpen], rounds: u32) -> Result<[Vec<f64>; 10]> {
    let count = u32::try_from(opens.len())?;
    let mut floor = Floor::new(count);
    let mut times = MEASURED.map(|_| Vec::new());
    for at in 0..rounds * BATCH {
        let number = scattered(at, count);
        let own = &mut opens[number as usize];
        let mut begun = Instant::now();
        let mut timed = |place: usize| {
            times[place].push(begun.elapsed().as_secs_f64() * 1e9);
            begun = Instant::now();
        };
        let is_found = floor.find(number);
        timed(0);
        let is_replaced = floor.replace(scattered(!at, count));
        timed(1);
        client.getattr(own)?;
        timed(2);
        client.read(own)?;
        timed(3);
        client.unlock(number, own)?;
        timed(4);
        client.close(&own.file, own.open)?;
        timed(5);
        (own.file, own.open) = client.open(number)?;
        timed(6);
        own.lock = client.lock(number, &own.file, own.open)?;
        timed(7);
        client.unlock(number, own)?;
        timed(8);
        ensure!(is_found && is_replaced, "the map has a record of each number");
        // The locks of an owner end with the last open that they are based on.
        client.lock_as("closing@client.example", number, &own.file, own.open)?;
        begun = Instant::now();
        client.close(&own.file, own.open)?;
        times[9].push(begun.elapsed().as_secs_f64() * 1e9);
        (own.file, own.open) = client.open(number)?;
        own.lock = client.lock(number, &own.file, own.open)?;
    }
    Ok(times)
}

pub(super) fn run(arguments: &OpensArguments) -> Result<bool> {
    let (mut rows, mut denied, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for shape in [OpenShape::Owners, OpenShape::Files] {
        for count in COUNTS {
            let (mut client, mut opens) = DirectClient::filled(shape, count)?;
            let times = measure(&mut client, &mut opens, arguments.rounds)?;
            let mut row = json!({ "what": shape.describe(), "opens": count });
            for (name, times) in MEASURED.into_iter().zip(&times) {
                row[name] = median(times).round().into();
            }
            rows.push(row);
        }
        memory.push(json!({ "what": shape.describe(), "bytes_per_open": bytes_per_open(shape)?.round() }));
    }
    for count in COUNTS {
        let nanoseconds = median(&measure_denied(count, arguments.rounds)?).round();
        denied.push(json!({ "opens_of_a_silent_client": count, "open_denied_ns": nanoseconds }));
    }
    let tables = json!({ "machine": Machine::this(), "rows": rows, "denied": denied, "memory": memory });
    print_rows(arguments.json, &tables)?;
    Ok(true)
}

/// The memory of an open, by that of a process of its own.
fn bytes_per_open(shape: OpenShape) -> Result<f64> {
    let name = shape.to_possible_value().context("every shape has a name")?;
    let mut filling = own_program();
    filling.args(["opens-memory", name.get_name()]).stdin(Stdio::null());
    let output = filling.output().context("cannot start this program again")?;
    ensure!(output.status.success(), "opening files failed");
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// Opens files that exist, and prints the memory of each open.
pub(super) fn print_memory(shape: OpenShape) -> Result<()> {
    let own = std::process::id();
    let mut client = DirectClient::new(shape)?;
    // The files and their handles are not to be counted.
    let files = if shape == OpenShape::Files { MEMORY_COUNT } else { 1 };
    for number in 0..files {
        let (file, stateid) = client.open(number)?;
        client.close(&file, stateid)?;
    }
    let before = resident_mib(own)?;
    for number in 0..MEMORY_COUNT {
        black_box(client.open(number)?);
    }
    let mebibytes = resident_mib(own)? - before;
    drop(client);
    say(&(mebibytes * f64::from(1 << 20) / f64::from(MEMORY_COUNT)).to_string())
}
