//! CREATE, MKDIR, SYMLINK and MKNOD: new names for new objects.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use curt_rpc::client::CallError;
use curt_trace::{events::Event, probe, scope};
use curt_types::{Fault, FileHandle, SetAttributes, SetTime, Wcc};
use rustix::{fs::OFlags, io::Errno};

use super::{NameChangeOutcome, prove_change, retransmitted::Making};
use crate::{
    api::{FoundInode, OpenFlags, OpenResult},
    client::{Client, OpContext},
    errno,
    identity::{Caller, InodeId},
    inode::Inode,
    lookup::ResolvedName,
    open_unlink::OpenGuard,
    protocol::{CreateReply, CreateSemantics, MknodType, NfsReply, v3},
};

impl Client {
    /// Makes `name` in `directory` if it is not there, and opens it: open(2) with O_CREAT. `mode`
    /// is what the file gets if it is made (umask applied already). With [`OpenFlags::exclusive`]
    /// the name must be new.
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE; those of [`Client::open`] if the
    /// file was there.
    pub fn create(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(FoundInode, OpenResult), Errno> {
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.check_new_name(name)?;
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        // Until it is counted as open nobody here removes it.
        let turn = self.name_locks.lock(directory.id(), name, &asked.interrupt)?;
        let make = || {
            if flags.exclusive {
                return self.create_exclusive(&asked, &directory, name, set);
            }
            // Guarded, not unchecked: a file that is there already must not be given this mode.
            self.make(&asked, &directory, name, Some(&Making::file(mode)), |place| {
                v3::create(
                    &self.core.rpc,
                    asked.rpc_caller(),
                    place,
                    name,
                    &CreateSemantics::Guarded(set),
                )
            })
        };
        let made = traced_create(&asked, &directory, name, flags, mode, make);
        match made {
            Ok((inode, ended)) => {
                let opening = OpenGuard::of_new(self, &inode);
                let found = self.found_made(&directory, name, &inode, ended)?;
                drop(turn);
                // Whoever makes a file may use it as asked, whatever its mode says.
                let flags = OpenFlags {
                    truncate: false,
                    ..flags
                };
                Ok((found, self.opened(&asked, opening, flags)))
            }
            Err(Errno::EXIST) if !flags.exclusive => {
                // It was there, or our own request was executed twice: the name is looked up at the
                // server, since what led here was the belief that it was missing.
                drop(turn);
                match self.send_lookup(&asked, &directory, name, None)? {
                    ResolvedName::Object(inode, label) => {
                        let opened = self.open_inode(&asked, &inode, flags, None)?;
                        let found = self.found(&directory, &inode, label)?;
                        Ok((found, opened))
                    }
                    ResolvedName::Missing(_) => Err(Errno::NOENT),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// O_EXCL: the server keeps a verifier with the new file, by which a repeated request is known.
    fn create_exclusive(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        set: SetAttributes,
    ) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
        // Random, and different for each call: the keys of RandomState are the process's own.
        let verifier = RandomState::new().hash_one((directory.id(), name, self.core.now().nanoseconds()));
        let how = CreateSemantics::Exclusive(verifier.to_be_bytes());
        let making = set.mode.map(Making::file);
        let made = self.make(asked, directory, name, None, |place| {
            v3::create(&self.core.rpc, asked.rpc_caller(), place, name, &how)
        });
        match made {
            Ok((inode, ended)) => {
                // The server kept the verifier in the times.
                let now = SetTime::ServerTime;
                let set = SetAttributes {
                    atime: now,
                    mtime: now,
                    ..set
                };
                self.set_attributes(asked, &inode, &set)?;
                Ok((inode, ended))
            }
            Err(Errno::OPNOTSUPP) => self.make(asked, directory, name, making.as_ref(), |place| {
                v3::create(
                    &self.core.rpc,
                    asked.rpc_caller(),
                    place,
                    name,
                    &CreateSemantics::Guarded(set),
                )
            }),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC, EROFS and the others of MKDIR.
    pub fn mkdir(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<FoundInode, Errno> {
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let making = Making::directory(mode);
        self.make_found(caller, directory, name, &making, |asked, place| {
            v3::mkdir(&self.core.rpc, asked.rpc_caller(), place, name, &set)
        })
    }

    /// Makes a symbolic link with this text.
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC, EROFS and the others of SYMLINK.
    pub fn symlink(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        text: &[u8],
    ) -> Result<FoundInode, Errno> {
        let set = SetAttributes {
            mode: Some(0o777),
            ..SetAttributes::default()
        };
        self.make_found(caller, directory, name, &Making::link(text), |asked, place| {
            v3::symlink(&self.core.rpc, asked.rpc_caller(), place, name, text, &set)
        })
    }

    /// Makes a device, named pipe or socket.
    ///
    /// # Errors
    /// EEXIST, EACCES, EPERM and the others of MKNOD.
    pub fn mknod(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        node: MknodType,
        mode: u32,
    ) -> Result<FoundInode, Errno> {
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let making = Making::node(node, mode);
        self.make_found(caller, directory, name, &making, |asked, place| {
            v3::mknod(&self.core.rpc, asked.rpc_caller(), place, name, node, &set)
        })
    }

    /// Makes a regular file without opening it, as mknod(2) can.
    ///
    /// # Errors
    /// EEXIST, EACCES, ENOSPC, EROFS and the others of CREATE.
    pub fn make_file(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        mode: u32,
    ) -> Result<FoundInode, Errno> {
        let set = SetAttributes {
            mode: Some(mode),
            ..SetAttributes::default()
        };
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.check_new_name(name)?;
        let how = CreateSemantics::Guarded(set);
        let flags = OpenFlags {
            exclusive: true,
            ..OpenFlags::default()
        };
        let (inode, ended) = traced_create(&asked, &directory, name, flags, mode, || {
            self.make(&asked, &directory, name, Some(&Making::file(mode)), |place| {
                v3::create(&self.core.rpc, asked.rpc_caller(), place, name, &how)
            })
        })?;
        self.found_made(&directory, name, &inode, ended)
    }

    fn make_found(
        &self,
        caller: &Caller,
        directory: InodeId,
        name: &[u8],
        making: &Making<'_>,
        send: impl FnOnce(&OpContext, &FileHandle) -> Result<NfsReply<CreateReply, Wcc>, CallError>,
    ) -> Result<FoundInode, Errno> {
        let directory = self.find_directory(directory)?;
        let asked = self.op_context(caller);
        self.check_new_name(name)?;
        let send = |place: &FileHandle| send(&asked, place);
        let (inode, ended) = self.make(&asked, &directory, name, Some(making), send)?;
        self.found_made(&directory, name, &inode, ended)
    }

    /// The names `.` and `..` are there always.
    pub(super) fn check_new_name(&self, name: &[u8]) -> Result<(), Errno> {
        if matches!(name, b"." | b"..") {
            return Err(Errno::EXIST);
        }
        self.check_name(name)
    }

    fn found_made(
        &self,
        directory: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        ended: NameChangeOutcome,
    ) -> Result<FoundInode, Errno> {
        let label = self.learn_own(directory, name, Some(inode), ended);
        let found = self.found(directory, inode, label)?;
        Ok(found)
    }

    /// Sends the request that makes `name`, and finds out what it made. Without `making` it is the
    /// server that knows a second copy of the request, by its verifier.
    fn make(
        &self,
        asked: &OpContext,
        directory: &Arc<Inode>,
        name: &[u8],
        making: Option<&Making<'_>>,
        send: impl FnOnce(&FileHandle) -> Result<NfsReply<CreateReply, Wcc>, CallError>,
    ) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
        let (outcome, ended) = self.change_name(asked, directory, name, || send(directory.handle()))?;
        let created = match outcome {
            Ok(created) => created,
            Err(status) => {
                let making = making.filter(|_| status == Fault::Exist);
                let own = making.and_then(|making| self.own_object(asked, directory, name, making, ended));
                let Some(inode) = own else {
                    return Err(self.refused_change(asked, directory, name, status, ended));
                };
                prove_change(asked, directory, ended);
                return Ok((inode, ended));
            }
        };
        let Some(handle) = created.handle else {
            return match self.send_lookup(asked, directory, name, None)? {
                ResolvedName::Object(inode, _) => Ok((inode, ended)),
                // Somebody removed it at once.
                ResolvedName::Missing(_) => Err(Errno::NOENT),
            };
        };
        let inode = self.core.registry.inode(&self.core, &handle);
        inode.clear_stale();
        match &created.attributes {
            Some(attributes) => {
                let _ = inode.absorb(attributes, ended.sent_at);
            }
            None => self.send_getattr(asked, &inode)?,
        }
        // Nobody else's name brought it.
        self.note_use(&inode);
        Ok((inode, ended))
    }
}

/// Has a file made, and tells of it.
fn traced_create(
    asked: &OpContext,
    directory: &Inode,
    name: &[u8],
    flags: OpenFlags,
    mode: u32,
    make: impl FnOnce() -> Result<(Arc<Inode>, NameChangeOutcome), Errno>,
) -> Result<(Arc<Inode>, NameChangeOutcome), Errno> {
    probe!(NfsCreateEnter {
        pid: scope::current().process,
        uid: asked.identity.uid,
        dir: directory.fileid_if_enabled(Event::NfsCreateEnter),
        name,
        flags: bits(flags),
        mode
    });
    let made = make();
    let fileid = made
        .as_ref()
        .map_or(0, |(inode, _)| inode.fileid_if_enabled(Event::NfsCreateExit));
    probe!(NfsCreateExit {
        dir: directory.fileid_if_enabled(Event::NfsCreateExit),
        name,
        fileid,
        error: errno::event_status(&made)
    });
    made
}

/// As open(2) takes them, as far as the client is told.
fn bits(flags: OpenFlags) -> u32 {
    let access = match (flags.read, flags.write) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let others = [
        (flags.exclusive, OFlags::EXCL),
        (flags.truncate, OFlags::TRUNC),
        (flags.append, OFlags::APPEND),
        (flags.direct, OFlags::DIRECT),
        (flags.sync, OFlags::SYNC),
    ];
    let others = others.into_iter().filter(|(is_set, _)| *is_set);
    others
        .fold(access | OFlags::CREATE, |all, (_, flag)| all | flag)
        .bits()
}
