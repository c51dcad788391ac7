//! The mounts in /proc/self/mountinfo (proc(5)).

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountinfoLine {
    /// The mount's id.
    pub id: u32,
    /// The id of the parent mount.
    pub parent: u32,
    /// `major:minor` of the file system's device.
    pub device: (u32, u32),
    /// The root of the mount within the file system.
    pub root: PathBuf,
    /// The mount point.
    pub target: PathBuf,
    /// Its type, such as `fuse.curt`.
    pub kind: String,
    /// Its source, such as `server:/path`.
    pub source: String,
}

/// All mounts in this process's mount namespace.
pub(crate) fn current() -> std::io::Result<Vec<MountinfoLine>> {
    Ok(mounts(&std::fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount at exactly `target`, if there is one.
///
/// # Errors
/// /proc cannot be read.
pub fn mounted_at(target: &Path) -> std::io::Result<Option<MountinfoLine>> {
    Ok(current()?.into_iter().rfind(|mounted| mounted.target == target))
}

/// All mounts of a mountinfo file, in its order.
#[must_use]
pub fn mounts(text: &[u8]) -> Vec<MountinfoLine> {
    text.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// `36 35 98:0 /root /target options [tags] - type source super-options`
fn parse(line: &[u8]) -> Option<MountinfoLine> {
    let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
    let text = |index: usize| std::str::from_utf8(fields.get(index)?).ok();
    let path = |index: usize| {
        let field = fields.get(index)?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
    };
    let (major, minor) = text(2)?.split_once(':')?;
    let dash = fields.iter().position(|field| *field == b"-")?;
    Some(MountinfoLine {
        id: text(0)?.parse().ok()?,
        parent: text(1)?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: path(3)?,
        target: path(4)?,
        kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        source: String::from_utf8_lossy(&unescape(fields.get(dash + 2)?)).into_owned(),
    })
}

/// Decodes `\040` and the other octal escapes.
#[must_use]
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(&[high, middle, low]) = octal {
            let value = u32::from(high - b'0') << 6 | u32::from(middle - b'0') << 3 | u32::from(low - b'0');
            plain.push(u8::try_from(value & 0xff).unwrap_or(0));
            rest = &behind[3..];
        } else {
            plain.push(byte);
            rest = behind;
        }
    }
    plain
}

/// Encodes a field as in fstab(5), mountinfo and utab.
#[must_use]
pub fn escape(field: &std::ffi::OsStr) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(field.len());
    for &byte in field.as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend(format!("\\{byte:03o}").into_bytes()),
            _ => escaped.push(byte),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::{MountinfoLine, escape, parse, unescape};

    #[test]
    fn a_line_is_understood_with_and_without_tags() {
        let expected = Some(MountinfoLine {
            id: 57,
            parent: 29,
            device: (0, 61),
            root: "/".into(),
            target: "/mnt/a b".into(),
            kind: "fuse.curt".to_owned(),
            source: "nas:/export".to_owned(),
        });
        let tagged =
            b"57 29 0:61 / /mnt/a\\040b rw,nosuid shared:31 master:2 - fuse.curt nas:/export rw,user_id=0";
        assert_eq!(parse(tagged), expected);
        let plain = b"57 29 0:61 / /mnt/a\\040b rw,nosuid - fuse.curt nas:/export rw,user_id=0";
        assert_eq!(parse(plain), expected);
        assert_eq!(parse(b"57 29 0:61 / /mnt"), None);
    }

    #[test]
    fn escapes_are_undone_and_done() {
        let text = "a b\tc\\d\ne";
        assert_eq!(unescape(&escape(text.as_ref())), text.as_bytes());
        assert_eq!(unescape(b"\\04"), b"\\04");
        assert_eq!(unescape(b"\\777"), b"\xff");
    }
}
