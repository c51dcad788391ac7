//! Listings: READDIRPLUS from the beginning, READDIR behind it unless the program looks at what it
//! is told, and nothing while the directory is as it was when it was last listed to its end.
//!
//! Linux decides once for each getdents(2) which of the two it sends, and lets replies grow only
//! when one call needs several. What is told of a listing here may come in other parts (the kernel
//! asks FUSE for other amounts), so the calls are made up: each takes what the buffer of readdir(3)
//! holds, whose size follows what the server prefers.

use super::{
    Linux, LinuxRequest, ObjectId, OpenId,
    object::{LinuxDentry, LinuxDentryTarget},
};
use curt_policy::{Moment, PlusMode};

/// Bytes of the first reply.
const REPLY_FIRST: u64 = 64 * 1024;
/// Bytes of a reply at most.
const REPLY_MAX: u64 = 1 << 20;
/// What a server prefers is not believed below this, and then taken for the next.
const DTPREF_MIN: u64 = 1024;
const DTPREF_FALLBACK: u64 = 4096;
/// Bytes of a reply besides its names: the directory's attributes, verifier and end.
const REPLY_FRAME: u64 = 112;
/// Bytes of a name's entry besides the name.
const ENTRY_PLAIN: u64 = 24;
/// Attributes, and a handle but for its bytes.
const ENTRY_ATTRIBUTES: u64 = 4 + 84 + 4 + 4;
/// Names that were looked at since the last call, or had to be asked for, beyond which the next
/// brings attributes.
const LOOKUPS_FOR_PLUS: u32 = 8;
/// Names that had to be asked for since the last call, beyond which what is kept of the listing is
/// asked for again with attributes.
const MISSES_FOR_REREAD: u32 = 16;
/// Bytes of the buffer of readdir(3) (glibc: the directory's st_blksize within these bounds).
const BUFFER_MIN: u64 = 32 * 1024;
const BUFFER_MAX: u64 = 1 << 20;
/// Bytes of a name in that buffer besides the name and its zero (struct linux_dirent64), and what
/// they are rounded up to.
const DIRENT_FRAME: u64 = 19;
const DIRENT_STEP: u64 = 8;

/// An open directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinuxReaddir {
    directory: ObjectId,
    /// Bytes of the next reply.
    reply: u64,
    /// Bytes that are left of the present one; `None` before the first.
    left: Option<u64>,
    /// The present reply has attributes.
    with_attributes: bool,
    /// The present call asks for attributes.
    plus: bool,
    /// Bytes that are left of the present call's buffer.
    room: u64,
    /// Names of the directory that were looked at since the call began, and those of them that had
    /// to be asked for.
    looks: u32,
    misses: u32,
    /// Replies that the present call has needed.
    fills: u32,
    /// The contents in which the listing began, if they are not known to the end.
    began: Option<u64>,
}

impl Linux {
    /// A part of a listing. Telling no name, it has found the end.
    pub(super) fn list(
        &mut self,
        open: OpenId,
        directory: ObjectId,
        from_start: bool,
        names: &[&[u8]],
        now: Moment,
    ) {
        let mut lister = match self.listers.get(&open) {
            Some(lister) if !from_start => *lister,
            Some(_) | None => self.begin_listing(directory, now),
        };
        for name in names {
            self.emit(&mut lister, name, now);
        }
        if names.is_empty() {
            if lister.left.is_none() && lister.began.is_some() {
                self.ask_listing(&mut lister, now);
            }
            let object = self.object(directory, now);
            if let Some(began) = lister.began.take() {
                object.cached = Some(began).filter(|began| *began == object.contents);
            }
        }
        self.listers.insert(open, lister);
    }

    /// The first call.
    fn begin_listing(&mut self, directory: ObjectId, now: Moment) -> LinuxReaddir {
        self.check_listing(directory, now);
        let object = self.object(directory, now);
        let (contents, cached) = (object.contents, object.cached);
        LinuxReaddir {
            directory,
            reply: REPLY_FIRST.min(self.reply_max()),
            left: None,
            with_attributes: false,
            plus: self.options.cache.plus != PlusMode::Never,
            room: self.buffer(),
            looks: 0,
            misses: 0,
            fills: 0,
            began: (cached != Some(contents)).then_some(contents),
        }
    }

    /// The next call: the buffer of the last is full.
    fn go_on_listing(&mut self, lister: &mut LinuxReaddir, now: Moment) {
        self.check_listing(lister.directory, now);
        lister.plus = match self.options.cache.plus {
            PlusMode::Never => false,
            PlusMode::Always => true,
            PlusMode::Auto => lister.looks > LOOKUPS_FOR_PLUS,
        };
        if lister.plus && lister.misses > MISSES_FOR_REREAD {
            lister.left = Some(0);
            lister.began = Some(self.object(lister.directory, now).contents);
        }
        (lister.room, lister.fills, lister.looks, lister.misses) = (self.buffer(), 0, 0, 0);
    }

    fn check_listing(&mut self, directory: ObjectId, now: Moment) {
        if self.object(directory, now).must_be_asked(now) {
            self.ask_attributes(directory, LinuxRequest::ListingCheck, now);
        }
    }

    fn emit(&mut self, lister: &mut LinuxReaddir, name: &[u8], now: Moment) {
        // Whether a name still fits into the buffer is seen once it is there.
        let in_reply = self.entry_bytes(name, lister.with_attributes);
        if lister.began.is_some() && lister.left.is_none_or(|left| left < in_reply) {
            self.ask_listing(lister, now);
        }
        let in_buffer = (DIRENT_FRAME + name.len() as u64 + 1).next_multiple_of(DIRENT_STEP);
        if lister.room < in_buffer {
            self.go_on_listing(lister, now);
        }
        lister.room = lister.room.saturating_sub(in_buffer);
        if lister.began.is_some() {
            let bytes = self.entry_bytes(name, lister.with_attributes);
            lister.left = lister.left.map(|left| left.saturating_sub(bytes));
            if lister.with_attributes {
                self.prime(lister.directory, name, now);
            }
        }
    }

    /// Bytes of the buffer of readdir(3).
    fn buffer(&self) -> u64 {
        self.reply_max().clamp(BUFFER_MIN, BUFFER_MAX)
    }

    /// Bytes of a reply at most, by what the server prefers (nfs_server_set_fsinfo).
    fn reply_max(&self) -> u64 {
        let preferred = self.options.list_size;
        let preferred = if preferred < DTPREF_MIN {
            DTPREF_FALLBACK
        } else {
            preferred
        };
        preferred.min(REPLY_MAX).min(self.options.read_size)
    }

    /// READDIRPLUS or READDIR.
    fn ask_listing(&mut self, lister: &mut LinuxReaddir, now: Moment) {
        if lister.fills > 0 {
            lister.reply = (lister.reply * 2).min(self.reply_max());
        }
        let request = if lister.plus {
            LinuxRequest::ListPlus
        } else {
            LinuxRequest::ListPlain
        };
        self.send(request);
        self.refresh(lister.directory, now);
        lister.left = Some(lister.reply.saturating_sub(REPLY_FRAME));
        lister.with_attributes = lister.plus;
        lister.fills += 1;
    }

    /// Bytes of a name in a reply.
    fn entry_bytes(&self, name: &[u8], with_attributes: bool) -> u64 {
        let name = (name.len() as u64).next_multiple_of(4);
        let more = if with_attributes {
            ENTRY_ATTRIBUTES + self.options.handle_size.next_multiple_of(4)
        } else {
            0
        };
        ENTRY_PLAIN + name + more
    }

    /// READDIRPLUS told of a name.
    fn prime(&mut self, directory: ObjectId, name: &[u8], now: Moment) {
        if matches!(name, b"." | b"..") {
            return;
        }
        let contents = self.object(directory, now).contents;
        let known = self.names.get(&(directory, Box::from(name))).copied();
        let leads = match known {
            Some(LinuxDentry {
                leads: LinuxDentryTarget::Inode(id),
                ..
            }) => {
                self.refresh(id, now);
                LinuxDentryTarget::Inode(id)
            }
            Some(_) | None => LinuxDentryTarget::Listed(now),
        };
        self.keep_name(directory, name, leads, contents);
    }

    /// A name of this directory was looked at; `asked`: the server had to be asked.
    pub(super) fn note_look(&mut self, directory: ObjectId, asked: bool) {
        for lister in self
            .listers
            .values_mut()
            .filter(|lister| lister.directory == directory)
        {
            lister.looks += 1;
            lister.misses += u32::from(asked);
        }
    }
}
