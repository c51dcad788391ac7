//! An immutable set of exports, found by number or path, and the decision which client may use
//! which export, and by which rules.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use curt_rpc::auth::AuthStatus;
use curt_rpc::server::CallFailure;
use curt_types::Fault;
use curt_vfs::{FsCred, NodeHandle, Vfs};

use super::clients::ClientSpec;
use super::name_service_cache::{NameQuery, NameServiceCache};
use super::pseudo_tree::PseudoTree;
use super::rules::{CredentialFlavor, ExportRules, RulesByFlavor};
use super::subtree::SubtreeCache;
use super::{ExportClient, ExportDefinition, Fsid, pattern};
use crate::file_handle::{ExportId, FileSystemId};
use crate::request::Refusal;

/// An export in service.
pub(crate) struct Export {
    pub(crate) id: ExportId,
    pub(crate) file_system: FileSystemId,
    /// The file system's number that clients see (fsid).
    pub(crate) fsid: u64,
    /// The paths by which it can be mounted, split into components: as written, and with symbolic
    /// links resolved.
    paths: Vec<Vec<Vec<u8>>>,
    path: Vec<u8>,
    pub(crate) vfs: Arc<dyn Vfs>,
    /// Its clients in order of precedence.
    clients: Vec<ExportClient>,
    /// Whether EXPORT lists it.
    pub(crate) listed: bool,
    /// Whether its root is the root of all that NFSv4 clients see (`fsid=0`).
    pub(crate) is_root: bool,
    /// The exports that are mounted on directories of this one, by the covered directory.
    children: HashMap<NodeHandle, ExportId>,
    /// The export in which this one is mounted, and the covered directory there.
    parent_export: Option<(ExportId, NodeHandle)>,
    /// The cached locations of files, for `subtree_check`.
    pub(crate) subtree_cache: SubtreeCache,
}

/// The decision about a request on an export.
pub(crate) enum ExportDecision {
    /// The request is served under these rules.
    Open(Arc<Export>, ExportRules),
    /// The request is refused.
    Refused(Refusal),
    /// The decision needs the answer to this query.
    Unknown(NameQuery),
}

/// The client entry of an export that matches a machine.
pub(crate) enum MatchedClient<'e> {
    /// This entry.
    Client(&'e ExportClient),
    /// No entry.
    Nobody,
    /// The match needs the answer to this query.
    Unknown(NameQuery),
}

/// Whether a machine matches a client entry.
enum ClientMatch {
    Yes,
    No,
    Unknown(NameQuery),
}

impl Export {
    pub(super) fn new(definition: ExportDefinition, id: ExportId, file_system: FileSystemId) -> Self {
        let ExportDefinition { path, canonical_path: leads_to, vfs, mut clients, fsid, listed } = definition;
        let split = |path: &[u8]| components(path).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut paths = vec![split(&path)];
        paths.extend(leads_to.map(|path| split(&path)).filter(|other| *other != paths[0]));
        // A stable sort: of two entries of one kind the first one takes precedence.
        clients.sort_by_key(|client| client.client.kind());
        Self {
            id,
            file_system,
            fsid: fsid.map_or_else(|| file_system.fsid(), Fsid::number),
            paths,
            path,
            vfs,
            clients,
            listed,
            is_root: fsid == Some(Fsid::Number(0)),
            children: HashMap::new(),
            parent_export: None,
            subtree_cache: SubtreeCache::default(),
        }
    }

    /// The client entry of this export that applies to a machine: the first match in order of
    /// precedence. A host whose addresses are unknown could be any machine. They are waited for
    /// only if the line that applies otherwise has other rules, so that a name that cannot be
    /// resolved grants no excess rights and delays few clients.
    pub(crate) fn client(&self, address: IpAddr, names: &NameServiceCache) -> MatchedClient<'_> {
        let mut open: Vec<(&ExportClient, NameQuery)> = Vec::new();
        for client in &self.clients {
            match matches(&client.client, address, names) {
                ClientMatch::Yes => {
                    let other = open.into_iter().find(|(host, _)| host.rules != client.rules);
                    return other.map_or(MatchedClient::Client(client), |(_, question)| {
                        MatchedClient::Unknown(question)
                    });
                }
                ClientMatch::No => {}
                ClientMatch::Unknown(question @ NameQuery::Addresses(_)) => open.push((client, question)),
                ClientMatch::Unknown(question) => return MatchedClient::Unknown(question),
            }
        }
        let first = open.into_iter().next();
        first.map_or(MatchedClient::Nobody, |(_, question)| MatchedClient::Unknown(question))
    }

    /// Whether both can be mounted by one path.
    pub(crate) fn has_same_path(&self, other: &Self) -> bool {
        self.paths.iter().any(|path| other.paths.contains(path))
    }

    /// Whether clients would wrongly take both for one file system.
    pub(crate) fn has_same_fsid(&self, other: &Self) -> bool {
        self.fsid == other.fsid && self.file_system != other.file_system
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }

    pub(crate) fn clients(&self) -> &[ExportClient] {
        &self.clients
    }

    /// Whether exports are mounted on directories of this one.
    pub(crate) fn has_children(&self) -> bool {
        !self.children.is_empty()
    }

    /// The export that is mounted on a directory of this one.
    pub(crate) fn child_at(&self, node: &NodeHandle) -> Option<ExportId> {
        if self.children.is_empty() {
            return None;
        }
        self.children.get(node).copied()
    }

    /// The export in which this one is mounted, and the covered directory there.
    pub(crate) const fn parent_export(&self) -> Option<(ExportId, NodeHandle)> {
        self.parent_export
    }
}

/// All exports of one generation.
pub(crate) struct Exports {
    /// In ascending order of numbers.
    exports: Vec<Arc<Export>>,
    /// The pseudo file system that NFSv4 clients see above them.
    pub(crate) pseudo: PseudoTree,
    /// When they were loaded.
    pub(crate) loaded_at: SystemTime,
    names: Arc<NameServiceCache>,
}

impl Exports {
    pub(super) fn new(mut exports: Vec<Export>, names: Arc<NameServiceCache>, loaded_at: SystemTime) -> Self {
        exports.sort_by_key(|export| export.id);
        find_mounts(&mut exports);
        let pseudo = PseudoTree::new(&exports);
        Self { exports: exports.into_iter().map(Arc::new).collect(), pseudo, loaded_at, names }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.exports.iter()
    }

    pub(crate) fn by_id(&self, id: ExportId) -> Option<&Arc<Export>> {
        let at = self.exports.binary_search_by_key(&id, |export| export.id).ok()?;
        self.exports.get(at)
    }

    /// The decision about a client's request for a file of an export.
    ///
    /// As with knfsd, the handles of an export that a client may not use are stale for it, because
    /// the client got them when it could; and requests from an unreserved port, which any user of
    /// the client can use, are refused.
    pub(crate) fn decide(
        &self,
        client: SocketAddr,
        flavor: Option<CredentialFlavor>,
        id: ExportId,
        file_system: FileSystemId,
    ) -> ExportDecision {
        let refused = |fault| ExportDecision::Refused(Refusal::Fault(fault));
        // The export was removed, or another file system replaced it: the handle was valid once.
        let export = self.by_id(id).filter(|export| export.file_system == file_system);
        let Some(export) = export else {
            return refused(Fault::Stale);
        };
        let found = match export.client(client.ip().to_canonical(), &self.names) {
            MatchedClient::Client(found) => found,
            MatchedClient::Nobody => return refused(Fault::Stale),
            MatchedClient::Unknown(question) => return ExportDecision::Unknown(question),
        };
        if found.refuses_port(client) {
            return refused(Fault::Perm);
        }
        match flavor.and_then(|flavor| found.rules.of(flavor)) {
            Some(rules) => ExportDecision::Open(Arc::clone(export), *rules),
            None => ExportDecision::Refused(Refusal::Call(CallFailure::Denied(AuthStatus::TooWeak))),
        }
    }

    /// The flavors that a client may use in an export, the preferred first.
    pub(crate) fn flavors(&self, client: SocketAddr, id: ExportId) -> Result<Vec<CredentialFlavor>, Fault> {
        let export = self.by_id(id).ok_or(Fault::Stale)?;
        match export.client(client.ip().to_canonical(), &self.names) {
            MatchedClient::Client(found) => Ok(found.rules.flavors().collect()),
            MatchedClient::Nobody => Err(Fault::Stale),
            MatchedClient::Unknown(_) => Err(Fault::Jukebox),
        }
    }

    /// The exports that contain a path, the innermost first, each with the path's components below
    /// its root.
    pub(crate) fn containing<'p>(&self, path: &'p [u8]) -> Vec<(&Arc<Export>, Vec<&'p [u8]>)> {
        let wanted: Vec<&[u8]> = components(path).collect();
        let within = |export: &Export| {
            let depths = export.paths.iter().filter(|path| begins_with(&wanted, path));
            depths.map(Vec::len).max()
        };
        let mut around: Vec<(usize, &Arc<Export>)> =
            self.exports.iter().filter_map(|export| Some((within(export)?, export))).collect();
        around.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
        let below = |depth| wanted.get(depth..).unwrap_or_default().to_vec();
        around.into_iter().map(|(depth, export)| (export, below(depth))).collect()
    }
}

impl ExportClient {
    /// Whether a request comes from an unreserved port, which any user of the client can use.
    pub(crate) fn refuses_port(&self, client: SocketAddr) -> bool {
        self.rules.common().secure_ports && client.port() >= 1024
    }

    /// One client entry for all clients, under one set of rules.
    #[must_use]
    pub fn everyone(rules: ExportRules) -> Self {
        Self { client: ClientSpec::Anyone, rules: RulesByFlavor::without_sec(rules), options: String::new() }
    }
}

fn matches(client: &ClientSpec, address: IpAddr, names: &NameServiceCache) -> ClientMatch {
    let known = match client {
        ClientSpec::Anyone => Some(true),
        ClientSpec::Address(own) => Some(*own == address),
        ClientSpec::Network(network) => Some(network.contains(address)),
        ClientSpec::Host(name) => names.addresses(name).map(|addresses| addresses.contains(&address)),
        ClientSpec::Pattern(pattern) => {
            names.name(address).map(|name| name.is_some_and(|name| pattern::fits(pattern, &name)))
        }
        ClientSpec::Netgroup(group) => names.member(group, address),
    };
    match (known, client) {
        (Some(true), _) => ClientMatch::Yes,
        (Some(false), _) => ClientMatch::No,
        (None, ClientSpec::Host(name)) => ClientMatch::Unknown(NameQuery::Addresses(name.as_str().into())),
        (None, ClientSpec::Netgroup(group)) => {
            ClientMatch::Unknown(NameQuery::Member(group.as_str().into(), address))
        }
        (None, _) => ClientMatch::Unknown(NameQuery::Name(address)),
    }
}

/// Finds the exports that are mounted on directories of others: those whose root differs from the
/// directory that the other has at their path.
fn find_mounts(exports: &mut [Export]) {
    let mut found = Vec::new();
    for (at, child) in exports.iter().enumerate() {
        let outer = exports.iter().enumerate().filter_map(|(outer, export)| {
            let depth = export.paths.iter().filter(|path| {
                child.paths.iter().any(|own| own.len() > path.len() && begins_with(own, path))
            });
            Some((depth.map(Vec::len).max()?, outer))
        });
        let Some((depth, outer)) = outer.max() else {
            continue;
        };
        let parent = &exports[outer];
        let below = child.paths.iter().find(|own| {
            own.len() > depth && parent.paths.iter().any(|path| path.len() == depth && begins_with(own, path))
        });
        let covered = below.and_then(|own| walk(&*parent.vfs, own.get(depth..).unwrap_or_default()));
        if let Some(covered) = covered.filter(|covered| !is_root_of(&*parent.vfs, covered, &*child.vfs)) {
            found.push((at, outer, covered));
        }
    }
    for (child, parent, covered) in found {
        exports[child].parent_export = Some((exports[parent].id, covered));
        let id = exports[child].id;
        exports[parent].children.insert(covered, id);
    }
}

/// Whether a directory is the root of another tree, by device and inode number. Handles cannot be
/// compared: one tree's may be of the kernel and the other's of a table.
fn is_root_of(vfs: &dyn Vfs, directory: &NodeHandle, other: &dyn Vfs) -> bool {
    let [this, root] = [(vfs, directory), (other, &other.root())].map(|(vfs, node)| vfs.attributes(node));
    matches!((this, root), (Ok(this), Ok(root)) if (this.fsid, this.fileid) == (root.fsid, root.fileid))
}

fn walk(vfs: &dyn Vfs, below: &[Vec<u8>]) -> Option<NodeHandle> {
    let step = |at: NodeHandle, name: &Vec<u8>| {
        let found = vfs.lookup(&FsCred::ROOT, &at, name).value.ok()?;
        Some(found.handle)
    };
    below.iter().try_fold(vfs.root(), step)
}

fn begins_with(path: &[impl AsRef<[u8]>], beginning: &[impl AsRef<[u8]>]) -> bool {
    path.len() >= beginning.len()
        && beginning.iter().zip(path).all(|(own, asked)| own.as_ref() == asked.as_ref())
}

/// A path's components; doubled and trailing slashes and "." are ignored.
pub(super) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use std::sync::atomic::AtomicU64;

    use curt_rpc::clock::TimeSource;
    use curt_vfs::{HandleChoice, LocalOptions, LocalVfs, MemoryOptions, MemoryVfs};

    use super::*;
    use crate::exports::SystemNames;

    // SEMANTICS: export-10.
    #[test]
    fn a_host_that_is_not_resolved_gives_no_client_other_rules_than_its_own() {
        let read_only = ExportRules { read_only: true, ..ExportRules::default() };
        let client = |word: &str, rules| ExportClient {
            client: ClientSpec::parse(word).unwrap(),
            ..ExportClient::everyone(rules)
        };
        let (ro, rw) = (|word| client(word, read_only), |word| client(word, ExportRules::default()));
        // No query is answered: every host is unknown.
        let names =
            NameServiceCache::new(Box::new(SystemNames), Arc::new(AtomicU64::new(1)), TimeSource::System);
        let machine = "10.0.0.1".parse().unwrap();
        for (clients, expected) in [
            (vec![ro("web"), rw("*")], "wait for web"),
            (vec![rw("first"), ro("web"), rw("*")], "wait for web"),
            (vec![rw("web"), rw("*")], "*"),
            (vec![rw("10.0.0.1"), ro("web")], "10.0.0.1"),
            (vec![ro("web"), rw("10.1.0.0/16")], "wait for web"),
            (vec![rw("10.1.0.0/16")], "nobody"),
        ] {
            let vfs = Arc::new(MemoryVfs::new(MemoryOptions::default()));
            let everyone = ExportDefinition::for_everyone(b"/srv".to_vec(), vfs, ExportRules::default());
            let definition = ExportDefinition { clients, ..everyone };
            let export = Export::new(definition, ExportId(1), FileSystemId(1));
            let found = match export.client(machine, &names) {
                MatchedClient::Client(client) => client.client.to_string(),
                MatchedClient::Nobody => "nobody".into(),
                MatchedClient::Unknown(NameQuery::Addresses(host)) => format!("wait for {host}"),
                MatchedClient::Unknown(other) => panic!("{other:?}"),
            };
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_directory_that_is_exported_for_itself_is_no_mount_however_handles_are_found() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("outer/inner")).unwrap();
        let definition = |name: &str, handles: HandleChoice| {
            let path = top.path().join(name);
            let options =
                LocalOptions { handles, table: Some(top.path().join("table")), ..LocalOptions::default() };
            let vfs = Arc::new(LocalVfs::open(&path, &options).unwrap());
            let path = path.to_str().unwrap().as_bytes().to_vec();
            ExportDefinition::for_everyone(path, vfs, ExportRules::default())
        };
        let exports = [("outer", HandleChoice::Table), ("outer/inner", HandleChoice::Auto)];
        let exports = exports.into_iter().zip(1..).map(|((name, handles), number)| {
            Export::new(definition(name, handles), ExportId(number), FileSystemId(1))
        });
        let names =
            NameServiceCache::new(Box::new(SystemNames), Arc::new(AtomicU64::new(1)), TimeSource::System);
        let exports = Exports::new(exports.collect(), Arc::new(names), SystemTime::UNIX_EPOCH);
        assert!(exports.iter().all(|export| export.parent_export().is_none()));
    }
}
