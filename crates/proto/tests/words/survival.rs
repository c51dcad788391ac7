//! What it means that a value survives: encoded and decoded it is equal, and no cut of its bytes is accepted.

use core::fmt::Debug;

use curt_proto::mount3::{ExportList, ExportPath, MountList, MountReply};
use curt_proto::nfs3::*;
use curt_proto::portmap;
use curt_xdr::{DecodeError, Encode, decode_all};

/// Encodes, decodes, compares, and checks that no strict prefix is accepted.
pub(crate) fn survives<T>(value: &T)
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
pub(crate) trait DecodeFrom<'a, T> {
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

pub(crate) fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}
