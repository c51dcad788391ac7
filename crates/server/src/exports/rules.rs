//! The rules of an export for a client.

use arrayvec::ArrayVec;
use curt_rpc::auth::OpaqueAuth;

/// The uid and gid of the user `nobody`.
const NOBODY: u32 = 65_534;

/// The ids that are replaced by the anonymous ones (exports(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Squash {
    /// uid 0 and gid 0 (`root_squash`).
    #[default]
    Root,
    /// None (`no_root_squash`).
    None,
    /// All (`all_squash`).
    All,
}

/// The rules of an export for a client (exports(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is one pair of words of exports(5), and any of them goes with any other"
)]
pub struct ExportRules {
    /// The export is read-only (`ro`).
    pub read_only: bool,
    /// The ids that are squashed.
    pub squash: Squash,
    /// The uid of squashed callers (`anonuid`).
    pub anonymous_uid: u32,
    /// The gid of squashed callers (`anongid`).
    pub anonymous_gid: u32,
    /// Only requests from ports below 1024 are served (`secure`), so that only root on the client
    /// can claim any uid.
    pub secure_ports: bool,
    /// Replies are sent before changes are on stable storage (`async`), as by knfsd: a WRITE
    /// reports the requested stability, COMMIT does nothing, and a crash of this machine loses data
    /// silently.
    pub asynchronous: bool,
    /// Each request checks whether its file still lies below the export, in directories that the
    /// caller may search (`subtree_check`).
    pub subtree_check: bool,
    /// Clients can enter it from the export below which it is mounted (`nohide`).
    pub nohide: bool,
    /// Clients can enter file systems that are mounted below it (`crossmnt`).
    pub crossmnt: bool,
    /// READDIRPLUS is answered (not `nordirplus`).
    pub readdirplus: bool,
    /// A file may be locked by a caller who could not open it (`insecure_locks`, `no_auth_nlm`).
    pub insecure_locks: bool,
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
            insecure_locks: false,
        }
    }
}

/// How a caller authenticates (`sec=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialFlavor {
    /// Not at all: it is the anonymous user (`sec=none`, AUTH_NONE).
    None,
    /// By ids that are trusted (`sec=sys`, AUTH_SYS).
    Sys,
}

impl CredentialFlavor {
    /// The flavour of a credential; none if this server does not support it.
    pub(crate) const fn of(credential: &OpaqueAuth<'_>) -> Option<Self> {
        match credential {
            OpaqueAuth::None => Some(Self::None),
            OpaqueAuth::Sys(_) => Some(Self::Sys),
            OpaqueAuth::Other { .. } => None,
        }
    }

    /// The number in RPC (RFC 5531 section 8.1).
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Sys => 1,
        }
    }

    /// The name in exports(5).
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
    offered: ArrayVec<(CredentialFlavor, ExportRules), 2>,
    /// Whether AUTH_NONE is accepted although only AUTH_SYS is offered: without `sec=`, as by
    /// knfsd.
    none_tolerated: bool,
}

impl RulesByFlavor {
    /// One set of rules without `sec=`: AUTH_SYS is offered; AUTH_NONE is accepted as the anonymous
    /// user.
    #[must_use]
    pub fn without_sec(rules: ExportRules) -> Self {
        Self { offered: ArrayVec::from_iter([(CredentialFlavor::Sys, rules)]), none_tolerated: true }
    }

    /// The flavours of `sec=`, the preferred first, each with its rules.
    #[must_use]
    pub fn with_sec(offered: ArrayVec<(CredentialFlavor, ExportRules), 2>) -> Self {
        Self { offered, none_tolerated: false }
    }

    /// The rules for callers with this flavour; none if it is not accepted.
    #[must_use]
    pub fn of(&self, flavor: CredentialFlavor) -> Option<&ExportRules> {
        let exact = self.offered.iter().find(|(own, _)| *own == flavor);
        let found = match flavor {
            CredentialFlavor::None if self.none_tolerated => exact.or_else(|| self.offered.first()),
            CredentialFlavor::None | CredentialFlavor::Sys => exact,
        };
        found.map(|(_, rules)| rules)
    }

    /// The rules that do not depend on the flavour: all except read-only and squashing.
    pub(crate) fn common(&self) -> &ExportRules {
        &self.offered.first().expect("rules are made with a flavour").1
    }

    /// The flavours that MNT returns, the preferred first.
    pub(crate) fn flavors(&self) -> impl Iterator<Item = CredentialFlavor> {
        self.offered.iter().map(|(flavor, _)| *flavor)
    }

    /// Replaces the rules of each flavour.
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
        assert_eq!(plain.of(CredentialFlavor::Sys), Some(&rw));
        assert_eq!(plain.of(CredentialFlavor::None), Some(&rw), "as knfsd without sec=");
        let sys = RulesByFlavor::with_sec(ArrayVec::from_iter([(CredentialFlavor::Sys, rw)]));
        assert_eq!(sys.of(CredentialFlavor::None), None);
        let both = RulesByFlavor::with_sec(ArrayVec::from_iter([
            (CredentialFlavor::Sys, rw),
            (CredentialFlavor::None, ro),
        ]));
        assert_eq!((both.of(CredentialFlavor::Sys), both.of(CredentialFlavor::None)), (Some(&rw), Some(&ro)));
        assert_eq!(both.flavors().map(CredentialFlavor::number).collect::<Vec<_>>(), [1, 0]);
    }
}
