//! The operations of all programs under one dense index, for tables that have a row for each.

use std::borrow::Cow;
use std::fmt;

use crate::mount3::{self, MountProcedure};
use crate::nfs3::{self, NfsProcedure};
use crate::nfs4::{self, CallbackOperation, Nfs4Operation, Nfs4Procedure};
use crate::nlm4::{self, NlmProcedure};
use crate::nsm::{self, NsmProcedure};

/// Declares the procedures of a program: number and name of each, with what its documentation says.
macro_rules! procedures {
    (
        $(#[$outer:meta])* $table:ident, $prefix:literal;
        $($variant:ident = $number:literal, $name:literal $(, $meaning:literal)?;)*
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $table {
            $(#[doc = concat!($prefix, $name, $(": ", $meaning,)? ".")] $variant = $number,)*
        }

        impl $table {
            /// Every procedure, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            /// The RFC's name, without its prefix.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The procedure with this number, if there is one.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }
        }
    };
}

pub(crate) use procedures;

/// An operation that a client requests of a server, or with a callback a server of a client, in any
/// program and version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A procedure of NFSv3.
    Nfs3(NfsProcedure),
    /// A procedure of MOUNT; its numbers are the same in versions 1 and 3.
    Mount(MountProcedure),
    /// A procedure of NLM version 4.
    Nlm(NlmProcedure),
    /// A procedure of NSM.
    Nsm(NsmProcedure),
    /// A procedure of NFSv4.
    Nfs4Procedure(Nfs4Procedure),
    /// An operation of a compound of NFSv4.
    Nfs4(Nfs4Operation),
    /// An operation of a callback compound of NFSv4.
    Callback(CallbackOperation),
}

impl Operation {
    /// How many there are: indices are below it.
    pub const COUNT: usize = Self::CALLBACK + CallbackOperation::ALL.len();
    /// The index of MOUNT's first.
    const MOUNT: usize = NfsProcedure::ALL.len();
    /// The index of NLM's first.
    const NLM: usize = Self::MOUNT + MountProcedure::ALL.len();
    /// The index of NSM's first.
    const NSM: usize = Self::NLM + NlmProcedure::ALL.len();
    /// The index of NFSv4's first procedure.
    const NFS4_PROCEDURE: usize = Self::NSM + NsmProcedure::ALL.len();
    /// The index of NFSv4's first operation.
    const NFS4: usize = Self::NFS4_PROCEDURE + Nfs4Procedure::ALL.len();
    /// The index of the first callback.
    const CALLBACK: usize = Self::NFS4 + Nfs4Operation::ALL.len();

    /// The operation that a call asks for, if it is known.
    #[must_use]
    pub fn of_call(program: u32, version: u32, procedure: u32) -> Option<Self> {
        match (program, version) {
            (nfs3::PROGRAM, nfs3::VERSION) => Self::nfs3(procedure),
            (mount3::PROGRAM, mount3::VERSION | mount3::VERSION_1) => {
                MountProcedure::from_number(procedure).map(Self::Mount)
            }
            (nlm4::PROGRAM, nlm4::VERSION) => NlmProcedure::from_number(procedure).map(Self::Nlm),
            (nfs4::PROGRAM, nfs4::VERSION) => Nfs4Procedure::from_number(procedure).map(Self::Nfs4Procedure),
            (nsm::PROGRAM, nsm::VERSION) => NsmProcedure::from_number(procedure).map(Self::Nsm),
            _ => None,
        }
    }

    /// The procedure of NFSv3 with this number, if there is one.
    #[must_use]
    pub fn nfs3(number: u32) -> Option<Self> {
        NfsProcedure::from_number(number).map(Self::Nfs3)
    }

    /// Procedures and operations of NFSv4, in the order of their indices.
    pub fn nfs4() -> impl Iterator<Item = Self> + Clone {
        let procedures = Nfs4Procedure::ALL.into_iter().map(Self::Nfs4Procedure);
        procedures.chain(Nfs4Operation::ALL.into_iter().map(Self::Nfs4))
    }

    /// The operations of NFSv3, in the order of their numbers: those that a client's statistics
    /// of NFS list.
    pub fn nfs() -> impl Iterator<Item = Self> + Clone {
        NfsProcedure::ALL.into_iter().map(Self::Nfs3)
    }

    /// The procedures of NLM, in the order of their numbers.
    pub fn nlm() -> impl Iterator<Item = Self> + Clone {
        NlmProcedure::ALL.into_iter().map(Self::Nlm)
    }

    /// Whether it requests a byte-range lock, in whatever version of NFS.
    #[must_use]
    pub const fn is_lock(self) -> bool {
        matches!(self, Self::Nlm(NlmProcedure::Lock) | Self::Nfs4(Nfs4Operation::Lock))
    }

    /// Whether it releases a byte-range lock.
    #[must_use]
    pub const fn is_unlock(self) -> bool {
        matches!(self, Self::Nlm(NlmProcedure::Unlock) | Self::Nfs4(Nfs4Operation::Locku))
    }

    /// The operation of the NFS program with this name, in upper or lower case.
    #[must_use]
    pub fn nfs_named(name: &str) -> Option<Self> {
        Self::nfs().find(|operation| operation.name().eq_ignore_ascii_case(name))
    }

    /// Its row in a table that has one for each.
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Nfs3(procedure) => procedure as usize,
            Self::Mount(procedure) => Self::MOUNT + procedure as usize,
            Self::Nlm(procedure) => Self::NLM + procedure.index(),
            Self::Nsm(procedure) => Self::NSM + procedure as usize,
            Self::Nfs4Procedure(procedure) => Self::NFS4_PROCEDURE + procedure as usize,
            Self::Nfs4(operation) => Self::NFS4 + operation.index(),
            Self::Callback(operation) => Self::CALLBACK + operation.index(),
        }
    }

    /// Whether it reads data, in whatever version of NFS.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            Self::Nfs3(NfsProcedure::Read) | Self::Nfs4(Nfs4Operation::Read | Nfs4Operation::ReadPlus)
        )
    }

    /// Whether it writes data.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Nfs3(NfsProcedure::Write) | Self::Nfs4(Nfs4Operation::Write))
    }

    /// Whether it requests attributes alone.
    #[must_use]
    pub const fn is_getattr(self) -> bool {
        matches!(self, Self::Nfs3(NfsProcedure::Getattr) | Self::Nfs4(Nfs4Operation::Getattr))
    }

    /// Whether it looks a name up.
    #[must_use]
    pub const fn is_lookup(self) -> bool {
        matches!(
            self,
            Self::Nfs3(NfsProcedure::Lookup) | Self::Nfs4(Nfs4Operation::Lookup | Nfs4Operation::Lookupp)
        )
    }

    /// Whether it asks for the caller's rights.
    #[must_use]
    pub const fn is_access(self) -> bool {
        matches!(self, Self::Nfs3(NfsProcedure::Access) | Self::Nfs4(Nfs4Operation::Access))
    }

    /// Whether it lists names with attributes, as far as its version has an operation for that.
    #[must_use]
    pub const fn is_listing_with_attributes(self) -> bool {
        matches!(self, Self::Nfs3(NfsProcedure::ReaddirPlus) | Self::Nfs4(Nfs4Operation::Readdir))
    }

    /// The RFC's name, without a prefix. Operations of different programs and versions may have
    /// the same name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nfs3(procedure) => procedure.name(),
            Self::Mount(procedure) => procedure.name(),
            Self::Nlm(procedure) => procedure.name(),
            Self::Nsm(procedure) => procedure.name(),
            Self::Nfs4Procedure(procedure) => procedure.name(),
            Self::Nfs4(operation) => operation.name(),
            Self::Callback(operation) => operation.name(),
        }
    }

    /// The key of its statistics in JSON: no two operations have the same. Operations of NFSv3 have
    /// their names (`READ`). Those of other programs and later versions have these as prefix
    /// (`MOUNT.NULL`, `NFSv4.READ`).
    #[must_use]
    pub fn key(self) -> Cow<'static, str> {
        match self {
            Self::Nfs3(procedure) => procedure.name().into(),
            Self::Mount(procedure) => format!("MOUNT.{}", procedure.name()).into(),
            Self::Nlm(procedure) => format!("NLM.{}", procedure.name()).into(),
            Self::Nsm(procedure) => format!("NSM.{}", procedure.name()).into(),
            Self::Nfs4Procedure(_) | Self::Nfs4(_) | Self::Callback(_) => {
                format!("NFSv4.{}", self.name()).into()
            }
        }
    }

    /// The operation of NFS or NLM with this key, if it is known.
    #[must_use]
    pub fn from_key(key: &str) -> Option<Self> {
        Self::nfs().chain(Self::nlm()).chain(Self::nfs4()).find(|operation| operation.key() == key)
    }
}

impl From<Nfs4Operation> for Operation {
    fn from(operation: Nfs4Operation) -> Self {
        Self::Nfs4(operation)
    }
}

impl From<NfsProcedure> for Operation {
    fn from(procedure: NfsProcedure) -> Self {
        Self::Nfs3(procedure)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.key())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_operation_has_a_key_of_its_own() {
        let mount = MountProcedure::ALL.map(Operation::Mount);
        let nlm = NlmProcedure::ALL.map(Operation::Nlm);
        let nsm = NsmProcedure::ALL.map(Operation::Nsm);
        let callbacks = CallbackOperation::ALL.map(Operation::Callback);
        let all = Operation::nfs().chain(mount).chain(nlm).chain(nsm);
        let all = all.chain(Operation::nfs4()).chain(callbacks);
        let keys: HashSet<_> = all.map(Operation::key).collect();
        assert_eq!(keys.len(), Operation::COUNT);
        for operation in Operation::nfs().chain(Operation::nlm()).chain(Operation::nfs4()) {
            assert_eq!(Operation::from_key(&operation.key()), Some(operation));
        }
        assert_eq!((Operation::from_key("NFSv5.READ"), Operation::from_key("read")), (None, None));
        assert_eq!(Operation::from_key("NFSv4.READ"), Some(Nfs4Operation::Read.into()));
        let null = [Operation::Nfs3(NfsProcedure::Null), Operation::Mount(MountProcedure::Null)];
        assert_eq!(null.map(|operation| operation.to_string()), ["NULL", "MOUNT.NULL"]);
    }

    #[test]
    fn indices_are_dense_and_calls_lead_to_them() {
        let mount = MountProcedure::ALL.map(Operation::Mount);
        let locks = NlmProcedure::ALL.map(Operation::Nlm).into_iter();
        let locks = locks.chain(NsmProcedure::ALL.map(Operation::Nsm));
        let callbacks = CallbackOperation::ALL.map(Operation::Callback);
        let all = Operation::nfs().chain(mount).chain(locks).chain(Operation::nfs4()).chain(callbacks);
        let indices: Vec<_> = all.map(Operation::index).collect();
        assert_eq!(indices, (0..Operation::COUNT).collect::<Vec<_>>());
        let read = Operation::of_call(nfs3::PROGRAM, nfs3::VERSION, 6);
        assert_eq!(read, Operation::nfs_named("read"));
        assert_eq!(read.map(Operation::name), Some("READ"));
        let mnt = Some(Operation::Mount(MountProcedure::Mount));
        assert_eq!(Operation::of_call(mount3::PROGRAM, mount3::VERSION_1, 1), mnt);
        let free_all = Some(Operation::Nlm(NlmProcedure::FreeAll));
        assert_eq!(Operation::of_call(nlm4::PROGRAM, nlm4::VERSION, 23), free_all);
        let notify = Some(Operation::Nsm(NsmProcedure::Notify));
        assert_eq!(Operation::of_call(nsm::PROGRAM, nsm::VERSION, 6), notify);
        for (program, version, procedure) in [
            (nlm4::PROGRAM, nlm4::VERSION, 16),
            (nlm4::PROGRAM, nlm4::VERSION, 24),
            (nlm4::PROGRAM, 3, 1),
            (nsm::PROGRAM, nsm::VERSION, 7),
            (nfs3::PROGRAM, nfs3::VERSION, 22),
            (nfs4::PROGRAM, nfs4::VERSION, 2),
            (mount3::PROGRAM, mount3::VERSION, 6),
            (100_000, 2, 1),
        ] {
            assert_eq!(Operation::of_call(program, version, procedure), None);
        }
    }
}
