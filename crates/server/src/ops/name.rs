//! Which names a client may use for what (RFC 1813 section 3.2, and what sections 3.3.8 to 3.3.15
//! say of "." and "..").

use curt_types::Fault;

/// The longest name in bytes; file systems may have lower limits of their own.
const NAME_BYTES_MAX: usize = 255;

/// What is to be done with a name.
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

/// The name's bytes, if it may be used so.
pub(crate) fn check(name: &[u8], purpose: NamePurpose) -> Result<(), Fault> {
    match (name, purpose) {
        // "The server should return the error, NFS3ERR_ACCES": for none at all, and for what it
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
        let of = |name: &[u8]| all.map(|purpose| check(name, purpose).err());
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
