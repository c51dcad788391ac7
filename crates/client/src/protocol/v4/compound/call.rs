//! COMPOUND as a call of RPC, sent once.

use std::sync::Arc;

use curt_proto::{
    Operation,
    nfs4::{
        CompoundEncoder, CompoundResults, Nfs4Operation, Nfs4Procedure, NfsStat4, PROGRAM, SequenceArgs4,
        VERSION,
    },
};
use curt_rpc::client::{BulkData, CallArguments, CallError, ReplySink};
use curt_xdr::{Decode, DecodeError, Opaque};

use super::{
    prefix::{CompoundPrefix, PREFIX_MAX},
    request::Append,
};
use crate::protocol::{
    RpcCaller,
    rpc_client::{CallResult, CallSpec},
    v4::{NfsV4, results::outcome},
};

/// A call of COMPOUND.
pub(super) struct CompoundCall<'a> {
    pub(super) minor_version: u32,
    pub(super) sequence: Option<SequenceArgs4>,
    pub(super) prefix: &'a CompoundPrefix<'a>,
    pub(super) append: Append<'a>,
    pub(super) data: &'a [u8],
}

impl CallArguments for CompoundCall<'_> {
    fn encode_around<'a>(&'a self, out: &mut Vec<u8>) -> BulkData<'a> {
        let mut operations = CompoundEncoder::new(out, Opaque::default(), self.minor_version);
        if let Some(sequence) = &self.sequence {
            operations.push(sequence);
        }
        self.prefix.push(&mut operations);
        (self.append)(&mut operations, self.prefix.stateid());
        operations.finish().map_or_else(BulkData::default, |omitted| {
            let length = usize::try_from(omitted.length).expect("a usize has 32 bits at least");
            BulkData::new(omitted.at, &self.data[..length])
        })
    }
}

impl NfsV4 {
    /// A compound without SEQUENCE, sent once; its results are those of one operation.
    pub(in crate::protocol::v4) fn send_alone<T: for<'a> Decode<'a>>(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        append: Append<'_>,
    ) -> Result<Result<T, NfsStat4>, CallError> {
        let prefix = CompoundPrefix::default();
        let minor_version = self.minor_version;
        let call = CompoundCall { minor_version, sequence: None, prefix: &prefix, append, data: &[] };
        let result = self.call_once(caller, operation, &call, 4 * PREFIX_MAX, None)?;
        let mut results = self.decoded(CompoundResults::new(result.reply.results()))?;
        let header = *results.header();
        if header.results == 0 && header.status != NfsStat4::Ok {
            // A minor version that the server does not have.
            return Ok(Err(header.status));
        }
        self.decoded(outcome(results.next(operation)))
    }

    pub(super) fn call_once(
        &self,
        caller: RpcCaller<'_>,
        operation: Nfs4Operation,
        call: &CompoundCall<'_>,
        results_max: usize,
        sink: Option<&Arc<dyn ReplySink>>,
    ) -> Result<CallResult, CallError> {
        let outgoing = CallSpec {
            program: PROGRAM,
            version: VERSION,
            procedure: Nfs4Procedure::Compound.number(),
            arguments: call,
            results_max,
            jukebox: Some(NfsStat4::Delay.number()),
            status_at: 0,
            transport: None,
            operation: Some(Operation::Nfs4(operation)),
            sink,
        };
        self.rpc.call_without_retry(caller, outgoing)
    }

    /// Logs a malformed reply.
    pub(in crate::protocol::v4) fn decoded<T>(
        &self,
        decoded: Result<T, DecodeError>,
    ) -> Result<T, CallError> {
        decoded.map_err(|error| self.rpc.malformed("COMPOUND", error))
    }
}
