//! The current exports, and how they are replaced while requests are served.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use curt_rpc::clock::TimeSource;
use parking_lot::RwLock;

use super::name_service_cache::{NameService, NameServiceCache};
use super::table::{Export, Exports};
use super::{ClientSpec, ExportClient, ExportDefinition};
use crate::file_handle::have_room_for_parents;
use crate::service::NfsServiceError;
use crate::state_directory::PersistentState;

/// Maximum time for which a load waits for the addresses of all hosts. The remaining ones are
/// resolved later.
const HOSTS_TIME: Duration = Duration::from_secs(10);

/// Maximum time for which a call waits for a name service.
const NAMES_TIME: Duration = Duration::from_secs(5);

/// The current exports.
pub(crate) struct ExportsTable {
    current: RwLock<Arc<Exports>>,
    /// Incremented whenever exports, names or groups change, on which decisions depend. Pairs with
    /// itself: a decision loads it (Acquire) before all that it depends on; a change increments it
    /// (Release) afterwards.
    generation: Arc<AtomicU64>,
    names: Arc<NameServiceCache>,
    /// Whether users' groups are looked up here (`--manage-gids`).
    pub(super) manages_groups: AtomicBool,
    /// Maximum time for which a call waits for a name service.
    pub(crate) name_service_timeout: Duration,
    clock: TimeSource,
}

impl ExportsTable {
    /// An empty table.
    pub(crate) fn new(service: Box<dyn NameService>, clock: TimeSource) -> Self {
        let generation = Arc::new(AtomicU64::new(1));
        let names = Arc::new(NameServiceCache::new(service, Arc::clone(&generation), clock.clone()));
        Self {
            current: RwLock::new(Arc::new(Exports::new(Vec::new(), Arc::clone(&names), clock.wall_clock()))),
            generation,
            names,
            manages_groups: AtomicBool::new(false),
            name_service_timeout: NAMES_TIME,
            clock,
        }
    }

    /// The generation of decisions that are made now. A decision of another generation must be made
    /// again. The generation of a decision is the one that was read before it was begun.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The caller has changed something on which decisions depend.
    pub(super) fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The current exports.
    pub(crate) fn current(&self) -> Arc<Exports> {
        Arc::clone(&self.current.read())
    }

    /// The deadline of a call that begins now and waits for a name service. After it the client
    /// gets `NFS3ERR_JUKEBOX`.
    pub(crate) fn deadline(&self) -> Instant {
        self.clock.now() + self.name_service_timeout
    }

    /// The cache of name services' answers.
    pub(crate) fn names(&self) -> &NameServiceCache {
        &self.names
    }

    /// Replaces the current exports atomically for all later requests. Nothing changes on an error.
    /// Not for serving threads.
    pub(crate) fn replace(
        &self,
        state: &PersistentState,
        definitions: Vec<ExportDefinition>,
    ) -> Result<ExportsDifference, NfsServiceError> {
        let exports = number(state, definitions)?;
        self.resolve_hosts(&exports)?;
        let new = Arc::new(Exports::new(exports, Arc::clone(&self.names), self.clock.wall_clock()));
        let old = std::mem::replace(&mut *self.current.write(), Arc::clone(&new));
        self.bump_generation();
        close_unused(&old, &new);
        Ok(ExportsDifference::between(&old, &new))
    }

    fn resolve_hosts(&self, exports: &[Export]) -> Result<(), NfsServiceError> {
        let clients = || exports.iter().flat_map(Export::clients).map(|client| &client.client);
        if clients().any(ClientSpec::needs_names) {
            self.start_names()?;
        }
        let hosts = || {
            clients().filter_map(|client| match client {
                ClientSpec::Host(name) => Some(name.as_str()),
                ClientSpec::Address(_)
                | ClientSpec::Network(_)
                | ClientSpec::Pattern(_)
                | ClientSpec::Netgroup(_)
                | ClientSpec::Anyone => None,
            })
        };
        self.names.preload_hosts(hosts(), self.clock.now() + HOSTS_TIME);
        for host in hosts().collect::<std::collections::BTreeSet<_>>() {
            if self.names.addresses(host).is_none_or(|addresses| addresses.is_empty()) {
                tracing::warn!("unknown host {host}: nothing is exported to it until its name resolves");
            }
        }
        Ok(())
    }

    /// Starts the threads that query name services.
    pub(crate) fn start_names(&self) -> Result<(), NfsServiceError> {
        self.names.start().map_err(NfsServiceError::Threads)
    }
}

/// Closes the cached descriptors of trees that are no longer served, so that requests in progress
/// on one do not prevent the unmounting of its file system.
fn close_unused(old: &Exports, new: &Exports) {
    let is_served = |export: &Arc<Export>| new.iter().any(|other| Arc::ptr_eq(&other.vfs, &export.vfs));
    for export in old.iter().filter(|export| !is_served(export)) {
        export.vfs.release_all();
    }
}

/// Assigns exports and file systems their stable numbers.
fn number(
    state: &PersistentState,
    definitions: Vec<ExportDefinition>,
) -> Result<Vec<Export>, NfsServiceError> {
    let mut numbered: Vec<Export> = Vec::new();
    for definition in definitions {
        crate::service::check_path(&definition.path)?;
        let id = state.export_id(&definition.path)?;
        let identity = definition.fsid.map(super::Fsid::identity);
        let file_system = state.file_system_id(identity.unwrap_or_else(|| definition.vfs.identity()))?;
        let export = Export::new(definition, id, file_system);
        let is_checked = |client: &ExportClient| client.rules.common().subtree_check;
        if export.clients().iter().any(is_checked) && !have_room_for_parents(&export.vfs.root()) {
            return Err(NfsServiceError::NoRoomForParents(export.path().escape_ascii().to_string()));
        }
        if numbered.iter().any(|other| other.has_same_path(&export)) {
            return Err(NfsServiceError::Twice(export.path().escape_ascii().to_string()));
        }
        if let Some(other) = numbered.iter().find(|other| other.has_same_fsid(&export)) {
            tracing::warn!(
                "{} and {} are different file systems with the same fsid, {}: clients cannot tell them apart; give them different fsid=",
                other.path().escape_ascii(),
                export.path().escape_ascii(),
                export.fsid
            );
        }
        numbered.push(export);
    }
    Ok(numbered)
}

/// The changes of a reload, a line for each client of each export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportsDifference {
    /// New exports.
    pub added: Vec<String>,
    /// Removed exports: their handles are stale.
    pub removed: Vec<String>,
    /// Exports whose rules changed.
    pub changed: Vec<String>,
}

impl ExportsDifference {
    fn between(old: &Exports, new: &Exports) -> Self {
        let (old, new) = (lines(old), lines(new));
        let mut difference = Self::default();
        for (key, options) in &new {
            match old.get(key) {
                None => difference.added.push(format!("{key}({options})")),
                Some(before) if before == options => {}
                Some(before) => difference.changed.push(format!("{key}({options}), was ({before})")),
            }
        }
        let gone = old.iter().filter(|(key, _)| !new.contains_key(*key));
        difference.removed = gone.map(|(key, options)| format!("{key}({options})")).collect();
        difference
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

impl fmt::Display for ExportsDifference {
    /// A line for each change: `added`, `removed` or `changed`, then the path, the client and the
    /// rules.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return formatter.write_str("nothing changed");
        }
        let kinds = [("added", &self.added), ("removed", &self.removed), ("changed", &self.changed)];
        let lines = kinds.iter().flat_map(|(kind, lines)| lines.iter().map(move |line| (kind, line)));
        let mut first = true;
        for (kind, line) in lines {
            let separator = if std::mem::take(&mut first) { "" } else { "\n" };
            write!(formatter, "{separator}{kind} {line}")?;
        }
        Ok(())
    }
}

/// Each export's clients, with their rules.
fn lines(exports: &Exports) -> BTreeMap<String, String> {
    let of_export = |export: &Arc<Export>| {
        let path = export.path().escape_ascii().to_string();
        let line = |client: &ExportClient| (format!("{path} {}", client.client), client.options.clone());
        export.clients().iter().map(line).collect::<Vec<_>>()
    };
    exports.iter().flat_map(of_export).collect()
}
