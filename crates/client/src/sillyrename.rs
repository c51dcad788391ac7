//! Silly rename: directories that hold the `.nfs` names of removed files.
//!
//! Owns which of those names are being removed. Removing or replacing a directory waits for these,
//! because their last close came first and the directory is empty without them. It waits for no
//! others: the name of a file that is still open stays. The lock is a leaf.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use curt_rpc::client::Interrupt;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    identity::InodeId,
    inode::{InFlightCall, InFlightEnd, PendingRemovals},
};

/// The directories that hold such names. Few at a time.
#[derive(Debug, Default)]
pub(crate) struct SillyDirectories(Mutex<HashMap<InodeId, SillyDirectory>>);

#[derive(Debug, Default)]
struct SillyDirectory {
    names: u32,
    removals: PendingRemovals,
}

impl SillyDirectory {
    fn is_over(&self) -> bool {
        self.names == 0 && self.removals.under_way().is_none()
    }
}

/// The removal of such a name. Dropping it ends it.
#[must_use]
#[derive(Debug)]
pub(crate) struct SillyRemoval<'a> {
    directories: &'a SillyDirectories,
    directory: InodeId,
}

impl SillyDirectories {
    /// `directory` has one more.
    pub(crate) fn add(&self, directory: InodeId) {
        self.0.lock().entry(directory).or_default().names += 1;
    }

    /// It has one less, or will keep it for ever.
    pub(crate) fn remove(&self, directory: InodeId) {
        self.change(directory, |place| {
            place.names = place.names.saturating_sub(1);
            None
        });
    }

    /// One of those in `directory` is about to be removed.
    pub(crate) fn begin_removal(&self, directory: InodeId) -> SillyRemoval<'_> {
        self.0.lock().entry(directory).or_default().removals.begin();
        SillyRemoval { directories: self, directory }
    }

    pub(crate) fn contains(&self, directory: InodeId) -> bool {
        self.0.lock().contains_key(&directory)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Waits until those that are being removed from `directory` are.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn wait(&self, directory: InodeId, interrupt: &Interrupt) -> Result<(), Errno> {
        let removals = {
            let places = self.0.lock();
            places.get(&directory).and_then(|place| place.removals.under_way())
        };
        match removals {
            Some(removals) => removals.wait(interrupt).map(drop).ok_or(Errno::INTR),
            None => Ok(()),
        }
    }

    fn change(
        &self,
        directory: InodeId,
        change: impl FnOnce(&mut SillyDirectory) -> Option<Arc<InFlightCall>>,
    ) {
        let mut places = self.0.lock();
        let Entry::Occupied(mut place) = places.entry(directory) else {
            return;
        };
        let ended = change(place.get_mut());
        if place.get().is_over() {
            place.remove();
        }
        drop(places);
        if let Some(ended) = ended {
            ended.end(InFlightEnd::Done);
        }
    }
}

impl Drop for SillyRemoval<'_> {
    fn drop(&mut self) {
        self.directories.change(self.directory, |place| place.removals.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_being_removed_is_waited_for_and_nothing_is_left_of_it() {
        let (places, called_off) = (SillyDirectories::default(), Interrupt::new());
        called_off.raise();
        let (top, other) = (InodeId(1), InodeId(2));
        places.add(top);
        places.add(top);
        assert_eq!(places.wait(top, &called_off), Ok(()), "both are of open files");
        let going = places.begin_removal(top);
        assert_eq!(places.wait(top, &called_off), Err(Errno::INTR));
        assert_eq!(places.wait(other, &called_off), Ok(()));
        places.remove(top);
        drop(going);
        assert_eq!(places.wait(top, &called_off), Ok(()));
        assert!(places.contains(top) && !places.contains(other));
        places.remove(top);
        assert!(places.is_empty());
    }
}
