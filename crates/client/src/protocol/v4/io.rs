//! READ, WRITE and SETATTR, and the stateids that they use.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use curt_proto::nfs4::{
    Bitmap4, CompoundEncoder, Nfs4Operation, ReadArgs4, SetattrArgs4, StableHow4, Stateid, WriteHead4,
    WriteOk4,
};
use curt_rpc::client::CallError;
use curt_types::{Attributes, ByteRange, Fault, FileHandle, SetAttributes, Wcc};
use curt_xdr::DecodeError;

use super::{
    NfsV4,
    attributes::{self, EncodedAttributes, file_step},
    compound::{
        reply::CompoundReply,
        request::{CompoundRequest, RESULTS_SMALL, get_attributes, put_fh},
    },
    lock_states::LockOfIo,
    open_key::OpenKey,
    read_results,
    results::{CompoundSink, done},
};
use crate::protocol::{
    Answer, IsLost, NfsReply, OpenCaller, ReadData, ReadSink, RpcCaller, ShareAccess, WriteReply,
    WriteRequest, read_data::bytes_of,
};

/// Bytes of a READ reply beside the data.
const READ_HEAD: usize = RESULTS_SMALL;

impl NfsV4 {
    /// READ. A result that is longer than requested, or empty before end of file, is malformed.
    pub(super) fn send_read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        let count = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let asked = read_results::as_length(count);
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            get_attributes(operations, attributes::OBJECT);
            let count = count.min(self.session.lock().limits.read_max());
            operations.push(&ReadArgs4 { stateid, offset: range.start, count });
        };
        // A time not later than that of sending: older cached data never count as newer than the
        // reply.
        let sink = sink.map(|sink| {
            Arc::new(read_results::ReadResultsSink { sink: Arc::clone(sink), asked, sent_at: self.rpc.now() })
                as Arc<dyn CompoundSink>
        });
        let request = CompoundRequest {
            open: Some((&key, ShareAccess::Read)),
            results_max: READ_HEAD.saturating_add(asked).saturating_add(3),
            sink: sink.as_ref(),
            ..CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Read, &append)
        };
        let mut reply = self.send_io(&request, range.clone())?;
        if reply.call.reply.was_consumed() {
            return Ok(None);
        }
        let mut judged = self.judged(&reply, |results| read_results::read_results(results, asked))?;
        if judged.0 == Ok(read_results::ReadOutcome::Mode) {
            // Opened for writing only: the anonymous stateid reads what the caller's rights allow.
            let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
                put_fh(operations, file);
                append(operations, stateid);
            };
            reply = self.send(&CompoundRequest {
                open: None,
                lock: None,
                sink: None,
                append: &append,
                ..request
            })?;
            judged = self.judged(&reply, |results| {
                done!(results.pass(Nfs4Operation::Putfh), None);
                read_results::read_results(results, asked)
            })?;
        }
        let (outcome, attributes) = judged;
        let (sent_at, lost_at) = (reply.call.sent_at, reply.call.lost_at);
        let outcome = match outcome {
            Ok(read_results::ReadOutcome::Data { length, end }) => {
                Ok(ReadData { bytes: bytes_of(reply.call.reply, length), end })
            }
            Ok(read_results::ReadOutcome::Mode) => Err(Fault::Acces),
            Err(fault) => Err(fault),
        };
        Ok(Some(NfsReply { sent_at, lost_at, outcome, attributes }))
    }

    /// WRITE, and a SETATTR if attributes are set. A reply with a count of zero or above the number
    /// of bytes sent is malformed.
    pub(super) fn send_write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc> {
        let WriteRequest { offset, stability, bytes, set, is_lost } = write;
        let Ok(length) = u32::try_from(bytes.len()) else {
            return Ok(self.refusal(Fault::Fbig));
        };
        // The session that is used at last can be smaller than the one of now.
        let sent = AtomicU32::new(length);
        let key = OpenKey { file: file.clone(), owner: open.open.owner };
        let stable = StableHow4::from(stability);
        let encoded = set.map(EncodedAttributes::new);
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            get_attributes(operations, attributes::CHANGE);
            let count = length.min(self.session.lock().limits.write_max());
            sent.store(count, Relaxed);
            operations.push_write(&WriteHead4 { stateid, offset, stable, count });
            if let Some(encoded) = &encoded {
                let stateid = Stateid::ANONYMOUS;
                operations.push(&SetattrArgs4 { stateid, attributes: encoded.fattr() });
            }
            get_attributes(operations, attributes::OBJECT);
        };
        // A repeated WRITE writes the same bytes, so the server need not keep its reply.
        let request = match set {
            None => CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Write, &append),
            Some(_) => CompoundRequest::non_idempotent(open.rpc(), Nfs4Operation::Write, 2, &append),
        };
        let open = Some((&key, ShareAccess::Write));
        let request = CompoundRequest { open, data: bytes, is_lost: Some(is_lost), ..request };
        let reply = self.send_io(&request, offset..offset.saturating_add(length.into()))?;
        self.answered(&reply, |results| {
            let before = results.change()?;
            let ok: WriteOk4 = done!(results.next(Nfs4Operation::Write), Wcc::default());
            let sent = sent.load(Relaxed);
            if ok.count > sent || (ok.count == 0 && sent > 0) || ok.committed < stable {
                return Err(DecodeError::BadValue { name: "WRITE4resok", value: ok.count });
            }
            let set = match set {
                None => None,
                Some(_) => Some(results.next::<Bitmap4>(Nfs4Operation::Setattr)?.map(|_| ())),
            };
            let (stability, verifier) = (ok.committed.into(), ok.verifier.into());
            let written = WriteReply { count: ok.count, stability, verifier, set };
            Ok((Ok(written), file_step(before, results.attributes()?)))
        })
    }

    /// SETATTR, by the stateid of an open, or of a lock of what may be cut off, if the file is open
    /// for writing.
    pub(super) fn set_by(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        set: &SetAttributes,
        open: Option<&OpenKey>,
        is_lost: IsLost<'_>,
    ) -> Answer<(), Wcc> {
        let encoded = EncodedAttributes::new(set);
        let append = |operations: &mut CompoundEncoder<'_>, stateid: Stateid| {
            if open.is_none() {
                put_fh(operations, object);
            }
            get_attributes(operations, attributes::CHANGE);
            operations.push(&SetattrArgs4 { stateid, attributes: encoded.fattr() });
            get_attributes(operations, attributes::OBJECT);
        };
        let required = if open.is_some() { 1 } else { 2 };
        let request = CompoundRequest {
            open: open.map(|key| (key, ShareAccess::Write)),
            is_lost: Some(is_lost),
            ..CompoundRequest::non_idempotent(caller, Nfs4Operation::Setattr, required, &append)
        };
        let reply = self.send_io(&request, set.size.unwrap_or(0)..u64::MAX)?;
        self.answered(&reply, |results| {
            if open.is_none() {
                done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            }
            let before = results.change()?;
            let _: Bitmap4 = done!(results.next(Nfs4Operation::Setattr), Wcc::default());
            Ok((Ok(()), file_step(before, results.attributes()?)))
        })
    }

    /// Sends a READ, WRITE or SETATTR of these bytes, with the stateid of a lock if one covers
    /// them.
    pub(super) fn send_io(
        &self,
        request: &CompoundRequest<'_>,
        bytes: Range<u64>,
    ) -> Result<CompoundReply, CallError> {
        let range = bytes.end.checked_sub(1).and_then(|last| ByteRange::new(bytes.start, last));
        self.send(&CompoundRequest { io: range, ..*request })
    }

    /// The lock whose stateid a request uses instead of its open's.
    pub(super) fn lock_of(&self, request: &CompoundRequest<'_>) -> LockOfIo {
        match (request.lock, request.io, request.open) {
            (Some(stateid), ..) => LockOfIo::Stateid(stateid),
            (None, Some(range), Some((open, _))) => self.locks.for_io(open, range),
            (None, ..) => LockOfIo::None,
        }
    }
}
