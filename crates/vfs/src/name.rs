//! Which bytes are a valid name.

use rustix::io::Errno;

/// Maximum length of a name in bytes; file systems may have lower limits.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Checks a name to look up, including `.` and `..`.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(())
}

/// Checks a name to create or to remove.
pub(crate) fn check_new_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"." => Err(Errno::INVAL),
        b".." => Err(Errno::EXIST),
        name => check_name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_refused_as_documented() {
        let long = [b'n'; NAME_BYTES_MAX];
        let too_long = [b'n'; NAME_BYTES_MAX + 1];
        let rows: [(&[u8], Option<Errno>, Option<Errno>); 10] = [
            (b"file", None, None),
            (b"...", None, None),
            (b"\xff\xfe", None, None),
            (&long, None, None),
            (&too_long, Some(Errno::NAMETOOLONG), Some(Errno::NAMETOOLONG)),
            (b"", Some(Errno::INVAL), Some(Errno::INVAL)),
            (b"a/b", Some(Errno::INVAL), Some(Errno::INVAL)),
            (b"a\0b", Some(Errno::INVAL), Some(Errno::INVAL)),
            (b".", None, Some(Errno::INVAL)),
            (b"..", None, Some(Errno::EXIST)),
        ];
        for (name, found, made) in rows {
            let refused = (check_name(name).err(), check_new_name(name).err());
            assert_eq!(refused, (found, made), "{name:?}");
        }
    }
}
