//! Requesting the attributes of a directory's objects together because those of one have expired.
//!
//! Policy decides whether the others are expected to be wanted, too ([`curt_policy::fill::decide_revalidation`]). The reply's
//! attributes are dated by when its request was sent, like any others: an open that has to see what others closed before it began
//! accepts a reply only if its request was sent since. A GETATTR is sent for an object that the reply does not contain.

use std::sync::Arc;

use curt_policy::{
    Freshness, ObjectKind,
    fill::{Revalidation, RevalidationView, decide_revalidation},
    listing::ListingDecision,
};
use curt_rpc::client::CallError;
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use rustix::io::Errno;

use super::{
    asking::Underway,
    fetch::{Fetched, NotFetched, Requester},
    filling::bytes_of,
    growing::Departing,
    priming::Count,
    sequence::{Sequence, ServerPlace},
};
use crate::{
    client::{Asked, Client},
    errno,
    inode::Inode,
};

impl Client {
    /// The attributes of `inode` have expired. They are asked for with those of the others in its directory if that is expected to
    /// be worth while, or waited for if somebody does so; whether they came.
    ///
    /// # Errors
    /// EINTR; no answer on a soft mount.
    pub(crate) fn refresh_home(&self, asked: &Asked, inode: &Arc<Inode>) -> Result<bool, Errno> {
        let options = self.core.options();
        if !options.fills() || self.core.lacks_plus() || !self.is_due(inode) {
            return Ok(false);
        }
        let Some(home) = inode.home() else {
            return Ok(false);
        };
        self.note_use(inode);
        if let Some(flight) = self.fills.under_way(home.id()) {
            self.wait_for_fill(asked, &flight)?;
            return Ok(!self.is_due(inode));
        }
        let record = home.facts().kept.directory().fill;
        let view = RevalidationView {
            record,
            round_trip: self.core.wire.latency(),
        };
        let bytes = match decide_revalidation(&view, &options) {
            Revalidation::Directory { bytes } if self.may_list(asked, &home) => bytes,
            Revalidation::Directory { .. } | Revalidation::Object => {
                self.note_asked_alone(&home, inode);
                return Ok(false);
            }
        };
        match self.fills.join(home.id()) {
            Ok(flight) => self.wait_for_fill(asked, &flight)?,
            Err(_departure) => self.send_refresh(asked, &home, bytes)?,
        };
        let has_come = !self.is_due(inode);
        if !has_come {
            inode.left_home();
        }
        Ok(has_come)
    }

    /// Whether nobody is served the attributes of `inode` any more without asking: they have expired, or are older than
    /// `sloppycto` lets opens believe them.
    pub(super) fn is_due(&self, inode: &Inode) -> bool {
        let options = self.core.options();
        let now = self.core.now();
        let facts = inode.facts();
        let window = options.sloppy_window();
        let is_file = facts
            .state
            .facts()
            .is_some_and(|known| known.kind == ObjectKind::Regular);
        let is_old = is_file
            && !window.is_zero()
            && facts
                .state
                .sent_at()
                .is_some_and(|sent_at| now.since(sent_at) > window);
        // No operation begins later than now.
        is_old || facts.state.freshness(now, now, &options) == Freshness::Expired
    }

    fn note_asked_alone(&self, home: &Inode, inode: &Inode) {
        let mut facts = home.facts();
        let kept = facts.kept.directory();
        if kept.asked_alone.replace(inode.id()) != Some(inode.id()) {
            kept.fill.asked_alone();
        }
    }

    fn send_refresh(&self, asked: &Asked, home: &Arc<Inode>, bytes: u32) -> Result<(), Errno> {
        let requester = self.requester(asked, home);
        let sequence = Sequence::new(&self.listing_memory, ServerPlace::default());
        let bytes = bytes.min(self.reply_max());
        let Departing::Go(ahead, gap, size) = sequence.depart(|_, _| bytes) else {
            return Ok(());
        };
        let _underway = Underway {
            sequence: &sequence,
            ahead,
        };
        let _why = scope::because(Cause::FillAgain);
        self.count(ClientCounter::DirFillRevalidation);
        match self.fetch_patiently(&requester, asked, (gap, size), ListingDecision::Plus) {
            Ok(fetched) => self.keep_refresh(&requester, &sequence, &fetched),
            Err(
                NotFetched::Refused(..)
                | NotFetched::Stuck
                | NotFetched::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)),
            ) => {
                // The object's own request will say what is wrong, if anything is.
                home.facts().kept.directory().fill.refreshed(Some(0));
                self.count(ClientCounter::DirFillWasted);
            }
            Err(NotFetched::Failed(error)) => return Err(errno::of_call(error)),
        }
        Ok(())
    }

    fn keep_refresh(&self, requester: &Requester, sequence: &Arc<Sequence>, fetched: &Fetched) {
        let home = &requester.inode;
        let expired = self.prime(home, fetched, Count::Expired);
        if self.enter(requester, sequence, fetched).is_ok() {
            self.note_completeness(home, sequence);
        }
        let mut facts = home.facts();
        let record = &mut facts.kept.directory().fill;
        record.refreshed(Some(expired));
        let count = u32::try_from(fetched.page.names.len()).unwrap_or(u32::MAX);
        record.refilled((count, bytes_of(fetched)), fetched.page.end);
        drop(facts);
        probe!(NfsDirRefresh {
            dir: home.fileid_for(Event::NfsDirRefresh),
            entries: count,
            eof: fetched.page.end
        });
    }
}
