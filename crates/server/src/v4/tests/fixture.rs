//! A server with two exports and a client with a session, and objects of each type.

use std::cell::Cell;
use std::sync::Arc;

use curt_proto::nfs4::*;
use curt_types::{Attributes, Device, SetAttributes, Timestamp};
use curt_vfs::{
    CreateMode, FsCred, LocalOptions, LocalVfs, MemoryOptions, MemoryVfs, NewNode, SpecialFile, Vfs,
};
use curt_xdr::{Encode, Opaque};
use tempfile::TempDir;

use super::test_client::{Server, compound, export, rules, user};
use crate::{ExportDefinition, ExportRules};

pub(super) const NOW: Timestamp = Timestamp::new(1_000_000, 7);

/// A name in export 1 and the type of its object.
pub(super) const OBJECTS: [(&str, Ftype4); 7] = [
    ("file", Ftype4::Regular),
    ("directory", Ftype4::Directory),
    ("block", Ftype4::BlockDevice),
    ("character", Ftype4::CharacterDevice),
    ("link", Ftype4::Symlink),
    ("socket", Ftype4::Socket),
    ("fifo", Ftype4::Fifo),
];

/// A server over trees in memory, and a client of it.
pub(super) struct Fixture {
    server: Server,
    vfs: Arc<dyn Vfs>,
    uid: Cell<u32>,
    minor_version: u32,
    session: SessionId,
    sequence: Cell<u32>,
}

/// The reply to a compound that began with SEQUENCE.
pub(super) struct Reply(Vec<u8>);

impl Reply {
    /// The status of the compound.
    pub(super) fn status(&self) -> NfsStat4 {
        self.results().header().status
    }

    /// The results after SEQUENCE.
    pub(super) fn results(&self) -> CompoundResults<'_> {
        let mut results = CompoundResults::new(&self.0).unwrap();
        results.next::<SequenceOk4>(Nfs4Operation::Sequence).unwrap();
        results
    }

    /// The results after SEQUENCE, PUTROOTFH and `lookups` LOOKUPs.
    pub(super) fn after(&self, lookups: usize) -> CompoundResults<'_> {
        let mut results = self.results();
        results.next::<()>(Nfs4Operation::Putrootfh).unwrap();
        for _ in 0..lookups {
            results.next::<()>(Nfs4Operation::Lookup).unwrap();
        }
        results
    }
}

pub(super) fn name(name: &str) -> Component<'_> {
    bytes(name.as_bytes())
}

pub(super) fn bytes(name: &[u8]) -> Component<'_> {
    Opaque::new(name).unwrap()
}

/// Makes the object at a path the current filehandle.
pub(super) fn go(compound: &mut CompoundEncoder<'_>, path: &[&str]) {
    compound.bare(Nfs4Operation::Putrootfh);
    for step in path {
        compound.push(&LookupArgs4 { name: name(step) });
    }
}

impl Fixture {
    pub(super) fn new() -> Self {
        Self::with_minor(1)
    }

    pub(super) fn with_minor(minor_version: u32) -> Self {
        Self::over(in_memory(), minor_version, rules())
    }

    /// With these rules for export 1.
    pub(super) fn with_rules(rules: ExportRules) -> Self {
        Self::over(in_memory(), 1, rules)
    }

    /// Runs a test with a tree in memory and, if this user may make devices, with a local
    /// directory.
    pub(super) fn with_each_tree(test: impl Fn(&Self)) {
        test(&Self::new());
        if rustix::process::geteuid().is_root() {
            let directory = TempDir::new().unwrap();
            let vfs = LocalVfs::open(directory.path(), &LocalOptions::default()).unwrap();
            test(&Self::over(Arc::new(vfs), 1, rules()));
        }
    }

    pub(super) fn over(vfs: Arc<dyn Vfs>, minor_version: u32, rules_of_one: ExportRules) -> Self {
        make_objects(&*vfs);
        let exports = vec![
            ExportDefinition::for_everyone(b"/one".to_vec(), Arc::clone(&vfs), rules_of_one),
            export("/deep/two", 2, rules()),
        ];
        let server = Server::with(exports);
        let session = server.client("client").session;
        // The first request was RECLAIM_COMPLETE.
        Self { server, vfs, uid: Cell::new(0), minor_version, session, sequence: Cell::new(2) }
    }

    /// Sets the caller of later compounds.
    pub(super) fn become_user(&self, uid: u32) {
        self.uid.set(uid);
    }

    /// Executes a compound after SEQUENCE.
    pub(super) fn run(&self, build: impl Fn(&mut CompoundEncoder<'_>)) -> Reply {
        Reply(self.server.raw(user(self.uid.get()), &self.encoded(build)))
    }

    /// Runs a compound with a last operation of any number, and bytes as its arguments.
    pub(super) fn run_number(
        &self,
        build: impl Fn(&mut CompoundEncoder<'_>),
        number: u32,
        arguments: &[u8],
    ) -> Reply {
        let mut encoded = self.encoded(|compound| {
            build(compound);
            compound.bare(Nfs4Operation::Illegal);
        });
        let before = encoded.len() - 4;
        encoded.truncate(before);
        encoded.extend_from_slice(&number.to_be_bytes());
        encoded.extend_from_slice(arguments);
        Reply(self.server.raw(user(self.uid.get()), &encoded))
    }

    /// The arguments of a compound that begins with SEQUENCE.
    fn encoded(&self, build: impl Fn(&mut CompoundEncoder<'_>)) -> Vec<u8> {
        let sequence = self.sequence.get();
        self.sequence.set(sequence + 1);
        let sequence = SequenceArgs4 {
            session: self.session,
            sequence: SequenceId(sequence),
            slot: SlotId(0),
            highest_slot: SlotId(0),
            cache_this: false,
        };
        compound(self.minor_version, &|compound| {
            compound.push(&sequence);
            build(compound);
        })
    }

    /// The status of a compound that executes an operation on the object at a path.
    pub(super) fn on(&self, path: &[&str], arguments: &impl OperationArguments) -> NfsStat4 {
        self.run(|compound| {
            go(compound, path);
            compound.push(arguments);
        })
        .status()
    }

    /// The result of an operation that has a saved filehandle too.
    pub(super) fn on_both(
        &self,
        saved: &[&str],
        current: &[&str],
        arguments: &impl OperationArguments,
    ) -> NfsStat4 {
        self.run(|compound| {
            go(compound, saved);
            compound.bare(Nfs4Operation::Savefh);
            go(compound, current);
            compound.push(arguments);
        })
        .status()
    }

    /// The attributes of an object of export 1, as its tree has them.
    pub(super) fn attributes(&self, name: &str) -> Attributes {
        let root = FsCred::new(0, 0, &[]);
        self.vfs.lookup(&root, &self.vfs.root(), name.as_bytes()).value.unwrap().attributes
    }

    /// Passes the attributes that GETATTR returns of the object at a path to `check`.
    pub(super) fn getattr<R>(
        &self,
        path: &[&str],
        mask: Bitmap4,
        check: impl FnOnce(&AttributeValues<'_>, Bitmap4) -> R,
    ) -> R {
        let reply = self.run(|compound| {
            go(compound, path);
            compound.push(&GetattrArgs4 { attributes: mask });
        });
        let mut results = reply.after(path.len());
        let got: GetattrOk4<'_> = results.next(Nfs4Operation::Getattr).unwrap();
        check(&AttributeValues::decode(&got.attributes).unwrap(), got.attributes.mask)
    }
}

fn in_memory() -> Arc<dyn Vfs> {
    let options = MemoryOptions { clock: Arc::new(|| NOW), instance: 1, ..MemoryOptions::default() };
    Arc::new(MemoryVfs::new(options))
}

fn make_objects(vfs: &dyn Vfs) {
    let (root, caller) = (vfs.root(), FsCred::new(0, 0, &[]));
    let set = SetAttributes::with_mode(0o755);
    let device = Device { major: 1, minor: 2 };
    for (name, kind) in OBJECTS {
        let node = match kind {
            Ftype4::Regular => NewNode::File(CreateMode::Guarded(&set)),
            Ftype4::Directory => NewNode::Directory(&set),
            Ftype4::BlockDevice => NewNode::Special(SpecialFile::BlockDevice(device), &set),
            Ftype4::CharacterDevice => NewNode::Special(SpecialFile::CharacterDevice(device), &set),
            Ftype4::Symlink => NewNode::Symlink(b"file", &set),
            Ftype4::Socket => NewNode::Special(SpecialFile::Socket, &set),
            _ => NewNode::Special(SpecialFile::Fifo, &set),
        };
        vfs.make(&caller, &root, name.as_bytes(), node).value.unwrap();
    }
}

/// Attributes to be set or compared.
pub(super) fn fattr<R>(values: &AttributeValues<'_>, then: impl FnOnce(Fattr4<'_>) -> R) -> R {
    let mask = values.present();
    let mut encoded = Vec::new();
    values.encode_values(mask, &mut encoded);
    then(Fattr4 { mask, values: Opaque::new(&encoded).unwrap() })
}

/// The bytes of a value.
pub(super) fn bytes_of(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}
