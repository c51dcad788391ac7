//! NFSv4.1 and 4.2 (RFC 8881, RFC 7862): one procedure, COMPOUND, whose operations are executed in
//! order until one fails ([`compound`]).
//!
//! An operation has a function in a file of its own. It decodes its arguments, does what they ask
//! for by a verb of [`ops`](crate::ops) or by the state machines of [`state`](crate::state), and
//! encodes its result. All have one signature, [`table::OperationFn`], and one context,
//! [`Compound`].

mod access;
mod attributes;
mod backchannel_ctl;
mod bind_conn_to_session;
mod callbacks;
mod change;
mod close;
mod commit;
mod compound;
mod connection_association;
mod create;
mod create_session;
mod delegreturn;
mod destroy_clientid;
mod destroy_session;
mod exchange_id;
mod free_stateid;
mod get_dir_delegation;
mod getattr;
mod getfh;
mod io;
mod link;
mod lock;
mod lookup;
mod names;
mod object;
mod open;
mod operation_outcome;
mod pseudo;
mod putfh;
mod read;
mod readdir;
mod readlink;
mod reclaim_complete;
mod remove;
mod rename;
mod savefh;
mod secinfo;
mod sequence;
mod set_ssv;
mod setattr;
mod settable_attributes;
mod table;
mod test_stateid;
#[cfg(test)]
mod tests;
mod verify;
mod write;

use curt_proto::Operation;
use curt_proto::nfs4::Nfs4Procedure;
use curt_rpc::message::CallMessage;
use curt_rpc::server::{CallContext, CallFailure};

pub(crate) use callbacks::CallbackThreads;
pub(crate) use compound::Compound;
pub(crate) use connection_association::AssociatedSessions;
pub(crate) use object::Object;
pub(crate) use operation_outcome::{OpFailure, Outcome, decoded};

use crate::service::NfsService;

/// The number of NULL.
const NULL: u32 = 0;
/// The number of COMPOUND.
const COMPOUND: u32 = 1;

/// Answers a call of the program's version 4.
pub(crate) fn call(
    service: &NfsService,
    call: &CallMessage<'_>,
    context: &mut CallContext<'_>,
    reply: &mut Vec<u8>,
) -> Result<(), CallFailure> {
    if let Some(procedure) = Nfs4Procedure::from_number(call.procedure)
        && !context.was_deferred()
    {
        service.counters.calls.count(Operation::Nfs4Procedure(procedure));
    }
    match call.procedure {
        NULL => curt_xdr::decode_all::<()>(call.arguments).map_err(|_| CallFailure::GarbageArguments),
        COMPOUND => compound::call(service, call, context, reply),
        _ => Err(CallFailure::ProcedureUnavailable),
    }
}
