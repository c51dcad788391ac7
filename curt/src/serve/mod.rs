//! `curt serve`: a directory, or an empty tree in memory, exported over NFS version 3.
//!
//! Owns what a server needs around the protocol: addresses, registration, where state is kept, signals. The main thread
//! keeps the rights that beginning and ending need; clients are served by threads that have fewer.

mod arguments;
mod filter;
mod inherited;
mod limits;
mod listeners;
mod liveness;
mod ports;
mod privileges;
mod registration;
mod rules;
mod serving;
mod stopping;
mod sys;
mod systemd;

use std::{
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use curt_rpc::server::Server;
use curt_server::{ExportDefinition, NfsService, Setup, State};
use curt_trace::ServerCounters;
use curt_vfs::{HandleChoice, LocalOptions, LocalVfs, MemoryOptions, MemoryVfs, Vfs};

pub(crate) use self::arguments::ServeArguments;
use self::{
    arguments::HandlesChoice, listeners::Listeners, ports::ByPort, registration::Registration,
    stopping::Reload,
};
use crate::logs;

/// Everybody may write to an export in memory, and nobody remove what is another's.
const MEMORY_ROOT_MODE: u32 = 0o1777;

/// Serves until a signal ends it.
pub(crate) fn run(arguments: &ServeArguments) -> ExitCode {
    match serve(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("curt serve: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether everything that was written is durable.
fn serve(arguments: &ServeArguments) -> Result<bool> {
    logs::start(&logs::Destination::StandardError, &arguments.log_level).with_context(|| {
        format!(
            "--log-level {}: expected error, warn, info, debug, trace or a filter",
            arguments.log_level
        )
    })?;
    // Before anything else opens a descriptor: theirs are known by their numbers.
    let mut listeners = Listeners::open(arguments)?;
    raise_descriptor_limit();
    privileges::keep_to_manage()?;
    let counters = Arc::new(ServerCounters::default());
    let service = Arc::new(service(arguments, Arc::clone(&counters))?);
    let by_port = ByPort::of(Arc::<NfsService>::clone(&service), &listeners);
    let sockets = std::mem::take(&mut listeners.sockets);
    let server = Server::new(sockets, by_port, arguments.limits.limits()).context("cannot serve")?;
    let stops = stopping::watch(server.handle(), nothing_to_reload()).context("cannot wait for signals")?;
    let registration = (!arguments.no_rpcbind)
        .then(|| Registration::register(&listeners))
        .flatten();
    let path = service_path(arguments)?;
    let serving = serving::start(server, arguments.seccomp)?;
    announce(arguments, &path, &listeners);
    systemd::ready(&format!("serving {}", path.display()));
    liveness::watch(listeners.nfs[0], counters, stops).context("cannot watch over the server")?;
    serving.wait()?;
    if let Some(registration) = registration {
        registration.withdraw();
    }
    let durable = service.sync_all();
    tracing::info!("stopped");
    Ok(durable)
}

/// SIGHUP of a server whose export was named on its command line.
fn nothing_to_reload() -> Reload {
    Box::new(|| {
        tracing::info!("nothing is read again: the export was named on the command line");
        "serving".into()
    })
}

/// What is exported, and how.
fn service(arguments: &ServeArguments, counters: Arc<ServerCounters>) -> Result<NfsService> {
    let path = service_path(arguments)?;
    let (state, vfs, only_user): (State, Arc<dyn Vfs>, _) = match &arguments.directory {
        Some(_) => {
            let directory = arguments.state.clone().map_or_else(default_state_directory, Ok)?;
            let state = open_state(&directory, arguments.new_key)?;
            let options = LocalOptions {
                handles: match arguments.handles {
                    HandlesChoice::Auto => HandleChoice::Auto,
                    HandlesChoice::Kernel => HandleChoice::Kernel,
                    HandlesChoice::Table => HandleChoice::Table,
                },
                table: Some(directory.join(table_name(&path))),
                ..LocalOptions::default()
            };
            let vfs = LocalVfs::open(&path, &options).context("cannot export")?;
            if is_within(&directory, &path) {
                tracing::warn!(
                    "clients can reach {} by way of {}: who may read the key there can make handles of any file of that \
                     file system; keep it elsewhere with --state DIR",
                    directory.display(),
                    path.display()
                );
            }
            let only_user = vfs.only_user();
            (state, Arc::new(vfs), only_user)
        }
        // Neither the tree nor its handles outlive the process.
        None => (
            State::ephemeral()?,
            Arc::new(memory(arguments.memory_size)?),
            None,
        ),
    };
    let rules = rules::rules(arguments, only_user)?;
    let definition = ExportDefinition::for_everyone(path.as_os_str().as_bytes().to_vec(), vfs, rules);
    NfsService::new(Setup {
        state,
        exports: vec![definition],
        counters,
    })
    .context("cannot number the exports")
}

/// The path that clients mount.
fn service_path(arguments: &ServeArguments) -> Result<PathBuf> {
    if let Some(name) = &arguments.memory {
        return Ok(name.into());
    }
    let Some(directory) = &arguments.directory else {
        bail!("say which directory to export")
    };
    std::fs::canonicalize(directory).with_context(|| format!("cannot export {}", directory.display()))
}

fn memory(mebibytes: u64) -> Result<MemoryVfs> {
    let mut instance = [0; 8];
    rustix::rand::getrandom(&mut instance[..], rustix::rand::GetRandomFlags::empty())
        .context("the system gives no random numbers")?;
    Ok(MemoryVfs::new(MemoryOptions {
        bytes_max: mebibytes.saturating_mul(1 << 20),
        instance: u64::from_ne_bytes(instance),
        root_mode: MEMORY_ROOT_MODE,
        ..MemoryOptions::default()
    }))
}

fn open_state(directory: &Path, new_key: bool) -> Result<State> {
    let open = || {
        if new_key {
            State::new_key(directory)?;
        }
        State::open(directory)
    };
    open().context("cannot keep what must outlive a restart (choose another place with --state DIR)")
}

fn default_state_directory() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/curt".into());
    }
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("curt"))
        .context("neither XDG_STATE_HOME nor HOME is set: say where state is kept with --state DIR")
}

/// Whether what `directory` stands for is `export`, which is canonical, or lies below it.
fn is_within(directory: &Path, export: &Path) -> bool {
    std::fs::canonicalize(directory).is_ok_and(|directory| directory.starts_with(export))
}

/// The file of an export's handle table: the same for the same path, whatever its length.
fn table_name(path: &Path) -> String {
    // FNV-1a, 64 bits.
    let hash = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    format!("handles-{hash:016x}.redb")
}

/// Says what is served where, and to whom it is open.
fn announce(arguments: &ServeArguments, path: &Path, listeners: &Listeners) {
    let path = path.display();
    let access = if arguments.ro { "read-only" } else { "writable" };
    tracing::info!("exporting {path} ({access})");
    for address in &listeners.nfs {
        let what = if listeners.mount.contains(address) {
            "NFS and MOUNT"
        } else {
            "NFS"
        };
        tracing::info!("listening on {address} for {what}");
    }
    for address in listeners
        .mount
        .iter()
        .filter(|address| !listeners.nfs.contains(address))
    {
        tracing::info!("listening on {address} for MOUNT");
    }
    if !arguments.ro && !listeners.is_local() {
        tracing::warn!(
            "{path} is writable by every address that can connect: \
             use --ro, or --bind to an address that only those reach who may write"
        );
    }
}

/// As many connections and files as the system lets this process have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!("the limit of descriptors stays as it is: {errno}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_below_the_export_is_noticed_whatever_it_is_called() {
        let is_within = |directory: &str, export: &str| is_within(Path::new(directory), Path::new(export));
        assert!(is_within("/proc/self/fd", "/proc"));
        assert!(is_within("/proc/../proc/self", "/"));
        assert!(is_within("/proc", "/proc"));
        assert!(!is_within("/proc", "/proc/self"));
        assert!(!is_within("/proc/../dev", "/proc"));
        assert!(!is_within("/dev", "/de"));
    }
}
