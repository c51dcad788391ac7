//! A live mount, as its control socket speaks for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use curt_client::Client;
use parking_lot::Mutex;
use rustix::mount::MountFlags;

use crate::bridge::Bridge;
use crate::control::{Controlled, MountReport, NotRemounted};
use crate::helper::{Utab, UtabEntry};
use crate::options::{Atime, GenericSettings, Settings, remounted, shown, shown_beside_the_kernel};

/// A mount that is live.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) source: String,
    pub(super) mount_point: PathBuf,
    pub(super) client: Arc<Client>,
    pub(super) bridge: Arc<Bridge>,
    pub(super) settings: Mutex<Settings>,
    pub(super) since: Instant,
    pub(super) table: bool,
}

impl Running {
    /// Has /run/mount/utab show the options in force. Only root's mounts are shown there.
    pub(super) fn show(&self, settings: &Settings) -> std::io::Result<()> {
        let options = &shown_beside_the_kernel(settings);
        let entry = UtabEntry {
            source: &self.source,
            target: &self.mount_point,
            options,
        };
        Utab::default().put(&entry)
    }

    /// Takes the mount out of /run/mount/utab again, unless umount(8) has done it.
    pub(super) fn hide(&self) {
        if let Err(error) = Utab::default().remove(&self.mount_point) {
            tracing::warn!(%error, "the mount's line stays in /run/mount/utab");
        }
    }

    /// Has the kernel change the flags that are its own.
    fn set_flags(&self, generic: &GenericSettings) -> Result<(), NotRemounted> {
        let flags = [
            (generic.read_only, MountFlags::RDONLY),
            (generic.nosuid, MountFlags::NOSUID),
            (generic.nodev, MountFlags::NODEV),
            (generic.noexec, MountFlags::NOEXEC),
            (generic.sync, MountFlags::SYNCHRONOUS),
            (generic.dirsync, MountFlags::DIRSYNC),
            (generic.nodiratime, MountFlags::NODIRATIME),
            (generic.atime == Atime::Never, MountFlags::NOATIME),
            // Without any of the three the kernel leaves them as they are.
            (generic.atime == Atime::Relative, MountFlags::RELATIME),
            (generic.atime == Atime::Strict, MountFlags::STRICTATIME),
        ];
        let wanted = flags
            .into_iter()
            .filter(|(set, _)| *set)
            .map(|(_, flag)| flag)
            .collect();
        rustix::mount::mount_remount(&self.mount_point, wanted, "").map_err(|error| {
            let place = self.mount_point.display();
            NotRemounted::Failed(match error {
                // Somebody has a file open for writing.
                rustix::io::Errno::BUSY => format!("{place} is busy"),
                error => format!("the kernel does not remount {place}: {error}"),
            })
        })
    }
}

impl Controlled for Running {
    fn report(&self) -> MountReport {
        MountReport {
            source: self.source.clone(),
            mount_point: self.mount_point.clone(),
            pid: std::process::id(),
            curt: env!("CARGO_PKG_VERSION").to_owned(),
            vers: "3".to_owned(),
            options: shown(&self.settings.lock()),
            age_seconds: self.since.elapsed().as_secs_f64(),
            counters: self.client.counters(),
            fuse: self.bridge.operations(),
        }
    }

    fn remount(&self, options: &str, table: bool) -> Result<String, NotRemounted> {
        let mut settings = self.settings.lock();
        let next = remounted(&settings, options).map_err(|error| NotRemounted::Refused(error.to_string()))?;
        if next.generic != settings.generic {
            self.set_flags(&next.generic)?;
        }
        self.client.set_options(next.cache);
        self.bridge.take_back_names();
        *settings = next;
        let text = shown(&settings);
        if table
            && self.table
            && let Err(error) = self.show(&settings)
        {
            tracing::warn!(%error, "/run/mount/utab shows the old options");
        }
        tracing::info!(options = text, "remounted");
        Ok(text)
    }
}
