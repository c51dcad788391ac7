//! Telling names to a listener: from what is kept, from the pass, from the server.

use std::sync::Arc;

use curt_policy::{
    NameDecision, NameIntent, NameView,
    names::{Entry as Known, Wanted, decide_lookup},
};
use curt_trace::ClientCounter;
use rustix::io::Errno;

use super::{
    ListedEntry, OpenDirectory,
    pass::{Pass, Position},
};
use crate::{
    api::{DirEntry, Found, Listener},
    client::{Asked, Client},
    identity::Caller,
    inode::Kept,
};

/// The largest cookie that a program can hold in an off_t.
const COOKIE_MAX: u64 = i64::MAX as u64;

impl Client {
    /// Tells the names that follow `cookie` (0: from the beginning) until the listener is full or the directory ends. With
    /// `plus`, what a look-up would give comes with each name where it is known. `.` and `..` are told where the server tells
    /// them.
    ///
    /// Names that are there all the time are told once each; those that come or go meanwhile may or may not be told.
    ///
    /// # Errors
    /// Those of READDIR; EOVERFLOW if the server's cookies do not fit an off_t; EIO if it refuses its own cookies twice or
    /// never gets on.
    pub fn readdir(
        &self,
        caller: &Caller,
        directory: &OpenDirectory,
        cookie: u64,
        plus: bool,
        listener: &mut dyn FnMut(&DirEntry<'_>) -> Listener,
    ) -> Result<(), Errno> {
        let identity = Arc::clone(&directory.identity);
        let asked = Asked::new(identity, caller.interrupt.clone(), self.core.now());
        if cookie == 0 {
            self.begin_pass(&asked, directory)?;
        }
        let mut cookie = cookie;
        let mut position = self.seek(directory, cookie);
        loop {
            let page = {
                let pass = directory.pass.lock();
                pass.pages.get(position.page).map(Arc::clone)
            };
            if let Some(page) = page {
                for (index, entry) in page.names.iter().enumerate().skip(position.name) {
                    if entry.cookie > COOKIE_MAX {
                        return Err(Errno::OVERFLOW);
                    }
                    if !self.tell(directory, entry, plus, listener) {
                        let here = Position {
                            page: position.page,
                            name: index,
                        };
                        directory.pass.lock().remember(cookie, here);
                        return Ok(());
                    }
                    cookie = entry.cookie;
                }
                position = Position {
                    page: position.page,
                    name: page.names.len(),
                };
                directory.pass.lock().remember(cookie, position);
                if page.is_last {
                    return Ok(());
                }
                position = Position {
                    page: position.page + 1,
                    name: 0,
                };
            }
            let is_read = directory.pass.lock().pages.len() > position.page;
            if !is_read {
                position = self.read_on(&asked, directory, cookie, position)?;
            }
        }
    }

    /// Where the name after `cookie` is; where no page knows it, the server is asked from there.
    fn seek(&self, directory: &OpenDirectory, cookie: u64) -> Position {
        let mut pass = directory.pass.lock();
        pass.find(cookie).unwrap_or_else(|| {
            let (_, verifier) = pass.end();
            pass.jump(cookie, verifier);
            Position { page: 0, name: 0 }
        })
    }

    /// A pass begins: with the kept listing if that may be believed.
    fn begin_pass(&self, asked: &Asked, directory: &OpenDirectory) -> Result<(), Errno> {
        let inode = &directory.inode;
        for _ in asked.rounds() {
            let options = self.core.options();
            let clock = self.core.server_clock(inode.fsid().unwrap_or(0));
            let (decision, listing) = {
                let wanted = Wanted {
                    began: asked.began,
                    now: self.core.now(),
                };
                let facts = inode.facts();
                let Kept::Directory(kept) = &facts.kept else { break };
                let Some(listing) = kept.listing.clone() else {
                    break;
                };
                let known = (Known::Positive, listing.label);
                let mut view = NameView::of(known, &facts.state, &clock, wanted, &options);
                view.directory = facts.freshness(asked, wanted.now, &options);
                (decide_lookup(&view, NameIntent::Use, &options), listing)
            };
            match decision {
                NameDecision::ServePositive => {
                    self.count(ClientCounter::ListingCached);
                    directory.pass.lock().take_kept(&listing.pages);
                    return Ok(());
                }
                NameDecision::RevalidateDirectory => {
                    self.count(ClientCounter::DirGetattrForName);
                    self.revalidate(asked, inode)?;
                }
                NameDecision::ServeNegative | NameDecision::Lookup(_) | NameDecision::LeaveToServer => break,
            }
        }
        let mut pass: parking_lot::MutexGuard<'_, Pass> = directory.pass.lock();
        pass.restart();
        Ok(())
    }

    /// Tells one name; false if the listener is full.
    fn tell(
        &self,
        directory: &OpenDirectory,
        entry: &ListedEntry,
        plus: bool,
        listener: &mut dyn FnMut(&DirEntry<'_>) -> Listener,
    ) -> bool {
        let found = if plus {
            self.found_listed(directory, entry)
        } else {
            None
        };
        let ListedEntry {
            name,
            fileid,
            kind,
            cookie,
        } = entry;
        let told = DirEntry {
            name,
            fileid: *fileid,
            kind: *kind,
            cookie: *cookie,
            found,
        };
        match (listener(&told), found) {
            (Listener::Took, _) => true,
            (Listener::Full, Some(found)) => {
                self.forget(found.id, 1);
                false
            }
            (Listener::Full, None) => false,
        }
    }

    /// What a look-up of a listed name would give, if it would give it without a request.
    fn found_listed(&self, directory: &OpenDirectory, entry: &ListedEntry) -> Option<Found> {
        if matches!(&*entry.name, b"." | b"..") {
            return None;
        }
        let inode = &directory.inode;
        let kept = self.names.find(inode.id(), &entry.name)?;
        let child = kept.child?;
        // One after the other: the server may list a directory in itself.
        let contents = inode.facts().contents();
        if contents != Some(kept.label.epoch) {
            return None;
        }
        if child.facts().stale {
            return None;
        }
        let now = self.core.now();
        let options = self.core.options();
        if child.facts().state.remaining(now, &options).is_zero() {
            return None;
        }
        self.found(inode, &child, Some(kept.label)).ok()
    }
}
