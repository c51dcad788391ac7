//! Which of root's rights are kept, and by which thread.
//!
//! The process gives up what no part of it needs before it opens anything that clients can
//! influence; the threads that serve give up more. Each step is for good: permitted and effective
//! sets shrink (the bounding set at the first step, which gives up the right to change it), ambient
//! and inheritable ones are emptied, and no program that is run could regain anything
//! (`no_new_privs`). A process without rights keeps what it has: none.

use anyhow::{Context, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// What threads that serve need: to work as each caller (SETUID, SETGID), to resolve handles
/// (DAC_READ_SEARCH), to allow what root or a file's owner may (DAC_OVERRIDE, FOWNER, CHOWN, MKNOD,
/// and FSETID for root's chmod). None of them lets quotas be exceeded, a mount be made, or a
/// process be looked into.
const TO_SERVE: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// What of that is in force only while somebody has raised it for one call: it would let suid bits
/// survive writes and every file be read.
const RAISED_TO_SERVE: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::FSETID);

/// What the threads beside them need in addition: to see an export through a copy of its mount
/// (SYS_ADMIN), now and at a reload, and to take leave of rpcbind from a reserved port
/// (NET_BIND_SERVICE).
const TO_MANAGE: CapabilitySet = TO_SERVE
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_ADMIN);

/// Keeps what the server as a whole needs. For the first thread, before it starts others.
pub(super) fn keep_to_manage() -> Result<()> {
    keep(TO_MANAGE, CapabilitySet::empty())
}

/// Keeps what serving needs. For the thread that starts those that serve: they begin as they are
/// between requests.
pub(super) fn keep_to_serve() -> Result<()> {
    keep(TO_SERVE, RAISED_TO_SERVE)
}

/// Keeps what is `wanted`, and of it what is to be `raised` for a moment out of the effective set.
fn keep(wanted: CapabilitySet, raised: CapabilitySet) -> Result<()> {
    let held = capabilities(None).context("cannot read the capabilities")?;
    // The bounding set can only be changed by whoever may set capabilities.
    if held.effective.contains(CapabilitySet::SETPCAP) {
        let unwanted = CapabilitySet::all().difference(wanted);
        for capability in unwanted.iter() {
            // What this kernel does not know is in no set.
            if capability_is_in_bounding_set(capability).is_ok_and(|held| held) {
                remove_capability_from_bounding_set(capability)
                    .context("cannot limit the capability bounding set")?;
            }
        }
    }
    // Old kernels have none.
    let _ = clear_ambient_capability_set();
    let kept = CapabilitySets {
        effective: held.effective & wanted.difference(raised),
        permitted: held.permitted & wanted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, kept).context("cannot drop capabilities")?;
    set_no_new_privs(true).context("cannot set no_new_privs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities are each thread's own; the test's thread ends with it.
    #[test]
    fn what_is_given_up_stays_so() {
        let test = || {
            let before = capabilities(None).expect("capget of oneself");
            for (wanted, raised) in [(TO_MANAGE, CapabilitySet::empty()), (TO_SERVE, RAISED_TO_SERVE)] {
                keep(wanted, raised).expect("nobody needs a right to give rights up");
                let after = capabilities(None).expect("capget of oneself");
                assert_eq!(after.permitted, before.permitted & wanted);
                assert_eq!(after.effective, before.effective & wanted.difference(raised));
                assert!(after.inheritable.is_empty());
            }
            assert!(rustix::thread::no_new_privs().expect("prctl"));
            let (effective, permitted) = (before.permitted, before.permitted);
            let inheritable = CapabilitySet::empty();
            let again = CapabilitySets {
                effective,
                permitted,
                inheritable,
            };
            let regained = set_capabilities(None, again).is_ok();
            assert_eq!(regained, TO_SERVE.contains(before.permitted));
            keep_to_serve().expect("a second time");
        };
        std::thread::scope(|scope| scope.spawn(test).join().expect("the test's thread"));
    }
}
