//! LOOKUP and what makes, removes and moves names (RFC 1813 §3.3.3, 3.3.8 to 3.3.15).

use curt_proto::nfs3::{
    self, CreateArguments, CreateVerifier, DirectoryName, Fattr, FileHandle, Filename, LinkArguments,
    LinkWcc, LookupOk, MkdirArguments, MknodArguments, MknodData, Path, Procedure, RenameArguments,
    RenameWcc, Status, SymlinkArguments, WccData,
};
use curt_rpc::client::CallError;
use curt_xdr::Encode;

use super::{ask, refusal};
use crate::plan::{
    Answer, Asker, Attributes, CreateHow, Created, Found, Linked, Node, Renamed, SetAttributes, Wcc, Wire,
};

/// LOOKUP: what `name` in `directory` leads to. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn lookup(
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<Answer<Found, Option<Attributes>>, CallError> {
    let Some(arguments) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    let success = |ok: LookupOk| {
        let found = Found {
            handle: ok.object,
            attributes: ok.attributes.map(Attributes::from),
        };
        (found, ok.directory.map(Attributes::from))
    };
    let failure = |fattr: Option<Fattr>| fattr.map(Attributes::from);
    ask(wire, asker, Procedure::Lookup, &arguments, success, failure)
}

/// CREATE: makes a regular file. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn create(
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
    how: &CreateHow,
) -> Result<Answer<Created, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    let how = match *how {
        CreateHow::Unchecked(set) => nfs3::CreateHow::Unchecked(set.into()),
        CreateHow::Guarded(set) => nfs3::CreateHow::Guarded(set.into()),
        CreateHow::Exclusive(verifier) => nfs3::CreateHow::Exclusive(CreateVerifier(verifier)),
    };
    make(wire, asker, Procedure::Create, &CreateArguments { place, how })
}

/// MKDIR: makes a directory. `about` is the directory that holds its name.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn mkdir(
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
    set: &SetAttributes,
) -> Result<Answer<Created, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    make(
        wire,
        asker,
        Procedure::Mkdir,
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
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
    target: &[u8],
    set: &SetAttributes,
) -> Result<Answer<Created, Wcc>, CallError> {
    let (Some(place), Ok(target)) = (place(directory, name), Path::new(target)) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    make(
        wire,
        asker,
        Procedure::Symlink,
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
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
    node: Node,
    set: &SetAttributes,
) -> Result<Answer<Created, Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    let set = (*set).into();
    let what = match node {
        Node::Character(device) => MknodData::CharacterDevice(set, device.into()),
        Node::Block(device) => MknodData::BlockDevice(set, device.into()),
        Node::Socket => MknodData::Socket(set),
        Node::Fifo => MknodData::Fifo(set),
    };
    make(wire, asker, Procedure::Mknod, &MknodArguments { place, what })
}

/// REMOVE: removes a name that is no directory's. `about` is the directory.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn remove(
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<Answer<(), Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    change(wire, asker, Procedure::Remove, &place)
}

/// RMDIR: removes an empty directory. `about` is the directory that holds its name.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn rmdir(
    wire: &Wire,
    asker: Asker<'_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<Answer<(), Wcc>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    change(wire, asker, Procedure::Rmdir, &place)
}

/// RENAME: moves a name, over another one if need be. Both names are (directory, name).
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn rename(
    wire: &Wire,
    asker: Asker<'_>,
    from: (&FileHandle, &[u8]),
    to: (&FileHandle, &[u8]),
) -> Result<Answer<(), Renamed>, CallError> {
    let (Some(from), Some(to)) = (place(from.0, from.1), place(to.0, to.1)) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    let renamed = |wcc: RenameWcc| Renamed {
        from: wcc.from.into(),
        to: wcc.to.into(),
    };
    ask(
        wire,
        asker,
        Procedure::Rename,
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
    wire: &Wire,
    asker: Asker<'_>,
    file: &FileHandle,
    directory: &FileHandle,
    name: &[u8],
) -> Result<Answer<(), Linked>, CallError> {
    let Some(place) = place(directory, name) else {
        return Ok(refusal(wire, Status::Nametoolong));
    };
    let linked = |wcc: LinkWcc| Linked {
        file: wcc.attributes.map(Attributes::from),
        directory: wcc.directory.into(),
    };
    let arguments = LinkArguments { file: *file, place };
    ask(
        wire,
        asker,
        Procedure::Link,
        &arguments,
        |wcc| ((), linked(wcc)),
        linked,
    )
}

/// A name in a directory; none if no message can carry it.
fn place<'a>(directory: &FileHandle, name: &'a [u8]) -> Option<DirectoryName<'a>> {
    Some(DirectoryName {
        directory: *directory,
        name: Filename::new(name).ok()?,
    })
}

fn make(
    wire: &Wire,
    asker: Asker<'_>,
    procedure: Procedure,
    arguments: &(dyn Encode + Sync),
) -> Result<Answer<Created, Wcc>, CallError> {
    let success = |ok: nfs3::Created| {
        let created = Created {
            handle: ok.object,
            attributes: ok.attributes.map(Attributes::from),
        };
        (created, ok.directory.into())
    };
    ask(wire, asker, procedure, arguments, success, |wcc: WccData| {
        wcc.into()
    })
}

fn change(
    wire: &Wire,
    asker: Asker<'_>,
    procedure: Procedure,
    arguments: &(dyn Encode + Sync),
) -> Result<Answer<(), Wcc>, CallError> {
    ask(
        wire,
        asker,
        procedure,
        arguments,
        |wcc: WccData| ((), wcc.into()),
        |wcc: WccData| wcc.into(),
    )
}
