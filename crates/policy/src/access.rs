//! Access decisions: by the server's answer, cached for a while, or by mode bits (`noaccesscheck`).
//!
//! Owns the rules of access: when a cached answer applies, when mode bits apply, and what mode bits
//! may not decide.
//!
//! Invariants:
//! - Mode bits never decide for uid 0, which the server may squash.
//! - Only the server denies finally: any other denial is confirmed by one ACCESS, at most once a
//!   second for one file and credential.
//! - Data fetched under another credential are not served before the server has granted this one
//!   something on the file.
//!
//! Must not know where groups come from, nor which operation asks.

use core::time::Duration;

use curt_types::{Access, FileKind};

use crate::{
    attributes::Freshness,
    facts::{Epoch, Facts},
    options::{AccessMode, CacheOptions},
    time::Moment,
};

/// For how long a denial that the server confirmed is believed.
pub const DENIAL_LIFETIME: Duration = Duration::from_secs(1);

/// Whom mode bits are to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnixCredential<'a> {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// All further groups.
    pub groups: &'a [u32],
}

/// What the mode bits grant; `None` for uid 0, whom they do not bind here nor, squashed, there.
#[must_use]
pub fn mode_bits_rights(facts: &Facts, credential: UnixCredential<'_>) -> Option<Access> {
    if credential.uid == 0 {
        return None;
    }
    let bits = if credential.uid == facts.uid {
        facts.mode >> 6
    } else if credential.gid == facts.gid || credential.groups.contains(&facts.gid) {
        facts.mode >> 3
    } else {
        facts.mode
    };
    let mut rights = Access::NONE;
    if bits & 4 != 0 {
        rights = rights.with(Access::READ);
    }
    if bits & 2 != 0 {
        rights = rights.with(Access::MODIFY).with(Access::EXTEND);
    }
    if bits & 1 != 0 {
        rights = rights.with(match facts.kind {
            FileKind::Directory => Access::LOOKUP,
            _ => Access::EXECUTE,
        });
    }
    // Removing a name takes writing and searching (whether the sticky bit forbids it the server
    // finds out).
    if facts.kind == FileKind::Directory && bits & 3 == 3 {
        rights = rights.with(Access::DELETE);
    }
    Some(rights)
}

/// Whether owner, group and all others may search this directory: then nobody has to be asked who
/// walks through it.
#[must_use]
pub const fn is_world_searchable(facts: &Facts) -> bool {
    matches!(facts.kind, FileKind::Directory) && facts.mode & 0o111 == 0o111
}

/// What the server is known to have said to one credential about one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessEntry {
    asked: Access,
    granted: Access,
    rights: Epoch,
    /// When the request was sent whose answer denied something.
    denied_at: Option<Moment>,
}

impl AccessEntry {
    /// What an ACCESS reply teaches: `asked` and `granted` as in the request and the reply,
    /// `rights` the object's epoch once the reply's attributes are absorbed. What was known under
    /// the same epoch is kept.
    #[must_use]
    pub fn absorb(
        former: Option<Self>,
        asked: Access,
        granted: Access,
        rights: Epoch,
        sent_at: Moment,
    ) -> Self {
        let denied = asked.without(granted);
        let denied_at = (!denied.is_empty()).then_some(sent_at);
        match former {
            Some(former) if former.rights == rights => Self {
                asked: former.asked.with(asked),
                granted: former.granted.without(asked).with(granted.common(asked)),
                rights,
                denied_at: denied_at.or(former.denied_at),
            },
            Some(_) | None => Self { asked, granted: granted.common(asked), rights, denied_at },
        }
    }

    /// What the success of another request proves: a LOOKUP that its directory may be searched, a
    /// READ that the file may be read, a READDIR that the directory may be listed.
    #[must_use]
    pub fn prove(former: Option<Self>, granted: Access, rights: Epoch, sent_at: Moment) -> Self {
        Self::absorb(former, granted, granted, rights, sent_at)
    }

    /// The entry as seen under the object's present epoch at `now`; `None` if it is of a former
    /// one.
    #[must_use]
    pub fn view(&self, rights: Epoch, now: Moment) -> Option<AccessEntryView> {
        (self.rights == rights).then(|| AccessEntryView {
            asked: self.asked,
            granted: self.granted,
            denial_is_young: self.denied_at.is_some_and(|at| now.since(at) < DENIAL_LIFETIME),
        })
    }
}

/// A kept answer of the present epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessEntryView {
    /// What the server was asked about.
    pub asked: Access,
    /// What of that it grants.
    pub granted: Access,
    /// A denial was given less than [`DENIAL_LIFETIME`] ago.
    pub denial_is_young: bool,
}

/// What is known of one caller's rights on one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessView {
    /// What the mode bits grant; `None` if nothing may be judged by them: uid 0, unknown
    /// attributes, a credential with more than 16 groups (the server sees fewer), or one of the two
    /// doubts of [`ModeBitsComparison`].
    pub local: Option<Access>,
    /// What the server said under the present epoch of rights.
    pub entry: Option<AccessEntryView>,
    /// Data are to be served that another credential fetched.
    pub foreign_data: bool,
}

/// By whose word a caller is allowed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AllowedBy {
    /// The server's answer.
    Server,
    /// The mode bits.
    ModeBits,
}

impl AccessView {
    /// By whose word a caller with this view is allowed `needs`.
    #[must_use]
    pub fn allowed_by(&self, needs: Access) -> AllowedBy {
        match self.entry {
            Some(entry) if entry.granted.contains(needs) => AllowedBy::Server,
            Some(_) | None => AllowedBy::ModeBits,
        }
    }
}

/// Why the server has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessReason {
    /// It never was, or not about this.
    Unasked,
    /// A denial, kept or local, is to be confirmed.
    ConfirmDenial,
    /// Once before another credential's data are served.
    ForeignData,
}

/// Whether a caller may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum AccessDecision {
    /// Yes.
    Allow,
    /// No: EACCES.
    Deny,
    /// Send GETATTR (the mode bits or the kept answer are only as good as the attributes), absorb,
    /// decide again.
    Revalidate,
    /// Send ACCESS, absorb, decide again.
    Ask(AccessReason),
}

/// Decides whether the caller has all of `needs` on an object with these attributes.
pub fn decide_access(
    view: &AccessView,
    attributes: Freshness,
    needs: Access,
    options: &CacheOptions,
) -> AccessDecision {
    // Nothing is asked for: that the name led here is the answer.
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

/// What an ACCESS reply says of mode bits as a judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum ModeBitsComparison {
    /// They would have said the same.
    Agree,
    /// The server grants more: an access control list, or groups that it knows and we do not. Mode
    /// bits do not judge this object any more.
    ServerGrantsMore,
    /// The server grants less: an access control list, or it takes this caller for somebody else.
    /// Mode bits judge neither this object nor this credential any more; say so once.
    ServerGrantsLess,
}

/// Compares the server's answer with the mode bits in the same reply. Only reading and searching
/// count: a read-only export refuses writing to those whom the bits allow it.
pub fn compare(local: Access, asked: Access, granted: Access) -> ModeBitsComparison {
    let telling = asked.common(Access::READ.with(Access::LOOKUP).with(Access::EXECUTE));
    let (local, granted) = (local.common(telling), granted.common(telling));
    if !granted.contains(local) {
        ModeBitsComparison::ServerGrantsLess
    } else if !local.contains(granted) {
        ModeBitsComparison::ServerGrantsMore
    } else {
        ModeBitsComparison::Agree
    }
}
