//! A network that drops all segments, for one socket.
//!
//! JUSTIFICATION: a packet filter on a socket is the only way to drop segments that needs neither
//! root nor a network namespace, and no safe wrapper supports it.
#![allow(unsafe_code, reason = "calls of the C library, see the justification above")]

use std::{
    mem::size_of_val,
    os::fd::{AsFd, AsRawFd},
};

use libc::{SO_ATTACH_FILTER, SO_DETACH_FILTER, SOL_SOCKET, c_int, sock_filter, sock_fprog, socklen_t};

/// BPF: return with the constant.
const RETURN: u16 = 0x06;

/// From now on `socket` receives nothing from its peer, and its kernel acknowledges nothing. A
/// listening socket accepts no connection.
pub(crate) fn drop_all(socket: impl AsFd) {
    let mut filter = [sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }];
    let program = sock_fprog { len: 1, filter: filter.as_mut_ptr() };
    let length = socklen_t::try_from(size_of_val(&program)).unwrap();
    // SAFETY: `program` and the memory it points to are valid until the call returns; the kernel
    // copies them.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_SOCKET,
            SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// Reverts [`drop_all`].
pub(crate) fn pass_all(socket: impl AsFd) {
    let unused: c_int = 0;
    let length = socklen_t::try_from(size_of_val(&unused)).unwrap();
    // SAFETY: `unused` has `length` bytes.
    let status = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_SOCKET,
            SO_DETACH_FILTER,
            (&raw const unused).cast(),
            length,
        )
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}
