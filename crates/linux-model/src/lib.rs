//! A model of the requests of the Linux kernel's NFSv3 client, for comparison.
//!
//! [`LinuxClient`] gets each operation of a program as passed down by the kernel's VFS
//! ([`FileOperation`]), with its start time and the server's result, and returns the requests that
//! Linux would have sent for it. `curt explain` feeds it with a command's FUSE operations, and the
//! tests of `curt-bench` with recorded workloads.
//!
//! The model includes attributes with their timers, dentries with the state of their directory, the
//! access cache, pages and read-ahead, dirty pages, and listings. The rules are those of Linux 6.1
//! (fs/nfs: dir.c, inode.c, file.c, write.c; mm/readahead.c), described in
//! `docs/decisions/explaining.md` together with what is not covered; tests compare it with the
//! counts of a real kernel.
//!
//! It shares with `policy` only the types of mount options, times and objects. It has no clock and
//! does no I/O, and its memory is bounded ([`ROOM`]): beyond it, the model drops its whole cache,
//! like a kernel that is short of memory, and counts this ([`LinuxClient::forgotten`]).

#![forbid(unsafe_code)]

mod attributes;
mod client;
mod listing;
mod lookup;
mod mutate;
mod object;
mod operation;
mod ranges;
mod reading;
mod request;
mod writing;

use std::collections::HashMap;

use curt_policy::{CacheOptions, MonotonicTime};
use curt_types::FileKind;

pub use client::{LinuxClient, Sent};
pub use operation::{FileOperation, OperationContext, Writing};
pub use request::LinuxRequest;

use attributes::AttributeTimer;
use listing::LinuxReaddir;
use object::{LinuxDentry, LinuxInode};
use reading::LinuxReadahead;

/// Maximum number of cached objects, and of cached names.
pub const ROOM: usize = 1 << 20;

/// The number of an object, unique while the model exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

/// The number of an open file or directory, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// The number of a credential: equal for equal user, group and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CredentialId(pub u64);

/// An object as the server would report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedObject {
    /// Its number.
    pub id: ObjectId,
    /// Its type.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// A value that changes with the object.
    pub stamp: u64,
}

/// Options of the model's mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options of nfs(5); options that Linux does not have are ignored.
    pub cache: CacheOptions,
    /// Maximum size of a READ in bytes.
    pub read_size: u64,
    /// Maximum size of a WRITE in bytes.
    pub write_size: u64,
    /// The server's preferred size of a READDIR in bytes (`dtpref` of FSINFO).
    pub list_size: u64,
    /// Size of the server's file handles in bytes.
    pub handle_size: u64,
    /// `sync`: each write is durable before it returns.
    pub sync: bool,
}

/// The rules, and the client's cache.
#[derive(Debug)]
struct Linux {
    options: Options,
    root: ObjectId,
    objects: HashMap<ObjectId, LinuxInode>,
    names: HashMap<(ObjectId, Box<[u8]>), LinuxDentry>,
    readers: HashMap<OpenId, LinuxReadahead>,
    listers: HashMap<OpenId, LinuxReaddir>,
    sent: Vec<LinuxRequest>,
    forgotten: u64,
    /// Maximum number of cached objects, and of cached names.
    room: usize,
}

impl Linux {
    /// A client whose cache contains only its root, `root`, since `now`.
    fn new(options: Options, root: ReportedObject, now: MonotonicTime) -> Self {
        let mut linux = Self {
            options,
            root: root.id,
            objects: HashMap::new(),
            names: HashMap::new(),
            readers: HashMap::new(),
            listers: HashMap::new(),
            sent: Vec::new(),
            forgotten: 0,
            room: ROOM,
        };
        linux.learn(root, now);
        linux
    }

    /// The requests since the last call.
    fn take_sent(&mut self) -> Vec<LinuxRequest> {
        std::mem::take(&mut self.sent)
    }

    /// How often the cache was dropped because it was full.
    const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn send(&mut self, request: LinuxRequest) {
        self.sent.push(request);
    }

    /// The cached object; a new one has been cached since `now`.
    fn object(&mut self, id: ObjectId, now: MonotonicTime) -> &mut LinuxInode {
        let interval = self.options.cache.interval(FileKind::Regular);
        self.objects.entry(id).or_insert_with(|| {
            let seen = ReportedObject { id, kind: FileKind::Regular, size: 0, stamp: 0 };
            LinuxInode::new(&seen, AttributeTimer::start(now, interval))
        })
    }

    /// The server's reply contained this object: its attributes are from `now`.
    fn learn(&mut self, seen: ReportedObject, now: MonotonicTime) {
        self.make_room(now);
        let interval = self.options.cache.interval(seen.kind);
        match self.objects.get_mut(&seen.id) {
            Some(object) => {
                object.see(&seen);
                object.refresh(now, interval);
            }
            None => drop(
                self.objects.insert(seen.id, LinuxInode::new(&seen, AttributeTimer::start(now, interval))),
            ),
        }
    }

    /// The result of an operation contained this object: the server has this state. The model's
    /// cache does not change.
    fn see(&mut self, seen: &ReportedObject) {
        if let Some(object) = self.objects.get_mut(&seen.id) {
            object.see(seen);
        }
    }

    /// Drops everything but the root if the cache is full.
    fn make_room(&mut self, now: MonotonicTime) {
        if self.objects.len() < self.room && self.names.len() < self.room {
            return;
        }
        let id = self.root;
        let root = self.object(id, now).seen(id);
        self.objects.clear();
        self.names.clear();
        self.readers.clear();
        self.listers.clear();
        self.forgotten += 1;
        let interval = self.options.cache.interval(root.kind);
        self.objects.insert(root.id, LinuxInode::new(&root, AttributeTimer::start(now, interval)));
    }
}

#[cfg(test)]
mod tests;
