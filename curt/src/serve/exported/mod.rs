//! The exports of a server: a directory, a tree in memory, or the entries of exports(5) files,
//! which are read again at a reload.

mod check;
mod definitions;
mod mounts;
mod trees;

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use curt_observe::ServerCounters;
use curt_server::{
    EXPORTS_FILE, ExportDefinition, ExportsProblem, NfsService, NfsServiceConfig, ParsedExports,
    PersistentState, Severity, read_exports,
};
use curt_vfs::{FileCaching, HandleChoice, MemoryOptions, MemoryVfs, MetadataDurability};
use parking_lot::Mutex;

pub(crate) use self::check::ServableEntries;
pub(super) use self::check::check;
use self::{
    definitions::ResolvedExports,
    mounts::MountedFileSystems,
    trees::{OpenTrees, TreeEntrance},
};
use super::{
    arguments::{HandlesChoice, OnOff, ServeArguments},
    rules,
    signals::Reload,
};

use crate::errors;

/// All users may write to an export in memory, but not remove files of others.
const MEMORY_ROOT_MODE: u32 = 0o1777;

/// A service and information about its exports.
pub(super) struct OpenedExports {
    pub(super) service: Arc<NfsService>,
    /// The action of SIGHUP.
    pub(super) reload: Reload,
    /// A summary of the exports.
    pub(super) summary: String,
    /// A path that all clients may write, if the command line exports one.
    pub(super) open_to_all: Option<String>,
}

/// Opens the exports of `arguments`.
pub(super) fn open(arguments: &ServeArguments, counters: Arc<ServerCounters>) -> Result<OpenedExports> {
    let exported = match (&arguments.memory, &arguments.directory) {
        (Some(name), _) => memory(arguments, name, counters),
        (None, Some(directory)) => directory_alone(arguments, directory, counters),
        (None, None) => files(arguments, counters),
    }?;
    if arguments.manage_gids {
        exported.service.manage_groups().context("cannot look up users' groups (--manage-gids)")?;
    }
    if arguments.kernel_locks {
        exported.service.use_kernel_locks();
    }
    Ok(exported)
}

/// An empty tree. Neither the tree nor its handles survive the process.
fn memory(arguments: &ServeArguments, name: &str, counters: Arc<ServerCounters>) -> Result<OpenedExports> {
    let mut instance = [0; 8];
    rustix::rand::getrandom(&mut instance[..], rustix::rand::GetRandomFlags::empty())
        .context("getrandom failed")?;
    let vfs = Arc::new(MemoryVfs::new(MemoryOptions {
        bytes_max: arguments.memory_size.saturating_mul(1 << 20),
        instance: u64::from_ne_bytes(instance),
        root_mode: MEMORY_ROOT_MODE,
        ..MemoryOptions::default()
    }));
    let rules = rules::rules(arguments, None)?;
    let definition = ExportDefinition::for_everyone(name.as_bytes().to_vec(), vfs, rules);
    let service = service(arguments, PersistentState::ephemeral()?, vec![definition], counters)?;
    Ok(one_export(arguments, service, Path::new(name)))
}

fn directory_alone(
    arguments: &ServeArguments,
    directory: &Path,
    counters: Arc<ServerCounters>,
) -> Result<OpenedExports> {
    let path =
        std::fs::canonicalize(directory).with_context(|| format!("cannot export {}", directory.display()))?;
    let (state, mut trees) = state(arguments)?;
    let vfs = trees
        .tree(&path, MetadataDurability::Stable, TreeEntrance::ByPath)
        .with_context(|| format!("cannot export {}", directory.display()))?;
    let rules = rules::rules(arguments, vfs.only_user())?;
    let definition = ExportDefinition::for_everyone(path.as_os_str().as_bytes().to_vec(), vfs, rules);
    let service = service(arguments, state, vec![definition], counters)?;
    Ok(one_export(arguments, service, &path))
}

fn one_export(arguments: &ServeArguments, service: NfsService, path: &Path) -> OpenedExports {
    let access = if arguments.ro { "read-only" } else { "writable" };
    let summary = format!("exporting {} ({access})", path.display());
    let served = summary.clone();
    OpenedExports {
        service: Arc::new(service),
        reload: Box::new(move || {
            tracing::info!("nothing to reload: the export is given on the command line");
            served.clone()
        }),
        summary,
        open_to_all: (!arguments.ro).then(|| path.display().to_string()),
    }
}

fn service(
    arguments: &ServeArguments,
    state: PersistentState,
    exports: Vec<ExportDefinition>,
    counters: Arc<ServerCounters>,
) -> Result<NfsService> {
    let setup = NfsServiceConfig { state, exports, counters };
    let mut service = NfsService::new(setup).context("cannot number the exports")?;
    if arguments.save_replies == OnOff::On
        && let Err(error) = service.save_replies()
    {
        tracing::warn!(
            "replies are not saved: {error}; if this server is killed, calls that clients repeat may fail with EEXIST or ENOENT"
        );
    }
    service.set_versions(arguments.vers);
    service.set_delegations(arguments.delegations == OnOff::On);
    service.set_local_leases(arguments.local_leases == OnOff::On);
    service.set_directory_delegations(arguments.directory_delegations == OnOff::On);
    service.set_lease(Duration::from_secs(arguments.lease.into()));
    service.recover_clients().context("cannot recover the NFSv4 clients")?;
    Ok(service)
}

/// The exports(5) files, and the state needed to read them again.
struct ExportsFiles {
    named: Vec<PathBuf>,
    trees: OpenTrees,
    service: Arc<NfsService>,
    /// The entries of the last files that could be served.
    parsed: ParsedExports,
    /// The reported problems: they are not reported again when mounts change.
    problems: Vec<ExportsProblem>,
}

fn files(arguments: &ServeArguments, counters: Arc<ServerCounters>) -> Result<OpenedExports> {
    refuse_options_of_a_directory(arguments)?;
    let parsed = read_exports(&arguments.config);
    log(&parsed.problems);
    ensure!(!parsed.has_errors(), "not started: correct the lines above (`curt serve --check` checks them)");
    let (state, mut trees) = state(arguments)?;
    let meaning = definitions::resolve(&parsed, &mounts_now()?, &mut trees);
    log(&meaning.problems);
    let ResolvedExports { definitions, problems } = meaning;
    let summary = summary(&definitions);
    if !rustix::process::geteuid().is_root() {
        tracing::warn!(
            "not root: all clients act as the user who started the server; the squash options in the files have no effect"
        );
    }
    if definitions.is_empty() {
        tracing::warn!(
            "no exports: write {} and send SIGHUP, or start with a directory: curt serve DIR",
            arguments.config.first().map_or_else(|| EXPORTS_FILE.into(), |file| file.display().to_string())
        );
    }
    let service = Arc::new(service(arguments, state, definitions, counters)?);
    trees.finish();
    let files = Arc::new(Mutex::new(ExportsFiles {
        named: arguments.config.clone(),
        trees,
        service: Arc::clone(&service),
        parsed,
        problems,
    }));
    watch_mounts(Arc::clone(&files)).context("cannot watch the list of mounts")?;
    Ok(OpenedExports {
        service,
        reload: Box::new(move || ExportsFiles::read_again(&files)),
        summary,
        open_to_all: None,
    })
}

impl ExportsFiles {
    /// Reads the files again and serves their entries; if they have errors, the old exports remain.
    /// Returns a summary of the exports.
    fn read_again(files: &Mutex<Self>) -> String {
        let mut files = files.lock();
        let parsed = read_exports(&files.named);
        log(&parsed.problems);
        if parsed.has_errors() {
            let message = "the exports are unchanged: correct the lines above and send SIGHUP again";
            tracing::error!("{message}");
            return message.into();
        }
        let before = std::mem::replace(&mut files.parsed, parsed);
        files.problems.clear();
        files.replace("exports read again").unwrap_or_else(|error| {
            files.parsed = before;
            format!("the exports are unchanged: {}", errors::line(&error))
        })
    }

    /// Serves the current exports of the entries, and returns a summary; if this fails, the exports
    /// remain unchanged.
    fn replace(&mut self, why: &str) -> Result<String> {
        let replaced = self.try_to_replace(why);
        if let Err(error) = &replaced {
            tracing::error!("the exports are unchanged: {}", errors::line(error));
            // Drops trees that were opened for them only.
            self.trees.begin();
        }
        replaced
    }

    fn try_to_replace(&mut self, why: &str) -> Result<String> {
        let mounts = mounts_now()?;
        let ResolvedExports { definitions, problems } =
            definitions::resolve(&self.parsed, &mounts, &mut self.trees);
        let is_new = |problem: &&ExportsProblem| !self.problems.contains(problem);
        log(problems.iter().filter(is_new));
        self.problems = problems;
        let summary = summary(&definitions);
        let difference = self.service.replace_exports(definitions)?;
        self.trees.finish();
        for line in difference.to_string().lines() {
            tracing::info!("{why}: {line}");
        }
        Ok(summary)
    }
}

/// Starts the thread that watches mounts below exports. It runs until the process ends.
fn watch_mounts(files: Arc<Mutex<ExportsFiles>>) -> io::Result<()> {
    let list = mounts::open_list()?;
    let watch = move || {
        loop {
            if let Err(error) = mounts::wait_for_change(&list) {
                tracing::error!(
                    "what is mounted is not watched any longer: {error}; send SIGHUP after each mount and unmount \
                     below the exports"
                );
                return;
            }
            let mut files = files.lock();
            if definitions::depend_on_mounts(&files.parsed) {
                // A failure is logged.
                let _ = files.replace("mounts changed");
            }
        }
    };
    thread::Builder::new().name("curt-mounts".into()).spawn(watch)?;
    Ok(())
}

fn mounts_now() -> Result<MountedFileSystems> {
    MountedFileSystems::now().context("cannot read the list of mounts (/proc/self/mountinfo)")
}

fn log<'p>(problems: impl IntoIterator<Item = &'p ExportsProblem>) {
    for problem in problems {
        match problem.severity {
            Severity::Warning => tracing::warn!("{problem}"),
            Severity::Error => tracing::error!("{problem}"),
        }
    }
}

fn summary(definitions: &[ExportDefinition]) -> String {
    let listed = definitions.iter().filter(|definition| definition.listed);
    let (paths, clients) =
        listed.fold((0, 0), |(paths, clients), definition| (paths + 1, clients + definition.clients.len()));
    let entered = definitions.len() - paths;
    let beyond = match entered {
        0 => String::new(),
        number => format!(" and {number} file systems below them"),
    };
    format!("exporting {paths} directories{beyond}, {clients} lines for clients")
}

/// Rejects options that apply to a single directory.
fn refuse_options_of_a_directory(arguments: &ServeArguments) -> Result<()> {
    let given = [
        (arguments.ro, "--ro"),
        (arguments.squash.is_some(), "--squash"),
        (arguments.anonuid.is_some(), "--anonuid"),
        (arguments.anongid.is_some(), "--anongid"),
        (arguments.secure, "--secure"),
        (arguments.insecure, "--insecure"),
    ];
    if let Some((_, word)) = given.iter().find(|(given, _)| *given) {
        bail!("{word} is for `curt serve DIR` only: write the options in the exports(5) file");
    }
    Ok(())
}

/// The state directory, and the trees opened with it.
fn state(arguments: &ServeArguments) -> Result<(PersistentState, OpenTrees)> {
    let directory = state_directory(arguments)?;
    let open = || {
        if arguments.new_key {
            PersistentState::new_key(&directory)?;
        }
        PersistentState::open(&directory)
    };
    let state = open().context("cannot open the state directory (choose another with --state DIR)")?;
    let trees = trees(arguments, directory.clone(), directory);
    Ok((state, trees))
}

/// Opens directories: `state` has the key, `tables` the handle tables.
fn trees(arguments: &ServeArguments, state: PathBuf, tables: PathBuf) -> OpenTrees {
    let handles = match arguments.handles {
        HandlesChoice::Auto => HandleChoice::Auto,
        HandlesChoice::Kernel => HandleChoice::Kernel,
        HandlesChoice::Table => HandleChoice::Table,
    };
    let files = match arguments.filecache {
        OnOff::On => FileCaching::On,
        OnOff::Off => FileCaching::Off,
    };
    OpenTrees::new(state, tables, handles, files)
}

/// The state directory.
pub(super) fn state_directory(arguments: &ServeArguments) -> Result<PathBuf> {
    arguments.state.clone().map_or_else(default_state_directory, Ok)
}

fn default_state_directory() -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/curt".into());
    }
    let absolute = |name: &str| {
        let value = std::env::var_os::<&OsStr>(name.as_ref());
        value.map(PathBuf::from).filter(|path| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("curt"))
        .context("neither XDG_STATE_HOME nor HOME is set: choose a state directory with --state DIR")
}

#[cfg(test)]
mod tests;
