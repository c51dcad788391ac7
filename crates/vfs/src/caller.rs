//! The caller of an operation.

/// The credential of an operation, after squashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsCred<'a> {
    /// The uid.
    pub uid: u32,
    /// The primary gid.
    pub gid: u32,
    /// The supplementary groups, in any order.
    pub groups: &'a [u32],
    /// Whether it has the privileges of uid 0: an unsquashed root.
    pub privileged: bool,
}

impl<'a> FsCred<'a> {
    /// The privileged uid 0.
    pub const ROOT: FsCred<'static> = FsCred { uid: 0, gid: 0, groups: &[], privileged: true };

    /// A caller that is privileged if its uid is 0.
    #[must_use]
    pub const fn new(uid: u32, gid: u32, groups: &'a [u32]) -> Self {
        Self { uid, gid, groups, privileged: uid == 0 }
    }

    /// Whether the caller is a member of `gid`.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
