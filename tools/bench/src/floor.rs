//! The floor that a mount is measured against: a FUSE file system of one file whose GETATTR asks an
//! echo server over TCP and does nothing else.
//!
//! What is left between it and a mount is what a mount adds: decoding, deciding, encoding, and the
//! server's work. Numbers of the ABI are those of linux/fuse.h, 7.31.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, mount};

use crate::latency::echo::{self, EchoTask};

/// The file's name.
pub(super) const FILE: &str = "file";
/// Bytes of a GETATTR call over TCP: record mark, call, AUTH_SYS of root without groups, a file
/// handle of 40 bytes.
const CALL_BYTES: usize = 4 + 24 + 36 + 8 + 44;
/// Bytes of its reply: record mark, reply, status, attributes.
const REPLY_BYTES: usize = 4 + 24 + 4 + 84;

const IN_HEADER_BYTES: usize = 40;
const ROOT: u64 = 1;
const NODE: u64 = 2;
const ENOSYS: i32 = 38;
/// The most bytes of a write, of which there are none.
const WRITE_BYTES: u32 = 64 << 10;
/// Room for the largest request, which is a write of so many bytes with its headers; the kernel
/// refuses to fill less.
const REQUEST_BYTES: usize = (WRITE_BYTES as usize) + 4096;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Mounts the floor at `directory` and serves it until it is unmounted. Needs root.
pub(super) fn serve(directory: &Path, echo_port: u16) -> Result<()> {
    let device: File = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context("/dev/fuse")?
        .into();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes())?;
    mount(
        "curt-floor",
        directory,
        "fuse.curt-floor",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(data),
    )
    .context("mount")?;
    let task = EchoTask {
        call_bytes: CALL_BYTES,
        reply: vec![0; REPLY_BYTES],
        work: None,
    };
    let mut echo = echo::connect((Ipv4Addr::LOCALHOST, echo_port).into(), &task)?;
    let mut request = vec![0; REQUEST_BYTES];
    loop {
        let length = match (&device).read(&mut request) {
            // ENODEV: it was unmounted.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => {
                return Ok(());
            }
            read => read?,
        };
        ensure!(length >= IN_HEADER_BYTES, "a request of {length} bytes");
        let opcode = u32::from_ne_bytes(fixed(&request, 4));
        let unique = u64::from_ne_bytes(fixed(&request, 8));
        let node = u64::from_ne_bytes(fixed(&request, 16));
        let reply = match opcode {
            INIT => Ok(init_out()),
            GETATTR => {
                echo.write_all(&[0; CALL_BYTES])?;
                echo.read_exact(&mut [0; REPLY_BYTES])?;
                Ok(attributes_out(node))
            }
            LOOKUP => Ok(entry_out()),
            OPEN => Ok(vec![0; 16]),
            RELEASE => Ok(Vec::new()),
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            _ => Err(ENOSYS),
        };
        let (error, body) = reply.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let mut message = u32::try_from(16 + body.len())?.to_ne_bytes().to_vec();
        message.extend(error.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend(body);
        (&device).write_all(&message)?;
    }
}

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the slice is N bytes long")
}

/// fuse_init_out
fn init_out() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [7_u32, 31, 0, 0, 0, WRITE_BYTES, 1] {
        out.extend(word.to_ne_bytes());
    }
    out.resize(64, 0);
    out
}

/// fuse_attr_out, valid for no time
fn attributes_out(node: u64) -> Vec<u8> {
    let mut out = vec![0; 16];
    out.extend(attributes(node));
    out
}

/// fuse_entry_out, whose name is valid for an hour and its attributes for no time
fn entry_out() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [NODE, 0, 3600, 0, 0] {
        out.extend(word.to_ne_bytes());
    }
    out.extend(attributes(NODE));
    out
}

/// fuse_attr
fn attributes(node: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for word in [node, 0, 0, 0, 0, 0] {
        out.extend(word.to_ne_bytes());
    }
    let mode: u32 = if node == ROOT { 0o40_755 } else { 0o100_644 };
    for word in [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        out.extend(word.to_ne_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_sizes_that_the_kernel_wants() {
        assert_eq!(
            (init_out().len(), attributes_out(ROOT).len(), entry_out().len()),
            (64, 104, 128)
        );
    }
}
