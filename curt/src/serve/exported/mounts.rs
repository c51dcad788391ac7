//! The mounts of this machine, as far as exports depend on them (`mountpoint`, `crossmnt`).

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use rustix::event::{PollFd, PollFlags, poll};

/// The mounts of this process's namespace; see proc(5).
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// File systems that are not exported: kernel interfaces and network file systems.
const NOT_EXPORTED: [&str; 25] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "cifs",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfs",
    "nfs4",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// The mounts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountedFileSystems(Vec<MountedFileSystem>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct MountedFileSystem {
    point: PathBuf,
    kind: String,
}

impl MountedFileSystems {
    /// The current mounts.
    pub(super) fn now() -> io::Result<Self> {
        let text = std::fs::read(MOUNTINFO)?;
        Ok(Self::from_text(&text))
    }

    fn from_text(text: &[u8]) -> Self {
        let mount = |line: &[u8]| {
            let mut words = line.split(|byte| *byte == b' ');
            let point = words.nth(4)?;
            let kind = words.skip_while(|word| *word != b"-").nth(1)?;
            Some(MountedFileSystem {
                point: OsString::from_vec(unescape(point)).into(),
                kind: String::from_utf8_lossy(kind).into_owned(),
            })
        };
        Self(text.split(|byte| *byte == b'\n').filter_map(mount).collect())
    }

    /// Whether this directory is a mount point.
    pub(super) fn is_mounted(&self, directory: &Path) -> bool {
        self.0.iter().any(|mount| mount.point == directory)
    }

    /// The mount points below this directory with file systems that can be exported, each once,
    /// outer ones first.
    pub(super) fn below(&self, directory: &Path) -> Vec<PathBuf> {
        let below =
            |mount: &&MountedFileSystem| mount.point != directory && mount.point.starts_with(directory);
        let exported = |mount: &&MountedFileSystem| {
            let kind = mount.kind.split('.').next().unwrap_or_default();
            !NOT_EXPORTED.contains(&kind)
        };
        let points = self.0.iter().filter(below).filter(exported);
        let mut points: Vec<PathBuf> = points.map(|mount| mount.point.clone()).collect();
        points.sort_unstable();
        points.dedup();
        points
    }
}

/// Waits for a change of the mounts since the last wait with `list`, which is an open
/// [`MOUNTINFO`].
pub(super) fn wait_for_change(list: &File) -> io::Result<()> {
    loop {
        match poll(&mut [PollFd::new(list, PollFlags::PRI)], None) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Opens the list to wait for its changes.
pub(super) fn open_list() -> io::Result<File> {
    File::open(MOUNTINFO)
}

/// Decodes three octal digits for blanks and backslashes.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some((byte, after)) = rest.split_first() {
        (rest, _) = match rest {
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..] => {
                (after, bytes.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0')))
            }
            _ => (after, bytes.push(*byte)),
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        23 22 0:5 / /proc rw - proc proc rw\n\
        24 22 8:2 / /srv/disk\\040one rw shared:2 master:3 - xfs /dev/sdb rw\n\
        25 24 0:9 / /srv/disk\\040one/tmp rw - tmpfs tmpfs rw\n\
        26 22 0:8 / /srv/far rw - nfs4 host:/x rw\n\
        27 22 0:8 / /srv/fuse rw - fuse.curt host:/x rw\n\
        28 22 8:2 / /srv/disk\\040one rw - xfs /dev/sdb rw\n\
        broken\n";

    #[test]
    fn mount_points_below_are_found_and_what_cannot_be_exported_is_not() {
        let mounts = MountedFileSystems::from_text(TEXT);
        let below = |path: &str| -> Vec<String> {
            let points = mounts.below(Path::new(path));
            points.iter().map(|point| point.display().to_string()).collect()
        };
        assert_eq!(below("/"), ["/srv/disk one", "/srv/disk one/tmp", "/srv/fuse"]);
        assert_eq!(below("/srv/disk one"), ["/srv/disk one/tmp"]);
        assert_eq!(below("/sr"), Vec::<String>::new());
        assert!(mounts.is_mounted(Path::new("/proc")) && !mounts.is_mounted(Path::new("/srv")));
    }

    #[test]
    fn the_list_of_this_process_has_its_root() {
        assert!(MountedFileSystems::now().is_ok_and(|mounts| mounts.is_mounted(Path::new("/"))));
    }
}
