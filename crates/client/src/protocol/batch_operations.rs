//! Operations on many objects in one request, independent of a protocol version.

use curt_types::{Fault, FileHandle, Wcc};

use super::{Answer, LookupReply, ReadData, RpcCaller};

/// Operations on many objects in one request. A version without compounds uses the defaults.
pub trait BatchOperations {
    /// Looks paths up, given by their components, from `from`; with `read` also reads that many
    /// bytes of each file. Returns the results of the first of them, at least one; `None` if this
    /// takes a request for each name.
    fn find_paths(
        &self,
        _caller: RpcCaller<'_>,
        _from: &FileHandle,
        _paths: &[Vec<&[u8]>],
        _read: Option<u32>,
    ) -> Option<Answer<Vec<Result<PathReply, Fault>>, ()>> {
        None
    }

    /// Removes names of objects that are not directories. Returns the results of the first of them,
    /// at least one; `None` if each takes a request.
    fn remove_names(
        &self,
        _caller: RpcCaller<'_>,
        _directory: &FileHandle,
        _names: &[&[u8]],
    ) -> Option<Answer<Vec<Result<(), Fault>>, Wcc>> {
        None
    }
}

/// The object of a path, and its first bytes if it is a file and they were read.
#[derive(Clone, Debug)]
pub struct PathReply {
    /// The object.
    pub found: LookupReply,
    /// The bytes.
    pub data: Option<ReadData>,
}
