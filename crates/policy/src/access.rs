//! Access decisions: by ACCESS, whose result is cached, or by mode bits (`noaccesscheck`).
//!
//! Owns the rules of access: when a cached result applies, when mode bits apply, and what mode bits
//! must not decide.
//!
//! Invariants:
//! - Mode bits never decide for uid 0, which the server may squash.
//! - Only the server finally denies access. Any other denial is confirmed by one ACCESS, at most
//!   once a second per file and credential.
//! - Data fetched with another credential are not served before the server has granted this one any
//!   right on the file.
//!
//! Must not know where groups come from, nor which operation needs the access.

use core::time::Duration;

use curt_types::{Access, FileKind};

use crate::{
    attributes::{CachingAttributes, Freshness},
    options::{AccessMode, CacheOptions},
    time::MonotonicTime,
};

/// How long a denial from the server is valid.
pub const DENIAL_LIFETIME: Duration = Duration::from_secs(1);

/// The credential that mode bits are applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnixCredential<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
}

/// The rights that the mode bits grant. `None` for uid 0: mode bits do not restrict it locally, and
/// they do not describe it if the server squashes it.
#[must_use]
pub fn mode_bits_rights(attributes: &CachingAttributes, credential: UnixCredential<'_>) -> Option<Access> {
    if credential.uid == 0 {
        return None;
    }
    let bits = if credential.uid == attributes.uid {
        attributes.mode >> 6
    } else if credential.gid == attributes.gid || credential.groups.contains(&attributes.gid) {
        attributes.mode >> 3
    } else {
        attributes.mode
    };
    let mut rights = Access::NONE;
    if bits & 4 != 0 {
        rights = rights.with(Access::READ);
    }
    if bits & 2 != 0 {
        rights = rights.with(Access::MODIFY).with(Access::EXTEND);
    }
    if bits & 1 != 0 {
        rights = rights.with(match attributes.kind {
            FileKind::Directory => Access::LOOKUP,
            _ => Access::EXECUTE,
        });
    }
    // Removing a name takes write and search permission. The server checks the sticky bit.
    if attributes.kind == FileKind::Directory && bits & 3 == 3 {
        rights = rights.with(Access::DELETE);
    }
    Some(rights)
}

/// Whether owner, group and others all may search this directory. Then a lookup needs no access
/// check.
#[must_use]
pub const fn is_world_searchable(attributes: &CachingAttributes) -> bool {
    matches!(attributes.kind, FileKind::Directory) && attributes.mode & 0o111 == 0o111
}

/// The results of ACCESS for one credential and one object, until its rights may have changed
/// ([`crate::Absorbed::rights_changed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessEntry {
    asked: Access,
    granted: Access,
    /// When the request was sent whose reply denied a right.
    denied_at: Option<MonotonicTime>,
}

impl AccessEntry {
    /// Absorbs an ACCESS reply, after its attributes. `asked` and `granted` are as in the request
    /// and the reply. Earlier results are kept.
    #[must_use]
    pub fn absorb(former: Option<Self>, asked: Access, granted: Access, sent_at: MonotonicTime) -> Self {
        let denied = asked.without(granted);
        let denied_at = (!denied.is_empty()).then_some(sent_at);
        match former {
            Some(former) => Self {
                asked: former.asked.with(asked),
                granted: former.granted.without(asked).with(granted.common(asked)),
                denied_at: denied_at.or(former.denied_at),
            },
            None => Self { asked, granted: granted.common(asked), denied_at },
        }
    }

    /// Absorbs the success of another request: LOOKUP proves search permission on its directory,
    /// READ proves read permission on the file, READDIR on the directory.
    #[must_use]
    pub fn prove(former: Option<Self>, granted: Access, sent_at: MonotonicTime) -> Self {
        Self::absorb(former, granted, granted, sent_at)
    }

    /// The entry at `now`.
    #[must_use]
    pub fn view(&self, now: MonotonicTime) -> AccessEntryView {
        AccessEntryView {
            asked: self.asked,
            granted: self.granted,
            denial_is_young: self.denied_at.is_some_and(|at| now.since(at) < DENIAL_LIFETIME),
        }
    }
}

/// A cached result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessEntryView {
    /// The rights that were requested.
    pub asked: Access,
    /// The rights of these that were granted.
    pub granted: Access,
    /// The server denied a right less than [`DENIAL_LIFETIME`] ago.
    pub denial_is_young: bool,
}

/// The known rights of one caller on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessView {
    /// The rights that the mode bits grant. `None` if they must not be used: uid 0, unknown
    /// attributes, a credential with more than 16 groups (the server sees fewer), or a mismatch of
    /// [`ModeBitsComparison`].
    pub local: Option<Access>,
    /// The cached result of ACCESS.
    pub entry: Option<AccessEntryView>,
    /// The request would be served data that were fetched with another credential.
    pub foreign_data: bool,
}

/// The basis on which a right is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowedBy {
    /// The result of ACCESS.
    Server,
    /// The mode bits.
    ModeBits,
}

impl AccessView {
    /// The basis on which a caller with this view is granted `needs`.
    #[must_use]
    pub fn allowed_by(&self, needs: Access) -> AllowedBy {
        match self.entry {
            Some(entry) if entry.granted.contains(needs) => AllowedBy::Server,
            Some(_) | None => AllowedBy::ModeBits,
        }
    }
}

/// Why ACCESS is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessReason {
    /// No result is cached for these rights.
    Unasked,
    /// To confirm a denial, cached or by mode bits.
    ConfirmDenial,
    /// Once, before data of another credential are served.
    ForeignData,
}

/// The access decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum AccessDecision {
    /// Access is granted.
    Allow,
    /// Access is denied: EACCES.
    Deny,
    /// Send GETATTR (mode bits and the cached result are only as valid as the attributes), absorb,
    /// decide again.
    Revalidate,
    /// Send ACCESS, absorb, decide again.
    Ask(AccessReason),
}

/// Decides whether the caller has all rights of `needs` on an object with these attributes.
pub fn decide_access(
    view: &AccessView,
    attributes: Freshness,
    needs: Access,
    options: &CacheOptions,
) -> AccessDecision {
    // No right is needed: a successful lookup is sufficient.
    if needs.is_empty() {
        return AccessDecision::Allow;
    }
    let believed = match attributes {
        Freshness::Confirmed => true,
        Freshness::Fresh => options.attribute_cache,
        Freshness::Expired | Freshness::Unknown => false,
    };
    let local = match options.access {
        AccessMode::ModeBits => view.local,
        AccessMode::Server => None,
    };
    let known = view.entry.filter(|entry| entry.asked.contains(needs));
    match (known, local) {
        (None, None) => AccessDecision::Ask(AccessReason::Unasked),
        (Some(_), _) | (None, Some(_)) if !believed => AccessDecision::Revalidate,
        (Some(entry), _) if entry.granted.contains(needs) => AccessDecision::Allow,
        (Some(entry), _) if entry.denial_is_young => AccessDecision::Deny,
        (Some(_), _) => AccessDecision::Ask(AccessReason::ConfirmDenial),
        (None, Some(local)) if !local.contains(needs) => AccessDecision::Ask(AccessReason::ConfirmDenial),
        (None, Some(_)) if view.foreign_data => AccessDecision::Ask(AccessReason::ForeignData),
        (None, Some(_)) => AccessDecision::Allow,
    }
}

/// The comparison of mode bits with an ACCESS reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ModeBitsComparison {
    /// Both grant the same rights.
    Agree,
    /// The server grants more: an ACL, or groups that only the server knows. Mode bits are no
    /// longer used for this object.
    ServerGrantsMore,
    /// The server grants less: an ACL, or it maps this caller to another user. Mode bits are no
    /// longer used for this object nor for this credential; this is logged once.
    ServerGrantsLess,
}

/// Compares the server's result with the mode bits in the same reply. Only read and search are
/// compared: a read-only export denies writes that the mode bits allow.
pub fn compare(local: Access, asked: Access, granted: Access) -> ModeBitsComparison {
    let compared = asked.common(Access::READ.with(Access::LOOKUP).with(Access::EXECUTE));
    let (local, granted) = (local.common(compared), granted.common(compared));
    if !granted.contains(local) {
        ModeBitsComparison::ServerGrantsLess
    } else if !local.contains(granted) {
        ModeBitsComparison::ServerGrantsMore
    } else {
        ModeBitsComparison::Agree
    }
}
