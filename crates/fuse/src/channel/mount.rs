//! A mount point: whether it exists, detaching it, and ending its connection.
//!
//! The mount is found in /proc/self/mountinfo by its path and device number. The file system itself
//! gets no request, because this process may serve it.

use std::{fs, io, os::unix::ffi::OsStrExt as _, path::Path, path::PathBuf};

use rustix::mount::UnmountFlags;

use super::fusermount;

/// A mount made by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseMount {
    target: PathBuf,
    /// Major and minor number of its device, as `0:55`; empty if unknown.
    device: String,
}

impl FuseMount {
    pub(super) fn at(target: PathBuf) -> Self {
        let device = mount_table().ok().and_then(|table| topmost(&table, &target)).unwrap_or_default();
        Self { target, device }
    }

    /// The mount point, without symbolic links.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The minor number of its device, which names it in /sys/fs/fuse/connections and
    /// /sys/class/bdi.
    #[must_use]
    pub fn minor(&self) -> Option<u32> {
        self.device.split_once(':')?.1.parse().ok()
    }

    /// Whether it is still mounted, in this process's mount namespace.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn is_there(&self) -> io::Result<bool> {
        Ok(places(&mount_table()?)
            .any(|(device, target)| device == self.device && target == self.target.as_os_str().as_bytes()))
    }

    /// Detaches it at once; open files remain usable.
    ///
    /// # Errors
    /// umount2(2) or fusermount3 failed.
    pub fn detach(&self) -> io::Result<()> {
        match rustix::mount::unmount(&self.target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Err(rustix::io::Errno::PERM) => fusermount::detach(&self.target),
            other => other.map_err(io::Error::from),
        }
    }

    /// Detaches it if it is still mounted; returns whether it was.
    ///
    /// # Errors
    /// As [`FuseMount::is_there`] and [`FuseMount::detach`].
    pub fn detach_if_there(&self) -> io::Result<bool> {
        if !self.is_there()? {
            return Ok(false);
        }
        self.detach().map(|()| true)
    }

    /// Aborts the connection: all waiting and later requests fail with ECONNABORTED.
    ///
    /// # Errors
    /// fusectl is not mounted on /sys/fs/fuse/connections, or this user has no permission.
    pub fn abort(&self) -> io::Result<()> {
        let minor = self.minor().ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
    }

    /// Sets the kernel's read-ahead (128 KiB by default).
    ///
    /// # Errors
    /// This user has no permission, or /sys is not mounted.
    pub fn set_read_ahead(&self, kibibytes: u32) -> io::Result<()> {
        let minor = self.minor().ok_or(io::ErrorKind::NotFound)?;
        fs::write(format!("/sys/class/bdi/0:{minor}/read_ahead_kb"), kibibytes.to_string())
    }
}

fn mount_table() -> io::Result<Vec<u8>> {
    fs::read("/proc/self/mountinfo")
}

/// The device of the topmost mount on `target`.
fn topmost(table: &[u8], target: &Path) -> Option<String> {
    let wanted = target.as_os_str().as_bytes();
    places(table).filter(|(_, place)| place == wanted).last().map(|(device, _)| device)
}

/// Device and mount point of each line (proc(5): id, parent, device, root, mount point, …).
fn places(table: &[u8]) -> impl Iterator<Item = (String, Vec<u8>)> {
    table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
        Some((device, unescape(fields.nth(1)?)))
    })
}

/// Decodes the octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let escaped =
            after.first_chunk::<3>().filter(|digits| first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let byte = escaped.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        match byte {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_on_a_path_is_the_one_seen() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/a rw\n\
            30 22 0:40 / /mnt/a\\040b rw - fuse.curt s:/x rw\n\
            31 30 0:41 / /mnt/a\\040b rw shared:1 - fuse.curt s:/y rw\n";
        assert_eq!(topmost(table, Path::new("/mnt/a b")), Some("0:41".into()));
        assert_eq!(topmost(table, Path::new("/mnt")), None);
    }

    #[test]
    fn escapes_are_undone_and_nothing_else() {
        assert_eq!(unescape(br"a\134b\011c\08"), b"a\\b\tc\\08");
        assert_eq!(unescape(br"a\"), b"a\\");
        assert_eq!(unescape(br"\777"), br"\777");
    }
}
