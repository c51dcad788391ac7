//! The intents on files and directories.

use std::{ops::Range, sync::Arc};

use curt_proto::nfs4::{
    AccessArgs4, AccessOk4, CommitArgs4, CommitOk4, Component, CompoundEncoder, CreateArgs4, CreateOk4,
    CreateType4, GetattrOk4, LinkArgs4, LinkOk4, LinkText, Nfs4Operation, ReadlinkOk4, RenameArgs4,
    RenameOk4, Stateid,
};
use curt_rpc::client::CallError;
use curt_types::{Access, Attributes, Fault, FileHandle, FileKind, SetAttributes, Wcc, WriteVerifier};

use super::{
    NfsV4,
    attributes::{self, EncodedAttributes, directory_step, object_of},
    compound::request::{CompoundRequest, RESULTS_NAME, get_attributes, put_fh},
    results::{created, done},
};
use crate::protocol::{
    Answer, CreateRequest, CreatedObject, FileOperations, FsstatReply, LinkAttributes, ListRequest,
    LookupReply, NfsReply, OpenCaller, ReadData, ReadSink, ReaddirPage, RenameAttributes, RpcCaller,
    WriteReply, WriteRequest,
};

impl FileOperations for NfsV4 {
    fn find(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>> {
        let answer = self.find_with_open(caller, directory, name, None)?;
        let NfsReply { sent_at, lost_at, outcome, attributes } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome: outcome.map(|found| found.found), attributes })
    }

    fn attributes(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Getattr, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), ());
            let ok: GetattrOk4<'_> = done!(results.next(Nfs4Operation::Getattr), ());
            Ok((Ok(object_of(&ok.attributes)?), ()))
        })
    }

    fn access(
        &self,
        caller: RpcCaller<'_>,
        object: &FileHandle,
        rights: Access,
    ) -> Answer<Access, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
            operations.push(&AccessArgs4 { access: rights.bits() });
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Access, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: AccessOk4 = done!(results.next(Nfs4Operation::Access), about);
            Ok((Ok(Access::from_bits(ok.access).common(rights)), about))
        })
    }

    /// If the size is set, the stateid is the anonymous one, which respects the denials of others.
    fn set(&self, caller: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc> {
        self.set_by(caller, object, set, None, &|| false)
    }

    fn readlink(&self, caller: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, link);
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Readlink);
        };
        let request = CompoundRequest::idempotent(caller, Nfs4Operation::Readlink, &append);
        self.ask(&CompoundRequest { results_max: RESULTS_NAME, ..request }, |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: ReadlinkOk4<'_> = done!(results.next(Nfs4Operation::Readlink), about);
            Ok((Ok(ok.target.bytes().into()), about))
        })
    }

    fn create(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        let (Ok(name), Ok(text)) = (Component::new(name), LinkText::new(new.text)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let kind = match new.kind {
            FileKind::Regular => return self.create_file_as_accepted(caller, directory, name, new),
            FileKind::Directory => CreateType4::Directory,
            FileKind::Symlink => CreateType4::Symlink(text),
            FileKind::BlockDevice => CreateType4::BlockDevice(new.device.into()),
            FileKind::CharacterDevice => CreateType4::CharacterDevice(new.device.into()),
            FileKind::Socket => CreateType4::Socket,
            FileKind::Fifo => CreateType4::Fifo,
        };
        let encoded =
            EncodedAttributes::new(&SetAttributes { mode: Some(new.mode), ..SetAttributes::default() });
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, directory);
            operations.bare(Nfs4Operation::Savefh);
            operations.push(&CreateArgs4 { kind, name, attributes: encoded.fattr() });
            operations.bare(Nfs4Operation::Getfh);
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Create, 2, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            done!(results.pass(Nfs4Operation::Savefh), Wcc::default());
            let ok: CreateOk4 = done!(results.next(Nfs4Operation::Create), Wcc::default());
            let created = created(results, false, |_| {})?;
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(created), directory_step(Some(ok.directory), results.attributes()?)))
        })
    }

    fn remove(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        is_directory: bool,
    ) -> Answer<(), Wcc> {
        match Component::new(name) {
            Ok(name) => self.remove_as_accepted(caller, directory, name, is_directory),
            Err(_) => Ok(self.refusal(Fault::Nametoolong)),
        }
    }

    fn rename(
        &self,
        caller: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes> {
        let (Ok(from), Ok(to)) = (Component::new(old_name), Component::new(new_name)) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, old_directory);
            operations.bare(Nfs4Operation::Savefh);
            put_fh(operations, new_directory);
            operations.push(&RenameArgs4 { from, to });
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        let nothing = RenameAttributes::default();
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Rename, 3, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            done!(results.pass(Nfs4Operation::Savefh), nothing);
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            let ok: RenameOk4 = done!(results.next(Nfs4Operation::Rename), nothing);
            let to = directory_step(Some(ok.target), results.attributes()?);
            results.pass(Nfs4Operation::Restorefh)?.ok();
            let from = directory_step(Some(ok.source), results.attributes()?);
            Ok((Ok(()), RenameAttributes { from, to }))
        })
    }

    fn link(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        directory: &FileHandle,
        name: &[u8],
    ) -> Answer<(), LinkAttributes> {
        let Ok(name) = Component::new(name) else {
            return Ok(self.refusal(Fault::Nametoolong));
        };
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.bare(Nfs4Operation::Savefh);
            put_fh(operations, directory);
            operations.push(&LinkArgs4 { name });
            get_attributes(operations, attributes::OBJECT);
            operations.bare(Nfs4Operation::Restorefh);
            get_attributes(operations, attributes::OBJECT);
        };
        let nothing = LinkAttributes::default();
        self.ask(&CompoundRequest::non_idempotent(caller, Nfs4Operation::Link, 3, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            done!(results.pass(Nfs4Operation::Savefh), nothing);
            done!(results.pass(Nfs4Operation::Putfh), nothing);
            let ok: LinkOk4 = done!(results.next(Nfs4Operation::Link), nothing);
            let directory = directory_step(Some(ok.directory), results.attributes()?);
            results.pass(Nfs4Operation::Restorefh)?.ok();
            Ok((Ok(()), LinkAttributes { file: results.attributes()?, directory }))
        })
    }

    fn lists_with_rights(&self) -> bool {
        true
    }

    fn list(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        self.list_directory(caller, directory, request)
    }

    fn read(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        sink: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        self.send_read(open, file, range, sink)
    }

    fn write(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc> {
        self.send_write(open, file, write)
    }

    fn commit(&self, open: OpenCaller<'_>, file: &FileHandle) -> Answer<WriteVerifier, Wcc> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, file);
            operations.push(&CommitArgs4 { offset: 0, count: 0 });
            get_attributes(operations, attributes::OBJECT);
        };
        self.ask(&CompoundRequest::idempotent(open.rpc(), Nfs4Operation::Commit, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), Wcc::default());
            let ok: CommitOk4 = done!(results.next(Nfs4Operation::Commit), Wcc::default());
            Ok((Ok(ok.verifier.into()), Wcc { before: None, after: results.attributes()? }))
        })
    }

    fn space(&self, caller: RpcCaller<'_>, object: &FileHandle) -> Answer<FsstatReply, Option<Attributes>> {
        let append = |operations: &mut CompoundEncoder<'_>, _: Stateid| {
            put_fh(operations, object);
            get_attributes(operations, attributes::OBJECT);
            get_attributes(operations, attributes::SPACE);
        };
        self.ask(&CompoundRequest::idempotent(caller, Nfs4Operation::Getattr, &append), |results| {
            done!(results.pass(Nfs4Operation::Putfh), None);
            let about = results.attributes()?;
            let ok: GetattrOk4<'_> = done!(results.next(Nfs4Operation::Getattr), about);
            let values = attributes::values(&ok.attributes, attributes::SPACE)?;
            Ok((Ok(attributes::space(&values)), about))
        })
    }
}
