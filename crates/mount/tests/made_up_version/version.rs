//! The fictitious version: a server in memory whose files outlive their names, and that implements
//! each operation by one call.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use curt_client::threads::MonotonicClock;
use curt_client::{data::SharedBytes, protocol::*};
use curt_rpc::client::{CallError, CallReply, Interrupt, RpcRequest, Transport};
use curt_types::{
    Access, Attributes, CookieVerifier, Device, Fault, FileHandle, FileKind, PreOpState, SetAttributes,
    Stability, Timestamp, Wcc, WriteVerifier,
};
use parking_lot::Mutex;

/// An object of the server.
#[derive(Debug)]
struct Object {
    kind: FileKind,
    mode: u32,
    names: BTreeMap<Vec<u8>, u64>,
    bytes: Vec<u8>,
    changes: i64,
}

/// Its server, with a root directory.
#[derive(Debug)]
pub(crate) struct MadeUpVersion {
    rpc: Arc<RpcClient>,
    objects: Mutex<Tree>,
}

#[derive(Debug, Default)]
struct Tree(BTreeMap<u64, Object>);

/// A transport without a connection.
struct NoTransport;

impl Transport for NoTransport {
    fn call(&self, _: &RpcRequest<'_>, _: &Interrupt) -> Result<CallReply, CallError> {
        Err(CallError::Interrupted)
    }
}

pub(crate) fn handle(id: u64) -> FileHandle {
    FileHandle::new(&id.to_be_bytes()).unwrap()
}

fn id(handle: &FileHandle) -> u64 {
    u64::from_be_bytes(handle.as_bytes().try_into().unwrap())
}

impl Tree {
    fn add(&mut self, new: &CreateRequest<'_>) -> u64 {
        let id = self.0.len() as u64 + 1;
        let object = Object {
            kind: new.kind,
            mode: new.mode,
            names: BTreeMap::new(),
            bytes: new.text.to_vec(),
            changes: 1,
        };
        self.0.insert(id, object);
        id
    }

    fn of(&mut self, handle: &FileHandle) -> &mut Object {
        self.0.get_mut(&id(handle)).unwrap()
    }

    fn found(&mut self, id: u64) -> LookupReply {
        let attributes = Some(self.attributes(&handle(id)));
        LookupReply { handle: handle(id), attributes }
    }

    fn attributes(&mut self, handle: &FileHandle) -> Attributes {
        let object = self.of(handle);
        // The number of the change serves as the time.
        let changed = Timestamp::new(object.changes, 1);
        Attributes {
            kind: object.kind,
            mode: object.mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            size: object.bytes.len() as u64,
            used: 0,
            rdev: Device::default(),
            fsid: 1,
            fileid: id(handle),
            atime: changed,
            mtime: changed,
            ctime: changed,
            change: Some(object.changes.cast_unsigned()),
        }
    }

    fn change<T>(&mut self, of: &FileHandle, change: impl FnOnce(&mut Self) -> T) -> (T, Wcc) {
        let before = PreOpState::from(&self.attributes(of));
        let result = change(self);
        self.of(of).changes += 1;
        let wcc = Wcc { before: Some(before), after: Some(self.attributes(of)) };
        (result, wcc)
    }
}

impl MadeUpVersion {
    pub(crate) fn new() -> Self {
        let mut tree = Tree::default();
        tree.add(&CreateRequest::directory(0o755));
        Self {
            rpc: Arc::new(RpcClient::new(Arc::new(NoTransport), Arc::new(MonotonicClock))),
            objects: Mutex::new(tree),
        }
    }

    fn ask<T, A>(&self, work: impl FnOnce(&mut Tree) -> (Result<T, Fault>, A)) -> Answer<T, A> {
        let sent_at = Instant::now();
        let (outcome, attributes) = work(&mut self.objects.lock());
        Ok(NfsReply { sent_at, lost_at: None, outcome, attributes })
    }
}

impl Protocol for MadeUpVersion {
    fn rpc(&self) -> &Arc<RpcClient> {
        &self.rpc
    }
}

impl FileOperations for MadeUpVersion {
    fn find(
        &self,
        _: RpcCaller<'_>,
        at: &FileHandle,
        name: &[u8],
    ) -> Answer<LookupReply, Option<Attributes>> {
        self.ask(|tree| {
            let found = tree.of(at).names.get(name).copied().ok_or(Fault::Noent);
            (found.map(|id| tree.found(id)), Some(tree.attributes(at)))
        })
    }

    fn attributes(&self, _: RpcCaller<'_>, object: &FileHandle) -> Answer<Attributes, ()> {
        self.ask(|tree| (Ok(tree.attributes(object)), ()))
    }

    fn access(&self, _: RpcCaller<'_>, of: &FileHandle, all: Access) -> Answer<Access, Option<Attributes>> {
        self.ask(|tree| (Ok(all), Some(tree.attributes(of))))
    }

    fn set(&self, _: RpcCaller<'_>, object: &FileHandle, set: &SetAttributes) -> Answer<(), Wcc> {
        self.ask(|tree| {
            let ((), wcc) = tree.change(object, |tree| {
                let object = tree.of(object);
                object.mode = set.mode.unwrap_or(object.mode);
                let size = set.size.unwrap_or(object.bytes.len() as u64);
                object.bytes.resize(usize::try_from(size).unwrap(), 0);
            });
            (Ok(()), wcc)
        })
    }

    fn readlink(&self, _: RpcCaller<'_>, link: &FileHandle) -> Answer<Box<[u8]>, Option<Attributes>> {
        self.ask(|tree| (Ok(tree.of(link).bytes.clone().into()), Some(tree.attributes(link))))
    }

    fn create(
        &self,
        _: RpcCaller<'_>,
        at: &FileHandle,
        name: &[u8],
        new: &CreateRequest<'_>,
    ) -> Answer<CreatedObject, Wcc> {
        self.ask(|tree| {
            if tree.of(at).names.contains_key(name) {
                return (Err(Fault::Exist), Wcc::default());
            }
            let (id, wcc) = tree.change(at, |tree| {
                let id = tree.add(new);
                tree.of(at).names.insert(name.to_vec(), id);
                id
            });
            (Ok(Ok(tree.found(id))), wcc)
        })
    }

    fn remove(&self, _: RpcCaller<'_>, at: &FileHandle, name: &[u8], _: bool) -> Answer<(), Wcc> {
        self.ask(|tree| {
            let (removed, wcc) = tree.change(at, |tree| tree.of(at).names.remove(name));
            (removed.map(drop).ok_or(Fault::Noent), wcc)
        })
    }

    fn rename(
        &self,
        _: RpcCaller<'_>,
        old_directory: &FileHandle,
        old_name: &[u8],
        new_directory: &FileHandle,
        new_name: &[u8],
    ) -> Answer<(), RenameAttributes> {
        self.ask(|tree| {
            let (moved, old) =
                tree.change(old_directory, |tree| tree.of(old_directory).names.remove(old_name));
            let Some(moved) = moved else {
                return (Err(Fault::Noent), RenameAttributes::default());
            };
            let (_, new) = tree
                .change(new_directory, |tree| tree.of(new_directory).names.insert(new_name.to_vec(), moved));
            (Ok(()), RenameAttributes { from: old, to: new })
        })
    }

    fn link(&self, _: RpcCaller<'_>, _: &FileHandle, _: &FileHandle, _: &[u8]) -> Answer<(), LinkAttributes> {
        self.ask(|_| (Err(Fault::Notsupp), LinkAttributes::default()))
    }

    fn list(
        &self,
        _: RpcCaller<'_>,
        directory: &FileHandle,
        request: ListRequest,
    ) -> Answer<ReaddirPage, Option<Attributes>> {
        self.ask(|tree| {
            let all = tree.of(directory).names.clone().into_iter().zip(1..);
            let names = all.filter(|(_, cookie)| *cookie > request.cookie);
            let names = names.map(|((name, id), cookie)| ReaddirEntry {
                fileid: id,
                name: name.into(),
                cookie,
                handle: Some(handle(id)),
                attributes: Some(tree.attributes(&handle(id))),
            });
            let (verifier, names) = (CookieVerifier([0; 8]), names.collect());
            let page = ReaddirPage { verifier, names, end: true, granted: None };
            (Ok(page), Some(tree.attributes(directory)))
        })
    }

    fn read(
        &self,
        _: OpenCaller<'_>,
        file: &FileHandle,
        range: Range<u64>,
        _: Option<&Arc<dyn ReadSink>>,
    ) -> Result<Option<NfsReply<ReadData, Option<Attributes>>>, CallError> {
        let answer = self.ask(|tree| {
            let bytes = &tree.of(file).bytes;
            let position = |at| usize::try_from(at).unwrap().min(bytes.len());
            let data = ReadData {
                bytes: SharedBytes::new(bytes[position(range.start)..position(range.end)].to_vec()),
                end: position(range.end) == bytes.len(),
            };
            (Ok(data), Some(tree.attributes(file)))
        });
        answer.map(Some)
    }

    fn write(
        &self,
        _: OpenCaller<'_>,
        file: &FileHandle,
        write: WriteRequest<'_>,
    ) -> Answer<WriteReply, Wcc> {
        let WriteRequest { offset, bytes, .. } = write;
        self.ask(|tree| {
            let ((), wcc) = tree.change(file, |tree| {
                let (start, content) = (usize::try_from(offset).unwrap(), &mut tree.of(file).bytes);
                content.resize(content.len().max(start + bytes.len()), 0);
                content[start..start + bytes.len()].copy_from_slice(bytes);
            });
            let written = WriteReply {
                count: u32::try_from(bytes.len()).unwrap(),
                stability: Stability::FileSync,
                verifier: WriteVerifier([0; 8]),
                set: None,
            };
            (Ok(written), wcc)
        })
    }

    fn commit(&self, _: OpenCaller<'_>, _: &FileHandle) -> Answer<WriteVerifier, Wcc> {
        self.ask(|_| (Ok(WriteVerifier([0; 8])), Wcc::default()))
    }

    fn space(&self, _: RpcCaller<'_>, of: &FileHandle) -> Answer<FsstatReply, Option<Attributes>> {
        self.ask(|tree| (Ok(FsstatReply::default()), Some(tree.attributes(of))))
    }
}

impl BatchOperations for MadeUpVersion {}
impl OpenOperations for MadeUpVersion {
    fn keeps_removed_file(&self, _: &FileHandle) -> bool {
        true
    }
}
impl DelegationOperations for MadeUpVersion {}
impl LockOperations for MadeUpVersion {}
