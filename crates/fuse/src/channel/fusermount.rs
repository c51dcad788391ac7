//! Mounting and unmounting by fusermount3, for users other than root.
//!
//! Options are passed as words; fusermount3 returns the descriptor through a socket that it
//! inherits as its standard input (_FUSE_COMMFD=0).

use std::{
    io::{self, IoSliceMut, Read as _},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    process::{Command, Stdio},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::{FuseMountError, MountOptions};

const PROGRAM: &str = "fusermount3";

/// Mounts and returns the connection's descriptor.
pub(super) fn mount(target: &Path, options: &MountOptions) -> Result<OwnedFd, FuseMountError> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| FuseMountError::NoFusermount(errno.into()))?;
    let mut child = Command::new(PROGRAM)
        .arg("-o")
        .arg(words(options))
        .arg("--")
        .arg(target)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(FuseMountError::NoFusermount)?;
    // The child's end is closed with the child (the command above has dropped its copy), so this
    // call ends when the child does.
    let received = receive_descriptor(&ours);
    let mut stderr_text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut stderr_text);
    }
    let status = child.wait().map_err(FuseMountError::NoFusermount)?;
    match received {
        Ok(Some(device)) if status.success() => Ok(device),
        Ok(_) => Err(FuseMountError::Fusermount(explain(&stderr_text, &status.to_string()))),
        Err(error) => Err(FuseMountError::Fusermount(error.to_string())),
    }
}

/// Detaches the mount on `target`.
pub(super) fn detach(target: &Path) -> io::Result<()> {
    let output = Command::new(PROGRAM).args(["-u", "-z", "--"]).arg(target).stdin(Stdio::null()).output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(explain(&String::from_utf8_lossy(&output.stderr), &output.status.to_string())))
    }
}

fn explain(stderr_text: &str, status: &str) -> String {
    let stderr_text = stderr_text.trim();
    let stderr_text = stderr_text.strip_prefix("fusermount3: ").unwrap_or(stderr_text);
    if stderr_text.is_empty() { status.to_owned() } else { stderr_text.replace('\n', "; ") }
}

/// Options in the syntax of fusermount3: commas and backslashes in values are escaped.
fn words(options: &MountOptions) -> String {
    let flags = options.flags;
    let table = [
        (flags.read_only, "ro"),
        (flags.nosuid, "nosuid"),
        (flags.nodev, "nodev"),
        (flags.noexec, "noexec"),
        (flags.noatime, "noatime"),
        (flags.nodiratime, "nodiratime"),
        (flags.strictatime, "strictatime"),
        (flags.sync, "sync"),
        (flags.dirsync, "dirsync"),
        (options.allow_other, "allow_other"),
    ];
    let mut words = format!("fsname={},subtype={}", escape(&options.source), escape(&options.subtype));
    for (_, word) in table.into_iter().filter(|(asked, _)| *asked) {
        words.push(',');
        words.push_str(word);
    }
    words
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let received =
            recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        match received {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::MountFlags;

    #[test]
    fn commas_in_a_source_do_not_become_options() {
        let options = MountOptions {
            source: "server:/a,suid\\".into(),
            subtype: "curt".into(),
            flags: MountFlags { nosuid: true, read_only: true, ..MountFlags::default() },
            allow_other: true,
        };
        assert_eq!(words(&options), "fsname=server:/a\\,suid\\\\,subtype=curt,ro,nosuid,allow_other");
    }

    #[test]
    fn fusermount_gives_us_the_descriptor_and_takes_the_mount_away() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = MountOptions {
            source: "toy:/a, b".into(),
            subtype: "toy".into(),
            flags: MountFlags { nosuid: true, nodev: true, ..MountFlags::default() },
            allow_other: false,
        };
        let device = mount(directory.path(), &options).expect("a mount by fusermount3 (package fuse3)");
        let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc");
        let line = table.lines().find(|line| line.contains("fuse.toy toy:/a,\\040b")).expect("it is shown");
        assert!(line.contains(directory.path().to_str().expect("plain")), "{line}");
        detach(directory.path()).expect("it is detached");
        let end = rustix::io::read(&device, &mut [0_u8; 8192][..]);
        assert!(matches!(end, Ok(_) | Err(rustix::io::Errno::NODEV)), "{end:?}");
        let again = mount(&directory.path().join("missing"), &options).expect_err("there is no such place");
        assert!(again.to_string().contains("missing"), "{again}");
    }

    #[test]
    fn messages_of_fusermount_are_reported_without_its_name() {
        assert_eq!(explain("fusermount3: no\n", "exit status: 1"), "no");
        assert_eq!(explain("", "exit status: 1"), "exit status: 1");
    }
}
