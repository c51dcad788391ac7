//! Rules for permission bits that all trees share.

/// The mode to set together with an owner or a group, without set-id bits: these must not apply to
/// a new owner.
pub(crate) fn revoke(mode: u32) -> u32 {
    let without_suid = mode & !0o4000;
    if mode & 0o010 != 0 { without_suid & !0o2000 } else { without_suid }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_owner_gets_no_bits_that_give_rights() {
        for (requested, left) in [(0o6755, 0o755), (0o2745, 0o2745), (0o4711, 0o711), (0o1777, 0o1777)] {
            assert_eq!(revoke(requested), left, "{requested:o}");
        }
    }
}
