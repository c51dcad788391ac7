//! Arguments and results of every program: what decodes encodes to as many bytes, and decodes to the same again.

use curt_proto::mount3::{self, ExportList, ExportPath, MountList, MountReply};
use curt_proto::nfs3::*;
use curt_proto::portmap::{self, format_universal_address, parse_universal_address};
use curt_xdr::{Encode, decode_all};

/// The law for one type.
macro_rules! survives {
    ($bytes:expr, $($word:ty),+) => {{$(
        if let Ok(value) = decode_all::<$word>($bytes) {
            let mut out = Vec::new();
            value.encode(&mut out);
            // Padding may differ: what peers put there is not looked at.
            assert_eq!(out.len(), $bytes.len(), "{value:?}");
            let again: $word = decode_all(&out).expect("our own words are understood");
            assert_eq!(value, again);
        }
    )+}};
}

/// Walks a listing to its end, however it ends.
macro_rules! walks {
    ($bytes:expr, $entry:ty) => {
        if let Ok(Outcome::Ok(listing)) = decode_all::<Outcome<ReaddirOk<'_, $entry>, Option<Fattr>>>($bytes)
        {
            let mut entries = listing.entries;
            // An entry takes 24 bytes at least.
            let most = $bytes.len() / 24 + 1;
            assert!(entries.by_ref().count() <= most, "more entries than bytes");
            assert!(entries.next().is_none(), "a listing goes on after its end");
        }
    };
}

/// Portmap's and rpcbind's.
///
/// # Panics
/// If a word changes.
pub fn portmap_words(bytes: &[u8]) {
    survives!(
        bytes,
        portmap::Mapping,
        portmap::Binding<'_>,
        portmap::Address<'_>
    );
    if let Some(address) = parse_universal_address(bytes) {
        let text = format_universal_address(address);
        assert_eq!(parse_universal_address(text.as_bytes()), Some(address), "{text}");
    }
}

/// MOUNT's, of version 3 and what of version 1 is the same.
///
/// # Panics
/// If a word changes.
pub fn mount_words(bytes: &[u8]) {
    survives!(
        bytes,
        ExportPath<'_>,
        MountReply,
        MountList<'_>,
        ExportList<'_>,
        mount3::ClientName<'_>
    );
}

/// NFSv3's: the first byte is the procedure, modulo their number, whose arguments and results the rest are taken for.
///
/// # Panics
/// If a word changes.
pub fn nfs_words(bytes: &[u8]) {
    let Some((&number, bytes)) = bytes.split_first() else {
        return;
    };
    let procedure = Procedure::ALL[usize::from(number) % Procedure::ALL.len()];
    arguments(procedure, bytes);
    results(procedure, bytes);
}

fn arguments(procedure: Procedure, bytes: &[u8]) {
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr
        | Procedure::Readlink
        | Procedure::Fsstat
        | Procedure::Fsinfo
        | Procedure::Pathconf => survives!(bytes, FileHandle, FsinfoArguments),
        Procedure::Setattr => survives!(bytes, SetattrArguments),
        Procedure::Lookup | Procedure::Remove | Procedure::Rmdir => survives!(bytes, DirectoryName<'_>),
        Procedure::Access => survives!(bytes, AccessArguments),
        Procedure::Read => survives!(bytes, ReadArguments),
        Procedure::Write => survives!(bytes, WriteArguments<'_>),
        Procedure::Create => survives!(bytes, CreateArguments<'_>),
        Procedure::Mkdir => survives!(bytes, MkdirArguments<'_>),
        Procedure::Symlink => survives!(bytes, SymlinkArguments<'_>),
        Procedure::Mknod => survives!(bytes, MknodArguments<'_>),
        Procedure::Rename => survives!(bytes, RenameArguments<'_>),
        Procedure::Link => survives!(bytes, LinkArguments<'_>),
        Procedure::Readdir => survives!(bytes, ReaddirArguments),
        Procedure::ReaddirPlus => survives!(bytes, ReaddirPlusArguments),
        Procedure::Commit => survives!(bytes, CommitArguments),
    }
}

fn results(procedure: Procedure, bytes: &[u8]) {
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr => survives!(bytes, Outcome<Fattr>),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => {
            survives!(bytes, Outcome<WccData, WccData>);
        }
        Procedure::Lookup => survives!(bytes, Outcome<LookupOk, Option<Fattr>>),
        Procedure::Access => survives!(bytes, Outcome<AccessOk, Option<Fattr>>),
        Procedure::Readlink => survives!(bytes, Outcome<ReadlinkOk<'_>, Option<Fattr>>),
        Procedure::Read => survives!(bytes, Outcome<ReadOk<'_>, ReadFailed>),
        Procedure::Write => survives!(bytes, Outcome<WriteOk, WccData>),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            survives!(bytes, Outcome<Created, WccData>);
        }
        Procedure::Rename => survives!(bytes, Outcome<RenameWcc, RenameWcc>),
        Procedure::Link => survives!(bytes, Outcome<LinkWcc, LinkWcc>),
        Procedure::Readdir => walks!(bytes, DirectoryEntry<'_>),
        Procedure::ReaddirPlus => walks!(bytes, DirectoryEntryPlus<'_>),
        Procedure::Fsstat => survives!(bytes, Outcome<FsstatOk, Option<Fattr>>),
        Procedure::Fsinfo => survives!(bytes, Outcome<FsinfoOk, Option<Fattr>>),
        Procedure::Pathconf => survives!(bytes, Outcome<PathconfOk, Option<Fattr>>),
        Procedure::Commit => survives!(bytes, Outcome<CommitOk, WccData>),
    }
}

/// Whether these are results of that procedure.
pub(crate) fn is_result(procedure: Procedure, bytes: &[u8]) -> bool {
    match procedure {
        Procedure::Null => bytes.is_empty(),
        Procedure::Getattr => decode_all::<Outcome<Fattr>>(bytes).is_ok(),
        Procedure::Setattr | Procedure::Remove | Procedure::Rmdir => {
            decode_all::<Outcome<WccData, WccData>>(bytes).is_ok()
        }
        Procedure::Lookup => decode_all::<Outcome<LookupOk, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Access => decode_all::<Outcome<AccessOk, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Readlink => decode_all::<Outcome<ReadlinkOk<'_>, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Read => decode_all::<Outcome<ReadOk<'_>, ReadFailed>>(bytes).is_ok(),
        Procedure::Write => decode_all::<Outcome<WriteOk, WccData>>(bytes).is_ok(),
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            decode_all::<Outcome<Created, WccData>>(bytes).is_ok()
        }
        Procedure::Rename => decode_all::<Outcome<RenameWcc, RenameWcc>>(bytes).is_ok(),
        Procedure::Link => decode_all::<Outcome<LinkWcc, LinkWcc>>(bytes).is_ok(),
        Procedure::Readdir => is_listing::<DirectoryEntry<'_>>(bytes),
        Procedure::ReaddirPlus => is_listing::<DirectoryEntryPlus<'_>>(bytes),
        Procedure::Fsstat => decode_all::<Outcome<FsstatOk, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Fsinfo => decode_all::<Outcome<FsinfoOk, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Pathconf => decode_all::<Outcome<PathconfOk, Option<Fattr>>>(bytes).is_ok(),
        Procedure::Commit => decode_all::<Outcome<CommitOk, WccData>>(bytes).is_ok(),
    }
}

fn is_listing<'a, E: curt_xdr::Decode<'a>>(bytes: &'a [u8]) -> bool {
    match decode_all::<Outcome<ReaddirOk<'a, E>, Option<Fattr>>>(bytes) {
        Ok(Outcome::Ok(mut listing)) => {
            listing.entries.by_ref().all(|entry| entry.is_ok()) && listing.entries.eof().is_some()
        }
        Ok(Outcome::Failed(..)) => true,
        Err(_) => false,
    }
}
