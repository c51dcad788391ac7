//! A client of NFSv4.1 as tests need it: one connection, and a session with one slot in use. It
//! accepts every callback, and does nothing about it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use curt_proto::nfs4::*;
use curt_rpc::auth::{AuthSysCredential, AuthSysGids, MachineName, RpcCredential};
use curt_rpc::message::{
    AcceptStatus, CallMessage, call_record, decode_reply_header, encode_accepted_header,
};
use curt_xdr::{Decoder, Encode, Opaque, VarArray};

/// The minor version.
pub const MINOR: u32 = 1;

/// A connection, and the session that was created over it.
pub struct Nfs4Client {
    stream: TcpStream,
    session: SessionId,
    sequence: u32,
    /// The last one. They differ from those of callbacks, which tshark would mix up.
    xid: u32,
    called_back: Vec<CallbackOperation>,
}

/// Arguments of COMPOUND, encoded already.
struct EncodedCompound(Vec<u8>);

impl Encode for EncodedCompound {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

impl Nfs4Client {
    /// Connects to `ADDRESS:PORT`, and creates a session, before RECLAIM_COMPLETE.
    ///
    /// # Errors
    /// The server cannot be reached, or refuses the client.
    pub fn connect(address: &str, owner: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        let mut client = Self {
            stream,
            session: SessionId::default(),
            sequence: 0,
            xid: 1 << 30,
            called_back: Vec::new(),
        };
        let exchange = ExchangeIdArgs4 {
            owner: ClientOwner { verifier: Verifier4([1; 8]), owner: Opaque::new(owner.as_bytes())? },
            flags: ExchangeIdFlags(0),
            state_protect: StateProtectArgs::None,
            implementation: VarArray::default(),
        };
        let reply = client.send(|compound| compound.push(&exchange))?;
        let exchanged: ExchangeIdOk4<'_> = CompoundResults::new(&reply)?.next(Nfs4Operation::ExchangeId)?;
        let channel = ChannelAttributes {
            request_max: 1 << 20,
            response_max: 1 << 20,
            response_cached_max: 4096,
            operations_max: 64,
            requests_max: 4,
            ..ChannelAttributes::default()
        };
        let create = CreateSessionArgs4 {
            clientid: exchanged.clientid,
            sequence: exchanged.sequence,
            flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
            fore: channel.clone(),
            back: channel,
            callback_program: 0x4000_0000,
            callback_security: VarArray::new(vec![CallbackSecParms4::None])?,
        };
        let reply = client.send(|compound| compound.push(&create))?;
        client.session =
            CompoundResults::new(&reply)?.next::<CreateSessionOk4>(Nfs4Operation::CreateSession)?.session;
        Ok(client)
    }

    /// Its session.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Sends a compound and returns its results.
    ///
    /// # Errors
    /// There is no reply, or the server rejects the call.
    pub fn send(&mut self, operations: impl FnOnce(&mut CompoundEncoder<'_>)) -> Result<Vec<u8>> {
        let mut arguments = Vec::new();
        let mut compound = CompoundEncoder::new(&mut arguments, Opaque::new(b"tests")?, MINOR);
        operations(&mut compound);
        compound.finish();
        self.call(VERSION, Nfs4Procedure::Compound.number(), &EncodedCompound(arguments))
    }

    /// Calls a procedure of a version of NFS and returns its results.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn call(&mut self, version: u32, procedure: u32, arguments: &impl Encode) -> Result<Vec<u8>> {
        let credential = RpcCredential::Sys(AuthSysCredential {
            machine_name: MachineName::new(b"tests"),
            uid: 0,
            gid: 0,
            groups: AuthSysGids::first_of(&[]),
        });
        self.xid += 1;
        self.stream.write_all(&call_record(self.xid, PROGRAM, version, procedure, &credential, arguments))?;
        let mut record = self.record()?;
        while record.get(4..8) == Some(&[0; 4]) {
            self.answer(&record)?;
            record = self.record()?;
        }
        let decoder = &mut Decoder::new(&record);
        let outcome = decode_reply_header(decoder).context("no reply")?.outcome;
        ensure!(outcome == Ok(AcceptStatus::Success), "the call was refused: {outcome:?}");
        Ok(decoder.remaining().to_vec())
    }

    /// Waits for a callback of this operation, unless one came before.
    ///
    /// # Errors
    /// The connection ends, or something else than callbacks arrives.
    pub fn wait_for(&mut self, operation: CallbackOperation) -> Result<()> {
        while !self.called_back.contains(&operation) {
            let record = self.record()?;
            self.answer(&record)?;
        }
        Ok(())
    }

    /// Answers a callback.
    fn answer(&mut self, record: &[u8]) -> Result<()> {
        let call = CallMessage::decode(record).context("no callback")?;
        let decoder = &mut Decoder::new(call.arguments);
        let header: CallbackHeader<'_> = decoder.get()?;
        ensure!(decoder.get::<CallbackOperation>()? == CallbackOperation::Sequence, "no CB_SEQUENCE");
        let CbSequenceArgs4 { session, sequence, slot, .. } = decoder.get()?;
        let operation: CallbackOperation = decoder.get()?;
        self.called_back.push(operation);
        let mut reply = vec![0; 4];
        encode_accepted_header(&mut reply, call.xid);
        CompoundReplyHeader { status: NfsStat4::Ok, tag: header.tag, results: 2 }.encode(&mut reply);
        CallbackOperation::Sequence.encode(&mut reply);
        NfsStat4::Ok.encode(&mut reply);
        let (highest_slot, target_highest_slot) = (slot, slot);
        CbSequenceOk4 { session, sequence, slot, highest_slot, target_highest_slot }.encode(&mut reply);
        operation.encode(&mut reply);
        NfsStat4::Ok.encode(&mut reply);
        let mark = u32::try_from(reply.len() - 4)? | 1 << 31;
        reply[..4].copy_from_slice(&mark.to_be_bytes());
        Ok(self.stream.write_all(&reply)?)
    }

    fn record(&mut self) -> Result<Vec<u8>> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let length = u32::from_be_bytes(mark) & (u32::MAX >> 1);
        let mut record = vec![0; usize::try_from(length)?];
        self.stream.read_exact(&mut record)?;
        Ok(record)
    }

    /// As [`Self::send`], after SEQUENCE. Returns the status, too.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn run(&mut self, operations: impl FnOnce(&mut CompoundEncoder<'_>)) -> Result<(NfsStat4, Vec<u8>)> {
        self.sequence += 1;
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(self.sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        let reply = self.send(|compound| {
            compound.push(&sequence);
            operations(compound);
        })?;
        let status = CompoundResults::new(&reply)?.header().status;
        Ok((status, reply))
    }
}

/// Makes the object at a path the current one.
///
/// # Panics
/// A name is longer than the protocol allows.
pub fn go(compound: &mut CompoundEncoder<'_>, path: &[&str]) {
    compound.bare(Nfs4Operation::Putrootfh);
    for name in path {
        compound.push(&LookupArgs4 { name: Opaque::new(name.as_bytes()).expect("a short name") });
    }
}
