//! The object that a filehandle of a compound refers to.

use curt_proto::nfs4::NfsStat4;
use curt_types::FileHandle;

use super::operation_outcome::OpFailure;
use super::pseudo::PseudoNode;
use crate::request::VerifiedHandle;

/// The object of the current or the saved filehandle.
#[derive(Clone)]
pub(crate) enum Object<'r> {
    /// A file or directory of an export.
    Exported(VerifiedHandle<'r>),
    /// A directory of the pseudo file system.
    Pseudo(PseudoNode),
    /// An object of an export that refuses the flavor of this request's credential (RFC 8881
    /// section 2.6.3.1). Only SECINFO and the operations that leave it accept it.
    WrongFlavor(FileHandle),
}

impl<'r> Object<'r> {
    /// Its handle.
    pub(crate) fn handle(&self) -> &FileHandle {
        match self {
            Self::Exported(target) => target.handle(),
            Self::Pseudo(node) => node.handle(),
            Self::WrongFlavor(handle) => handle,
        }
    }

    /// The object of an export; `pseudo` is the status of this operation on a directory of the
    /// pseudo file system.
    pub(crate) fn exported_or(&self, pseudo: NfsStat4) -> Result<&VerifiedHandle<'r>, OpFailure> {
        match self {
            Self::Exported(target) => Ok(target),
            Self::Pseudo(_) => Err(pseudo.into()),
            Self::WrongFlavor(_) => Err(NfsStat4::Wrongsec.into()),
        }
    }

    /// The object of an export for an operation that changes it: the pseudo file system is
    /// read-only.
    pub(crate) fn changeable(&self) -> Result<&VerifiedHandle<'r>, OpFailure> {
        self.exported_or(NfsStat4::Rofs)
    }
}
