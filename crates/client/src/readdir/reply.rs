//! The arguments and results of READDIR and READDIRPLUS.

use curt_policy::{Epoch, Moment, MutationTicket, NameLabel};
use curt_rpc::client::CallError;
use curt_types::{CookieVerifier, Fault};
use rustix::io::Errno;

use crate::{errno, protocol::ReaddirPage};

/// Where the server continues a listing: cookie and verifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReaddirCookie {
    pub(super) cookie: u64,
    pub(super) verifier: CookieVerifier,
}

/// A missing part of a listing.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingGap {
    /// The cookie of the name before it.
    pub(super) cookie: ReaddirCookie,
    /// The number of replies before it.
    pub(super) index: usize,
    /// The names are also for other readers: the listing begins at the beginning of the directory.
    pub(super) is_shared: bool,
}

impl ListingGap {
    /// The first names of a directory.
    pub(super) fn at_start() -> Self {
        Self { cookie: ReaddirCookie::default(), index: 0, is_shared: true }
    }
}

/// The label of the names in a reply, and what it depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListingOrigin {
    pub(super) label: Option<NameLabel>,
    /// The ticket taken before the names were requested.
    pub(super) ticket: MutationTicket,
    /// The epoch of the directory's contents when the request was sent.
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

/// Why there is no reply.
#[derive(Debug)]
pub(super) enum ReaddirError {
    /// The server returned an error; when the request was sent.
    Refused(Fault, Moment),
    /// The server did not reply, or the reply could not be decoded.
    Failed(CallError),
    /// It returned neither a name nor the end, twice.
    Stuck,
}

/// The result of a request for names.
pub(super) type ReaddirResult = Result<ReaddirReply, ReaddirError>;

impl ReaddirError {
    /// The status in an event.
    pub(super) fn event_status(&self) -> i32 {
        let errno = match self {
            Self::Refused(status, _) => errno::of_fault(*status),
            Self::Failed(error) => errno::of_call(*error),
            Self::Stuck => Errno::IO,
        };
        -errno.raw_os_error()
    }

    /// Whether the server no longer accepts its own cookie.
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
