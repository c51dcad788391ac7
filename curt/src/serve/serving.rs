//! The thread that waits for clients and starts those that serve them, with the rights that serving
//! needs and no others.

use std::{sync::mpsc, thread};

use anyhow::{Context, Result, anyhow};
use curt_rpc::server::RpcServer;

use super::{
    arguments::SeccompChoice,
    privileges,
    seccomp::{SeccompFilters, ViolationAction},
};

/// A server that runs.
pub(super) struct ServingThread(thread::JoinHandle<()>);

/// Has `server` run on a confined thread, from which all serving threads inherit. Returns once it
/// is confined.
pub(super) fn start(server: RpcServer, seccomp: SeccompChoice) -> Result<ServingThread> {
    let filters = offence(seccomp).map(SeccompFilters::new).transpose()?;
    let (tell, told) = mpsc::channel();
    // Found out by reading /proc when first asked for, which serving threads may not.
    let _ = rustix::param::page_size();
    let run = move || {
        let confined =
            privileges::keep_to_serve().and_then(|()| filters.map_or(Ok(()), |filters| filters.apply()));
        let is_confined = confined.is_ok();
        if tell.send(confined).is_ok() && is_confined {
            server.run();
        }
    };
    let thread = thread::Builder::new().name("curt-accept".into()).spawn(run);
    let thread = thread.context("cannot start the serving thread")?;
    told.recv().context("the serving thread ended during start")??;
    Ok(ServingThread(thread))
}

/// What becomes of a call that is not on the list; `None`: there is no list.
pub(super) const fn offence(seccomp: SeccompChoice) -> Option<ViolationAction> {
    match seccomp {
        SeccompChoice::Off => None,
        SeccompChoice::On => Some(ViolationAction::Fails),
        SeccompChoice::Kill => Some(ViolationAction::Ends),
    }
}

impl ServingThread {
    /// Waits until it was stopped and everything that was begun is answered.
    pub(super) fn wait(self) -> Result<()> {
        self.0
            .join()
            .map_err(|_| anyhow!("the serving thread panicked; see the log"))
    }
}
