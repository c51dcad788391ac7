//! NFSv3, procedure by procedure.

use curt_proto::nfs3::*;
use curt_xdr::Opaque;
use proptest::prelude::*;

use crate::numbers::Numbers;
use crate::survival::survives;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn arguments_of_every_procedure_survive(seed: u64, name in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        survives(&n.handle()); // GETATTR, READLINK, FSSTAT, PATHCONF
        let time = n.time();
        survives(&SetattrArguments { object: n.handle(), attributes: n.sattr(), guard: n.maybe(time) });
        survives(&n.place(&name)); // LOOKUP, REMOVE, RMDIR
        survives(&AccessArguments { object: n.handle(), access: n.u32() });
        survives(&ReadArguments { file: n.handle(), offset: n.u64(), count: n.u32() });
        for stability in [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync] {
            let data = Opaque::new(&name).unwrap();
            survives(&WriteArguments { file: n.handle(), offset: n.u64(), count: n.u32(), stable: stability, data });
        }
        let hows = [
            CreateHow::Unchecked(n.sattr()),
            CreateHow::Guarded(n.sattr()),
            CreateHow::Exclusive(CreateVerf3(n.verifier())),
        ];
        for how in hows {
            survives(&CreateArguments { place: n.place(&name), how });
        }
        survives(&MkdirArguments { place: n.place(&name), attributes: n.sattr() });
        let target = NfsPath::new(&name).unwrap();
        survives(&SymlinkArguments { place: n.place(&name), attributes: n.sattr(), target });
        let device = SpecData { major: n.u32(), minor: n.u32() };
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
        let (cookie, verifier) = (Cookie(n.u64()), CookieVerf3(n.verifier()));
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
        let failure = NfsStat3::ALL[1 + usize::try_from(seed % 28).unwrap()];
        survives(&NfsResult::<Fattr>::Ok(n.fattr()));
        survives(&NfsResult::<Fattr>::Failed(failure, ()));
        survives(&NfsResult::<WccData, WccData>::Ok(n.wcc())); // SETATTR, REMOVE, RMDIR
        survives(&NfsResult::<WccData, WccData>::Failed(failure, n.wcc()));
        let found = LookupOk { object: n.handle(), attributes: n.post_op(), directory: n.post_op() };
        survives(&NfsResult::<_, Option<Fattr>>::Ok(found));
        survives(&NfsResult::<LookupOk, _>::Failed(failure, n.post_op()));
        let access = AccessOk { attributes: n.post_op(), access: n.u32() };
        survives(&NfsResult::<_, Option<Fattr>>::Ok(access));
        survives(&NfsResult::<AccessOk, _>::Failed(failure, n.post_op()));
        let target = NfsPath::new(&name).unwrap();
        survives(&NfsResult::<_, Option<Fattr>>::Ok(ReadlinkOk { attributes: n.post_op(), target }));
        survives(&NfsResult::<ReadlinkOk<'_>, _>::Failed(failure, n.post_op()));
        let data = Opaque::new(&name).unwrap();
        let read = ReadOk { attributes: n.post_op(), count: n.u32(), eof: seed & 1 == 0, data };
        survives(&NfsResult::<_, ReadFail>::Ok(read));
        survives(&NfsResult::<ReadOk<'_>, _>::Failed(failure, ReadFail { attributes: n.post_op() }));
        for committed in [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync] {
            let verifier = WriteVerf3(n.verifier());
            let written = WriteOk { wcc: n.wcc(), count: n.u32(), committed, verifier };
            survives(&NfsResult::<_, WccData>::Ok(written));
        }
        survives(&NfsResult::<WriteOk, _>::Failed(failure, n.wcc()));
        let object = n.handle();
        let created = CreateOk { object: n.maybe(object), attributes: n.post_op(), directory: n.wcc() };
        survives(&NfsResult::<_, WccData>::Ok(created)); // CREATE, MKDIR, SYMLINK, MKNOD
        survives(&NfsResult::<CreateOk, _>::Failed(failure, n.wcc()));
        survives(&NfsResult::<RenameWcc, RenameWcc>::Ok(RenameWcc { from: n.wcc(), to: n.wcc() }));
        survives(&NfsResult::<RenameWcc, _>::Failed(failure, RenameWcc { from: n.wcc(), to: n.wcc() }));
        let linked = LinkWcc { attributes: n.post_op(), directory: n.wcc() };
        survives(&NfsResult::<LinkWcc, LinkWcc>::Ok(linked));
        survives(&NfsResult::<LinkWcc, LinkWcc>::Failed(failure, linked));
        survives(&NfsResult::<_, WccData>::Ok(CommitOk { wcc: n.wcc(), verifier: WriteVerf3(n.verifier()) }));
        survives(&NfsResult::<CommitOk, _>::Failed(failure, n.wcc()));
    }

    #[test]
    fn replies_of_a_file_system_survive(seed: u64) {
        let n = &mut Numbers(seed);
        let failure = NfsStat3::ALL[1 + usize::try_from(seed % 28).unwrap()];
        let stat = FsstatOk {
            attributes: n.post_op(),
            total_bytes: n.u64(), free_bytes: n.u64(), available_bytes: n.u64(),
            total_files: n.u64(), free_files: n.u64(), available_files: n.u64(),
            invariant_seconds: n.u32(),
        };
        survives(&NfsResult::<_, Option<Fattr>>::Ok(stat));
        survives(&NfsResult::<FsstatOk, _>::Failed(failure, n.post_op()));
        let info = FsinfoOk {
            attributes: n.post_op(),
            rtmax: n.u32(), rtpref: n.u32(), rtmult: n.u32(),
            wtmax: n.u32(), wtpref: n.u32(), wtmult: n.u32(),
            dtpref: n.u32(), maxfilesize: n.u64(), time_delta: n.time(),
            properties: FsProperties(n.u32()),
        };
        survives(&NfsResult::<_, Option<Fattr>>::Ok(info));
        survives(&NfsResult::<FsinfoOk, _>::Failed(failure, n.post_op()));
        let conf = PathconfOk {
            attributes: n.post_op(), link_max: n.u32(), name_max: n.u32(),
            no_truncation: n.u32() & 1 == 0, chown_restricted: n.u32() & 1 == 0,
            case_insensitive: n.u32() & 1 == 0, case_preserving: n.u32() & 1 == 0,
        };
        survives(&NfsResult::<_, Option<Fattr>>::Ok(conf));
        survives(&NfsResult::<PathconfOk, _>::Failed(failure, n.post_op()));
    }
}
