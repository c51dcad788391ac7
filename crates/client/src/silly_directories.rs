//! The directories that contain `.nfs` names of removed files (silly rename).
//!
//! Owns which of those names are being removed. The removal or replacement of a directory waits for
//! these removals, because the last closes came before it and the directory is empty without the
//! names. It does not wait for the name of a file that is still open. The lock is a leaf.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use curt_rpc::client::Interrupt;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::{
    api::InodeId,
    inode::single_flight::{InFlightEnd, InodeFlight, PendingRemovals},
};

/// The directories that contain silly names. Few at a time.
#[derive(Debug, Default)]
pub(crate) struct SillyDirectories(Mutex<HashMap<InodeId, SillyDirectory>>);

#[derive(Debug, Default)]
struct SillyDirectory {
    names: u32,
    removals: PendingRemovals,
}

impl SillyDirectory {
    fn is_over(&self) -> bool {
        self.names == 0 && self.removals.in_progress().is_none()
    }
}

/// The removal of a silly name. Dropping it ends the removal.
#[must_use]
#[derive(Debug)]
pub(crate) struct SillyRemoval<'a> {
    directories: &'a SillyDirectories,
    directory: InodeId,
}

impl SillyDirectories {
    /// Counts one more silly name in `directory`.
    pub(crate) fn add(&self, directory: InodeId) {
        self.0.lock().entry(directory).or_default().names += 1;
    }

    /// Counts one silly name less in `directory`: it is removed, or its removal has failed for
    /// good.
    pub(crate) fn remove(&self, directory: InodeId) {
        self.change(directory, |place| {
            place.names = place.names.saturating_sub(1);
            None
        });
    }

    /// Begins the removal of a silly name in `directory`.
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

    /// Waits for the removals that are in flight in `directory`.
    ///
    /// # Errors
    /// EINTR.
    pub(crate) fn wait(&self, directory: InodeId, interrupt: &Interrupt) -> Result<(), Errno> {
        let removals = {
            let places = self.0.lock();
            places.get(&directory).and_then(|place| place.removals.in_progress())
        };
        match removals {
            Some(removals) => removals.wait(interrupt).map(drop).ok_or(Errno::INTR),
            None => Ok(()),
        }
    }

    fn change(
        &self,
        directory: InodeId,
        change: impl FnOnce(&mut SillyDirectory) -> Option<Arc<InodeFlight>>,
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
    fn only_removals_in_flight_are_awaited_and_empty_entries_are_dropped() {
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
