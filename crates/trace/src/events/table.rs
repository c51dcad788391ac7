//! THE table of events: name, stability, how often it happens, what it is in time, fields and meaning of each.
//!
//! Types, probes, documentation and `curt trace --list` are made of these rows. Names and fields of client events are those of
//! Linux's `nfs:` and `sunrpc:` tracepoints where there is such a one, those of a server's `nfsd:` and `sunrpc:`.

/// Hands the rows to the macro that is named.
///
/// A row: type, name, stability (`Stable`: name and fields stay; `Draft`: they may change), frequency (`Rare`: once in a while;
/// `Request`: at most some times for each message on the wire; `Operation`: for each operation of a program), place in time
/// (`Instant`; `Enter` and `Exit` of one thread; `Begin` and `End`, which find each other by their first field), fields, meaning.
macro_rules! with_events {
    ($use:path) => {
        $use! {
            NfsLookupEnter "nfs_lookup_enter" Stable Operation Enter { pid uid dir name } "A program looks a name up.";
            NfsLookupExit "nfs_lookup_exit" Stable Operation Exit { dir name fileid error } "A look-up is answered; ENOENT if the name is missing.";
            NfsLookupRevalidateEnter "nfs_lookup_revalidate_enter" Stable Operation Enter { dir name } "A name that is known is judged by what its directory says now.";
            NfsLookupRevalidateExit "nfs_lookup_revalidate_exit" Stable Operation Exit { dir name error } "The judgement is made; an error if the directory could not be asked.";
            NfsGetattrEnter "nfs_getattr_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program asks for attributes.";
            NfsGetattrExit "nfs_getattr_exit" Stable Operation Exit { fileid size error dev fhandle object_type version cache_validity nfsi_flags } "Attributes are answered.";
            NfsSetattrEnter "nfs_setattr_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program changes attributes.";
            NfsSetattrExit "nfs_setattr_exit" Stable Operation Exit { fileid size error dev fhandle object_type version cache_validity nfsi_flags } "The attributes are changed, or not.";
            NfsReadlinkEnter "nfs_readlink_enter" Stable Operation Enter { pid uid fileid } "A program reads a symbolic link.";
            NfsReadlinkExit "nfs_readlink_exit" Stable Operation Exit { fileid target error } "The link's target is answered.";
            NfsAccessEnter "nfs_access_enter" Stable Operation Enter { pid uid fileid mask dev fhandle version cache_validity } "A program asks what it may do.";
            NfsAccessExit "nfs_access_exit" Stable Operation Exit { fileid mask permitted error dev fhandle object_type version size cache_validity nfsi_flags } "It is told.";
            NfsOpenEnter "nfs_open_enter" Stable Operation Enter { pid uid fileid flags } "A program opens a file that is there.";
            NfsOpenExit "nfs_open_exit" Stable Operation Exit { fileid flags error } "The file is open, or not.";
            NfsAtomicOpenEnter "nfs_atomic_open_enter" Stable Operation Enter { pid uid dir name flags mode } "A program opens a file that is to be made if it is not there.";
            NfsAtomicOpenExit "nfs_atomic_open_exit" Stable Operation Exit { dir name flags fileid error } "The file is there and open, or not.";
            NfsCreateEnter "nfs_create_enter" Stable Request Enter { pid uid dir name flags mode } "The server is asked to make a file.";
            NfsCreateExit "nfs_create_exit" Stable Request Exit { dir name fileid error } "It did, or not; EEXIST if the file was there.";
            NfsMknodEnter "nfs_mknod_enter" Stable Operation Enter { pid uid dir name mode } "A program makes a file, device, pipe or socket.";
            NfsMknodExit "nfs_mknod_exit" Stable Operation Exit { dir name fileid error } "It is there, or not.";
            NfsMkdirEnter "nfs_mkdir_enter" Stable Operation Enter { pid uid dir name mode } "A program makes a directory.";
            NfsMkdirExit "nfs_mkdir_exit" Stable Operation Exit { dir name fileid error } "The directory is there, or not.";
            NfsSymlinkEnter "nfs_symlink_enter" Stable Operation Enter { pid uid dir name target } "A program makes a symbolic link.";
            NfsSymlinkExit "nfs_symlink_exit" Stable Operation Exit { dir name fileid error } "The link is there, or not.";
            NfsLinkEnter "nfs_link_enter" Stable Operation Enter { pid uid fileid dir name } "A program gives a file another name.";
            NfsLinkExit "nfs_link_exit" Stable Operation Exit { fileid dir name error } "The name is there, or not.";
            NfsUnlinkEnter "nfs_unlink_enter" Stable Operation Enter { pid uid dir name } "A program removes a name.";
            NfsUnlinkExit "nfs_unlink_exit" Stable Operation Exit { dir name error } "The name is gone, or not.";
            NfsRmdirEnter "nfs_rmdir_enter" Stable Operation Enter { pid uid dir name } "A program removes a directory.";
            NfsRmdirExit "nfs_rmdir_exit" Stable Operation Exit { dir name error } "The directory is gone, or not.";
            NfsRenameEnter "nfs_rename_enter" Stable Operation Enter { pid uid dir name new_dir new_name } "A program renames.";
            NfsRenameExit "nfs_rename_exit" Stable Operation Exit { dir name new_dir new_name error } "It has the new name, or not.";
            NfsReadEnter "nfs_read_enter" Stable Operation Enter { pid uid fileid offset count } "A program, or the kernel ahead of it, reads.";
            NfsReadExit "nfs_read_exit" Stable Operation Exit { fileid offset res error } "The data are answered.";
            NfsWriteEnter "nfs_write_enter" Stable Operation Enter { pid uid fileid offset count } "A program writes.";
            NfsWriteExit "nfs_write_exit" Stable Operation Exit { fileid offset res error } "The data are taken, not yet necessarily sent.";
            NfsFlushEnter "nfs_flush_enter" Stable Operation Enter { pid uid fileid } "A program closes a descriptor.";
            NfsFlushExit "nfs_flush_exit" Stable Operation Exit { fileid error } "What close(2) returns.";
            NfsFsyncEnter "nfs_fsync_enter" Stable Operation Enter { pid uid fileid dev fhandle version cache_validity } "A program wants its data durable.";
            NfsFsyncExit "nfs_fsync_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "They are, or not.";
            NfsStatfsEnter "nfs_statfs_enter" Stable Operation Enter { pid uid fileid } "A program asks for the file system's sizes.";
            NfsStatfsExit "nfs_statfs_exit" Stable Operation Exit { fileid error } "They are answered.";
            NfsOpendirEnter "nfs_opendir_enter" Stable Operation Enter { pid uid dir } "A program opens a directory.";
            NfsOpendirExit "nfs_opendir_exit" Stable Operation Exit { dir error } "The directory is open, or not.";
            NfsReaddirEnter "nfs_readdir_enter" Stable Operation Enter { pid uid dir cookie plus } "A program wants the names that follow a position.";
            NfsReaddirExit "nfs_readdir_exit" Stable Operation Exit { dir cookie entries error } "Names are answered; none is the end.";

            NfsRefreshInodeEnter "nfs_refresh_inode_enter" Stable Operation Enter { fileid dev fhandle version cache_validity } "A reply's attributes are taken in.";
            NfsRefreshInodeExit "nfs_refresh_inode_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "They are what is known from now on; ESTALE if what is known is newer.";
            NfsRevalidateInodeEnter "nfs_revalidate_inode_enter" Stable Request Enter { fileid reason dev fhandle version cache_validity } "The server is asked for attributes: they are unknown, invalid or expired.";
            NfsRevalidateInodeExit "nfs_revalidate_inode_exit" Stable Request Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "The attributes have come, or not.";
            NfsSetCacheInvalid "nfs_set_cache_invalid" Stable Request Instant { fileid cache reason dev fhandle object_type version size cache_validity nfsi_flags } "What was remembered of a file is not believed any longer.";
            NfsInvalidateMappingEnter "nfs_invalidate_mapping_enter" Stable Request Enter { fileid dev fhandle version cache_validity } "The data of a file that are remembered, here and by the kernel, are to be dropped.";
            NfsInvalidateMappingExit "nfs_invalidate_mapping_exit" Stable Request Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "They are dropped.";
            NfsWritebackInodeEnter "nfs_writeback_inode_enter" Stable Operation Enter { fileid dev fhandle version cache_validity } "Somebody wants the server to have all that was written to a file, and waits.";
            NfsWritebackInodeExit "nfs_writeback_inode_exit" Stable Operation Exit { fileid error dev fhandle object_type version size cache_validity nfsi_flags } "It has, or not.";
            NfsSizeTruncate "nfs_size_truncate" Stable Request Instant { fileid cur_size new_size dev fhandle version } "A file was given a size by a program here.";
            NfsSizeWcc "nfs_size_wcc" Stable Request Instant { fileid cur_size new_size dev fhandle version } "The reply to a change of ours tells another size.";
            NfsSizeUpdate "nfs_size_update" Stable Request Instant { fileid cur_size new_size dev fhandle version } "A reply to a question tells another size.";
            NfsSizeGrow "nfs_size_grow" Stable Operation Instant { fileid cur_size new_size dev fhandle version } "A write goes beyond the end of a file.";
            NfsRemoveEnter "nfs_remove_enter" Stable Request Enter { dir name } "The server is asked to remove a name.";
            NfsRemoveExit "nfs_remove_exit" Stable Request Exit { dir name error } "It did, or not.";
            NfsAsyncRenameDone "nfs_async_rename_done" Stable Request Instant { dir name new_dir new_name error } "A file that is open was renamed instead of removed, or not.";
            NfsSillyrenameUnlink "nfs_sillyrename_unlink" Stable Request Instant { dir name error } "The last close of such a file removed the name that it was given, or not.";

            NfsReaddirPass "nfs_readdir_pass" Draft Request Instant { dir hit } "A pass over a directory begins at its first name, from what is remembered or anew.";
            NfsReaddirCacheFill "nfs_readdir_cache_fill" Stable Request Enter { dir cookie verifier dtsize plus cache_index dev fhandle version } "A chunk of a listing is asked for.";
            NfsReaddirCacheFillDone "nfs_readdir_cache_fill_done" Stable Request Exit { dir cookie entries eof error dev fhandle version size cache_validity nfsi_flags } "The chunk has come, or not.";
            NfsReaddirUncached "nfs_readdir_uncached" Stable Request Enter { dir cookie verifier dtsize plus cache_index dev fhandle version } "A chunk is asked for that is kept for this reader alone: it begins where nothing before it is remembered.";
            NfsReaddirUncachedDone "nfs_readdir_uncached_done" Stable Request Exit { dir cookie entries eof error dev fhandle version size cache_validity nfsi_flags } "That chunk has come, or not.";
            NfsReaddirInvalidateCacheRange "nfs_readdir_invalidate_cache_range" Stable Request Instant { dir range_start range_end reason } "Names of a listing are not told any more to whoever begins to read the directory.";
            NfsReaddirForceReaddirplus "nfs_readdir_force_readdirplus" Stable Request Instant { dir dev fhandle object_type version size cache_validity nfsi_flags } "Names of a listing are used: the next chunks may be asked for with attributes.";
            NfsReaddirLookup "nfs_readdir_lookup" Stable Operation Instant { dir name fileid } "A chunk with attributes brought a name that was not known.";
            NfsReaddirLookupRevalidate "nfs_readdir_lookup_revalidate" Stable Operation Instant { dir name fileid } "A chunk with attributes says of a name what is known of it.";
            NfsReaddirLookupRevalidateFailed "nfs_readdir_lookup_revalidate_failed" Stable Operation Instant { dir name fileid } "A chunk with attributes says of a name that it leads elsewhere than is known.";
            NfsReaddirPlusOn "nfs_readdir_plus_on" Draft Request Instant { dir cookie entries } "From here on chunks are asked for with attributes.";
            NfsReaddirPlusOff "nfs_readdir_plus_off" Draft Request Instant { dir cookie entries } "From here on chunks are asked for without attributes: so many names were told and nobody asked about them.";
            NfsReaddirPrefetchUsed "nfs_readdir_prefetch_used" Draft Request Instant { dir cookie } "A chunk that was asked for ahead of the reader is what he wants.";
            NfsReaddirPrefetchWasted "nfs_readdir_prefetch_wasted" Draft Request Instant { dir cookie } "Nobody wants a chunk that was asked for ahead of the reader.";
            NfsReaddirDupSuppressed "nfs_readdir_dup_suppressed" Draft Request Instant { dir cookie entries } "Names were left out that the reader was told before his pass began again.";
            NfsReaddirRestart "nfs_readdir_restart" Draft Rare Instant { dir cookie } "A pass begins again from the first name.";
            NfsReaddirBadCookie "nfs_readdir_bad_cookie" Draft Rare Instant { dir cookie } "The server refuses a cookie that it gave.";
            NfsReaddirTorn "nfs_readdir_torn" Draft Request Instant { dir } "The directory changed while it was listed.";
            NfsDirFill "nfs_dir_fill" Draft Request Instant { dir name entries eof } "A name that was wanted came with those beside it, or they came without it.";
            NfsDirRefresh "nfs_dir_refresh" Draft Request Instant { dir entries eof } "Attributes that had expired came with those of the other objects in their directory.";
            NfsDirComplete "nfs_dir_complete" Draft Request Instant { dir entries } "All names of a directory are known: others are missing.";

            NfsInitiateRead "nfs_initiate_read" Stable Request Instant { fileid offset count ahead dev fhandle } "Data are asked for.";
            NfsReadpageDone "nfs_readpage_done" Stable Request Instant { fileid offset res eof error dev fhandle } "Data have come, or not.";
            NfsReadpageShort "nfs_readpage_short" Stable Request Instant { fileid offset count res dev fhandle } "Less came than was asked for, and it is not the end.";
            NfsInitiateWrite "nfs_initiate_write" Stable Request Instant { fileid offset count stable dev fhandle } "Data are sent.";
            NfsWritebackDone "nfs_writeback_done" Stable Request Instant { fileid offset res stable error verifier dev fhandle } "The server has taken the data, or not.";
            NfsInitiateCommit "nfs_initiate_commit" Stable Request Instant { fileid dev fhandle } "The server is asked to make data durable.";
            NfsCommitDone "nfs_commit_done" Stable Request Instant { fileid error verifier dev fhandle } "The data are durable, or not.";
            NfsPgioError "nfs_pgio_error" Stable Rare Instant { fileid offset count error dev fhandle } "Data cannot be read or written: whoever wants them, or wrote them, is told so.";
            NfsXdrStatus "nfs_xdr_status" Stable Request Instant { procedure status } "The server refuses a request.";
            NfsMountPath "nfs_mount_path" Stable Rare Instant { name } "The path of the export that is mounted.";
            NfsMountAssign "nfs_mount_assign" Stable Rare Instant { option value } "An option of the mount is set to this, by whoever mounts or by default.";
            NfsMountOption "nfs_mount_option" Stable Rare Instant { option } "An option of the mount is in force that has no value.";
            NfsMount "nfs_mount" Stable Rare Instant { server name } "An export is mounted at the directory that is named.";
            NfsUmount "nfs_umount" Stable Rare Instant { server name } "The mount has ended.";

            RpcCall "rpc_call" Stable Request Begin { xid procedure sent server cause } "A call goes to the server.";
            RpcReply "rpc_reply" Stable Request End { xid procedure received rtt error } "Its reply is there, or it is given up.";
            RpcRetransmit "rpc_retransmit" Stable Rare Instant { xid server reason } "A call is sent again.";
            RpcMalformed "rpc_malformed" Stable Rare Instant { server reason } "A reply makes no sense.";
            RpcNotResponding "rpc_not_responding" Stable Rare Instant { server } "The server is silent.";
            RpcResponding "rpc_responding" Stable Rare Instant { server } "The server answers again.";
            RpcConnect "rpc_connect" Stable Rare Instant { server again } "A connection to the server is made.";
            RpcConnectFailed "rpc_connect_failed" Stable Rare Instant { server reason } "A connection cannot be made.";
            RpcDisconnect "rpc_disconnect" Stable Rare Instant { server reason } "A connection to the server is lost.";

            NfsdCall "nfsd_call" Stable Operation Enter { xid procedure uid peer } "A call is executed.";
            NfsdReply "nfsd_reply" Stable Operation Exit { xid procedure status res } "It is done; its reply, of so many bytes of results without a READ's data that are sent from a file, is to be sent.";
            NfsdRejected "nfsd_rejected" Stable Rare Instant { xid procedure peer reason } "A call is refused before its procedure runs.";
            NfsdFhVerify "nfsd_fh_verify" Stable Operation Instant { fhandle hit status } "What a handle stands for is found: by its signature, or remembered by the connection.";
            NfsdExport "nfsd_export" Stable Operation Instant { export peer hit status } "What the client may do with an export is decided, or remembered.";
            NfsdIdentity "nfsd_identity" Stable Operation Instant { uid hit } "As whom a caller is served is decided, or remembered.";
            NfsdFileAcquire "nfsd_file_acquire" Stable Operation Instant { node hit } "A file is needed open: it is in the file cache, or opened.";
            NfsdFileClose "nfsd_file_close" Stable Request Instant { entries reason } "Files of the file cache are closed.";
            NfsdRead "nfsd_read" Stable Operation Instant { fhandle offset res eof } "Data were read.";
            NfsdWrite "nfsd_write" Stable Operation Instant { fhandle offset res stable } "Data were written.";
            NfsdReaddir "nfsd_readdir" Stable Request Instant { fhandle cookie entries eof plus } "Names of a directory were read.";
            NfsdDrcFound "nfsd_drc_found" Stable Rare Instant { xid procedure peer reason } "A call was executed before: it is answered as then, or not at all.";
            NfsdReload "nfsd_reload" Stable Rare Instant { entries reason } "The exports were read again.";
            CurtPanicked "curt_panicked" Draft Rare Instant { reason } "A thread has panicked at this place of the source: what it did is given up, and a copy of the ring is made.";
            SvcAccept "svc_xprt_accept" Stable Rare Instant { peer } "A connection is accepted.";
            SvcClose "svc_xprt_close" Stable Rare Instant { peer reason } "A connection is closed.";
        }
    };
}

pub(super) use with_events;
