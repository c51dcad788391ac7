//! Capabilities of the process and of its serving threads.
//!
//! The process drops capabilities that it does not need before it opens anything that clients can
//! influence; serving threads drop more. Each step is permanent: permitted and effective sets
//! shrink (the bounding set at the first step, which drops the capability to change it), ambient
//! and inheritable sets are emptied, and an executed program could not regain any (`no_new_privs`).
//! A process without capabilities is not affected.

use anyhow::{Context, Result};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// Capabilities of serving threads: to use each caller's ids (SETUID, SETGID), to resolve handles
/// (DAC_READ_SEARCH), to allow operations of root or a file's owner (DAC_OVERRIDE, FOWNER, CHOWN,
/// MKNOD, and FSETID for root's chmod). None of them permits to exceed quotas, to mount, or to
/// inspect a process.
const TO_SERVE: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// Capabilities of these that are effective only during single system calls: with them suid bits
/// would survive writes, and all files could be read.
const RAISED_TO_SERVE: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::FSETID);

/// Capabilities that the other threads need in addition: to clone the mount of an export
/// (SYS_ADMIN), at the start and at a reload, and to unregister from rpcbind from a reserved port
/// (NET_BIND_SERVICE).
const TO_MANAGE: CapabilitySet =
    TO_SERVE.union(CapabilitySet::NET_BIND_SERVICE).union(CapabilitySet::SYS_ADMIN);

/// Keeps the capabilities of the whole server. For the first thread, before it starts others.
pub(super) fn keep_to_manage() -> Result<()> {
    keep(TO_MANAGE, CapabilitySet::empty())
}

/// Keeps the capabilities of serving threads. For the thread that starts them: they inherit its
/// sets.
pub(super) fn keep_to_serve() -> Result<()> {
    keep(TO_SERVE, RAISED_TO_SERVE)
}

/// Keeps the capabilities `wanted`, and removes `raised` from the effective set.
fn keep(wanted: CapabilitySet, raised: CapabilitySet) -> Result<()> {
    let current = capabilities(None).context("cannot read the capabilities")?;
    // Only with CAP_SETPCAP can the bounding set be changed.
    if current.effective.contains(CapabilitySet::SETPCAP) {
        let unwanted = CapabilitySet::all().difference(wanted);
        for capability in unwanted.iter() {
            // A capability that this kernel does not support is in no set.
            if capability_is_in_bounding_set(capability).is_ok_and(|current| current) {
                remove_capability_from_bounding_set(capability)
                    .context("cannot limit the capability bounding set")?;
            }
        }
    }
    // Old kernels have none.
    let _ = clear_ambient_capability_set();
    let reduced = CapabilitySets {
        effective: current.effective & wanted.difference(raised),
        permitted: current.permitted & wanted,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, reduced).context("cannot drop capabilities")?;
    set_no_new_privs(true).context("cannot set no_new_privs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Capabilities are per thread; the test's thread ends with it.
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
            let again = CapabilitySets { effective, permitted, inheritable };
            let regained = set_capabilities(None, again).is_ok();
            assert_eq!(regained, TO_SERVE.contains(before.permitted));
            keep_to_serve().expect("a second time");
        };
        std::thread::scope(|scope| scope.spawn(test).join().expect("the test's thread"));
    }
}
