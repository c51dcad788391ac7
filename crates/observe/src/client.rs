//! The client's counters: requests sent, requests saved, and why.

use std::sync::Arc;

use crate::calls::CallCounters;
use crate::counters::{CallSnapshot, Counters, counter_table};
use crate::watch::Watchers;

counter_table! {
    /// A decision of the client that is worth reporting to a user.
    ClientCounter {
        OpenTotal "open_total" Events "A file or directory was opened.";
        OpenCtoGetattr "open_cto_getattr" Events "Close-to-open asked for attributes at an open.";
        OpenCtoSloppy "open_cto_sloppy" Events "sloppycto saved the request for attributes at an open.";
        OpenNocto "open_nocto" Events "nocto saved the request for attributes at an open.";
        OpenDelayed "open_delayed" Events "An open for reading was granted without OPEN.";
        OpenRead "open_read" Events "A file was read together with its open.";
        OpenReadUsed "open_read_used" Events "What was read together with an open was used.";
        LookupRead "lookup_read" Events "A file was read together with the look-up of its name.";
        LookupReadUsed "lookup_read_used" Events "What was read together with a look-up was used.";
        OpenDelegated "open_delegated" Events "An open was granted by a delegation, without a request.";
        LookupOpen "lookup_open" Events "A file was opened together with the look-up of its name, to get a delegation.";
        SiblingOpen "sibling_open" Events "A file was opened together with one that is listed beside it, to get a delegation.";
        SiblingOpenUsed "sibling_open_used" Events "A file that was opened together with another was opened by a program.";
        OpenList "open_list" Events "A directory was listed together with its open.";
        OpenListUsed "open_list_used" Events "A directory that was listed together with its open was read by a program.";
        LookupOpenUsed "lookup_open_used" Events "A file that was opened together with its look-up was opened by a program.";
        DelegationGranted "delegation_granted" Events "The server granted a read delegation.";
        DelegationRecalled "delegation_recalled" Events "The server recalled a delegation.";
        DelegationReturned "delegation_returned" Events "A delegation was returned unasked: the file is changed here, or too many were held.";
        DelegationLost "delegation_lost" Events "A delegation was lost: the server revoked it, or restarted.";
        OpenDataChanged "open_data_changed" Events "An open found the file's data changed and dropped its pages.";
        AttrHit "attr_hit" Events "Attributes were served from the cache.";
        AttrExpired "attr_expired" Events "Cached attributes had expired and were requested again.";
        AttrInvalidated "attr_inval" Events "Attributes were not cached or were doubtful, and were requested.";
        AttrStaleReply "attr_stale_reply" Events "A reply's attributes were older than the cached ones and were not adopted.";
        AttrShared "attr_shared" Events "A request for attributes was saved by sharing one already in progress.";
        AccessHitPositive "access_hit_pos" Events "A permission was granted from the access cache.";
        AccessHitNegative "access_hit_neg" Events "A permission was denied from the access cache (at most a second after the server denied it).";
        AccessWire "access_wire" Events "An ACCESS was sent.";
        AccessLocalAllow "access_local_allow" Events "noaccesscheck granted a permission by mode bits.";
        AccessLocalDeny "access_local_deny" Events "noaccesscheck denied a permission by mode bits (an ACCESS is then sent).";
        AccessDenyConfirmed "access_deny_confirmed" Events "The server confirmed a denial that was cached or came from mode bits.";
        AccessDenyOverturned "access_deny_overturned" Events "The server overturned a denial that was cached or came from mode bits.";
        AccessDataCheck "access_data_check" Events "An ACCESS was sent before data fetched with one credential were returned to another.";
        AccessEvict "access_evict" Events "An entry of the access cache was evicted.";
        PosHit "pos_hit" Events "A name was found in the name cache.";
        PosMiss "pos_miss" Events "A name was not in the name cache.";
        PosStale "pos_stale" Events "A cached name could not be used any more.";
        DotHit "dot_hit" Events "The name . was served from the cache.";
        DotdotHit "dotdot_hit" Events "The name .. was served from the cache.";
        NegHit "neg_hit" Events "A look-up was answered by a negative cache entry.";
        NegMiss "neg_miss" Events "A LOOKUP returned NFS3ERR_NOENT.";
        NegStore "neg_store" Events "A negative entry was cached.";
        NegRejectRace "neg_reject_race" Events "A negative entry was not cached, because the directory was changing meanwhile.";
        NegRacyRequery "neg_racy_requery" Events "A missing name was looked up again because its directory had just changed.";
        NegPurgeDirchange "neg_purge_dirchange" Events "All negative entries of a directory were dropped because it had changed.";
        NegExpire "neg_expire" Events "A negative entry expired (negnametimeo).";
        NegEvict "neg_evict" Events "A negative entry was evicted.";
        NegFalse "neg_false" Events "A name appeared although its directory's change stamp was unchanged.";
        PosEvict "pos_evict" Events "A cached name was evicted.";
        DirGetattrForName "dir_getattr_for_name" Events "A directory's attributes were requested to validate a cached name.";
        NamesPrimed "names_primed" Events "A name and its attributes were cached from READDIRPLUS.";
        DirFill "dirfill_fills" Requests "The names of a directory were requested together instead of one name (fill).";
        DirFillNames "dirfill_names" Events "A name was cached from a fill.";
        DirFillUsed "dirfill_used" Events "A name that was cached from a fill was used.";
        DirFillMissing "dirfill_missing" Events "A name was missing in a directory of which all names were cached.";
        DirFillComplete "dirfill_complete" Events "All names of a directory were cached without a change of the directory meanwhile.";
        DirFillWasted "dirfill_wasted" Requests "A fill did not return the name for which it was sent.";
        DirFillRevalidation "dirfill_revalidations" Requests "The attributes of a directory's objects were requested together because those of one had expired.";
        ListingCached "listing_cached" Events "A directory was listed from the cache.";
        ListingPlus "listing_plus" Events "A part of a listing was requested with attributes.";
        ListingPlain "listing_plain" Events "A part of a listing was requested without attributes.";
        ListingRestart "readdir_restart_at_zero" Events "A listing was restarted because the server refused its cookie.";
        ListingBadCookie "readdir_badcookie" Events "The server refused a cookie.";
        ListingSuppressed "readdir_dup_suppressed" Events "A name was left out of a restarted listing because it had been returned before.";
        ListingTorn "readdir_torn_pass" Events "A directory changed while it was listed.";
        ListingAheadUsed "readdir_prefetch_used" Events "A part of a listing that was requested ahead was used.";
        ListingAheadWasted "readdir_prefetch_wasted" Events "A part of a listing that was requested ahead was not used.";
        ListingEvicted "readdir_evict" Events "A part of a listing was evicted.";
        SoftRevalidation "softreval_served" Events "The server did not respond, and an expired cache entry was served (softreval).";
        StaleRetry "stale_retry" Events "A stale handle was looked up again by name.";
        SillyRename "sillyrename" Events "An open file was renamed instead of removed.";
        SillyRemove "sillyrename_remove" Events "A renamed open file was removed at its last close.";
        DataInvalidated "data_invalidated" Events "A file's cached data were dropped because it had changed on the server.";
        ReadHitBytes "read_hit_bytes" Bytes "Bytes read from the data cache.";
        ReadBytes "read_bytes" Bytes "Bytes that the server sent in READ.";
        WriteBytes "write_bytes" Bytes "Bytes that were sent in WRITE.";
        WriteResent "write_resent" Bytes "Bytes that were sent again because the server had restarted.";
        ReadShort "read_short" Events "READ returned fewer bytes than requested before the end of the file.";
        WriteShort "write_short" Events "WRITE accepted fewer bytes than were sent.";
        WriteExtended "write_extended" Events "WRITE extended a file on the server.";
        KernelReadBytes "kernel_read_bytes" Bytes "Bytes read by the kernel from the daemon; reads that its page cache answers are not included.";
        KernelReadDirectBytes "kernel_read_direct_bytes" Bytes "The part of these bytes that bypassed the page cache (O_DIRECT).";
        KernelWriteBytes "kernel_write_bytes" Bytes "Bytes written by the kernel to the daemon.";
        KernelWriteDirectBytes "kernel_write_direct_bytes" Bytes "The part of these bytes that bypassed the page cache (O_DIRECT).";
        KernelWriteBack "kernel_write_back" Events "The kernel wrote back pages that were changed through a mapping.";
        SetSize "set_size" Events "A program set the size of a file (truncate).";
        WriteThrottled "write_throttled" Events "A writer waited because too many bytes were dirty.";
        ReadAhead "read_ahead" Requests "A READ was sent ahead of the reader.";
        LockLocalWait "lock_local_wait" Events "A program waited for a lock of this mount, or behind another waiter; the server was not asked.";
        LockWire "lock_wire" Requests "A LOCK was sent, also to reclaim a lock.";
        LockUnlockWire "lock_unlock_wire" Requests "An UNLOCK was sent.";
        LockCancelWire "lock_cancel_wire" Requests "A CANCEL was sent.";
        LockTestWire "lock_test_wire" Requests "A TEST was sent.";
        LockDenied "lock_denied" Events "The server denied or blocked a LOCK.";
        LockGranted "lock_granted" Events "A program got a lock.";
        LockHandoff "lock_handoff" Events "A lock passed to the next waiter of this mount without a request (lockhandoff).";
        LockCallback "lock_cb_wakeup" Events "A waiter got its lock by a callback of the server.";
        LockCallbackWait "lock_cb_wait_ns" Nanoseconds "Time from the reply that a LOCK is blocked until the server's callback.";
        LockPoll "lock_poll" Requests "A LOCK was repeated because no callback had come.";
        LockInterrupt "lock_interrupt" Events "A wait for a lock, or an unlock, was interrupted.";
        LockUndo "lock_undo" Events "A CANCEL, UNLOCK or LOCK was sent to undo a LOCK whose program was interrupted.";
        LockLost "lock_lost" Events "A lock could not be reclaimed after the server restarted.";
        LockReclaimed "lock_reclaimed" Events "A lock was reclaimed after the server restarted.";
        LockDeadlock "deadlock_detected" Events "A program would have waited for itself (EDEADLK).";
        RpcRetransmit "rpc_retransmit" Requests "A request was sent again.";
        RpcReconnect "rpc_reconnect" Events "The connection to the server was re-established.";
        RpcTimeout "rpc_timeout" Events "A request was given up (soft, softerr).";
        RpcInterrupted "rpc_interrupted" Events "A waiting request was interrupted by a signal.";
        RpcMalformed "rpc_malformed" Events "A reply could not be decoded.";
    }
}

/// All counters of one client.
#[derive(Default)]
pub struct ClientCounters {
    /// Decisions.
    pub events: Counters<ClientCounter>,
    /// Requests sent, per operation.
    pub calls: CallCounters,
    /// Observers of each decision.
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

    /// A copy of all current values.
    #[must_use]
    pub fn snapshot(&self) -> ClientSnapshot {
        ClientSnapshot { requests: self.calls.snapshot(), events: self.events.snapshot() }
    }
}

/// All counters of one client at one time.
pub type ClientSnapshot = CallSnapshot<ClientCounter>;
