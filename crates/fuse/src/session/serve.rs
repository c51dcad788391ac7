//! One request: calls its method and sends the reply.
//!
//! Small replies are built on the stack and sent by one write(2), data by one writev(2) from the
//! method's buffer.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use crate::{
    abi::{encode::SmallReply, opcode, opcode_name},
    filesystem::{Filesystem, FuseContext, Interruption},
    interrupt::{InFlightRequest, InFlightRequests, RequestWaitControl},
    listing::DirentBuffer,
    negotiate::IO_BYTES_MAX,
    reply::{self, ReadReply},
    request::{InHeader, RequestBody},
    session::request_barrier::{WorkerStage, WorkerStages},
    setlk_reply::SetlkReply,
    sys::PageBuffer,
    values::{AttrOut, NodeId, ReadIn},
};

/// A thread's buffer for the data of replies, allocated at first use.
#[derive(Debug, Default)]
pub(super) struct ReplyBuffers {
    data: Option<PageBuffer>,
    target: Vec<u8>,
}

impl ReplyBuffers {
    /// `size` bytes with arbitrary contents.
    fn data(&mut self, size: u32) -> Result<&mut [u8], Errno> {
        let size = usize::try_from(size.min(IO_BYTES_MAX)).map_err(|_| Errno::INVAL)?;
        let buffer = match &mut self.data {
            Some(buffer) => buffer,
            none => none.insert(PageBuffer::new(IO_BYTES_MAX as usize)?),
        };
        Ok(&mut buffer.bytes()[..size])
    }
}

/// One request in progress.
pub(super) struct RequestHandler<'a, I> {
    pub(super) device: &'a Arc<OwnedFd>,
    pub(super) header: InHeader,
    pub(super) requests: &'a Arc<InFlightRequests<I>>,
    pub(super) request: &'a Arc<InFlightRequest<I>>,
    pub(super) stage: &'a WorkerStage,
    pub(super) stages: &'a WorkerStages,
    pub(super) interruption: &'a I,
    pub(super) only_user: Option<u32>,
}

impl<I> fmt::Debug for RequestHandler<'_, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHandler").field("header", &self.header).finish_non_exhaustive()
    }
}

impl<I: Interruption> RequestHandler<'_, I> {
    /// Has `filesystem` handle the operation.
    pub(super) fn serve<F>(&self, filesystem: &F, operation: RequestBody<'_>, reserve: &mut ReplyBuffers)
    where
        F: Filesystem<Interruption = I>,
    {
        if self.is_somebody_else() {
            if matches!(operation, RequestBody::Setlk { .. }) {
                return self.setlk_reply().send(Err(Errno::ACCESS));
            }
            return self.error(match operation {
                RequestBody::Lookup { name } => {
                    filesystem.refused_lookup(self.header.node, name, Errno::ACCESS)
                }
                _ => Errno::ACCESS,
            });
        }
        let wait_control = RequestWaitControl {
            requests: self.requests,
            request: self.request,
            stage: self.stage,
            stages: self.stages,
        };
        let InHeader { node, uid, gid, tid, .. } = self.header;
        // Requests to the server meanwhile are counted for this thread and this object.
        let _scope = curt_observe::scope::operation(tid, node.0);
        let context = &FuseContext { uid, gid, tid, interruption: self.interruption, waiting: &wait_control };
        match operation {
            RequestBody::Lookup { name } => {
                let answer = filesystem
                    .lookup(context, node, name)
                    .map_err(|refusal| filesystem.refused_lookup(node, name, refusal));
                self.send(answer, |reply, entry| reply.entry(&entry));
            }
            RequestBody::Forget { lookups } => filesystem.forget(node, lookups),
            RequestBody::BatchForget(forgets) => {
                forgets.iter().for_each(|(node, lookups)| filesystem.forget(node, lookups));
            }
            RequestBody::Getattr { fh } => self.stat(filesystem.getattr(context, node, fh)),
            RequestBody::Setattr(set) => self.stat(filesystem.setattr(context, node, &set)),
            RequestBody::Access { mask } => self.done(filesystem.access(context, node, mask)),
            RequestBody::Readlink => {
                reserve.target.clear();
                let answer = filesystem.readlink(context, node, &mut reserve.target);
                self.data(answer.map(|()| reserve.target.as_slice()));
            }
            RequestBody::Statfs => {
                self.send(filesystem.statfs(context, node), |reply, sizes| reply.sizes(&sizes));
            }
            // The kernel's error for unsupported ioctl(2) commands.
            RequestBody::Ioctl => self.error(Errno::NOTTY),
            RequestBody::Destroy => self.done(Ok(())),
            RequestBody::Init(_) | RequestBody::Interrupt { .. } | RequestBody::Unsupported => {
                self.error(Errno::NOSYS);
            }
            other => self.files(filesystem, context, other, reserve),
        }
    }

    /// Operations on open files and directories.
    fn files<F>(
        &self,
        filesystem: &F,
        context: &FuseContext<'_, I>,
        operation: RequestBody<'_>,
        reserve: &mut ReplyBuffers,
    ) where
        F: Filesystem<Interruption = I>,
    {
        let node = self.header.node;
        match operation {
            RequestBody::Open(open) => {
                self.send(filesystem.open(context, node, &open), |reply, opened| reply.opened(&opened));
            }
            RequestBody::Read(read) => self.read(filesystem, context, &read),
            RequestBody::Write { write, data } => {
                self.send(filesystem.write(context, node, &write, data), |reply, count| {
                    reply.u32(count);
                    reply.u32(0);
                });
            }
            RequestBody::Flush { fh, lock_owner } => {
                self.done(filesystem.flush(context, node, fh, lock_owner))
            }
            RequestBody::Fsync { fh, data_only } => self.done(filesystem.fsync(context, node, fh, data_only)),
            RequestBody::Release(release) => {
                filesystem.release(context, node, &release);
                self.done(Ok(()));
            }
            RequestBody::Opendir { flags } => {
                self.send(filesystem.opendir(context, node, flags), |reply, opened| reply.opened(&opened));
            }
            RequestBody::Readdir { fh, offset, size, plus } => {
                let ask =
                    |listing: &mut DirentBuffer<'_>| filesystem.readdir(context, node, fh, offset, listing);
                self.list(reserve.data(size), plus, ask);
            }
            RequestBody::Fsyncdir { fh } => self.done(filesystem.fsyncdir(context, node, fh)),
            RequestBody::Releasedir { fh } => {
                filesystem.releasedir(context, node, fh);
                self.done(Ok(()));
            }
            RequestBody::Getlk(lock) => {
                self.send(filesystem.getlk(context, node, &lock), |reply, lock| reply.lock(&lock));
            }
            RequestBody::Setlk { lock, wait } => {
                filesystem.setlk(context, node, &lock, wait, self.setlk_reply());
            }
            naming => self.naming(filesystem, context, node, naming),
        }
    }

    /// Has `ask` fill `buffer`, and sends the filled part.
    fn list(
        &self,
        buffer: Result<&mut [u8], Errno>,
        plus: bool,
        ask: impl FnOnce(&mut DirentBuffer<'_>) -> Result<(), Errno>,
    ) {
        let answer = buffer.and_then(|buffer| {
            let mut listing = DirentBuffer::new(buffer, plus);
            ask(&mut listing)?;
            let used = listing.bytes();
            Ok(&buffer[..used])
        });
        self.data(answer);
    }

    fn stat(&self, answer: Result<AttrOut, Errno>) {
        self.send(answer, |reply, stat| reply.attributes(&stat.attributes, stat.valid));
    }

    /// Operations that create, rename or remove a name.
    fn naming<F>(
        &self,
        filesystem: &F,
        context: &FuseContext<'_, I>,
        parent: NodeId,
        operation: RequestBody<'_>,
    ) where
        F: Filesystem<Interruption = I>,
    {
        match operation {
            RequestBody::Symlink { name, target } => {
                self.send(filesystem.symlink(context, parent, name, target), |reply, entry| {
                    reply.entry(&entry)
                });
            }
            RequestBody::Mknod { name, new } => {
                self.send(filesystem.mknod(context, parent, name, &new), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Mkdir { name, mode } => {
                self.send(filesystem.mkdir(context, parent, name, mode), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Link { node, name } => {
                self.send(filesystem.link(context, node, parent, name), |reply, entry| reply.entry(&entry));
            }
            RequestBody::Create { name, create } => {
                self.send(filesystem.create(context, parent, name, &create), |reply, (entry, opened)| {
                    reply.entry(&entry);
                    reply.opened(&opened);
                });
            }
            RequestBody::Unlink { name } => self.done(filesystem.unlink(context, parent, name)),
            RequestBody::Rmdir { name } => self.done(filesystem.rmdir(context, parent, name)),
            RequestBody::Rename { name, new_parent, new_name, flags } => {
                self.done(filesystem.rename(context, parent, name, new_parent, new_name, flags));
            }
            _ => self.error(Errno::NOSYS),
        }
    }

    fn read<F>(&self, filesystem: &F, context: &FuseContext<'_, I>, read: &ReadIn)
    where
        F: Filesystem<Interruption = I>,
    {
        let reply = ReadReply::new(Arc::clone(self.device), self.header.unique, read.size);
        let answer = filesystem.read(context, self.header.node, read, &reply);
        if !reply.is_sent() {
            self.done(answer);
        }
    }

    /// The reply to a request that is registered by itself.
    fn setlk_reply(&self) -> SetlkReply {
        let (requests, request) = (Arc::clone(self.requests), Arc::clone(self.request));
        SetlkReply::new(self.device, self.header.unique, move || {
            requests.end(&request);
            requests.leave(&request);
        })
    }

    /// Whether the caller is not the user of the mount. Open files remain usable.
    fn is_somebody_else(&self) -> bool {
        let Some(owner) = self.only_user else { return false };
        self.header.uid != 0
            && self.header.uid != owner
            && !matches!(
                self.header.opcode,
                opcode::FORGET
                    | opcode::BATCH_FORGET
                    | opcode::READ
                    | opcode::WRITE
                    | opcode::FLUSH
                    | opcode::FSYNC
                    | opcode::RELEASE
                    | opcode::READDIR
                    | opcode::READDIRPLUS
                    | opcode::FSYNCDIR
                    | opcode::RELEASEDIR
                    | opcode::DESTROY
            )
    }

    fn send<T>(&self, answer: Result<T, Errno>, fill: impl FnOnce(&mut SmallReply, T)) {
        match answer {
            Ok(value) => {
                let mut reply = SmallReply::new();
                fill(&mut reply, value);
                self.sent(rustix::io::write(self.device, reply.finish(self.header.unique)));
            }
            Err(errno) => self.error(errno),
        }
    }

    fn done(&self, answer: Result<(), Errno>) {
        self.send(answer, |_, ()| {});
    }

    fn data(&self, answer: Result<&[u8], Errno>) {
        match answer {
            Ok(data) => self.sent(reply::send_data(self.device, self.header.unique, data)),
            Err(errno) => self.error(errno),
        }
    }

    fn error(&self, errno: Errno) {
        reply::send_error(self.device, self.header.unique, errno);
    }

    fn sent(&self, sent: Result<usize, Errno>) {
        let name = opcode_name(self.header.opcode);
        reply::settle(self.device, self.header.unique, name, sent);
    }
}
