//! The state of NFSv4: two clients present themselves, open, lock, close, are silent, restart and
//! reclaim, and the server restarts, in any order. A model keeps what each client was granted.
//!
//! Nothing is granted that conflicts with what another holds, unless the other's lease has expired;
//! then it has lost everything, learns of it, and cannot reclaim it after a restart. Nothing is
//! denied without a reason. A repeated request gets the same reply. No file is changed beside the
//! delegation of another, unless that one's lease has expired or it was recalled a lease ago.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use curt_observe::ServerCounters;
use curt_proto::nfs4::*;
use curt_rpc::client::{CallError, CallReply, RpcRequest};
use curt_rpc::clock::ScriptedTime;
use curt_rpc::message::{CallMessage, encode_call_header};
use curt_rpc::server::{Backchannel, CallContext, RpcService as _};
use curt_server::{
    ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, Squash, SystemNames,
};
use curt_vfs::{MemoryOptions, MemoryVfs, Vfs};
use curt_xdr::{Decoder, Encode, Opaque, VarArray, put_fixed};
use tempfile::TempDir;

use crate::world::{EXPORT, credential};

/// Maximum number of steps of one input.
const STEPS_MAX: usize = 96;
/// The default lease.
const LEASE: Duration = Duration::from_secs(90);
const CLIENTS: usize = 2;
const OWNERS: u8 = 2;
const FILES: usize = 2;
/// Bytes of a file that are locked.
const BYTES: usize = 8;
/// The bit of the first byte that says whether files are delegated.
const DELEGATES: u8 = 0x80;
const MINOR_VERSION: u32 = 1;

/// An open that a client was granted.
#[derive(Clone)]
struct HeldOpen {
    owner: u8,
    file: usize,
    access: u32,
    deny: u32,
    stateid: Stateid,
}

/// The locks of an owner in a file.
#[derive(Clone, Default)]
struct HeldLocks {
    bytes: [Option<LockType4>; BYTES],
    /// The stateids, by the opens on which they are based.
    stateids: HashMap<[u8; 12], Stateid>,
}

/// A delegation of a file.
#[derive(Clone, Copy)]
struct HeldDelegation {
    stateid: Stateid,
    /// When it was recalled.
    recalled: Option<Duration>,
}

impl HeldDelegation {
    /// Whether it may have been revoked.
    fn is_overdue(&self, now: Duration) -> bool {
        self.recalled.is_some_and(|recalled| recalled + LEASE <= now)
    }
}

/// The other end of a client's backchannel: it accepts each recall.
struct AcceptedRecalls;

impl Backchannel for AcceptedRecalls {
    fn call(&self, request: &RpcRequest<'_>, _: Duration) -> Result<CallReply, CallError> {
        let mut arguments = Vec::new();
        request.copy_arguments(&mut arguments);
        let decoder = &mut Decoder::new(&arguments);
        decoder.get::<CallbackHeader<'_>>().expect("a header");
        decoder.get::<CallbackOperation>().expect("CB_SEQUENCE");
        let asked: CbSequenceArgs4 = decoder.get().expect("its arguments");
        let operation: CallbackOperation = decoder.get().expect("a second operation");
        let mut reply = Vec::new();
        CompoundReplyHeader { status: NfsStat4::Ok, tag: Opaque::default(), results: 2 }.encode(&mut reply);
        CallbackOperation::Sequence.encode(&mut reply);
        NfsStat4::Ok.encode(&mut reply);
        CbSequenceOk4 {
            session: asked.session,
            sequence: asked.sequence,
            slot: asked.slot,
            highest_slot: asked.slot,
            target_highest_slot: asked.slot,
        }
        .encode(&mut reply);
        operation.encode(&mut reply);
        NfsStat4::Ok.encode(&mut reply);
        Ok(CallReply::from_results(reply))
    }

    fn is_open(&self) -> bool {
        true
    }

    fn connection(&self) -> usize {
        0
    }
}

/// A client, as the model knows it.
#[derive(Default)]
struct Client {
    verifier: u8,
    session: Option<SessionId>,
    sequence: u32,
    last: Option<(Vec<u8>, Vec<u8>)>,
    renewed: Duration,
    opens: Vec<HeldOpen>,
    /// By the owner and the file.
    locks: HashMap<(u8, usize), HeldLocks>,
    /// By the file.
    delegations: HashMap<usize, HeldDelegation>,
    /// The client may have lost its session for another reason than its lease.
    may_be_gone: bool,
    /// The client has completed its reclaims, has opened something, or was denied that, and has not
    /// lost its state since, as far as the model knows: the server has recorded it.
    is_recorded: bool,
    /// The client was recorded when the server restarted.
    may_reclaim: bool,
    has_completed: bool,
    /// The client is recorded as one that may have delegations.
    may_be_delegated: bool,
}

impl Client {
    /// An OPEN was granted: a new open, or more access of one.
    fn opened(&mut self, open: HeldOpen) {
        self.is_recorded = true;
        let is_own = |known: &&mut HeldOpen| known.owner == open.owner && known.file == open.file;
        if let Some(own) = self.opens.iter_mut().find(is_own) {
            assert_eq!(own.stateid.other, open.stateid.other, "an owner has one stateid for a file");
            assert_eq!(own.stateid.seqid + 1, open.stateid.seqid, "the next seqid");
            *own = HeldOpen { access: own.access | open.access, deny: own.deny | open.deny, ..open };
        } else {
            assert_eq!(open.stateid.seqid, 1, "a new stateid");
            self.opens.push(open);
        }
    }

    fn is_expired(&self, now: Duration) -> bool {
        now.saturating_sub(self.renewed) > LEASE
    }

    fn lose(&mut self) {
        self.opens.clear();
        self.locks.clear();
        self.delegations.clear();
        self.is_recorded = false;
    }
}

/// A fault of the model, which the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    None,
    LeasesLastForEver,
    ClosedOpensKeepLocks,
    RestartsForget,
    DowngradesDoNothing,
    ChangesNeedNoRecall,
    ReturnsDoNothing,
}

/// The server and its clients.
struct States {
    planted: Planted,
    delegates: bool,
    directory: TempDir,
    vfs: Arc<MemoryVfs>,
    time: Arc<ScriptedTime>,
    now: Duration,
    /// None while it restarts.
    service: Option<Arc<NfsService>>,
    clients: [Client; CLIENTS],
    root: Vec<u8>,
    handles: Vec<Vec<u8>>,
}

/// Steps of 4 bytes each: what is done, by which client, and two arguments. The highest bit of the
/// first byte decides whether the server delegates files.
///
/// # Panics
/// If the server grants, denies or forgets what it must not.
pub fn states(bytes: &[u8]) {
    run(bytes, Planted::None);
}

fn run(bytes: &[u8], planted: Planted) {
    let mut states = States::new(planted, bytes.first().is_some_and(|first| first & DELEGATES != 0));
    for [what, client, one, two] in bytes.as_chunks::<4>().0.iter().take(STEPS_MAX) {
        states.step(*what, usize::from(*client) % CLIENTS, *one, *two);
    }
}

fn start(
    directory: &TempDir,
    vfs: &Arc<MemoryVfs>,
    time: &Arc<ScriptedTime>,
    delegates: bool,
) -> Arc<NfsService> {
    let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
    let vfs: Arc<dyn Vfs> = Arc::<MemoryVfs>::clone(vfs);
    let setup = NfsServiceConfig {
        state: PersistentState::open(directory.path()).expect("a state directory"),
        exports: vec![ExportDefinition::for_everyone(EXPORT.to_vec(), vfs, rules)],
        counters: Arc::new(ServerCounters::default()),
    };
    let mut service =
        NfsService::with_environment(setup, Box::new(SystemNames), time.clock()).expect("a service");
    service.recover_clients().expect("a list of clients");
    let service = Arc::new(service);
    if delegates {
        service.serve_callbacks().expect("threads");
    }
    service
}

/// The arguments of a compound.
fn compound(push: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    let mut arguments = Vec::new();
    let tag = Opaque::new(b"fuzz").expect("a short tag");
    let mut compound = CompoundEncoder::new(&mut arguments, tag, MINOR_VERSION);
    push(&mut compound);
    compound.finish();
    arguments
}

/// The status of an operation after SEQUENCE and PUTFH, and its results if it succeeded.
struct Outcome {
    status: NfsStat4,
    reply: Vec<u8>,
}

impl Outcome {
    fn result<T: for<'a> curt_xdr::Decode<'a>>(&self, operation: Nfs4Operation) -> T {
        let mut results = CompoundResults::new(&self.reply).expect("a header");
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).expect("SEQUENCE");
        results.status(Nfs4Operation::Putfh).expect("PUTFH");
        results.next(operation).expect("a result")
    }
}

/// The access of an open, and the access that it denies to others.
#[derive(Clone, Copy)]
struct Mode {
    access: u32,
    deny: u32,
}

impl Mode {
    const fn conflicts(self, other: Self) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }
}

/// The bytes that two arguments mean.
fn range(one: u8, two: u8) -> Range<usize> {
    let first = usize::from(one) % BYTES;
    first..first + 1 + usize::from(two) % (BYTES - first)
}

impl States {
    fn new(planted: Planted, delegates: bool) -> Self {
        let directory = TempDir::new().expect("a directory for state");
        let vfs = Arc::new(MemoryVfs::new(MemoryOptions { root_mode: 0o777, ..MemoryOptions::default() }));
        let time = ScriptedTime::new();
        let service = Some(start(&directory, &vfs, &time, delegates));
        let clients = std::array::from_fn(|_| Client::default());
        let (root, handles, now) = (Vec::new(), Vec::new(), Duration::ZERO);
        let mut states =
            Self { planted, delegates, directory, vfs, time, now, service, clients, root, handles };
        states.present(0, 0);
        states.complete(0);
        states.make_files();
        states
    }

    /// Creates the files, whose handles every run of the server knows.
    fn make_files(&mut self) {
        let export = Opaque::new(&EXPORT[1..]).expect("a short name");
        let reply = self.run(0, &|compound| {
            compound.bare(Nfs4Operation::Putrootfh);
            compound.push(&LookupArgs4 { name: export });
            compound.bare(Nfs4Operation::Getfh);
        });
        let mut results = CompoundResults::new(&reply).expect("a header");
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).expect("SEQUENCE");
        results.status(Nfs4Operation::Putrootfh).expect("PUTROOTFH");
        results.status(Nfs4Operation::Lookup).expect("LOOKUP");
        let root: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh).expect("the root");
        self.root = root.object.bytes().to_vec();
        for number in 0..FILES {
            let name = format!("file {number}");
            let none = Fattr4 { mask: Bitmap4::EMPTY, values: Opaque::default() };
            let open = OpenArgs4 {
                seqid: 0,
                share_access: ShareAccess4(ShareAccess4::BOTH | ShareAccess4::WANT_NO_DELEG),
                share_deny: 0,
                owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"maker").expect("short") },
                how: OpenHow::Create(CreateHow4::Unchecked(none)),
                claim: OpenClaim::Null(Opaque::new(name.as_bytes()).expect("a short name")),
            };
            let root = self.root.clone();
            let reply = self.run(0, &|compound| {
                compound.push(&PutfhArgs4 { object: NfsFh4::new(&root).expect("a handle") });
                compound.push(&open);
                compound.bare(Nfs4Operation::Getfh);
                compound.push(&CloseArgs4 { seqid: 0, stateid: Stateid::CURRENT });
            });
            let mut results = CompoundResults::new(&reply).expect("a header");
            assert_eq!(results.header().status, NfsStat4::Ok, "a file cannot be made");
            results.next::<SequenceOk4>(Nfs4Operation::Sequence).expect("SEQUENCE");
            results.status(Nfs4Operation::Putfh).expect("PUTFH");
            results.next::<OpenOk4<'_>>(Nfs4Operation::Open).expect("OPEN");
            let file: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh).expect("a file");
            self.handles.push(file.object.bytes().to_vec());
        }
        self.clients[0].is_recorded = true;
    }

    fn service(&self) -> &NfsService {
        self.service.as_ref().expect("the server runs")
    }

    fn call(&self, arguments: &[u8]) -> Vec<u8> {
        let mut record = Vec::new();
        encode_call_header(&mut record, 1, PROGRAM, VERSION, 1, &credential(0));
        put_fixed(&mut record, arguments);
        let call = CallMessage::decode(&record).expect("our own call is understood");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1023));
        let mut reply = Vec::new();
        let backchannel = || Arc::new(AcceptedRecalls) as Arc<dyn Backchannel>;
        let mut context = CallContext::detached_with_backchannel(address, address, &backchannel);
        self.service().call(&call, &mut context, &mut reply).expect("a reply");
        reply
    }

    fn step(&mut self, what: u8, client: usize, one: u8, two: u8) {
        match what % 16 {
            0 => self.present(client, one % 4),
            1..=3 => self.open(client, one, two),
            4 => self.close(client, one),
            5 | 6 => self.lock(client, one, two),
            7 => self.unlock(client, one, two),
            8 => self.complete(client),
            9 => self.repeat(client),
            10 => {
                let seconds = Duration::from_secs(u64::from(one % 128));
                self.time.advance(seconds);
                self.now += seconds;
            }
            11 => self.service().expire_leases(),
            12 if one.is_multiple_of(2) => self.restart(),
            12 => self.expire(client),
            13 => self.downgrade(client, one, two),
            14 => self.change(client, usize::from(one) % FILES),
            _ => self.give_back(client, usize::from(one) % FILES),
        }
    }

    fn restart(&mut self) {
        let was_in_grace = self.service().is_in_grace();
        // The directory is locked by the run that uses it, which may still be calling a client.
        let mut last = self.service.take().expect("the server runs");
        while let Err(used) = Arc::try_unwrap(last) {
            last = used;
            std::thread::yield_now();
        }
        self.service = Some(start(&self.directory, &self.vfs, &self.time, self.delegates));
        for client in &mut self.clients {
            client.may_reclaim = client.is_recorded || was_in_grace && client.may_reclaim;
            client.may_reclaim &= self.planted != Planted::RestartsForget;
            client.may_be_gone = true;
            client.lose();
            client.has_completed = false;
        }
    }

    /// The administrator removes a client.
    fn expire(&mut self, client: usize) {
        let name = format!("client {client}");
        let id = self.service().clients().into_iter().find(|found| found.name == name);
        if let Some(id) = id
            && self.service().expire_client(id.id)
        {
            self.clients[client].may_be_gone = true;
            self.clients[client].lose();
        }
    }

    /// EXCHANGE_ID and CREATE_SESSION; with verifier 0 of the same instance.
    fn present(&mut self, client: usize, verifier: u8) {
        let is_new = verifier != 0 && verifier != self.clients[client].verifier;
        if is_new {
            self.clients[client].verifier = verifier;
        }
        let name = format!("client {client}");
        let verifier = Verifier4([self.clients[client].verifier; 8]);
        let exchange = ExchangeIdArgs4 {
            owner: ClientOwner { verifier, owner: Opaque::new(name.as_bytes()).expect("a short name") },
            flags: ExchangeIdFlags::default(),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::default(),
        };
        let reply = self.call(&compound(&|compound| compound.push(&exchange)));
        let mut results = CompoundResults::new(&reply).expect("a header");
        let exchanged: ExchangeIdOk4<'_> = results.next(Nfs4Operation::ExchangeId).expect("a client id");
        let is_confirmed = exchanged.flags.0 & ExchangeIdFlags::CONFIRMED_R != 0;
        let channel = ChannelAttributes {
            request_max: 1 << 16,
            response_max: 1 << 16,
            response_cached_max: 1024,
            operations_max: 16,
            requests_max: 1,
            ..ChannelAttributes::default()
        };
        let create = CreateSessionArgs4 {
            clientid: exchanged.clientid,
            sequence: exchanged.sequence,
            flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
            fore: channel.clone(),
            back: channel,
            callback_program: 1 << 30,
            callback_security: VarArray::new(vec![CallbackSecParms4::None]).expect("one flavor"),
        };
        let arguments = compound(&|compound| compound.push(&create));
        let reply = self.call(&arguments);
        let status = CompoundResults::new(&reply).expect("a header").header().status;
        if status == NfsStat4::Nospc {
            // It has as many sessions as a client may have.
            assert!(is_confirmed, "a new client has no session");
            return;
        }
        assert_eq!(self.call(&arguments), reply, "a repeated CREATE_SESSION");
        let mut results = CompoundResults::new(&reply).expect("a header");
        let created: CreateSessionOk4 = results.next(Nfs4Operation::CreateSession).expect("a session");
        let known = &mut self.clients[client];
        assert!(!(is_confirmed && is_new), "another instance is confirmed already");
        if !is_confirmed {
            let is_expected =
                known.session.is_none() || is_new || known.may_be_gone || known.is_expired(self.now);
            assert!(is_expected, "a client was forgotten within its lease");
            known.lose();
            known.has_completed = false;
        }
        known.session = Some(created.session);
        known.may_be_gone = false;
        (known.sequence, known.last, known.renewed) = (0, None, self.now);
    }

    /// Runs operations after SEQUENCE.
    fn run(&mut self, client: usize, push: &dyn Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
        let known = &mut self.clients[client];
        known.sequence += 1;
        let sequence = SequenceArgs4 {
            session: known.session.unwrap_or_default(),
            sequence: SequenceId(known.sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: true,
        };
        let arguments = compound(&|compound| {
            compound.push(&sequence);
            push(compound);
        });
        let reply = self.call(&arguments);
        let mut results = CompoundResults::new(&reply).expect("a header");
        let begun = results.next::<SequenceOk4>(Nfs4Operation::Sequence);
        let known = &mut self.clients[client];
        match begun {
            Ok(_) => {
                known.renewed = self.now;
                known.last = Some((arguments, reply.clone()));
            }
            Err(ResultError::Failed(NfsStat4::Badsession)) => {
                let may = known.session.is_none() || known.may_be_gone || known.is_expired(self.now);
                assert!(may, "a session ended within its lease");
                known.session = None;
                known.last = None;
                known.lose();
            }
            Err(error) => panic!("SEQUENCE: {error}"),
        }
        reply
    }

    /// Runs an operation on a file.
    fn on<A: OperationArguments>(&mut self, client: usize, file: usize, arguments: &A) -> Outcome {
        let handle = self.handles[file].clone();
        let reply = self.run(client, &|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::new(&handle).expect("a handle") });
            compound.push(arguments);
        });
        let status = CompoundResults::new(&reply).expect("a header").header().status;
        Outcome { status, reply }
    }

    fn complete(&mut self, client: usize) {
        let arguments = ReclaimCompleteArgs4 { one_file_system: false };
        let reply = self.run(client, &|compound| compound.push(&arguments));
        let status = CompoundResults::new(&reply).expect("a header").header().status;
        let known = &mut self.clients[client];
        match status {
            NfsStat4::Ok => assert!(!known.has_completed, "reclaims are completed twice"),
            NfsStat4::CompleteAlready => assert!(known.has_completed, "reclaims were not completed"),
            NfsStat4::Badsession => return,
            status => panic!("RECLAIM_COMPLETE: {status}"),
        }
        known.has_completed = true;
        if status == NfsStat4::Ok {
            (known.is_recorded, known.may_be_delegated) = (true, known.may_be_delegated || self.delegates);
        }
    }

    fn repeat(&mut self, client: usize) {
        let known = &self.clients[client];
        let Some((arguments, reply)) = known.last.clone() else { return };
        let again = self.call(&arguments);
        if CompoundResults::new(&again).expect("a header").header().status == NfsStat4::Badsession {
            assert!(known.may_be_gone || known.is_expired(self.now), "a session ended within its lease");
            return;
        }
        assert_eq!(again, reply, "a repeated request");
        self.clients[client].renewed = self.now;
    }

    fn open(&mut self, client: usize, one: u8, two: u8) {
        let (owner, file, is_reclaim) = (one % OWNERS, usize::from(one >> 1) % FILES, one & 0x80 != 0);
        let (access, deny) = (1 + u32::from(two) % 3, u32::from(two >> 4) % 4);
        let wanted = if two & 12 == 0 { ShareAccess4::WANT_READ_DELEG } else { ShareAccess4::WANT_NO_DELEG };
        let name = [b'o', owner];
        let open = OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(access | wanted),
            share_deny: deny,
            owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(&name).expect("a short name") },
            how: OpenHow::NoCreate,
            claim: if is_reclaim { OpenClaim::Previous(DelegationType::None) } else { OpenClaim::Fh },
        };
        let was_in_grace = self.service().is_in_grace();
        let outcome = self.on(client, file, &open);
        let known = &self.clients[client];
        match outcome.status {
            NfsStat4::Ok => {}
            NfsStat4::Grace => {
                assert!(!is_reclaim && (was_in_grace || !known.has_completed), "there is no grace period");
                return;
            }
            NfsStat4::NoGrace | NfsStat4::ReclaimBad => {
                assert!(is_reclaim, "nothing was reclaimed");
                return;
            }
            NfsStat4::ShareDenied | NfsStat4::ReclaimConflict => {
                let in_the_way = self.opens_in_the_way(file, Mode { access, deny });
                assert!(!in_the_way.is_empty(), "an open is denied for no reason");
                self.clients[client].is_recorded |= !is_reclaim;
                return;
            }
            NfsStat4::Delay => {
                self.delayed(client, file);
                self.clients[client].is_recorded |= !is_reclaim;
                return;
            }
            NfsStat4::Badsession => return,
            status => panic!("OPEN: {status}"),
        }
        if is_reclaim {
            assert!(was_in_grace && !known.has_completed, "reclaimed too late");
            assert!(known.may_reclaim, "reclaimed what was lost");
        } else {
            assert!(!was_in_grace && known.has_completed, "granted in the grace period");
        }
        for other in self.opens_in_the_way(file, Mode { access, deny }) {
            self.lost_to_another(client, other);
        }
        if access & ShareAccess4::WRITE != 0 || deny & ShareAccess4::READ != 0 {
            self.changed(client, file);
        }
        let Opened { stateid, delegation } = outcome.result(Nfs4Operation::Open);
        if let Some(stateid) = delegation {
            assert!(access == ShareAccess4::READ && wanted == ShareAccess4::WANT_READ_DELEG && !is_reclaim);
            self.delegated(client, file, stateid);
        }
        self.clients[client].opened(HeldOpen { owner, file, access, deny, stateid });
    }

    /// The clients with an open that conflicts with another: also the owner's own denies it (RFC
    /// 8881 section 9.7).
    fn opens_in_the_way(&self, file: usize, mode: Mode) -> Vec<usize> {
        let denies = |(_, known): &(usize, &Client)| {
            known.opens.iter().any(|open| {
                open.file == file && mode.conflicts(Mode { access: open.access, deny: open.deny })
            })
        };
        self.clients.iter().enumerate().filter(denies).map(|(number, _)| number).collect()
    }

    /// A client was granted what another held.
    fn lost_to_another(&mut self, client: usize, other: usize) {
        assert_ne!(client, other, "a client conflicts with itself");
        let lost = &mut self.clients[other];
        let is_expired = lost.is_expired(self.now) && self.planted != Planted::LeasesLastForEver;
        assert!(is_expired, "a double grant");
        lost.may_be_gone = true;
        lost.lose();
    }

    /// A client was given a delegation.
    fn delegated(&mut self, client: usize, file: usize, stateid: Stateid) {
        for known in &self.clients {
            let is_here = !known.may_be_gone && !known.is_expired(self.now);
            let writes =
                known.opens.iter().any(|open| open.file == file && open.access & ShareAccess4::WRITE != 0);
            assert!(!(is_here && writes), "a delegation of a file that is open for writing");
        }
        let new = HeldDelegation { stateid, recalled: None };
        self.clients[client].may_be_delegated = true;
        let old = self.clients[client].delegations.insert(file, new);
        assert!(old.is_none_or(|old| old.is_overdue(self.now)), "a second delegation of a file");
    }

    /// A client has changed a file, or opened it to do that: no other has a delegation of it.
    fn changed(&mut self, client: usize, file: usize) {
        for other in (0..CLIENTS).filter(|other| *other != client) {
            let Some(held) = self.clients[other].delegations.remove(&file) else { continue };
            if held.is_overdue(self.now) {
                continue;
            }
            if !self.clients[other].may_be_gone {
                self.lost_to_another(client, other);
            }
        }
    }

    /// A change of a file was delayed: delegations of others are recalled, or may not be reclaimed
    /// yet.
    fn delayed(&mut self, client: usize, file: usize) {
        if self.service().is_in_grace() && self.clients.iter().any(|client| client.may_be_delegated) {
            return;
        }
        let mut is_justified = false;
        for other in (0..CLIENTS).filter(|other| *other != client) {
            if let Some(held) = self.clients[other].delegations.get_mut(&file) {
                held.recalled.get_or_insert(self.now);
                is_justified = self.planted != Planted::ChangesNeedNoRecall;
            }
        }
        assert!(is_justified, "a change is delayed for no reason");
    }

    /// SETATTR of the mode.
    fn change(&mut self, client: usize, file: usize) {
        let values = AttributeValues { mode: Some(0o666), ..AttributeValues::default() };
        let mut bytes = Vec::new();
        values.encode_values(values.present(), &mut bytes);
        let attributes = Fattr4 { mask: values.present(), values: Opaque::new(&bytes).expect("a mode") };
        let outcome = self.on(client, file, &SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes });
        match outcome.status {
            NfsStat4::Ok => self.changed(client, file),
            NfsStat4::Delay => self.delayed(client, file),
            NfsStat4::Badsession => {}
            status => panic!("SETATTR: {status}"),
        }
    }

    /// DELEGRETURN.
    fn give_back(&mut self, client: usize, file: usize) {
        let Some(held) = self.clients[client].delegations.get(&file).copied() else { return };
        let outcome = self.on(client, file, &DelegreturnArgs4 { stateid: held.stateid });
        match outcome.status {
            NfsStat4::Ok => {}
            NfsStat4::DelegRevoked => assert!(held.is_overdue(self.now), "revoked within a lease"),
            NfsStat4::Badsession => return,
            status => panic!("DELEGRETURN: {status}"),
        }
        if self.planted != Planted::ReturnsDoNothing {
            self.clients[client].delegations.remove(&file);
        }
    }

    fn close(&mut self, client: usize, one: u8) {
        let known = &self.clients[client];
        let Some(place) = usize::from(one).checked_rem(known.opens.len()) else { return };
        let HeldOpen { file, stateid, .. } = known.opens[place];
        let outcome = self.on(client, file, &CloseArgs4 { seqid: 0, stateid });
        let known = &mut self.clients[client];
        match outcome.status {
            NfsStat4::Ok => {}
            NfsStat4::Badsession => return,
            status => panic!("CLOSE: {status}"),
        }
        known.opens.remove(place);
        known.locks.retain(|(_, locked), locks| {
            if *locked == file && self.planted != Planted::ClosedOpensKeepLocks {
                locks.stateids.remove(&stateid.other);
            }
            !locks.stateids.is_empty()
        });
    }

    fn downgrade(&mut self, client: usize, one: u8, two: u8) {
        let known = &self.clients[client];
        let Some(place) = usize::from(one).checked_rem(known.opens.len()) else { return };
        let HeldOpen { file, stateid, access, deny, .. } = known.opens[place];
        let (to, denied) = (1 + u32::from(two) % 3, u32::from(two >> 4) % 4);
        let (seqid, share_access) = (0, ShareAccess4(to));
        let downgrade = OpenDowngradeArgs4 { stateid, seqid, share_access, share_deny: denied };
        let outcome = self.on(client, file, &downgrade);
        match outcome.status {
            NfsStat4::Ok => {
                assert!(to & !access == 0 && denied & !deny == 0, "a downgrade that adds access");
                let stateid = outcome.result(Nfs4Operation::OpenDowngrade);
                let own = &mut self.clients[client].opens[place];
                own.stateid = stateid;
                if self.planted != Planted::DowngradesDoNothing {
                    (own.access, own.deny) = (to, denied);
                }
            }
            // It is not a union of what was opened.
            NfsStat4::Inval => assert!((to, denied) != (access, deny), "the mode is the present one"),
            NfsStat4::Badsession => {}
            status => panic!("OPEN_DOWNGRADE: {status}"),
        }
    }

    fn lock(&mut self, client: usize, one: u8, two: u8) {
        let known = &self.clients[client];
        let Some(place) = usize::from(one >> 4).checked_rem(known.opens.len()) else { return };
        let open = known.opens[place].clone();
        let (owner, is_reclaim) = (two % OWNERS, two & 0x80 != 0);
        let kind = if two & 2 == 0 { LockType4::Read } else { LockType4::Write };
        let bytes = range(one, two >> 2);
        let name = [b'l', owner];
        let lock = LockArgs4 {
            kind,
            reclaim: is_reclaim,
            offset: bytes.start as u64,
            length: bytes.len() as u64,
            locker: Locker::New {
                open_seqid: 0,
                open_stateid: open.stateid,
                seqid: 0,
                owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(&name).expect("short") },
            },
        };
        let was_in_grace = self.service().is_in_grace();
        let outcome = self.on(client, open.file, &lock);
        let known = &self.clients[client];
        let needed = if kind == LockType4::Read { 1 } else { 2 };
        match outcome.status {
            NfsStat4::Ok => {}
            NfsStat4::Denied | NfsStat4::ReclaimConflict => {
                let in_the_way = self.locks_in_the_way(client, owner, open.file, kind, &bytes);
                assert!(!in_the_way.is_empty(), "a lock is denied for no reason");
                return;
            }
            NfsStat4::Openmode => {
                assert_eq!(open.access & needed, 0, "the open has the access");
                return;
            }
            NfsStat4::Grace => {
                assert!(!is_reclaim && (was_in_grace || !known.has_completed), "there is no grace period");
                return;
            }
            NfsStat4::NoGrace | NfsStat4::ReclaimBad => {
                assert!(is_reclaim, "nothing was reclaimed");
                return;
            }
            NfsStat4::Badsession => return,
            status => panic!("LOCK: {status}"),
        }
        assert_ne!(open.access & needed, 0, "a lock without the access");
        let is_in_time = if is_reclaim {
            was_in_grace && !known.has_completed
        } else {
            !was_in_grace && known.has_completed
        };
        assert!(is_in_time, "a lock in the wrong period");
        for other in self.locks_in_the_way(client, owner, open.file, kind, &bytes) {
            self.lost_to_another(client, other);
        }
        let stateid = outcome.result(Nfs4Operation::Lock);
        let locks = self.clients[client].locks.entry((owner, open.file)).or_default();
        locks.stateids.insert(open.stateid.other, stateid);
        locks.bytes[bytes].fill(Some(kind));
    }

    /// The clients with a lock that conflicts with one of an owner.
    fn locks_in_the_way(
        &self,
        client: usize,
        owner: u8,
        file: usize,
        kind: LockType4,
        bytes: &Range<usize>,
    ) -> Vec<usize> {
        let denies = |(number, known): &(usize, &Client)| {
            known.locks.iter().any(|((holder, locked), locks)| {
                let is_own = *number == client && *holder == owner;
                let held = locks.bytes[bytes.clone()].iter().flatten();
                let mut held = held.filter(|held| kind == LockType4::Write || **held == LockType4::Write);
                !is_own && *locked == file && held.next().is_some()
            })
        };
        self.clients.iter().enumerate().filter(denies).map(|(number, _)| number).collect()
    }

    fn unlock(&mut self, client: usize, one: u8, two: u8) {
        let key = (two % OWNERS, usize::from(two >> 1) % FILES);
        let Some(locks) = self.clients[client].locks.get(&key) else { return };
        let Some((open, stateid)) = locks.stateids.iter().next().map(|(open, id)| (*open, *id)) else {
            return;
        };
        let bytes = range(one, two >> 2);
        let (offset, length) = (bytes.start as u64, bytes.len() as u64);
        let unlock = LockuArgs4 { kind: LockType4::Write, seqid: 0, stateid, offset, length };
        let outcome = self.on(client, key.1, &unlock);
        match outcome.status {
            NfsStat4::Ok => {}
            NfsStat4::Badsession => return,
            status => panic!("LOCKU: {status}"),
        }
        let next = outcome.result(Nfs4Operation::Locku);
        if let Some(locks) = self.clients[client].locks.get_mut(&key) {
            locks.stateids.insert(open, next);
            locks.bytes[bytes].fill(None);
        }
    }
}

/// The stateids of OPEN's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    stateid: Stateid,
    delegation: Option<Stateid>,
}

impl<'a> curt_xdr::Decode<'a> for Opened {
    fn decode(decoder: &mut Decoder<'a>) -> Result<Self, curt_xdr::DecodeError> {
        let OpenOk4 { stateid, delegation, .. } = decoder.get()?;
        let delegation = match delegation {
            OpenDelegation::Read { stateid, .. } => Some(stateid),
            _ => None,
        };
        Ok(Self { stateid, delegation })
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRng, TestRunner};

    use super::*;

    fn steps(delegates: bool) -> impl Strategy<Value = Vec<u8>> {
        let first = if delegates { DELEGATES } else { 0 };
        // The last two steps are about delegations.
        let step = (0_u8..if delegates { 16 } else { 14 }, 0_u8..2, any::<u8>(), any::<u8>());
        let step = step.prop_map(|(what, client, one, two)| [what, client, one, two]);
        // Both clients begin.
        prop::collection::vec(step, 1..STEPS_MAX)
            .prop_map(move |steps| [vec![[first, 1, 0, 0], [8, 1, 0, 0]], steps].concat().concat())
    }

    #[test]
    fn the_model_agrees_with_the_server_and_finds_planted_faults() {
        use Planted::*;
        for (planted, delegates) in [
            (None, false),
            (LeasesLastForEver, false),
            (ClosedOpensKeepLocks, false),
            (RestartsForget, false),
            (DowngradesDoNothing, false),
            (None, true),
            (ChangesNeedNoRecall, true),
            (ReturnsDoNothing, true),
        ] {
            let config = Config {
                cases: Config::default().cases.max(400),
                max_shrink_iters: 0,
                failure_persistence: Option::None,
                ..Config::default()
            };
            let rng = TestRng::deterministic_rng(config.rng_algorithm);
            let outcome = TestRunner::new_with_rng(config, rng).run(&steps(delegates), |bytes| {
                let outcome = catch_unwind(AssertUnwindSafe(|| run(&bytes, planted)));
                outcome.map_err(|_| TestCaseError::fail(format!("{bytes:?}")))
            });
            assert_eq!(outcome.is_ok(), planted == None, "{planted:?}: {outcome:?}");
        }
    }
}
