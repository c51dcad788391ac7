//! The kernel's information about a TCP connection (tcp(7), `TCP_INFO`).
//!
//! JUSTIFICATION: no safe wrapper supports this option, and no other interface distinguishes a slow
//! server from a network that drops all segments. Both send no reply, but only the kernel of the
//! slow server acknowledges data.
#![allow(unsafe_code, reason = "a call of the C library, see the justification above")]

use std::{
    mem::{offset_of, size_of},
    os::fd::{AsRawFd, OwnedFd},
    time::Duration,
};

use super::silence::Acknowledgements;

/// Older kernels return a shorter structure; all fields used here come before this one.
const NEEDED: usize = offset_of!(libc::tcp_info, tcpi_rcv_rtt);

/// Acknowledgements of the peer of `socket`; `None` if unknown, for example for a socket of another
/// family.
pub(super) fn acknowledgements(socket: &OwnedFd) -> Option<Acknowledgements> {
    // SAFETY: zero is valid for all fields of this structure of integers.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has that size, and writes
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
