//! Arguments and results of all programs: a decoded value is encoded to the same number of bytes,
//! and decoded to the same value again.

use curt_proto::mount3::{self, DirPath, ExportList, MountList, MountReply};
use curt_proto::nfs3::*;
use curt_proto::portmap::{self, format_universal_address, parse_universal_address};
use curt_xdr::{Decode, Encode, decode_all};

/// The property for some types; whether the bytes are a value of one of them.
macro_rules! survives {
    ($bytes:expr, $($message:ty),+) => {{
        let mut is_valid = false;
        $(if let Ok(value) = decode_all::<$message>($bytes) {
            let mut out = Vec::new();
            value.encode(&mut out);
            // Padding may differ, because it is ignored when decoding.
            assert_eq!(out.len(), $bytes.len(), "{value:?}");
            let again: $message = decode_all(&out).expect("what was encoded is decoded");
            assert_eq!(value, again);
            is_valid = true;
        })+
        is_valid
    }};
}

/// Iterates over a listing to its end; whether the bytes are a complete one, or an error.
fn listing<'a, E: Decode<'a>>(bytes: &'a [u8]) -> bool {
    match decode_all::<NfsResult<ReaddirOk<'a, E>, Option<Fattr>>>(bytes) {
        Ok(NfsResult::Ok(listing)) => {
            let mut entries = listing.entries;
            // An entry has at least 24 bytes.
            let most = bytes.len() / 24 + 1;
            let found: Vec<_> = entries.by_ref().take(most + 1).collect();
            assert!(found.len() <= most, "more entries than bytes");
            assert!(entries.next().is_none(), "a listing goes on after its end");
            found.iter().all(Result::is_ok) && entries.eof().is_some()
        }
        Ok(NfsResult::Failed(..)) => true,
        Err(_) => false,
    }
}

/// The messages of portmap and rpcbind.
///
/// # Panics
/// If a value changes.
pub fn portmap_round_trip(bytes: &[u8]) {
    survives!(bytes, portmap::Mapping, portmap::Rpcb<'_>, portmap::UniversalAddress<'_>);
    if let Some(address) = parse_universal_address(bytes) {
        let text = format_universal_address(address);
        assert_eq!(parse_universal_address(text.as_bytes()), Some(address), "{text}");
    }
}

/// The messages of MOUNT, version 3 and the equal parts of version 1.
///
/// # Panics
/// If a value changes.
pub fn mount_round_trip(bytes: &[u8]) {
    survives!(bytes, DirPath<'_>, MountReply, MountList<'_>, ExportList<'_>, mount3::ClientName<'_>);
}

/// The messages of NFSv3: the first byte modulo the number of procedures selects the procedure, and
/// the rest is decoded as its arguments and results.
///
/// # Panics
/// If a value changes.
pub fn nfs_round_trip(bytes: &[u8]) {
    let Some((&number, bytes)) = bytes.split_first() else {
        return;
    };
    let procedure = NfsProcedure::ALL[usize::from(number) % NfsProcedure::ALL.len()];
    arguments(procedure, bytes);
    results(procedure, bytes);
}

fn arguments(procedure: NfsProcedure, bytes: &[u8]) -> bool {
    match procedure {
        NfsProcedure::Null => bytes.is_empty(),
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

/// The property for results; whether these are valid ones.
pub(crate) fn results(procedure: NfsProcedure, bytes: &[u8]) -> bool {
    match procedure {
        NfsProcedure::Null => bytes.is_empty(),
        NfsProcedure::Getattr => survives!(bytes, NfsResult<Fattr>),
        NfsProcedure::Setattr | NfsProcedure::Remove | NfsProcedure::Rmdir => {
            survives!(bytes, NfsResult<WccData, WccData>)
        }
        NfsProcedure::Lookup => survives!(bytes, NfsResult<LookupOk, Option<Fattr>>),
        NfsProcedure::Access => survives!(bytes, NfsResult<AccessOk, Option<Fattr>>),
        NfsProcedure::Readlink => survives!(bytes, NfsResult<ReadlinkOk<'_>, Option<Fattr>>),
        NfsProcedure::Read => survives!(bytes, NfsResult<ReadOk<'_>, ReadFail>),
        NfsProcedure::Write => survives!(bytes, NfsResult<WriteOk, WccData>),
        NfsProcedure::Create | NfsProcedure::Mkdir | NfsProcedure::Symlink | NfsProcedure::Mknod => {
            survives!(bytes, NfsResult<CreateOk, WccData>)
        }
        NfsProcedure::Rename => survives!(bytes, NfsResult<RenameWcc, RenameWcc>),
        NfsProcedure::Link => survives!(bytes, NfsResult<LinkWcc, LinkWcc>),
        NfsProcedure::Readdir => listing::<DirectoryEntry<'_>>(bytes),
        NfsProcedure::ReaddirPlus => listing::<DirectoryEntryPlus<'_>>(bytes),
        NfsProcedure::Fsstat => survives!(bytes, NfsResult<FsstatOk, Option<Fattr>>),
        NfsProcedure::Fsinfo => survives!(bytes, NfsResult<FsinfoOk, Option<Fattr>>),
        NfsProcedure::Pathconf => survives!(bytes, NfsResult<PathconfOk, Option<Fattr>>),
        NfsProcedure::Commit => survives!(bytes, NfsResult<CommitOk, WccData>),
    }
}
