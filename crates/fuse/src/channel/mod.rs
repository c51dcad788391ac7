//! Mounting and unmounting: the device, mount(2), fusermount3, umount.
//!
//! [`FuseDevice`] is the descriptor of the connection, [`FuseMount`] the mount point. This module
//! does not depend on requests.

mod fusermount;
mod mount;

use std::{
    ffi::CString,
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{io::Errno, mount::MountFlags as Kernel};

pub use mount::FuseMount;

use crate::{notify::Notifier, sys};

const DEVICE: &str = "/dev/fuse";

/// Flags of the mount, named as for mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one option of mount(8), and they combine freely")]
pub struct MountFlags {
    /// `ro`.
    pub read_only: bool,
    /// `nosuid`.
    pub nosuid: bool,
    /// `nodev`.
    pub nodev: bool,
    /// `noexec`.
    pub noexec: bool,
    /// `noatime`.
    pub noatime: bool,
    /// `nodiratime`.
    pub nodiratime: bool,
    /// `strictatime`.
    pub strictatime: bool,
    /// `sync`.
    pub sync: bool,
    /// `dirsync`.
    pub dirsync: bool,
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// The source shown in mountinfo, for instance `server:/path`.
    pub source: String,
    /// The file system type is `fuse.` and this.
    pub subtype: String,
    /// The mount's flags.
    pub flags: MountFlags,
    /// Allows all users, not only the one who mounted.
    pub allow_other: bool,
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseMountError {
    /// /dev/fuse cannot be opened.
    #[error("cannot open /dev/fuse: {source}{}", device_advice(source))]
    Device {
        /// The system's error.
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("cannot mount on {}: {source}", target.display())]
    Mount {
        /// The mount point.
        target: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// fusermount3 could not be run.
    #[error("cannot run fusermount3 (package fuse3), which mounts for users who are not root: {0}")]
    NoFusermount(#[source] io::Error),
    /// fusermount3 failed.
    #[error("fusermount3 did not mount: {0}")]
    Fusermount(String),
    /// The path cannot be resolved.
    #[error("mount point {} does not exist", target.display())]
    NoTarget {
        /// The mount point.
        target: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A path contains a NUL byte.
    #[error("a path or name with a NUL byte cannot be mounted")]
    Nul,
}

fn device_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => " (is the fuse module loaded?)",
        _ => "",
    }
}

/// The connection to the kernel.
#[derive(Clone, Debug)]
pub struct FuseDevice {
    descriptor: Arc<OwnedFd>,
}

impl FuseDevice {
    fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor: Arc::new(descriptor) }
    }

    fn open() -> io::Result<OwnedFd> {
        File::options().read(true).write(true).open(DEVICE).map(OwnedFd::from)
    }

    pub(crate) fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }

    /// The connection's first descriptor.
    pub(crate) fn shared(&self) -> Arc<OwnedFd> {
        self.descriptor.clone()
    }

    /// Another descriptor of the connection, with its own queue for replies; the first one if none
    /// can be created (too many open files, or no permission to open the device).
    pub(crate) fn cloned(&self) -> Arc<OwnedFd> {
        let cloned = Self::open()
            .ok()
            .filter(|device| sys::clone_device(device.as_fd(), self.descriptor.as_fd()).is_ok());
        cloned.map_or_else(|| self.shared(), Arc::new)
    }

    /// A handle for notifications to the kernel.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.shared())
    }
}

impl FuseMount {
    /// Mounts on `target`: by mount(2) if permitted, otherwise by fusermount3.
    ///
    /// # Errors
    /// See [`FuseMountError`].
    pub fn new(target: &Path, options: &MountOptions) -> Result<(Self, FuseDevice), FuseMountError> {
        let target = target
            .canonicalize()
            .map_err(|source| FuseMountError::NoTarget { target: target.to_owned(), source })?;
        let mounted = match rustix::process::geteuid().is_root() {
            true => match mount_by_syscall(&target, options) {
                Err(FuseMountError::Mount { source, .. })
                    if source.kind() == io::ErrorKind::PermissionDenied =>
                {
                    fusermount::mount(&target, options)
                }
                other => other,
            },
            false => fusermount::mount(&target, options),
        };
        let device = FuseDevice::new(mounted?);
        Ok((Self::at(target), device))
    }
}

/// Mounts by mount(2), which needs CAP_SYS_ADMIN, and returns the connection's descriptor.
fn mount_by_syscall(target: &Path, options: &MountOptions) -> Result<OwnedFd, FuseMountError> {
    let device = FuseDevice::open().map_err(|source| FuseMountError::Device { source })?;
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mut data = format!("fd={},rootmode=40000,user_id={user},group_id={group}", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| FuseMountError::Nul)?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(
        options.source.as_str(),
        target,
        kind.as_str(),
        flags(options.flags),
        data.as_c_str(),
    )
    .map_err(|errno| FuseMountError::Mount { target: target.to_owned(), source: errno.into() })?;
    Ok(device)
}

fn flags(flags: MountFlags) -> Kernel {
    let table = [
        (flags.read_only, Kernel::RDONLY),
        (flags.nosuid, Kernel::NOSUID),
        (flags.nodev, Kernel::NODEV),
        (flags.noexec, Kernel::NOEXEC),
        (flags.noatime, Kernel::NOATIME),
        (flags.nodiratime, Kernel::NODIRATIME),
        (flags.strictatime, Kernel::STRICTATIME),
        (flags.sync, Kernel::SYNCHRONOUS),
        (flags.dirsync, Kernel::DIRSYNC),
    ];
    table.into_iter().filter(|(asked, _)| *asked).fold(Kernel::empty(), |all, (_, flag)| all | flag)
}
