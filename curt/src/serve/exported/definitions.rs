//! Converts entries of exports(5) to exports: resolves their directories, and the mounts below
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use curt_server::{
    ExportClient, ExportDefinition, ExportRules, ExportsEntry, ExportsProblem, MountPoint, Options,
    ParsedExports, Severity, Squash, have_room_for_parents,
};
use curt_vfs::{MetadataDurability, NodeHandle, OnlyUser, Vfs as _};

use super::{
    mounts::MountedFileSystems,
    trees::{OpenTreeError, OpenTrees, TreeEntrance},
};

/// Maximum number of file systems mounted below exports that are entered.
const ENTERED_MAX: usize = 1024;

/// The result of resolving entries.
#[derive(Default)]
pub(super) struct ResolvedExports {
    /// Exports that can be served.
    pub(super) definitions: Vec<ExportDefinition>,
    /// Entries that cannot, and why.
    pub(super) problems: Vec<ExportsProblem>,
}

/// The path by which each directory is exported.
#[derive(Default)]
pub(super) struct DirectoryClaims<'p>(BTreeMap<PathBuf, &'p ExportsEntry>);

impl<'p> DirectoryClaims<'p> {
    /// Returns whether no other path refers to this directory; otherwise adds a problem.
    pub(super) fn claim(
        &mut self,
        place: &Path,
        entry: &'p ExportsEntry,
        problems: &mut Vec<ExportsProblem>,
    ) -> bool {
        let Some(first) = self.0.get(place) else {
            self.0.insert(place.to_owned(), entry);
            return true;
        };
        let message = format!(
            "{} already exports this directory as {}: list it once, by one path",
            first.place,
            first.path.escape_ascii()
        );
        problems.push(about(entry, Severity::Error, &message));
        false
    }
}

/// The clients of one path.
pub(super) struct PathEntries<'p> {
    /// The path as written.
    path: &'p [u8],
    entries: Vec<&'p ExportsEntry>,
}

/// The entries by path, in the order of the paths' first occurrence.
pub(super) fn groups(parsed: &ParsedExports) -> Vec<PathEntries<'_>> {
    let mut groups: Vec<PathEntries<'_>> = Vec::new();
    let mut at = std::collections::HashMap::new();
    for entry in &parsed.entries {
        let index = *at.entry(entry.path.as_slice()).or_insert(groups.len());
        match groups.get_mut(index) {
            Some(group) => group.entries.push(entry),
            None => groups.push(PathEntries { path: &entry.path, entries: vec![entry] }),
        }
    }
    groups
}

impl<'p> PathEntries<'p> {
    /// The resolved path, and the clients that are served now. Adds problems.
    pub(super) fn resolve_path(
        &self,
        mounts: &MountedFileSystems,
        problems: &mut Vec<ExportsProblem>,
    ) -> Option<(PathBuf, Vec<&'p ExportsEntry>)> {
        let path = Path::new(std::ffi::OsStr::from_bytes(self.path));
        let first = self.entries.first()?;
        let place = match std::fs::canonicalize(path) {
            Ok(place) if place.is_dir() => place,
            Ok(_) => {
                problems.push(about(first, Severity::Error, "not a directory: export its parent"));
                return None;
            }
            Err(error) => {
                problems.push(about(first, Severity::Error, &absent(&error)));
                return None;
            }
        };
        let mut served = Vec::new();
        for entry in &self.entries {
            let needed = entry.options.mount_point().map(|point| match point {
                MountPoint::Itself => place.clone(),
                MountPoint::At(path) => OsString::from_vec(path.clone()).into(),
            });
            match needed.filter(|needed| !is_mounted(mounts, needed)) {
                None => served.push(*entry),
                Some(needed) => {
                    let message = format!(
                        "nothing is mounted at {}: not exported to {} until then",
                        needed.display(),
                        entry.client
                    );
                    problems.push(about(entry, Severity::Warning, &message));
                }
            }
        }
        (!served.is_empty()).then_some((place, served))
    }
}

fn is_mounted(mounts: &MountedFileSystems, directory: &Path) -> bool {
    std::fs::canonicalize(directory).is_ok_and(|place| mounts.is_mounted(&place))
}

fn absent(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such directory: not served until a reload finds it".into(),
        _ => format!("cannot be exported: {error}"),
    }
}

fn about(entry: &ExportsEntry, severity: Severity, message: &str) -> ExportsProblem {
    ExportsProblem {
        severity,
        place: entry.place.clone(),
        word: entry.path.escape_ascii().to_string(),
        message: message.to_owned(),
    }
}

/// Whether any entry depends on mounts. A file system that is exported with `nohide` is found by
/// its mount.
pub(super) fn depend_on_mounts(parsed: &ParsedExports) -> bool {
    let mut options = parsed.entries.iter().map(|entry| &entry.options);
    options.any(|options| options.crosses_mounts() || options.is_nohide() || options.mount_point().is_some())
}

/// The exports of the entries, with their directories open; once these are served, `trees` must be
/// finished ([`OpenTrees::finish`]).
pub(super) fn resolve<'p>(
    parsed: &'p ParsedExports,
    mounts: &MountedFileSystems,
    trees: &mut OpenTrees,
) -> ResolvedExports {
    trees.begin();
    let mut meaning = ResolvedExports::default();
    let mut used = BTreeSet::new();
    let mut claims = DirectoryClaims::default();
    let mut entered = Vec::new();
    for group in groups(parsed) {
        let Some((place, served)) = group.resolve_path(mounts, &mut meaning.problems) else {
            continue;
        };
        let is_alone = |entry: &&'p ExportsEntry| claims.claim(&place, entry, &mut meaning.problems);
        if !served.first().is_some_and(is_alone) {
            continue;
        }
        match define(&group, &place, &served, trees) {
            Ok(definition) => {
                let options = served.iter().map(|entry| (*entry, &entry.options));
                if let Some(problem) = without_room(options, &definition.vfs.root()) {
                    meaning.problems.push(problem);
                    continue;
                }
                meaning.definitions.push(definition);
            }
            Err(error) => {
                meaning.problems.extend(
                    served
                        .first()
                        .map(|entry| about(entry, Severity::Error, &format!("cannot be exported: {error}"))),
                );
                continue;
            }
        }
        if served.iter().any(|entry| entry.options.crosses_mounts()) {
            entered.push((place.clone(), served));
        }
        used.insert(place);
    }
    // A mount belongs to the innermost of several exports with `crossmnt`.
    entered.sort_by(|(one, _), (other, _)| other.cmp(one));
    for (place, above) in entered {
        enter(&place, &above, mounts, trees, &mut used, &mut meaning);
    }
    meaning
}

fn define(
    group: &PathEntries<'_>,
    place: &Path,
    served: &[&ExportsEntry],
    trees: &mut OpenTrees,
) -> Result<ExportDefinition, OpenTreeError> {
    let vfs =
        trees.tree(place, durability(served.iter().map(|entry| &entry.options)), TreeEntrance::ByPath)?;
    let only_user = vfs.only_user();
    let client = |entry: &&ExportsEntry| client(entry, entry.options.clone(), only_user);
    let place = place.as_os_str().as_bytes();
    Ok(ExportDefinition {
        path: group.path.to_vec(),
        canonical_path: (place != group.path).then(|| place.to_vec()),
        vfs,
        clients: served.iter().map(client).collect(),
        fsid: served.first().and_then(|entry| entry.options.fsid()),
        listed: true,
    })
}

/// Adds file systems mounted below an export that have no entry of their own.
fn enter(
    place: &Path,
    above: &[&ExportsEntry],
    mounts: &MountedFileSystems,
    trees: &mut OpenTrees,
    used: &mut BTreeSet<PathBuf>,
    meaning: &mut ResolvedExports,
) {
    let crossing: Vec<&&ExportsEntry> = above.iter().filter(|entry| entry.options.crosses_mounts()).collect();
    let options: Vec<Options> = crossing.iter().map(|entry| entry.options.for_submount()).collect();
    for point in mounts.below(place) {
        if used.contains(&point) {
            continue;
        }
        if used.len() >= ENTERED_MAX {
            let message =
                format!("more than {ENTERED_MAX} file systems are mounted below: the others stay hidden");
            meaning.problems.extend(crossing.first().map(|entry| about(entry, Severity::Warning, &message)));
            return;
        }
        match trees.tree(&point, durability(options.iter()), TreeEntrance::FromAbove) {
            Ok(vfs) => {
                let lines = crossing.iter().map(|entry| **entry).zip(&options);
                if let Some(problem) = without_room(lines, &vfs.root()) {
                    meaning.problems.push(problem);
                    continue;
                }
                let only_user = vfs.only_user();
                let clients = crossing.iter().zip(&options);
                meaning.definitions.push(ExportDefinition {
                    path: point.as_os_str().as_bytes().to_vec(),
                    canonical_path: None,
                    vfs,
                    clients: clients
                        .map(|(entry, options)| client(entry, options.clone(), only_user))
                        .collect(),
                    fsid: None,
                    listed: false,
                });
                used.insert(point);
            }
            Err(error) => {
                let message = format!("what is mounted at {} is not entered: {error}", point.display());
                meaning
                    .problems
                    .extend(crossing.first().map(|entry| about(entry, Severity::Error, &message)));
            }
        }
    }
}

/// The problem that handles of a tree have no room for `subtree_check`, if an entry requires it.
fn without_room<'o>(
    mut lines: impl Iterator<Item = (&'o ExportsEntry, &'o Options)>,
    root: &NodeHandle,
) -> Option<ExportsProblem> {
    let (entry, _) = lines.find(|(_, options)| options.checks_subtree())?;
    let message =
        "cannot be exported: the file system's handles are too long for subtree_check: use no_subtree_check";
    (!have_room_for_parents(root)).then(|| about(entry, Severity::Error, message))
}

/// When changes of names and attributes are stable: at once, unless all entries have `async`.
fn durability<'o>(mut options: impl Iterator<Item = &'o Options>) -> MetadataDurability {
    if options.all(Options::is_async) { MetadataDurability::Eventual } else { MetadataDurability::Stable }
}

/// `only_user` is the only user for a process that may not change its ids: all callers are then
/// mapped to that user.
fn client(entry: &ExportsEntry, options: Options, only_user: Option<OnlyUser>) -> ExportClient {
    let rules = options.rules();
    let rules = match only_user {
        None => rules,
        Some(OnlyUser { uid, gid }) => rules.map(|rules| ExportRules {
            squash: Squash::All,
            anonymous_uid: uid,
            anonymous_gid: gid,
            ..rules
        }),
    };
    ExportClient { client: entry.client.clone(), rules, options: options.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails may panic")]
mod tests {
    use curt_vfs::HandleScheme;

    use super::*;

    #[test]
    fn a_line_whose_handles_would_be_too_long_is_reported() {
        let mut parsed = ParsedExports::default();
        let text = b"/a *(ro)\n/b one(ro) two(ro,subtree_check)\n";
        parsed.read(Path::new("exports"), text);
        let problem = |path: &[u8], length: usize| {
            let root = NodeHandle::new(HandleScheme::Kernel, 1, &vec![1; length]).unwrap();
            let entries = parsed.entries.iter().filter(|entry| entry.path == path);
            without_room(entries.map(|entry| (entry, &entry.options)), &root)
                .map(|problem| problem.to_string())
        };
        assert_eq!((problem(b"/a", 22), problem(b"/b", 21)), (None, None));
        let message = problem(b"/b", 22).unwrap();
        assert!(message.starts_with("exports:2: error: /b: cannot be exported"), "{message}");
    }
}
