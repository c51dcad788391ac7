//! What the kernel knows of a TCP connection (tcp(7), `TCP_INFO`).
//!
//! JUSTIFICATION: no safe wrapper has this option, and nothing else tells a server that is slow
//! from a network that drops everything: both send no reply, but only the former's kernel
//! acknowledges what it is sent.
#![allow(unsafe_code, reason = "a call of the C library, see the justification above")]

use std::{
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use super::silence::Acknowledgements;

/// Older kernels return less of the structure; all fields that are used come before this one.
const NEEDED: usize = offset_of!(libc::tcp_info, tcpi_rcv_rtt);

/// How the peer of `socket` acknowledges; `None` if the kernel does not say, as for a socket that
/// is not TCP's.
pub(super) fn acknowledgements(socket: &OwnedFd) -> Option<Acknowledgements> {
    // SAFETY: all bits zero are a value of this structure of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has that many, and to
    // `length`.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    let is_known = status == 0 && usize::try_from(length).is_ok_and(|length| length >= NEEDED);
    is_known.then(|| Acknowledgements {
        unacknowledged: info.tcpi_unacked,
        retransmissions: info.tcpi_retransmits,
        probes: info.tcpi_probes,
        last: Duration::from_millis(info.tcpi_last_ack_recv.into()),
        round_trip: Duration::from_micros(info.tcpi_rtt.into()),
    })
}
