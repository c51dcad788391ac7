//! What a client may do with an export, once it is known which of the export's clients it is.

use arrayvec::ArrayVec;
use curt_rpc::auth::OpaqueAuth;

/// Nobody's uid and gid.
pub(super) const NOBODY: u32 = 65_534;

/// Whose ids are replaced by the anonymous ones (exports(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Squash {
    /// Those of uid 0 and gid 0 (`root_squash`).
    #[default]
    Root,
    /// Nobody's (`no_root_squash`).
    None,
    /// Everybody's (`all_squash`).
    All,
}

/// What a client may do with an export (exports(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one pair of words of exports(5), and any of them goes with any other"
)]
pub struct ExportRules {
    /// Nothing can be changed (`ro`).
    pub read_only: bool,
    /// Whose ids are replaced.
    pub squash: Squash,
    /// The user that squashed callers become (`anonuid`).
    pub anonymous_uid: u32,
    /// The group that squashed callers become (`anongid`).
    pub anonymous_gid: u32,
    /// Only requests from ports below 1024 are served (`secure`): then it takes root on the
    /// client's machine to choose one's uid.
    pub secure_ports: bool,
    /// Changes are answered before they are on stable storage (`async`), as knfsd does: a WRITE is
    /// said to be as durable as it was asked to be, COMMIT does nothing, and what a crash of this
    /// machine loses is lost silently.
    pub asynchronous: bool,
    /// Each request checks whether its file still lies below the export, in directories that the
    /// caller may search (`subtree_check`).
    pub subtree_check: bool,
    /// Mounted below another export, it is entered from there (`nohide`).
    pub nohide: bool,
    /// File systems that are mounted below it are entered from it (`crossmnt`).
    pub crossmnt: bool,
    /// READDIRPLUS is answered (not `nordirplus`).
    pub readdirplus: bool,
}

impl Default for ExportRules {
    /// The defaults of exports(5), but writable:
    /// `rw,root_squash,anonuid=65534,anongid=65534,secure`.
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: NOBODY,
            anonymous_gid: NOBODY,
            secure_ports: true,
            asynchronous: false,
            subtree_check: false,
            nohide: false,
            crossmnt: false,
            readdirplus: true,
        }
    }
}

/// How a caller says who it is (`sec=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flavor {
    /// Not at all: the anonymous user (`sec=none`, AUTH_NONE).
    None,
    /// By ids that are believed (`sec=sys`, AUTH_SYS).
    Sys,
}

impl Flavor {
    /// How a credential says it; none for flavours that are not spoken here.
    pub(crate) const fn of(credential: &OpaqueAuth<'_>) -> Option<Self> {
        match credential {
            OpaqueAuth::None => Some(Self::None),
            OpaqueAuth::Sys(_) => Some(Self::Sys),
            OpaqueAuth::Other { .. } => None,
        }
    }

    /// RPC's number (RFC 5531 section 8.1).
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Sys => 1,
        }
    }

    /// The word of exports(5).
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Sys => "sys",
        }
    }
}

/// The rules of an export for one client, for each flavour that it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesByFlavor {
    offered: ArrayVec<(Flavor, ExportRules), 2>,
    /// Whether AUTH_NONE is taken though only AUTH_SYS is offered: where no `sec=` is given, as
    /// knfsd does.
    none_tolerated: bool,
}

impl RulesByFlavor {
    /// One set of rules, and no `sec=`: AUTH_SYS is offered, AUTH_NONE taken too, as the anonymous
    /// user.
    #[must_use]
    pub fn without_sec(rules: ExportRules) -> Self {
        Self { offered: ArrayVec::from_iter([(Flavor::Sys, rules)]), none_tolerated: true }
    }

    /// The flavours of `sec=`, the preferred first, each with its rules.
    #[must_use]
    pub fn with_sec(offered: ArrayVec<(Flavor, ExportRules), 2>) -> Self {
        Self { offered, none_tolerated: false }
    }

    /// The rules for callers with this flavour; none if it is not accepted.
    #[must_use]
    pub fn of(&self, flavor: Flavor) -> Option<&ExportRules> {
        let exact = self.offered.iter().find(|(own, _)| *own == flavor);
        let found = match flavor {
            Flavor::None if self.none_tolerated => exact.or_else(|| self.offered.first()),
            Flavor::None | Flavor::Sys => exact,
        };
        found.map(|(_, rules)| rules)
    }

    /// The rules that hold whatever the flavour: all but who may write and who is squashed.
    pub(crate) fn common(&self) -> &ExportRules {
        &self.offered.first().expect("rules are made with a flavour").1
    }

    /// The flavours that MNT returns, the preferred first.
    pub(crate) fn flavors(&self) -> impl Iterator<Item = Flavor> {
        self.offered.iter().map(|(flavor, _)| *flavor)
    }

    /// The same with other rules for each flavour.
    #[must_use]
    pub fn map(mut self, change: impl Fn(ExportRules) -> ExportRules) -> Self {
        for (_, rules) in &mut self.offered {
            *rules = change(*rules);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_flavour_gets_its_own_rules_and_none_of_anothers() {
        let (ro, rw) = (ExportRules { read_only: true, ..ExportRules::default() }, ExportRules::default());
        let plain = RulesByFlavor::without_sec(rw);
        assert_eq!(plain.of(Flavor::Sys), Some(&rw));
        assert_eq!(plain.of(Flavor::None), Some(&rw), "as knfsd without sec=");
        let sys = RulesByFlavor::with_sec(ArrayVec::from_iter([(Flavor::Sys, rw)]));
        assert_eq!(sys.of(Flavor::None), None);
        let both = RulesByFlavor::with_sec(ArrayVec::from_iter([(Flavor::Sys, rw), (Flavor::None, ro)]));
        assert_eq!((both.of(Flavor::Sys), both.of(Flavor::None)), (Some(&rw), Some(&ro)));
        assert_eq!(both.flavors().map(Flavor::number).collect::<Vec<_>>(), [1, 0]);
    }
}
