//! The control commands of a live mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use curt_client::{InodeId, LocalLockOwner, LockReportEntry, Superblock};
use curt_observe::ClientSnapshot;
use curt_observe::control::{
    ControlCommands, ControlError, EndExplanation, Explain, LockRow, LocksReport, MemoryUsage, MountActivity,
    MountReport, Remount, ReportLocks, ReportMount, RequestOriginCounter, ServerCapabilities, WatchMount,
};
use curt_observe::events::{RecordedProcess, time_of_day_offset};
use curt_policy::ReaddirplusMode;
use curt_types::LockType;
use parking_lot::Mutex;
use rustix::mount::MountFlags;

use crate::bridge::Bridge;
use crate::explain::{ExplainError, Explainer, NAMES_KEPT_MAX};
use crate::helper::{Utab, UtabEntry};
use crate::options::{
    self, Atime, GenericSettings, SecurityFlavor, Settings, format_options, format_utab_options, remounted,
};

/// The kernel's switch for FUSE over io_uring.
const FUSE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

fn fuse_uring() -> Option<bool> {
    let value = std::fs::read_to_string(FUSE_URING).ok()?;
    Some(matches!(value.trim(), "Y" | "1"))
}

/// A live mount.
pub(super) struct MountControl {
    pub(super) source: String,
    pub(super) mount_point: PathBuf,
    pub(super) client: Arc<Superblock>,
    pub(super) bridge: Arc<Bridge>,
    pub(super) explainer: Arc<Explainer>,
    pub(super) settings: Mutex<Settings>,
    pub(super) since: Instant,
    pub(super) table: bool,
    pub(super) request_origins: RequestOriginCounter,
}

impl MountControl {
    /// Writes the options in force to /run/mount/utab. Only root's mounts are listed there.
    pub(super) fn publish_utab(&self, settings: &Settings) -> std::io::Result<()> {
        let options = &format_utab_options(settings);
        let entry = UtabEntry { source: &self.source, target: &self.mount_point, options };
        Utab::default().put(&entry)
    }

    /// Removes the mount from /run/mount/utab, unless umount(8) has done it.
    pub(super) fn remove_from_utab(&self) {
        if let Err(error) = Utab::default().remove(&self.mount_point) {
            tracing::warn!(%error, "cannot remove the mount from /run/mount/utab");
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
            delegations: self.client.delegations() as u64,
        }
    }

    fn server_capabilities(&self, settings: &Settings) -> ServerCapabilities {
        let limits = self.client.server_limits();
        let (implementation, refused) = self.client.server();
        ServerCapabilities {
            flavour: match settings.security {
                SecurityFlavor::Sys => 1,
                SecurityFlavor::None => 0,
            },
            write_multiple: limits.write_multiple,
            listing_size: limits.listing_preferred,
            name_max: self.client.path_limits().longest_name(),
            readdirplus: settings.cache.plus != ReaddirplusMode::Never,
            links: limits.links,
            symlinks: limits.symlinks,
            implementation,
            refused: refused.into_iter().map(str::to_owned).collect(),
        }
    }

    /// Changes the mount flags that the kernel handles.
    fn set_flags(&self, generic: &GenericSettings) -> Result<(), ControlError> {
        let flags = [
            (generic.read_only, MountFlags::RDONLY),
            (generic.nosuid, MountFlags::NOSUID),
            (generic.nodev, MountFlags::NODEV),
            (generic.noexec, MountFlags::NOEXEC),
            (generic.sync, MountFlags::SYNCHRONOUS),
            (generic.dirsync, MountFlags::DIRSYNC),
            (generic.nodiratime, MountFlags::NODIRATIME),
            (generic.atime == Atime::Never, MountFlags::NOATIME),
            // Without one of the three the kernel leaves them unchanged.
            (generic.atime == Atime::Relative, MountFlags::RELATIME),
            (generic.atime == Atime::Strict, MountFlags::STRICTATIME),
        ];
        let wanted = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
        rustix::mount::mount_remount(&self.mount_point, wanted, "").map_err(|error| {
            let mount_point_name = self.mount_point.display();
            ControlError::Failed(match error {
                // A file is open for writing.
                rustix::io::Errno::BUSY => format!("{mount_point_name} is busy"),
                error => format!("the kernel does not remount {mount_point_name}: {error}"),
            })
        })
    }
}

fn refused(error: ExplainError) -> ControlError {
    ControlError::Refused(error.to_string())
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

impl MountControl {
    /// The commands of its control socket.
    pub(super) fn commands(this: &Arc<Self>) -> ControlCommands<Self> {
        ControlCommands::new(
            Arc::clone(this),
            |mount| origin(&mount.source, &mount.mount_point),
            |mount, object| mount.client.path(InodeId(object)),
        )
        .on(|mount, _, _: ReportMount| Ok(Box::new(mount.report())))
        .on(|mount, _, _: ReportLocks| Ok(mount.locks()))
        .on(|mount, _, _: WatchMount| mount.watch().map(Box::new))
        .on(|mount, _, command: Remount| mount.remount(&command.options, command.table))
        .on(|mount, process, command: Explain| {
            let linux = options::of_linux(&command.linux);
            let linux = linux.map_err(|error| ControlError::Refused(error.to_string()))?;
            mount.explainer.begin(process, &linux).map_err(refused)
        })
        .on(|mount, process, command: EndExplanation| {
            let explained = mount.explainer.end(process, command.paths);
            explained.map(Box::new).map_err(refused)
        })
    }

    /// Its statistics and options.
    pub(super) fn report(&self) -> MountReport {
        // Values that tools compare are of one moment: the requests are read once.
        let operations = self.client.rpc_client().statistics().snapshot();
        let settings = self.settings.lock().clone();
        MountReport {
            source: self.source.clone(),
            mount_point: self.mount_point.clone(),
            pid: std::process::id(),
            curt: env!("CARGO_PKG_VERSION").to_owned(),
            vers: settings.version.name().to_owned(),
            options: format_options(&settings),
            age_seconds: self.since.elapsed().as_secs_f64(),
            counters: ClientSnapshot { requests: operations.calls(), ..self.client.counters() },
            fuse: self.bridge.operations(),
            fuse_uring: fuse_uring(),
            operations,
            transport: self.client.rpc_client().transport().report(),
            held: self.held(),
            server: self.server_capabilities(&settings),
        }
    }

    fn locks(&self) -> LocksReport {
        let report = self.client.locks();
        let row = |lock: &LockReportEntry| LockRow {
            path: self.client.path(lock.file).map(|path| path.escape_ascii().to_string()).unwrap_or_default(),
            object: lock.file.0,
            call: if matches!(lock.owner, LocalLockOwner::Flock(_)) { "flock" } else { "fcntl" }.to_owned(),
            pid: lock.pid,
            first: lock.range.first(),
            last: Some(lock.range.last()).filter(|last| *last != u64::MAX),
            is_write: lock.lock_type == LockType::Write,
            is_held: lock.is_held,
            seconds: lock.since.as_secs_f64(),
        };
        LocksReport {
            mount_point: self.mount_point.clone(),
            locks: report.locks.iter().map(row).collect(),
            queue_max: report.queue_max,
            wait_microseconds: report.waits,
            hold_microseconds: report.holds,
        }
    }

    fn watch(&self) -> Result<MountActivity, ControlError> {
        let path = |object| self.client.path(InodeId(object));
        let causers = self.request_origins.sample(self.client.rpc_client().watchers(), path);
        Ok(MountActivity { causers: causers.map_err(ControlError::Refused)?, report: self.report() })
    }

    /// Changes options while mounted; returns all options in force.
    fn remount(&self, options: &str, table: bool) -> Result<String, ControlError> {
        let mut settings = self.settings.lock();
        let next = remounted(&settings, options).map_err(|error| ControlError::Refused(error.to_string()))?;
        if next.generic != settings.generic {
            self.set_flags(&next.generic)?;
        }
        let is_same = next.cache == settings.cache;
        self.client.set_options(next.cache);
        let kept = if is_same { Duration::ZERO } else { self.client.kernel_names_expire_in() };
        // Operations that began before still have the old options.
        if !kept.is_zero() {
            self.client.suspend_kernel_names(kept);
        }
        *settings = next;
        let text = format_options(&settings);
        if table
            && self.table
            && let Err(error) = self.publish_utab(&settings)
        {
            tracing::warn!(%error, "/run/mount/utab shows the old options");
        }
        tracing::info!(options = text, "remounted");
        drop(settings);
        // What the kernel has cached by the old options is not used after the remount, unless it
        // lasts longer than the control client waits.
        if kept > NAMES_KEPT_MAX {
            tracing::info!(seconds = kept.as_secs(), "names cached by the old options expire later");
        }
        thread::sleep(kept.min(NAMES_KEPT_MAX));
        Ok(text)
    }
}
