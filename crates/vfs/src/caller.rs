//! The caller of an operation.

/// Whose rights an operation has: the ids after squashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsCred<'a> {
    /// The user.
    pub uid: u32,
    /// The main group.
    pub gid: u32,
    /// The other groups, in any order.
    pub groups: &'a [u32],
    /// Whether it has the rights of uid 0: an unsquashed root.
    pub privileged: bool,
}

impl<'a> FsCred<'a> {
    /// The privileged uid 0.
    pub const ROOT: FsCred<'static> = FsCred {
        uid: 0,
        gid: 0,
        groups: &[],
        privileged: true,
    };

    /// A caller that is privileged if its uid is 0.
    #[must_use]
    pub const fn new(uid: u32, gid: u32, groups: &'a [u32]) -> Self {
        Self {
            uid,
            gid,
            groups,
            privileged: uid == 0,
        }
    }

    /// Whether the caller is in `gid`.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
