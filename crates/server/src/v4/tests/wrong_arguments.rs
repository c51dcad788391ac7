//! Arguments that are wrong, beside those that [`conformance`](super::conformance) tries on each
//! kind of object, with each name and attribute; its page shows them too.

use curt_proto::nfs4::*;
use curt_xdr::{Opaque, VarArray};

use super::fixture::{Fixture, fattr, go, name};

/// Appends the operations after SEQUENCE.
type Push = fn(&mut CompoundEncoder<'_>);

const FILE: [&str; 2] = ["one", "file"];
const DIRECTORY: [&str; 2] = ["one", "directory"];
const TOP: [&str; 1] = ["one"];

fn owner() -> StateOwner<'static> {
    StateOwner { clientid: Clientid(0), owner: Opaque::new(b"owner").unwrap() }
}

fn open(
    c: &mut CompoundEncoder<'_>,
    share_access: u32,
    share_deny: u32,
    how: OpenHow<'_>,
    claim: OpenClaim<'_>,
) {
    let share_access = ShareAccess4(share_access);
    c.push(&OpenArgs4 { seqid: 0, share_access, share_deny, owner: owner(), how, claim });
}

/// An OPEN of the file with these bits.
fn open_bits(c: &mut CompoundEncoder<'_>, share_access: u32, share_deny: u32) {
    go(c, &FILE);
    open(c, share_access, share_deny, OpenHow::NoCreate, OpenClaim::Fh);
}

const fn unchecked(set: Fattr4<'_>) -> CreateHow4<'_> {
    CreateHow4::Unchecked(set)
}

const fn guarded(set: Fattr4<'_>) -> CreateHow4<'_> {
    CreateHow4::Guarded(set)
}

fn creating(
    c: &mut CompoundEncoder<'_>,
    file: &str,
    values: &AttributeValues<'_>,
    how: fn(Fattr4<'_>) -> CreateHow4<'_>,
) {
    go(c, &TOP);
    fattr(values, |set| open(c, 1, 0, OpenHow::Create(how(set)), OpenClaim::Null(name(file))));
}

fn lock(c: &mut CompoundEncoder<'_>, offset: u64, length: u64) {
    go(c, &FILE);
    c.push(&LocktArgs4 { kind: LockType4::Read, offset, length, owner: owner() });
}

/// Opens the file, and locks these bytes to write.
fn take(c: &mut CompoundEncoder<'_>, offset: u64, length: u64) {
    open_bits(c, ShareAccess4::BOTH, 0);
    c.bare(Nfs4Operation::Savefh);
    lock_as(c, b"one", offset, length);
}

/// Locks bytes of the file that is open.
fn lock_as(c: &mut CompoundEncoder<'_>, owner: &[u8], offset: u64, length: u64) {
    let owner = StateOwner { clientid: Clientid(0), owner: Opaque::new(owner).unwrap() };
    let locker = Locker::New { open_seqid: 0, open_stateid: Stateid::CURRENT, seqid: 0, owner };
    c.push(&LockArgs4 { kind: LockType4::Write, reclaim: false, offset, length, locker });
}

fn unlock(c: &mut CompoundEncoder<'_>, offset: u64, length: u64) {
    take(c, 0, 10);
    c.push(&LockuArgs4 { kind: LockType4::Write, seqid: 0, stateid: Stateid::CURRENT, offset, length });
}

/// Puts a file into the directory, and goes back to the one above.
fn fill_directory(c: &mut CompoundEncoder<'_>) {
    go(c, &DIRECTORY);
    fattr(&none(), |set| open(c, 1, 0, OpenHow::Create(guarded(set)), OpenClaim::Null(name("inner"))));
    go(c, &TOP);
}

fn owned_by_name() -> AttributeValues<'static> {
    AttributeValues { owner: Some(Opaque::new(b"root@example.org").unwrap()), ..none() }
}

fn set(c: &mut CompoundEncoder<'_>, values: &AttributeValues<'_>) {
    go(c, &FILE);
    fattr(values, |attributes| c.push(&SetattrArgs4 { stateid: Stateid::ANONYMOUS, attributes }));
}

fn list(c: &mut CompoundEncoder<'_>, cookie: u64, verifier: u8, max_count: u32, attributes: Bitmap4) {
    go(c, &TOP);
    let verifier = Verifier4([verifier; 8]);
    c.push(&ReaddirArgs4 { cookie, verifier, directory_count: max_count, max_count, attributes });
}

fn rename(c: &mut CompoundEncoder<'_>, from: &str, to: &str) {
    go(c, &TOP);
    c.bare(Nfs4Operation::Savefh);
    c.push(&RenameArgs4 { from: name(from), to: name(to) });
}

fn exchange(c: &mut CompoundEncoder<'_>, flags: u32, state_protect: StateProtectArgs<'_>) {
    c.push(&ExchangeIdArgs4 {
        owner: ClientOwner { verifier: Verifier4([1; 8]), owner: Opaque::new(b"another").unwrap() },
        flags: ExchangeIdFlags(flags),
        state_protect,
        implementation: VarArray::default(),
    });
}

fn none() -> AttributeValues<'static> {
    AttributeValues::default()
}

fn time(nanoseconds: u32) -> Option<SetTime4> {
    Some(SetTime4::ClientTime(NfsTime4 { seconds: 1, nanoseconds }))
}

/// The requests and their statuses.
pub(super) const TRIES: [(&str, Push, NfsStat4); 66] = [
    ("OPEN for no access", |c| open_bits(c, 0, 0), NfsStat4::Inval),
    ("OPEN with an unknown access", |c| open_bits(c, 0x10_0001, 0), NfsStat4::Inval),
    ("OPEN with an unknown wish for a delegation", |c| open_bits(c, 0x601, 0), NfsStat4::Inval),
    ("OPEN with an unknown denial", |c| open_bits(c, 1, 4), NfsStat4::Inval),
    (
        "OPEN by handle that creates",
        |c| {
            go(c, &FILE);
            fattr(&none(), |set| open(c, 1, 0, OpenHow::Create(CreateHow4::Unchecked(set)), OpenClaim::Fh));
        },
        NfsStat4::Inval,
    ),
    (
        "OPEN of a delegated file that creates",
        |c| {
            go(c, &TOP);
            let claim = OpenClaim::DelegateCur(Stateid { seqid: 1, other: [7; 12] }, name("file"));
            fattr(&none(), |set| open(c, 1, 0, OpenHow::Create(guarded(set)), claim));
        },
        NfsStat4::Inval,
    ),
    (
        "OPEN that reclaims after RECLAIM_COMPLETE",
        |c| {
            go(c, &FILE);
            open(c, 1, 0, OpenHow::NoCreate, OpenClaim::Previous(DelegationType::None));
        },
        NfsStat4::NoGrace,
    ),
    ("OPEN, UNCHECKED, of a directory", |c| creating(c, "directory", &none(), unchecked), NfsStat4::Isdir),
    ("OPEN, UNCHECKED, of a link", |c| creating(c, "link", &none(), unchecked), NfsStat4::Symlink),
    ("OPEN, UNCHECKED, of a FIFO", |c| creating(c, "fifo", &none(), unchecked), NfsStat4::WrongType),
    ("OPEN, GUARDED, of a file", |c| creating(c, "file", &none(), guarded), NfsStat4::Exist),
    (
        "OPEN, EXCLUSIVE4_1, of a file",
        |c| creating(c, "file", &none(), |set| CreateHow4::Exclusive41(Verifier4([7; 8]), set)),
        NfsStat4::Exist,
    ),
    (
        "OPEN, EXCLUSIVE4_1, with times",
        |c| {
            let times = AttributeValues { time_modify_set: time(0), ..none() };
            creating(c, "new", &times, |set| CreateHow4::Exclusive41(Verifier4([7; 8]), set));
        },
        NfsStat4::Inval,
    ),
    ("LOCKT of no bytes", |c| lock(c, 0, 0), NfsStat4::Inval),
    ("LOCKT beyond the last byte", |c| lock(c, 2, u64::MAX - 1), NfsStat4::Inval),
    ("LOCKT of the last byte", |c| lock(c, u64::MAX, u64::MAX), NfsStat4::Ok),
    (
        "LOCKT of what another owner has locked",
        |c| {
            take(c, 5, 5);
            c.push(&LocktArgs4 { kind: LockType4::Read, offset: 9, length: 1, owner: owner() });
        },
        NfsStat4::Denied,
    ),
    (
        "LOCK of what another owner has locked",
        |c| {
            take(c, 5, 5);
            c.bare(Nfs4Operation::Restorefh);
            lock_as(c, b"two", 0, u64::MAX);
        },
        NfsStat4::Denied,
    ),
    ("LOCK of no bytes", |c| take(c, 0, 0), NfsStat4::Inval),
    ("LOCK beyond the last byte", |c| take(c, 2, u64::MAX - 1), NfsStat4::Inval),
    ("LOCKU of no bytes", |c| unlock(c, 0, 0), NfsStat4::Inval),
    ("LOCKU beyond the last byte", |c| unlock(c, 2, u64::MAX - 1), NfsStat4::Inval),
    ("LOCKU of bytes that are not locked", |c| unlock(c, 100, 1), NfsStat4::Ok),
    (
        "VERIFY of another size",
        |c| {
            go(c, &FILE);
            let sized = AttributeValues { size: Some(99), ..none() };
            fattr(&sized, |attributes| c.push(&VerifyArgs4 { attributes }));
        },
        NfsStat4::NotSame,
    ),
    (
        "REMOVE of a directory with names",
        |c| {
            fill_directory(c);
            c.push(&RemoveArgs4 { name: name("directory") });
        },
        NfsStat4::Notempty,
    ),
    (
        "RENAME of a directory to one with names",
        |c| {
            fill_directory(c);
            fattr(&none(), |attributes| {
                c.push(&CreateArgs4 { kind: CreateType4::Directory, name: name("new"), attributes });
            });
            rename(c, "new", "directory");
        },
        NfsStat4::Notempty,
    ),
    ("OPEN with an owner by name", |c| creating(c, "new", &owned_by_name(), guarded), NfsStat4::Badowner),
    (
        "CREATE with an owner by name",
        |c| {
            go(c, &TOP);
            fattr(&owned_by_name(), |attributes| {
                c.push(&CreateArgs4 { kind: CreateType4::Directory, name: name("new"), attributes });
            });
        },
        NfsStat4::Badowner,
    ),
    (
        "COMMIT beyond the last byte",
        |c| {
            go(c, &FILE);
            c.push(&CommitArgs4 { offset: u64::MAX, count: 1 });
        },
        NfsStat4::Ok,
    ),
    (
        "WRITE beyond the largest file",
        |c| {
            go(c, &FILE);
            let (stateid, data) = (Stateid::ANONYMOUS, Opaque::new(b"data").unwrap());
            c.push(&WriteArgs4 { stateid, offset: u64::MAX - 1, stable: StableHow4::Unstable, data });
        },
        NfsStat4::Fbig,
    ),
    (
        "READ beyond the end",
        |c| {
            go(c, &FILE);
            c.push(&ReadArgs4 { stateid: Stateid::ANONYMOUS, offset: u64::MAX - 1, count: 4096 });
        },
        NfsStat4::Ok,
    ),
    (
        "SETATTR of an unknown mode bit",
        |c| set(c, &AttributeValues { mode: Some(0o10_000), ..none() }),
        NfsStat4::Inval,
    ),
    (
        "SETATTR of a time of 10^9 ns",
        |c| set(c, &AttributeValues { time_modify_set: time(1_000_000_000), ..none() }),
        NfsStat4::Inval,
    ),
    ("SETATTR of an owner by name", |c| set(c, &owned_by_name()), NfsStat4::Badowner),
    (
        "SETATTR of an empty owner",
        |c| set(c, &AttributeValues { owner: Some(Opaque::default()), ..none() }),
        NfsStat4::Badowner,
    ),
    ("READDIR from cookie 1", |c| list(c, 1, 0, 4096, Bitmap4::EMPTY), NfsStat4::BadCookie),
    ("READDIR from cookie 2", |c| list(c, 2, 0, 4096, Bitmap4::EMPTY), NfsStat4::BadCookie),
    ("READDIR with another verifier", |c| list(c, 9, 1, 4096, Bitmap4::EMPTY), NfsStat4::NotSame),
    ("READDIR from the start with a verifier", |c| list(c, 0, 1, 4096, Bitmap4::EMPTY), NfsStat4::BadCookie),
    ("READDIR of no bytes", |c| list(c, 0, 0, 0, Bitmap4::EMPTY), NfsStat4::Toosmall),
    ("READDIR without room for a name", |c| list(c, 0, 0, 24, Bitmap4::EMPTY), NfsStat4::Toosmall),
    (
        "READDIR with an attribute to be set",
        |c| list(c, 0, 0, 4096, Attribute::set(&[Attribute::TimeModifySet])),
        NfsStat4::Inval,
    ),
    ("RENAME of a file to a directory", |c| rename(c, "file", "directory"), NfsStat4::Exist),
    ("RENAME of a directory to a file", |c| rename(c, "directory", "file"), NfsStat4::Exist),
    ("RENAME of a file to itself", |c| rename(c, "file", "file"), NfsStat4::Ok),
    (
        "RENAME of a directory into itself",
        |c| {
            go(c, &TOP);
            c.bare(Nfs4Operation::Savefh);
            go(c, &DIRECTORY);
            c.push(&RenameArgs4 { from: name("directory"), to: name("inner") });
        },
        NfsStat4::Inval,
    ),
    (
        "LINK to a name that exists",
        |c| {
            go(c, &FILE);
            c.bare(Nfs4Operation::Savefh);
            go(c, &TOP);
            c.push(&LinkArgs4 { name: name("directory") });
        },
        NfsStat4::Exist,
    ),
    (
        "CREATE of a name that exists",
        |c| {
            go(c, &TOP);
            fattr(&none(), |attributes| {
                c.push(&CreateArgs4 { kind: CreateType4::Directory, name: name("file"), attributes });
            });
        },
        NfsStat4::Exist,
    ),
    (
        "CREATE of a regular file",
        |c| {
            go(c, &TOP);
            fattr(&none(), |attributes| {
                c.push(&CreateArgs4 { kind: CreateType4::Other(1), name: name("new"), attributes });
            });
        },
        NfsStat4::Badtype,
    ),
    (
        "PUTFH of three bytes",
        |c| c.push(&PutfhArgs4 { object: NfsFh4::new(b"abc").unwrap() }),
        NfsStat4::Badhandle,
    ),
    ("PUTFH of nothing", |c| c.push(&PutfhArgs4 { object: NfsFh4::default() }), NfsStat4::Badhandle),
    ("RESTOREFH without SAVEFH", |c| c.bare(Nfs4Operation::Restorefh), NfsStat4::Nofilehandle),
    (
        "LOOKUPP at the root of all",
        |c| {
            c.bare(Nfs4Operation::Putrootfh);
            c.bare(Nfs4Operation::Lookupp);
        },
        NfsStat4::Noent,
    ),
    (
        "SECINFO_NO_NAME of the parent of the root of all",
        |c| {
            c.bare(Nfs4Operation::Putrootfh);
            c.push(&SecinfoNoNameArgs4::Parent);
        },
        NfsStat4::Noent,
    ),
    (
        "GETFH after SECINFO",
        |c| {
            go(c, &TOP);
            c.push(&SecinfoArgs4 { name: name("file") });
            c.bare(Nfs4Operation::Getfh);
        },
        NfsStat4::Nofilehandle,
    ),
    (
        "RECLAIM_COMPLETE, twice",
        |c| c.push(&ReclaimCompleteArgs4 { one_file_system: false }),
        NfsStat4::CompleteAlready,
    ),
    (
        "SEQUENCE, not first",
        |c| {
            c.push(&SequenceArgs4 {
                session: SessionId::default(),
                sequence: SequenceId(1),
                slot: SlotId(0),
                highest_slot: SlotId(0),
                cache_this: false,
            });
        },
        NfsStat4::SequencePos,
    ),
    ("EXCHANGE_ID with an unknown flag", |c| exchange(c, 8, StateProtectArgs::None), NfsStat4::Inval),
    (
        "EXCHANGE_ID with a flag of results",
        |c| exchange(c, ExchangeIdFlags::CONFIRMED_R, StateProtectArgs::None),
        NfsStat4::Inval,
    ),
    (
        "EXCHANGE_ID that updates nothing",
        |c| exchange(c, ExchangeIdFlags::UPD_CONFIRMED_REC_A, StateProtectArgs::None),
        NfsStat4::Noent,
    ),
    (
        "EXCHANGE_ID with SP4_MACH_CRED",
        |c| exchange(c, 0, StateProtectArgs::MachineCredential(StateProtectOps::default())),
        NfsStat4::Inval,
    ),
    (
        "BIND_CONN_TO_SESSION after SEQUENCE",
        |c| {
            let session = SessionId::default();
            c.push(&BindConnToSessionArgs4 { session, direction: ChannelDirFromClient::Fore, rdma: false });
        },
        NfsStat4::NotOnlyOp,
    ),
    (
        "DESTROY_SESSION of an unknown one",
        |c| c.push(&DestroySessionArgs4 { session: SessionId::default() }),
        NfsStat4::Badsession,
    ),
    (
        "DESTROY_CLIENTID of an unknown one",
        |c| c.push(&DestroyClientidArgs4 { clientid: Clientid(0) }),
        NfsStat4::StaleClientid,
    ),
    (
        "SET_SSV without SP4_SSV",
        |c| c.push(&SetSsvArgs4 { ssv: Opaque::default(), digest: Opaque::default() }),
        NfsStat4::Inval,
    ),
    (
        "BACKCHANNEL_CTL without a flavor",
        |c| {
            let callback_security = VarArray::default();
            c.push(&BackchannelCtlArgs4 { callback_program: 1, callback_security });
        },
        NfsStat4::Inval,
    ),
];

#[test]
fn wrong_arguments_have_the_statuses_of_the_rfc() {
    for (what, push, expected) in TRIES {
        assert_eq!(Fixture::with_minor(2).run(push).status(), expected, "{what}");
    }
}
