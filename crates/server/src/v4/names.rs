//! From handles and names to objects: the names of exports, of the pseudo file system, and the
//! crossing between the two (RFC 8881 sections 7.3 and 7.4).

use std::sync::Arc;

use curt_proto::nfs4::NfsStat4;
use curt_rpc::server::CallFailure;
use curt_types::{Attributes, Fault, FileHandle, FileKind};
use curt_vfs::{FsCred, LookupUse};

use super::object::Object;
use super::operation_outcome::{OpFailure, Outcome};
use super::pseudo::PseudoNode;
use crate::exports::{PseudoId, PseudoTree};
use crate::file_handle::{ExportId, HandleContents};
use crate::ops::{self, NamePurpose};
use crate::request::{NfsRequest, Refusal, VerifiedHandle};

/// Whether a component is a valid name. "." and ".." have no meaning (RFC 8881 section 18.13.3).
pub(super) fn check(name: &[u8]) -> Outcome {
    if name.is_empty() {
        return Err(NfsStat4::Inval.into());
    }
    if matches!(name, b"." | b"..") {
        return Err(NfsStat4::Badname.into());
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(NfsStat4::Badchar.into());
    }
    Ok(ops::check_name(name, NamePurpose::Lookup)?)
}

/// Refuses a change of two objects of which one is in the pseudo file system, or in an export that
/// refuses the flavor which the other's accepts: no flavor would do (RFC 8881 section 2.6.3.1.2).
pub(super) fn check_same_tree(saved: &Object<'_>, current: &Object<'_>) -> Outcome {
    match (saved, current) {
        (Object::Pseudo(_), Object::Pseudo(_)) | (Object::Exported(_), Object::Exported(_)) => Ok(()),
        _ => Err(NfsStat4::Xdev.into()),
    }
}

/// Whether these are the attributes of a directory.
pub(super) fn is_directory(attributes: &Attributes) -> bool {
    attributes.kind == FileKind::Directory
}

/// The object of a handle that a client sent.
pub(super) fn of_handle<'r>(
    request: &mut NfsRequest<'r, '_>,
    handle: &[u8],
) -> Result<Object<'r>, OpFailure> {
    let refusal = match request.resolve(handle) {
        Ok(target) => return Ok(Object::Exported(target)),
        Err(refusal) => refusal,
    };
    // Handles of pseudo directories name no export.
    if refusal == Refusal::Fault(Fault::Stale)
        && let Ok(contents) = request.service.key.verify(handle)
        && let Some(node) = PseudoNode::of_handle(request.service, &contents)
    {
        return Ok(Object::Pseudo(node?));
    }
    refused(refusal, || FileHandle::new(handle).map_err(|_| Fault::Badhandle))
}

/// The object of an export that refused a request: one that only another flavor may use, or the
/// failure.
fn refused<'r>(
    refusal: Refusal,
    handle: impl FnOnce() -> Result<FileHandle, Fault>,
) -> Result<Object<'r>, OpFailure> {
    match refusal {
        Refusal::Call(CallFailure::Denied(_)) => Ok(Object::WrongFlavor(handle()?)),
        refusal => Err(refusal.into()),
    }
}

/// The root of all that clients see: of the export with `fsid=0`, or of the pseudo file system.
pub(super) fn root<'r>(request: &mut NfsRequest<'r, '_>) -> Result<Object<'r>, OpFailure> {
    let exports = request.service.exports.current();
    if let Some(id) = exports.pseudo.root_export()
        && let Some(root) = export_root(request, id)?
    {
        return Ok(root);
    }
    let root = PseudoNode::new(request.service, &exports, PseudoTree::root());
    let root = root.ok_or(OpFailure::Status(NfsStat4::Serverfault))?;
    entered(request, &root)
}

/// The root of an export for this client; none if the client may not use it.
fn export_root<'r>(request: &mut NfsRequest<'r, '_>, id: ExportId) -> Result<Option<Object<'r>>, OpFailure> {
    let exports = request.service.exports.current();
    let Some(export) = exports.by_id(id) else {
        return Ok(None);
    };
    let contents = HandleContents {
        export: export.id,
        file_system: export.file_system,
        node: export.vfs.root(),
        parent: None,
    };
    match request.target(contents) {
        Ok(root) => Ok(Some(Object::Exported(root))),
        Err(Refusal::Fault(Fault::Stale | Fault::Perm)) => Ok(None),
        Err(refusal) => refused(refusal, || Ok(request.service.key.sign(&contents))).map(Some),
    }
}

/// The object that a client sees at a pseudo directory: the root of the export that covers it, if
/// the client may use that; otherwise the directory.
fn entered<'r>(request: &mut NfsRequest<'r, '_>, node: &PseudoNode) -> Result<Object<'r>, OpFailure> {
    let covered = match node.directory().export {
        Some(id) => export_root(request, id)?,
        None => None,
    };
    Ok(covered.unwrap_or_else(|| Object::Pseudo(node.clone())))
}

/// The object that a client sees at a pseudo directory; none if neither it nor anything below it is
/// exported to the client.
pub(super) fn visible<'r>(
    request: &mut NfsRequest<'r, '_>,
    parent: &PseudoNode,
    id: PseudoId,
) -> Result<Option<Object<'r>>, OpFailure> {
    let Some(node) = parent.other(request.service, id) else {
        return Ok(None);
    };
    let object = entered(request, &node)?;
    if !matches!(object, Object::Pseudo(_)) {
        return Ok(Some(object));
    }
    for child in node.directory().children.keys() {
        if visible(request, &node, *child)?.is_some() {
            return Ok(Some(object));
        }
    }
    Ok(None)
}

/// Whether the client may use any export.
pub(super) fn may_use_an_export(request: &mut NfsRequest<'_, '_>) -> bool {
    match root(request) {
        Ok(Object::Pseudo(node)) => node
            .directory()
            .children
            .keys()
            .any(|child| matches!(visible(request, &node, *child), Ok(Some(_)))),
        Ok(Object::Exported(_)) => true,
        Ok(Object::WrongFlavor(_)) | Err(_) => false,
    }
}

/// The object of a name.
pub(super) struct FoundName<'r> {
    pub(super) object: Object<'r>,
    /// Its attributes, if the look-up has returned them.
    pub(super) attributes: Option<Attributes>,
}

/// Looks up a name in a directory.
pub(super) fn lookup<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &Object<'r>,
    name: &[u8],
) -> Result<Object<'r>, OpFailure> {
    find(request, directory, name, LookupUse::Object, false).map(|found| found.object)
}

/// As [`lookup`] for this use, with the attributes that are known then. `is_directory`: the
/// directory has just been found to be one.
pub(super) fn find<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &Object<'r>,
    name: &[u8],
    wanted: LookupUse,
    is_directory: bool,
) -> Result<FoundName<'r>, OpFailure> {
    check(name)?;
    let crossed = match directory {
        Object::WrongFlavor(handle) => {
            mounted_below(request, handle, name)?.ok_or(OpFailure::Status(NfsStat4::Wrongsec))?
        }
        Object::Pseudo(node) => {
            let found = node.directory().children.iter().find(|(_, own)| *own == name);
            let id = *found.ok_or(OpFailure::Status(NfsStat4::Noent))?.0;
            visible(request, node, id)?.ok_or(OpFailure::Status(NfsStat4::Noent))?
        }
        Object::Exported(target) => {
            let found = ops::find_object(request, target, name, wanted, is_directory);
            let node = found
                .value
                .map_err(|error| not_a_directory(Fault::from(error), found.attributes.as_ref()))?;
            let root = match target.export().child_at(&node.handle) {
                Some(id) => export_root(request, id)?,
                None => None,
            };
            let Some(root) = root else {
                // An object that has just lost its last name may not exist any more: a GETATTR must
                // ask for its attributes.
                let is_named = node.attributes.nlink > 0;
                let attributes = is_named.then(|| target.exported(node.attributes));
                return Ok(FoundName { object: child(request, target, &node, name)?, attributes });
            };
            root
        }
    };
    Ok(FoundName { object: crossed, attributes: None })
}

/// The root of the export that is mounted at a name in a directory, whose own export refuses the
/// flavor: the flavors of the former count (RFC 8881 section 2.6.3.1.1.3). Nothing else is shown.
fn mounted_below<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &FileHandle,
    name: &[u8],
) -> Result<Option<Object<'r>>, OpFailure> {
    let contents = request.service.key.verify(directory.as_bytes())?;
    let exports = request.service.exports.current();
    let outer = exports.by_id(contents.export).filter(|export| export.has_children());
    let Some(outer) = outer else { return Ok(None) };
    request.context.may_block();
    let found = outer.vfs.lookup(&FsCred::new(0, 0, &[]), &contents.node, name);
    let inner = found.value.ok().and_then(|node| outer.child_at(&node.handle));
    inner.map_or(Ok(None), |id| export_root(request, id))
}

/// The status of an operation that failed on a directory: a symbolic link in its place has a status
/// of its own.
pub(super) fn not_a_directory(fault: Fault, directory: Option<&Attributes>) -> OpFailure {
    match (fault, directory.map(|directory| directory.kind)) {
        (Fault::Notdir, Some(FileKind::Symlink)) => NfsStat4::Symlink.into(),
        (fault, _) => fault.into(),
    }
}

/// The object that was found or created in a directory of an export.
pub(super) fn child<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &VerifiedHandle<'r>,
    node: &curt_vfs::VfsNode,
    name: &[u8],
) -> Result<Object<'r>, OpFailure> {
    let found = directory.child(node, name);
    Ok(Object::Exported(match directory.authorised_child(node, &found) {
        Some(child) => child,
        None => request.resolve(found.handle.as_bytes())?,
    }))
}

/// The parent of a directory, across the roots of exports.
pub(super) fn parent<'r>(
    request: &mut NfsRequest<'r, '_>,
    directory: &Object<'r>,
) -> Result<Object<'r>, OpFailure> {
    let no_parent = OpFailure::Status(NfsStat4::Noent);
    let target = match directory {
        Object::WrongFlavor(handle) => {
            let contents = request.service.key.verify(handle.as_bytes())?;
            return parent_of_export_root(request, contents.export)?.ok_or(no_parent);
        }
        Object::Pseudo(node) => {
            let id = node.directory().parent.ok_or(no_parent)?;
            let parent = node.other(request.service, id).ok_or(no_parent)?;
            return entered(request, &parent);
        }
        Object::Exported(target) => target,
    };
    let kind = ops::getattr(request, target)?.kind;
    match kind {
        FileKind::Directory => {}
        FileKind::Symlink => return Err(NfsStat4::Symlink.into()),
        _ => return Err(NfsStat4::Notdir.into()),
    }
    if target.node != target.vfs().root() {
        let found = ops::find(request, target, b"..");
        let node = found.value.map_err(Fault::from)?;
        return child(request, target, &node, b"..");
    }
    parent_of_export_root(request, target.export().id)?.ok_or(no_parent)
}

/// The directory above the root of an export: of the export in which it is mounted, or of the
/// pseudo file system. None above the root of all.
fn parent_of_export_root<'r>(
    request: &mut NfsRequest<'r, '_>,
    id: ExportId,
) -> Result<Option<Object<'r>>, OpFailure> {
    let exports = request.service.exports.current();
    if exports.pseudo.root_export() == Some(id) {
        return Ok(None);
    }
    if let Some((outer, covered)) = exports.by_id(id).and_then(|export| export.parent_export())
        && let Some(outer) = exports.by_id(outer)
    {
        let contents =
            HandleContents { export: outer.id, file_system: outer.file_system, node: covered, parent: None };
        if let Ok(covered) = request.target(contents) {
            let found = ops::find(request, &covered, b"..");
            let node = found.value.map_err(Fault::from)?;
            return child(request, &covered, &node, b"..").map(Some);
        }
    }
    let directory = exports.pseudo.covered_by(id).and_then(|id| exports.pseudo.directory(id));
    let parent = directory.and_then(|directory| directory.parent);
    let parent = parent.and_then(|id| PseudoNode::new(request.service, &exports, id));
    parent.map(|parent| entered(request, &parent)).transpose()
}

/// The attributes of an object.
pub(super) fn attributes(
    request: &mut NfsRequest<'_, '_>,
    object: &Object<'_>,
) -> Result<Attributes, OpFailure> {
    match object {
        Object::Exported(target) => Ok(ops::getattr(request, target)?),
        Object::Pseudo(node) => Ok(node.attributes()),
        Object::WrongFlavor(_) => Err(NfsStat4::Wrongsec.into()),
    }
}

/// The fileid of the directory that an object covers, if it is the root of an export; otherwise its
/// own, `fileid` (`mounted_on_fileid`, RFC 8881 section 5.8.2.23).
pub(super) fn mounted_on_fileid(object: &Object<'_>, fileid: u64) -> u64 {
    let Object::Exported(target) = object else {
        return fileid;
    };
    if target.node != target.export().vfs.root() {
        return fileid;
    }
    let exports = target.service().exports.current();
    let id = target.export().id;
    if let Some((outer, covered)) = target.export().parent_export()
        && let Some(outer) = exports.by_id(outer)
        && let Ok(covered) = Arc::clone(&outer.vfs).attributes(&covered)
    {
        return covered.fileid;
    }
    exports.pseudo.covered_by(id).map_or(fileid, |covered| covered.0)
}
