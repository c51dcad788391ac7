//! A mount's statistics in the kernel's format, `/proc/self/mountstats`, and the file that contains
//! them.
//!
//! The kernel's file lists a Curt mount as fuse.curt, without statistics, because FUSE has none;
//! programs that parse that file (mountstats(8), node_exporter) can read this one. docs/figures.md
//! describes each field.

use curt_proto::nfs3::NfsProcedure;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::mountstats::{BYTES, EVENTS, Mountstats};
use crate::{ClientCounter, OperationFigure};
use tracing::warn;

use super::messages::MountReport;

/// Page size of the counters of pages read and written.
const PAGE: u64 = 4096;

/// READDIRPLUS, hard links and symbolic links: the bits of `caps=` that apply to NFSv3
/// (linux/nfs_fs_sb.h).
const CAP_READDIRPLUS: u32 = 1;
const CAP_HARDLINKS: u32 = 1 << 1;
const CAP_SYMLINKS: u32 = 1 << 2;

/// The text for a mount.
#[must_use]
pub fn text(report: &MountReport) -> String {
    Mountstats {
        device: report.source.clone(),
        mount_point: report.mount_point.display().to_string(),
        options: report.options.clone(),
        age: whole_seconds(report.age_seconds),
        capabilities: capabilities(report),
        flavour: report.server.flavour,
        events: events(report),
        bytes: bytes(report),
        transport: report.transport.clone(),
        operations: report.operations.clone(),
    }
    .text()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float is cut to what the integer holds, and an age is not negative"
)]
fn whole_seconds(seconds: f64) -> u64 {
    seconds as u64
}

fn capabilities(report: &MountReport) -> String {
    let server = &report.server;
    let bits = [
        (server.readdirplus, CAP_READDIRPLUS),
        (server.links, CAP_HARDLINKS),
        (server.symlinks, CAP_SYMLINKS),
    ];
    let bits: u32 = bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum();
    format!(
        "caps=0x{bits:x},wtmult={},dtsize={},bsize=0,namlen={}",
        server.write_multiple, server.listing_size, server.name_max
    )
}

/// The values of [`EVENTS`].
#[must_use]
pub fn events(report: &MountReport) -> [u64; EVENTS.len()] {
    let counted = |counter| report.counters.events.value(counter);
    let requests_of = |operation: &str| report.fuse.get(operation).copied().unwrap_or(0);
    let written_back = counted(ClientCounter::KernelWriteBack);
    EVENTS.map(|event| match event {
        "inoderevalidates" => report.counters.requests.value(NfsProcedure::Getattr),
        "dentryrevalidates" => {
            counted(ClientCounter::PosHit) + counted(ClientCounter::PosStale) + counted(ClientCounter::NegHit)
        }
        "datainvalidates" => counted(ClientCounter::DataInvalidated),
        "attrinvalidates" => counted(ClientCounter::AttrInvalidated),
        "vfsopen" => requests_of("OPEN") + requests_of("CREATE") + requests_of("OPENDIR"),
        "vfslookup" => requests_of("LOOKUP"),
        "vfspermission" => requests_of("ACCESS"),
        "vfsupdatepage" => requests_of("WRITE").saturating_sub(written_back),
        "vfsreadpages" => requests_of("READ"),
        "vfswritepages" => written_back,
        "vfsreaddir" => requests_of("READDIR") + requests_of("READDIRPLUS"),
        "vfssetattr" => requests_of("SETATTR"),
        "vfsflush" => requests_of("FLUSH"),
        "vfsfsync" => requests_of("FSYNC"),
        "vfslock" => requests_of("SETLK") + requests_of("SETLKW") + requests_of("GETLK"),
        "vfsrelease" => requests_of("RELEASE"),
        "congestionwait" => counted(ClientCounter::WriteThrottled),
        "setattrtrunc" => counted(ClientCounter::SetSize),
        "extendwrite" => counted(ClientCounter::WriteExtended),
        "sillyrenames" => counted(ClientCounter::SillyRename),
        "shortreads" => counted(ClientCounter::ReadShort),
        "shortwrites" => counted(ClientCounter::WriteShort),
        "delay" => report.operations.total(OperationFigure::Delays),
        // Single pages are never requested, and NFSv3 has no pNFS.
        _ => 0,
    })
}

/// The values of [`BYTES`].
#[must_use]
pub fn bytes(report: &MountReport) -> [u64; BYTES.len()] {
    let counted = |counter| report.counters.events.value(counter);
    let (read, read_direct) =
        (counted(ClientCounter::KernelReadBytes), counted(ClientCounter::KernelReadDirectBytes));
    let (written, written_direct) =
        (counted(ClientCounter::KernelWriteBytes), counted(ClientCounter::KernelWriteDirectBytes));
    let (from_server, to_server) = (counted(ClientCounter::ReadBytes), counted(ClientCounter::WriteBytes));
    [
        read.saturating_sub(read_direct),
        written.saturating_sub(written_direct),
        read_direct,
        written_direct,
        from_server,
        to_server,
        from_server.div_ceil(PAGE),
        to_server.div_ceil(PAGE),
    ]
}

/// Replaces a file's text atomically: a reader sees either the old text or the new one.
///
/// # Errors
/// The system's.
pub fn write_whole(path: &Path, text: &str) -> std::io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    // Left by a killed program with the same process id.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = std::fs::File::create_new(&new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| std::fs::rename(&new, path));
    written.inspect_err(|_| {
        // It may not exist.
        let _ = std::fs::remove_file(&new);
    })
}

/// Removes files of this user's killed daemons in `directory`. A file is kept if its process runs,
/// or its control socket answers (the process may be in another pid namespace), or if it belongs to
/// another user.
pub fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return;
    };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(process_of) else {
            continue;
        };
        let is_ours =
            std::fs::symlink_metadata(entry.path()).is_ok_and(|found| found.is_file() && found.uid() == user);
        if is_ours && !is_running(directory, process) {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The process of a file of this name: `PID.mountstats`, or its temporary name.
fn process_of(name: &str) -> Option<u32> {
    let (process, rest) = name.split_once('.')?;
    let process = process.parse().ok()?;
    let new = format!("mountstats.{process}.new");
    (rest == "mountstats" || rest == new).then_some(process)
}

fn is_running(directory: &Path, process: u32) -> bool {
    let gone = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    let answer = UnixStream::connect(directory.join(format!("{process}.socket")));
    Path::new("/proc").join(process.to_string()).exists()
        || answer.map_or_else(|error| !gone.contains(&error.kind()), |_| true)
}

/// The file `PID.mountstats` next to the control socket, written periodically by a thread; both end
/// when this is dropped.
#[derive(Debug)]
pub struct MountstatsFile {
    path: PathBuf,
    stop: Option<Sender<()>>,
    writer: Option<thread::JoinHandle<()>>,
}

impl MountstatsFile {
    /// Writes it now, and then every `interval`.
    ///
    /// # Errors
    /// It cannot be written, or no thread can be started.
    pub fn keep(
        directory: &Path,
        interval: Duration,
        report: impl Fn() -> MountReport + Send + 'static,
    ) -> std::io::Result<Self> {
        sweep(directory);
        let path = directory.join(format!("{}.mountstats", std::process::id()));
        write_whole(&path, &text(&report()))?;
        let (stop, stopped) = channel();
        let file = path.clone();
        let writer =
            thread::Builder::new().name("mountstats".to_owned()).stack_size(256 * 1024).spawn(move || {
                let mut failed = false;
                while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                    let written = write_whole(&file, &text(&report()));
                    if let Err(error) = &written
                        && !failed
                    {
                        warn!(%error, "{} is not up to date any more", file.display());
                    }
                    failed = written.is_err();
                }
            })?;
        Ok(Self { path, stop: Some(stop), writer: Some(writer) })
    }
}

impl Drop for MountstatsFile {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(writer) = self.writer.take() {
            // A panic was reported already.
            let _ = writer.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use crate::ClientCounters;

    use super::*;

    fn report() -> MountReport {
        let counters = ClientCounters::default();
        counters.add(ClientCounter::KernelReadBytes, 10_000);
        counters.add(ClientCounter::KernelReadDirectBytes, 4_096);
        counters.add(ClientCounter::ReadBytes, 4_097);
        counters.count(ClientCounter::KernelWriteBack);
        MountReport {
            source: "nas:/export".to_owned(),
            mount_point: "/mnt".into(),
            options: "rw,vers=3".to_owned(),
            counters: counters.snapshot(),
            fuse: [("OPEN", 3), ("OPENDIR", 2), ("WRITE", 5)]
                .map(|(name, count)| (name.to_owned(), count))
                .into(),
            ..MountReport::default()
        }
    }

    #[test]
    fn requests_of_the_kernel_stand_where_its_own_client_counts_them() {
        let events = events(&report());
        let of = |name: &str| events[EVENTS.iter().position(|event| *event == name).unwrap()];
        assert_eq!((of("vfsopen"), of("vfsupdatepage"), of("vfswritepages")), (5, 4, 1));
        assert_eq!(bytes(&report()), [5_904, 0, 4_096, 0, 4_097, 0, 2, 0]);
    }

    // SEMANTICS: explain-4.
    #[test]
    fn the_file_exists_while_it_is_held_and_no_other_remains() {
        let directory = std::env::temp_dir().join(format!("curt-mountstats-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let names = || std::fs::read_dir(&directory).unwrap().count();
        let live = MountstatsFile::keep(&directory, Duration::from_millis(1), report).unwrap();
        let path = directory.join(format!("{}.mountstats", std::process::id()));
        let first = std::fs::metadata(&path).unwrap();
        let is_another = || std::fs::metadata(&path).is_ok_and(|now| now.ino() != first.ino());
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while !is_another() {
            assert!(std::time::Instant::now() < deadline, "it is not written again");
            thread::yield_now();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text(&report()));
        drop(live);
        assert_eq!(names(), 0);
        std::fs::remove_dir(&directory).unwrap();
    }

    // SEMANTICS: explain-4.
    #[test]
    fn files_of_killed_daemons_go_and_those_of_others_stay() {
        let directory = tempfile::tempdir().unwrap();
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let (gone, me) = (ended.id(), std::process::id());
        let answered = gone.wrapping_add(1_000_000_000);
        let _socket =
            std::os::unix::net::UnixListener::bind(directory.path().join(format!("{answered}.socket")));
        let refused = answered + 1;
        drop(std::os::unix::net::UnixListener::bind(directory.path().join(format!("{refused}.socket"))));
        let stale = [
            format!("{gone}.mountstats"),
            format!("{gone}.mountstats.{gone}.new"),
            format!("{refused}.mountstats"),
        ];
        let live = [
            format!("{me}.mountstats"),
            format!("{me}.mountstats.{me}.new"),
            format!("{answered}.mountstats"),
            format!("{gone}.mountstats.old"),
            format!("{gone}.ring"),
            "x.mountstats".to_owned(),
        ];
        for name in stale.iter().chain(&live) {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(
            "/etc/passwd",
            directory.path().join(format!("{}.mountstats", refused + 1)),
        )
        .unwrap();
        let others = directory.path().join(format!("{}.mountstats", refused + 2));
        std::fs::write(&others, "").unwrap();
        let is_others = std::os::unix::fs::chown(&others, Some(12_345), None).is_ok();
        sweep(directory.path());
        let is_there = |name: &String| directory.path().join(name).exists();
        assert!(!stale.iter().any(is_there), "{stale:?}");
        assert!(live.iter().all(is_there), "{live:?}");
        assert!(is_there(&format!("{}.mountstats", refused + 1)), "it is no file");
        assert_eq!(others.exists(), is_others, "another user's stays");
    }
}
