//! Names that the kernel caches for a moment: their lifetimes, and what these make necessary.
//!
//! The kernel answers for such a name without a request, and a lifetime is never revoked. So a
//! caller may have passed directories that no LOOKUP showed ([`super::access::check_path`]), and a
//! reply that contradicts what the kernel has cached waits ([`await_closed`], [`note_renamed`],
//! [`await_listed`]).

use std::{sync::Arc, time::Duration};

use curt_policy::{
    Epoch, Moment, NameLabel,
    kernel_cache::{self, expiry, wait_for},
    names::DentryState,
};

use crate::{
    inode::{Inode, InodeFacts},
    op::Op,
};

/// Grants a name of the directory whose `facts` these are the lifetime that policy allows; nothing
/// if no kernel asks.
pub(crate) fn grant(
    op: &Op<'_>,
    facts: &mut InodeFacts,
    state: DentryState,
    label: NameLabel,
    lifetime: Duration,
) -> Duration {
    if lifetime.is_zero() || !op.sb.grants_names() {
        return Duration::ZERO;
    }
    let lifetimes = &mut facts.by_type.directory().name_lifetimes;
    if !lifetimes.may_grant(op.now()) {
        return Duration::ZERO;
    }
    let end = op.now().plus(lifetime);
    lifetimes.grant(state, label.epoch, end);
    op.sb.core.note_name_lifetime(end);
    lifetime
}

/// The lifetime of a name of `directory` that was just learned.
pub(crate) fn grant_learned(
    op: &Op<'_>,
    directory: &Inode,
    state: DentryState,
    label: Option<NameLabel>,
) -> Duration {
    let Some(label) = label else { return Duration::ZERO };
    let mut facts = directory.facts();
    let clock = op.sb.core.server_clock(facts.fsid().unwrap_or(0));
    let view = directory.directory_view(&facts, &clock);
    let lifetime = kernel_cache::name_lifetime(state, label, &view, op.now(), &op.options);
    grant(op, &mut facts, state, label, lifetime)
}

/// If somebody may not search `directory` after its attributes were set, waits until the kernel
/// keeps no name of it.
pub(crate) fn await_closed(op: &Op<'_>, directory: &Inode) {
    let expiry = {
        let facts = directory.facts();
        let is_closed = !directory.everybody_may_search(&facts, op.options.users);
        facts.name_lifetimes().expiry().filter(|_| is_closed)
    };
    await_expiry(op, expiry);
}

/// Whether the kernel may have a present name of `directory`, which it then uses without a LOOKUP.
pub(crate) fn may_be_cached(op: &Op<'_>, directory: &Inode) -> bool {
    expiry(directory.facts().name_lifetimes().present_end()) > Some(op.now())
}

/// A name of `from` that leads to `moved`, if that is known, was renamed into `to`. The kernel
/// caches it there for as long as it would have in `from`. If some user may not search `to`, waits
/// for the end of that, and grants no more lifetimes in `from` for a while.
pub(crate) fn note_renamed(op: &Op<'_>, from: &Arc<Inode>, to: &Arc<Inode>, moved: Option<&Arc<Inode>>) {
    if Arc::ptr_eq(from, to) {
        return;
    }
    let end = match moved {
        Some(moved) => op.sb.kernel_dentries.end_of(moved.id()),
        None => from.facts().name_lifetimes().present_end(),
    };
    let end = end.filter(|end| expiry(Some(*end)) > Some(op.now()));
    let is_open = {
        let mut facts = to.facts();
        let is_open = to.everybody_may_search(&facts, op.options.users);
        if let Some(end) = end.filter(|_| is_open) {
            let lifetimes = &mut facts.by_type.directory().name_lifetimes;
            // The epoch does not matter to present names.
            lifetimes.grant(DentryState::Positive, Epoch::default(), end);
        }
        is_open
    };
    if !is_open {
        if op.sb.grants_names() {
            from.facts().by_type.directory().name_lifetimes.withhold(op.now());
        }
        await_expiry(op, expiry(end));
    } else if let (Some(moved), Some(_)) = (moved, end) {
        op.sb.kernel_dentries.rename(moved.id(), to, op.now());
    }
}

/// Waits until the kernel takes no name for missing that a listing of `directory` in the epoch
/// `listed` may show.
pub(crate) fn await_listed(op: &Op<'_>, directory: &Inode, listed: Option<Epoch>) {
    let expiry = directory.facts().name_lifetimes().expiry_of_listed(listed);
    await_expiry(op, expiry);
}

/// Whoever is killed meanwhile does not wait.
fn await_expiry(op: &Op<'_>, expiry: Option<Moment>) {
    let wait = wait_for(expiry, op.now());
    if !wait.is_zero() {
        op.sb.core.pause(wait, op.interrupt());
    }
}
