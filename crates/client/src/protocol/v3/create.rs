//! CREATE, MKDIR, SYMLINK and MKNOD (RFC 1813, sections 3.3.8 to 3.3.11), and the requests that
//! must follow them.
//!
//! If the server does not return the handle of the new object, the name is looked up. An exclusive
//! CREATE stores its verifier in the file's times and sets no attributes, so a SETATTR follows.

use std::hash::{BuildHasher, RandomState};

use curt_proto::nfs3::{
    CreateArguments, CreateHow, CreateOk, CreateVerf3, DirOpArgs, MkdirArguments, MknodArguments, MknodData,
    NfsPath, NfsProcedure, SymlinkArguments,
};
use curt_types::{Attributes, Fault, FileHandle, FileKind, SetAttributes, SetTime, Wcc};
use curt_xdr::Encode;

use super::{
    Answer, CreateRequest, CreatedObject, LookupReply, NfsReply, NfsV3, Protocol, RpcCaller, attributes,
    place, wcc,
};

/// What the server returned about a created object.
#[derive(PartialEq, Eq)]
struct CreateReply {
    handle: Option<FileHandle>,
    attributes: Option<Attributes>,
}

impl NfsV3 {
    /// Creates an object under a name that must not exist.
    pub(super) fn make(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let (Some(place), Ok(target)) = (place(directory, name), NfsPath::new(new.text)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let set = SetAttributes { mode: Some(new.mode), ..SetAttributes::default() };
        let attributes = set.into();
        let node = |what| {
            let arguments = MknodArguments { place, what };
            self.send_create(caller, NfsProcedure::Mknod, &arguments)
        };
        let made = match new.kind {
            FileKind::Regular if new.is_exclusive => {
                return self.make_exclusive(caller, directory, place, set);
            }
            // GUARDED, not UNCHECKED: an existing file must not be changed to this mode.
            FileKind::Regular => self.create_file(caller, place, CreateHow::Guarded(attributes)),
            FileKind::Directory => {
                let arguments = MkdirArguments { place, attributes };
                self.send_create(caller, NfsProcedure::Mkdir, &arguments)
            }
            FileKind::Symlink => {
                let arguments = SymlinkArguments { place, attributes, target };
                self.send_create(caller, NfsProcedure::Symlink, &arguments)
            }
            FileKind::BlockDevice => node(MknodData::BlockDevice(attributes, new.device.into())),
            FileKind::CharacterDevice => node(MknodData::CharacterDevice(attributes, new.device.into())),
            FileKind::Socket => node(MknodData::Socket(attributes)),
            FileKind::Fifo => node(MknodData::Fifo(attributes)),
        };
        self.find_made(caller, directory, place, made?)
    }

    /// Creates a file with a verifier, by which the server recognises a retransmission.
    fn make_exclusive(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        place: DirOpArgs<'_>,
        set: SetAttributes,
    ) -> Answer<CreatedObject, Wcc> {
        // Random, and different for each call: the keys of RandomState are the process's own.
        let told = (directory.as_bytes(), place.name.bytes(), self.rpc.now());
        let verifier = CreateVerf3(RandomState::new().hash_one(told).to_be_bytes());
        let made = self.create_file(caller, place, CreateHow::Exclusive(verifier))?;
        if made.outcome == Err(Fault::Notsupp) {
            let made = self.create_file(caller, place, CreateHow::Guarded(set.into()))?;
            return self.find_made(caller, directory, place, made);
        }
        let mut made = self.find_made(caller, directory, place, made)?;
        // A retransmission of an exclusive CREATE does not fail because of the first copy.
        made.lost_at = None;
        if let Ok(created) = &mut made.outcome
            && let Ok(found) = created
        {
            // The server kept the verifier in the times.
            let set = SetAttributes { atime: SetTime::ServerTime, mtime: SetTime::ServerTime, ..set };
            let answer = self.set(caller, &found.handle, &set)?;
            match answer.outcome {
                Ok(()) => found.attributes = answer.attributes.after.or(found.attributes),
                Err(fault) => *created = Err(fault),
            }
        }
        Ok(made)
    }

    fn create_file(
        &self,
        caller: RpcCaller<'_>,
        place: DirOpArgs<'_>,
        how: CreateHow,
    ) -> Answer<CreateReply, Wcc> {
        self.send_create(caller, NfsProcedure::Create, &CreateArguments { place, how })
    }

    fn send_create(
        &self,
        caller: RpcCaller<'_>,
        procedure: NfsProcedure,
        arguments: &(dyn Encode + Sync),
    ) -> Answer<CreateReply, Wcc> {
        let made = |ok: CreateOk| {
            let handle = ok.object.map(FileHandle::from);
            (CreateReply { handle, attributes: attributes(ok.attributes) }, ok.directory.into())
        };
        self.ask(caller, procedure, arguments, made, wcc)
    }

    /// The object created at `place`, which is looked up if the server returned no handle.
    fn find_made(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        place: DirOpArgs<'_>,
        made: NfsReply<CreateReply, Wcc>,
    ) -> Answer<CreatedObject, Wcc> {
        let outcome = match made.outcome {
            Ok(CreateReply { handle: Some(handle), attributes }) => {
                Ok(Ok(LookupReply { handle, attributes }))
            }
            Ok(CreateReply { handle: None, .. }) => {
                Ok(self.find(caller, directory, place.name.bytes())?.outcome)
            }
            Err(fault) => Err(fault),
        };
        Ok(NfsReply { sent_at: made.sent_at, lost_at: made.lost_at, outcome, attributes: made.attributes })
    }
}
