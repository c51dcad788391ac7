//! The statuses with which each operation may fail (RFC 8881 section 15.2). All replies of these
//! tests are compared with them, and those to any operation on any object with arguments that mean
//! nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;

use curt_proto::nfs4::Nfs4Operation as Op;
use curt_proto::nfs4::*;

use super::fixture::{Fixture, OBJECTS, go};

/// With these an operation within a session may fail, whatever it does.
const COMMON: &str = "BADXDR DEADSESSION DELAY OP_NOT_IN_SESSION REP_TOO_BIG REP_TOO_BIG_TO_CACHE REQ_TOO_BIG \
     RETRY_UNCACHED_REP SERVERFAULT TOO_MANY_OPS";

/// The other statuses of the operations.
const OWN: &[(Op, &str)] = &[
    (Op::Access, "ACCESS FHEXPIRED INVAL IO MOVED NOFILEHANDLE STALE"),
    (Op::BackchannelCtl, "INVAL NOENT"),
    (Op::BindConnToSession, "BADSESSION BAD_SESSION_DIGEST INVAL NOT_ONLY_OP"),
    (
        Op::Close,
        "ADMIN_REVOKED BAD_STATEID EXPIRED FHEXPIRED LOCKS_HELD MOVED NOFILEHANDLE OLD_STATEID \
         STALE WRONG_CRED",
    ),
    (Op::Commit, "ACCESS FHEXPIRED IO ISDIR MOVED NOFILEHANDLE STALE SYMLINK WRONG_TYPE"),
    (
        Op::Create,
        "ACCESS ATTRNOTSUPP BADCHAR BADNAME BADOWNER BADTYPE DQUOT EXIST FHEXPIRED INVAL IO MLINK \
         MOVED NAMETOOLONG NOFILEHANDLE NOSPC NOTDIR PERM ROFS STALE UNSAFE_COMPOUND",
    ),
    (
        Op::CreateSession,
        "CLID_INUSE INVAL NOENT NOT_ONLY_OP NOSPC SEQ_MISORDERED STALE_CLIENTID TOOSMALL \
         WRONG_CRED",
    ),
    (
        Op::Delegreturn,
        "ADMIN_REVOKED BAD_STATEID DELEG_REVOKED EXPIRED FHEXPIRED INVAL MOVED NOFILEHANDLE \
         NOTSUPP OLD_STATEID STALE WRONG_CRED",
    ),
    (Op::DestroyClientid, "CLIENTID_BUSY NOT_ONLY_OP STALE_CLIENTID WRONG_CRED"),
    (
        Op::DestroySession,
        "BACK_CHAN_BUSY BADSESSION CB_PATH_DOWN CONN_NOT_BOUND_TO_SESSION NOT_ONLY_OP \
         STALE_CLIENTID WRONG_CRED",
    ),
    (Op::ExchangeId, "BADCHAR CLID_INUSE ENCR_ALG_UNSUPP HASH_ALG_UNSUPP INVAL NOENT NOT_ONLY_OP NOT_SAME"),
    (Op::FreeStateid, "BAD_STATEID LOCKS_HELD OLD_STATEID WRONG_CRED"),
    (
        Op::GetDirDelegation,
        "ACCESS DIRDELEG_UNAVAIL FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE NOTDIR NOTSUPP STALE",
    ),
    (Op::Getattr, "ACCESS FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE STALE WRONG_TYPE"),
    (Op::Getfh, "FHEXPIRED MOVED NOFILEHANDLE STALE"),
    (Op::Illegal, "OP_ILLEGAL"),
    (
        Op::Link,
        "ACCESS BADCHAR BADNAME DQUOT EXIST FHEXPIRED FILE_OPEN GRACE INVAL ISDIR IO MLINK MOVED \
         NAMETOOLONG NOFILEHANDLE NOSPC NOTDIR NOTSUPP ROFS STALE SYMLINK WRONGSEC WRONG_TYPE \
         XDEV",
    ),
    (
        Op::Lock,
        "ACCESS ADMIN_REVOKED BAD_RANGE BAD_STATEID DEADLOCK DENIED EXPIRED FHEXPIRED GRACE INVAL \
         ISDIR LOCK_NOTSUPP LOCK_RANGE MOVED NOFILEHANDLE NO_GRACE OLD_STATEID OPENMODE \
         RECLAIM_BAD RECLAIM_CONFLICT ROFS STALE SYMLINK WRONG_CRED WRONG_TYPE",
    ),
    (
        Op::Lockt,
        "ACCESS BAD_RANGE DENIED FHEXPIRED GRACE INVAL ISDIR LOCK_RANGE MOVED NOFILEHANDLE ROFS \
         STALE SYMLINK WRONG_CRED WRONG_TYPE",
    ),
    (
        Op::Locku,
        "ACCESS ADMIN_REVOKED BAD_RANGE BAD_STATEID EXPIRED FHEXPIRED INVAL LOCK_RANGE MOVED \
         NOFILEHANDLE OLD_STATEID STALE WRONG_CRED",
    ),
    (
        Op::Lookup,
        "ACCESS BADCHAR BADNAME FHEXPIRED INVAL IO MOVED NAMETOOLONG NOENT NOFILEHANDLE NOTDIR \
         STALE SYMLINK WRONGSEC",
    ),
    (Op::Lookupp, "ACCESS FHEXPIRED IO MOVED NOENT NOFILEHANDLE NOTDIR STALE SYMLINK WRONGSEC"),
    (
        Op::Nverify,
        "ACCESS ATTRNOTSUPP BADCHAR FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE SAME STALE \
         UNKNOWN_LAYOUTTYPE WRONG_TYPE",
    ),
    (
        Op::Open,
        "ACCESS ADMIN_REVOKED ATTRNOTSUPP BADCHAR BADNAME BADOWNER BAD_STATEID \
         DELEG_ALREADY_WANTED DELEG_REVOKED DQUOT EXIST EXPIRED FBIG FHEXPIRED GRACE INVAL ISDIR \
         IO MOVED NAMETOOLONG NOENT NOFILEHANDLE NOSPC NOTDIR NO_GRACE OLD_STATEID PERM \
         RECLAIM_BAD RECLAIM_CONFLICT ROFS SHARE_DENIED STALE SYMLINK UNSAFE_COMPOUND WRONGSEC \
         WRONG_TYPE",
    ),
    (
        Op::OpenDowngrade,
        "ADMIN_REVOKED BAD_STATEID EXPIRED FHEXPIRED INVAL MOVED NOFILEHANDLE OLD_STATEID ROFS \
         STALE WRONG_CRED",
    ),
    (Op::Putfh, "BADHANDLE MOVED STALE WRONGSEC"),
    (Op::Putpubfh, "WRONGSEC"),
    (Op::Putrootfh, "WRONGSEC"),
    (
        Op::Read,
        "ACCESS ADMIN_REVOKED BAD_STATEID DELEG_REVOKED EXPIRED FHEXPIRED GRACE INVAL ISDIR IO \
         LOCKED MOVED NOFILEHANDLE OLD_STATEID OPENMODE STALE SYMLINK WRONG_TYPE",
    ),
    (Op::Readdir, "ACCESS BAD_COOKIE FHEXPIRED INVAL IO MOVED NOFILEHANDLE NOTDIR NOT_SAME STALE TOOSMALL"),
    (Op::Readlink, "ACCESS FHEXPIRED INVAL IO MOVED NOFILEHANDLE STALE WRONG_TYPE"),
    (Op::ReclaimComplete, "COMPLETE_ALREADY FHEXPIRED INVAL MOVED NOFILEHANDLE STALE WRONG_CRED WRONG_TYPE"),
    (
        Op::Remove,
        "ACCESS BADCHAR BADNAME FHEXPIRED FILE_OPEN GRACE INVAL IO MOVED NAMETOOLONG NOENT \
         NOFILEHANDLE NOTDIR NOTEMPTY ROFS STALE",
    ),
    (
        Op::Rename,
        "ACCESS BADCHAR BADNAME DQUOT EXIST FHEXPIRED FILE_OPEN GRACE INVAL IO MLINK MOVED \
         NAMETOOLONG NOENT NOFILEHANDLE NOSPC NOTDIR NOTEMPTY ROFS STALE WRONGSEC XDEV",
    ),
    (Op::Restorefh, "FHEXPIRED MOVED NOFILEHANDLE STALE WRONGSEC"),
    (Op::Savefh, "FHEXPIRED MOVED NOFILEHANDLE STALE"),
    (Op::Secinfo, "ACCESS BADCHAR BADNAME FHEXPIRED INVAL MOVED NAMETOOLONG NOENT NOFILEHANDLE NOTDIR STALE"),
    (Op::SecinfoNoName, "ACCESS FHEXPIRED INVAL MOVED NOENT NOFILEHANDLE NOTDIR NOTSUPP STALE"),
    (
        Op::Sequence,
        "BADSESSION BADSLOT BAD_HIGH_SLOT CONN_NOT_BOUND_TO_SESSION SEQUENCE_POS SEQ_FALSE_RETRY \
         SEQ_MISORDERED",
    ),
    (Op::SetSsv, "BAD_SESSION_DIGEST INVAL"),
    (
        Op::Setattr,
        "ACCESS ADMIN_REVOKED ATTRNOTSUPP BADCHAR BADOWNER BAD_STATEID DELEG_REVOKED DQUOT \
         EXPIRED FBIG FHEXPIRED GRACE INVAL IO LOCKED MOVED NOFILEHANDLE NOSPC OLD_STATEID \
         OPENMODE PERM ROFS STALE UNKNOWN_LAYOUTTYPE WRONG_TYPE",
    ),
    (Op::TestStateid, ""),
    (
        Op::Verify,
        "ACCESS ATTRNOTSUPP BADCHAR FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE NOT_SAME STALE \
         UNKNOWN_LAYOUTTYPE WRONG_TYPE",
    ),
    (
        Op::Write,
        "ACCESS ADMIN_REVOKED BAD_STATEID DELEG_REVOKED DQUOT EXPIRED FBIG FHEXPIRED GRACE INVAL \
         IO ISDIR LOCKED MOVED NOFILEHANDLE NOSPC OLD_STATEID OPENMODE ROFS STALE SYMLINK \
         WRONG_TYPE",
    ),
];

/// Statuses that the server returns beyond the section, as knfsd does.
const BEYOND: &[(Op, &str)] = &[
    // Case 9 of section 18.35.4.
    (Op::ExchangeId, "PERM"),
    // EPERM of the kernel, for directories with the sticky bit and for protected_hardlinks: a
    // client reports the error of a local file system.
    (Op::Link, "PERM"),
    (Op::Remove, "PERM"),
    (Op::Rename, "PERM"),
    // Of delegations of a client's earlier instance: no other status says that.
    (Op::Open, "NOTSUPP"),
    // An export for privileged ports alone.
    (Op::Putfh, "PERM"),
];

/// The other statuses of an operation.
fn own_errors(operation: Nfs4Operation) -> &'static str {
    OWN.iter().find(|(own, _)| *own == operation).map_or_else(
        || {
            assert!(operation.properties().unsupported.is_some(), "{operation} has no list");
            "NOTSUPP"
        },
        |(_, errors)| errors,
    )
}

thread_local! {
    /// The operations that have failed in this thread, by their places in the table, with the
    /// statuses' names.
    static SEEN: RefCell<BTreeSet<(usize, &'static str)>> = const { RefCell::new(BTreeSet::new()) };
}

/// A row for each operation of a session: the statuses with which it has failed in this thread, and
/// others that the RFC has for it.
pub(super) fn rows() -> Vec<[String; 3]> {
    let seen = SEEN.take();
    let operations = Nfs4Operation::ALL.into_iter().filter(|operation| {
        operation.availability(2) == Availability::Supported || *operation == Nfs4Operation::Illegal
    });
    let rows = operations.map(|operation| {
        let of_it = seen.iter().filter(|(place, _)| *place == operation.index());
        let failed: Vec<_> = of_it.map(|(_, status)| *status).collect();
        let others = own_errors(operation).split(' ').filter(|status| !failed.contains(status));
        [operation.name().to_owned(), failed.join(", "), others.collect::<Vec<_>>().join(", ")]
    });
    rows.collect()
}

/// Whether the last operation of a reply may have its status.
pub(super) fn check(reply: &[u8]) {
    let results = CompoundResults::new(reply).unwrap();
    let header = results.header();
    // LOCK and LOCKT return the lock with DENIED.
    if header.results == 0 || matches!(header.status, NfsStat4::Ok | NfsStat4::Denied) {
        return;
    }
    let words: Vec<u32> = reply
        .chunks_exact(4)
        .rev()
        .take(6)
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        .collect();
    // SETATTR's result ends with the attributes that it has set: up to three words, and their
    // number before them.
    let setattr = [header.status.number(), Nfs4Operation::Setattr.number()];
    let is_setattr = (0..4)
        .zip(0..4)
        .any(|(at, set)| words.get(at) == Some(&set) && words[at + 1..].starts_with(&setattr));
    let operation = match words[..] {
        _ if is_setattr => Nfs4Operation::Setattr.number(),
        [status, operation, ..] => {
            assert_eq!(status, header.status.number());
            operation
        }
        _ => panic!("the reply ends early"),
    };
    let operation = Nfs4Operation::from_number(operation).unwrap();
    let name = header.status.name().trim_start_matches("NFS4ERR_");
    let beyond = BEYOND.iter().filter(|(own, _)| *own == operation).map(|(_, name)| *name);
    let mut allowed = COMMON.split(' ').chain(own_errors(operation).split(' ')).chain(beyond);
    assert!(allowed.any(|allowed| allowed == name), "{operation} may not fail with {name}");
    SEEN.with_borrow_mut(|seen| seen.insert((operation.index(), name)));
}

/// Executes all operations on all objects with arguments that mean nothing.
pub(super) fn call_without_meaning(minor: u32) {
    let numbers = (0..80).chain([Nfs4Operation::Illegal.number(), u32::MAX]);
    let arguments = [(0, 0), (0, 512), (1, 512), (0xff, 512)];
    for (number, (byte, length)) in numbers.flat_map(|number| arguments.map(|arguments| (number, arguments)))
    {
        let fixture = Fixture::with_minor(minor);
        let objects = OBJECTS.map(|(name, _)| Some(vec!["one", name]));
        for path in objects.into_iter().chain([Some(vec!["one"]), Some(vec!["deep"]), None]) {
            let put = |compound: &mut CompoundEncoder<'_>| {
                if let Some(path) = &path {
                    go(compound, path);
                    compound.bare(Nfs4Operation::Savefh);
                }
            };
            let status = fixture.run_number(put, number, &vec![byte; length]).status();
            let operation = Nfs4Operation::from_number(number);
            match operation.map(|operation| operation.availability(minor)) {
                None | Some(Availability::Illegal) => assert_eq!(status, NfsStat4::OpIllegal, "{number}"),
                Some(Availability::NotSupported) => assert_eq!(status, NfsStat4::Notsupp, "{number}"),
                Some(Availability::Supported) => {}
            }
        }
    }
}

#[test]
fn operations_with_meaningless_arguments_fail_as_the_rfc_allows() {
    [1, 2].into_iter().for_each(call_without_meaning);
}
