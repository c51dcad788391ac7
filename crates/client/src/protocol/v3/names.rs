//! LOOKUP and what makes, removes and moves names (RFC 1813 §3.3.3, 3.3.8 to 3.3.15).

use curt_proto::nfs3::{
    self, CreateArguments, CreateVerifier, DirOpArgs, Fattr, Filename, LinkArguments, LinkWcc, LookupOk,
    MkdirArguments, MknodArguments, MknodData, NfsPath, NfsProcedure, RenameArguments, RenameWcc,
    SymlinkArguments, WccData,
};
use curt_rpc::client::CallError;
use curt_types::{Attributes, Fault, FileHandle, SetAttributes, Wcc};
use curt_xdr::Encode;

use super::{CreateReply, CreateSemantics, ask, nfs_fh3, refusal};
use crate::protocol::{
    LinkAttributes, LookupReply, MknodType, NfsReply, RenameAttributes, RpcCaller, RpcClient,
};

/// LOOKUP: what `name` in `directory` leads to. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn lookup(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<NfsReply<LookupReply, Option<Attributes>>, CallError> {
    let Some(arguments) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    let success = |ok: LookupOk| {
        let found = LookupReply {
            handle: ok.object.into(),
            attributes: ok.attributes.map(Attributes::from),
        };
        (found, ok.directory.map(Attributes::from))
    };
    let failure = |fattr: Option<Fattr>| fattr.map(Attributes::from);
    ask(wire, asker, NfsProcedure::Lookup, &arguments, success, failure)
}

/// CREATE: makes a regular file. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn create(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
    how: &CreateSemantics,
) -> Result<NfsReply<CreateReply, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    let how = match *how {
        CreateSemantics::Unchecked(set) => nfs3::CreateHow::Unchecked(set.into()),
        CreateSemantics::Guarded(set) => nfs3::CreateHow::Guarded(set.into()),
        CreateSemantics::Exclusive(verifier) => nfs3::CreateHow::Exclusive(CreateVerifier(verifier)),
    };
    make(wire, asker, NfsProcedure::Create, &CreateArguments { place, how })
}

/// MKDIR: makes a directory. `about` is the directory that holds its name.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn mkdir(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
    set: &SetAttributes,
) -> Result<NfsReply<CreateReply, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    make(
        wire,
        asker,
        NfsProcedure::Mkdir,
        &MkdirArguments {
            place,
            attributes: (*set).into(),
        },
    )
}

/// SYMLINK: makes a symbolic link to `target`. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn symlink(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
    target: &[u8],
    set: &SetAttributes,
) -> Result<NfsReply<CreateReply, Wcc>, CallError> {
    let (Some(place), Ok(target)) = (place(directory, name), NfsPath::new(target)) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    make(
        wire,
        asker,
        NfsProcedure::Symlink,
        &SymlinkArguments {
            place,
            attributes: (*set).into(),
            target,
        },
    )
}

/// MKNOD: makes a device, a socket's name or a named pipe. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn mknod(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
    node: MknodType,
    set: &SetAttributes,
) -> Result<NfsReply<CreateReply, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    let set = (*set).into();
    let what = match node {
        MknodType::Character(device) => MknodData::CharacterDevice(set, device.into()),
        MknodType::Block(device) => MknodData::BlockDevice(set, device.into()),
        MknodType::Socket => MknodData::Socket(set),
        MknodType::Fifo => MknodData::Fifo(set),
    };
    make(wire, asker, NfsProcedure::Mknod, &MknodArguments { place, what })
}

/// REMOVE: removes a name that is no directory's. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn remove(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<NfsReply<(), Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    change(wire, asker, NfsProcedure::Remove, &place)
}

/// RMDIR: removes an empty directory. `about` is the directory that holds its name.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn rmdir(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<NfsReply<(), Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    change(wire, asker, NfsProcedure::Rmdir, &place)
}

/// RENAME: moves a name, over another one if need be. Both names are (directory, name).
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn rename(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    from: (&FileHandle, &[u8]),
    to: (&FileHandle, &[u8]),
) -> Result<NfsReply<(), RenameAttributes>, CallError> {
    let (Some(from), Some(to)) = (place(from.0, from.1), place(to.0, to.1)) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    let renamed = |wcc: RenameWcc| RenameAttributes {
        from: wcc.from.into(),
        to: wcc.to.into(),
    };
    ask(
        wire,
        asker,
        NfsProcedure::Rename,
        &RenameArguments { from, to },
        |wcc| ((), renamed(wcc)),
        renamed,
    )
}

/// LINK: gives a file one more name.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn link(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    file: &FileHandle,
    directory: &FileHandle,
    name: &[u8],
) -> Result<NfsReply<(), LinkAttributes>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Fault::Nametoolong));
    };
    let linked = |wcc: LinkWcc| LinkAttributes {
        file: wcc.attributes.map(Attributes::from),
        directory: wcc.directory.into(),
    };
    let arguments = LinkArguments {
        file: nfs_fh3(file)?,
        place,
    };
    ask(
        wire,
        asker,
        NfsProcedure::Link,
        &arguments,
        |wcc| ((), linked(wcc)),
        linked,
    )
}

/// A name in a directory; none if no message can carry it.
fn place<'a>(directory: &FileHandle, name: &'a [u8]) -> Option<DirOpArgs<'a>> {
    Some(DirOpArgs {
        directory: nfs_fh3(directory).ok()?,
        name: Filename::new(name).ok()?,
    })
}

fn make(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    procedure: NfsProcedure,
    arguments: &(dyn Encode + Sync),
) -> Result<NfsReply<CreateReply, Wcc>, CallError> {
    let success = |ok: nfs3::CreateOk| {
        let created = CreateReply {
            handle: ok.object.map(FileHandle::from),
            attributes: ok.attributes.map(Attributes::from),
        };
        (created, ok.directory.into())
    };
    ask(wire, asker, procedure, arguments, success, |wcc: WccData| {
        wcc.into()
    })
}

fn change(
    wire: &RpcClient,
    asker: RpcCaller<'_>,
    procedure: NfsProcedure,
    arguments: &(dyn Encode + Sync),
) -> Result<NfsReply<(), Wcc>, CallError> {
    ask(
        wire,
        asker,
        procedure,
        arguments,
        |wcc: WccData| ((), wcc.into()),
        |wcc: WccData| wcc.into(),
    )
}
