//! What is exported, to whom, and by which rules (exports(5)).
//!
//! From text to decision: `parser` reads a file into lines, `options` parses what is in
//! parentheses, `clients` the clients that a line names; the binary opens the directories and
//! passes in [`ExportDefinition`]s; `table` decides who may use which export, and how; `names`
//! caches the answers of name services. A [`table::Exports`] never changes: a reload makes another
//! one, and decisions by the old one are recognised by its generation. Must not know requests or
//! procedures.

mod clients;
mod current;
mod explain;
mod files;
mod groups;
mod name_service_cache;
mod option_table;
mod options;
mod parser;
mod pattern;
mod rules;
pub(crate) mod subtree;
mod table;
mod text;

use std::sync::Arc;

use curt_vfs::Vfs;

pub use clients::{ClientSpec, ClientSpecError, ClientSpecKind, IpNetwork};
pub use current::ExportsDifference;
pub(crate) use current::ExportsTable;
pub use explain::{ExportExplanation, explain};
pub use files::{EXPORTS_DIRECTORY, EXPORTS_FILE, read_exports};
pub(crate) use groups::ManagedGroups;
pub use name_service_cache::{NameService, SystemNames};
pub use option_table::{OPTIONS, OptionSupport};
pub use options::{MountPoint, Options};
pub use parser::{EXPORTS_MAX, ExportsEntry, ExportsProblem, FileLine, ParsedExports, Severity};
pub(crate) use rules::Flavor as CredentialFlavor;
pub use rules::{ExportRules, Flavor, RulesByFlavor, Squash};
pub(crate) use table::{Export, ExportDecision, MatchedClient};

/// A tree that is to be exported.
pub struct ExportDefinition {
    /// The path that clients mount: absolute, its bytes as clients must send them.
    pub path: Vec<u8>,
    /// Another path by which clients may mount it: where the first leads, if there are symbolic
    /// links on the way.
    pub canonical_path: Option<Vec<u8>>,
    /// The tree.
    pub vfs: Arc<dyn Vfs>,
    /// Who may use it, and how.
    pub clients: Vec<ExportClient>,
    /// Its identity, instead of the file system's own (`fsid=`).
    pub fsid: Option<Fsid>,
    /// Whether EXPORT lists it: not if it is only entered from another (`crossmnt`).
    pub listed: bool,
}

impl ExportDefinition {
    /// A tree that everybody may use under the same rules.
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

/// Who may use an export, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportClient {
    /// Who.
    pub client: ClientSpec,
    /// How.
    pub rules: RulesByFlavor,
    /// The rules as exports(5) writes them; empty if they were not read from a file.
    pub options: String,
}

/// An export's identity, whatever device it is on (`fsid=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fsid {
    /// A number; 0 is `root`.
    Number(u32),
    /// A UUID.
    Uuid([u8; 16]),
}

impl Fsid {
    /// The fsid that clients see: a UUID is folded as knfsd does, both halves by exclusive or.
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

    /// The key under which the state keeps the file system's number: FNV-1a over its kind and its
    /// bytes, so that it is unlikely to equal a file system's own identity.
    pub(crate) fn identity(self) -> u64 {
        let (kind, bytes) = match self {
            Self::Number(number) => (b"fsid=number:", u128::from(number).to_be_bytes()),
            Self::Uuid(bytes) => (b"fsid=uuid:::", bytes),
        };
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        kind.iter().chain(&bytes).fold(0xcbf2_9ce4_8422_2325, step)
    }
}
