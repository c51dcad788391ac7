//! NFSv4's types: round trips, layouts that RFC 5662 fixes, and the tables.

use curt_proto::nfs4::*;
use curt_types::{ByteRange, Fault};
use curt_xdr::{Decode, Decoder, Encode, Opaque, VarArray, decode_all};

use crate::survival::bytes_of;

/// Encodes and decodes a value, and checks that no strict prefix is accepted.
macro_rules! survives {
    ($type:ty, $value:expr) => {{
        let value: $type = $value;
        let bytes = bytes_of(&value);
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(decode_all::<$type>(&bytes), Ok(value.clone()));
        for cut in 0..bytes.len() {
            assert!(decode_all::<$type>(&bytes[..cut]).is_err(), "cut to {cut} of {value:?}");
        }
    }};
}

const STATEID: Stateid = Stateid { seqid: 7, other: *b"twelve bytes" };
const VERIFIER: Verifier4 = Verifier4(*b"verifier");
const SESSION: SessionId = SessionId([9; 16]);

fn text(text: &str) -> OpaqueLimited<'_> {
    Opaque::new(text.as_bytes()).unwrap()
}

fn name(name: &str) -> Component<'_> {
    Opaque::new(name.as_bytes()).unwrap()
}

fn array<T: core::fmt::Debug, const MAX: usize>(items: Vec<T>) -> VarArray<T, MAX> {
    VarArray::new(items).unwrap()
}

fn words(value: &impl Encode) -> Vec<u32> {
    bytes_of(value).as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
}

#[test]
fn arguments_and_results_of_sessions_survive() {
    let owner = ClientOwner { verifier: VERIFIER, owner: text("owner") };
    let implementation = ImplementationId { domain: text("d"), name: text("n"), date: NfsTime4::default() };
    let operations = StateProtectOps { must_enforce: Bitmap4::EMPTY.with(42), must_allow: Bitmap4::EMPTY };
    let ssv = SsvParameters {
        operations,
        hash_algorithms: array(vec![text("sha")]),
        encryption_algorithms: array(vec![text("aes"), text("des")]),
        window: 3,
        gss_handles: 4,
    };
    let protections =
        [StateProtectArgs::None, StateProtectArgs::MachineCredential(operations), StateProtectArgs::Ssv(ssv)];
    for state_protect in protections {
        let implementation = array(vec![implementation]);
        let flags = ExchangeIdFlags(ExchangeIdFlags::SUPP_MOVED_REFER);
        survives!(ExchangeIdArgs4<'_>, ExchangeIdArgs4 { owner, flags, state_protect, implementation });
    }
    let info = SsvInfo {
        operations,
        hash_algorithm: 1,
        encryption_algorithm: 2,
        ssv_length: 3,
        window: 4,
        handles: array(vec![text("handle")]),
    };
    for state_protect in
        [StateProtectOk::None, StateProtectOk::MachineCredential(operations), StateProtectOk::Ssv(info)]
    {
        survives!(
            ExchangeIdOk4<'_>,
            ExchangeIdOk4 {
                clientid: Clientid(1),
                sequence: SequenceId(2),
                flags: ExchangeIdFlags(ExchangeIdFlags::CONFIRMED_R),
                state_protect,
                server_owner: ServerOwner { minor_id: 3, major_id: text("major") },
                server_scope: text("scope"),
                implementation: VarArray::default(),
            }
        );
    }
}

#[test]
fn arguments_and_results_of_slots_and_channels_survive() {
    let channel =
        ChannelAttributes { requests_max: 8, rdma_ird: array(vec![5]), ..ChannelAttributes::default() };
    let sys = CallbackSysCredentials {
        stamp: 1,
        machine_name: Opaque::new(b"host").unwrap(),
        uid: 2,
        gid: 3,
        groups: array(vec![4, 5]),
    };
    let gss = CallbackGssHandles { service: 1, from_server: text("s"), from_client: text("c") };
    let security = vec![CallbackSecParms4::None, CallbackSecParms4::Sys(sys), CallbackSecParms4::Gss(gss)];
    survives!(
        CreateSessionArgs4<'_>,
        CreateSessionArgs4 {
            clientid: Clientid(1),
            sequence: SequenceId(2),
            flags: CreateSessionFlags(CreateSessionFlags::CONN_BACK_CHAN),
            fore: channel.clone(),
            back: ChannelAttributes::default(),
            callback_program: 0x4000_0000,
            callback_security: array(security.clone()),
        }
    );
    let (sequence, slot, highest_slot) = (SequenceId(2), SlotId(3), SlotId(4));
    let flags = CreateSessionFlags::default();
    survives!(
        CreateSessionOk4,
        CreateSessionOk4 { session: SESSION, sequence, flags, fore: channel.clone(), back: channel }
    );
    survives!(
        BackchannelCtlArgs4<'_>,
        BackchannelCtlArgs4 { callback_program: 1, callback_security: array(security) }
    );
    let sequence_args = SequenceArgs4 { session: SESSION, sequence, slot, highest_slot, cache_this: true };
    survives!(SequenceArgs4, sequence_args);
    assert_eq!(words(&sequence_args)[4..], [2, 3, 4, 1]);
    let status_flags = SequenceStatusFlags(SequenceStatusFlags::CB_PATH_DOWN);
    let target_highest_slot = SlotId(5);
    survives!(
        SequenceOk4,
        SequenceOk4 { session: SESSION, sequence, slot, highest_slot, target_highest_slot, status_flags }
    );
    let direction = ChannelDirFromClient::BackOrBoth;
    survives!(BindConnToSessionArgs4, BindConnToSessionArgs4 { session: SESSION, direction, rdma: false });
    let direction = ChannelDirFromServer::Both;
    survives!(BindConnToSessionOk4, BindConnToSessionOk4 { session: SESSION, direction, rdma: true });
    survives!(DestroySessionArgs4, DestroySessionArgs4 { session: SESSION });
    let opaque = |bytes| OpaqueLimited::new(bytes).unwrap();
    survives!(SetSsvArgs4<'_>, SetSsvArgs4 { ssv: opaque(b"secret"), digest: opaque(b"proof") });
    survives!(DestroyClientidArgs4, DestroyClientidArgs4 { clientid: Clientid(1 << 40) });
    survives!(ReclaimCompleteArgs4, ReclaimCompleteArgs4 { one_file_system: true });
    let calls = array(vec![ReferringCall { sequence, slot }]);
    let referring = array(vec![ReferringCalls { session: SESSION, calls }]);
    survives!(
        CbSequenceArgs4,
        CbSequenceArgs4 { session: SESSION, sequence, slot, highest_slot, cache_this: false, referring }
    );
    survives!(
        CbSequenceOk4,
        CbSequenceOk4 { session: SESSION, sequence, slot, highest_slot, target_highest_slot }
    );
}

#[test]
fn arguments_and_results_of_state_survive() {
    let owner = StateOwner { clientid: Clientid(1), owner: text("owner") };
    let attributes =
        Fattr4 { mask: Attribute::set(&[Attribute::Mode]), values: Opaque::new(&[0; 4]).unwrap() };
    let hows = [
        OpenHow::NoCreate,
        OpenHow::Create(CreateHow4::Unchecked(attributes)),
        OpenHow::Create(CreateHow4::Guarded(attributes)),
        OpenHow::Create(CreateHow4::Exclusive(VERIFIER)),
        OpenHow::Create(CreateHow4::Exclusive41(VERIFIER, attributes)),
    ];
    let claims = [
        OpenClaim::Null(name("file")),
        OpenClaim::Previous(DelegationType::Write),
        OpenClaim::DelegateCur(STATEID, name("file")),
        OpenClaim::DelegatePrev(name("file")),
        OpenClaim::Fh,
        OpenClaim::DelegCurFh(STATEID),
        OpenClaim::DelegPrevFh,
    ];
    for how in hows {
        for claim in claims {
            let share_access = ShareAccess4(ShareAccess4::BOTH | ShareAccess4::WANT_NO_DELEG);
            survives!(OpenArgs4<'_>, OpenArgs4 { seqid: 0, share_access, share_deny: 2, owner, how, claim });
        }
    }
    let permissions = Nfsace4 { kind: 0, flags: 1, mask: 2, who: text("OWNER@") };
    let read = OpenDelegation::Read { stateid: STATEID, recall: true, permissions };
    let write =
        |space_limit| OpenDelegation::Write { stateid: STATEID, recall: false, space_limit, permissions };
    let delegations = [
        OpenDelegation::None,
        read,
        write(SpaceLimit::Size(1 << 40)),
        write(SpaceLimit::Blocks(1, 2)),
        OpenDelegation::NoneExt(NoDelegation::Contention(true)),
        OpenDelegation::NoneExt(NoDelegation::Resource(false)),
        OpenDelegation::NoneExt(NoDelegation::IsDirectory),
    ];
    for delegation in delegations {
        let flags = OpenResultFlags(OpenResultFlags::LOCKTYPE_POSIX);
        let directory = ChangeInfo { atomic: true, before: 1, after: 2 };
        let attributes_set = attributes.mask;
        survives!(OpenOk4<'_>, OpenOk4 { stateid: STATEID, directory, flags, attributes_set, delegation });
    }
    let share_access = ShareAccess4(1);
    survives!(
        OpenDowngradeArgs4,
        OpenDowngradeArgs4 { stateid: STATEID, seqid: 0, share_access, share_deny: 0 }
    );
    survives!(CloseArgs4, CloseArgs4 { seqid: 0, stateid: STATEID });
    survives!(DelegreturnArgs4, DelegreturnArgs4 { stateid: STATEID });
    let new = Locker::New { open_seqid: 1, open_stateid: STATEID, seqid: 2, owner };
    for locker in [new, Locker::Existing { stateid: STATEID, seqid: 3 }] {
        survives!(
            LockArgs4<'_>,
            LockArgs4 { kind: LockType4::WriteWait, reclaim: false, offset: 1, length: u64::MAX, locker }
        );
    }
    let kind = LockType4::Read;
    survives!(LockDenied<'_>, LockDenied { offset: 1, length: 2, kind, owner });
    survives!(LocktArgs4<'_>, LocktArgs4 { kind, offset: 1, length: 2, owner });
    survives!(LockuArgs4, LockuArgs4 { kind, seqid: 0, stateid: STATEID, offset: 1, length: 2 });
    survives!(TestStateidArgs4, TestStateidArgs4 { stateids: array(vec![STATEID; 3]) });
    survives!(TestStateidOk4, TestStateidOk4 { statuses: array(vec![NfsStat4::Ok, NfsStat4::Expired]) });
    survives!(FreeStateidArgs4, FreeStateidArgs4 { stateid: STATEID });
    let granted = GetDirDelegationOk4::Granted {
        verifier: VERIFIER,
        stateid: STATEID,
        notification_types: Bitmap4::EMPTY,
        child_attributes: Bitmap4::EMPTY.with(1),
        directory_attributes: Bitmap4::EMPTY.with(33),
    };
    survives!(GetDirDelegationOk4, granted);
    survives!(GetDirDelegationOk4, GetDirDelegationOk4::Unavailable(true));
    let object = NfsFh4::new(b"handle").unwrap();
    survives!(CbRecallArgs4<'_>, CbRecallArgs4 { stateid: STATEID, truncate: true, object });
    let types = Bitmap4::EMPTY.with(CbRecallAnyArgs4::WRITE_DELEGATIONS);
    survives!(CbRecallAnyArgs4, CbRecallAnyArgs4 { objects_to_keep: 3, types });
    survives!(CbNotifyLockArgs4<'_>, CbNotifyLockArgs4 { object, owner });
    survives!(CbGetattrArgs4<'_>, CbGetattrArgs4 { object, attributes: types });
}

#[test]
fn arguments_and_results_of_files_survive() {
    let attributes =
        Fattr4 { mask: Attribute::set(&[Attribute::Size]), values: Opaque::new(&[0; 8]).unwrap() };
    let directory = ChangeInfo { atomic: false, before: 1, after: 2 };
    let device = SpecData4 { major: 1, minor: 2 };
    let kinds = [
        CreateType4::Directory,
        CreateType4::BlockDevice(device),
        CreateType4::CharacterDevice(device),
        CreateType4::Symlink(name("target")),
        CreateType4::Socket,
        CreateType4::Fifo,
        CreateType4::Other(1),
    ];
    for kind in kinds {
        survives!(CreateArgs4<'_>, CreateArgs4 { kind, name: name("n"), attributes });
    }
    survives!(CreateOk4, CreateOk4 { directory, attributes_set: attributes.mask });
    survives!(PutfhArgs4<'_>, PutfhArgs4 { object: NfsFh4::new(&[3; FILE_HANDLE_MAX]).unwrap() });
    assert_eq!(NfsFh4::new(&[3; FILE_HANDLE_MAX + 1]), None);
    survives!(AccessOk4, AccessOk4 { supported: 3, access: 1 });
    survives!(GetattrOk4<'_>, GetattrOk4 { attributes });
    survives!(SetattrArgs4<'_>, SetattrArgs4 { stateid: STATEID, attributes });
    survives!(VerifyArgs4<'_>, VerifyArgs4 { attributes });
    survives!(RenameArgs4<'_>, RenameArgs4 { from: name("a"), to: name("b") });
    survives!(RenameOk4, RenameOk4 { source: directory, target: directory });
    survives!(ReadArgs4, ReadArgs4 { stateid: STATEID, offset: 1, count: 2 });
    survives!(ReadOk4<'_>, ReadOk4 { eof: true, data: Opaque::new(b"data!").unwrap() });
    let (offset, stable) = (5, StableHow4::DataSync);
    let write = WriteArgs4 { stateid: STATEID, offset, stable, data: Opaque::new(b"data!").unwrap() };
    survives!(WriteArgs4<'_>, write);
    let mut by_head = bytes_of(&WriteHead4 { stateid: STATEID, offset, stable, count: 5 });
    by_head.extend_from_slice(b"data!\0\0\0");
    assert_eq!(by_head, bytes_of(&write));
    survives!(WriteOk4, WriteOk4 { count: 5, committed: StableHow4::FileSync, verifier: VERIFIER });
    survives!(CommitArgs4, CommitArgs4 { offset: 1, count: 2 });
    let gss = GssInfo { oid: text("oid"), qop: 0, service: 1 };
    survives!(SecinfoOk4<'_>, SecinfoOk4 { flavors: array(vec![Secinfo::Gss(gss), Secinfo::Flavor(1)]) });
    survives!(SecinfoNoNameArgs4, SecinfoNoNameArgs4::Parent);
    let arguments = ReaddirArgs4 {
        cookie: 3,
        verifier: VERIFIER,
        directory_count: 1,
        max_count: 2,
        attributes: attributes.mask,
    };
    survives!(ReaddirArgs4, arguments);
}

#[test]
fn attributes_are_encoded_in_ascending_order_and_decoded_again() {
    let values = AttributeValues {
        kind: Some(Ftype4::Directory),
        size: Some(5),
        mode: Some(0o755),
        owner: Some(text("77")),
        time_modify_set: Some(SetTime4::ClientTime(NfsTime4 { seconds: -1, nanoseconds: 2 })),
        mounted_on_fileid: Some(9),
        suppattr_exclcreat: Some(Bitmap4::EMPTY.with(4)),
        ..AttributeValues::default()
    };
    let mut out = Vec::new();
    values.encode(values.present(), &mut out);
    let fattr: Fattr4<'_> = decode_all(&out).unwrap();
    assert_eq!(fattr.mask, values.present());
    assert_eq!(AttributeValues::decode(&fattr), Ok(values));
    let mut some = Vec::new();
    values.encode(Attribute::set(&[Attribute::Type, Attribute::Size, Attribute::Fileid]), &mut some);
    let expected: &[u32] = &[1, 0x12, 12, 2, 0, 5];
    assert_eq!(
        some.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect::<Vec<_>>(),
        expected
    );
    for cut in 0..fattr.values.len() {
        let short = Fattr4 { values: Opaque::new(&fattr.values.bytes()[..cut]).unwrap(), ..fattr };
        assert!(AttributeValues::decode(&short).is_err(), "{cut}");
    }
    let acl = Fattr4 { mask: Attribute::set(&[Attribute::Acl]), values: Opaque::default() };
    assert!(AttributeValues::decode(&acl).is_err(), "an attribute without a value");
}

#[test]
fn bitmaps_keep_what_is_known_and_tell_of_the_rest() {
    assert_eq!(words(&Bitmap4::EMPTY), [0]);
    assert_eq!(words(&Bitmap4::EMPTY.with(0).with(33)), [2, 1, 2]);
    assert_eq!(words(&Bitmap4::EMPTY.with(95)), [3, 0, 0, 1 << 31]);
    let of = |words: &[u32]| {
        let mut bytes = bytes_of(&u32::try_from(words.len()).unwrap());
        words.iter().for_each(|word| word.encode(&mut bytes));
        decode_all::<Bitmap4>(&bytes)
    };
    let long = of(&[1, 0, 2, 0, 0]).unwrap();
    assert!(long.numbers().eq([0, 65]) && long.without(long).is_empty());
    let unknown = of(&[1, 0, 0, 4]).unwrap();
    assert!(unknown.numbers().eq([0]) && !unknown.without(unknown).is_empty());
    assert!(of(&[0; 64]).is_ok() && of(&[0; 65]).is_err());
    let numbers = [0, 1, 31, 32, 63, 64, 95];
    assert!(Bitmap4::from_iter(numbers).numbers().eq(numbers));
}

#[test]
fn the_tables_of_operations_and_attributes_are_consistent() {
    for (index, operation) in Nfs4Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation.index(), index);
        assert_eq!(Nfs4Operation::from_number(operation.number()), Some(operation));
        let properties = operation.properties();
        assert!(properties.first_minor <= properties.last_minor);
        assert!(properties.last_minor <= MINOR_VERSION_MAX);
        for minor in 0..=MINOR_VERSION_MAX {
            let illegal = operation == Nfs4Operation::Illegal || minor < properties.first_minor;
            assert_eq!(
                operation.availability(minor) == Availability::Illegal,
                illegal,
                "{operation} {minor}"
            );
        }
    }
    for number in [0, 1, 2, 76, 10_043, u32::MAX] {
        assert_eq!(Nfs4Operation::from_number(number), None);
    }
    assert_eq!(Nfs4Operation::Renew.availability(1), Availability::NotSupported);
    assert_eq!(Nfs4Operation::Sequence.availability(0), Availability::Illegal);
    assert_eq!(Nfs4Operation::Copy.availability(1), Availability::Illegal);
    assert_eq!(Nfs4Operation::Copy.availability(2), Availability::NotSupported);
    for (index, callback) in CallbackOperation::ALL.into_iter().enumerate() {
        assert_eq!(callback.index(), index);
        assert_eq!(CallbackOperation::from_number(callback.number()), Some(callback));
    }
    for attribute in Attribute::ALL {
        assert_eq!(Attribute::from_number(attribute.number()), Some(*attribute));
        let supported = Attribute::supported(2).contains(attribute.number());
        assert_eq!(supported, attribute.unsupported().is_none());
        assert!(!supported || attribute.type_name().is_some(), "{}", attribute.name());
        let (readable, settable) = (attribute.allows().readable(), attribute.allows().settable());
        assert_eq!(Attribute::READABLE.contains(attribute.number()), readable);
        assert_eq!(Attribute::SETTABLE.contains(attribute.number()), settable);
    }
    let valued = Attribute::ALL.iter().filter(|attribute| attribute.type_name().is_some());
    assert!(valued.is_sorted_by_key(|attribute| attribute.number()), "values are encoded in this order");
    assert_eq!(Attribute::ALL.len(), 83, "the attributes of RFC 8881, 7862, 8275 and 8276");
    assert!(!Attribute::supported(1).contains(Attribute::XattrSupport.number()));
}

#[test]
fn statuses_are_numbered_as_in_the_rfc_and_stand_for_faults() {
    for status in NfsStat4::ALL {
        assert_eq!(NfsStat4::from_number(status.number()), Some(*status));
        survives!(NfsStat4, *status);
    }
    for number in [3, 19, 71, 10_002, 10_073, 10_097] {
        assert_eq!(NfsStat4::from_number(number), None, "{number}");
    }
    let no_status = [Fault::Nodev];
    let faults = [
        Fault::Perm,
        Fault::Noent,
        Fault::Io,
        Fault::Nxio,
        Fault::Acces,
        Fault::Exist,
        Fault::Xdev,
        Fault::Notdir,
        Fault::Isdir,
        Fault::Inval,
        Fault::Fbig,
        Fault::Nospc,
        Fault::Rofs,
        Fault::Mlink,
        Fault::Nametoolong,
        Fault::Notempty,
        Fault::Dquot,
        Fault::Stale,
        Fault::Remote,
        Fault::Badhandle,
        Fault::NotSync,
        Fault::BadCookie,
        Fault::Notsupp,
        Fault::Toosmall,
        Fault::Serverfault,
        Fault::Badtype,
        Fault::Jukebox,
    ];
    for fault in faults {
        assert_eq!(Fault::from(NfsStat4::from(fault)), fault);
    }
    assert_eq!(no_status.map(NfsStat4::from), [NfsStat4::Nxio]);
}

#[test]
fn the_data_that_a_compound_omits_belong_where_it_says() {
    let (offset, stable) = (5, StableHow4::DataSync);
    let write = WriteArgs4 { stateid: STATEID, offset, stable, data: Opaque::new(b"data!").unwrap() };
    let compound = |put: &dyn Fn(&mut CompoundEncoder<'_>)| {
        let mut out = vec![7; 3];
        let mut compound = CompoundEncoder::new(&mut out, Opaque::default(), 1);
        compound.bare(Nfs4Operation::Putrootfh);
        put(&mut compound);
        compound.bare(Nfs4Operation::Getfh);
        let omitted = compound.finish();
        (out, omitted)
    };
    let (expected, nothing) = compound(&|compound| compound.push(&write));
    let head = WriteHead4 { stateid: STATEID, offset, stable, count: 5 };
    let (mut out, omitted) = compound(&|compound| compound.push_write(&head));
    let omitted = omitted.expect("the data of the WRITE");
    assert_eq!((nothing, omitted.length), (None, 5));
    out.splice(omitted.at..omitted.at, *b"data!\0\0\0");
    assert_eq!(out, expected);
}

#[test]
fn compounds_are_read_result_by_result() {
    let mut request = Vec::new();
    let mut compound = CompoundEncoder::new(&mut request, Opaque::new(b"tag").unwrap(), 1);
    compound.bare(Nfs4Operation::Putrootfh);
    compound.push(&LookupArgs4 { name: name("a") });
    assert_eq!(compound.finish(), None);
    let mut decoder = Decoder::new(&request);
    let header = CompoundHeader::decode(&mut decoder).unwrap();
    assert_eq!((header.tag.bytes(), header.minor_version, header.operations), (&b"tag"[..], 1, 2));
    assert_eq!(decoder.get::<Nfs4Operation>(), Ok(Nfs4Operation::Putrootfh));
    assert_eq!(decoder.get::<Nfs4Operation>(), Ok(Nfs4Operation::Lookup));
    assert_eq!(decoder.get::<LookupArgs4<'_>>(), Ok(LookupArgs4 { name: name("a") }));

    let tag = Opaque::new(b"tag").unwrap();
    let mut reply = bytes_of(&CompoundReplyHeader { status: NfsStat4::Noent, tag, results: 2 });
    ResultHeader { operation: Nfs4Operation::Putrootfh, status: NfsStat4::Ok }.encode(&mut reply);
    ResultHeader { operation: Nfs4Operation::Lookup, status: NfsStat4::Noent }.encode(&mut reply);
    let results = CompoundResults::new(&reply).unwrap();
    let mut right = results.clone();
    assert_eq!(right.next::<()>(Nfs4Operation::Putrootfh), Ok(()));
    let failed = ResultError::Failed(NfsStat4::Noent);
    assert_eq!(right.next::<()>(Nfs4Operation::Lookup), Err(failed));
    let missing = ResultError::NotExecuted(NfsStat4::Noent);
    assert_eq!(right.next::<()>(Nfs4Operation::Getfh), Err(missing));
    let mut wrong = results.clone();
    let other = ResultError::OtherOperation(Nfs4Operation::Putrootfh);
    assert_eq!(wrong.next::<()>(Nfs4Operation::Getfh), Err(other));
    let mut short = CompoundResults::new(&reply[..reply.len() - 4]).unwrap();
    assert_eq!(short.next::<()>(Nfs4Operation::Putrootfh), Ok(()));
    assert!(matches!(short.next::<()>(Nfs4Operation::Lookup), Err(ResultError::Decode(_))));
}

#[test]
fn the_status_of_a_result_follows_from_its_position() {
    // As knfsd of Linux 6.1 encodes an operation at the end of a page of its buffer.
    const UNDEFINED: u32 = 0x39ac_1fcf;
    let tag = Opaque::new(b"t").unwrap();
    let mut reply = bytes_of(&CompoundReplyHeader { status: NfsStat4::Access, tag, results: 2 });
    for operation in [Nfs4Operation::Putfh, Nfs4Operation::Lookupp] {
        operation.encode(&mut reply);
        UNDEFINED.encode(&mut reply);
    }
    let mut results = CompoundResults::new(&reply).unwrap();
    assert_eq!(results.next::<()>(Nfs4Operation::Putfh), Ok(()));
    let failed = ResultError::Failed(NfsStat4::Access);
    assert_eq!(results.next::<()>(Nfs4Operation::Lookupp), Err(failed));
}

#[test]
fn ranges_of_locks_reach_to_the_end_of_every_file_and_not_beyond() {
    assert_eq!(lock_range(0, u64::MAX), Some(ByteRange::WHOLE));
    assert_eq!(lock_range(5, u64::MAX), ByteRange::new(5, u64::MAX));
    assert_eq!(lock_range(5, 1), ByteRange::new(5, 5));
    assert_eq!(lock_range(5, 0), None);
    assert_eq!(lock_range(u64::MAX, u64::MAX), ByteRange::new(u64::MAX, u64::MAX));
    assert_eq!(lock_range(u64::MAX, 1), None);
    assert_eq!(lock_range(u64::MAX - 1, 1), ByteRange::new(u64::MAX - 1, u64::MAX - 1));
    for (offset, length) in [(0, u64::MAX), (5, u64::MAX), (5, 1), (0, 1 << 63), (u64::MAX, u64::MAX)] {
        let range = lock_range(offset, length).unwrap();
        assert_eq!(lock_offset_and_length(range), (offset, length));
    }
}

#[test]
fn a_listing_stays_within_its_limit_and_can_be_read() {
    let mut out = Vec::new();
    let mut encoder = ListingEncoder4::new(&mut out, 100, 0, VERIFIER).unwrap();
    let mut pushed = 0;
    while encoder.push(pushed + 3, name("name"), |out| Fattr4::default().encode(out)).is_ok() {
        pushed += 1;
    }
    assert_eq!(encoder.entries(), usize::try_from(pushed).unwrap());
    encoder.finish(false);
    assert!(out.len() <= 100 && pushed == 3, "{} bytes, {pushed} entries", out.len());
    let mut decoder = Decoder::new(&out);
    assert_eq!(decoder.get::<Verifier4>(), Ok(VERIFIER));
    for at in 0..pushed {
        let entry = DirectoryEntry4 { cookie: at + 3, name: name("name"), attributes: Fattr4::default() };
        assert_eq!(decoder.get(), Ok(ListingItem4::Entry(entry)));
    }
    assert_eq!(decoder.get(), Ok(ListingItem4::End(false)));
    decoder.finish().unwrap();
    for size in 0..16 {
        assert!(ListingEncoder4::new(&mut Vec::new(), size, 0, VERIFIER).is_err(), "{size}");
    }
}
