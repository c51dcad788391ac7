//! Which bytes can be a name.

use rustix::io::Errno;

/// The longest name in bytes; file systems may have lower limits of their own.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// A name to look up: `.` and `..` are among them.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(())
}

/// A name to make or to remove.
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
    fn names_are_refused_as_the_contract_says() {
        let long = [b'n'; NAME_BYTES_MAX];
        let too_long = [b'n'; NAME_BYTES_MAX + 1];
        let rows: [(&[u8], Result<(), Errno>, Result<(), Errno>); 9] = [
            (b"file", Ok(()), Ok(())),
            (b"...", Ok(()), Ok(())),
            (b"\xff\xfe", Ok(()), Ok(())),
            (&long, Ok(()), Ok(())),
            (&too_long, Err(Errno::NAMETOOLONG), Err(Errno::NAMETOOLONG)),
            (b"", Err(Errno::INVAL), Err(Errno::INVAL)),
            (b"a/b", Err(Errno::INVAL), Err(Errno::INVAL)),
            (b"a\0b", Err(Errno::INVAL), Err(Errno::INVAL)),
            (b".", Ok(()), Err(Errno::INVAL)),
        ];
        for (name, found, made) in rows {
            assert_eq!(
                (check_name(name), check_new_name(name)),
                (found, made),
                "{name:?}"
            );
        }
        assert_eq!(
            (check_name(b".."), check_new_name(b"..")),
            (Ok(()), Err(Errno::EXIST))
        );
    }
}
