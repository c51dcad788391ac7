//! The directories of the pseudo file system (RFC 8881 section 7.3): the paths of all exports, from
//! the root.
//!
//! A directory's number is a hash of its path, so that its handle and its position in a listing are
//! stable over restarts and changes of the exports.

use std::collections::{BTreeMap, HashMap};

use siphasher::sip::SipHasher24;

use super::table::{Export, components};
use crate::file_handle::ExportId;

/// The number of a directory: its fileid, its position in a listing, and the contents of its
/// handle. Above the cookies that the protocol reserves, and below 2^63, so that all clients can
/// represent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PseudoId(pub(crate) u64);

/// A directory of the pseudo file system.
#[derive(Debug)]
pub(crate) struct PseudoDirectory {
    /// None for the root.
    pub(crate) parent: Option<PseudoId>,
    /// In the order of a listing.
    pub(crate) children: BTreeMap<PseudoId, Vec<u8>>,
    /// The export whose root covers it.
    pub(crate) export: Option<ExportId>,
}

/// The pseudo file system of a set of exports.
#[derive(Debug)]
pub(crate) struct PseudoTree {
    directories: HashMap<PseudoId, PseudoDirectory>,
    of_exports: HashMap<ExportId, PseudoId>,
    /// The export with `fsid=0`, whose root is the root of all that NFSv4 clients see.
    root_export: Option<ExportId>,
}

impl PseudoTree {
    pub(super) fn new(exports: &[Export]) -> Self {
        let root = PseudoDirectory { parent: None, children: BTreeMap::new(), export: None };
        let mut tree = Self {
            directories: HashMap::from([(Self::root(), root)]),
            of_exports: HashMap::new(),
            root_export: exports.iter().find(|export| export.is_root).map(|export| export.id),
        };
        for export in exports {
            tree.add(export);
        }
        tree
    }

    fn add(&mut self, export: &Export) {
        let mut path = Vec::new();
        let mut at = Self::root();
        for name in components(export.path()) {
            path.push(b'/');
            path.extend_from_slice(name);
            let id = id_of(&path);
            if let Some(parent) = self.directories.get_mut(&at) {
                parent.children.insert(id, name.to_vec());
            }
            self.directories.entry(id).or_insert_with(|| PseudoDirectory {
                parent: Some(at),
                children: BTreeMap::new(),
                export: None,
            });
            at = id;
        }
        if let Some(directory) = self.directories.get_mut(&at) {
            directory.export = Some(export.id);
        }
        self.of_exports.insert(export.id, at);
    }

    /// The root directory's number.
    pub(crate) fn root() -> PseudoId {
        id_of(b"")
    }

    pub(crate) fn directory(&self, id: PseudoId) -> Option<&PseudoDirectory> {
        self.directories.get(&id)
    }

    /// The directory that an export covers.
    pub(crate) fn covered_by(&self, export: ExportId) -> Option<PseudoId> {
        self.of_exports.get(&export).copied()
    }

    /// The export with `fsid=0`.
    pub(crate) const fn root_export(&self) -> Option<ExportId> {
        self.root_export
    }
}

/// The number of the directory at a path.
fn id_of(path: &[u8]) -> PseudoId {
    let hash = SipHasher24::new().hash(path);
    PseudoId((hash & (u64::MAX >> 1)) | 1 << 32)
}
