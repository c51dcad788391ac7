//! `cargo xtask bench recall`: how long a change waits for the read delegation of a client that
//! answers. A server in this process, over a tree in memory, and two clients on connections of
//! their own: one opens files and returns each delegation that is recalled, the other one sets
//! their modes.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use curt_observe::{ServerCounter, ServerCounters};
use curt_proto::nfs4::{
    AttributeValues, CallbackHeader, CallbackOperation, CallbackSecParms4, CbRecallArgs4, CbSequenceArgs4,
    CbSequenceOk4, ChannelAttributes, ClientOwner, Clientid, CloseArgs4, CompoundEncoder,
    CompoundReplyHeader, CompoundResults, CreateHow4, CreateSessionArgs4, CreateSessionFlags,
    CreateSessionOk4, DelegreturnArgs4, ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, Fattr4, GetfhOk4,
    LookupArgs4, Nfs4Operation, NfsFh4, NfsStat4, OpenArgs4, OpenClaim, OpenDelegation, OpenHow, OpenOk4,
    PROGRAM, PutfhArgs4, ReclaimCompleteArgs4, SequenceArgs4, SequenceId, SequenceOk4, SessionId,
    SetattrArgs4, ShareAccess4, SlotId, StateOwner, StateProtectArgs, Stateid, VERSION, Verifier4,
};
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::client::{
    Interrupt, NoTransportEvents, PortSource, RpcRequest, ServerName, TcpOptions, TcpTransport,
    Transport as _,
};
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure, CallHandler, Limits, RpcServer, RpcService};
use curt_server::{
    ExportDefinition, ExportRules, NfsService, NfsServiceConfig, PersistentState, RECORD_MAX, Squash,
};
use curt_types::FileHandle;
use curt_vfs::{MemoryOptions, MemoryVfs};
use curt_xdr::{Decoder, Encode as _, Encoded, Opaque, VarArray};
use serde_json::json;

use crate::print_rows;
use curt_bench::statistics::{p50, p99};

/// The longest time that passes: what does not answer within it gets NFS4ERR_DELAY.
const BOUND_MICROSECONDS: u32 = 50_000;

/// Arguments of `cargo xtask bench recall`.
#[derive(Debug, clap::Args)]
pub(crate) struct RecallArguments {
    /// Number of recalls
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = super::at_least_one())]
    rounds: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A client with a session of one slot.
struct Client {
    transport: TcpTransport,
    session: SessionId,
    sequence: AtomicU32,
}

/// Accepts recalls, and passes them on.
struct Recalls(Mutex<Sender<(Stateid, FileHandle)>>);

impl RpcService for Recalls {
    fn call(
        &self,
        call: &CallMessage<'_>,
        _: &mut CallContext<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), CallFailure> {
        let garbage = |_| CallFailure::GarbageArguments;
        let decoder = &mut Decoder::new(call.arguments);
        decoder.get::<CallbackHeader<'_>>().map_err(garbage)?;
        decoder.get::<CallbackOperation>().map_err(garbage)?;
        let asked: CbSequenceArgs4 = decoder.get().map_err(garbage)?;
        decoder.get::<CallbackOperation>().map_err(garbage)?;
        let recall: CbRecallArgs4<'_> = decoder.get().map_err(garbage)?;
        if let Ok(recalls) = self.0.lock() {
            let _ = recalls.send((recall.stateid, recall.object.into()));
        }
        CompoundReplyHeader { status: NfsStat4::Ok, tag: Opaque::default(), results: 2 }.encode(reply);
        CallbackOperation::Sequence.encode(reply);
        NfsStat4::Ok.encode(reply);
        CbSequenceOk4 {
            session: asked.session,
            sequence: asked.sequence,
            slot: asked.slot,
            highest_slot: asked.slot,
            target_highest_slot: asked.slot,
        }
        .encode(reply);
        CallbackOperation::Recall.encode(reply);
        NfsStat4::Ok.encode(reply);
        Ok(())
    }
}

fn channel_limits() -> ChannelAttributes {
    ChannelAttributes {
        header_padding: 0,
        request_max: 1 << 16,
        response_max: 1 << 16,
        response_cached_max: 4096,
        operations_max: 16,
        requests_max: 1,
        rdma_ird: VarArray::default(),
    }
}

fn call(transport: &TcpTransport, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Result<Vec<u8>> {
    let mut arguments = Vec::new();
    let mut encoder = CompoundEncoder::new(&mut arguments, Opaque::default(), 1);
    operations(&mut encoder);
    encoder.finish();
    let credential = RpcCredential::Sys(AuthSysCredential {
        machine_name: MachineName::new(b"bench"),
        uid: 0,
        gid: 0,
        groups: AuthSysGids::first_of(&[]),
    });
    let request = RpcRequest {
        program: PROGRAM,
        version: VERSION,
        procedure: 1,
        credential: &credential,
        arguments: &Encoded(&arguments),
        results_max: 1 << 16,
    };
    Ok(transport.call(&request, &Interrupt::never())?.results().to_vec())
}

impl Client {
    fn new(address: SocketAddr, name: &str, recalls: Option<Sender<(Stateid, FileHandle)>>) -> Result<Self> {
        let callbacks = recalls.map(|recalls| CallHandler::of(Arc::new(Recalls(Mutex::new(recalls)))));
        let options = TcpOptions::new(ServerName::Address(address.ip()), PortSource::Fixed(address.port()));
        let options = TcpOptions { callbacks, ..options };
        let transport = TcpTransport::new(options, Arc::new(NoTransportEvents));
        let presented = ExchangeIdArgs4 {
            owner: ClientOwner {
                verifier: Verifier4([1; 8]),
                owner: Opaque::new(name.as_bytes()).ok().context("a short name")?,
            },
            flags: ExchangeIdFlags(0),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::default(),
        };
        let reply = call(&transport, &|compound| compound.push(&presented))?;
        let exchanged: ExchangeIdOk4<'_> = CompoundResults::new(&reply)?.next(Nfs4Operation::ExchangeId)?;
        let creation = CreateSessionArgs4 {
            clientid: exchanged.clientid,
            sequence: exchanged.sequence,
            flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
            back: channel_limits(),
            fore: channel_limits(),
            callback_program: 0x4000_0000,
            callback_security: VarArray::new(vec![CallbackSecParms4::None]).ok().context("one flavor")?,
        };
        let reply = call(&transport, &|compound| compound.push(&creation))?;
        let created: CreateSessionOk4 = CompoundResults::new(&reply)?.next(Nfs4Operation::CreateSession)?;
        let client = Self { transport, session: created.session, sequence: AtomicU32::new(0) };
        client.run(&|compound| compound.push(&ReclaimCompleteArgs4 { one_file_system: false }))?;
        Ok(client)
    }

    /// The reply to a compound of SEQUENCE and these operations, all of which have to succeed.
    fn run(&self, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Result<Vec<u8>> {
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(self.sequence.fetch_add(1, Ordering::Relaxed) + 1),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        let reply = call(&self.transport, &|compound| {
            compound.push(&sequence);
            operations(compound);
        })?;
        let status = CompoundResults::new(&reply)?.header().status;
        ensure!(status == NfsStat4::Ok, "a compound failed: {status}");
        Ok(reply)
    }

    fn export(&self) -> Result<FileHandle> {
        let reply = self.run(&|compound| {
            compound.bare(Nfs4Operation::Putrootfh);
            compound.push(&LookupArgs4 { name: Opaque::new(b"export").unwrap_or_default() });
            compound.bare(Nfs4Operation::Getfh);
        })?;
        let mut results = CompoundResults::new(&reply)?;
        results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
        results.next::<()>(Nfs4Operation::Putrootfh)?;
        results.next::<()>(Nfs4Operation::Lookup)?;
        let got: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh)?;
        Ok(got.object.into())
    }

    /// Creates a file and opens it. Returns whether it has a delegation.
    fn open(&self, directory: &FileHandle, name: &str) -> Result<(FileHandle, bool)> {
        let how = OpenHow::Create(CreateHow4::Unchecked(Fattr4::default()));
        let open = OpenArgs4 {
            seqid: 0,
            share_access: ShareAccess4(ShareAccess4::READ),
            share_deny: 0,
            owner: StateOwner { clientid: Clientid(0), owner: Opaque::new(b"owner").unwrap_or_default() },
            how,
            claim: OpenClaim::Null(Opaque::new(name.as_bytes()).unwrap_or_default()),
        };
        let reply = self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(directory) });
            compound.push(&open);
            compound.bare(Nfs4Operation::Getfh);
        })?;
        let mut results = CompoundResults::new(&reply)?;
        results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
        results.next::<()>(Nfs4Operation::Putfh)?;
        let opened: OpenOk4<'_> = results.next(Nfs4Operation::Open)?;
        let (stateid, has_delegation) =
            (opened.stateid, matches!(opened.delegation, OpenDelegation::Read { .. }));
        let got: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh)?;
        let handle = got.object.into();
        self.at(&handle, &|compound| compound.push(&CloseArgs4 { seqid: 0, stateid }))?;
        Ok((handle, has_delegation))
    }

    fn at(&self, file: &FileHandle, operations: &dyn Fn(&mut CompoundEncoder<'_>)) -> Result<()> {
        let run = self.run(&|compound| {
            compound.push(&PutfhArgs4 { object: NfsFh4::from(file) });
            operations(compound);
        });
        run.map(drop)
    }

    fn set_mode(&self, file: &FileHandle) -> Result<()> {
        let values = AttributeValues { mode: Some(0o600), ..AttributeValues::default() };
        let mut bytes = Vec::new();
        values.encode_values(values.present(), &mut bytes);
        let attributes = Fattr4 { mask: values.present(), values: Opaque::new(&bytes).unwrap_or_default() };
        self.at(file, &|compound| compound.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes }))
    }
}

/// Runs it. Returns whether 99 of 100 changes waited less than the bound.
pub(crate) fn run(arguments: &RecallArguments) -> Result<bool> {
    let counters = Arc::new(ServerCounters::default());
    let rules = ExportRules { squash: Squash::None, secure_ports: false, ..ExportRules::default() };
    let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
    let exports = vec![ExportDefinition::for_everyone(b"/export".to_vec(), vfs, rules)];
    let setup =
        NfsServiceConfig { state: PersistentState::ephemeral()?, exports, counters: Arc::clone(&counters) };
    let service = Arc::new(NfsService::new(setup)?);
    service.serve_callbacks()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let limits = Limits { record: RECORD_MAX, ..Limits::default() };
    let server = RpcServer::new(vec![listener], service, limits)?;
    let handle = server.handle();
    let serving = std::thread::spawn(move || server.run());
    let (recalls, recalled) = channel();
    let holder = Arc::new(Client::new(address, "holder", Some(recalls))?);
    let other = Client::new(address, "other", None)?;
    let root = holder.export()?;
    let mut files = Vec::new();
    for number in 0..arguments.rounds {
        // Two files may share a place in the table of recent recalls.
        if let (file, true) = holder.open(&root, &format!("file-{number}"))? {
            files.push(file);
        }
    }
    ensure!(files.len() * 2 > arguments.rounds, "only {} files have delegations", files.len());
    let returning = Arc::clone(&holder);
    let returns = std::thread::spawn(move || -> Result<()> {
        while let Ok((stateid, file)) = recalled.recv() {
            returning.at(&file, &|compound| compound.push(&DelegreturnArgs4 { stateid }))?;
        }
        Ok(())
    });
    let mut waits = Vec::new();
    for file in &files {
        let begun = Instant::now();
        other.set_mode(file)?;
        waits.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    let counted = counters.snapshot().events;
    let recalled = counted.value(ServerCounter::DelegationsRecalled);
    if recalled != waits.len() as u64 {
        bail!("{recalled} recalls for {} changes", waits.len());
    }
    handle.shutdown();
    drop((holder, other));
    let _ = serving.join();
    drop(returns);
    let (median, high) = (p50(&mut waits), p99(&mut waits));
    let row = json!({ "changes": waits.len(), "p50 (µs)": median, "p99 (µs)": high, "bound (µs)": BOUND_MICROSECONDS });
    print_rows(
        arguments.json,
        &json!({ "wait of a change for the delegation of a client that answers": [row] }),
    )?;
    Ok(high < BOUND_MICROSECONDS)
}
