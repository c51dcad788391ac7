//! The file that contains a mount's statistics in the kernel's format, `/proc/self/mountstats`.
//!
//! The kernel's file lists a Curt mount as fuse.curt, without statistics, because FUSE has none;
//! programs that parse that file (mountstats(8), node_exporter) can read this one.

use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tracing::warn;

use super::messages::MountReport;
use crate::mountstats::text;

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
    use super::*;

    fn report() -> MountReport {
        MountReport { source: "nas:/export".to_owned(), ..MountReport::default() }
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
