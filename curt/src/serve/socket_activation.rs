//! Sockets that a service manager opened before it started this program (`LISTEN_FDS`,
//! sd_listen_fds(3)).
//!
//! With them a restart refuses no connection, and the program need not be root to use port 2049.

use std::net::{SocketAddr, TcpListener};

use anyhow::{Context, Result, bail, ensure};
use rustix::net::{SocketType, sockopt};

use super::sys;

/// The name (`FileDescriptorName=`) of a socket that serves only MOUNT. All others serve NFS.
const MOUNT_NAME: &str = "mount";

/// Maximum number of sockets.
const SOCKETS_MAX: usize = 64;

/// An inherited socket.
pub(super) struct InheritedSocket {
    pub(super) socket: TcpListener,
    pub(super) address: SocketAddr,
    pub(super) is_for_mount: bool,
}

/// The inherited sockets, if any. Called once, before any other descriptor is opened.
pub(super) fn sockets() -> Result<Vec<InheritedSocket>> {
    let handed = sd_notify::listen_fds_with_names().context("the sockets of the service manager")?;
    ensure!(
        handed.len() <= SOCKETS_MAX,
        "the service manager passed {} sockets; the maximum is {SOCKETS_MAX}",
        handed.len()
    );
    handed
        .map(|(number, name)| {
            let what = || format!("descriptor {number} of the service manager, {name:?}");
            let socket = sys::take_descriptor(number).with_context(what)?;
            let is_stream = sockopt::socket_type(&socket).is_ok_and(|kind| kind == SocketType::STREAM);
            let listens = sockopt::socket_acceptconn(&socket).is_ok_and(|listens| listens);
            let socket = TcpListener::from(socket);
            let Ok(address) = socket.local_addr().and_then(|address| {
                if is_stream && listens {
                    Ok(address)
                } else {
                    Err(std::io::ErrorKind::InvalidInput.into())
                }
            }) else {
                bail!(
                    "{} is not a listening TCP socket: its unit needs ListenStream=ADDRESS:PORT and Accept=no",
                    what()
                )
            };
            Ok(InheritedSocket {
                socket,
                address,
                is_for_mount: name == MOUNT_NAME,
            })
        })
        .collect()
}
