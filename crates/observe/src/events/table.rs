//! The table of events: name, stability, frequency, place in time, fields and meaning of each.
//!
//! Types, probes, documentation and `curt trace --list` are generated from these rows. Names and
//! fields of client events are those of Linux's `nfs:` and `sunrpc:` tracepoints where these exist,
//! those of server events are from `nfsd:` and `sunrpc:`.

/// Calls the named macro with the rows.
///
/// A row: type, name, stability (`Stable`: name and fields stay; `Draft`: they may change),
/// frequency (`Rare`: once in a while; `Request`: at most some times for each message on the wire;
/// `Operation`: for each operation of a program), place in time (`Instant`; `Enter` and `Exit` of
/// one thread; `Begin` and `End`, which find each other by their first field), fields, meaning.
macro_rules! with_events {
    ($use:path) => {
        $use! {
            NfsLookupEnter "nfs_lookup_enter" Stable Operation Enter { pid uid dir name } "A program looks up a name.";
            NfsLookupExit "nfs_lookup_exit" Stable Operation Exit { dir name fileid error } "A look-up is answered; ENOENT if the name is missing.";
            NfsLookupRevalidateEnter "nfs_lookup_revalidate_enter" Stable Operation Enter { dir name } "A cached name is checked against its directory's attributes.";
            NfsLookupRevalidateExit "nfs_lookup_revalidate_exit" Stable Operation Exit { dir name error } "The check is done; an error if the directory's attributes could not be fetched.";
            NfsGetattrEnter "nfs_getattr_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program requests attributes.";
            NfsGetattrExit "nfs_getattr_exit" Stable Operation Exit { fileid size error dev fhandle object_type version cache_validity nfsi_flags } "The attributes are returned.";
            NfsSetattrEnter "nfs_setattr_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program changes attributes.";
            NfsSetattrExit "nfs_setattr_exit" Stable Operation Exit { fileid size error dev fhandle object_type version cache_validity nfsi_flags } "The attributes have been changed, or the change failed.";
            NfsReadlinkEnter "nfs_readlink_enter" Stable Operation Enter { pid uid fileid } "A program reads a symbolic link.";
            NfsReadlinkExit "nfs_readlink_exit" Stable Operation Exit { fileid target error } "The link's target is returned.";
            NfsAccessEnter "nfs_access_enter" Stable Operation Enter { pid uid fileid mask dev fhandle version cache_validity } "A program checks its permissions.";
            NfsAccessExit "nfs_access_exit" Stable Operation Exit { fileid mask permitted error dev fhandle object_type version size cache_validity nfsi_flags } "The permissions are returned.";
            NfsOpenEnter "nfs_open_enter" Stable Operation Enter { pid uid fileid flags } "A program opens an existing file.";
            NfsOpenExit "nfs_open_exit" Stable Operation Exit { fileid flags error } "The file is open, or the open failed.";
            NfsAtomicOpenEnter "nfs_atomic_open_enter" Stable Operation Enter { pid uid dir name flags mode } "A program opens a file, to be created if it does not exist.";
            NfsAtomicOpenExit "nfs_atomic_open_exit" Stable Operation Exit { dir name flags fileid error } "The file exists and is open, or the open failed.";
            NfsCreateEnter "nfs_create_enter" Stable Request Enter { pid uid dir name flags mode } "The server is asked to create a file.";
            NfsCreateExit "nfs_create_exit" Stable Request Exit { dir name fileid error } "The file was created, or creating it failed; EEXIST if it existed.";
            NfsMknodEnter "nfs_mknod_enter" Stable Operation Enter { pid uid dir name mode } "A program creates a file, device, FIFO or socket.";
            NfsMknodExit "nfs_mknod_exit" Stable Operation Exit { dir name fileid error } "The object was created, or not.";
            NfsMkdirEnter "nfs_mkdir_enter" Stable Operation Enter { pid uid dir name mode } "A program creates a directory.";
            NfsMkdirExit "nfs_mkdir_exit" Stable Operation Exit { dir name fileid error } "The directory was created, or not.";
            NfsSymlinkEnter "nfs_symlink_enter" Stable Operation Enter { pid uid dir name target } "A program creates a symbolic link.";
            NfsSymlinkExit "nfs_symlink_exit" Stable Operation Exit { dir name fileid error } "The link was created, or not.";
            NfsLinkEnter "nfs_link_enter" Stable Operation Enter { pid uid fileid dir name } "A program creates a hard link.";
            NfsLinkExit "nfs_link_exit" Stable Operation Exit { fileid dir name error } "The link was created, or not.";
            NfsUnlinkEnter "nfs_unlink_enter" Stable Operation Enter { pid uid dir name } "A program removes a name.";
            NfsUnlinkExit "nfs_unlink_exit" Stable Operation Exit { dir name error } "The name was removed, or not.";
            NfsRmdirEnter "nfs_rmdir_enter" Stable Operation Enter { pid uid dir name } "A program removes a directory.";
            NfsRmdirExit "nfs_rmdir_exit" Stable Operation Exit { dir name error } "The directory was removed, or not.";
            NfsRenameEnter "nfs_rename_enter" Stable Operation Enter { pid uid dir name new_dir new_name } "A program renames an object.";
            NfsRenameExit "nfs_rename_exit" Stable Operation Exit { dir name new_dir new_name error } "The object was renamed, or not.";
            NfsReadEnter "nfs_read_enter" Stable Operation Enter { pid uid fileid offset count } "A program reads, or the kernel reads ahead.";
            NfsReadExit "nfs_read_exit" Stable Operation Exit { fileid offset res error } "The data are returned.";
            NfsWriteEnter "nfs_write_enter" Stable Operation Enter { pid uid fileid offset count } "A program writes.";
            NfsWriteExit "nfs_write_exit" Stable Operation Exit { fileid offset res error } "The data are accepted, but not necessarily sent yet.";
            NfsFlushEnter "nfs_flush_enter" Stable Operation Enter { pid uid fileid } "A program closes a descriptor.";
            NfsFlushExit "nfs_flush_exit" Stable Operation Exit { fileid error } "The result of close(2).";
            NfsFsyncEnter "nfs_fsync_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program calls fsync(2).";
            NfsFsyncExit "nfs_fsync_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "The data are durable, or fsync(2) failed.";
            NfsStatfsEnter "nfs_statfs_enter" Stable Operation Enter { pid uid fileid } "A program calls statfs(2).";
            NfsStatfsExit "nfs_statfs_exit" Stable Operation Exit { fileid error } "The file system's sizes are returned.";
            NfsOpendirEnter "nfs_opendir_enter" Stable Operation Enter { pid uid dir } "A program opens a directory.";
            NfsOpendirExit "nfs_opendir_exit" Stable Operation Exit { dir error } "The directory is open, or the open failed.";
            NfsReaddirEnter "nfs_readdir_enter" Stable Operation Enter { pid uid dir cookie plus } "A program reads names from a position in a directory.";
            NfsReaddirExit "nfs_readdir_exit" Stable Operation Exit { dir cookie entries error } "Names are returned; none at the end.";

            NfsRefreshInodeEnter "nfs_refresh_inode_enter" Stable Operation Enter { fileid dev fhandle version cache_validity } "Attributes from a reply are about to be adopted.";
            NfsRefreshInodeExit "nfs_refresh_inode_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "They have been adopted; ESTALE if newer ones were cached.";
            NfsRevalidateInodeEnter "nfs_revalidate_inode_enter" Stable Request Enter { fileid reason dev fhandle version cache_validity } "The server is asked for attributes that are unknown, invalid or expired.";
            NfsRevalidateInodeExit "nfs_revalidate_inode_exit" Stable Request Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "The attributes have arrived, or the request failed.";
            NfsSetCacheInvalid "nfs_set_cache_invalid" Stable Request Instant { fileid cache reason dev fhandle object_type version size cache_validity nfsi_flags } "A cache of a file is marked invalid.";
            NfsInvalidateMappingEnter "nfs_invalidate_mapping_enter" Stable Request Enter { fileid dev fhandle version cache_validity } "A file's cached data, Curt's and the kernel's, are about to be dropped.";
            NfsInvalidateMappingExit "nfs_invalidate_mapping_exit" Stable Request Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "The cached data have been dropped.";
            NfsWritebackInodeEnter "nfs_writeback_inode_enter" Stable Operation Enter { fileid dev fhandle version cache_validity } "A thread waits until all dirty data of a file are on the server.";
            NfsWritebackInodeExit "nfs_writeback_inode_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "The server has the data, or writing failed.";
            NfsSizeTruncate "nfs_size_truncate" Stable Request Instant { fileid cur_size new_size dev fhandle version } "A program on this mount set a file's size.";
            NfsSizeWcc "nfs_size_wcc" Stable Request Instant { fileid cur_size new_size dev fhandle version } "The reply to a local change shows a different size.";
            NfsSizeUpdate "nfs_size_update" Stable Request Instant { fileid cur_size new_size dev fhandle version } "Another reply shows a different size.";
            NfsSizeGrow "nfs_size_grow" Stable Operation Instant { fileid cur_size new_size dev fhandle version } "A write extends a file.";
            NfsRemoveEnter "nfs_remove_enter" Stable Request Enter { dir name } "The server is asked to remove a name.";
            NfsRemoveExit "nfs_remove_exit" Stable Request Exit { dir name error } "The name was removed, or not.";
            NfsAsyncRenameDone "nfs_async_rename_done" Stable Request Instant { dir name new_dir new_name error } "An open file was renamed instead of removed (silly rename), or the rename failed.";
            NfsSillyrenameUnlink "nfs_sillyrename_unlink" Stable Request Instant { dir name error } "The name of a silly-renamed file was removed at its last close, or removing it failed.";

            NfsReaddirPass "nfs_readdir_pass" Draft Request Instant { dir hit } "A listing begins at the first name of a directory, from the cache or with requests.";
            NfsReaddirCacheFill "nfs_readdir_cache_fill" Stable Request Enter { dir cookie verifier dtsize plus cache_index dev fhandle version } "A chunk of a listing is requested.";
            NfsReaddirCacheFillDone "nfs_readdir_cache_fill_done" Stable Request Exit { dir cookie entries eof error dev fhandle version size cache_validity nfsi_flags } "The chunk has arrived, or the request failed.";
            NfsReaddirUncached "nfs_readdir_uncached" Stable Request Enter { dir cookie verifier dtsize plus cache_index dev fhandle version } "A chunk is requested for this reader alone, because the chunks before it are not cached.";
            NfsReaddirUncachedDone "nfs_readdir_uncached_done" Stable Request Exit { dir cookie entries eof error dev fhandle version size cache_validity nfsi_flags } "That chunk has arrived, or the request failed.";
            NfsReaddirInvalidateCacheRange "nfs_readdir_invalidate_cache_range" Stable Request Instant { dir range_start range_end reason } "Names of a listing are no longer returned to new readers of the directory.";
            NfsReaddirForceReaddirplus "nfs_readdir_force_readdirplus" Stable Request Instant { dir dev fhandle object_type version size cache_validity nfsi_flags } "Names of a listing are being looked up: the next chunks may be requested with attributes.";
            NfsReaddirLookup "nfs_readdir_lookup" Stable Operation Instant { dir name fileid } "A chunk with attributes contains a name that was not cached.";
            NfsReaddirLookupRevalidate "nfs_readdir_lookup_revalidate" Stable Operation Instant { dir name fileid } "A chunk with attributes confirms a cached name.";
            NfsReaddirLookupRevalidateFailed "nfs_readdir_lookup_revalidate_failed" Stable Operation Instant { dir name fileid } "A chunk with attributes shows that a cached name now refers to another object.";
            NfsReaddirPlusOn "nfs_readdir_plus_on" Draft Request Instant { dir cookie entries } "From here on chunks are requested with attributes.";
            NfsReaddirPlusOff "nfs_readdir_plus_off" Draft Request Instant { dir cookie entries } "From here on chunks are requested without attributes, because many names were returned and none was used.";
            NfsReaddirPrefetchUsed "nfs_readdir_prefetch_used" Draft Request Instant { dir cookie } "A chunk that was requested ahead is used.";
            NfsReaddirPrefetchWasted "nfs_readdir_prefetch_wasted" Draft Request Instant { dir cookie } "A chunk that was requested ahead is not used.";
            NfsReaddirDupSuppressed "nfs_readdir_dup_suppressed" Draft Request Instant { dir cookie entries } "Names were left out that the reader had received before its listing was restarted.";
            NfsReaddirRestart "nfs_readdir_restart" Draft Rare Instant { dir cookie } "A listing is restarted from the first name.";
            NfsReaddirBadCookie "nfs_readdir_bad_cookie" Draft Rare Instant { dir cookie } "The server refuses a cookie of its own.";
            NfsReaddirTorn "nfs_readdir_torn" Draft Request Instant { dir } "The directory changed while it was listed.";
            NfsDirFill "nfs_dir_fill" Draft Request Instant { dir name entries eof } "A wanted name was requested together with its neighbours.";
            NfsDirRefresh "nfs_dir_refresh" Draft Request Instant { dir entries eof } "Expired attributes were requested together with those of the other objects in the directory.";
            NfsDirComplete "nfs_dir_complete" Draft Request Instant { dir entries } "All names of a directory are cached, so any other name is missing.";

            NfsInitiateRead "nfs_initiate_read" Stable Request Instant { fileid offset count ahead dev fhandle } "A READ is sent.";
            NfsReadpageDone "nfs_readpage_done" Stable Request Instant { fileid offset res eof error dev fhandle } "The data of a READ have arrived, or it failed.";
            NfsReadpageShort "nfs_readpage_short" Stable Request Instant { fileid offset count res dev fhandle } "A READ returned less than requested, before the end of the file.";
            NfsInitiateWrite "nfs_initiate_write" Stable Request Instant { fileid offset count stable dev fhandle } "A WRITE is sent.";
            NfsWritebackDone "nfs_writeback_done" Stable Request Instant { fileid offset res stable error verifier dev fhandle } "The server has accepted the data, or the WRITE failed.";
            NfsInitiateCommit "nfs_initiate_commit" Stable Request Instant { fileid dev fhandle } "A COMMIT is sent.";
            NfsCommitDone "nfs_commit_done" Stable Request Instant { fileid error verifier dev fhandle } "The data are durable, or the COMMIT failed.";
            NfsPgioError "nfs_pgio_error" Stable Rare Instant { fileid offset count error dev fhandle } "Data could not be read or written, which is reported to the program concerned.";
            NfsLockWait "nfs_lock_wait" Draft Request Instant { pid fileid lock_first lock_last } "A program waits for a lock behind others of this mount; the server is not asked.";
            NfsLockState "nfs_lock_state" Draft Request Instant { lock_state fileid lock_first lock_last } "A request for a lock changes its state.";
            NfsLockDone "nfs_lock_done" Draft Request Instant { pid fileid lock_first lock_last error } "A request for a lock is answered.";
            NfsUnlockDone "nfs_unlock_done" Draft Request Instant { fileid error } "An unlock is answered: the server has confirmed it, or its program waits no longer.";
            NfsLockLost "nfs_lock_lost" Draft Rare Instant { fileid lock_first lock_last } "A lock could not be reclaimed after a restart of the server.";
            NfsDelegation "nfs_delegation" Draft Request Instant { fhandle reason } "The server has delegated this file to the mount; or the delegation is recalled, returned or lost.";
            NfsXdrStatus "nfs_xdr_status" Stable Request Instant { procedure status } "The server refuses a request.";
            NfsMountPath "nfs_mount_path" Stable Rare Instant { name } "The path of the export that is mounted.";
            NfsMountAssign "nfs_mount_assign" Stable Rare Instant { option value } "The value of a mount option, given or default.";
            NfsMountOption "nfs_mount_option" Stable Rare Instant { option } "A mount option without a value is in force.";
            NfsMount "nfs_mount" Stable Rare Instant { server name } "An export is mounted at this directory.";
            NfsUmount "nfs_umount" Stable Rare Instant { server name } "The mount has ended.";

            RpcCall "rpc_call" Stable Request Begin { xid procedure sent server cause } "A call is sent to the server.";
            RpcReply "rpc_reply" Stable Request End { xid procedure received rtt error } "Its reply has arrived, or the call is given up.";
            RpcRetransmit "rpc_retransmit" Stable Rare Instant { xid server reason } "A call is sent again.";
            RpcMalformed "rpc_malformed" Stable Rare Instant { server reason } "A reply could not be decoded.";
            RpcNotResponding "rpc_not_responding" Stable Rare Instant { server } "The server has stopped responding.";
            RpcResponding "rpc_responding" Stable Rare Instant { server } "The server responds again.";
            RpcConnect "rpc_connect" Stable Rare Instant { server again } "A connection to the server is made.";
            RpcConnectFailed "rpc_connect_failed" Stable Rare Instant { server reason } "A connection cannot be made.";
            RpcDisconnect "rpc_disconnect" Stable Rare Instant { server reason } "A connection to the server is lost.";

            NfsdCall "nfsd_call" Stable Operation Enter { xid procedure uid peer } "A call is about to be executed.";
            NfsdReply "nfsd_reply" Stable Operation Exit { xid procedure status res } "The call is done and its reply is about to be sent; `res` is the size of the results without READ data sent from a file.";
            NfsdRejected "nfsd_rejected" Stable Rare Instant { xid procedure peer reason } "A call is refused before its procedure runs.";
            NfsdCompoundStatus "nfsd_compound_status" Stable Operation Instant { xid procedure entries status } "An operation of an NFSv4 compound is done; `entries` is the number of operations of the compound.";
            NfsdFhVerify "nfsd_fh_verify" Stable Operation Instant { fhandle hit status } "A handle is resolved, by checking its signature or from the connection's cache.";
            NfsdExport "nfsd_export" Stable Operation Instant { export peer hit status } "The client's rights to an export are decided, or found in the cache.";
            NfsdIdentity "nfsd_identity" Stable Operation Instant { uid hit } "The identity to which a caller is mapped is decided, or found in the cache.";
            NfsdFileAcquire "nfsd_file_acquire" Stable Operation Instant { node hit } "An open file is needed: it is in the file cache, or is opened.";
            NfsdFileClose "nfsd_file_close" Stable Request Instant { entries reason } "Files of the file cache are closed.";
            NfsdRead "nfsd_read" Stable Operation Instant { fhandle offset res eof } "Data were read.";
            NfsdWrite "nfsd_write" Stable Operation Instant { fhandle offset res stable } "Data were written.";
            NfsdReaddir "nfsd_readdir" Stable Request Instant { fhandle cookie entries eof plus } "Names of a directory were read.";
            NfsdDrcFound "nfsd_drc_found" Stable Rare Instant { xid procedure peer reason } "A call was executed before: its reply is repeated, or it is dropped.";
            NfsdLockDone "nfsd_lock_done" Draft Request Instant { pid fhandle lock_first lock_last reason } "A LOCK, CANCEL or UNLOCK of NLM is answered; `pid` is the owner's process at its host.";
            NfsdLockGranted "nfsd_lock_granted" Draft Request Instant { peer fhandle lock_first lock_last } "A waiter has got its lock: its host is called back.";
            NfsdDelegation "nfsd_delegation" Draft Request Instant { fhandle reason } "A delegation of this file is granted to an NFSv4 client, recalled, or returned; or its recall was not answered.";
            NfsdReload "nfsd_reload" Stable Rare Instant { entries reason } "The exports were read again.";
            CurtPanicked "curt_panicked" Draft Rare Instant { reason } "A thread has panicked at this place in the source; its operation fails, and the ring is copied.";
            SvcAccept "svc_xprt_accept" Stable Rare Instant { peer } "A connection is accepted.";
            SvcClose "svc_xprt_close" Stable Rare Instant { peer reason } "A connection is closed.";
        }
    };
}

pub(super) use with_events;
