//! Arguments and results of all programs: a decoded value is encoded to the same number of bytes,
//! and decoded to the same value again.

use curt_proto::mount3::{self, DirPath, ExportList, MountList, MountReply};
use curt_proto::nfs3::*;
use curt_proto::portmap::{self, format_universal_address, parse_universal_address};
use curt_xdr::{Encode, decode_all};

/// The property for one type.
macro_rules! survives {
    ($bytes:expr, $($word:ty),+) => {{$(
        if let Ok(value) = decode_all::<$word>($bytes) {
            let mut out = Vec::new();
            value.encode(&mut out);
            // Padding may differ, because it is ignored when decoding.
            assert_eq!(out.len(), $bytes.len(), "{value:?}");
            let again: $word = decode_all(&out).expect("our own words are understood");
            assert_eq!(value, again);
        }
    )+}};
}

/// Iterates over a listing to its end.
macro_rules! walks {
    ($bytes:expr, $entry:ty) => {
        if let Ok(NfsResult::Ok(listing)) =
            decode_all::<NfsResult<ReaddirOk<'_, $entry>, Option<Fattr>>>($bytes)
        {
            let mut entries = listing.entries;
            // An entry has at least 24 bytes.
            let most = $bytes.len() / 24 + 1;
            assert!(entries.by_ref().count() <= most, "more entries than bytes");
            assert!(entries.next().is_none(), "a listing goes on after its end");
        }
    };
}

/// Those of portmap and rpcbind.
///
/// # Panics
/// If a value changes.
pub fn portmap_words(bytes: &[u8]) {
    survives!(bytes, portmap::Mapping, portmap::Rpcb<'_>, portmap::UniversalAddress<'_>);
    if let Some(address) = parse_universal_address(bytes) {
        let text = format_universal_address(address);
        assert_eq!(parse_universal_address(text.as_bytes()), Some(address), "{text}");
    }
}

/// Those of MOUNT, version 3 and the equal parts of version 1.
///
/// # Panics
/// If a value changes.
pub fn mount_words(bytes: &[u8]) {
    survives!(bytes, DirPath<'_>, MountReply, MountList<'_>, ExportList<'_>, mount3::ClientName<'_>);
}

/// Those of NFSv3: the first byte modulo the number of procedures selects the procedure, and the
/// rest is decoded as its arguments and results.
///
/// # Panics
/// If a value changes.
pub fn nfs_words(bytes: &[u8]) {
    let Some((&number, bytes)) = bytes.split_first() else {
        return;
    };
    let procedure = NfsProcedure::ALL[usize::from(number) % NfsProcedure::ALL.len()];
    arguments(procedure, bytes);
    results(procedure, bytes);
}

fn arguments(procedure: NfsProcedure, bytes: &[u8]) {
    match procedure {
        NfsProcedure::Null => {}
        NfsProcedure::Getattr
        | NfsProcedure::Readlink
        | NfsProcedure::Fsstat
        | NfsProcedure::Fsinfo
        | NfsProcedure::Pathconf => survives!(bytes, NfsFh3, FsinfoArguments),
        NfsProcedure::Setattr => survives!(bytes, SetattrArguments),
        NfsProcedure::Lookup | NfsProcedure::Remove | NfsProcedure::Rmdir => survives!(bytes, DirOpArgs<'_>),
        NfsProcedure::Access => survives!(bytes, AccessArguments),
        NfsProcedure::Read => survives!(bytes, ReadArguments),
        NfsProcedure::Write => survives!(bytes, WriteArguments<'_>),
        NfsProcedure::Create => survives!(bytes, CreateArguments<'_>),
        NfsProcedure::Mkdir => survives!(bytes, MkdirArguments<'_>),
        NfsProcedure::Symlink => survives!(bytes, SymlinkArguments<'_>),
        NfsProcedure::Mknod => survives!(bytes, MknodArguments<'_>),
        NfsProcedure::Rename => survives!(bytes, RenameArguments<'_>),
        NfsProcedure::Link => survives!(bytes, LinkArguments<'_>),
        NfsProcedure::Readdir => survives!(bytes, ReaddirArguments),
        NfsProcedure::ReaddirPlus => survives!(bytes, ReaddirPlusArguments),
        NfsProcedure::Commit => survives!(bytes, CommitArguments),
    }
}

fn results(procedure: NfsProcedure, bytes: &[u8]) {
    match procedure {
        NfsProcedure::Null => {}
        NfsProcedure::Getattr => survives!(bytes, NfsResult<Fattr>),
        NfsProcedure::Setattr | NfsProcedure::Remove | NfsProcedure::Rmdir => {
            survives!(bytes, NfsResult<WccData, WccData>);
        }
        NfsProcedure::Lookup => survives!(bytes, NfsResult<LookupOk, Option<Fattr>>),
        NfsProcedure::Access => survives!(bytes, NfsResult<AccessOk, Option<Fattr>>),
        NfsProcedure::Readlink => survives!(bytes, NfsResult<ReadlinkOk<'_>, Option<Fattr>>),
        NfsProcedure::Read => survives!(bytes, NfsResult<ReadOk<'_>, ReadFail>),
        NfsProcedure::Write => survives!(bytes, NfsResult<WriteOk, WccData>),
        NfsProcedure::Create | NfsProcedure::Mkdir | NfsProcedure::Symlink | NfsProcedure::Mknod => {
            survives!(bytes, NfsResult<CreateOk, WccData>);
        }
        NfsProcedure::Rename => survives!(bytes, NfsResult<RenameWcc, RenameWcc>),
        NfsProcedure::Link => survives!(bytes, NfsResult<LinkWcc, LinkWcc>),
        NfsProcedure::Readdir => walks!(bytes, DirectoryEntry<'_>),
        NfsProcedure::ReaddirPlus => walks!(bytes, DirectoryEntryPlus<'_>),
        NfsProcedure::Fsstat => survives!(bytes, NfsResult<FsstatOk, Option<Fattr>>),
        NfsProcedure::Fsinfo => survives!(bytes, NfsResult<FsinfoOk, Option<Fattr>>),
        NfsProcedure::Pathconf => survives!(bytes, NfsResult<PathconfOk, Option<Fattr>>),
        NfsProcedure::Commit => survives!(bytes, NfsResult<CommitOk, WccData>),
    }
}

/// Whether these are results of that procedure.
pub(crate) fn is_result(procedure: NfsProcedure, bytes: &[u8]) -> bool {
    match procedure {
        NfsProcedure::Null => bytes.is_empty(),
        NfsProcedure::Getattr => decode_all::<NfsResult<Fattr>>(bytes).is_ok(),
        NfsProcedure::Setattr | NfsProcedure::Remove | NfsProcedure::Rmdir => {
            decode_all::<NfsResult<WccData, WccData>>(bytes).is_ok()
        }
        NfsProcedure::Lookup => decode_all::<NfsResult<LookupOk, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Access => decode_all::<NfsResult<AccessOk, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Readlink => decode_all::<NfsResult<ReadlinkOk<'_>, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Read => decode_all::<NfsResult<ReadOk<'_>, ReadFail>>(bytes).is_ok(),
        NfsProcedure::Write => decode_all::<NfsResult<WriteOk, WccData>>(bytes).is_ok(),
        NfsProcedure::Create | NfsProcedure::Mkdir | NfsProcedure::Symlink | NfsProcedure::Mknod => {
            decode_all::<NfsResult<CreateOk, WccData>>(bytes).is_ok()
        }
        NfsProcedure::Rename => decode_all::<NfsResult<RenameWcc, RenameWcc>>(bytes).is_ok(),
        NfsProcedure::Link => decode_all::<NfsResult<LinkWcc, LinkWcc>>(bytes).is_ok(),
        NfsProcedure::Readdir => is_listing::<DirectoryEntry<'_>>(bytes),
        NfsProcedure::ReaddirPlus => is_listing::<DirectoryEntryPlus<'_>>(bytes),
        NfsProcedure::Fsstat => decode_all::<NfsResult<FsstatOk, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Fsinfo => decode_all::<NfsResult<FsinfoOk, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Pathconf => decode_all::<NfsResult<PathconfOk, Option<Fattr>>>(bytes).is_ok(),
        NfsProcedure::Commit => decode_all::<NfsResult<CommitOk, WccData>>(bytes).is_ok(),
    }
}

fn is_listing<'a, E: curt_xdr::Decode<'a>>(bytes: &'a [u8]) -> bool {
    match decode_all::<NfsResult<ReaddirOk<'a, E>, Option<Fattr>>>(bytes) {
        Ok(NfsResult::Ok(mut listing)) => {
            listing.entries.by_ref().all(|entry| entry.is_ok()) && listing.entries.eof().is_some()
        }
        Ok(NfsResult::Failed(..)) => true,
        Err(_) => false,
    }
}
