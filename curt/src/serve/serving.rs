//! The thread that waits for clients and starts serving threads, with their restricted privileges.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result, anyhow};
use curt_rpc::server::{DatagramServer, RpcServer};

use super::{
    arguments::SeccompChoice,
    privileges,
    seccomp::{SeccompFilters, ViolationAction},
};

/// A running server.
pub(super) struct ServingThread(thread::JoinHandle<()>);

/// Runs `server` on a restricted thread, whose restrictions all serving threads inherit, also those
/// of calls over UDP. Returns once it is restricted.
pub(super) fn start(
    server: RpcServer,
    datagrams: Vec<DatagramServer>,
    seccomp: SeccompChoice,
) -> Result<ServingThread> {
    let filters = violation_action(seccomp).map(SeccompFilters::new).transpose()?;
    let (sender, receiver) = mpsc::channel();
    // Read from /proc at first use, which serving threads may not access.
    let _ = rustix::param::page_size();
    let run = move || {
        let confined =
            privileges::keep_to_serve().and_then(|()| filters.map_or(Ok(()), |filters| filters.apply()));
        let is_confined = confined.is_ok();
        if sender.send(confined).is_ok() && is_confined {
            datagrams.into_iter().for_each(serve_datagrams);
            server.run();
        }
    };
    let thread = thread::Builder::new().name("curt-accept".into()).spawn(run);
    let thread = thread.context("cannot start the serving thread")?;
    receiver.recv().context("the serving thread ended during start")??;
    Ok(ServingThread(thread))
}

/// Serves calls over UDP on a thread, which ends with the process.
fn serve_datagrams(server: DatagramServer) {
    let serve = move || {
        if let Err(error) = server.run() {
            tracing::error!("calls over UDP are not received any longer: {error}");
        }
    };
    if let Err(error) = thread::Builder::new().name("curt-datagrams".into()).spawn(serve) {
        tracing::error!("calls over UDP are not received: {error}");
    }
}

/// The action for other system calls; `None`: no filter.
pub(super) const fn violation_action(seccomp: SeccompChoice) -> Option<ViolationAction> {
    match seccomp {
        SeccompChoice::Off => None,
        SeccompChoice::On => Some(ViolationAction::Fails),
        SeccompChoice::Kill => Some(ViolationAction::Ends),
    }
}

impl ServingThread {
    /// Waits until it was stopped and all calls are complete.
    pub(super) fn wait(self) -> Result<()> {
        self.0.join().map_err(|_| anyhow!("the serving thread panicked; see the log"))
    }
}
