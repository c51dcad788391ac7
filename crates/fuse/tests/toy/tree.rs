//! A tree in memory.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use curt_fuse::{AttrOut, EntryOut, FuseAttr, FuseTime, NodeId, SetattrTime};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::waits::Stuck;

/// The test file system: a tree, and its counters and settings.
#[derive(Debug, Default)]
pub struct Toy {
    pub stuck: Stuck,
    pub entry_valid: Duration,
    pub attributes_valid: Duration,
    /// Entry timeout of missing names; zero: ENOENT.
    pub missing_valid: Duration,
    pub tree: Mutex<Tree>,
    /// Size of the largest WRITE and READ.
    pub largest: Mutex<(usize, usize)>,
    /// Owner of the lock of each node.
    pub locks: Mutex<HashMap<u64, u64>>,
    /// Look-up counts.
    pub lookups: Mutex<HashMap<u64, u64>>,
}

#[derive(Clone, Debug, Default)]
pub struct Node {
    pub attributes: FuseAttr,
    pub data: Vec<u8>,
    pub names: BTreeMap<Vec<u8>, u64>,
}

#[derive(Debug)]
pub struct Tree {
    pub nodes: HashMap<u64, Node>,
    pub last: u64,
}

impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self { nodes: HashMap::new(), last: 0 };
        tree.add(0o040_755, 0, 0, Vec::new());
        tree
    }
}

impl Tree {
    pub fn add(&mut self, mode: u32, uid: u32, gid: u32, data: Vec<u8>) -> u64 {
        self.last += 1;
        let now = FuseTime { seconds: 1_700_000_000, nanoseconds: 5 };
        let attributes = FuseAttr {
            inode: self.last + 1000,
            size: data.len() as u64,
            mode,
            links: 1,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            block_size: 4096,
            ..FuseAttr::default()
        };
        self.nodes.insert(self.last, Node { attributes, data, names: BTreeMap::new() });
        self.last
    }

    pub fn node(&mut self, id: NodeId) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&id.0).ok_or(Errno::STALE)
    }

    pub fn child(&mut self, parent: NodeId, name: &[u8]) -> Result<u64, Errno> {
        self.node(parent)?.names.get(name).copied().ok_or(Errno::NOENT)
    }

    pub fn resize(&mut self, id: NodeId, size: u64) -> Result<(), Errno> {
        let node = self.node(id)?;
        node.data.resize(usize::try_from(size).map_err(|_| Errno::FBIG)?, 0);
        node.attributes.size = size;
        Ok(())
    }

    pub fn set(&mut self, id: NodeId, set: &curt_fuse::SetattrIn) -> Result<(), Errno> {
        if let Some(size) = set.size {
            self.resize(id, size)?;
        }
        let now = |time| match time {
            SetattrTime::Now => FuseTime { seconds: 1_800_000_000, nanoseconds: 0 },
            SetattrTime::To(time) => time,
        };
        let attributes = &mut self.node(id)?.attributes;
        attributes.mode =
            set.mode.map_or(attributes.mode, |mode| attributes.mode & 0o170_000 | mode & 0o7777);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime = set.atime.map_or(attributes.atime, now);
        attributes.mtime = set.mtime.map_or(attributes.mtime, now);
        Ok(())
    }
}

impl Toy {
    /// Creates a file in the root without the kernel's knowledge.
    pub fn plant(&self, name: &str, data: &[u8]) -> NodeId {
        let mut tree = self.tree.lock();
        let id = tree.add(0o100_644, 0, 0, data.to_vec());
        tree.node(NodeId::ROOT).unwrap().names.insert(name.into(), id);
        NodeId(id)
    }

    /// Changes a file's data without the kernel's knowledge.
    pub fn replace(&self, id: NodeId, data: &[u8]) {
        let mut tree = self.tree.lock();
        let node = tree.node(id).unwrap();
        node.data = data.to_vec();
        node.attributes.size = data.len() as u64;
    }

    /// An entry, which increments the look-up count.
    pub fn entry(&self, tree: &mut Tree, id: u64) -> Result<EntryOut, Errno> {
        *self.lookups.lock().entry(id).or_default() += 1;
        Ok(EntryOut {
            node: NodeId(id),
            generation: 0,
            entry_valid: self.entry_valid,
            attributes_valid: self.attributes_valid,
            attributes: tree.node(NodeId(id))?.attributes,
        })
    }

    pub fn make(
        &self,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        data: &[u8],
        who: (u32, u32),
    ) -> Result<EntryOut, Errno> {
        let mut tree = self.tree.lock();
        if tree.child(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        let id = tree.add(mode, who.0, who.1, data.to_vec());
        tree.node(parent)?.names.insert(name.to_vec(), id);
        self.entry(&mut tree, id)
    }

    pub fn stat(&self, tree: &mut Tree, id: NodeId) -> Result<AttrOut, Errno> {
        Ok(AttrOut { attributes: tree.node(id)?.attributes, valid: self.attributes_valid })
    }
}
