//! Directories of the pseudo file system as objects of a compound.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use curt_types::{Attributes, Device, Fault, FileHandle, FileKind, Timestamp};
use curt_vfs::{HandleScheme, NodeHandle};

use crate::exports::{Exports, PseudoDirectory, PseudoId};
use crate::file_handle::{ExportId, FileSystemId, HandleContents};
use crate::service::NfsService;

/// The number of the pseudo file system (fsid): above those of all exports.
pub(crate) const PSEUDO_FSID: u64 = 1 << 33;
/// The export number in handles of pseudo directories: those of exports are never 0.
const NO_EXPORT: ExportId = ExportId(0);
/// The mode of a pseudo directory: everybody may look names up and list them.
const MODE: u32 = 0o555;

/// A directory of the pseudo file system.
#[derive(Clone)]
pub(crate) struct PseudoNode {
    exports: Arc<Exports>,
    id: PseudoId,
    handle: FileHandle,
}

impl PseudoNode {
    /// The directory with this number; none if no export is at or below it.
    pub(super) fn new(service: &NfsService, exports: &Arc<Exports>, id: PseudoId) -> Option<Self> {
        exports.pseudo.directory(id)?;
        let node = NodeHandle::new(HandleScheme::Memory, 0, &id.0.to_be_bytes())?;
        let contents = HandleContents { export: NO_EXPORT, file_system: FileSystemId(0), node, parent: None };
        let handle = service.key.sign(&contents);
        Some(Self { exports: Arc::clone(exports), id, handle })
    }

    /// The directory of the contents of a handle; none if they are those of an export's object.
    pub(super) fn of_handle(service: &NfsService, contents: &HandleContents) -> Option<Result<Self, Fault>> {
        if contents.export != NO_EXPORT {
            return None;
        }
        let id = contents.node.bytes().try_into().map(u64::from_be_bytes).map(PseudoId);
        let node = id.ok().and_then(|id| Self::new(service, &service.exports.current(), id));
        Some(node.ok_or(Fault::Stale))
    }

    /// Another directory of the same exports.
    pub(super) fn other(&self, service: &NfsService, id: PseudoId) -> Option<Self> {
        Self::new(service, &self.exports, id)
    }

    pub(crate) fn handle(&self) -> &FileHandle {
        &self.handle
    }

    pub(crate) fn directory(&self) -> &PseudoDirectory {
        self.exports.pseudo.directory(self.id).expect("a node is made of a directory of its exports")
    }

    /// Its attributes. It changes whenever the exports are loaded.
    pub(crate) fn attributes(&self) -> Attributes {
        let loaded = self.exports.loaded_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanoseconds = i64::try_from(loaded.as_nanos()).unwrap_or(i64::MAX);
        let time = Timestamp::from_nanoseconds(nanoseconds);
        let children = u32::try_from(self.directory().children.len()).unwrap_or(u32::MAX);
        Attributes {
            kind: FileKind::Directory,
            mode: MODE,
            nlink: children.saturating_add(2),
            uid: 0,
            gid: 0,
            size: 4096,
            used: 0,
            rdev: Device::default(),
            fsid: PSEUDO_FSID,
            fileid: self.id.0,
            atime: time,
            mtime: time,
            ctime: time,
            change: Some(nanoseconds.unsigned_abs()),
        }
    }
}
