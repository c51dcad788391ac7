//! The client's counters: what was asked, what was answered from memory, and why.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::counters::{Counters, Snapshot, counter_table};
use crate::procedures::{ProcedureCalls, Procedures};
use crate::watch::Watchers;

counter_table! {
    /// One row for each decision of the client that is worth telling a user.
    ClientCounter {
        OpenTotal "open_total" Events "A file or directory was opened.";
        OpenCtoGetattr "open_cto_getattr" Events "Close-to-open asked for attributes at an open.";
        OpenCtoSloppy "open_cto_sloppy" Events "sloppycto spared the request for attributes at an open.";
        OpenNocto "open_nocto" Events "nocto spared the request for attributes at an open.";
        OpenDataChanged "open_data_changed" Events "An open found the file's data changed and dropped its pages.";
        AttrHit "attr_hit" Events "Attributes were answered from memory.";
        AttrExpired "attr_expired" Events "Known attributes had outlived their time and were asked for again.";
        AttrInvalidated "attr_inval" Events "Attributes were unknown or marked doubtful and were asked for.";
        AttrStaleReply "attr_stale_reply" Events "A reply's attributes were older than known ones and were not adopted.";
        AttrShared "attr_shared" Events "A request for attributes was spared by waiting for another's.";
        AccessHitPositive "access_hit_pos" Events "A permission was granted from the access cache.";
        AccessHitNegative "access_hit_neg" Events "A denial was answered from the access cache (at most for a second after the server said so).";
        AccessWire "access_wire" Events "The server was asked for permissions.";
        AccessLocalAllow "access_local_allow" Events "noaccesscheck granted a permission by mode bits.";
        AccessLocalDeny "access_local_deny" Events "noaccesscheck's mode bits denied a permission (the server is then asked).";
        AccessDenyConfirmed "access_deny_confirmed" Events "The server confirmed a denial that was cached or came from mode bits.";
        AccessDenyOverturned "access_deny_overturned" Events "The server overturned a denial that was cached or came from mode bits.";
        AccessDataCheck "access_data_check" Events "The server was asked once before a credential was given data that another one had fetched.";
        AccessEvict "access_evict" Events "An entry of the access cache was dropped for lack of room.";
        PosHit "pos_hit" Events "A name was found in the name cache.";
        PosMiss "pos_miss" Events "A name was not in the name cache.";
        PosStale "pos_stale" Events "A cached name could not be used any more.";
        DotHit "dot_hit" Events "The name . was answered from memory.";
        DotdotHit "dotdot_hit" Events "The name .. was answered from memory.";
        NegHit "neg_hit" Events "A name was known to be missing.";
        NegMiss "neg_miss" Events "The server said that a name is missing.";
        NegStore "neg_store" Events "A missing name was remembered.";
        NegRejectRace "neg_reject_race" Events "A missing name was not remembered: the directory was changing meanwhile.";
        NegRacyRequery "neg_racy_requery" Events "A missing name was asked for again since its directory had just changed.";
        NegPurgeDirchange "neg_purge_dirchange" Events "All missing names of a directory were forgotten since it changed.";
        NegExpire "neg_expire" Events "A missing name was forgotten for its age (negnametimeo).";
        NegEvict "neg_evict" Events "A missing name was forgotten for lack of room.";
        NegFalse "neg_false" Events "A name appeared though its directory's change stamp had not moved.";
        PosEvict "pos_evict" Events "A known name was forgotten for lack of room.";
        DirGetattrForName "dir_getattr_for_name" Events "A directory's attributes were asked for to judge a cached name.";
        NamesPrimed "names_primed" Events "READDIRPLUS taught a name with its attributes.";
        DirFill "dirfill_fills" Requests "The names of a directory were asked for together since one was wanted.";
        DirFillNames "dirfill_names" Events "A name came so.";
        DirFillUsed "dirfill_used" Events "A name was wanted that had come with another.";
        DirFillMissing "dirfill_missing" Events "A name was known to be missing since all names of its directory were known.";
        DirFillComplete "dirfill_complete" Events "All names of a directory came to be known while it did not change.";
        DirFillWasted "dirfill_wasted" Requests "A request for the names of a directory brought nothing of what it was sent for.";
        DirFillRevalidation "dirfill_revalidations" Requests "The attributes of a directory's objects were asked for together since one's had expired.";
        ListingCached "listing_cached" Events "A directory was listed from memory.";
        ListingPlus "listing_plus" Events "A page of a listing was asked for with attributes.";
        ListingPlain "listing_plain" Events "A page of a listing was asked for without attributes.";
        ListingRestart "readdir_restart_at_zero" Events "A listing had to start again since the server refused its cookie.";
        ListingBadCookie "readdir_badcookie" Events "The server refused a cookie.";
        ListingSuppressed "readdir_dup_suppressed" Events "A name was not told twice after a listing had started again.";
        ListingTorn "readdir_torn_pass" Events "A directory changed while it was listed.";
        ListingAheadUsed "readdir_prefetch_used" Events "A page of a listing was asked for before it was wanted, and wanted.";
        ListingAheadWasted "readdir_prefetch_wasted" Events "A page of a listing was asked for before it was wanted, for nothing.";
        ListingEvicted "readdir_evict" Events "A page of a listing was forgotten for lack of room.";
        SoftRevalidation "softreval_served" Events "The server was silent, and softreval answered from what was remembered.";
        StaleRetry "stale_retry" Events "A stale handle was looked up again by name.";
        SillyRename "sillyrename" Events "An open file was renamed instead of removed.";
        SillyRemove "sillyrename_remove" Events "A renamed open file was removed at its last close.";
        DataInvalidated "data_invalidated" Events "A file's cached data were dropped since it changed on the server.";
        ReadHitBytes "read_hit_bytes" Bytes "Bytes read from memory.";
        ReadBytes "read_bytes" Bytes "Bytes that the server sent in READ.";
        WriteBytes "write_bytes" Bytes "Bytes that were sent in WRITE.";
        WriteResent "write_resent" Bytes "Bytes that were sent again since the server had restarted.";
        ReadShort "read_short" Events "READ brought fewer bytes than were asked for, though the file went on.";
        WriteShort "write_short" Events "WRITE took fewer bytes than it was given.";
        WriteExtended "write_extended" Events "WRITE made a file longer on the server.";
        KernelReadBytes "kernel_read_bytes" Bytes "Bytes that the kernel was given to read; further reads it answers from its page cache by itself.";
        KernelReadDirectBytes "kernel_read_direct_bytes" Bytes "The part of them that went past its page cache (O_DIRECT).";
        KernelWriteBytes "kernel_write_bytes" Bytes "Bytes that the kernel gave to write.";
        KernelWriteDirectBytes "kernel_write_direct_bytes" Bytes "The part of them that went past its page cache (O_DIRECT).";
        KernelWriteBack "kernel_write_back" Events "The kernel gave back pages that were changed through a mapping.";
        SetSize "set_size" Events "A program set the size of a file (truncate).";
        WriteThrottled "write_throttled" Events "A writer waited since too many bytes were dirty.";
        ReadAhead "read_ahead" Requests "A READ was sent before anybody asked for its data.";
        RpcRetransmit "rpc_retransmit" Requests "A request was sent again.";
        RpcReconnect "rpc_reconnect" Events "A connection to the server was made again.";
        RpcTimeout "rpc_timeout" Events "A request was given up (soft, softerr).";
        RpcInterrupted "rpc_interrupted" Events "A waiting request was ended by a signal.";
        RpcMalformed "rpc_malformed" Events "A reply could not be understood.";
    }
}

/// All numbers of one client.
#[derive(Debug, Default)]
pub struct ClientCounters {
    /// Decisions.
    pub events: Counters<ClientCounter>,
    /// Requests sent, per procedure.
    pub procedures: Procedures,
    /// Who wants to hear of each decision.
    pub watchers: Arc<Watchers>,
}

impl ClientCounters {
    /// Counts one `counter`.
    pub fn count(&self, counter: ClientCounter) {
        self.events.count(counter);
        self.watchers.counted(counter);
    }

    /// Counts `amount` of the unit of `counter`.
    pub fn add(&self, counter: ClientCounter, amount: u64) {
        self.events.add(counter, amount);
        if amount > 0 {
            self.watchers.counted(counter);
        }
    }

    /// A copy of all present values.
    #[must_use]
    pub fn snapshot(&self) -> ClientSnapshot {
        ClientSnapshot {
            requests: self.procedures.snapshot(),
            events: self.events.snapshot(),
        }
    }
}

/// All numbers of one client at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientSnapshot {
    /// Requests sent, per procedure.
    pub requests: ProcedureCalls,
    /// Decisions.
    pub events: Snapshot<ClientCounter>,
}

impl ClientSnapshot {
    /// What happened between `earlier` and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            requests: self.requests.since(&earlier.requests),
            events: self.events.since(&earlier.events),
        }
    }
}
