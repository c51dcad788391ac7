//! Write verifiers. They stay the same as long as no unstable write to a tree can have been lost
//! (RFC 1813 section 3.3.7). If one changes, the client repeats its writes.
//!
//! A tree counts its losses itself ([`Vfs::losses`](curt_vfs::Vfs::losses)), and has counted a loss
//! before any COMMIT can succeed after it. A WRITE reads the number before it writes, a COMMIT
//! after it has committed. If data are lost in between, the verifiers differ, and the client sends
//! the data again, at worst without need.

/// The verifiers of this run of the server.
pub(crate) struct WriteVerifiers(u64);

impl WriteVerifiers {
    /// Starts with a random number, so that no other run is likely to have the same.
    pub(crate) const fn new(instance: u64) -> Self {
        Self(instance)
    }

    /// The verifier of a tree after `losses` losses.
    pub(crate) const fn of(&self, losses: u64) -> [u8; 8] {
        self.0.wrapping_add(losses).to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_and_each_life_has_another_verifier() {
        let verifiers = WriteVerifiers::new(u64::MAX);
        assert_eq!(verifiers.of(3), verifiers.of(3));
        assert_ne!(verifiers.of(0), verifiers.of(1));
        assert_ne!(verifiers.of(0), WriteVerifiers::new(41).of(0));
    }
}
