//! `curt serve`: exports directories, or an empty tree in memory, over NFS versions 3, 4.1 and 4.2.
//!
//! This module handles addresses, registration, the state directory and signals. The main thread
//! keeps the privileges that start and shutdown need; serving threads have fewer.

mod arguments;
pub(crate) mod control;
mod exported;
mod leases;
mod limits;
mod listeners;
mod liveness;
mod locks;
mod metrics;
mod ports;
mod privileges;
mod registration;
mod rules;
mod seccomp;
mod serving;
mod signals;
mod socket_activation;
mod sys;
mod systemd;

use std::{process::ExitCode, sync::Arc};

use anyhow::{Context, Result};
use curt_observe::ServerCounters;
use curt_rpc::server::{RpcServer, RpcService};
use curt_server::NfsService;

pub(crate) use self::arguments::ServeArguments;
pub(crate) use self::exported::ServableEntries;
use self::{
    exported::OpenedExports,
    listeners::Listeners,
    locks::LockServer,
    ports::{PortRouter, ProgramPorts},
    registration::RpcbindRegistration,
};
use crate::errors;
use crate::{journal, logs};

/// Serves until a signal ends it.
pub(crate) fn run(arguments: &ServeArguments) -> ExitCode {
    if arguments.check {
        return exported::check(arguments);
    }
    match serve(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            if journal::is_read_from(std::io::stderr()) {
                eprint!("{}", journal::ERROR);
            }
            eprintln!("curt serve: {}", errors::line(&error));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether all written data are durable.
fn serve(arguments: &ServeArguments) -> Result<bool> {
    logs::start(&logs::LogDestination::StandardError, &arguments.log_level).with_context(|| {
        format!("--log-level {}: expected error, warn, info, debug, trace or a filter", arguments.log_level)
    })?;
    // Before any other descriptor is opened: inherited ones are known by their numbers.
    let inherited = socket_activation::sockets()?;
    raise_descriptor_limit();
    privileges::keep_to_manage()?;
    let counters = Arc::new(ServerCounters::default());
    let OpenedExports { service, reload, summary, open_to_all } =
        exported::open(arguments, Arc::clone(&counters))?;
    counters.stages.set_every(arguments.measured());
    // Started before privileges are dropped, because its thread creates files.
    let state = arguments.memory.is_none().then(|| exported::state_directory(arguments));
    let control = control::ServerControl::new(&service, &counters, state.and_then(Result::ok));
    let _control = control::listen(control.clone());
    let _metrics = metrics::serve(arguments, control.clone())?;
    let ring = curt_observe::control::keep_ring(control::origin(&service), arguments.ring);
    let mut listeners = Listeners::open(arguments, inherited)?;
    let locks = LockServer::start(arguments, &service)?;
    let programs: Arc<dyn RpcService> = match &locks {
        Some(locks) => Arc::clone(&locks.programs[0]),
        None => Arc::<NfsService>::clone(&service),
    };
    let ports = ProgramPorts::of(&listeners);
    let by_udp = |programs| PortRouter::of(programs, ports.without_nfs());
    let lock_owner = LockServer::owner(locks.as_ref());
    let registration = (!arguments.no_rpcbind)
        .then(|| RpcbindRegistration::register(&listeners, arguments.vers, lock_owner));
    let datagrams = match &locks {
        Some(locks) => locks.datagram_servers(std::mem::take(&mut listeners.datagrams), by_udp),
        None => Ok(Vec::new()),
    };
    let by_port = PortRouter::of(programs, ports.clone());
    let sockets = std::mem::take(&mut listeners.sockets);
    let server = RpcServer::new(sockets, by_port, arguments.limits.limits()).context("cannot serve")?;
    control.set_connections(server.handle());
    let stops = signals::watch(server.handle(), reload).context("cannot wait for signals")?;
    service.serve_callbacks().context("cannot start the threads for callbacks")?;
    leases::watch(Arc::clone(&service), Arc::clone(&stops)).context("cannot start the thread for leases")?;
    if let Some(locks) = &locks {
        let ports = registration.as_ref().and_then(|registration| registration.lock_ports());
        locks.announce(&service, &listeners, ports)?;
    }
    if let Some(registration) = &registration {
        RpcbindRegistration::keep(registration).context("cannot start the thread that registers")?;
    }
    let serving = serving::start(server, datagrams.context("cannot serve UDP")?, arguments.seccomp)?;
    announce(&summary, open_to_all.as_deref(), &listeners);
    systemd::ready(&summary);
    liveness::watch(listeners.nfs[0], arguments.vers, counters, stops)
        .context("cannot start the watchdog thread")?;
    let served = serving.wait();
    if let Some(registration) = registration.filter(|_| served.is_ok()) {
        registration.withdraw();
    }
    // A mount that takes over registers itself.
    if let Some(locks) = &locks {
        locks.end();
    }
    let durable = served.is_ok() && service.sync_all();
    if !durable && let Some(ring) = ring {
        // The ring is not needed after a normal end.
        ring.keep();
    }
    served?;
    tracing::info!("stopped");
    Ok(durable)
}

/// Logs the exports, the addresses, and a warning for exports that all clients may write.
fn announce(summary: &str, open_to_all: Option<&str>, listeners: &Listeners) {
    tracing::info!("{summary}");
    for address in &listeners.nfs {
        let what = if listeners.mount.contains(address) { "NFS and MOUNT" } else { "NFS" };
        tracing::info!("listening on {address} for {what}");
    }
    let others = [("MOUNT", &listeners.mount), ("NLM", &listeners.lock), ("NSM", &listeners.statd)];
    for (name, addresses) in others {
        for address in addresses.iter().filter(|address| !listeners.nfs.contains(address)) {
            tracing::info!("listening on {address} for {name}");
        }
    }
    if let Some(path) = open_to_all.filter(|_| !listeners.is_local()) {
        tracing::warn!(
            "{path} is writable by every address that can connect: \
             use --ro, or --bind to an address that only those reach who may write"
        );
    }
}

/// Raises the limit of descriptors to the maximum.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of descriptors stays as it is: {errno}");
    }
}
