//! Listings: READDIRPLUS from the beginning, then READDIR unless the program uses the attributes,
//! and no request while the directory is unchanged since it was last listed to its end.
//!
//! For each getdents(2) Linux chooses between the two, and enlarges replies only if one call needs
//! several. The model may see a listing in other parts (the kernel requests other amounts from
//! FUSE), so it assumes calls with the buffer of readdir(3), whose size depends on the server's
//! preference.

use super::{
    Linux, LinuxRequest, ObjectId, OpenId,
    object::{LinuxDentry, LinuxDentryTarget},
};
use curt_policy::{MonotonicTime, ReaddirplusMode};

/// Size of the first reply in bytes.
const REPLY_FIRST: u64 = 64 * 1024;
/// Maximum size of a reply in bytes.
const REPLY_MAX: u64 = 1 << 20;
/// Minimum of a server's preferred size that is accepted; a smaller one is replaced.
const DTPREF_MIN: u64 = 1024;
const DTPREF_FALLBACK: u64 = 4096;
/// Size of a reply without its names: the directory's attributes, verifier and end.
const REPLY_FRAME: u64 = 112;
/// Size of an entry without the name.
const ENTRY_PLAIN: u64 = 24;
/// Attributes, and a handle without its bytes.
const ENTRY_ATTRIBUTES: u64 = 4 + 84 + 4 + 4;
/// Number of names used since the last call, with or without a LOOKUP, above which the next call
/// requests attributes.
const LOOKUPS_FOR_PLUS: u32 = 8;
/// Number of LOOKUPs since the last call, above which the cached listing is requested again with
/// attributes.
const MISSES_FOR_REREAD: u32 = 16;
/// Minimum size of the buffer of readdir(3) (glibc: the directory's st_blksize within bounds).
const BUFFER_MIN: u64 = 32 * 1024;
const BUFFER_MAX: u64 = 1 << 20;
/// Size of an entry in that buffer without the name and its NUL (struct linux_dirent64), and its
/// alignment.
const DIRENT_FRAME: u64 = 19;
const DIRENT_STEP: u64 = 8;

/// The state of an open directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinuxReaddir {
    directory: ObjectId,
    /// Size of the next reply.
    reply: u64,
    /// Rest of the current reply; `None` before the first.
    left: Option<u64>,
    /// Whether the current reply has attributes.
    with_attributes: bool,
    /// Whether the current call requests attributes.
    plus: bool,
    /// Rest of the current call's buffer.
    room: u64,
    /// Number of the directory's names used since the call began, and of those that needed a
    /// LOOKUP.
    looks: u32,
    misses: u32,
    /// Number of replies that the current call has needed.
    fills: u32,
    /// The state of the contents at the start of the listing, unless the whole listing is cached.
    began: Option<u64>,
}

impl Linux {
    /// A part of a listing. Without names it is the end.
    pub(super) fn list(
        &mut self,
        open: OpenId,
        directory: ObjectId,
        from_start: bool,
        names: &[&[u8]],
        now: MonotonicTime,
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
                self.send_readdir(&mut lister, now);
            }
            let object = self.object(directory, now);
            if let Some(began) = lister.began.take() {
                object.cached = Some(began).filter(|began| *began == object.contents);
            }
        }
        self.listers.insert(open, lister);
    }

    /// The first call.
    fn begin_listing(&mut self, directory: ObjectId, now: MonotonicTime) -> LinuxReaddir {
        self.check_listing(directory, now);
        let object = self.object(directory, now);
        let (contents, cached) = (object.contents, object.cached);
        LinuxReaddir {
            directory,
            reply: REPLY_FIRST.min(self.reply_max()),
            left: None,
            with_attributes: false,
            plus: self.options.cache.plus != ReaddirplusMode::Never,
            room: self.buffer(),
            looks: 0,
            misses: 0,
            fills: 0,
            began: (cached != Some(contents)).then_some(contents),
        }
    }

    /// The next call: the buffer of the last one is full.
    fn go_on_listing(&mut self, lister: &mut LinuxReaddir, now: MonotonicTime) {
        self.check_listing(lister.directory, now);
        lister.plus = match self.options.cache.plus {
            ReaddirplusMode::Never => false,
            ReaddirplusMode::Always => true,
            ReaddirplusMode::Auto => lister.looks > LOOKUPS_FOR_PLUS,
        };
        if lister.plus && lister.misses > MISSES_FOR_REREAD {
            lister.left = Some(0);
            lister.began = Some(self.object(lister.directory, now).contents);
        }
        (lister.room, lister.fills, lister.looks, lister.misses) = (self.buffer(), 0, 0, 0);
    }

    fn check_listing(&mut self, directory: ObjectId, now: MonotonicTime) {
        if self.object(directory, now).must_revalidate(now) {
            self.send_getattr(directory, LinuxRequest::ListingCheck, now);
        }
    }

    fn emit(&mut self, lister: &mut LinuxReaddir, name: &[u8], now: MonotonicTime) {
        // Whether a name fits the buffer is known only after it was received.
        let in_reply = self.entry_bytes(name, lister.with_attributes);
        if lister.began.is_some() && lister.left.is_none_or(|left| left < in_reply) {
            self.send_readdir(lister, now);
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

    /// Size of the buffer of readdir(3).
    fn buffer(&self) -> u64 {
        self.reply_max().clamp(BUFFER_MIN, BUFFER_MAX)
    }

    /// Maximum size of a reply, by the server's preference (nfs_server_set_fsinfo).
    fn reply_max(&self) -> u64 {
        let preferred = self.options.list_size;
        let preferred = if preferred < DTPREF_MIN { DTPREF_FALLBACK } else { preferred };
        preferred.min(REPLY_MAX).min(self.options.read_size)
    }

    /// READDIRPLUS or READDIR.
    fn send_readdir(&mut self, lister: &mut LinuxReaddir, now: MonotonicTime) {
        if lister.fills > 0 {
            lister.reply = (lister.reply * 2).min(self.reply_max());
        }
        let request = if lister.plus { LinuxRequest::ListPlus } else { LinuxRequest::ListPlain };
        self.send(request);
        self.refresh(lister.directory, now);
        lister.left = Some(lister.reply.saturating_sub(REPLY_FRAME));
        lister.with_attributes = lister.plus;
        lister.fills += 1;
    }

    /// Size of a name's entry in a reply.
    fn entry_bytes(&self, name: &[u8], with_attributes: bool) -> u64 {
        let name = (name.len() as u64).next_multiple_of(4);
        let more =
            if with_attributes { ENTRY_ATTRIBUTES + self.options.handle_size.next_multiple_of(4) } else { 0 };
        ENTRY_PLAIN + name + more
    }

    /// Caches a name from READDIRPLUS.
    fn prime(&mut self, directory: ObjectId, name: &[u8], now: MonotonicTime) {
        if matches!(name, b"." | b"..") {
            return;
        }
        let contents = self.object(directory, now).contents;
        let cached_state = self.names.get(&(directory, Box::from(name))).copied();
        let leads = match cached_state {
            Some(LinuxDentry { leads: LinuxDentryTarget::Inode(id), .. }) => {
                self.refresh(id, now);
                LinuxDentryTarget::Inode(id)
            }
            Some(_) | None => LinuxDentryTarget::Listed(now),
        };
        self.keep_name(directory, name, leads, contents);
    }

    /// A name of this directory was used; `asked`: a LOOKUP was needed.
    pub(super) fn note_look(&mut self, directory: ObjectId, asked: bool) {
        for lister in self.listers.values_mut().filter(|lister| lister.directory == directory) {
            lister.looks += 1;
            lister.misses += u32::from(asked);
        }
    }
}
