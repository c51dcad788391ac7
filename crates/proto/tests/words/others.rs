//! MOUNT and rpcbind, and noise for all.

use curt_proto::mount3::{
    ClientName, ExportEntry, ExportList, ExportPath, MountEntry, MountList, MountOk, MountReply,
};
use curt_proto::nfs3::*;
use curt_proto::{mount3, portmap};
use curt_xdr::{Chain, List, Opaque, decode_all};
use proptest::prelude::*;

use crate::numbers::Numbers;
use crate::survival::survives;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

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
}
