//! Handles: what of a file's identity goes to clients, and how it is known again.
//!
//! A handle is 20 bytes of ours and at most 44 of the file system's: version 1, scheme 1, the kernel's type 1, reserved 1,
//! export 4, file system 4, SipHash-2-4 tag 8 over all the rest. So it survives a restart, and nobody who was not given
//! it can make it. What is no handle of this layout is `NFS3ERR_BADHANDLE`. One whose tag is wrong is
//! `NFS3ERR_STALE`: it cannot be told from one that was signed before `--new-key`, whose holders must look their
//! files up again.

use curt_proto::nfs3::{FileHandle, Status};
use curt_vfs::{HandleScheme, NodeHandle};
use siphasher::sip::SipHasher24;

/// The layout's version.
const VERSION: u8 = 1;
/// The bytes that are signed and stand before the tag.
const HEAD: usize = 12;
/// The bytes of the tag.
const TAG: usize = 8;
/// The bytes before the file system's.
const OURS: usize = HEAD + TAG;

const _: () = assert!(OURS + curt_vfs::HANDLE_BYTES_MAX <= curt_proto::nfs3::FILE_HANDLE_MAX);

/// The secret that handles are signed with.
#[derive(Clone, Copy)]
pub(crate) struct HandleKey(SipHasher24);

/// An export's number, kept over restarts; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExportId(pub(crate) u32);

/// A file system's number, kept over restarts; never 0. Clients see it as fsid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileSystemId(pub(crate) u32);

/// What a handle stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signed {
    pub(crate) export: ExportId,
    pub(crate) file_system: FileSystemId,
    pub(crate) node: NodeHandle,
}

impl HandleKey {
    pub(crate) fn new(secret: &[u8; 16]) -> Self {
        Self(SipHasher24::new_with_key(secret))
    }

    fn tag(&self, head: &[u8], node: &[u8]) -> [u8; TAG] {
        let mut bytes = [0; HEAD + curt_vfs::HANDLE_BYTES_MAX];
        let length = head.len() + node.len();
        bytes[..head.len()].copy_from_slice(head);
        bytes[head.len()..length].copy_from_slice(node);
        self.0.hash(&bytes[..length]).to_be_bytes()
    }

    /// The handle that clients are given.
    pub(crate) fn sign(&self, signed: &Signed) -> FileHandle {
        let node = signed.node.bytes();
        let mut bytes = [0; OURS + curt_vfs::HANDLE_BYTES_MAX];
        bytes[0] = VERSION;
        bytes[1] = signed.node.scheme() as u8;
        bytes[2] = signed.node.kind();
        bytes[4..8].copy_from_slice(&signed.export.0.to_be_bytes());
        bytes[8..HEAD].copy_from_slice(&signed.file_system.0.to_be_bytes());
        let tag = self.tag(&bytes[..HEAD], node);
        bytes[HEAD..OURS].copy_from_slice(&tag);
        bytes[OURS..OURS + node.len()].copy_from_slice(node);
        FileHandle::new(&bytes[..OURS + node.len()]).expect("20 and at most 44 bytes are at most 64")
    }

    /// What a handle stands for, if it is ours.
    pub(crate) fn verify(&self, handle: &FileHandle) -> Result<Signed, Status> {
        let (head, rest) = handle
            .as_bytes()
            .split_first_chunk::<HEAD>()
            .ok_or(Status::Badhandle)?;
        let (tag, node) = rest.split_first_chunk::<TAG>().ok_or(Status::Badhandle)?;
        let [version, scheme, kind, reserved, e0, e1, e2, e3, f0, f1, f2, f3] = *head;
        if version != VERSION || reserved != 0 {
            return Err(Status::Badhandle);
        }
        let scheme = HandleScheme::from_number(scheme).ok_or(Status::Badhandle)?;
        let node_handle = NodeHandle::new(scheme, kind, node).ok_or(Status::Badhandle)?;
        let expected = u64::from_ne_bytes(self.tag(head, node));
        // Compared as numbers: how long it takes tells nothing of how many bytes were right.
        if expected != u64::from_ne_bytes(*tag) {
            return Err(Status::Stale);
        }
        Ok(Signed {
            export: ExportId(u32::from_be_bytes([e0, e1, e2, e3])),
            file_system: FileSystemId(u32::from_be_bytes([f0, f1, f2, f3])),
            node: node_handle,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn signed(length: usize) -> Signed {
        Signed {
            export: ExportId(7),
            file_system: FileSystemId(9),
            node: NodeHandle::new(HandleScheme::Kernel, 0x81, &vec![0x5a; length]).unwrap(),
        }
    }

    #[test]
    fn a_handle_is_known_again_at_every_length() {
        let key = HandleKey::new(&[3; 16]);
        for length in 0..=curt_vfs::HANDLE_BYTES_MAX {
            let handle = key.sign(&signed(length));
            assert_eq!(handle.as_bytes().len(), 20 + length);
            assert_eq!(key.verify(&handle), Ok(signed(length)));
        }
    }

    #[test]
    fn no_bit_of_a_handle_can_be_changed() {
        let key = HandleKey::new(&[3; 16]);
        let handle = key.sign(&signed(20));
        for bit in 0..handle.as_bytes().len() * 8 {
            let mut bytes = handle.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = key.verify(&FileHandle::new(&bytes).unwrap());
            assert!(
                matches!(refused, Err(Status::Stale | Status::Badhandle)),
                "bit {bit}: {refused:?}"
            );
        }
    }

    #[test]
    fn cut_or_lengthened_handles_and_those_of_another_key_are_refused() {
        let key = HandleKey::new(&[3; 16]);
        let handle = key.sign(&signed(20));
        for cut in 0..handle.as_bytes().len() {
            let cut_handle = FileHandle::new(&handle.as_bytes()[..cut]).unwrap();
            let expected = if cut < 20 {
                Status::Badhandle
            } else {
                Status::Stale
            };
            assert_eq!(key.verify(&cut_handle), Err(expected), "cut to {cut}");
        }
        let longer = FileHandle::new(&[handle.as_bytes(), &[0]].concat()).unwrap();
        assert_eq!(key.verify(&longer), Err(Status::Stale));
        assert_eq!(HandleKey::new(&[4; 16]).verify(&handle), Err(Status::Stale));
        assert_eq!(
            key.verify(&FileHandle::new(&[0xff; 64]).unwrap()),
            Err(Status::Badhandle)
        );
    }
}
