//! Every procedure's arguments and results, both arms, survive a round trip; every cut of them is an error; and
//! the layouts that the RFC fixes to the byte are what it says.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::fmt::Debug;

use curt_proto::mount3::{
    ClientName, ExportEntry, ExportList, ExportPath, MountEntry, MountList, MountOk, MountReply,
};
use curt_proto::nfs3::*;
use curt_proto::{mount3, portmap};
use curt_xdr::{Chain, Decode, DecodeError, Encode, List, Opaque, decode_all};
use proptest::prelude::*;

/// Encodes, decodes, compares, and checks that no strict prefix is accepted.
fn survives<T>(value: &T)
where
    T: Encode + PartialEq + Debug + for<'a> DecodeFrom<'a, T>,
{
    let bytes = bytes_of(value);
    assert_eq!(bytes.len() % 4, 0);
    T::equals(&bytes, value).unwrap();
    for cut in 0..bytes.len() {
        assert!(
            T::equals(&bytes[..cut], value).is_err(),
            "cut to {cut} of {value:?}"
        );
    }
}

/// Decoding whose result is compared at once, so that a value of one lifetime can be tested with bytes of another.
trait DecodeFrom<'a, T> {
    fn equals(bytes: &'a [u8], value: &T) -> Result<(), DecodeError>;
}

macro_rules! decode_from {
    ($($own:ty => $other:ty),* $(,)?) => {$(
        impl<'a, 'v> DecodeFrom<'a, $own> for $own {
            fn equals(bytes: &'a [u8], value: &$own) -> Result<(), DecodeError> {
                let decoded: $other = decode_all(bytes)?;
                assert_eq!(&decoded, value);
                Ok(())
            }
        }
    )*};
}

decode_from! {
    FileHandle => FileHandle,
    SetattrArguments => SetattrArguments,
    DirectoryName<'v> => DirectoryName<'a>,
    AccessArguments => AccessArguments,
    ReadArguments => ReadArguments,
    WriteArguments<'v> => WriteArguments<'a>,
    CreateArguments<'v> => CreateArguments<'a>,
    MkdirArguments<'v> => MkdirArguments<'a>,
    SymlinkArguments<'v> => SymlinkArguments<'a>,
    MknodArguments<'v> => MknodArguments<'a>,
    RenameArguments<'v> => RenameArguments<'a>,
    LinkArguments<'v> => LinkArguments<'a>,
    ReaddirArguments => ReaddirArguments,
    ReaddirPlusArguments => ReaddirPlusArguments,
    FsinfoArguments => FsinfoArguments,
    CommitArguments => CommitArguments,
    Outcome<Fattr> => Outcome<Fattr>,
    Outcome<WccData, WccData> => Outcome<WccData, WccData>,
    Outcome<LookupOk, Option<Fattr>> => Outcome<LookupOk, Option<Fattr>>,
    Outcome<AccessOk, Option<Fattr>> => Outcome<AccessOk, Option<Fattr>>,
    Outcome<ReadlinkOk<'v>, Option<Fattr>> => Outcome<ReadlinkOk<'a>, Option<Fattr>>,
    Outcome<ReadOk<'v>, ReadFailed> => Outcome<ReadOk<'a>, ReadFailed>,
    Outcome<WriteOk, WccData> => Outcome<WriteOk, WccData>,
    Outcome<Created, WccData> => Outcome<Created, WccData>,
    Outcome<RenameWcc, RenameWcc> => Outcome<RenameWcc, RenameWcc>,
    Outcome<LinkWcc, LinkWcc> => Outcome<LinkWcc, LinkWcc>,
    Outcome<FsstatOk, Option<Fattr>> => Outcome<FsstatOk, Option<Fattr>>,
    Outcome<FsinfoOk, Option<Fattr>> => Outcome<FsinfoOk, Option<Fattr>>,
    Outcome<PathconfOk, Option<Fattr>> => Outcome<PathconfOk, Option<Fattr>>,
    Outcome<CommitOk, WccData> => Outcome<CommitOk, WccData>,
    ExportPath<'v> => ExportPath<'a>,
    MountReply => MountReply,
    MountList<'v> => MountList<'a>,
    ExportList<'v> => ExportList<'a>,
    portmap::Mapping => portmap::Mapping,
    portmap::Binding<'v> => portmap::Binding<'a>,
    portmap::Address<'v> => portmap::Address<'a>,
}

fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// A source of different values, so that two fields that change places are noticed.
struct Numbers(u64);

impl Numbers {
    fn u64(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0.rotate_left(17)
    }

    fn u32(&mut self) -> u32 {
        u32::try_from(self.u64() >> 32).unwrap()
    }

    fn maybe<T>(&mut self, value: T) -> Option<T> {
        (self.u32() & 1 == 0).then_some(value)
    }

    fn handle(&mut self) -> FileHandle {
        let length = usize::try_from(self.u64() % 65).unwrap();
        let byte = self.u64().to_be_bytes()[0];
        FileHandle::new(&vec![byte; length]).unwrap()
    }

    fn time(&mut self) -> NfsTime {
        NfsTime {
            seconds: self.u32(),
            nanoseconds: self.u32(),
        }
    }

    fn fattr(&mut self) -> Fattr {
        let kinds = [
            FileKind::Regular,
            FileKind::Directory,
            FileKind::Symlink,
            FileKind::Fifo,
        ];
        Fattr {
            kind: kinds[usize::try_from(self.u64() % 4).unwrap()],
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            used: self.u64(),
            rdev: Device {
                major: self.u32(),
                minor: self.u32(),
            },
            fsid: self.u64(),
            fileid: Fileid(self.u64()),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
        }
    }

    fn post_op(&mut self) -> Option<Fattr> {
        let fattr = self.fattr();
        self.maybe(fattr)
    }

    fn wcc(&mut self) -> WccData {
        let before = WccAttributes {
            size: self.u64(),
            mtime: self.time(),
            ctime: self.time(),
        };
        WccData {
            before: self.maybe(before),
            after: self.post_op(),
        }
    }

    fn set_time(&mut self) -> SetTime {
        match self.u32() % 3 {
            0 => SetTime::Keep,
            1 => SetTime::ServerTime,
            _ => SetTime::ClientTime(self.time()),
        }
    }

    fn sattr(&mut self) -> Sattr {
        let (mode, uid, gid, size) = (self.u32(), self.u32(), self.u32(), self.u64());
        Sattr {
            mode: self.maybe(mode),
            uid: self.maybe(uid),
            gid: self.maybe(gid),
            size: self.maybe(size),
            atime: self.set_time(),
            mtime: self.set_time(),
        }
    }

    fn place<'a>(&mut self, name: &'a [u8]) -> DirectoryName<'a> {
        DirectoryName {
            directory: self.handle(),
            name: Filename::new(name).unwrap(),
        }
    }

    fn verifier(&mut self) -> [u8; 8] {
        self.u64().to_be_bytes()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn arguments_of_every_procedure_survive(seed: u64, name in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        survives(&n.handle()); // GETATTR, READLINK, FSSTAT, PATHCONF
        let time = n.time();
        survives(&SetattrArguments { object: n.handle(), attributes: n.sattr(), guard: n.maybe(time) });
        survives(&n.place(&name)); // LOOKUP, REMOVE, RMDIR
        survives(&AccessArguments { object: n.handle(), access: AccessMask(n.u32()) });
        survives(&ReadArguments { file: n.handle(), offset: n.u64(), count: n.u32() });
        for stability in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let data = Opaque::new(&name).unwrap();
            survives(&WriteArguments { file: n.handle(), offset: n.u64(), count: n.u32(), stability, data });
        }
        let hows = [
            CreateHow::Unchecked(n.sattr()),
            CreateHow::Guarded(n.sattr()),
            CreateHow::Exclusive(CreateVerifier(n.verifier())),
        ];
        for how in hows {
            survives(&CreateArguments { place: n.place(&name), how });
        }
        survives(&MkdirArguments { place: n.place(&name), attributes: n.sattr() });
        let target = Path::new(&name).unwrap();
        survives(&SymlinkArguments { place: n.place(&name), attributes: n.sattr(), target });
        let device = Device { major: n.u32(), minor: n.u32() };
        let whats = [
            MknodData::BlockDevice(n.sattr(), device),
            MknodData::CharacterDevice(n.sattr(), device),
            MknodData::Socket(n.sattr()),
            MknodData::Fifo(n.sattr()),
            MknodData::Other(1),
        ];
        for what in whats {
            survives(&MknodArguments { place: n.place(&name), what });
        }
        survives(&RenameArguments { from: n.place(&name), to: n.place(&name) });
        survives(&LinkArguments { file: n.handle(), place: n.place(&name) });
        let (cookie, verifier) = (Cookie(n.u64()), CookieVerifier(n.verifier()));
        survives(&ReaddirArguments { directory: n.handle(), cookie, verifier, count: n.u32() });
        survives(&ReaddirPlusArguments {
            directory: n.handle(), cookie, verifier, directory_count: n.u32(), max_count: n.u32(),
        });
        survives(&FsinfoArguments { root: n.handle() });
        survives(&CommitArguments { file: n.handle(), offset: n.u64(), count: n.u32() });
    }

    #[test]
    fn results_of_every_procedure_survive(seed: u64, name in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        let failure = Status::ALL[1 + usize::try_from(seed % 28).unwrap()];
        survives(&Outcome::<Fattr>::Ok(n.fattr()));
        survives(&Outcome::<Fattr>::Failed(failure, ()));
        survives(&Outcome::<WccData, WccData>::Ok(n.wcc())); // SETATTR, REMOVE, RMDIR
        survives(&Outcome::<WccData, WccData>::Failed(failure, n.wcc()));
        let found = LookupOk { object: n.handle(), attributes: n.post_op(), directory: n.post_op() };
        survives(&Outcome::<_, Option<Fattr>>::Ok(found));
        survives(&Outcome::<LookupOk, _>::Failed(failure, n.post_op()));
        let access = AccessOk { attributes: n.post_op(), access: AccessMask(n.u32()) };
        survives(&Outcome::<_, Option<Fattr>>::Ok(access));
        survives(&Outcome::<AccessOk, _>::Failed(failure, n.post_op()));
        let target = Path::new(&name).unwrap();
        survives(&Outcome::<_, Option<Fattr>>::Ok(ReadlinkOk { attributes: n.post_op(), target }));
        survives(&Outcome::<ReadlinkOk<'_>, _>::Failed(failure, n.post_op()));
        let data = Opaque::new(&name).unwrap();
        let read = ReadOk { attributes: n.post_op(), count: n.u32(), eof: seed & 1 == 0, data };
        survives(&Outcome::<_, ReadFailed>::Ok(read));
        survives(&Outcome::<ReadOk<'_>, _>::Failed(failure, ReadFailed { attributes: n.post_op() }));
        for committed in [Stability::Unstable, Stability::DataSync, Stability::FileSync] {
            let verifier = WriteVerifier(n.verifier());
            let written = WriteOk { wcc: n.wcc(), count: n.u32(), committed, verifier };
            survives(&Outcome::<_, WccData>::Ok(written));
        }
        survives(&Outcome::<WriteOk, _>::Failed(failure, n.wcc()));
        let object = n.handle();
        let created = Created { object: n.maybe(object), attributes: n.post_op(), directory: n.wcc() };
        survives(&Outcome::<_, WccData>::Ok(created)); // CREATE, MKDIR, SYMLINK, MKNOD
        survives(&Outcome::<Created, _>::Failed(failure, n.wcc()));
        survives(&Outcome::<RenameWcc, RenameWcc>::Ok(RenameWcc { from: n.wcc(), to: n.wcc() }));
        survives(&Outcome::<RenameWcc, _>::Failed(failure, RenameWcc { from: n.wcc(), to: n.wcc() }));
        let linked = LinkWcc { attributes: n.post_op(), directory: n.wcc() };
        survives(&Outcome::<LinkWcc, LinkWcc>::Ok(linked));
        survives(&Outcome::<LinkWcc, LinkWcc>::Failed(failure, linked));
        survives(&Outcome::<_, WccData>::Ok(CommitOk { wcc: n.wcc(), verifier: WriteVerifier(n.verifier()) }));
        survives(&Outcome::<CommitOk, _>::Failed(failure, n.wcc()));
    }

    #[test]
    fn what_a_file_system_says_survives(seed: u64) {
        let n = &mut Numbers(seed);
        let failure = Status::ALL[1 + usize::try_from(seed % 28).unwrap()];
        let stat = FsstatOk {
            attributes: n.post_op(),
            total_bytes: n.u64(), free_bytes: n.u64(), available_bytes: n.u64(),
            total_files: n.u64(), free_files: n.u64(), available_files: n.u64(),
            invariant_seconds: n.u32(),
        };
        survives(&Outcome::<_, Option<Fattr>>::Ok(stat));
        survives(&Outcome::<FsstatOk, _>::Failed(failure, n.post_op()));
        let info = FsinfoOk {
            attributes: n.post_op(),
            read_max: n.u32(), read_preferred: n.u32(), read_multiple: n.u32(),
            write_max: n.u32(), write_preferred: n.u32(), write_multiple: n.u32(),
            directory_preferred: n.u32(), file_size_max: n.u64(), time_delta: n.time(),
            properties: Properties(n.u32()),
        };
        survives(&Outcome::<_, Option<Fattr>>::Ok(info));
        survives(&Outcome::<FsinfoOk, _>::Failed(failure, n.post_op()));
        let conf = PathconfOk {
            attributes: n.post_op(), link_max: n.u32(), name_max: n.u32(),
            no_truncation: n.u32() & 1 == 0, chown_restricted: n.u32() & 1 == 0,
            case_insensitive: n.u32() & 1 == 0, case_preserving: n.u32() & 1 == 0,
        };
        survives(&Outcome::<_, Option<Fattr>>::Ok(conf));
        survives(&Outcome::<PathconfOk, _>::Failed(failure, n.post_op()));
    }

    #[test]
    fn mount_and_rpcbind_survive(seed: u64, name in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        let path = ExportPath(Opaque::new(&name).unwrap());
        let client = ClientName(Opaque::new(&name).unwrap());
        survives(&path);
        survives(&MountReply::Ok(MountOk { root: n.handle(), flavors: List::new(vec![1, 0, n.u32()]).unwrap() }));
        for status in &mount3::Status::ALL[1..] {
            survives(&MountReply::Failed(*status));
        }
        survives(&MountList(Chain::new(vec![MountEntry { client, path }; 3]).unwrap()));
        let groups = Chain::new(vec![client; 2]).unwrap();
        let all = ExportEntry { path, groups: Chain::default() };
        survives(&ExportList(Chain::new(vec![all, ExportEntry { path, groups }]).unwrap()));
        let (program, version) = (n.u32(), n.u32());
        survives(&portmap::Mapping { program, version, protocol: n.u32(), port: n.u32() });
        let text = Opaque::new(&name).unwrap();
        survives(&portmap::Binding { program, version, netid: text, address: text, owner: text });
        survives(&portmap::Address(text));
    }

    /// Noise is an error or a value, never a panic.
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_all::<CreateArguments<'_>>(&noise);
        let _ = decode_all::<Outcome<Created, WccData>>(&noise);
        let _ = decode_all::<ExportList<'_>>(&noise);
        let _ = decode_all::<MountReply>(&noise);
        if let Ok(listing) = decode_all::<ReaddirOk<'_, DirectoryEntryPlus<'_>>>(&noise) {
            let _ = listing.entries.count();
        }
    }

    /// A listing comes back entry by entry, is never above its budget, and ends as it was ended.
    #[test]
    fn listings_survive_within_their_budget(
        seed: u64, plus: bool, eof: bool, count in 0u32..4000, directory_count in 0u32..4000,
        names in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..60), 0..40),
    ) {
        let n = &mut Numbers(seed);
        let (attributes, verifier) = (n.post_op(), CookieVerifier(n.verifier()));
        let mut out = vec![9, 9, 9, 9];
        let Ok(mut encoder) = ListingEncoder::new(&mut out, count, directory_count, attributes, verifier) else {
            prop_assert!(count < 104);
            prop_assert_eq!(out, [9; 4]);
            return Ok(());
        };
        let mut sent = Vec::new();
        for name in &names {
            let handle = n.handle();
            let entry = DirectoryEntryPlus {
                fileid: Fileid(n.u64()), name: Filename::new(name).unwrap(), cookie: Cookie(n.u64()),
                attributes: if plus { n.post_op() } else { None },
                handle: if plus { n.maybe(handle) } else { None },
            };
            let plain = DirectoryEntry { fileid: entry.fileid, name: entry.name, cookie: entry.cookie };
            if if plus { encoder.push_plus(&entry) } else { encoder.push(&plain) }.is_err() {
                break;
            }
            sent.push(entry);
        }
        prop_assert_eq!(encoder.entries(), sent.len());
        encoder.finish(eof);
        prop_assert!(out.len() - 4 <= usize::try_from(count).unwrap());
        let directory: usize = sent.iter().map(|e| 20 + e.name.bytes().len().next_multiple_of(4)).sum();
        prop_assert!(sent.len() <= 1 || directory <= usize::try_from(directory_count).unwrap());
        let (got, end) = if plus { walk_plus(&out[4..]) } else { walk(&out[4..]) };
        prop_assert_eq!(got, sent);
        prop_assert_eq!(end, Some(eof));
    }
}

fn walk_plus(bytes: &[u8]) -> (Vec<DirectoryEntryPlus<'_>>, Option<bool>) {
    let mut ok: ReaddirOk<'_, DirectoryEntryPlus<'_>> = decode_all(bytes).unwrap();
    assert_eq!(ok.entries.eof(), None);
    let entries = ok.entries.by_ref().map(Result::unwrap).collect();
    (entries, ok.entries.eof())
}

fn walk(bytes: &[u8]) -> (Vec<DirectoryEntryPlus<'_>>, Option<bool>) {
    let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(bytes).unwrap();
    let entries = ok
        .entries
        .by_ref()
        .map(Result::unwrap)
        .map(|DirectoryEntry { fileid, name, cookie }| DirectoryEntryPlus {
            fileid,
            name,
            cookie,
            attributes: None,
            handle: None,
        });
    (entries.collect(), ok.entries.eof())
}

#[test]
fn a_listing_cut_short_is_an_error_and_then_over() {
    let mut out = Vec::new();
    let mut encoder = ListingEncoder::new(&mut out, 1000, u32::MAX, None, CookieVerifier::default()).unwrap();
    let entry = DirectoryEntry {
        fileid: Fileid(1),
        name: Filename::new(b"a").unwrap(),
        cookie: Cookie(3),
    };
    encoder.push(&entry).unwrap();
    encoder.finish(true);
    for cut in 12..out.len() {
        let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(&out[..cut]).unwrap();
        let last = ok.entries.by_ref().last().unwrap();
        assert_eq!(last, Err(DecodeError::Short), "cut to {cut}");
        assert_eq!((ok.entries.next(), ok.entries.eof()), (None, None));
    }
    out.push(0);
    let mut ok: ReaddirOk<'_, DirectoryEntry<'_>> = decode_all(&out).unwrap();
    assert_eq!(ok.entries.by_ref().last(), Some(Err(DecodeError::Trailing(1))));
}

#[test]
fn attributes_are_laid_out_as_fattr3() {
    let fattr = Fattr {
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 3,
        uid: 4,
        gid: 5,
        size: 6,
        used: 7,
        rdev: Device { major: 8, minor: 9 },
        fsid: 10,
        fileid: Fileid(11),
        atime: NfsTime {
            seconds: 12,
            nanoseconds: 13,
        },
        mtime: NfsTime {
            seconds: 14,
            nanoseconds: 15,
        },
        ctime: NfsTime {
            seconds: 16,
            nanoseconds: 17,
        },
    };
    let words: Vec<u32> = bytes_of(&fattr)
        .as_chunks::<4>()
        .0
        .iter()
        .map(|w| u32::from_be_bytes(*w))
        .collect();
    assert_eq!(
        words,
        [
            2, 0o755, 3, 4, 5, 0, 6, 0, 7, 8, 9, 0, 10, 0, 11, 12, 13, 14, 15, 16, 17
        ]
    );
}

#[test]
fn limits_of_the_protocol_hold_at_the_bound_and_not_beyond() {
    assert!(FileHandle::new(&[0; 64]).is_ok());
    assert!(FileHandle::new(&[0; 65]).is_err());
    let long = |length: usize| {
        let mut bytes = u32::try_from(length).unwrap().to_be_bytes().to_vec();
        bytes.resize(4 + length.next_multiple_of(4), 0);
        bytes
    };
    assert!(decode_all::<FileHandle>(&long(64)).is_ok());
    assert!(matches!(
        decode_all::<FileHandle>(&long(65)),
        Err(DecodeError::TooLong { .. })
    ));
    assert!(decode_all::<Filename<'_>>(&long(FILENAME_MAX)).is_ok());
    assert!(matches!(
        decode_all::<Filename<'_>>(&long(FILENAME_MAX + 1)),
        Err(DecodeError::TooLong { .. })
    ));
    assert!(decode_all::<ExportPath<'_>>(&long(1024)).is_ok());
    assert!(matches!(
        decode_all::<ExportPath<'_>>(&long(1025)),
        Err(DecodeError::TooLong { .. })
    ));
    let head = WriteHead {
        file: FileHandle::new(b"f").unwrap(),
        offset: 1,
        count: 3,
        stability: Stability::Unstable,
    };
    let mut whole = bytes_of(&head);
    whole.extend_from_slice(b"abc\0");
    let arguments: WriteArguments<'_> = decode_all(&whole).unwrap();
    assert_eq!((arguments.count, arguments.data.bytes()), (3, &b"abc"[..]));
}

#[test]
fn tables_of_numbers_are_complete_and_invertible() {
    for (index, procedure) in Procedure::ALL.iter().enumerate() {
        assert_eq!(usize::try_from(procedure.number()).unwrap(), index);
        assert_eq!(Procedure::from_number(procedure.number()), Some(*procedure));
    }
    assert_eq!(Procedure::from_number(22), None);
    for status in Status::ALL {
        assert_eq!(Status::from_number(status.number()), Some(*status));
        assert_eq!(decode_all::<Status>(&bytes_of(status)), Ok(*status));
    }
    assert_eq!(Status::from_number(3), None);
    assert!(matches!(
        decode_all::<Status>(&[0, 0, 0, 3]),
        Err(DecodeError::BadValue { value: 3, .. })
    ));
    for status in mount3::Status::ALL {
        assert_eq!(mount3::Status::from_number(status.number()), Some(*status));
    }
    for procedure in mount3::Procedure::ALL {
        assert_eq!(
            mount3::Procedure::from_number(procedure.number()),
            Some(procedure)
        );
    }
}

#[test]
fn equal_handles_hash_alike_whatever_was_behind_them() {
    use std::hash::{BuildHasher, RandomState};
    let state = RandomState::new();
    let bytes = bytes_of(&FileHandle::new(b"same").unwrap());
    let decoded = FileHandle::decode(&mut curt_xdr::Decoder::new(&bytes)).unwrap();
    let made = FileHandle::new(b"same").unwrap();
    assert_eq!(decoded, made);
    assert_eq!(state.hash_one(decoded), state.hash_one(made));
    assert_eq!(format!("{made:?}"), "FileHandle(73616d65)");
}
