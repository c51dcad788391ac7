//! File handles: how a file's identity is encoded for clients, and verified in requests.
//!
//! A handle consists of 20 bytes of the server and at most 44 of the file system: version 1, scheme
//! 1, the kernel's type 1, length of the object's own part 1 (0: there is no other part), export 4,
//! file system 4, SipHash-2-4 tag 8 over all the rest. The object's part may be followed by that of
//! the directory in which it was found, its type first (`subtree_check`). So a handle survives a
//! restart, and only the server can make one. Bytes that do not have this layout are
//! `NFS3ERR_BADHANDLE`. A handle with a wrong tag is `NFS3ERR_STALE`, because it cannot be
//! distinguished from one signed before `--new-key`, whose holders must look their files up again.

use arrayvec::ArrayVec;
use curt_types::{Fault, FileHandle};
use curt_vfs::{HandleScheme, NodeHandle};
use siphasher::sip::SipHasher24;

/// The layout's version.
const VERSION: u8 = 1;
/// The number of signed bytes before the tag.
const HEAD: usize = 12;
/// The size of the tag in bytes.
const TAG: usize = 8;
/// The position of the tag in a handle.
pub(crate) const SIGNATURE: std::ops::Range<usize> = HEAD..HEAD + TAG;
/// The number of bytes before those of the file system.
const OURS: usize = HEAD + TAG;

const _: () = assert!(OURS + curt_vfs::HANDLE_BYTES_MAX <= curt_proto::nfs3::FILE_HANDLE_MAX);

/// The key that signs handles.
#[derive(Clone, Copy)]
pub(crate) struct HandleKey(SipHasher24);

/// An export's number, stable over restarts; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ExportId(pub(crate) u32);

/// A file system's number, stable over restarts; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileSystemId(pub(crate) u32);

impl FileSystemId {
    /// The fsid that clients see if the administrator set none (`fsid=`). It is above the range of
    /// `fsid=N`, which has 32 bits. Clients take two file systems with one fsid for one.
    pub(crate) const fn fsid(self) -> u64 {
        1 << 32 | self.0 as u64
    }
}

/// The contents of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandleContents {
    pub(crate) export: ExportId,
    pub(crate) file_system: FileSystemId,
    pub(crate) node: NodeHandle,
    /// The directory in which the object was found: only with `subtree_check`, and only for objects
    /// other than directories.
    pub(crate) parent: Option<NodeHandle>,
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

    /// Encodes and signs a handle.
    pub(crate) fn sign(&self, signed: &HandleContents) -> FileHandle {
        let (tail, own) = tail(signed);
        let node = tail.as_slice();
        let mut bytes = [0; OURS + curt_vfs::HANDLE_BYTES_MAX];
        bytes[0] = VERSION;
        bytes[1] = signed.node.scheme() as u8;
        bytes[2] = signed.node.kind();
        bytes[3] = own;
        bytes[4..8].copy_from_slice(&signed.export.0.to_be_bytes());
        bytes[8..HEAD].copy_from_slice(&signed.file_system.0.to_be_bytes());
        let tag = self.tag(&bytes[..HEAD], node);
        bytes[HEAD..OURS].copy_from_slice(&tag);
        bytes[OURS..OURS + node.len()].copy_from_slice(node);
        FileHandle::new(&bytes[..OURS + node.len()]).expect("20 and at most 44 bytes are at most 128")
    }

    /// Decodes and verifies a handle.
    pub(crate) fn verify(&self, handle: &[u8]) -> Result<HandleContents, Fault> {
        let (head, rest) = handle.split_first_chunk::<HEAD>().ok_or(Fault::Badhandle)?;
        let (tag, node) = rest.split_first_chunk::<TAG>().ok_or(Fault::Badhandle)?;
        let [version, scheme, kind, own, e0, e1, e2, e3, f0, f1, f2, f3] = *head;
        if version != VERSION {
            return Err(Fault::Badhandle);
        }
        let scheme = HandleScheme::from_number(scheme).ok_or(Fault::Badhandle)?;
        let (node_handle, parent) = parts(scheme, kind, own, node).ok_or(Fault::Badhandle)?;
        let expected = u64::from_ne_bytes(self.tag(head, node));
        // Compared as numbers, in constant time.
        if expected != u64::from_ne_bytes(*tag) {
            return Err(Fault::Stale);
        }
        Ok(HandleContents {
            export: ExportId(u32::from_be_bytes([e0, e1, e2, e3])),
            file_system: FileSystemId(u32::from_be_bytes([f0, f1, f2, f3])),
            node: node_handle,
            parent,
        })
    }
}

/// Whether handles of a tree have room for a parent directory, as `subtree_check` needs, judged by
/// the handle of the root.
#[must_use]
pub fn have_room_for_parents(root: &NodeHandle) -> bool {
    root.bytes().len() * 2 < curt_vfs::HANDLE_BYTES_MAX
}

/// Why the bytes of handles fit.
const FITS: &str = "an object's part has at most 44 bytes, and both were compared with the room";

/// The bytes after the tag, and the length of the object's own part: 0 if it is all of them.
fn tail(signed: &HandleContents) -> (ArrayVec<u8, { curt_vfs::HANDLE_BYTES_MAX }>, u8) {
    let mut bytes = ArrayVec::new();
    let node = signed.node.bytes();
    bytes.try_extend_from_slice(node).expect(FITS);
    let Some(parent) = &signed.parent else {
        return (bytes, 0);
    };
    let fits = !node.is_empty() && node.len() + 1 + parent.bytes().len() <= bytes.capacity();
    // An export whose handles have no room for a parent is refused `subtree_check`. There, a file
    // without its parent is stale.
    if !fits {
        return (bytes, 0);
    }
    bytes.push(parent.kind());
    bytes.try_extend_from_slice(parent.bytes()).expect(FITS);
    (bytes, u8::try_from(node.len()).unwrap_or(0))
}

/// The object and its parent directory, from the bytes after the tag.
fn parts(scheme: HandleScheme, kind: u8, own: u8, tail: &[u8]) -> Option<(NodeHandle, Option<NodeHandle>)> {
    if own == 0 {
        return Some((NodeHandle::new(scheme, kind, tail)?, None));
    }
    let (node, rest) = tail.split_at_checked(own.into())?;
    let (parent_kind, parent) = rest.split_first()?;
    let parent = NodeHandle::new(scheme, *parent_kind, parent)?;
    Some((NodeHandle::new(scheme, kind, node)?, Some(parent)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn signed(length: usize) -> HandleContents {
        HandleContents {
            export: ExportId(7),
            file_system: FileSystemId(9),
            node: NodeHandle::new(HandleScheme::Kernel, 0x81, &vec![0x5a; length]).unwrap(),
            parent: None,
        }
    }

    #[test]
    fn a_handle_carries_a_parent_where_both_have_room() {
        let key = HandleKey::new(&[3; 16]);
        for (own, parent, carried) in [(8, 8, true), (12, 31, true), (12, 32, false), (21, 22, true)] {
            let parent = NodeHandle::new(HandleScheme::Kernel, 0x02, &vec![0xa5; parent]).unwrap();
            let whole = HandleContents { parent: Some(parent), ..signed(own) };
            let expected = if carried { whole } else { signed(own) };
            assert_eq!(key.verify(key.sign(&whole).as_bytes()), Ok(expected), "{own}");
        }
        let root = |length| NodeHandle::new(HandleScheme::Kernel, 1, &vec![1; length]).unwrap();
        assert!(have_room_for_parents(&root(21)) && !have_room_for_parents(&root(22)));
    }

    #[test]
    fn a_handle_is_known_again_at_every_length() {
        let key = HandleKey::new(&[3; 16]);
        for length in 0..=curt_vfs::HANDLE_BYTES_MAX {
            let handle = key.sign(&signed(length));
            assert_eq!(handle.as_bytes().len(), 20 + length);
            assert_eq!(key.verify(handle.as_bytes()), Ok(signed(length)));
        }
    }

    #[test]
    fn no_bit_of_a_handle_can_be_changed() {
        let key = HandleKey::new(&[3; 16]);
        let handle = key.sign(&signed(20));
        for bit in 0..handle.as_bytes().len() * 8 {
            let mut bytes = handle.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = key.verify(&bytes);
            assert!(matches!(refused, Err(Fault::Stale | Fault::Badhandle)), "bit {bit}: {refused:?}");
        }
    }

    #[test]
    fn cut_or_lengthened_handles_and_those_of_another_key_are_refused() {
        let key = HandleKey::new(&[3; 16]);
        let handle = key.sign(&signed(20));
        for cut in 0..handle.as_bytes().len() {
            let expected = if cut < 20 { Fault::Badhandle } else { Fault::Stale };
            assert_eq!(key.verify(&handle.as_bytes()[..cut]), Err(expected), "cut to {cut}");
        }
        let longer = [handle.as_bytes(), &[0]].concat();
        assert_eq!(key.verify(&longer), Err(Fault::Stale));
        assert_eq!(HandleKey::new(&[4; 16]).verify(handle.as_bytes()), Err(Fault::Stale));
        assert_eq!(key.verify(&[0xff; 64]), Err(Fault::Badhandle));
    }
}
