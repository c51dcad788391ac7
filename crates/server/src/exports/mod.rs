//! Exports, their clients and their rules (exports(5)).
//!
//! From text to decision: `parser` reads a file into lines, `options` parses the list in
//! parentheses, `clients` the clients of a line; the binary opens the directories and passes in
//! [`ExportDefinition`]s; `table` decides which client may use which export, and by which rules;
//! `name_service_cache` caches the answers of name services. A [`table::Exports`] never changes: a
//! reload makes another one, and the generation distinguishes decisions by the old one. This module
//! does not depend on requests or procedures.

mod clients;
mod escape;
mod explain;
mod files;
mod groups;
mod name_service_cache;
mod option_table;
mod options;
mod parser;
mod pattern;
mod pseudo_tree;
mod reload;
mod rules;
pub(crate) mod subtree;
mod table;

use std::sync::Arc;

use curt_vfs::Vfs;

pub use clients::{ClientSpec, ClientSpecError, ClientSpecKind, IpNetwork};
pub use explain::{ExportExplanation, explain};
pub use files::{EXPORTS_DIRECTORY, EXPORTS_FILE, read_exports};
pub(crate) use groups::ManagedGroups;
pub use name_service_cache::{NameService, SystemNames};
pub use options::{MountPoint, Options};
pub use parser::{EXPORTS_MAX, ExportsEntry, ExportsProblem, FileLine, ParsedExports, Severity};
pub(crate) use pseudo_tree::{PseudoDirectory, PseudoId, PseudoTree};
pub use reload::ExportsDifference;
pub(crate) use reload::ExportsTable;
pub use rules::{CredentialFlavor, ExportRules, RulesByFlavor, Squash};
pub(crate) use table::{Export, ExportDecision, Exports, MatchedClient};

/// A tree to be exported.
pub struct ExportDefinition {
    /// The path that clients mount: absolute, its bytes as clients must send them.
    pub path: Vec<u8>,
    /// Another path by which clients may mount it: the first path with its symbolic links resolved.
    pub canonical_path: Option<Vec<u8>>,
    /// The tree.
    pub vfs: Arc<dyn Vfs>,
    /// Its clients and their rules.
    pub clients: Vec<ExportClient>,
    /// Its configured identity, which replaces the file system's own (`fsid=`).
    pub fsid: Option<Fsid>,
    /// Whether EXPORT lists it: no if it is only entered from another (`crossmnt`).
    pub listed: bool,
}

impl ExportDefinition {
    /// A tree that all clients may use under the same rules.
    #[must_use]
    pub fn for_everyone(path: Vec<u8>, vfs: Arc<dyn Vfs>, rules: ExportRules) -> Self {
        Self {
            path,
            canonical_path: None,
            vfs,
            clients: vec![ExportClient::everyone(rules)],
            fsid: None,
            listed: true,
        }
    }
}

/// A client of an export and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportClient {
    /// The client.
    pub client: ClientSpec,
    /// Its rules, for each flavour.
    pub rules: RulesByFlavor,
    /// The rules as written in exports(5); empty if they were not read from a file.
    pub options: String,
}

/// An export's configured identity, independent of its device (`fsid=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fsid {
    /// A number; 0 is `root`.
    Number(u32),
    /// A UUID.
    Uuid([u8; 16]),
}

impl Fsid {
    /// The fsid that clients see: a UUID is folded as knfsd does, by exclusive or of its halves.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Number(number) => number.into(),
            Self::Uuid(bytes) => {
                let number = u128::from_be_bytes(bytes);
                let [high, low] = [number >> 64, number & u128::from(u64::MAX)];
                u64::try_from(high ^ low).unwrap_or(u64::MAX)
            }
        }
    }

    /// The key of the file system's number in the state: FNV-1a over its kind and its bytes, so
    /// that it is unlikely to equal the identity of another file system.
    pub(crate) fn identity(self) -> u64 {
        let (kind, bytes) = match self {
            Self::Number(number) => (b"fsid=number:", u128::from(number).to_be_bytes()),
            Self::Uuid(bytes) => (b"fsid=uuid:::", bytes),
        };
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        kind.iter().chain(&bytes).fold(0xcbf2_9ce4_8422_2325, step)
    }
}
