//! Mounting by mount(2), which needs CAP_SYS_ADMIN.
//!
//! Translates [`MountOptions`] into flags and data of the call.

use std::{
    ffi::CString,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
};

use rustix::mount::MountFlags as Kernel;

use super::{FuseDevice, FuseMountError, MountFlags, MountOptions};

/// Mounts and returns the connection's descriptor.
pub(super) fn mount(target: &Path, options: &MountOptions) -> Result<OwnedFd, FuseMountError> {
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
