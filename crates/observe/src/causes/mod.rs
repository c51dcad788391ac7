//! The causes of requests, and the rules that save requests: the terms in which a command's
//! requests are explained.
//!
//! Every request has exactly one [`Cause`]: the one set by its sender
//! ([`crate::scope::with_cause`]), otherwise the one of its operation ([`Cause::of_operation`]).
//! Every saved request has the [`Rule`] that saved it. Each is counted where the decision is made,
//! as a [`ClientCounter`], so [`Rule::of`] maps counters to rules.

mod document;

use curt_proto::Operation;
use curt_proto::nfs3::NfsProcedure;
use curt_proto::nfs4::Nfs4Operation;

use crate::client::ClientCounter;
use crate::named_enum;

pub use document::list;

named_enum! {
    /// Why a request was sent.
    Cause {
        OpenCheck "open-check" "Close-to-open: the attributes of a file or directory were requested again because it was opened.";
        NameCheck "name-check" "A directory's attributes were requested to check whether its cached names are still valid.";
        NameAgain "name-again" "A cached name was no longer valid and was looked up again.";
        FirstUse "first-use" "A name that was not cached was looked up.";
        Fill "fill" "A directory was read with attributes, instead of looking up its names one by one.";
        FillAgain "fill-again" "A directory was read with attributes, instead of requesting those of its objects one by one.";
        AttributesExpired "attributes-expired" "Cached attributes had expired and were requested again.";
        AttributesUnknown "attributes-unknown" "Attributes were requested that were not cached, or doubtful after a change.";
        Access "access" "A caller's permissions were requested from the server.";
        AccessConfirm "access-confirm" "An ACCESS was sent to confirm a denial by mode bits or by an old reply, or before data fetched by another user were read.";
        Recheck "recheck" "A file was still open when its attributes expired, and was checked again.";
        LinkTarget "link-target" "A symbolic link's target was read.";
        Listing "listing" "A directory was listed.";
        ListingAhead "listing-ahead" "The next part of a directory was requested ahead of the reader.";
        ListingCheck "listing-check" "A directory's attributes were requested to check whether its cached listing is still valid.";
        DataRead "data-read" "A file's data were read.";
        ReadAhead "read-ahead" "A file's data were read ahead.";
        Write "write" "Written data were sent.";
        Commit "commit" "Sent data were made durable.";
        SetAttributes "set-attributes" "Attributes were changed.";
        Create "create" "A file, directory, link or device was created.";
        Remove "remove" "A name was removed.";
        Rename "rename" "A name was renamed.";
        Lock "lock" "A lock was taken, tested or released.";
        Statfs "statfs" "The file system's free space was requested.";
        Mount "mount" "The mount was set up.";
        Retry "retry" "The server had replied NFS3ERR_JUKEBOX (NFSv3 only), and the request was repeated.";
    }
}

named_enum! {
    /// Why a request was not sent.
    Rule {
        AttributeCache "attribute cache" "Cached attributes were still fresh.";
        Sloppycto "sloppycto" "An open for reading accepted attributes a few seconds old.";
        Nocto "nocto" "An open accepted attributes within their lifetime.";
        Delegation "delegation" "The server has delegated the file, and asks before others change it.";
        Shared "shared request" "The reply to a request already in progress was shared.";
        AccessCache "access cache" "The server had already reported this caller's permissions.";
        Noaccesscheck "noaccesscheck" "The mode bits decided this caller's permissions.";
        PositiveNames "positive names" "The name was cached.";
        NegativeNames "negative names" "The name was cached as missing.";
        CompleteDirectory "complete directory" "All names of the directory were cached, and this was not one of them.";
        Dots "dots" ". and .. were cached.";
        ListingMemory "listing memory" "The listing was cached.";
        DataCache "data cache" "The data were cached.";
        Softreval "softreval" "The server did not respond, and an expired cache entry was served.";
    }
}

impl Cause {
    /// The cause of a request of which only the operation is known.
    #[must_use]
    pub const fn of_operation(operation: Operation) -> Self {
        let procedure = match operation {
            Operation::Nfs3(procedure) => procedure,
            Operation::Nlm(_) | Operation::Nsm(_) => return Self::Lock,
            Operation::Mount(_) | Operation::Nfs4Procedure(_) | Operation::Callback(_) => {
                return Self::Mount;
            }
            Operation::Nfs4(operation) => return Self::of_nfs4(operation),
        };
        match procedure {
            NfsProcedure::Getattr => Self::AttributesUnknown,
            NfsProcedure::Setattr => Self::SetAttributes,
            NfsProcedure::Lookup => Self::FirstUse,
            NfsProcedure::Access => Self::Access,
            NfsProcedure::Readlink => Self::LinkTarget,
            NfsProcedure::Read => Self::DataRead,
            NfsProcedure::Write => Self::Write,
            NfsProcedure::Create
            | NfsProcedure::Mkdir
            | NfsProcedure::Symlink
            | NfsProcedure::Mknod
            | NfsProcedure::Link => Self::Create,
            NfsProcedure::Remove | NfsProcedure::Rmdir => Self::Remove,
            NfsProcedure::Rename => Self::Rename,
            NfsProcedure::Readdir | NfsProcedure::ReaddirPlus => Self::Listing,
            NfsProcedure::Fsstat => Self::Statfs,
            NfsProcedure::Commit => Self::Commit,
            NfsProcedure::Null | NfsProcedure::Fsinfo | NfsProcedure::Pathconf => Self::Mount,
        }
    }

    /// The cause by an operation of NFSv4: operations that manage sessions and state count as
    /// mounting.
    const fn of_nfs4(operation: Nfs4Operation) -> Self {
        match operation {
            Nfs4Operation::Getattr | Nfs4Operation::Verify | Nfs4Operation::Nverify => {
                Self::AttributesUnknown
            }
            Nfs4Operation::Setattr => Self::SetAttributes,
            Nfs4Operation::Lookup | Nfs4Operation::Lookupp => Self::FirstUse,
            Nfs4Operation::Access => Self::Access,
            Nfs4Operation::Readlink => Self::LinkTarget,
            Nfs4Operation::Read | Nfs4Operation::ReadPlus | Nfs4Operation::Seek => Self::DataRead,
            Nfs4Operation::Write => Self::Write,
            Nfs4Operation::Create | Nfs4Operation::Open | Nfs4Operation::Link => Self::Create,
            Nfs4Operation::Remove => Self::Remove,
            Nfs4Operation::Rename => Self::Rename,
            Nfs4Operation::Readdir => Self::Listing,
            Nfs4Operation::Commit => Self::Commit,
            Nfs4Operation::Lock | Nfs4Operation::Lockt | Nfs4Operation::Locku => Self::Lock,
            _ => Self::Mount,
        }
    }
}

impl Rule {
    /// The rule that a counter counts, if it counts saved requests.
    #[must_use]
    pub const fn of(counter: ClientCounter) -> Option<Self> {
        match counter {
            ClientCounter::AttrHit => Some(Self::AttributeCache),
            ClientCounter::AttrShared => Some(Self::Shared),
            ClientCounter::OpenCtoSloppy => Some(Self::Sloppycto),
            ClientCounter::OpenNocto => Some(Self::Nocto),
            ClientCounter::OpenDelegated => Some(Self::Delegation),
            ClientCounter::AccessHitPositive | ClientCounter::AccessHitNegative => Some(Self::AccessCache),
            ClientCounter::AccessLocalAllow => Some(Self::Noaccesscheck),
            ClientCounter::PosHit => Some(Self::PositiveNames),
            ClientCounter::NegHit => Some(Self::NegativeNames),
            ClientCounter::DirFillMissing => Some(Self::CompleteDirectory),
            ClientCounter::DotHit | ClientCounter::DotdotHit => Some(Self::Dots),
            ClientCounter::ListingCached => Some(Self::ListingMemory),
            ClientCounter::ReadHitBytes => Some(Self::DataCache),
            ClientCounter::SoftRevalidation => Some(Self::Softreval),
            _ => None,
        }
    }

    /// The cause that the request would have had.
    #[must_use]
    pub const fn cause(self) -> Cause {
        match self {
            Self::AttributeCache | Self::Shared | Self::Softreval => Cause::AttributesExpired,
            Self::Sloppycto | Self::Nocto | Self::Delegation => Cause::OpenCheck,
            Self::AccessCache | Self::Noaccesscheck => Cause::Access,
            Self::PositiveNames | Self::NegativeNames | Self::CompleteDirectory | Self::Dots => {
                Cause::FirstUse
            }
            Self::ListingMemory => Cause::Listing,
            Self::DataCache => Cause::DataRead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter as _;

    #[test]
    fn every_operation_has_a_cause_and_every_name_leads_back() {
        let mut seen = std::collections::BTreeSet::new();
        for cause in Cause::ALL {
            assert!(seen.insert(cause.name()) && cause.meaning().ends_with('.'), "{cause:?}");
            assert_eq!(Cause::named(cause.name()), Some(cause));
            assert_eq!(Cause::ALL[cause.index()], cause);
        }
        for rule in Rule::ALL {
            assert!(seen.insert(rule.name()) && rule.meaning().ends_with('.'), "{rule:?}");
            assert_eq!(Rule::named(rule.name()), Some(rule));
        }
        let mount = Operation::nfs().filter(|operation| Cause::of_operation(*operation) == Cause::Mount);
        let mount: Vec<_> = mount.map(Operation::name).collect();
        assert_eq!(mount, ["NULL", "FSINFO", "PATHCONF"]);
    }

    #[test]
    fn only_answers_without_a_request_are_saved_ones() {
        for counter in ClientCounter::ALL {
            let asks = counter.meaning().contains("was asked") || counter.meaning().contains("were asked");
            assert!(!asks || Rule::of(*counter).is_none(), "{}", counter.name());
        }
        assert_eq!(Rule::of(ClientCounter::NegHit), Some(Rule::NegativeNames));
        assert_eq!(Rule::of(ClientCounter::DirFillMissing), Some(Rule::CompleteDirectory));
    }
}
