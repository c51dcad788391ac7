//! A network that drops everything, for one socket.
//!
//! JUSTIFICATION: a packet filter on a socket is the only way to lose segments without a word that
//! needs neither root nor a network of the test's own, and no safe wrapper has it.
#![allow(unsafe_code, reason = "calls of the C library, see the justification above")]

use std::{
    mem::size_of_val,
    os::fd::{AsFd, AsRawFd},
};

use libc::{SO_ATTACH_FILTER, SO_DETACH_FILTER, SOL_SOCKET, c_int, sock_filter, sock_fprog, socklen_t};

/// BPF: return with the constant.
const RETURN: u16 = 0x06;

/// From now on `socket` gets nothing that its peer sends, and its kernel acknowledges nothing of
/// it. A listening socket gets no connection.
pub(crate) fn drop_all(socket: impl AsFd) {
    let mut filter = [sock_filter {
        code: RETURN,
        jt: 0,
        jf: 0,
        k: 0,
    }];
    let program = sock_fprog {
        len: 1,
        filter: filter.as_mut_ptr(),
    };
    let length = socklen_t::try_from(size_of_val(&program)).unwrap();
    // SAFETY: `program` and what it points to live until the call returns, and the kernel copies
    // them.
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

/// Takes [`drop_all`] back.
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
