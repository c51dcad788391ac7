//! Opens of files, independent of a protocol version.

use std::sync::Arc;

use curt_rpc::{auth::RpcCredential, client::Interrupt};
use curt_types::{Access, Attributes, FileHandle, SetAttributes, Wcc};

use super::{Answer, FileOperations, HeldDelegation, IsLost, LookupReply, NfsReply, ReadData, RpcCaller};

/// Opens of files.
///
/// NFSv3 has no OPEN. At open(2) the client sends `attributes` and `access`, which other operations
/// share, and at close(2) nothing. In NFSv4 `ops::open` gets an open by
/// [`OpenOperations::share_open`], [`OpenOperations::delay_open`] or [`OpenOperations::open`], and
/// `ops::close` returns it by [`OpenOperations::close`]. READ and WRITE use the open that their
/// [`OpenContext::owner`] has of the file.
pub trait OpenOperations: FileOperations {
    /// Whether the server keeps this open file when its last name is removed. Otherwise the client
    /// renames such a file instead (silly rename).
    fn keeps_removed_file(&self, _file: &FileHandle) -> bool {
        false
    }

    /// Adds a user to an open that `owner` still holds of the file with this access. Returns
    /// `false` if [`OpenOperations::open`] has to be sent first. Sends nothing.
    fn share_open(&self, _file: &FileHandle, _owner: OpenOwner<'_>, _access: ShareAccess) -> bool {
        true
    }

    /// Adds a user for reading to an open that the server need not know yet: it is opened with the
    /// first READ that is sent. Returns `false` if [`OpenOperations::open`] has to be sent first.
    /// Sends nothing.
    fn delay_open(&self, _file: &FileHandle, _owner: OpenOwner<'_>) -> bool {
        false
    }

    /// Opens a file, which [`OpenOperations::share_open`] then finds. Returns the subset of
    /// the rights that the owner has, and the file's attributes; perhaps also the further results,
    /// with the data of this state of the file.
    fn open(
        &self,
        caller: RpcCaller<'_>,
        file: &FileHandle,
        _owner: OpenOwner<'_>,
        _access: ShareAccess,
        wanted: OpenExtras<'_>,
    ) -> Answer<OpenReply, Option<Attributes>> {
        let answer = self.access(caller, file, wanted.rights)?;
        let outcome = answer.outcome.map(OpenReply::from);
        let NfsReply { sent_at, lost_at, attributes, .. } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome, attributes })
    }

    /// As [`FileOperations::set`], but not under a lost lock, and through an open for writing:
    /// servers with mandatory locks and denials judge a change of the size by it.
    fn set_through_open(
        &self,
        open: OpenCaller<'_>,
        file: &FileHandle,
        set: &SetAttributes,
        _is_lost: IsLost<'_>,
    ) -> Answer<(), Wcc> {
        self.set(open.rpc(), file, set)
    }

    /// Ends the use of an open. Must not wait: the server learns of it with a later request.
    fn close(&self, _file: &FileHandle, _owner: u32, _access: ShareAccess) {}

    /// As [`FileOperations::find`], with the further results that an open of the found file needs,
    /// if they take no further request.
    fn find_to_open(
        &self,
        caller: RpcCaller<'_>,
        directory: &FileHandle,
        name: &[u8],
        _request: LookupOpenRequest<'_>,
    ) -> Answer<LookupOpenReply, Option<Attributes>> {
        let answer = self.find(caller, directory, name)?;
        let NfsReply { sent_at, lost_at, outcome, attributes } = answer;
        Ok(NfsReply { sent_at, lost_at, outcome: outcome.map(LookupOpenReply::from), attributes })
    }
}

/// The purpose of an open file. NFSv4 calls it share access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Both.
    Both,
}

impl ShareAccess {
    /// The access of an open with these flags. An open for neither, as for execution, reads.
    #[must_use]
    pub const fn of(reads: bool, writes: bool) -> Self {
        match (reads, writes) {
            (_, false) => Self::Read,
            (false, true) => Self::Write,
            (true, true) => Self::Both,
        }
    }
}

/// The opener of a file: the client's number for a user with its groups, and the credential.
#[derive(Clone, Copy, Debug)]
pub struct OpenOwner<'a> {
    /// The number.
    pub number: u32,
    /// The credential.
    pub credential: &'a Arc<RpcCredential>,
}

/// The open of a file that is created.
#[derive(Clone, Copy, Debug)]
pub struct NewOpen<'a> {
    /// The owner of the open.
    pub owner: OpenOwner<'a>,
    /// The purpose of the open.
    pub access: ShareAccess,
}

/// The additional operations of a look-up of a file that is opened next.
#[derive(Clone, Copy, Debug)]
pub struct LookupOpenRequest<'a> {
    /// The rights that are asked about.
    pub rights: Access,
    /// The number of bytes.
    pub read: u32,
    /// The file is opened for reading, to get a delegation.
    pub open: Option<OpenOwner<'a>>,
}

/// The object of a name, and what an open needs.
#[derive(Clone, Debug)]
pub struct LookupOpenReply {
    /// The object.
    pub found: LookupReply,
    /// The rights that the caller has.
    pub granted: Option<Access>,
    /// The file's first bytes.
    pub data: Option<ReadData>,
    /// The file was opened.
    pub was_opened: bool,
    /// The delegation, before the attributes, the rights and the data were read.
    pub delegation: Option<Arc<HeldDelegation>>,
}

impl From<LookupReply> for LookupOpenReply {
    fn from(found: LookupReply) -> Self {
        Self { found, granted: None, data: None, was_opened: false, delegation: None }
    }
}

/// The further results that are wanted with an open.
#[derive(Clone, Copy, Debug)]
pub struct OpenExtras<'a> {
    /// The rights that are requested.
    pub rights: Access,
    /// This number of the file's first bytes.
    pub read: Option<u32>,
    /// Other files, which are opened for reading by the same owner to get delegations.
    pub siblings: &'a [SiblingOpenRequest<'a>],
}

/// A file that is opened and read with another.
#[derive(Clone, Copy, Debug)]
pub struct SiblingOpenRequest<'a> {
    /// The file.
    pub file: &'a FileHandle,
    /// The number of bytes.
    pub read: u32,
}

/// The result of an open.
#[derive(Clone, Debug)]
pub struct OpenReply {
    /// The rights that the opener has.
    pub granted: Access,
    /// The file's first bytes, if the server returned them.
    pub data: Option<ReadData>,
    /// The first of [`OpenExtras::siblings`] that were opened.
    pub siblings: Vec<LookupOpenReply>,
    /// The delegation, before the attributes, the rights and the data were read.
    pub delegation: Option<Arc<HeldDelegation>>,
}

impl From<Access> for OpenReply {
    fn from(granted: Access) -> Self {
        Self { granted, data: None, siblings: Vec::new(), delegation: None }
    }
}

/// The opener of a file, which each READ, WRITE and COMMIT carries. NFSv3 has no OPEN: it uses the
/// credential only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenContext {
    /// The opener: the client's number for a user with its groups.
    pub owner: u32,
    /// The opener's credential.
    pub credential: Arc<RpcCredential>,
}

/// The open file of a request, and the interrupt that cancels it.
#[derive(Clone, Copy, Debug)]
pub struct OpenCaller<'a> {
    /// The open file.
    pub open: &'a OpenContext,
    /// Cancels the wait.
    pub interrupt: &'a Interrupt,
}

impl<'a> OpenCaller<'a> {
    /// The caller of the same request without the open.
    #[must_use]
    pub fn rpc(&self) -> RpcCaller<'a> {
        RpcCaller { credential: &self.open.credential, interrupt: self.interrupt }
    }
}
