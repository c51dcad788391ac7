//! What is exported, and by which rules.
//!
//! Exports come from the command line in this version; a file of them is to become another way to the same
//! [`ExportDefinition`]s, with rules that differ per client: whoever needs an export's rules asks
//! [`Export::rules_for`].

use std::net::SocketAddr;
use std::sync::Arc;

use curt_vfs::Vfs;

use crate::file_handle::{ExportId, FileSystemId};

/// Whose ids are replaced by the anonymous ones (exports(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// Those of uid 0 and gid 0 (`root_squash`).
    #[default]
    Root,
    /// Nobody's (`no_root_squash`).
    None,
    /// Everybody's (`all_squash`).
    All,
}

/// What clients may do with an export (exports(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportRules {
    /// Nothing can be changed (`ro`).
    pub read_only: bool,
    /// Whose ids are replaced.
    pub squash: Squash,
    /// The user that squashed callers become (`anonuid`).
    pub anonymous_uid: u32,
    /// The group that squashed callers become (`anongid`).
    pub anonymous_gid: u32,
    /// Only requests from ports below 1024 are served (`secure`): then it takes root on the client's machine to
    /// choose one's uid.
    pub secure_ports: bool,
}

impl Default for ExportRules {
    /// The defaults of exports(5), but writable: `rw,root_squash,anonuid=65534,anongid=65534,secure`.
    fn default() -> Self {
        Self {
            read_only: false,
            squash: Squash::Root,
            anonymous_uid: 65_534,
            anonymous_gid: 65_534,
            secure_ports: true,
        }
    }
}

/// A tree that is to be exported.
pub struct ExportDefinition {
    /// The path that clients mount: absolute, its bytes as clients must send them.
    pub path: Vec<u8>,
    /// The tree.
    pub vfs: Arc<dyn Vfs>,
    /// The rules.
    pub rules: ExportRules,
}

/// An export in service.
pub(crate) struct Export {
    pub(crate) id: ExportId,
    pub(crate) file_system: FileSystemId,
    /// The path, one component each.
    components: Vec<Vec<u8>>,
    path: Vec<u8>,
    pub(crate) vfs: Arc<dyn Vfs>,
    rules: ExportRules,
}

impl Export {
    pub(crate) fn new(definition: ExportDefinition, id: ExportId, file_system: FileSystemId) -> Self {
        let components = components(&definition.path).map(<[u8]>::to_vec).collect();
        let ExportDefinition { path, vfs, rules } = definition;
        Self {
            id,
            file_system,
            components,
            path,
            vfs,
            rules,
        }
    }

    /// The rules for a client, or none if the export is closed to it.
    pub(crate) fn rules_for(&self, client: SocketAddr) -> Option<&ExportRules> {
        let port_suits = !self.rules.secure_ports || client.port() < 1024;
        port_suits.then_some(&self.rules)
    }

    /// Whether clients would name both alike.
    pub(crate) fn is_at_the_path_of(&self, other: &Self) -> bool {
        self.components == other.components
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.path
    }
}

/// The exports, found by number or by path.
pub(crate) struct Exports(Vec<Export>);

impl Exports {
    pub(crate) const fn new(exports: Vec<Export>) -> Self {
        Self(exports)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Export> {
        self.0.iter()
    }

    pub(crate) fn by_id(&self, id: ExportId) -> Option<&Export> {
        self.0.iter().find(|export| export.id == id)
    }

    /// The export that a path lies in (the innermost), and the components below its root.
    pub(crate) fn by_path<'p>(&self, path: &'p [u8]) -> Option<(&Export, Vec<&'p [u8]>)> {
        let wanted: Vec<&[u8]> = components(path).collect();
        let within = |export: &&Export| {
            wanted.len() >= export.components.len()
                && export
                    .components
                    .iter()
                    .zip(&wanted)
                    .all(|(own, asked)| own == asked)
        };
        let export = self
            .0
            .iter()
            .filter(within)
            .max_by_key(|export| export.components.len())?;
        let below = wanted.into_iter().skip(export.components.len()).collect();
        Some((export, below))
    }
}

/// A path's components; doubled and trailing slashes and "." count for nothing.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use curt_vfs::{MemoryOptions, MemoryVfs};

    use super::*;

    fn exports(paths: &[&str]) -> Exports {
        let vfs: Arc<dyn Vfs> = Arc::new(MemoryVfs::new(MemoryOptions::default()));
        let list = (1u32..).zip(paths).map(|(id, path)| {
            let path = path.as_bytes().to_vec();
            let definition = ExportDefinition {
                path,
                vfs: Arc::clone(&vfs),
                rules: ExportRules::default(),
            };
            Export::new(definition, ExportId(id), FileSystemId(1))
        });
        Exports::new(list.collect())
    }

    #[test]
    fn the_innermost_export_around_a_path_is_found() {
        let exports = exports(&["/srv", "/srv/data/", "/home"]);
        let find = |path: &str| {
            let (export, below) = exports.by_path(path.as_bytes())?;
            Some((export.id.0, below.join(&b'/')))
        };
        assert_eq!(find("/srv"), Some((1, b"".to_vec())));
        assert_eq!(find("/srv/"), Some((1, b"".to_vec())));
        assert_eq!(find("//srv/./x//y/"), Some((1, b"x/y".to_vec())));
        assert_eq!(find("/srv/data"), Some((2, b"".to_vec())));
        assert_eq!(find("/srv/data/a"), Some((2, b"a".to_vec())));
        assert_eq!(find("/srv/datum"), Some((1, b"datum".to_vec())));
        for outside in ["/", "", "/sr", "/srvx", "/home2", "/etc"] {
            assert_eq!(find(outside), None, "{outside}");
        }
    }

    #[test]
    fn secure_exports_are_closed_to_ports_from_1024_on() {
        let exports = exports(&["/"]);
        let export = exports.by_id(ExportId(1)).unwrap();
        assert!(export.rules_for("10.0.0.1:1023".parse().unwrap()).is_some());
        assert!(export.rules_for("10.0.0.1:1024".parse().unwrap()).is_none());
        assert!(exports.by_id(ExportId(2)).is_none());
    }
}
