//! The options of one client of an export: the list in parentheses in exports(5), its defaults, and
//! its text, which can be parsed again.

use std::fmt;

use arrayvec::ArrayVec;

use super::Fsid;
use super::escape::escape;
use super::rules::{CredentialFlavor, ExportRules, RulesByFlavor, Squash};

/// The options of one client of an export that have an effect. Options that are only accepted are
/// not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The rules for all flavours, but for those of [`FlavorOptions`].
    pub(super) common: ExportRules,
    /// The options for flavours without their own.
    pub(super) defaults: FlavorOptions,
    /// The flavours of `sec=`, each with the options after it; empty without `sec=`.
    pub(super) flavors: ArrayVec<(CredentialFlavor, FlavorOptions), 2>,
    pub(super) fsid: Option<Fsid>,
    pub(super) mount_point: Option<MountPoint>,
}

/// The options that may differ between flavours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlavorOptions {
    pub(super) read_only: bool,
    pub(super) root_squash: bool,
    pub(super) all_squash: bool,
}

/// The directory that must be a mount point for an export to be served (`mountpoint`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountPoint {
    /// The export itself.
    Itself,
    /// This directory.
    At(Vec<u8>),
}

impl Default for Options {
    /// The defaults of exports(5):
    /// `ro,sync,root_squash,no_all_squash,secure,hide,no_subtree_check`.
    fn default() -> Self {
        Self {
            common: ExportRules::default(),
            defaults: FlavorOptions { read_only: true, root_squash: true, all_squash: false },
            flavors: ArrayVec::new(),
            fsid: None,
            mount_point: None,
        }
    }
}

impl Options {
    /// The rules for a client's requests.
    #[must_use]
    pub fn rules(&self) -> RulesByFlavor {
        if self.flavors.is_empty() {
            return RulesByFlavor::without_sec(self.rules_with(self.defaults));
        }
        let each = self.flavors.iter();
        RulesByFlavor::with_sec(each.map(|(flavor, own)| (*flavor, self.rules_with(*own))).collect())
    }

    fn rules_with(&self, permission: FlavorOptions) -> ExportRules {
        let squash = match permission {
            FlavorOptions { all_squash: true, .. } => Squash::All,
            FlavorOptions { root_squash: true, .. } => Squash::Root,
            FlavorOptions { .. } => Squash::None,
        };
        ExportRules { read_only: permission.read_only, squash, ..self.common }
    }

    /// The configured identity of the export, if any (`fsid=`).
    #[must_use]
    pub const fn fsid(&self) -> Option<Fsid> {
        self.fsid
    }

    /// The directory that must be a mount point for the export to be served (`mountpoint`).
    #[must_use]
    pub const fn mount_point(&self) -> Option<&MountPoint> {
        self.mount_point.as_ref()
    }

    /// Whether clients can enter file systems that are mounted below the export (`crossmnt`).
    #[must_use]
    pub const fn crosses_mounts(&self) -> bool {
        self.common.crossmnt
    }

    /// Whether each request checks the location of its file (`subtree_check`).
    #[must_use]
    pub const fn checks_subtree(&self) -> bool {
        self.common.subtree_check
    }

    /// Whether clients can enter it from the export in which it is mounted (`nohide`).
    #[must_use]
    pub const fn is_nohide(&self) -> bool {
        self.common.nohide
    }

    /// Whether replies are sent before changes are on stable storage (`async`).
    #[must_use]
    pub const fn is_async(&self) -> bool {
        self.common.asynchronous
    }

    /// The options of a file system that is mounted below: all but those that apply only to the
    /// export itself.
    #[must_use]
    pub fn for_submount(&self) -> Self {
        Self { fsid: None, mount_point: None, ..self.clone() }
    }
}

impl FlavorOptions {
    fn words(self) -> [&'static str; 3] {
        let choose = |is, yes, no| if is { yes } else { no };
        [
            choose(self.read_only, "ro", "rw"),
            choose(self.root_squash, "root_squash", "no_root_squash"),
            choose(self.all_squash, "all_squash", "no_all_squash"),
        ]
    }
}

impl fmt::Display for Options {
    /// All options, defaults included, as written in exports(5).
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choose = |is, yes, no| if is { yes } else { no };
        let mut words: Vec<String> = self.defaults.words().map(str::to_owned).into();
        words.extend(
            [
                choose(self.common.asynchronous, "async", "sync"),
                choose(self.common.secure_ports, "secure", "insecure"),
                choose(self.common.subtree_check, "subtree_check", "no_subtree_check"),
                choose(self.common.nohide, "nohide", "hide"),
            ]
            .map(str::to_owned),
        );
        words.extend(self.common.crossmnt.then(|| "crossmnt".to_owned()));
        words.extend((!self.common.readdirplus).then(|| "nordirplus".to_owned()));
        words.extend(self.common.insecure_locks.then(|| "insecure_locks".to_owned()));
        words.push(format!("anonuid={}", self.common.anonymous_uid));
        words.push(format!("anongid={}", self.common.anonymous_gid));
        words.extend(self.fsid.map(|fsid| format!("fsid={fsid}")));
        words.extend(self.mount_point.as_ref().map(|point| match point {
            MountPoint::Itself => "mountpoint".to_owned(),
            MountPoint::At(path) => format!("mountpoint={}", escape(path)),
        }));
        for (flavor, permission) in &self.flavors {
            words.push(format!("sec={}", flavor.word()));
            words.extend(permission.words().map(str::to_owned));
        }
        formatter.write_str(&words.join(","))
    }
}

impl fmt::Display for Fsid {
    /// The options as written in exports(5).
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(0) => formatter.write_str("root"),
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Uuid(bytes) => {
                for (at, byte) in bytes.iter().enumerate() {
                    let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
                    write!(formatter, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}
