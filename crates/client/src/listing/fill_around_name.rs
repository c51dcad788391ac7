//! Requesting the neighbours of a wanted name, in the middle of a large directory that was listed
//! without attributes.
//!
//! `find`, `rm -r` and similar programs read all names and then go through them in another order,
//! mostly of inode numbers. Policy decides after how many look-ups a name's neighbours are
//! requested with it ([`curt_policy::fill::decide_fill_around_name`]).

use std::sync::Arc;

use curt_policy::{
    fill::{FillDecision, FillView, MountFillRecord, PART_NAMES, decide_part},
    listing::ListingDecision,
};
use curt_trace::{Cause, ClientCounter, events::Event, probe, scope};

use super::{DirectoryListing, priming::PrimeCounting};
use crate::{
    client::{Client, OpContext},
    inode::Inode,
};

impl Client {
    /// `name`, the `ordinal`-th of a listing of all names, is to be looked up. If it is worth while
    /// it is asked for with the names beside it; whether it came.
    pub(super) fn fill_around_name(
        &self,
        asked: &OpContext,
        inode: &Arc<Inode>,
        name: &[u8],
        sequence: &Arc<DirectoryListing>,
        ordinal: u32,
    ) -> bool {
        if !sequence.is_large() {
            return false;
        }
        let FillDecision::Fill { bytes } = self.decide_fill_around_name(inode) else {
            return false;
        };
        // Aligned, so that what is asked for because of two names overlaps in none.
        let Some(gap) = sequence.cookie_before(ordinal - ordinal % PART_NAMES) else {
            return false;
        };
        if !self.may_list(asked, inode) {
            return false;
        }
        let _why = scope::with_cause(Cause::Fill);
        self.count(ClientCounter::DirFill);
        let requester = self.requester(asked, inode);
        let size = bytes.min(self.reply_max());
        let fetched = requester.fetch(gap, size, ListingDecision::Plus, &asked.interrupt);
        let (mut count, mut eof) = (0, false);
        match &fetched {
            Ok(fetched) => {
                self.prime(inode, fetched, PrimeCounting::New);
                count = u32::try_from(fetched.page.names.len()).unwrap_or(u32::MAX);
                eof = fetched.page.end;
            }
            Err(_) => inode.facts().by_type.directory().forget_cookies(sequence),
        }
        let label = fetched.ok().and_then(|fetched| fetched.label());
        let kept = self
            .cached_dentry(inode, name)
            .filter(|kept| Some(kept.label) == label);
        let child = kept.and_then(|kept| kept.child);
        let holds_it = child.is_some();
        inode
            .facts()
            .by_type
            .directory()
            .fill
            .filled_part(count, holds_it);
        self.core.learn_fill(|mount| mount.filled(count, holds_it));
        probe!(NfsDirFill {
            dir: inode.fileid_if_enabled(Event::NfsDirFill),
            name,
            entries: count,
            eof
        });
        self.core
            .counters
            .add(ClientCounter::DirFillNames, u64::from(count));
        match child {
            // It was asked for by this very request: that it is used spares none.
            Some(child) => _ = self.note_use(&child),
            None => self.count(ClientCounter::DirFillWasted),
        }
        holds_it
    }

    fn decide_fill_around_name(&self, inode: &Inode) -> FillDecision {
        let record = {
            let mut facts = inode.facts();
            let record = &mut facts.by_type.directory().fill;
            record.missed();
            *record
        };
        self.core.learn_fill(MountFillRecord::missed);
        let view = FillView {
            record,
            parent: None,
            mount: self.core.fills(),
            size: None,
            round_trip: self.core.rpc.latency(),
        };
        decide_part(&view, &self.core.options())
    }
}
