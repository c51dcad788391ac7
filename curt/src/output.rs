//! The output of commands, and the files that they write.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use curt_observe::control::mountstats::write_whole;

use crate::errors;

/// Prints a line like `println!`, but returns errors.
macro_rules! say {
    ($($words:tt)*) => {
        $crate::output::print(&(format!($($words)*) + "\n"))
    };
}
pub(crate) use say;

/// Prints text.
///
/// # Errors
/// It cannot be written: the device is full, or the reader has closed it. [`failed`] distinguishes
/// these.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints why a command failed, and returns the exit status.
pub(crate) fn failed(command: &str, error: &anyhow::Error) -> ExitCode {
    let closed = error.downcast_ref::<io::Error>();
    // The reader of standard output, such as `head`, has closed it: this is not an error.
    if closed.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    eprintln!("{command}: {}", errors::line(error));
    ExitCode::FAILURE
}

/// Writes a file. A regular file is replaced atomically; a device, a pipe, or the target of a
/// symbolic link is written in place.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if !found.is_file() => {
            // The target of a link may not exist yet.
            let mut options = OpenOptions::new();
            options.write(true).truncate(true).create(found.is_symlink());
            options.open(path)?.write_all(text.as_bytes())
        }
        Ok(_) => write_whole(path, text),
        Err(error) if error.kind() == ErrorKind::NotFound => write_whole(path, text),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may fail by panic")]
    use std::fs::{self, File};
    use std::io::Read as _;
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn only_a_regular_file_is_replaced() {
        let top = tempfile::tempdir().unwrap();
        let at = |name: &str| top.path().join(name);
        write(&at("file"), "old").unwrap();
        let file = File::open(at("file")).unwrap();
        let before = file.metadata().unwrap().ino();
        write(&at("file"), "new").unwrap();
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "new");
        assert_ne!(fs::metadata(at("file")).unwrap().ino(), before);
        for target in ["file", "missing"] {
            let link = at(&format!("to-{target}"));
            symlink(target, &link).unwrap();
            write(&link, "by link").unwrap();
            assert!(link.symlink_metadata().unwrap().is_symlink());
            assert_eq!(fs::read_to_string(at(target)).unwrap(), "by link");
        }
        assert!(write(top.path(), "").is_err());
    }

    #[test]
    fn a_pipe_is_written_to_and_stays() {
        let top = tempfile::tempdir().unwrap();
        let pipe = top.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        // Opened for both, so that neither side waits for the other.
        let mut reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        write(&pipe, "text").unwrap();
        assert!(pipe.symlink_metadata().unwrap().file_type().is_fifo());
        let mut text = [0; 4];
        reader.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"text");
    }

    #[test]
    fn a_full_device_is_reported_and_stays_an_error() {
        let full = Path::new("/dev/full");
        let error = write(full, "text").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(full.symlink_metadata().unwrap().file_type().is_char_device());
    }
}
