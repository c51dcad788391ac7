//! What READDIR and READDIRPLUS are asked, and what the server says.

use curt_policy::{Epoch, Moment, MutationTicket, NameLabel};
use curt_proto::nfs3::CookieVerifier;
use curt_rpc::client::CallError;
use curt_types::Fault;
use rustix::io::Errno;

use crate::{errno, protocol::ReaddirPage};

/// Where the server continues a listing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReaddirCookie {
    pub(super) cookie: u64,
    pub(super) verifier: CookieVerifier,
}

/// What is missing of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingGap {
    /// Behind which name it is.
    pub(super) cookie: ReaddirCookie,
    /// How many replies are before it.
    pub(super) index: usize,
    /// What fills it is for others, too: the listing begins where the directory does.
    pub(super) is_shared: bool,
}

impl ListingGap {
    /// The first names of a directory.
    pub(super) fn at_start() -> Self {
        Self { cookie: ReaddirCookie::default(), index: 0, is_shared: true }
    }
}

/// By what names were learned.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingOrigin {
    pub(super) label: Option<NameLabel>,
    /// What the directory was like before the names were requested.
    pub(super) ticket: MutationTicket,
    /// The state of the directory's contents when it was asked.
    pub(super) epoch: Option<Epoch>,
}

/// A reply.
#[derive(Debug)]
pub(crate) struct ReaddirReply {
    pub(super) page: ReaddirPage,
    pub(super) plus: bool,
    /// Bytes that were requested.
    pub(super) size: u32,
    pub(super) origin: ListingOrigin,
    pub(super) sent_at: Moment,
}

/// Why there is none.
#[derive(Debug)]
pub(super) enum ReaddirError {
    /// The server refused; when that was asked.
    Refused(Fault, Moment),
    /// It did not answer, or not in a way that makes sense.
    Failed(CallError),
    /// It gave neither a name nor the end, twice.
    Stuck,
}

/// What the server said.
pub(super) type ReaddirResult = Result<ReaddirReply, ReaddirError>;

impl ReaddirError {
    /// As an event tells it.
    pub(super) fn event_status(&self) -> i32 {
        let errno = match self {
            Self::Refused(status, _) => errno::of_fault(*status),
            Self::Failed(error) => errno::of_call(*error),
            Self::Stuck => Errno::IO,
        };
        -errno.raw_os_error()
    }

    /// Whether the server does not know its own cookie any more.
    pub(super) fn is_bad_cookie(&self) -> bool {
        matches!(self, Self::Refused(Fault::BadCookie | Fault::NotSync, _))
    }
}

impl ReaddirReply {
    /// Neither the last reply nor one with a name.
    pub(super) fn is_without_progress(&self) -> bool {
        self.page.names.is_empty() && !self.page.end
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.page.names.len()).unwrap_or(u32::MAX)
    }
}
