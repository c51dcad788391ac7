//! Results of lookups that could not be cached, because their directory changed during the lookup.
//!
//! No operation is answered from here. A kernel looks a name up before it renames or removes it.
//! When such a change is retransmitted and then refused, the client examines the object that the
//! name referred to, to decide whether the first copy was executed. The lock is a leaf.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

use crate::{api::InodeId, dentry_cache::NameKey, inode::Inode};

/// Most names kept: far more than changes in flight at any time, each of which concerns one or two
/// names.
const NAMES_MAX: usize = 4096;

/// The most recent names that were found and not cached.
#[derive(Debug)]
pub(crate) struct LastFound<T = Inode>(Mutex<FoundNames<T>>);

#[derive(Debug)]
struct FoundNames<T> {
    objects: HashMap<NameKey, Weak<T>>,
    /// The keys, oldest first.
    order: VecDeque<NameKey>,
}

impl<T> Default for LastFound<T> {
    fn default() -> Self {
        Self(Mutex::new(FoundNames { objects: HashMap::new(), order: VecDeque::new() }))
    }
}

impl<T> LastFound<T> {
    /// Records that `name` in `directory` refers to `object`.
    pub(crate) fn note(&self, directory: InodeId, name: &[u8], object: &Arc<T>) {
        let key = NameKey::new(directory, name);
        let mut names = self.0.lock();
        let former = names.objects.insert(key.clone(), Arc::downgrade(object));
        if former.is_some() {
            return;
        }
        names.order.push_back(key);
        if names.order.len() > NAMES_MAX
            && let Some(oldest) = names.order.pop_front()
        {
            names.objects.remove(&oldest);
        }
    }

    /// The object that `name` in `directory` referred to, if it is still in memory.
    pub(crate) fn find(&self, directory: InodeId, name: &[u8]) -> Option<Arc<T>> {
        let key = NameKey::new(directory, name);
        self.0.lock().objects.get(&key)?.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_object_of_a_name_is_found_and_the_oldest_names_are_dropped() {
        let (found, one, two) = (LastFound::default(), Arc::new(1), Arc::new(2));
        let directory = InodeId(7);
        found.note(directory, b"name", &one);
        found.note(directory, b"name", &two);
        assert_eq!(found.find(directory, b"name"), Some(Arc::clone(&two)));
        assert_eq!(found.find(InodeId(8), b"name"), None);
        for number in 1..NAMES_MAX {
            found.note(directory, &number.to_be_bytes(), &one);
        }
        assert!(found.find(directory, b"name").is_some(), "as many as there may be");
        found.note(directory, b"one more", &one);
        assert_eq!(found.find(directory, b"name"), None);
        drop(one);
        assert_eq!(found.find(directory, b"one more"), None, "it keeps nothing in memory");
        let names = found.0.lock();
        assert_eq!((names.objects.len(), names.order.len()), (NAMES_MAX, NAMES_MAX));
    }
}
