//! The opens that are lost, reclaimed and opened again.

use curt_proto::nfs4::Stateid;

use super::{
    OpenTable, Opens,
    open_state::{Open, OpenToRestore, OpenValidity},
};
use crate::protocol::{
    ShareAccess,
    v4::{open_key::OpenKey, session::SessionGeneration},
};

impl OpenTable {
    /// The server does not know this stateid of an open any more. Returns whether that is news.
    pub(in crate::protocol::v4) fn stateid_refused(&self, key: &OpenKey, stateid: Stateid) -> bool {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key) else { return false };
        let is_news = open.stateid.other == stateid.other && open.validity == OpenValidity::Valid;
        if is_news {
            (open.validity, open.restored) = (OpenValidity::Reopen, 0);
        }
        is_news
    }

    /// The server refuses a WRITE with this stateid, as if the file were open for reading alone.
    /// Returns whether it is to be opened again, because it has users who write.
    pub(in crate::protocol::v4) fn access_refused(&self, key: &OpenKey, stateid: Stateid) -> bool {
        let is_written = self.0.lock().opens.get(key).is_some_and(|open| {
            open.used().any(|access| access != ShareAccess::Read && open.has_opened(access))
        });
        is_written && self.stateid_refused(key, stateid)
    }

    /// The file of an open cannot be opened again.
    pub(in crate::protocol::v4) fn lose(&self, key: &OpenKey) {
        if let Some(open) = self.0.lock().opens.get_mut(key)
            && open.validity == OpenValidity::Reopen
        {
            open.validity = OpenValidity::Lost;
            tracing::warn!(owner = key.owner, "an open file was lost at the server: its users get EIO");
        }
    }

    /// The server has no state of this client: opens without users are lost, and those that were
    /// valid have to be reclaimed in the session `next` or a later one.
    pub(in crate::protocol::v4) fn forgotten_by_server(&self, next: SessionGeneration) {
        let opens = &mut *self.0.lock();
        opens.valid_since = next;
        opens.retain(Open::is_used);
        let of_server =
            |(_, open): &(&OpenKey, &mut Open)| open.validity != OpenValidity::Lost && open.opened != 0;
        let mut to_reclaim = Vec::new();
        for (key, open) in opens.opens.iter_mut().filter(of_server) {
            (open.restored, open.may_be_wider, open.delegation) = (0, false, None);
            // Only what was held when the server was restarted can be reclaimed (section 8.4.2.1).
            if open.validity != OpenValidity::Reopen {
                open.validity = OpenValidity::Reclaim;
                to_reclaim.push(key.clone());
            }
        }
        to_reclaim.sort_unstable_by_key(|key| key.owner);
        opens.to_reclaim = to_reclaim.into();
        for key in opens.idle.drain(..) {
            if let Some(open) = opens.opens.get_mut(&key) {
                open.is_queued = false;
            }
        }
        opens.to_downgrade.clear();
        opens.waiting.clear();
        opens.paused_until = None;
        opens.note_executed();
        opens.closed.clear();
    }

    /// Opens of one owner that have to be reclaimed, with no more OPENs than `most`, or one open.
    pub(in crate::protocol::v4) fn next_to_reclaim(&self, most: usize) -> Vec<OpenToRestore> {
        let Opens { opens, to_reclaim, .. } = &mut *self.0.lock();
        let find = |key: &OpenKey| opens.get(key).filter(|open| open.validity == OpenValidity::Reclaim);
        while to_reclaim.pop_front_if(|key| find(key).is_none()).is_some() {}
        let mut batch: Vec<OpenToRestore> = Vec::new();
        let mut count = 0;
        for key in to_reclaim.iter() {
            let Some(open) = find(key) else { continue };
            let open = open.to_restore(key);
            count += open.accesses.len();
            if batch.first().is_some_and(|first| first.key.owner != key.owner || count > most) {
                break;
            }
            batch.push(open);
        }
        batch
    }

    /// The open of a key, to be opened again; `None` if it is gone, or another thread has done it.
    pub(in crate::protocol::v4) fn to_reopen(&self, key: &OpenKey) -> Option<OpenToRestore> {
        let opens = self.0.lock();
        let open = opens.opens.get(key).filter(|open| open.validity == OpenValidity::Reopen)?;
        Some(open.to_restore(key))
    }

    /// Records that an open was not reclaimed: it is opened again when it is used.
    pub(in crate::protocol::v4) fn not_reclaimed(&self, key: &OpenKey) {
        if let Some(open) = self.0.lock().opens.get_mut(key)
            && open.validity == OpenValidity::Reclaim
        {
            open.validity = OpenValidity::Reopen;
        }
    }

    /// Nothing can be reclaimed.
    pub(in crate::protocol::v4) fn none_reclaimed(&self) {
        let opens = &mut *self.0.lock();
        for open in opens.opens.values_mut().filter(|open| open.validity == OpenValidity::Reclaim) {
            open.validity = OpenValidity::Reopen;
        }
    }

    /// The server does not know an open, and no OPEN for a user of it was executed before: it is
    /// forgotten, or delayed if it is used.
    pub(in crate::protocol::v4) fn forget(&self, key: &OpenKey) {
        let opens = &mut *self.0.lock();
        let Some(open) = opens.opens.get_mut(key).filter(|open| open.validity != OpenValidity::Valid) else {
            return;
        };
        if open.is_used() {
            (open.validity, open.opened, open.stateid) = (OpenValidity::Valid, 0, Stateid::ANONYMOUS);
        } else {
            opens.remove(key);
        }
    }
}
