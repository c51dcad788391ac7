//! The operations as compounds of NFSv4.1: each after SEQUENCE and PUTFH, in a session of its
//! connection. READ and WRITE use an open of the session; each OPEN has an owner of its own, and a
//! CLOSE ends one of these opens.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use curt_proto::nfs4::{
    AccessArgs4, Attribute, Bitmap4, CallbackSecParms4, ChannelAttributes, ClientOwner, Clientid, CloseArgs4,
    CompoundEncoder, CompoundResults, CreateSessionArgs4, CreateSessionFlags, CreateSessionOk4,
    ExchangeIdArgs4, ExchangeIdFlags, ExchangeIdOk4, GetattrArgs4, GetfhOk4, LookupArgs4, Nfs4Operation,
    NfsFh4, OpaqueLimited, OpenArgs4, OpenClaim, OpenHow, OpenOk4, PROGRAM, PutfhArgs4, ReadArgs4,
    ReclaimCompleteArgs4, SequenceArgs4, SequenceId, SequenceOk4, SessionId, ShareAccess4, SlotId,
    StableHow4, StateOwner, StateProtectArgs, Stateid, VERSION, Verifier4, WriteArgs4,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::message::call_record;
use curt_types::FileHandle;
use curt_xdr::{Encoded, Opaque, VarArray};

use super::connection::exchange;
use super::operations::{BLOCK_BYTES, LatencyOperation, NAME_DIGITS, block, results};
use super::rounds::LoadShape;
use super::subject::{file_name, written_name};

/// The number of COMPOUND.
const COMPOUND: u32 = 1;
/// The minor version.
const MINOR: u32 = 1;
/// The attributes that Linux asks for.
const ATTRIBUTES: Bitmap4 = Attribute::set(&[
    Attribute::Type,
    Attribute::Change,
    Attribute::Size,
    Attribute::Fsid,
    Attribute::Fileid,
    Attribute::Mode,
    Attribute::Numlinks,
    Attribute::Owner,
    Attribute::OwnerGroup,
    Attribute::Rawdev,
    Attribute::SpaceUsed,
    Attribute::TimeAccess,
    Attribute::TimeMetadata,
    Attribute::TimeModify,
    Attribute::MountedOnFileid,
]);

/// The stateids of opens that no CLOSE has ended, oldest first.
pub(super) type OpenStateids = Rc<RefCell<VecDeque<Stateid>>>;

/// Where a server's files are, for NFSv4.
pub(super) struct SessionPlace<'a> {
    /// The path of the tree from the root of the server.
    pub(super) path: &'a [u8],
    pub(super) credential: &'a RpcCredential,
    /// The name that distinguishes the server from others that are measured.
    pub(super) owner: &'a str,
}

/// A session on a connection, and the handles and opens of its calls.
pub(super) struct LatencySession<'a> {
    credential: &'a RpcCredential,
    client: Clientid,
    session: SessionId,
    /// The sequence ids of the last requests, by slot.
    sequences: Vec<u32>,
    directory: FileHandle,
    files: [FileHandle; 2],
    opens: [Stateid; 2],
    connection: usize,
}

impl<'a> LatencySession<'a> {
    /// Opens a session of the client that is named by the place and the generation, and the files
    /// of connection `connection`.
    pub(super) fn begin(
        stream: &mut TcpStream,
        place: &SessionPlace<'a>,
        connection: usize,
        shape: LoadShape,
        generation: u64,
    ) -> Result<Self> {
        let credential = place.credential;
        let slots = shape.outstanding;
        let mut ask = |arguments: Vec<u8>| {
            let call = call_record(0, PROGRAM, VERSION, COMPOUND, credential, &Encoded(&arguments));
            Ok(results(&exchange(stream, &call)?)?.to_vec())
        };
        let (client, session) = create(&mut ask, place.owner.as_bytes(), slots, generation)?;
        let (root, sequences) = (FileHandle::new(b"root").context("a short handle")?, vec![0; slots]);
        let (files, opens) = ([root.clone(), root.clone()], [Stateid::ANONYMOUS; 2]);
        let mut begun =
            Self { credential, client, session, sequences, directory: root, files, opens, connection };
        let complete = ReclaimCompleteArgs4 { one_file_system: false };
        // The client may have another session, over which it has said so.
        begun.ask(stream, |compound| compound.push(&complete), |_| Ok(()))?;
        begun.directory = begun.find(stream, place.path)?;
        for (at, name) in [file_name(connection), written_name(connection)].into_iter().enumerate() {
            let open = begun.open(name.as_bytes(), b"bench", ShareAccess4::BOTH)?;
            let directory = begun.directory.clone();
            (begun.opens[at], begun.files[at]) = begun.ask(
                stream,
                |compound| {
                    put(compound, &directory);
                    compound.push(&open);
                    compound.bare(Nfs4Operation::Getfh);
                },
                |results| {
                    results.status(Nfs4Operation::Putfh)?;
                    let opened: OpenOk4<'_> = results.next(Nfs4Operation::Open)?;
                    Ok((opened.stateid, got(results)?))
                },
            )?;
        }
        Ok(begun)
    }

    fn find(&mut self, stream: &mut TcpStream, path: &[u8]) -> Result<FileHandle> {
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let names = names.map(Opaque::new).collect::<Result<Vec<_>, _>>()?;
        self.ask(
            stream,
            |compound| {
                compound.bare(Nfs4Operation::Putrootfh);
                names.iter().for_each(|name| compound.push(&LookupArgs4 { name: *name }));
                compound.bare(Nfs4Operation::Getfh);
            },
            |results| {
                results.status(Nfs4Operation::Putrootfh)?;
                for _ in &names {
                    results.status(Nfs4Operation::Lookup)?;
                }
                got(results)
            },
        )
    }

    /// Makes one call in slot 0.
    fn ask<T>(
        &mut self,
        stream: &mut TcpStream,
        operations: impl FnOnce(&mut CompoundEncoder<'_>),
        answer: impl FnOnce(&mut CompoundResults<'_>) -> Result<T>,
    ) -> Result<T> {
        self.sequences[0] += 1;
        let call = self.compound(0, operations);
        let reply = exchange(stream, &call)?;
        let mut results = CompoundResults::new(results(&reply)?)?;
        results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
        answer(&mut results)
    }

    /// A call in `slot`, with the sequence id of the last one.
    fn compound(&self, slot: usize, operations: impl FnOnce(&mut CompoundEncoder<'_>)) -> Vec<u8> {
        let highest_slot = u32::try_from(self.sequences.len() - 1).expect("a session has few slots");
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(self.sequences[slot]),
            slot: SlotId(u32::try_from(slot).expect("a session has few slots")),
            highest_slot: SlotId(highest_slot),
            cache_this: false,
        };
        call(self.credential, |compound| {
            compound.push(&sequence);
            operations(compound);
        })
    }

    fn open<'n>(&self, name: &'n [u8], owner: &'n [u8], access: u32) -> Result<OpenArgs4<'n>> {
        let owner = StateOwner { clientid: self.client, owner: OpaqueLimited::new(owner)? };
        let share_access = ShareAccess4(access | ShareAccess4::WANT_NO_DELEG);
        let (how, claim) = (OpenHow::NoCreate, OpenClaim::Null(Opaque::new(name)?));
        Ok(OpenArgs4 { seqid: 0, share_access, share_deny: 0, owner, how, claim })
    }

    /// The call of `operation` in a slot; its sequence id, and the owner of OPEN and the stateid of
    /// CLOSE, are set when it is sent.
    pub(super) fn call(&self, operation: LatencyOperation, slot: usize, generation: u64) -> Result<Vec<u8>> {
        let [file, written] = &self.files;
        let [read, write] = self.opens;
        let offset = (slot * BLOCK_BYTES) as u64;
        let after = |handle: &FileHandle, rest: &dyn Fn(&mut CompoundEncoder<'_>)| {
            self.compound(slot, |compound| {
                put(compound, handle);
                rest(compound);
            })
        };
        let attributes = GetattrArgs4 { attributes: ATTRIBUTES };
        Ok(match operation {
            LatencyOperation::Getattr => after(file, &|compound| compound.push(&attributes)),
            LatencyOperation::Access => after(file, &|compound| compound.push(&AccessArgs4 { access: 0x3f })),
            LatencyOperation::Lookup => {
                let name = file_name(self.connection);
                let lookup = LookupArgs4 { name: Opaque::new(name.as_bytes())? };
                after(&self.directory, &|compound| {
                    compound.push(&lookup);
                    compound.bare(Nfs4Operation::Getfh);
                    compound.push(&attributes);
                })
            }
            LatencyOperation::Read => {
                let count = u32::try_from(BLOCK_BYTES)?;
                after(file, &|compound| compound.push(&ReadArgs4 { stateid: read, offset, count }))
            }
            LatencyOperation::WriteUnstable | LatencyOperation::WriteFileSync => {
                let data = block(slot, generation, BLOCK_BYTES);
                let stable = match operation {
                    LatencyOperation::WriteFileSync => StableHow4::FileSync,
                    _ => StableHow4::Unstable,
                };
                let data = Opaque::new(&data)?;
                after(written, &|compound| {
                    compound.push(&WriteArgs4 { stateid: write, offset, stable, data })
                })
            }
            LatencyOperation::Open => {
                let (name, owner) = (file_name(self.connection), open_owner(self.connection));
                let open = self.open(name.as_bytes(), &owner, ShareAccess4::READ)?;
                after(&self.directory, &|compound| compound.push(&open))
            }
            LatencyOperation::Close => {
                after(file, &|compound| compound.push(&CloseArgs4 { seqid: 0, stateid: Stateid::ANONYMOUS }))
            }
            LatencyOperation::Create | LatencyOperation::Remove | LatencyOperation::ReaddirPlus => {
                anyhow::bail!("{} is measured with NFSv3 only", operation.name())
            }
        })
    }

    /// The session's id, which the sequence id follows in a call.
    pub(super) const fn id(&self) -> &[u8; 16] {
        &self.session.0
    }

    /// The sequence ids of the last requests, by slot.
    pub(super) fn sequences(&self) -> &[u32] {
        &self.sequences
    }
}

/// The first owner of OPENs of a connection; the others differ in the digits at the end.
pub(super) fn open_owner(connection: usize) -> Vec<u8> {
    format!("owner-{connection:02}-{:0NAME_DIGITS$x}", 0).into_bytes()
}

/// The stateid in a reply to OPEN.
pub(super) fn opened(record: &[u8]) -> Result<Stateid> {
    let mut results = CompoundResults::new(results(record)?)?;
    results.next::<SequenceOk4>(Nfs4Operation::Sequence)?;
    results.status(Nfs4Operation::Putfh)?;
    Ok(results.next::<OpenOk4<'_>>(Nfs4Operation::Open)?.stateid)
}

fn put(compound: &mut CompoundEncoder<'_>, handle: &FileHandle) {
    compound.push(&PutfhArgs4 { object: NfsFh4::from(handle) });
}

fn got(results: &mut CompoundResults<'_>) -> Result<FileHandle> {
    let handle: GetfhOk4<'_> = results.next(Nfs4Operation::Getfh)?;
    FileHandle::new(handle.object.bytes()).context("a handle that is too long")
}

/// The arguments of a COMPOUND.
pub(crate) fn arguments(operations: impl FnOnce(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    let mut arguments = Vec::new();
    let mut compound = CompoundEncoder::new(&mut arguments, Opaque::default(), MINOR);
    operations(&mut compound);
    compound.finish();
    arguments
}

/// A call of COMPOUND as a record; the xid is set when it is sent.
fn call(credential: &RpcCredential, operations: impl FnOnce(&mut CompoundEncoder<'_>)) -> Vec<u8> {
    call_record(0, PROGRAM, VERSION, COMPOUND, credential, &Encoded(&arguments(operations)))
}

/// Calls COMPOUND with these arguments, and returns the results.
pub(crate) type AskCompound<'a> = &'a mut dyn FnMut(Vec<u8>) -> Result<Vec<u8>>;

/// EXCHANGE_ID and CREATE_SESSION. A new generation is a new instance of the client, whose opens
/// replace those of the last one.
pub(crate) fn create(
    ask: AskCompound<'_>,
    owner: &[u8],
    slots: usize,
    generation: u64,
) -> Result<(Clientid, SessionId)> {
    let exchange_id = ExchangeIdArgs4 {
        owner: ClientOwner {
            verifier: Verifier4(generation.to_be_bytes()),
            owner: OpaqueLimited::new(owner)?,
        },
        flags: ExchangeIdFlags(ExchangeIdFlags::USE_NON_PNFS),
        state_protect: StateProtectArgs::None,
        implementation: VarArray::default(),
    };
    let reply = ask(arguments(|compound| compound.push(&exchange_id)))?;
    let client: ExchangeIdOk4<'_> = CompoundResults::new(&reply)?.next(Nfs4Operation::ExchangeId)?;
    let channel = |size, requests_max| ChannelAttributes {
        request_max: size,
        response_max: size,
        response_cached_max: 1024,
        operations_max: 16,
        requests_max,
        ..ChannelAttributes::default()
    };
    let create_session = CreateSessionArgs4 {
        clientid: client.clientid,
        sequence: client.sequence,
        flags: CreateSessionFlags(0),
        fore: channel(64 << 10, u32::try_from(slots)?),
        back: channel(4096, 1),
        callback_program: 0x4000_0000,
        callback_security: VarArray::new(vec![CallbackSecParms4::None])?,
    };
    let reply = ask(arguments(|compound| compound.push(&create_session)))?;
    let created: CreateSessionOk4 = CompoundResults::new(&reply)?.next(Nfs4Operation::CreateSession)?;
    let granted = usize::try_from(created.fore.requests_max)?;
    ensure!(granted >= slots, "the server grants {granted} slots of {slots}");
    Ok((client.clientid, created.session))
}
