//! The server's counters: requests, bytes, errors, connections.

use std::sync::Arc;

use crate::calls::CallCounters;
use crate::counters::{CallSnapshot, Counters, counter_table};
use crate::stages::StageTimes;

counter_table! {
    /// A counter of interest to the operator of a server.
    ServerCounter {
        Requests "requests" Requests "A call was received.";
        RequestsMount "requests_mount" Requests "A call of the MOUNT protocol was received.";
        RequestsLock "requests_lock" Requests "A call of NLM or NSM was received.";
        RequestsRejected "requests_rejected" Requests "A call was refused before its procedure ran (version, authentication, garbage).";
        Errors "errors" Requests "A procedure ended with an error status.";
        ErrorsStale "errors_stale" Requests "A handle's file no longer exists.";
        ErrorsBadHandle "errors_badhandle" Requests "A handle was not issued by this server.";
        ErrorsAccess "errors_access" Requests "A caller had no permission.";
        ErrorsIo "errors_io" Requests "The file system failed.";
        BytesReceived "bytes_received" Bytes "Bytes received with calls.";
        BytesSent "bytes_sent" Bytes "Bytes sent with replies.";
        ReadBytes "read_bytes" Bytes "File data sent in READ.";
        WriteBytes "write_bytes" Bytes "File data received in WRITE.";
        ConnectionsAccepted "connections_accepted" Events "A connection was accepted.";
        ConnectionsClosed "connections_closed" Events "A connection was closed.";
        ConnectionsMalformed "connections_malformed" Events "A connection was closed because of malformed bytes.";
        ReplyCacheHit "reply_cache_hits" Requests "A call had been executed before, and its reply was repeated.";
        ReplyCacheMiss "reply_cache_misses" Requests "A call that changes names or attributes was new.";
        ReplyCacheNotCached "reply_cache_not_cached" Requests "The reply to such a call was not cached: it was too long, or another call with its xid was in progress.";
        ReplyCacheDropped "reply_cache_dropped" Requests "A repeated call was dropped because it was still in progress.";
        ReplyCacheRestored "reply_cache_restored" Events "A reply that an earlier run of the server had saved was read at start.";
        ReplyCacheHitRestored "reply_cache_hits_restored" Requests "A repeated call was answered with a reply of an earlier run of the server.";
        ReplyCacheRecognised "reply_cache_recognised" Requests "A repeated call failed, but an earlier run had executed it and ended before it was answered: it was answered as done.";
        TokenHit "token_hits" Events "A file and its caller were found in the connection's authorisation cache.";
        TokenMiss "token_misses" Events "A handle's signature had to be checked.";
        ExportHit "export_hits" Events "A client's rights to an export were found in the connection's cache.";
        ExportMiss "export_misses" Events "A client's rights to an export had to be determined.";
        IdentityHit "identity_hits" Events "The identity of a credential was found in the connection's cache.";
        IdentityMiss "identity_misses" Events "A credential had to be mapped to an identity.";
        LocksBlocked "locks_blocked" Requests "A LOCK of NLM or NFSv4 had to wait.";
        LocksDenied "locks_denied" Requests "A request of NLM or NFSv4 was denied because of a conflict.";
        LocksDeniedGrace "locks_denied_grace" Requests "A request of NLM was denied because of the grace period, or a reclaim because it was over.";
        LocksLimited "locks_limited" Requests "A request of NLM was denied because of a limit.";
        LockCallbacksUndelivered "lock_callbacks_undelivered" Events "A GRANTED did not reach its host, or a CB_NOTIFY_LOCK its client.";
        LockHostsRestarted "lock_hosts_restarted" Events "A host with locks restarted, and lost them.";
        DelegationsGranted "delegations_granted" Events "An NFSv4 client was granted a delegation.";
        DelegationsRecalled "delegations_recalled" Events "A delegation had to be recalled, because another client or process wants the file.";
        DelegationsReturned "delegations_returned" Events "A client has returned a delegation.";
        DelegationsRevoked "delegations_revoked" Events "A client has not returned a delegation in time, and has lost it.";
        DelegationWaits "delegation_waits" Requests "A request had to wait for delegations to be returned.";
        FileCacheHit "file_cache_hits" Events "An open file was found in the file cache.";
        FileCacheMiss "file_cache_misses" Events "A file had to be opened.";
        CredentialSwitch "credential_switches" Events "A thread switched to another caller's credentials.";
    }
}

/// All statistics of one server.
#[derive(Default)]
pub struct ServerCounters {
    /// Events and sums.
    pub events: Counters<ServerCounter>,
    /// Calls received, per operation.
    pub calls: CallCounters,
    /// The times of the stages of requests.
    pub stages: Arc<StageTimes>,
}

impl ServerCounters {
    /// Counts one `counter`.
    #[inline]
    pub fn count(&self, counter: ServerCounter) {
        self.events.count(counter);
    }

    /// Counts `amount` of the unit of `counter`.
    pub fn add(&self, counter: ServerCounter, amount: u64) {
        self.events.add(counter, amount);
    }

    /// A copy of all current values.
    #[must_use]
    pub fn snapshot(&self) -> ServerSnapshot {
        ServerSnapshot { requests: self.calls.snapshot(), events: self.events.snapshot() }
    }
}

/// All counters of one server at one time.
pub type ServerSnapshot = CallSnapshot<ServerCounter>;
