//! Listings: READDIRPLUS from the beginning, READDIR behind it unless the program looks at what it is told, and nothing while the
//! directory is as it was when it was last listed to its end.

use super::{
    Linux, ObjectId, OpenId, Request,
    object::{Dentry, Leads},
};
use crate::{Moment, PlusMode};

/// Bytes of the first reply.
const REPLY_FIRST: u64 = 64 * 1024;
/// Bytes of a reply at most.
const REPLY_MAX: u64 = 1 << 20;
/// What a server prefers is not believed below this, and then taken for the next.
const REPLY_SENSIBLE: u64 = 1024;
const REPLY_OTHERWISE: u64 = 4096;
/// Bytes of a reply besides its names: the directory's attributes, verifier and end.
const REPLY_FRAME: u64 = 112;
/// Bytes of a name's entry besides the name.
const ENTRY_PLAIN: u64 = 24;
/// The same with attributes and a handle of 32 bytes.
const ENTRY_PLUS: u64 = ENTRY_PLAIN + 4 + 84 + 4 + 4 + 32;
/// Names that were looked at (or would have been) since the last reply, for the next to bring attributes.
const LOOKS_FOR_PLUS: u32 = 8;

/// An open directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lister {
    directory: ObjectId,
    /// Bytes of the next reply.
    reply: u64,
    /// Bytes that are left of the present one; `None` before the first.
    left: Option<u64>,
    plus: bool,
    looks: u32,
    /// Replies that this call of getdents(2) has needed.
    fills: u32,
    /// The contents in which the listing began, if nothing was known of it.
    began: Option<u64>,
}

/// What a program is told of a directory by one getdents(2).
#[derive(Clone, Copy, Debug)]
pub struct Told<'a> {
    /// Whether it begins at the beginning.
    pub from_start: bool,
    /// The names.
    pub names: &'a [&'a [u8]],
}

impl Linux {
    /// getdents(2). Telling no name, it has found the end.
    pub fn list(&mut self, open: OpenId, directory: ObjectId, told: Told<'_>, now: Moment) {
        if self.object(directory, now).must_be_asked(now) {
            self.ask_attributes(directory, Request::ListingCheck, now);
        }
        let object = self.object(directory, now);
        let (contents, cached) = (object.contents, object.cached);
        let mut lister = match self.listers.get(&open) {
            Some(lister) if !told.from_start => *lister,
            Some(_) | None => Lister {
                directory,
                reply: REPLY_FIRST.min(self.reply_max()),
                left: None,
                plus: false,
                looks: 0,
                fills: 0,
                began: (cached != Some(contents)).then_some(contents),
            },
        };
        if lister.began.is_some() {
            lister.fills = 0;
            self.fill(&mut lister, told, now);
            if told.names.is_empty() {
                let object = self.object(directory, now);
                object.cached = lister.began.filter(|began| *began == object.contents);
                lister.began = None;
            }
        }
        lister.looks = 0;
        self.listers.insert(open, lister);
    }

    /// Bytes of a reply at most, by what the server prefers (nfs_server_set_fsinfo).
    fn reply_max(&self) -> u64 {
        let preferred = self.options.list_size;
        let preferred = if preferred < REPLY_SENSIBLE {
            REPLY_OTHERWISE
        } else {
            preferred
        };
        preferred.min(REPLY_MAX).min(self.options.read_size)
    }

    fn fill(&mut self, lister: &mut Lister, told: Told<'_>, now: Moment) {
        if told.names.is_empty() && lister.left.is_none() {
            self.ask_listing(lister, now);
        }
        for name in told.names {
            let mut bytes = entry_bytes(name, lister.plus);
            if lister.left.is_none_or(|left| left < bytes) {
                self.ask_listing(lister, now);
                bytes = entry_bytes(name, lister.plus);
            }
            lister.left = lister.left.map(|left| left.saturating_sub(bytes));
            if lister.plus {
                self.prime(lister.directory, name, now);
            }
        }
        if lister.fills > 1 {
            lister.reply = (lister.reply * 2).min(self.reply_max());
        }
    }

    /// READDIRPLUS or READDIR.
    fn ask_listing(&mut self, lister: &mut Lister, now: Moment) {
        let is_first = lister.left.is_none();
        lister.plus = match self.options.cache.plus {
            PlusMode::Never => false,
            PlusMode::Always => true,
            PlusMode::Auto => is_first || lister.looks > LOOKS_FOR_PLUS,
        };
        let request = if lister.plus {
            Request::ListPlus
        } else {
            Request::ListPlain
        };
        self.send(request, lister.directory);
        self.refresh(lister.directory, now);
        lister.left = Some(lister.reply.saturating_sub(REPLY_FRAME));
        lister.fills += 1;
    }

    /// READDIRPLUS told of a name.
    fn prime(&mut self, directory: ObjectId, name: &[u8], now: Moment) {
        if matches!(name, b"." | b"..") {
            return;
        }
        let contents = self.object(directory, now).contents;
        let known = self.names.get(&(directory, Box::from(name))).copied();
        let leads = match known {
            Some(Dentry {
                leads: Leads::To(id), ..
            }) => {
                self.refresh(id, now);
                Leads::To(id)
            }
            Some(_) | None => Leads::Listed(now),
        };
        self.keep_name(directory, name, leads, contents);
    }

    /// A name of this directory was looked at.
    pub(super) fn note_look(&mut self, directory: ObjectId) {
        for lister in self
            .listers
            .values_mut()
            .filter(|lister| lister.directory == directory)
        {
            lister.looks += 1;
        }
    }

    /// close(2) of a directory.
    pub fn listed(&mut self, open: OpenId) {
        self.listers.remove(&open);
    }
}

fn entry_bytes(name: &[u8], plus: bool) -> u64 {
    let name = (name.len() as u64).next_multiple_of(4);
    name + if plus { ENTRY_PLUS } else { ENTRY_PLAIN }
}
