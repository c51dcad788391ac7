//! The credentials of a thread: its file-system ids and capabilities, changed only if the next
//! caller differs from the last, and verified.
//!
//! A thread keeps the last caller's ids between requests, and a new thread inherits those of the
//! thread that started it; so a new thread always sets them. Serving threads have neither
//! CAP_FSETID nor CAP_SYS_RESOURCE in their effective set (suid bits would survive writes, quotas
//! would not apply), and CAP_DAC_READ_SEARCH only inside [`FsIdentity::with_capabilities`].
//! Capabilities raised there are lowered before anything else happens, or the process ends.

use std::cell::{Cell, RefCell};

use curt_observe::stages::{self, RequestStage};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

use super::sys::{own_umask, set_fs_gid, set_fs_uid};
use crate::caller::FsCred;

/// Capabilities that the kernel removes from a thread's effective set when its fsuid changes from
/// 0, and restores when it becomes 0.
const FILE_SYSTEM: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

/// Capabilities that serving threads raise only for single system calls.
const WITHHELD: CapabilitySet =
    CapabilitySet::FSETID.union(CapabilitySet::SYS_RESOURCE).union(CapabilitySet::DAC_READ_SEARCH);

/// An invalid id: the kernel returns the current id and changes nothing.
const NOBODY_ASKS: u32 = u32::MAX;

/// The credentials that this thread last set.
struct AppliedCredentials {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    privileged: bool,
    effective: CapabilitySet,
    permitted: CapabilitySet,
    inheritable: CapabilitySet,
}

thread_local! {
    /// Whether this thread has a umask of 0.
    static TAKES_MODES: Cell<bool> = const { Cell::new(false) };
    static APPLIED: RefCell<Option<AppliedCredentials>> = const { RefCell::new(None) };
}

/// The credentials that this process can set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FsIdentity {
    /// Any: it may change ids.
    Anybody,
    /// Only this user and group.
    Fixed { uid: u32, gid: u32 },
}

impl FsIdentity {
    /// Determines the privileges of this process. Changes nothing.
    pub(super) fn of_process() -> Self {
        let needed = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
        let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
        // In some user namespaces groups may not be changed, whatever the capabilities.
        let groups = getgroups().unwrap_or_default();
        if may && set_thread_groups(&groups).is_ok() {
            return Self::Anybody;
        }
        Self::Fixed { uid: geteuid().as_raw(), gid: getegid().as_raw() }
    }

    /// Sets the credentials of this thread to `caller`. After an error they are undefined, and the
    /// request must end.
    pub(super) fn switch_to(self, caller: &FsCred<'_>) -> Result<(), Errno> {
        if !TAKES_MODES.get() {
            own_umask()?;
            rustix::process::umask(Mode::empty());
            TAKES_MODES.set(true);
        }
        if let Self::Fixed { uid, gid } = self {
            let same = caller.uid == uid && caller.gid == gid;
            return if same { Ok(()) } else { Err(Errno::PERM) };
        }
        APPLIED.with_borrow_mut(|applied| {
            if applied.as_ref().is_some_and(|applied| applied.is(caller)) {
                return Ok(());
            }
            let _stage = stages::enter(RequestStage::Identity, "assume");
            let result = switch(applied.as_ref(), caller);
            if let Err(errno) = &result {
                tracing::error!(uid = caller.uid, gid = caller.gid, %errno, "cannot switch to the caller's credentials");
            }
            *applied = None;
            *applied = Some(result?);
            Ok(())
        })
    }

    /// Runs `work` with the capabilities `extra`, as far as the process has them.
    pub(super) fn with_capabilities<T>(
        self,
        extra: CapabilitySet,
        work: impl FnOnce() -> T,
    ) -> Result<T, Errno> {
        if matches!(self, Self::Fixed { .. }) {
            return Ok(work());
        }
        let applied = APPLIED.with_borrow(|applied| applied.as_ref().map(AppliedCredentials::sets));
        let Some(lowered) = applied else {
            self.switch_to(&FsCred::ROOT)?;
            return self.with_capabilities(extra, work);
        };
        let wanted = lowered.effective | (extra & lowered.permitted);
        if wanted == lowered.effective {
            return Ok(work());
        }
        set_capabilities(None, CapabilitySets { effective: wanted, ..lowered })?;
        let _lower = RestoreCapabilities(lowered);
        Ok(work())
    }

    /// Runs `work` with the fsuid `uid`, on any thread, and restores what the thread had. For what
    /// a file's owner may do to an open file: capabilities change with the fsuid.
    pub(super) fn with_fs_uid<T>(self, uid: u32, work: impl FnOnce() -> T) -> Result<T, Errno> {
        if matches!(self, Self::Fixed { .. }) {
            return Ok(work());
        }
        let _capabilities = RestoreCapabilities(capabilities(None)?);
        let _uid = RestoreFsUid(set_fs_uid(uid));
        Ok(work())
    }
}

/// Restores the fsuid after `work`, also on a panic.
struct RestoreFsUid(u32);

impl Drop for RestoreFsUid {
    fn drop(&mut self) {
        set_fs_uid(self.0);
        if set_fs_uid(NOBODY_ASKS) != self.0 {
            // Otherwise later callers on this thread would be another user.
            tracing::error!("cannot restore the fsuid");
            std::process::abort();
        }
    }
}

impl AppliedCredentials {
    fn is(&self, caller: &FsCred<'_>) -> bool {
        self.uid == caller.uid
            && self.gid == caller.gid
            && self.privileged == is_privileged(caller)
            && self.groups == caller.groups
    }

    fn sets(&self) -> CapabilitySets {
        CapabilitySets { effective: self.effective, permitted: self.permitted, inheritable: self.inheritable }
    }
}

/// Restores the effective set after `work`, also on a panic.
struct RestoreCapabilities(CapabilitySets);

impl Drop for RestoreCapabilities {
    fn drop(&mut self) {
        let sets = CapabilitySets {
            effective: self.0.effective,
            permitted: self.0.permitted,
            inheritable: self.0.inheritable,
        };
        if set_capabilities(None, sets).is_err() {
            // Otherwise all later callers on this thread could bypass permissions.
            tracing::error!("cannot drop capabilities");
            std::process::abort();
        }
    }
}

fn is_privileged(caller: &FsCred<'_>) -> bool {
    caller.privileged && caller.uid == 0
}

fn switch(before: Option<&AppliedCredentials>, caller: &FsCred<'_>) -> Result<AppliedCredentials, Errno> {
    if before.is_none_or(|before| before.groups != caller.groups) {
        let groups: Vec<Gid> = caller.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)?;
    }
    if before.is_none_or(|before| before.gid != caller.gid) {
        set_fs_gid(caller.gid);
        if set_fs_gid(NOBODY_ASKS) != caller.gid {
            return Err(Errno::PERM);
        }
    }
    if before.is_none_or(|before| before.uid != caller.uid) {
        set_fs_uid(caller.uid);
        if set_fs_uid(NOBODY_ASKS) != caller.uid {
            return Err(Errno::PERM);
        }
    }
    let (permitted, inheritable) = match before {
        Some(before) => (before.permitted, before.inheritable),
        None => capabilities(None).map(|sets| (sets.permitted, sets.inheritable))?,
    };
    let privileged = is_privileged(caller);
    let effective = permitted.difference(if privileged { WITHHELD } else { FILE_SYSTEM.union(WITHHELD) });
    // The kernel changes the effective set when the fsuid changes from or to 0, unless a securebit
    // prevents this.
    let unchanged = before
        .is_some_and(|before| before.privileged == privileged && (before.uid == 0) == (caller.uid == 0));
    if !unchanged {
        set_capabilities(None, CapabilitySets { effective, permitted, inheritable })?;
    }
    let groups = caller.groups.to_vec();
    Ok(AppliedCredentials {
        uid: caller.uid,
        gid: caller.gid,
        groups,
        privileged,
        effective,
        permitted,
        inheritable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effective() -> CapabilitySet {
        capabilities(None).expect("capget of oneself").effective
    }

    fn ids() -> (u32, u32, usize) {
        let groups = getgroups().expect("getgroups").len();
        (set_fs_uid(NOBODY_ASKS), set_fs_gid(NOBODY_ASKS), groups)
    }

    /// Each test has its own thread; without permission to change ids there is nothing to test.
    fn as_root(test: impl FnOnce() + Send) {
        if FsIdentity::of_process() == FsIdentity::Anybody {
            std::thread::scope(|scope| scope.spawn(test).join().expect("the test's thread"));
        }
    }

    #[test]
    fn a_switch_changes_this_thread_alone_and_withholds_capabilities() {
        as_root(|| {
            let callers = [
                FsCred::new(1000, 1001, &[5, 6]),
                FsCred::ROOT,
                FsCred { privileged: false, ..FsCred::ROOT },
                FsCred::new(7, 7, &[]),
                FsCred::new(8, 7, &[9]),
                FsCred::ROOT,
            ];
            for caller in callers {
                FsIdentity::Anybody.switch_to(&caller).expect("root may switch");
                assert_eq!(ids(), (caller.uid, caller.gid, caller.groups.len()), "{caller:?}");
                assert!(!effective().intersects(WITHHELD), "{caller:?}");
                assert_eq!(
                    effective().contains(CapabilitySet::DAC_OVERRIDE),
                    caller.privileged,
                    "{caller:?}"
                );
                std::thread::scope(|scope| {
                    let inherits = scope
                        .spawn(|| FsIdentity::Anybody.switch_to(&FsCred::new(3, 3, &[])).map(|()| ids()));
                    assert_eq!(inherits.join().expect("the thread"), Ok((3, 3, 0)));
                });
                assert_eq!(ids(), (caller.uid, caller.gid, caller.groups.len()), "{caller:?}");
            }
        });
    }

    #[test]
    fn modes_are_the_clients_and_the_umask_of_other_threads_stays() {
        // On a thread with another umask than that of the other tests.
        let others = std::thread::spawn(|| {
            own_umask().expect("a umask of its own");
            rustix::process::umask(Mode::from_raw_mode(0o027));
            let own = (geteuid().as_raw(), getegid().as_raw());
            // It shares the umask of its parent thread.
            let worker = std::thread::spawn(move || {
                let identity = FsIdentity::Fixed { uid: own.0, gid: own.1 };
                identity.switch_to(&FsCred::new(own.0, own.1, &[])).expect("it is the process's own");
                rustix::process::umask(Mode::empty())
            });
            let workers = worker.join().expect("the worker");
            (workers, rustix::process::umask(Mode::empty()))
        });
        let (workers, ours) = others.join().expect("the thread that has started it");
        assert_eq!((workers, ours), (Mode::empty(), Mode::from_raw_mode(0o027)));
    }

    #[test]
    fn what_is_raised_is_lowered_even_by_a_panic() {
        as_root(|| {
            let raise = CapabilitySet::DAC_READ_SEARCH;
            FsIdentity::Anybody.switch_to(&FsCred::new(1000, 1000, &[])).expect("root may switch");
            let inside = FsIdentity::Anybody.with_capabilities(raise, effective).expect("root may raise");
            let capabilities_before =
                capabilities(None).expect("capget of oneself").permitted.contains(raise);
            assert_eq!((inside.contains(raise), effective().contains(raise)), (capabilities_before, false));
            let panicked = std::panic::catch_unwind(|| {
                FsIdentity::Anybody
                    .with_capabilities(raise, || std::panic::resume_unwind(Box::new("in the middle")))
            });
            assert!(panicked.is_err());
            assert!(!effective().contains(raise));
        });
    }

    #[test]
    fn a_process_without_the_right_serves_itself_alone() {
        let fixed = FsIdentity::Fixed { uid: 5, gid: 6 };
        assert_eq!(fixed.switch_to(&FsCred::new(5, 6, &[])), Ok(()));
        assert_eq!(fixed.switch_to(&FsCred::new(0, 6, &[])), Err(Errno::PERM));
        assert_eq!(fixed.switch_to(&FsCred::new(5, 0, &[])), Err(Errno::PERM));
    }
}
