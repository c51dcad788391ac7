//! The lifetimes granted to a kernel in front of the client, which answers from its own caches
//! until they end.
//!
//! Owns the lifetimes of names and attributes, and which replies must wait for them to end: a
//! granted lifetime is never revoked. Invariants: a lifetime ends no later than that of our own
//! cache entry, and that of a name no later than `kernelnames` after the grant. No lifetime is
//! granted for names in a directory that some user of this mount may not search by mode, because
//! the kernel checks no search permission for cached names.

use core::time::Duration;

use curt_types::FileKind;

use crate::{
    access::is_world_searchable,
    attributes::AttributeState,
    attributes::{CachingAttributes, Epoch},
    names::{self, DentryState, NameLabel, ServerClock},
    options::{CacheOptions, MountUsers},
    time::MonotonicTime,
};

/// How much later than granted a lifetime is taken to end. It begins when the kernel processes the
/// reply, the kernel rounds it up by at most two ticks of its clock (10 ms each with HZ=100), and a
/// caller that has walked a path in time sends its request a moment later. It is no bound for a
/// caller that gets no processor time in between, or waits for a lock or a page.
pub const EXPIRY_DELAY: Duration = Duration::from_millis(50);

/// How long no name of a directory is granted a lifetime after a rename moved one into a directory
/// that some user may not search: programs that move many names look each up first, and each rename
/// would wait for its lifetime.
pub const WITHHELD_AFTER_RENAME: Duration = Duration::from_secs(10);

/// How long no missing name of a directory is granted a lifetime after a listing of it had to wait:
/// a listing takes many requests, and each would wait for the names looked up since the last.
pub const WITHHELD_AFTER_LISTING: Duration = Duration::from_secs(10);

/// The known state of the directory of a name.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryView<'a> {
    /// Its attributes.
    pub attributes: &'a AttributeState,
    /// A reply of the server, for any credential, contradicted its mode bits.
    pub is_disputed: bool,
    /// The clock of its file system.
    pub clock: &'a ServerClock,
}

/// How long a name, present or missing, may be cached.
#[must_use]
pub fn name_lifetime(
    entry: DentryState,
    label: NameLabel,
    directory: &DirectoryView<'_>,
    now: MonotonicTime,
    options: &CacheOptions,
) -> Duration {
    if !everybody_may_search(directory.attributes.newest(), directory.is_disputed, options.users) {
        return Duration::ZERO;
    }
    names::remaining(entry, label, directory.attributes, directory.clock, now, options)
        .min(options.kernel_names)
}

/// Everything that determines the lifetime of a name, apart from its directory.
#[derive(Clone, Copy, Debug)]
pub struct KernelNameView {
    /// The lifetimes granted for names of the directory.
    pub granted: NameLifetimes,
    /// The kind of the object that the name leads to; `None` if it is missing.
    pub kind: Option<FileKind>,
    /// The longest lifetime of the mount's present options.
    pub longest: Duration,
}

impl KernelNameView {
    /// How long a kernel may cache a name from now on.
    #[must_use]
    pub fn lifetime(
        &self,
        entry: DentryState,
        label: NameLabel,
        directory: &DirectoryView<'_>,
        now: MonotonicTime,
        options: &CacheOptions,
    ) -> Duration {
        if !self.kind.is_none_or(may_keep_name_of) || !self.granted.may_grant(entry, now) {
            return Duration::ZERO;
        }
        name_lifetime(entry, label, directory, now, options).min(self.longest)
    }
}

/// Whether a name that leads to an object of this kind may have a lifetime. The kernel opens others
/// without asking.
#[must_use]
pub const fn may_keep_name_of(kind: FileKind) -> bool {
    match kind {
        FileKind::Regular | FileKind::Directory | FileKind::Symlink => true,
        FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice => false,
    }
}

/// Whether everybody whose requests the kernel lets through may search a directory with these
/// attributes, whatever his groups. `is_disputed` as in [`DirectoryView`].
#[must_use]
pub fn everybody_may_search(
    directory: Option<CachingAttributes>,
    is_disputed: bool,
    users: MountUsers,
) -> bool {
    let Some(attributes) = directory.filter(|_| !is_disputed) else {
        return false;
    };
    match users {
        MountUsers::One(uid) => is_world_searchable(&attributes) || may_search_in_any_group(&attributes, uid),
        MountUsers::Many => is_world_searchable(&attributes),
        // The kernel lets those in whom the daemon refuses.
        MountUsers::WithRoot => false,
    }
}

/// Whether the mode bits let `uid` search the directory, whatever groups the process has. They do
/// not decide for uid 0.
const fn may_search_in_any_group(attributes: &CachingAttributes, uid: u32) -> bool {
    let wanted = if attributes.uid == uid { 0o100 } else { 0o011 };
    uid != 0 && matches!(attributes.kind, FileKind::Directory) && attributes.mode & wanted == wanted
}

/// How long an object's attributes may be cached.
#[must_use]
pub fn attribute_lifetime(object: &AttributeState, now: MonotonicTime, options: &CacheOptions) -> Duration {
    if object.is_changing() { Duration::ZERO } else { object.remaining(now, options) }
}

/// Whether some user may not search a directory any more whose names were granted lifetimes while
/// it was as in `before`.
#[must_use]
pub const fn revokes_names(before: &CachingAttributes, after: &CachingAttributes) -> bool {
    is_world_searchable(before) && !is_world_searchable(after)
}

/// The lifetimes granted for names of one directory: when the last ones end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NameLifetimes {
    /// The end for present names.
    present: Option<MonotonicTime>,
    /// The end for names that are missing in this epoch of the directory's contents.
    missing: Option<(MonotonicTime, Epoch)>,
    /// The end for names that were missing in an earlier epoch.
    formerly_missing: Option<MonotonicTime>,
    /// Until then no more are granted.
    withheld_until: Option<MonotonicTime>,
    /// Until then none are granted to missing names.
    missing_withheld_until: Option<MonotonicTime>,
}

impl NameLifetimes {
    /// A present name has a lifetime until `end`.
    pub fn grant_present(&mut self, end: MonotonicTime) {
        self.present = self.present.max(Some(end));
    }

    /// A name has a lifetime until `end`. `epoch`: that of the directory's contents.
    pub fn grant(&mut self, entry: DentryState, epoch: Epoch, end: MonotonicTime) {
        match (entry, self.missing) {
            (DentryState::Absent, _) => {}
            (DentryState::Positive, _) => self.grant_present(end),
            (DentryState::Negative, Some((former, of))) if of == epoch => {
                self.missing = Some((former.max(end), epoch));
            }
            (DentryState::Negative, former) => {
                self.formerly_missing = self.formerly_missing.max(former.map(|(end, _)| end));
                self.missing = Some((end, epoch));
            }
        }
    }

    /// A rename at `now` moved a name of the directory to where some user may not search.
    pub fn withhold(&mut self, now: MonotonicTime) {
        self.withheld_until = Some(now.plus(WITHHELD_AFTER_RENAME));
    }

    /// A listing of the directory has to wait at `now` for the end of lifetimes.
    pub fn withhold_missing(&mut self, now: MonotonicTime) {
        self.missing_withheld_until = Some(now.plus(WITHHELD_AFTER_LISTING));
    }

    /// Whether a name may be granted a lifetime at `now`.
    #[must_use]
    pub fn may_grant(&self, entry: DentryState, now: MonotonicTime) -> bool {
        let withheld_until = match entry {
            DentryState::Positive => self.withheld_until,
            DentryState::Negative | DentryState::Absent => {
                self.withheld_until.max(self.missing_withheld_until)
            }
        };
        withheld_until.is_none_or(|end| end <= now)
    }

    /// When the kernel has no name of the directory any more: somebody who may not search it then
    /// needs a look-up.
    #[must_use]
    pub fn expiry(&self) -> Option<MonotonicTime> {
        with_expiry_delay(self.present.max(self.missing.map(|(end, _)| end)).max(self.formerly_missing))
    }

    /// When the kernel has no present name of the directory any more.
    #[must_use]
    pub fn present_end(&self) -> Option<MonotonicTime> {
        self.present
    }

    /// When the kernel takes no name for missing any more that may be listed. `listed`: the epoch
    /// of the listing, if it is of one.
    #[must_use]
    pub fn expiry_of_listed(&self, listed: Option<Epoch>) -> Option<MonotonicTime> {
        let contradicted = self.missing.filter(|(_, epoch)| listed != Some(*epoch)).map(|(end, _)| end);
        with_expiry_delay(contradicted.max(self.formerly_missing))
    }
}

/// When the kernel has no name any more whose lifetime ends at `end`. Until then operations are
/// checked along the path.
#[must_use]
pub fn with_expiry_delay(end: Option<MonotonicTime>) -> Option<MonotonicTime> {
    end.map(|end| end.plus(EXPIRY_DELAY))
}

/// How long a reply has to wait at `now` so that it comes after `expiry`.
#[must_use]
pub fn wait_for(expiry: Option<MonotonicTime>, now: MonotonicTime) -> Duration {
    expiry.map_or(Duration::ZERO, |expiry| expiry.since(now))
}
