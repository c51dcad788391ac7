//! The names that a client may use in each operation (RFC 1813 section 3.2; sections 3.3.8 to
//! 3.3.15 for "." and "..").

use curt_types::Fault;

/// The longest name in bytes; file systems may have lower limits.
const NAME_BYTES_MAX: usize = 255;

/// The operation on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamePurpose {
    /// LOOKUP: "." and ".." have their usual meaning.
    Lookup,
    /// CREATE, MKDIR, SYMLINK, MKNOD, LINK: "." and ".." exist.
    Create,
    /// REMOVE: "." and ".." cannot be removed.
    Remove,
    /// RMDIR: "." is invalid, ".." exists.
    RemoveDirectory,
    /// RENAME, either name: "." and ".." are invalid.
    Rename,
}

/// Checks whether a name is valid for the purpose.
pub(crate) fn check_name(name: &[u8], purpose: NamePurpose) -> Result<(), Fault> {
    match (name, purpose) {
        // RFC 1813 section 3.2 requires NFS3ERR_ACCES for an empty name and for one that the server
        // cannot handle.
        (b"", _) => return Err(Fault::Acces),
        (b"." | b"..", NamePurpose::Create) | (b"..", NamePurpose::RemoveDirectory) => {
            return Err(Fault::Exist);
        }
        (b"." | b"..", NamePurpose::Remove) => return Err(Fault::Acces),
        (b".", NamePurpose::RemoveDirectory) | (b"." | b"..", NamePurpose::Rename) => {
            return Err(Fault::Inval);
        }
        _ => {}
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Fault::Acces);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Fault::Nametoolong);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn names_get_the_status_of_the_rfc() {
        use NamePurpose::{Create, Lookup, Remove, RemoveDirectory, Rename};
        let all = [Lookup, Create, Remove, RemoveDirectory, Rename];
        let of = |name: &[u8]| all.map(|purpose| check_name(name, purpose).err());
        for good in [&b"a"[..], b"...", b".hidden", b"\xff\xfe", &[b'n'; 255], b"\\", b"a b"] {
            assert_eq!(of(good), [None; 5], "{good:?}");
        }
        for bad in [&b""[..], b"/", b"a/b", b"\0", b"a\0", b"../x"] {
            assert_eq!(of(bad), [Some(Fault::Acces); 5], "{bad:?}");
        }
        assert_eq!(of(&[b'n'; 256]), [Some(Fault::Nametoolong); 5]);
        assert_eq!(of(&[b'n'; 65_535]), [Some(Fault::Nametoolong); 5]);
        let (exist, inval, acces) = (Some(Fault::Exist), Some(Fault::Inval), Some(Fault::Acces));
        assert_eq!(of(b"."), [None, exist, acces, inval, inval]);
        assert_eq!(of(b".."), [None, exist, acces, exist, inval]);
    }
}
