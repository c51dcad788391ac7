//! Telling names to a listener: from what is kept, from the pass, from the server.

use std::sync::Arc;

use curt_policy::{
    NameDecision, NameIntent, NameView,
    listing::{GoOn, decide_going_on, names_between_decisions, reads_ahead},
    names::{Entry as Known, Wanted, decide_lookup},
};
use curt_trace::{Cause, ClientCounter, scope};
use curt_trace::{events::Event, probe};
use rustix::io::Errno;

use super::{
    OpenDirectory,
    asking::ReadOn,
    chunk::{Chunk, ListedEntry},
    circle::Circle,
    pass::Pass,
    sequence::{Position, Sequence, ServerPlace, Step},
    told::Told,
};
use crate::{
    api::{DirEntry, Found, Listener},
    client::{Asked, Client},
    identity::Caller,
    inode::Kept,
};

/// A reader, where it is, and who is told.
struct Reader<'a> {
    asked: &'a Asked,
    directory: &'a OpenDirectory,
    plus: bool,
    listener: &'a mut dyn FnMut(&DirEntry<'_>) -> Listener,
    sequence: Arc<Sequence>,
    position: Position,
    /// Of the last name that was told.
    cookie: u64,
    circle: Circle,
    /// The next name was told before, although the server did not begin again.
    is_led_back: bool,
    told_before: Option<Arc<Told>>,
    /// Names told by this call, and how many it may tell.
    count: usize,
    most: usize,
}

impl Client {
    /// Tells the names that follow `cookie` (0: from the beginning) until the listener is full, the directory ends, or the
    /// names that are at hand do, at least one having been told. With `plus`, what a look-up would give comes with each name
    /// where it is known. `.` and `..` are told where the server tells them. Cookies are the server's: any 64 bits but zeros.
    ///
    /// Names that are there all the time are told once each; those that come or go meanwhile may or may not be told.
    ///
    /// # Errors
    /// Those of READDIR; EIO if the server refuses its own cookies twice, or once when not all that was told is remembered, never
    /// gets on, or goes round in circles.
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
        } else {
            self.go_on(&asked, directory, cookie)?;
        }
        let mut reader = Reader {
            asked: &asked,
            directory,
            plus,
            listener,
            sequence: Arc::clone(&directory.pass.lock().sequence.sequence),
            position: Position::default(),
            cookie,
            circle: Circle::default(),
            is_led_back: false,
            told_before: None,
            count: 0,
            most: names_between_decisions(&self.core.options()),
        };
        self.seek(&mut reader);
        self.tell_all(&mut reader)
    }

    /// Somebody uses names that `directory` lists: those that follow are asked for with attributes.
    pub fn names_are_used(&self, directory: &OpenDirectory) {
        probe!(let subject = directory.inode.subject(); NfsReaddirForceReaddirplus {
            dir: subject.fileid,
            dev: subject.dev,
            fhandle: subject.fhandle,
            object_type: subject.object_type,
            version: subject.version,
            size: subject.size,
            cache_validity: subject.cache_validity,
            nfsi_flags: subject.nfsi_flags
        });
        self.note_stat(&directory.inode);
    }

    /// Where the name after the reader's cookie is; where nobody knows, the server is asked from there.
    fn seek(&self, reader: &mut Reader<'_>) {
        let mut pass = reader.directory.pass.lock();
        reader.circle = pass.circle(reader.cookie);
        if pass.find(reader.cookie).is_none() {
            pass.jump(&self.listing_memory, reader.cookie);
        }
        reader.position = pass.find(reader.cookie).unwrap_or_default();
        reader.sequence = Arc::clone(&pass.sequence.sequence);
        reader.told_before = pass.told.clone();
    }

    fn tell_all(&self, reader: &mut Reader<'_>) -> Result<(), Errno> {
        loop {
            match reader.sequence.step(&mut reader.position) {
                Step::Names(chunk) => {
                    let is_full = self.tell_chunk(reader, &chunk);
                    let told = (reader.cookie, reader.circle);
                    let mut pass = reader.directory.pass.lock();
                    pass.is_at(&reader.sequence, told, reader.position, Some(Arc::clone(&chunk)));
                    drop(pass);
                    if reader.is_led_back && reader.count == 0 {
                        tracing::warn!(
                            directory = ?reader.directory.id(),
                            "the server lists a directory in circles: a name that was told comes again"
                        );
                        return Err(Errno::IO);
                    }
                    self.read_ahead(reader, &chunk);
                    if is_full {
                        return Ok(());
                    }
                }
                Step::End => return Ok(()),
                // Who has names does not wait for more; and whoever looks at each does so before their attributes are old.
                Step::Evicted | Step::Unread { is_near: false } if reader.count > 0 => return Ok(()),
                Step::Unread { .. } if reader.count > 0 && reader.plus => return Ok(()),
                Step::Evicted => {
                    let mut pass = reader.directory.pass.lock();
                    pass.go_on_alone(&self.listing_memory, reader.cookie, reader.position);
                    drop(pass);
                    self.seek(reader);
                }
                Step::Unread { .. } => {
                    match self.read_on(reader.asked, reader.directory, &reader.sequence)? {
                        ReadOn::Look => {}
                        ReadOn::Refused => {
                            self.start_again(reader)?;
                            self.seek(reader);
                        }
                    }
                }
            }
        }
    }

    /// Tells the names of a chunk from the reader's position on; true if the listener is full.
    fn tell_chunk(&self, reader: &mut Reader<'_>, chunk: &Chunk) -> bool {
        let mut left_out = 0;
        let mut is_full = false;
        while let Some(entry) = chunk.entry(reader.position.name) {
            let is_told = reader
                .told_before
                .as_ref()
                .is_some_and(|told| told.contains(entry.name));
            left_out += u64::from(is_told);
            if !is_told && !entry.is_gone {
                reader.is_led_back = reader.circle.is_closed_by(entry.cookie);
                if reader.is_led_back {
                    is_full = true;
                    break;
                }
                if reader.count == reader.most || !self.tell(reader, &entry) {
                    is_full = true;
                    break;
                }
                reader.cookie = entry.cookie;
                reader.circle.told(entry.cookie);
                reader.count += 1;
            }
            reader.position.name += 1;
        }
        self.core.counters.add(ClientCounter::ListingSuppressed, left_out);
        if left_out > 0 {
            probe!(NfsReaddirDupSuppressed {
                dir: reader.sequence.dir(),
                cookie: reader.cookie,
                entries: left_out
            });
        }
        is_full
    }

    /// Has the names behind a chunk asked for, if the reader will want them soon.
    fn read_ahead(&self, reader: &Reader<'_>, chunk: &Chunk) {
        let options = self.core.options();
        let inode = &reader.directory.inode;
        let is_undisturbed = {
            let facts = inode.facts();
            let ticket = reader.sequence.last_ticket();
            ticket.is_some_and(|ticket| facts.state.is_undisturbed(ticket))
        };
        if reads_ahead(reader.position.name, chunk.len(), is_undisturbed, &options)
            && reader.sequence.is_last_place(reader.position.place)
        {
            self.ask_ahead(reader.asked, inode, &reader.sequence);
        }
    }

    /// The server does not know its own cookie any more: the pass starts again, once, and leaves out what was told.
    fn start_again(&self, reader: &Reader<'_>) -> Result<(), Errno> {
        let mut pass = reader.directory.pass.lock();
        let began = pass.start_again(&self.listing_memory, reader.cookie, reader.position);
        drop(pass);
        if !began {
            tracing::warn!(
                directory = ?reader.directory.id(),
                "the server refused a cookie of its own again, or more names were told before than listing_max= has room to remember"
            );
            return Err(Errno::IO);
        }
        self.count(ClientCounter::ListingRestart);
        tell_restart(&reader.directory.inode, reader.cookie);
        Ok(())
    }

    /// A pass begins: with the kept listing if that may be believed.
    fn begin_pass(&self, asked: &Asked, directory: &OpenDirectory) -> Result<(), Errno> {
        let kept = self.believed_listing(asked, directory)?;
        probe!(NfsReaddirPass {
            dir: directory.inode.fileid_for(Event::NfsReaddirPass),
            hit: kept.is_some()
        });
        let sequence = kept.unwrap_or_else(|| Sequence::new(&self.listing_memory, ServerPlace::default()));
        let former = std::mem::replace(&mut *directory.pass.lock(), Pass::new(sequence));
        drop(former);
        Ok(())
    }

    fn believed_listing(
        &self,
        asked: &Asked,
        directory: &OpenDirectory,
    ) -> Result<Option<Arc<Sequence>>, Errno> {
        let inode = &directory.inode;
        for _ in asked.rounds() {
            let options = self.core.options();
            let clock = self.core.server_clock(inode.fsid().unwrap_or(0));
            let (decision, listing) = {
                let wanted = Wanted {
                    began: asked.began,
                    now: self.core.now(),
                };
                let mut facts = inode.facts();
                let Kept::Directory(kept) = &mut facts.kept else {
                    return Ok(None);
                };
                let listing = kept.whole_listing();
                let Some((listing, label)) =
                    listing.and_then(|listing| Some((Arc::clone(&listing), listing.label()?)))
                else {
                    return Ok(None);
                };
                let known = (Known::Positive, label);
                let mut view = NameView::of(known, &facts.state, &clock, wanted, &options);
                view.directory = facts.freshness(asked, wanted.now, &options);
                (decide_lookup(&view, NameIntent::Use, &options), listing)
            };
            match decision {
                NameDecision::ServePositive => {
                    self.count(ClientCounter::ListingCached);
                    return Ok(Some(listing));
                }
                NameDecision::RevalidateDirectory => {
                    self.count(ClientCounter::DirGetattrForName);
                    let _why = scope::because(Cause::ListingCheck);
                    self.revalidate(asked, inode)?;
                }
                NameDecision::ServeNegative | NameDecision::Lookup(_) | NameDecision::LeaveToServer => break,
            }
        }
        Ok(None)
    }

    /// With `readdir=restart`, a directory that changed is read again from its beginning up to `cookie`.
    fn go_on(&self, asked: &Asked, directory: &OpenDirectory, cookie: u64) -> Result<(), Errno> {
        let inode = &directory.inode;
        for _ in asked.rounds() {
            let options = self.core.options();
            let began = directory.pass.lock().sequence.sequence.began_in();
            let decision = {
                let facts = inode.facts();
                let is_same = began.is_none_or(|epoch| facts.contents() == Some(epoch));
                decide_going_on(
                    facts.freshness(asked, self.core.now(), &options),
                    is_same,
                    &options,
                )
            };
            match decision {
                GoOn::Here => return Ok(()),
                GoOn::Revalidate => {
                    let _why = scope::because(Cause::ListingCheck);
                    self.revalidate(asked, inode)?;
                }
                GoOn::FromTheStart => {
                    self.count(ClientCounter::ListingRestart);
                    tell_restart(inode, cookie);
                    return self.walk_again(asked, directory, cookie);
                }
            }
        }
        Ok(())
    }

    fn walk_again(&self, asked: &Asked, directory: &OpenDirectory, cookie: u64) -> Result<(), Errno> {
        let sequence = Sequence::new(&self.listing_memory, ServerPlace::default());
        while sequence.find(cookie).is_none() && !sequence.is_complete() {
            if let ReadOn::Refused = self.read_on(asked, directory, &sequence)? {
                return Err(Errno::IO);
            }
        }
        let former = std::mem::replace(&mut *directory.pass.lock(), Pass::new(sequence));
        drop(former);
        Ok(())
    }

    /// Tells one name; false if the listener is full.
    fn tell(&self, reader: &mut Reader<'_>, entry: &ListedEntry<'_>) -> bool {
        let found = if reader.plus {
            self.found_listed(reader.directory, entry)
        } else {
            None
        };
        let told = DirEntry {
            name: entry.name,
            fileid: entry.fileid,
            kind: entry.kind,
            cookie: entry.cookie,
            found,
        };
        match ((reader.listener)(&told), found) {
            (Listener::Took, _) => true,
            (Listener::Full, Some(found)) => {
                self.forget(found.id, 1);
                false
            }
            (Listener::Full, None) => false,
        }
    }

    /// What a look-up of a listed name would give, if it would give it without a request.
    fn found_listed(&self, directory: &OpenDirectory, entry: &ListedEntry<'_>) -> Option<Found> {
        if matches!(entry.name, b"." | b"..") {
            return None;
        }
        let inode = &directory.inode;
        let kept = self.names.find(inode.id(), entry.name)?;
        let child = kept.child?;
        // One after the other: the server may list a directory in itself.
        let contents = inode.facts().contents();
        if contents != Some(kept.label.epoch) {
            return None;
        }
        if child.is_stale() {
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

/// Tells that a pass begins again.
fn tell_restart(inode: &crate::inode::Inode, cookie: u64) {
    probe!(NfsReaddirRestart {
        dir: inode.fileid_for(Event::NfsReaddirRestart),
        cookie
    });
}
