//! The identity to which a caller is mapped: its credential after the export's squashing.

use std::sync::Arc;

use arrayvec::ArrayVec;
use curt_rpc::auth::{AuthStatus, GROUPS_MAX, OpaqueAuth};
use curt_vfs::FsCred;

use crate::exports::{ExportRules, Squash};

/// uid 0 and gid 0, which `root_squash` replaces.
const ROOT: u32 = 0;
/// The id that means "no change" to system calls. A client that sends it must not get the ids of
/// the previous caller.
const NO_ID: u32 = u32::MAX;

/// A caller's ids after squashing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SquashedIdentity {
    uid: u32,
    gid: u32,
    groups: CallerGroups,
}

/// The supplementary groups of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallerGroups {
    /// The groups of its credential.
    Sent(ArrayVec<u32, GROUPS_MAX>),
    /// The groups in this machine's user database (`--manage-gids`).
    Managed(Arc<[u32]>),
}

impl SquashedIdentity {
    /// Maps a credential under the rules of an export. AUTH_NONE is the anonymous user.
    ///
    /// # Errors
    /// For flavours that this server does not support.
    pub(crate) fn of(credential: &OpaqueAuth<'_>, rules: &ExportRules) -> Result<Self, AuthStatus> {
        let (anonymous_uid, anonymous_gid) = (rules.anonymous_uid, rules.anonymous_gid);
        let anonymous =
            Self { uid: anonymous_uid, gid: anonymous_gid, groups: CallerGroups::Sent(ArrayVec::new()) };
        let sys = match credential {
            OpaqueAuth::None => return Ok(anonymous),
            OpaqueAuth::Sys(sys) => sys,
            OpaqueAuth::Other { .. } => return Err(AuthStatus::TooWeak),
        };
        let squash_root = match rules.squash {
            Squash::All => return Ok(anonymous),
            Squash::Root => true,
            Squash::None => false,
        };
        let map = |id: u32, anonymous: u32| match id {
            NO_ID => anonymous,
            ROOT if squash_root => anonymous,
            id => id,
        };
        Ok(Self {
            uid: map(sys.uid, anonymous_uid),
            gid: map(sys.gid, anonymous_gid),
            groups: CallerGroups::Sent(sys.groups.iter().map(|gid| map(*gid, anonymous_gid)).collect()),
        })
    }

    /// The caller's identity for the file system. It is privileged if its uid is 0 after squashing.
    pub(crate) fn caller(&self) -> FsCred<'_> {
        let groups: &[u32] = match &self.groups {
            CallerGroups::Sent(groups) => groups,
            CallerGroups::Managed(groups) => groups,
        };
        FsCred::new(self.uid, self.gid, groups)
    }

    /// The user whose groups are looked up on this machine; none if the caller becomes the
    /// anonymous user.
    pub(crate) fn managed_uid(credential: &OpaqueAuth<'_>, rules: &ExportRules) -> Option<u32> {
        match (credential, rules.squash) {
            (OpaqueAuth::Sys(sys), Squash::Root) if sys.uid == ROOT => None,
            (OpaqueAuth::Sys(sys), Squash::Root | Squash::None) => Some(sys.uid).filter(|uid| *uid != NO_ID),
            (OpaqueAuth::Sys(_), Squash::All) | (OpaqueAuth::None | OpaqueAuth::Other { .. }, _) => None,
        }
    }

    /// This identity without the groups of the credential.
    pub(crate) fn without_groups(self) -> Self {
        Self { groups: CallerGroups::Sent(ArrayVec::new()), ..self }
    }

    /// This identity with the user's groups of this machine, squashed under the export's rules.
    pub(crate) fn with_groups(self, known: Arc<[u32]>, rules: &ExportRules) -> Self {
        let anonymous = rules.anonymous_gid;
        let squashed = |gid: &u32| *gid == ROOT && rules.squash == Squash::Root;
        let groups = if known.iter().any(squashed) {
            let map = |gid: &u32| if squashed(gid) { anonymous } else { *gid };
            known.iter().map(map).collect()
        } else {
            known
        };
        Self { groups: CallerGroups::Managed(groups), ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use curt_rpc::auth::{AuthSys, AuthSysGids};

    use super::*;

    fn squashed(squash: Squash, uid: u32, gid: u32, groups: &[u32]) -> (u32, u32, Vec<u32>, bool) {
        let rules = ExportRules { squash, anonymous_uid: 77, anonymous_gid: 88, ..ExportRules::default() };
        let groups = AuthSysGids::first_of(groups);
        let auth = OpaqueAuth::Sys(AuthSys { stamp: 0, machine_name: b"", uid, gid, groups });
        let identity = SquashedIdentity::of(&auth, &rules).unwrap();
        let caller = identity.caller();
        (caller.uid, caller.gid, caller.groups.to_vec(), caller.privileged)
    }

    #[test]
    fn ids_are_squashed_as_the_export_says() {
        let rows = [
            (Squash::None, (0, 0, vec![0, 5]), (0, 0, vec![0, 5], true)),
            (Squash::None, (9, 0, vec![3, 0, 1]), (9, 0, vec![3, 0, 1], false)),
            (Squash::Root, (0, 0, vec![0, 5]), (77, 88, vec![88, 5], false)),
            (Squash::Root, (9, 0, vec![3, 0, 1]), (9, 88, vec![3, 88, 1], false)),
            (Squash::Root, (9, 4, vec![3]), (9, 4, vec![3], false)),
            (Squash::All, (0, 0, vec![0, 5]), (77, 88, vec![], false)),
            (Squash::All, (9, 4, vec![3]), (77, 88, vec![], false)),
            (Squash::None, (u32::MAX, u32::MAX, vec![u32::MAX]), (77, 88, vec![88], false)),
        ];
        for (squash, (uid, gid, groups), expected) in rows {
            assert_eq!(squashed(squash, uid, gid, &groups), expected, "{squash:?} {uid} {gid} {groups:?}");
        }
    }

    // SEMANTICS: export-7.
    #[test]
    fn groups_that_this_machine_knows_replace_those_sent_and_are_squashed_alike() {
        let auth = |uid| {
            OpaqueAuth::Sys(AuthSys {
                stamp: 0,
                machine_name: b"",
                uid,
                gid: 3,
                groups: AuthSysGids::first_of(&[4]),
            })
        };
        let many: Arc<[u32]> = (0..100).collect();
        for (squash, first) in [(Squash::Root, 65_534), (Squash::None, 0)] {
            let rules = ExportRules { squash, ..ExportRules::default() };
            let identity = SquashedIdentity::of(&auth(9), &rules).unwrap();
            let identity = identity.with_groups(Arc::clone(&many), &rules);
            let caller = identity.caller();
            assert_eq!((caller.uid, caller.gid, caller.groups.len()), (9, 3, 100));
            assert_eq!((caller.groups[0], caller.groups[99]), (first, 99));
            assert_eq!(SquashedIdentity::managed_uid(&auth(9), &rules), Some(9));
            assert_eq!(SquashedIdentity::managed_uid(&auth(NO_ID), &rules), None);
            let of_root = SquashedIdentity::managed_uid(&auth(0), &rules);
            assert_eq!(of_root, (squash == Squash::None).then_some(0));
        }
        let all = ExportRules { squash: Squash::All, ..ExportRules::default() };
        assert_eq!(SquashedIdentity::managed_uid(&auth(9), &all), None);
        assert_eq!(SquashedIdentity::managed_uid(&OpaqueAuth::None, &ExportRules::default()), None);
    }

    #[test]
    fn only_an_unsquashed_root_is_privileged() {
        for squash in [Squash::None, Squash::Root, Squash::All] {
            for uid in [1, 77, 65_534, u32::MAX] {
                assert!(!squashed(squash, uid, 0, &[0]).3);
            }
        }
        assert!(!squashed(Squash::Root, 0, 0, &[]).3);
    }

    #[test]
    fn no_credential_is_anonymous_and_an_unknown_one_too_weak() {
        let rules = ExportRules { squash: Squash::None, ..ExportRules::default() };
        let anonymous = SquashedIdentity::of(&OpaqueAuth::None, &rules).unwrap();
        assert_eq!(anonymous.caller().uid, 65_534);
        assert!(!anonymous.caller().privileged);
        let gss = OpaqueAuth::Other { flavor: 6, body: b"" };
        assert_eq!(SquashedIdentity::of(&gss, &rules), Err(AuthStatus::TooWeak));
    }
}
