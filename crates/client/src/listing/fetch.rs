//! READDIR and READDIRPLUS: the next page, and what it teaches.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use curt_policy::{
    Moment, NameLabel, Rights, Ticket,
    listing::{ListingDecision, ListingView, decide_listing},
    names::{self, Found as Said, Learned},
};
use curt_proto::nfs3::{CookieVerifier, Status};
use curt_trace::ClientCounter;
use rustix::io::Errno;

use super::{ListedEntry, Listing, NAMES_KEPT_MAX, OpenDirectory, Page, pass::Position};
use crate::{
    client::{Asked, Client},
    errno,
    inode::{Inode, Kept},
    plan::{ListedName, ListedPage, v3},
};

/// Bytes of the first reply that is asked for.
const SIZE_FIRST: u32 = 32 * 1024;

/// Bytes of a reply at most.
const SIZE_MAX: u32 = 1 << 20;

/// A page as it came.
struct Fetched {
    page: ListedPage,
    plus: bool,
    ticket: Ticket,
    /// The reply brought the directory's attributes, and they are the newest that are known.
    adopted: bool,
    sent_at: Moment,
}

impl Client {
    /// Reads the page that follows the pass's last one. Returns where the reader goes on.
    pub(super) fn read_on(
        &self,
        asked: &Asked,
        directory: &OpenDirectory,
        cookie: u64,
        at: Position,
    ) -> Result<Position, Errno> {
        let (after, verifier, size, is_restarted) = {
            let mut pass = directory.pass.lock();
            pass.size = self.next_size(pass.size);
            let (after, verifier) = pass.end();
            (after, verifier, pass.size, pass.told.is_some())
        };
        let mut result = self.fetch(asked, &directory.inode, after, verifier, size);
        if matches!(result, Err(Status::Toosmall))
            || matches!(&result, Ok(Ok(fetched)) if is_without_progress(fetched))
        {
            // Once more with all the room there is.
            let size = self.next_size(SIZE_MAX);
            result = self.fetch(asked, &directory.inode, after, verifier, size);
        }
        let fetched = match result {
            Ok(fetched) => fetched?,
            Err(Status::BadCookie | Status::NotSync) if after != 0 => {
                self.count(ClientCounter::ListingBadCookie);
                return self.start_again(directory, cookie, at, is_restarted);
            }
            Err(status) => return Err(self.refused(&directory.inode, status)),
        };
        if is_without_progress(&fetched)
            || fetched
                .page
                .names
                .iter()
                .any(|entry| after != 0 && entry.cookie == after)
        {
            tracing::warn!(cookie = after, "the server lists a directory without getting on");
            return Err(Errno::IO);
        }
        Ok(self.take_page(asked, directory, after, fetched))
    }

    fn next_size(&self, size: u32) -> u32 {
        let server = self
            .server_limits
            .listing_preferred
            .max(self.server_limits.read_max)
            .max(SIZE_FIRST);
        size.saturating_mul(2).clamp(SIZE_FIRST, SIZE_MAX).min(server)
    }

    /// The server does not know its own cookie any more: the pass starts again, once, and leaves out what was told.
    fn start_again(
        &self,
        directory: &OpenDirectory,
        cookie: u64,
        at: Position,
        is_restarted: bool,
    ) -> Result<Position, Errno> {
        let mut pass = directory.pass.lock();
        if is_restarted || !pass.start_again(cookie, at) {
            return Err(Errno::IO);
        }
        self.count(ClientCounter::ListingRestart);
        Ok(Position { page: 0, name: 0 })
    }

    /// Sends READDIR or READDIRPLUS.
    fn fetch(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        after: u64,
        verifier: CookieVerifier,
        size: u32,
    ) -> Result<Result<Fetched, Errno>, Status> {
        let (ticket, names_since_stat) = {
            let mut facts = inode.facts();
            (facts.state.ticket(), facts.kept.directory().names_since_stat)
        };
        let view = ListingView {
            at_start: after == 0,
            names_since_stat,
        };
        let plus = decide_listing(view, &self.core.options()) == ListingDecision::Plus;
        let (wire, asker) = (&self.core.wire, asked.asker());
        let answer = if plus {
            self.count(ClientCounter::ListingPlus);
            v3::readdirplus(wire, asker, inode.handle(), after, verifier, size)
        } else {
            self.count(ClientCounter::ListingPlain);
            v3::readdir(wire, asker, inode.handle(), after, verifier, size)
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(errno::of_call(error))),
        };
        let sent_at = self.core.moment(answer.sent_at);
        let adopted = answer
            .about
            .as_ref()
            .is_some_and(|attributes| inode.absorb(attributes, sent_at).adopted);
        match answer.outcome {
            Ok(page) => {
                inode.prove(&asked.identity, Rights::READ, sent_at);
                Ok(Ok(Fetched {
                    page,
                    plus,
                    ticket,
                    adopted,
                    sent_at,
                }))
            }
            Err(status) => {
                self.note_refusal(asked, inode, status, Rights::READ, sent_at);
                Err(status)
            }
        }
    }

    /// Keeps a page: its names and attributes where it brought them, and itself for the pass.
    fn take_page(&self, asked: &Asked, directory: &OpenDirectory, after: u64, fetched: Fetched) -> Position {
        let inode = &directory.inode;
        let Fetched {
            page,
            plus,
            ticket,
            adopted,
            sent_at,
        } = fetched;
        let label = {
            let mut facts = inode.facts();
            let count = u32::try_from(page.names.len()).unwrap_or(u32::MAX);
            let kept = facts.kept.directory();
            kept.names_since_stat = kept.names_since_stat.saturating_add(count);
            match names::learn(Said::Object, ticket, &facts.state, adopted, sent_at) {
                Learned::Positive(label) => Some(label),
                Learned::Negative(_) | Learned::Drop | Learned::Leave => None,
            }
        };
        if plus {
            self.prime(asked, inode, &page.names, label, sent_at);
        }
        let fsid = inode.fsid().unwrap_or(0);
        let mut told_twice = 0;
        let mut pass = directory.pass.lock();
        let names = page.names.into_iter().filter_map(|listed| {
            if pass.told.as_ref().is_some_and(|told| told.contains(&listed.name)) {
                told_twice += 1;
                return None;
            }
            Some(self.listed_entry(listed, fsid))
        });
        let names: Vec<ListedEntry> = names.collect();
        // What was left out is remembered by the cookie of the last name all the same.
        let page = Page {
            after,
            names,
            verifier: page.verifier,
            is_last: page.end,
        };
        if pass.pages.is_empty() {
            pass.label = label;
            pass.ticket = Some(ticket);
        } else if pass.label.map(|first| first.epoch) != label.map(|label| label.epoch) {
            pass.label = None;
        }
        let index = pass.push(Arc::new(page));
        self.core
            .counters
            .add(ClientCounter::ListingSuppressed, told_twice);
        let complete = pass.is_complete() && pass.is_whole && pass.told.is_none() && !pass.is_kept;
        let listing = pass.label.zip(pass.ticket).filter(|_| complete);
        let pages = if listing.is_some() {
            pass.pages.clone()
        } else {
            Vec::new()
        };
        drop(pass);
        if let Some((label, first)) = listing {
            self.keep_listing(inode, label, first, pages);
        }
        Position { page: index, name: 0 }
    }

    fn listed_entry(&self, listed: ListedName, directory_fsid: u64) -> ListedEntry {
        let kind = listed.attributes.as_ref().map(|attributes| attributes.kind);
        let fsid = listed
            .attributes
            .as_ref()
            .map_or(directory_fsid, |attributes| attributes.fsid);
        ListedEntry {
            fileid: self.core.numbering.number(fsid, listed.fileid),
            name: listed.name,
            kind,
            cookie: listed.cookie,
        }
    }

    /// Learns the names and attributes that READDIRPLUS brought.
    fn prime(
        &self,
        asked: &Asked,
        inode: &Arc<Inode>,
        names: &[ListedName],
        label: Option<NameLabel>,
        sent_at: Moment,
    ) {
        let Some(label) = label else { return };
        let fsid = inode.fsid();
        let _ = asked;
        let mut primed = 0;
        for listed in names {
            let (Some(handle), Some(attributes)) = (&listed.handle, &listed.attributes) else {
                continue;
            };
            // What is mounted there is not what the directory's file system has there.
            if matches!(&*listed.name, b"." | b"..") || Some(attributes.fsid) != fsid {
                continue;
            }
            let child = self.core.registry.inode(&self.core, handle);
            let _ = child.absorb(attributes, sent_at);
            child.facts().stale = false;
            let _ = self.keep_learned(inode, &listed.name, Some(&child), Learned::Positive(label));
            primed += 1;
        }
        self.core.counters.add(ClientCounter::NamesPrimed, primed);
    }

    /// Keeps a whole listing for those who list the directory while it does not change.
    fn keep_listing(&self, inode: &Inode, label: NameLabel, first: Ticket, pages: Vec<Arc<Page>>) {
        let names: usize = pages.iter().map(|page| page.names.len()).sum();
        let room = self.core.limits.listed_names;
        if names > NAMES_KEPT_MAX || self.listed_names.load(Relaxed).saturating_add(names) > room {
            return;
        }
        let listing = Arc::new(Listing::new(label, pages, &self.listed_names));
        let mut facts = inode.facts();
        // A change of ours does not end the epoch, but its name may be missing in the pages that were read before it.
        if !facts.state.is_undisturbed(first) {
            return;
        }
        let former = match &mut facts.kept {
            Kept::Directory(directory) => directory.listing.replace(listing),
            Kept::Nothing | Kept::Link(_) | Kept::File(_) => None,
        };
        drop(facts);
        drop(former);
    }
}

/// A page that is neither the last nor has a name.
fn is_without_progress(fetched: &Fetched) -> bool {
    fetched.page.names.is_empty() && !fetched.page.end
}
