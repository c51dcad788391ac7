//! MOUNT and rpcbind, and random bytes for all.

use curt_proto::mount3::{
    ClientName, DirPath, ExportList, ExportNode, MountBody, MountList, MountOk, MountReply,
};
use curt_proto::nfs3::*;
use curt_proto::{mount3, portmap};
use curt_xdr::{Opaque, OptionalList, VarArray, decode_all};
use proptest::prelude::*;

use crate::numbers::Numbers;
use crate::survival::survives;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn mount_and_rpcbind_survive(seed: u64, name in prop::collection::vec(any::<u8>(), 0..40)) {
        let n = &mut Numbers(seed);
        let path = DirPath(Opaque::new(&name).unwrap());
        let client = ClientName(Opaque::new(&name).unwrap());
        survives(&path);
        survives(&MountReply::Ok(MountOk { root: n.handle(), flavors: VarArray::new(vec![1, 0, n.u32()]).unwrap() }));
        for status in &mount3::MountStat3::ALL[1..] {
            survives(&MountReply::Failed(*status));
        }
        survives(&MountList(OptionalList::new(vec![MountBody { client, path }; 3]).unwrap()));
        let groups = OptionalList::new(vec![client; 2]).unwrap();
        let all = ExportNode { path, groups: OptionalList::default() };
        survives(&ExportList(OptionalList::new(vec![all, ExportNode { path, groups }]).unwrap()));
        let (program, version) = (n.u32(), n.u32());
        survives(&portmap::Mapping { program, version, protocol: n.u32(), port: n.u32() });
        let text = Opaque::new(&name).unwrap();
        survives(&portmap::Rpcb { program, version, netid: text, address: text, owner: text });
        survives(&portmap::UniversalAddress(text));
    }

    /// Random bytes are an error or a value, never a panic.
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_all::<CreateArguments<'_>>(&noise);
        let _ = decode_all::<NfsResult<CreateOk, WccData>>(&noise);
        let _ = decode_all::<ExportList<'_>>(&noise);
        let _ = decode_all::<MountReply>(&noise);
        if let Ok(listing) = decode_all::<ReaddirOk<'_, DirectoryEntryPlus<'_>>>(&noise) {
            let _ = listing.entries.count();
        }
    }
}
