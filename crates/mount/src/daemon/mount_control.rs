//! A live mount, as its control socket presents it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use curt_client::{Client, InodeId};
use curt_policy::PlusMode;
use curt_trace::ClientSnapshot;
use curt_trace::events::{RecordedProcess, time_of_day_offset};
use parking_lot::Mutex;
use rustix::mount::MountFlags;

use crate::bridge::Bridge;
use crate::control::{
    ControlTarget, MemoryUsage, MountReport, RemountError, RequestOriginCounter, RequestOrigins,
    ServerCapabilities,
};
use crate::explain::{ExplainReport, Explainer};
use crate::helper::{Utab, UtabEntry};
use crate::options::{
    self, Atime, GenericSettings, SecurityFlavor, Settings, format_options, format_utab_options, remounted,
};

/// A mount that is live.
#[derive(Debug)]
pub(super) struct MountControl {
    pub(super) source: String,
    pub(super) mount_point: PathBuf,
    pub(super) client: Arc<Client>,
    pub(super) bridge: Arc<Bridge>,
    pub(super) explainer: Arc<Explainer>,
    pub(super) settings: Mutex<Settings>,
    pub(super) since: Instant,
    pub(super) table: bool,
    pub(super) request_origins: RequestOriginCounter,
}

impl MountControl {
    /// Has /run/mount/utab show the options in force. Only root's mounts are shown there.
    pub(super) fn publish_utab(&self, settings: &Settings) -> std::io::Result<()> {
        let options = &format_utab_options(settings);
        let entry = UtabEntry {
            source: &self.source,
            target: &self.mount_point,
            options,
        };
        Utab::default().put(&entry)
    }

    /// Takes the mount out of /run/mount/utab again, unless umount(8) has done it.
    pub(super) fn remove_from_utab(&self) {
        if let Err(error) = Utab::default().remove(&self.mount_point) {
            tracing::warn!(%error, "the mount's line stays in /run/mount/utab");
        }
    }

    fn held(&self) -> MemoryUsage {
        let (objects, names, missing_names) = self.client.cached_counts();
        MemoryUsage {
            objects: objects as u64,
            names: names as u64,
            missing_names: missing_names as u64,
            listing_bytes: self.client.listing_bytes(),
            dirty_bytes: self.client.data_plane().unwritten_bytes(),
        }
    }

    fn server_capabilities(&self, settings: &Settings) -> ServerCapabilities {
        let limits = self.client.server_limits();
        ServerCapabilities {
            flavour: match settings.security {
                SecurityFlavor::Sys => 1,
                SecurityFlavor::None => 0,
            },
            write_multiple: limits.write_multiple,
            listing_size: limits.listing_preferred,
            name_max: self.client.path_limits().longest_name(),
            readdirplus: settings.cache.plus != PlusMode::Never,
            links: limits.links,
            symlinks: limits.symlinks,
        }
    }

    /// Changes the flags that the kernel itself handles.
    fn set_flags(&self, generic: &GenericSettings) -> Result<(), RemountError> {
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
            RemountError::Failed(match error {
                // Somebody has a file open for writing.
                rustix::io::Errno::BUSY => format!("{place} is busy"),
                error => format!("the kernel does not remount {place}: {error}"),
            })
        })
    }
}

/// The origin of this process's events.
pub(super) fn origin(source: &str, mount_point: &Path) -> RecordedProcess {
    RecordedProcess {
        curt: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        program: "mount".to_owned(),
        subject: format!("{source} on {}", mount_point.display()),
        time_of_day_offset: time_of_day_offset(),
    }
}

impl ControlTarget for MountControl {
    fn origin(&self) -> RecordedProcess {
        origin(&self.source, &self.mount_point)
    }

    fn path(&self, object: u64) -> Option<Vec<u8>> {
        self.client.path(InodeId(object))
    }

    fn explain(&self, head: u32, linux: &str) -> Result<(), String> {
        let linux = options::of_linux(linux).map_err(|error| error.to_string())?;
        self.explainer
            .begin(head, &linux)
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    fn explained(&self, head: u32, paths: usize) -> Result<ExplainReport, String> {
        self.explainer.end(head, paths).map_err(|error| error.to_string())
    }

    fn report(&self) -> MountReport {
        // What tools lay beside each other is of one moment: the requests are counted once.
        let operations = self.client.statistics().snapshot();
        let settings = self.settings.lock().clone();
        MountReport {
            source: self.source.clone(),
            mount_point: self.mount_point.clone(),
            pid: std::process::id(),
            curt: env!("CARGO_PKG_VERSION").to_owned(),
            vers: "3".to_owned(),
            options: format_options(&settings),
            age_seconds: self.since.elapsed().as_secs_f64(),
            counters: ClientSnapshot {
                requests: operations.calls(),
                ..self.client.counters()
            },
            fuse: self.bridge.operations(),
            operations,
            transport: self.client.wire().transport().report(),
            held: self.held(),
            server: self.server_capabilities(&settings),
        }
    }

    fn request_origins(&self) -> Result<RequestOrigins, String> {
        let path = |object| self.client.path(InodeId(object));
        self.request_origins.sample(self.client.wire().watchers(), path)
    }

    fn remount(&self, options: &str, table: bool) -> Result<String, RemountError> {
        let mut settings = self.settings.lock();
        let next = remounted(&settings, options).map_err(|error| RemountError::Refused(error.to_string()))?;
        if next.generic != settings.generic {
            self.set_flags(&next.generic)?;
        }
        self.client.set_options(next.cache);
        *settings = next;
        let text = format_options(&settings);
        if table
            && self.table
            && let Err(error) = self.publish_utab(&settings)
        {
            tracing::warn!(%error, "/run/mount/utab shows the old options");
        }
        tracing::info!(options = text, "remounted");
        Ok(text)
    }
}
