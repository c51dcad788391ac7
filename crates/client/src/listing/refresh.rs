//! Requesting the attributes of a directory's objects together because those of one have expired.
//!
//! Policy decides whether the others are expected to be wanted, too
//! ([`curt_policy::fill::decide_revalidation`]). The reply's attributes are dated by when its
//! request was sent, like any others: an open that has to see what others closed before it began
//! accepts a reply only if its request was sent since. A GETATTR is sent for an object that the
//! reply does not contain.

use std::sync::Arc;

use curt_policy::{
    Freshness,
    fill::{RevalidationDecision, RevalidationView, decide_revalidation},
    listing::ListingDecision,
};
use curt_rpc::client::CallError;
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};
use curt_types::FileKind;
use rustix::io::Errno;

use super::{
    directory_listing::{DirectoryListing, ReaddirCookie},
    extend::ReaddirStart,
    fetch::{ReaddirError, ReaddirReply, ReaddirRequester},
    fill::bytes_of,
    priming::PrimeCounting,
    request::ReaddirInFlightGuard,
};
use crate::{
    client::{Client, OpContext},
    errno,
    inode::Inode,
};

impl Client {
    /// The attributes of `inode` have expired. They are asked for with those of the others in its
    /// directory if that is expected to be worth while, or waited for if somebody does so; whether
    /// they came.
    ///
    /// # Errors
    /// EINTR; no answer on a soft mount.
    pub(crate) fn refresh_directory_of(&self, asked: &OpContext, inode: &Arc<Inode>) -> Result<bool, Errno> {
        let options = self.core.options();
        if !options.fills() || self.core.lacks_plus() || !self.is_due(inode) {
            return Ok(false);
        }
        let Some(home) = inode.listed_in() else {
            return Ok(false);
        };
        self.note_use(inode);
        if let Some(flight) = self.fills_in_flight.under_way(home.id()) {
            self.wait_for_fill(asked, &flight)?;
            return Ok(!self.is_due(inode));
        }
        let record = home.facts().by_type.directory().fill;
        let view = RevalidationView {
            record,
            round_trip: self.core.rpc.latency(),
        };
        let bytes = match decide_revalidation(&view, &options) {
            RevalidationDecision::Directory { bytes } if self.may_list(asked, &home) => bytes,
            RevalidationDecision::Directory { .. } | RevalidationDecision::Object => {
                self.note_asked_alone(&home, inode);
                return Ok(false);
            }
        };
        match self.fills_in_flight.join(home.id()) {
            Ok(flight) => self.wait_for_fill(asked, &flight)?,
            Err(_departure) => self.send_refresh(asked, &home, bytes)?,
        };
        let has_come = !self.is_due(inode);
        if !has_come {
            inode.clear_listed_in();
        }
        Ok(has_come)
    }

    /// Whether nobody is served the attributes of `inode` any more without asking: they have
    /// expired, or are older than `sloppycto` lets opens believe them.
    pub(super) fn is_due(&self, inode: &Inode) -> bool {
        let options = self.core.options();
        let now = self.core.now();
        let facts = inode.facts();
        let window = options.sloppy_window();
        let is_file = facts
            .state
            .facts()
            .is_some_and(|known| known.kind == FileKind::Regular);
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
        let kept = facts.by_type.directory();
        if kept.last_getattr_alone.replace(inode.id()) != Some(inode.id()) {
            kept.fill.asked_alone();
        }
    }

    fn send_refresh(&self, asked: &OpContext, home: &Arc<Inode>, bytes: u32) -> Result<(), Errno> {
        let requester = self.requester(asked, home);
        let sequence = DirectoryListing::new(&self.listing_memory, ReaddirCookie::default());
        let bytes = bytes.min(self.reply_max());
        let ReaddirStart::Send(ahead, gap, size) = sequence.start_request(|_, _| bytes) else {
            return Ok(());
        };
        let _underway = ReaddirInFlightGuard {
            listing: &sequence,
            request: ahead,
        };
        let _why = scope::with_cause(Cause::FillAgain);
        self.count(ClientCounter::DirFillRevalidation);
        match self.fetch_retrying_size(&requester, asked, gap, size, ListingDecision::Plus) {
            Ok(fetched) => self.keep_refresh(&requester, &sequence, &fetched),
            Err(
                ReaddirError::Refused(..)
                | ReaddirError::Stuck
                | ReaddirError::Failed(CallError::ProcedureUnavailable | CallError::Malformed(_)),
            ) => {
                // The object's own request will say what is wrong, if anything is.
                home.facts().by_type.directory().fill.refreshed(Some(0));
                self.count(ClientCounter::DirFillWasted);
            }
            Err(ReaddirError::Failed(error)) => return Err(errno::of_call(error)),
        }
        Ok(())
    }

    fn keep_refresh(
        &self,
        requester: &ReaddirRequester,
        sequence: &Arc<DirectoryListing>,
        fetched: &ReaddirReply,
    ) {
        let home = &requester.inode;
        let expired = self.prime(home, fetched, PrimeCounting::Expired);
        if self.enter(requester, sequence, fetched).is_ok() {
            self.note_completeness(home, sequence);
        }
        let mut facts = home.facts();
        let record = &mut facts.by_type.directory().fill;
        record.refreshed(Some(expired));
        let count = u32::try_from(fetched.page.names.len()).unwrap_or(u32::MAX);
        record.refilled(count, bytes_of(fetched), fetched.page.end);
        drop(facts);
        probe!(NfsDirRefresh {
            dir: home.fileid_if_enabled(Event::NfsDirRefresh),
            entries: count,
            eof: fetched.page.end
        });
    }
}
