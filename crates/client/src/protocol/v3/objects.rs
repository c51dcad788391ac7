//! NULL, GETATTR, SETATTR, ACCESS and READLINK (RFC 1813 §3.3.0 to 3.3.2, 3.3.4, 3.3.5).

use curt_proto::nfs3::{
    AccessArguments, AccessMask, AccessOk, Fattr, NfsProcedure, NfsResult, NfsTime, ReadlinkOk,
    SetattrArguments, WccData,
};
use curt_rpc::client::CallError;
use curt_types::{Attributes, FileHandle, SetAttributes, Timestamp, Wcc};

use super::{RESULTS_NAME, RESULTS_SMALL, answer, ask, nfs_fh3, read_results, send};
use crate::protocol::{NfsReply, RpcCaller, RpcClient};

/// NULL: asks whether the server answers at all.
///
/// # Errors
/// No answer.
pub fn null(wire: &RpcClient, asker: RpcCaller<'_>) -> Result<(), CallError> {
    let incoming = send(wire, asker, NfsProcedure::Null, &(), &[], RESULTS_SMALL)?;
    read_results(wire, NfsProcedure::Null, incoming.reply.results())
}

/// GETATTR: the attributes of an object.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn getattr(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    object: &FileHandle,
) -> Result<NfsReply<Attributes, ()>, CallError> {
    ask(
        wire,
        asker,
        NfsProcedure::Getattr,
        &nfs_fh3(object)?,
        |fattr: Fattr| (fattr.into(), ()),
        |(): ()| (),
    )
}

/// SETATTR: sets attributes; with `guard` only if the object's ctime is still that.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn setattr(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    object: &FileHandle,
    set: &SetAttributes,
    guard: Option<Timestamp>,
) -> Result<NfsReply<(), Wcc>, CallError> {
    let guard = guard.map(NfsTime::from);
    let arguments = SetattrArguments {
        object: nfs_fh3(object)?,
        attributes: (*set).into(),
        guard,
    };
    let success = |wcc: WccData| ((), wcc.into());
    ask(
        wire,
        asker,
        NfsProcedure::Setattr,
        &arguments,
        success,
        |wcc: WccData| wcc.into(),
    )
}

/// ACCESS: which of the rights in `mask` (RFC 1813 §3.3.4, ACCESS3_READ and so on) the asker has.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn access(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    object: &FileHandle,
    mask: u32,
) -> Result<NfsReply<u32, Option<Attributes>>, CallError> {
    let arguments = AccessArguments {
        object: nfs_fh3(object)?,
        access: AccessMask(mask),
    };
    // A right that was not asked about is not granted by an answer.
    let success = |ok: AccessOk| (ok.access.0 & mask, ok.attributes.map(Attributes::from));
    let failure = |fattr: Option<Fattr>| fattr.map(Attributes::from);
    ask(wire, asker, NfsProcedure::Access, &arguments, success, failure)
}

/// READLINK: where a symbolic link leads.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn readlink(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    link: &FileHandle,
) -> Result<NfsReply<Box<[u8]>, Option<Attributes>>, CallError> {
    let incoming = send(
        wire,
        asker,
        NfsProcedure::Readlink,
        &nfs_fh3(link)?,
        &[],
        RESULTS_NAME,
    )?;
    let outcome: NfsResult<ReadlinkOk<'_>, Option<Fattr>> =
        read_results(wire, NfsProcedure::Readlink, incoming.reply.results())?;
    let success = |ok: ReadlinkOk<'_>| (ok.target.bytes().into(), ok.attributes.map(Attributes::from));
    Ok(answer(incoming.sent_at, outcome, success, |fattr| {
        fattr.map(Attributes::from)
    }))
}
