//! The round-trip check: a value is equal after encoding and decoding, and truncated bytes are
//! rejected.

use core::fmt::Debug;

use curt_proto::mount3::{DirPath, ExportList, MountList, MountReply};
use curt_proto::nfs3::*;
use curt_proto::nlm4::*;
use curt_proto::{nsm, portmap};
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
        assert!(T::equals(&bytes[..cut], value).is_err(), "cut to {cut} of {value:?}");
    }
}

/// Decoding with an immediate comparison, so that a value of one lifetime can be tested with bytes
/// of another.
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
    NfsFh3 => NfsFh3,
    SetattrArguments => SetattrArguments,
    DirOpArgs<'v> => DirOpArgs<'a>,
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
    NfsResult<Fattr> => NfsResult<Fattr>,
    NfsResult<WccData, WccData> => NfsResult<WccData, WccData>,
    NfsResult<LookupOk, Option<Fattr>> => NfsResult<LookupOk, Option<Fattr>>,
    NfsResult<AccessOk, Option<Fattr>> => NfsResult<AccessOk, Option<Fattr>>,
    NfsResult<ReadlinkOk<'v>, Option<Fattr>> => NfsResult<ReadlinkOk<'a>, Option<Fattr>>,
    NfsResult<ReadOk<'v>, ReadFail> => NfsResult<ReadOk<'a>, ReadFail>,
    NfsResult<WriteOk, WccData> => NfsResult<WriteOk, WccData>,
    NfsResult<CreateOk, WccData> => NfsResult<CreateOk, WccData>,
    NfsResult<RenameWcc, RenameWcc> => NfsResult<RenameWcc, RenameWcc>,
    NfsResult<LinkWcc, LinkWcc> => NfsResult<LinkWcc, LinkWcc>,
    NfsResult<FsstatOk, Option<Fattr>> => NfsResult<FsstatOk, Option<Fattr>>,
    NfsResult<FsinfoOk, Option<Fattr>> => NfsResult<FsinfoOk, Option<Fattr>>,
    NfsResult<PathconfOk, Option<Fattr>> => NfsResult<PathconfOk, Option<Fattr>>,
    NfsResult<CommitOk, WccData> => NfsResult<CommitOk, WccData>,
    DirPath<'v> => DirPath<'a>,
    MountReply => MountReply,
    MountList<'v> => MountList<'a>,
    ExportList<'v> => ExportList<'a>,
    portmap::Mapping => portmap::Mapping,
    portmap::Rpcb<'v> => portmap::Rpcb<'a>,
    portmap::UniversalAddress<'v> => portmap::UniversalAddress<'a>,
    NlmTestArguments<'v> => NlmTestArguments<'a>,
    NlmLockArguments<'v> => NlmLockArguments<'a>,
    NlmCancelArguments<'v> => NlmCancelArguments<'a>,
    NlmUnlockArguments<'v> => NlmUnlockArguments<'a>,
    NlmResult<'v> => NlmResult<'a>,
    NlmTestResult<'v> => NlmTestResult<'a>,
    NlmShareArguments<'v> => NlmShareArguments<'a>,
    NlmShareResult<'v> => NlmShareResult<'a>,
    NlmNotify<'v> => NlmNotify<'a>,
    nsm::MonitoredName<'v> => nsm::MonitoredName<'a>,
    nsm::MonitorCallback<'v> => nsm::MonitorCallback<'a>,
    nsm::MonitorId<'v> => nsm::MonitorId<'a>,
    nsm::MonArguments<'v> => nsm::MonArguments<'a>,
    nsm::MonResult => nsm::MonResult,
    nsm::MonitorState => nsm::MonitorState,
    nsm::StateChange<'v> => nsm::StateChange<'a>,
    nsm::NsmStatus<'v> => nsm::NsmStatus<'a>,
}

pub(crate) fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}
