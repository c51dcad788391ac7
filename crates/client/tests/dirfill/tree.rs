//! The tree of the scripted server: a few directories and files, and their changes.

use std::{collections::BTreeMap, time::Duration};

/// The root's fileid.
pub(crate) const ROOT: u64 = 1;

/// The fsid.
pub(crate) const FSID: u64 = 7;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: Vec<u8>,
    pub(crate) id: u64,
    /// Its cookie in listings, which is never reused.
    pub(crate) cookie: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// `None` for a file.
    pub(crate) names: Option<Vec<Named>>,
    pub(crate) parent: u64,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) fsid: u64,
    pub(crate) changed: Duration,
}

/// All objects by fileid.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) nodes: BTreeMap<u64, Node>,
    next_id: u64,
    next_cookie: u64,
    /// The time of changes.
    pub(crate) now: Duration,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Self { nodes: BTreeMap::new(), next_id: ROOT, next_cookie: 10, now: Duration::ZERO };
        tree.insert(ROOT, true);
        tree
    }

    fn insert(&mut self, parent: u64, is_directory: bool) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let node = Node {
            names: is_directory.then(Vec::new),
            parent,
            size: id,
            mode: 0o755,
            fsid: FSID,
            changed: self.now,
        };
        self.nodes.insert(id, node);
        id
    }

    pub(crate) fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).unwrap()
    }

    pub(crate) fn names(&self, directory: u64) -> &[Named] {
        self.nodes[&directory].names.as_ref().unwrap()
    }

    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> Option<u64> {
        let named = self.names(directory).iter().find(|named| named.name == name)?;
        Some(named.id)
    }

    fn name(&mut self, directory: u64, name: &str, id: u64) {
        let (cookie, now) = (self.next_cookie, self.now);
        self.next_cookie += 1;
        let node = self.node(directory);
        node.changed = now;
        let names = node.names.as_mut().unwrap();
        names.retain(|named| named.name != name.as_bytes());
        names.push(Named { name: name.into(), id, cookie });
    }

    /// Creates a file and replaces an existing one.
    pub(crate) fn file(&mut self, directory: u64, name: &str) -> u64 {
        let id = self.insert(directory, false);
        self.name(directory, name, id);
        id
    }

    pub(crate) fn directory(&mut self, directory: u64, name: &str) -> u64 {
        let id = self.insert(directory, true);
        self.name(directory, name, id);
        id
    }

    pub(crate) fn remove(&mut self, directory: u64, name: &str) {
        let now = self.now;
        let node = self.node(directory);
        node.changed = now;
        node.names.as_mut().unwrap().retain(|named| named.name != name.as_bytes());
    }

    pub(crate) fn rename(&mut self, directory: u64, from: &str, to: &str) {
        let id = self.find(directory, from.as_bytes()).unwrap();
        self.remove(directory, from);
        self.name(directory, to, id);
    }

    /// Writes to a file.
    pub(crate) fn write(&mut self, id: u64, size: u64) {
        let now = self.now;
        let node = self.node(id);
        (node.size, node.changed) = (size, now);
    }
}
