//! What the Linux kernel's NFSv3 client would send: a model of its rules, beside which ours are
//! laid.
//!
//! [`LinuxClient`] is told each operation of a program as the kernel's file system layer hands it
//! down ([`FileOperation`]), with the time at which it began and what the server's answer would be,
//! and says which requests Linux would have sent for it. `curt explain` feeds it with a command's
//! FUSE operations, and the tests of `curt-bench` with recorded workloads.
//!
//! Owns a model of that client as far as its requests go: attributes with their timers, names with
//! the directory's contents they were learned under, the access cache, pages and read-ahead,
//! written bytes, listings. The rules are those of Linux 6.1 (fs/nfs: dir.c, inode.c, file.c,
//! write.c; mm/readahead.c), described in `docs/decisions/explaining.md` with what is left out;
//! they are held to the counts of a real kernel.
//!
//! It shares with our client's `policy` only the types of mount options, times and objects. It has
//! no clock and does no I/O, and its memory is bounded ([`ROOM`]): beyond, it forgets everything at
//! once, as a kernel does that is short of memory, and says how often ([`LinuxClient::forgotten`]).

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

use curt_policy::{CacheOptions, Moment};
use curt_types::FileKind;

pub use client::{LinuxClient, Sent};
pub use operation::{FileOperation, OperationContext, Writing};
pub use request::LinuxRequest;

use attributes::AttributeTimer;
use listing::LinuxReaddir;
use object::{LinuxDentry, LinuxInode};
use reading::LinuxReadahead;

/// Objects that are remembered at most, and names.
pub const ROOM: usize = 1 << 20;

/// An object, by a number that its server's file has for as long as the model lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

/// An open file or directory, by a number of the caller's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpenId(pub u64);

/// Somebody's rights, by a number: equal for equal user, group and groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Who(pub u64);

/// What the server would say of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub id: ObjectId,
    /// Its type.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// What differs once it was changed.
    pub stamp: u64,
}

/// How the model's mount is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The options of nfs(5); those that Linux does not have are not looked at.
    pub cache: CacheOptions,
    /// Bytes of a READ at most.
    pub read_size: u64,
    /// Bytes of a WRITE at most.
    pub write_size: u64,
    /// Bytes of a listing's reply that the server prefers (`dtpref` of FSINFO).
    pub list_size: u64,
    /// Bytes of the server's file handles.
    pub handle_size: u64,
    /// `sync`: each write is durable before it returns.
    pub sync: bool,
}

/// The rules, and what that client keeps.
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
    /// Objects, and names, that are remembered at most.
    room: usize,
}

impl Linux {
    /// A client that knows its root, `root`, since `now`, and nothing else.
    fn new(options: Options, root: Seen, now: Moment) -> Self {
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

    /// What would have been sent since the last time.
    fn take_sent(&mut self) -> Vec<LinuxRequest> {
        std::mem::take(&mut self.sent)
    }

    /// How often everything was forgotten for want of room.
    const fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn send(&mut self, request: LinuxRequest) {
        self.sent.push(request);
    }

    /// What is known of an object; what is not known yet is so from `now` on.
    fn object(&mut self, id: ObjectId, now: Moment) -> &mut LinuxInode {
        let interval = self.options.cache.interval(FileKind::Regular);
        self.objects.entry(id).or_insert_with(|| {
            let seen = Seen {
                id,
                kind: FileKind::Regular,
                size: 0,
                stamp: 0,
            };
            LinuxInode::new(&seen, AttributeTimer::start(now, interval))
        })
    }

    /// The server's answer told of this object: its attributes are those of `now`.
    fn learn(&mut self, seen: Seen, now: Moment) {
        self.make_room(now);
        let interval = self.options.cache.interval(seen.kind);
        match self.objects.get_mut(&seen.id) {
            Some(object) => {
                object.see(&seen);
                object.refresh(now, interval);
            }
            None => drop(self.objects.insert(
                seen.id,
                LinuxInode::new(&seen, AttributeTimer::start(now, interval)),
            )),
        }
    }

    /// The program was told of this object, by whatever request: the server has it so. What the
    /// model believes of it does not change by that.
    fn see(&mut self, seen: &Seen) {
        if let Some(object) = self.objects.get_mut(&seen.id) {
            object.see(seen);
        }
    }

    /// Forgets everything but the root, where there is too much of it.
    fn make_room(&mut self, now: Moment) {
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
        self.objects.insert(
            root.id,
            LinuxInode::new(&root, AttributeTimer::start(now, interval)),
        );
    }
}

#[cfg(test)]
mod tests;
