//! Random operations by random callers, on a tree in memory and on a local tree: all results must
//! be the same. Each is the model of the other. The local tree is restarted from time to time.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use curt_types::{Access, Attributes, FileKind, SetAttributes, SetTime, Stability};
use curt_vfs::{
    CreateMode, Error, FsCred, HandleChoice, LookupUse, NewNode, NodeHandle, ReaddirDetail, SpecialFile, Vfs,
    VfsNode,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use crate::trees::{OTHER, OWNER, Place, ROOT, ReadBytes as _, disk, is_root, memory, tmpfs};

const CALLERS: [FsCred<'static>; 4] =
    [ROOT, OWNER, OTHER, FsCred { uid: 3000, gid: 3000, groups: &[1000], privileged: false }];

/// Selects one of the objects seen so far.
type Which = prop::sample::Index;

#[derive(Clone, Debug)]
enum Operation {
    Create(Which, u8, u32, u8),
    MakeDirectory(Which, u8, u32),
    MakeSymlink(Which, u8),
    MakeFifo(Which, u8, u32),
    Remove(Which, u8),
    RemoveDirectory(Which, u8),
    Rename(Which, u8, Which, u8),
    Link(Which, Which, u8),
    Lookup(Which, u8),
    List(Which, u8),
    Read(Which, u16, u16),
    Write(Which, u16, u16, u8),
    Resize(Which, u16),
    Chmod(Which, u32),
    Chown(Which, u8, u8),
    Touch(Which),
    Access(Which),
    Restart,
}

fn operation() -> impl Strategy<Value = Operation> {
    let which = any::<Which>;
    let name = || 0..5_u8;
    let found = || 0..7_u8;
    let mode = || {
        prop_oneof![Just(0o755_u32), Just(0o644), Just(0o1777), Just(0o2775), Just(0o6711), 0..0o10000_u32]
    };
    prop_oneof![
        6 => (which(), name(), mode(), 0..3_u8).prop_map(|(d, n, m, how)| Operation::Create(d, n, m, how)),
        4 => (which(), name(), mode()).prop_map(|(d, n, m)| Operation::MakeDirectory(d, n, m)),
        1 => (which(), name()).prop_map(|(d, n)| Operation::MakeSymlink(d, n)),
        1 => (which(), name(), mode()).prop_map(|(d, n, m)| Operation::MakeFifo(d, n, m)),
        2 => (which(), name()).prop_map(|(d, n)| Operation::Remove(d, n)),
        2 => (which(), name()).prop_map(|(d, n)| Operation::RemoveDirectory(d, n)),
        4 => (which(), name(), which(), name()).prop_map(|(d, n, e, m)| Operation::Rename(d, n, e, m)),
        2 => (which(), which(), name()).prop_map(|(f, d, n)| Operation::Link(f, d, n)),
        4 => (which(), found()).prop_map(|(d, n)| Operation::Lookup(d, n)),
        2 => (which(), 1..9_u8).prop_map(|(d, piece)| Operation::List(d, piece)),
        4 => (which(), 0..20_000_u16, any::<u16>()).prop_map(|(f, at, count)| Operation::Read(f, at, count)),
        6 => (which(), 0..20_000_u16, 0..9_000_u16, any::<u8>()).prop_map(|(f, at, n, b)| Operation::Write(f, at, n, b)),
        2 => (which(), 0..25_000_u16).prop_map(|(f, size)| Operation::Resize(f, size)),
        3 => (which(), mode()).prop_map(|(f, m)| Operation::Chmod(f, m)),
        2 => (which(), 0..5_u8, 0..5_u8).prop_map(|(f, u, g)| Operation::Chown(f, u, g)),
        1 => which().prop_map(Operation::Touch),
        2 => which().prop_map(Operation::Access),
        1 => Just(Operation::Restart),
    ]
}

/// Attributes that both trees must return alike.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    kind: FileKind,
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    size: u64,
}

impl Shown {
    fn of(attributes: &Attributes) -> Self {
        let sized = matches!(attributes.kind, FileKind::Regular | FileKind::Symlink);
        Self {
            kind: attributes.kind,
            mode: attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            size: if sized { attributes.size } else { 0 },
        }
    }
}

/// The result of an operation.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    value: Result<Told, Error>,
    /// The attributes of each object of the operation afterwards.
    after: Vec<Option<Shown>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Made(bool),
    Found,
    Bytes(Vec<u8>, bool),
    Count(u32),
    Names(BTreeSet<Vec<u8>>),
    Rights(u32),
}

/// One of the two trees, with the objects seen so far, in the same order in both.
struct Side {
    vfs: Box<dyn Vfs>,
    seen: Vec<NodeHandle>,
}

impl Side {
    fn new(vfs: Box<dyn Vfs>) -> Self {
        let root = vfs.root();
        let open = SetAttributes::with_mode(0o777);
        vfs.set_attributes(&ROOT, &root, &open, None).value.unwrap();
        Self { vfs, seen: vec![root] }
    }

    fn at(&self, which: &Which) -> NodeHandle {
        *which.get(&self.seen)
    }

    fn see(&mut self, handle: NodeHandle) {
        if !self.seen.contains(&handle) {
            self.seen.push(handle);
        }
    }

    fn perform(&mut self, caller: &FsCred<'_>, operation: &Operation) -> Answer {
        match operation {
            Operation::Create(..)
            | Operation::MakeDirectory(..)
            | Operation::MakeSymlink(..)
            | Operation::MakeFifo(..)
            | Operation::Lookup(..) => self.make_or_find(caller, operation),
            Operation::Remove(..)
            | Operation::RemoveDirectory(..)
            | Operation::Rename(..)
            | Operation::Link(..) => self.name(caller, operation),
            Operation::List(directory, piece) => self.list(caller, &self.at(directory), *piece),
            Operation::Restart => Answer { value: Ok(Told::Nothing), after: vec![] },
            _ => self.file(caller, operation),
        }
    }

    fn make_or_find(&mut self, caller: &FsCred<'_>, operation: &Operation) -> Answer {
        let value = match operation {
            Operation::Create(directory, name, mode, how) => {
                let set =
                    SetAttributes { size: (how % 2 == 1).then_some(5), ..SetAttributes::with_mode(*mode) };
                let mode = match how {
                    0 => CreateMode::Guarded(&set),
                    1 => CreateMode::Unchecked(&set),
                    _ => CreateMode::Exclusive([*name; 8]),
                };
                self.vfs.create(caller, &self.at(directory), name_of(*name), mode)
            }
            Operation::MakeDirectory(directory, name, mode) => {
                let set = SetAttributes::with_mode(*mode);
                self.vfs.make(caller, &self.at(directory), name_of(*name), NewNode::Directory(&set))
            }
            Operation::MakeSymlink(directory, name) => {
                let set = SetAttributes::with_mode(0o777);
                self.vfs.make(caller, &self.at(directory), name_of(*name), NewNode::Symlink(b"../a", &set))
            }
            Operation::MakeFifo(directory, name, mode) => {
                let set = SetAttributes::with_mode(*mode);
                self.vfs.make(
                    caller,
                    &self.at(directory),
                    name_of(*name),
                    NewNode::Special(SpecialFile::Fifo, &set),
                )
            }
            Operation::Lookup(directory, name) => {
                let found = self.vfs.lookup(caller, &self.at(directory), name_of(*name));
                if !matches!(name_of(*name), b"." | b"..") {
                    self.compare_children(caller, &self.at(directory), name_of(*name), &found.value);
                }
                let mut after = vec![found.attributes.as_ref().map(Shown::of)];
                let value = found.value.map(|node| {
                    self.see(node.handle);
                    after.push(Some(Shown::of(&node.attributes)));
                    Told::Found
                });
                return Answer { value, after };
            }
            _ => unreachable!("it makes nothing"),
        };
        let mut after = vec![value.after.as_ref().map(Shown::of)];
        let value = value.value.map(|created| {
            self.see(created.node.handle);
            after.push(Some(Shown::of(&created.node.attributes)));
            Told::Made(created.new)
        });
        Answer { value, after }
    }

    /// The other ways to look a name up must find the same.
    fn compare_children(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &[u8],
        expected: &Result<VfsNode, Error>,
    ) {
        let handle =
            |found: &Result<VfsNode, Error>| found.as_ref().map(|node| node.handle).map_err(|error| *error);
        for wanted in [LookupUse::Object, LookupUse::Name] {
            if let Some(found) = self.vfs.lookup_child(caller, directory, name, wanted, false) {
                assert_eq!(handle(&found.value), handle(expected), "{wanted:?}");
            }
        }
    }

    fn name(&self, caller: &FsCred<'_>, operation: &Operation) -> Answer {
        let (value, after) = match operation {
            Operation::Remove(directory, name) => {
                let changed = self.vfs.remove(caller, &self.at(directory), name_of(*name));
                (changed.value, vec![changed.after])
            }
            Operation::RemoveDirectory(directory, name) => {
                let changed = self.vfs.remove_directory(caller, &self.at(directory), name_of(*name));
                (changed.value, vec![changed.after])
            }
            Operation::Rename(from, from_name, to, to_name) => {
                let (from, to) = (self.at(from), self.at(to));
                let renamed = self.vfs.rename(caller, &from, name_of(*from_name), &to, name_of(*to_name));
                (renamed.value, vec![renamed.from.after, renamed.to.after])
            }
            Operation::Link(node, directory, name) => {
                let linked = self.vfs.link(caller, &self.at(node), &self.at(directory), name_of(*name));
                (linked.directory.value, vec![linked.directory.after, linked.node])
            }
            _ => unreachable!("it changes no name"),
        };
        let after = after.iter().map(|attributes| attributes.as_ref().map(Shown::of)).collect();
        Answer { value: value.map(|()| Told::Nothing), after }
    }

    fn file(&self, caller: &FsCred<'_>, operation: &Operation) -> Answer {
        let vfs = &*self.vfs;
        let (value, after) = match operation {
            Operation::Read(which, offset, count) => {
                let file = self.at(which);
                // Reading from a disk sets the atime, and with it an exclusive create's verifier.
                if vfs.attributes(&file).is_ok_and(|attributes| attributes.size == 0) {
                    return Answer { value: Ok(Told::Nothing), after: vec![] };
                }
                let mut data = Vec::new();
                let read = vfs.read(caller, &file, u64::from(*offset), u32::from(*count), &mut data);
                (read.value.map(|read| Told::Bytes(data, read.eof)), read.attributes)
            }
            Operation::Write(which, offset, count, byte) => {
                let data = vec![*byte; usize::from(*count)];
                let stability = if byte % 4 == 0 { Stability::FileSync } else { Stability::Unstable };
                let written = vfs.write(caller, &self.at(which), u64::from(*offset), &data, stability);
                (written.value.map(|written| Told::Count(written.count)), written.after)
            }
            Operation::Access(which) => {
                let granted = vfs.access(caller, &self.at(which), Access::from_bits(0x3f));
                (granted.value.map(|granted| Told::Rights(granted.bits())), granted.attributes)
            }
            _ => return self.set(caller, operation),
        };
        Answer { value, after: vec![after.as_ref().map(Shown::of)] }
    }

    fn set(&self, caller: &FsCred<'_>, operation: &Operation) -> Answer {
        let nothing = SetAttributes::default();
        let id = |number: u8| [None, Some(0), Some(1000), Some(2000), Some(3000)][usize::from(number)];
        let (which, set) = match operation {
            Operation::Resize(which, size) => {
                (which, SetAttributes { size: Some(u64::from(*size)), ..nothing })
            }
            Operation::Chmod(which, mode) => (which, SetAttributes::with_mode(*mode)),
            Operation::Chown(which, uid, gid) => {
                (which, SetAttributes { uid: id(*uid), gid: id(*gid), ..nothing })
            }
            Operation::Touch(which) => (which, SetAttributes { mtime: SetTime::ServerTime, ..nothing }),
            _ => unreachable!("it sets nothing"),
        };
        let changed = self.vfs.set_attributes(caller, &self.at(which), &set, None);
        let after = vec![changed.after.as_ref().map(Shown::of)];
        Answer { value: changed.value.map(|()| Told::Nothing), after }
    }

    fn list(&self, caller: &FsCred<'_>, directory: &NodeHandle, piece: u8) -> Answer {
        let (mut names, mut cookie, mut after) = (BTreeSet::new(), 0, None);
        loop {
            let mut left = piece;
            let listed =
                self.vfs.read_directory(caller, directory, cookie, ReaddirDetail::Nodes, &mut |entry| {
                    if left == 0 {
                        return ControlFlow::Break(());
                    }
                    left -= 1;
                    cookie = entry.cookie;
                    assert!(names.insert(entry.name.to_vec()), "{:?} is listed twice", entry.name);
                    ControlFlow::Continue(())
                });
            after = listed.attributes.as_ref().map(Shown::of).or(after);
            match listed.value {
                Ok(true) => {
                    return Answer { value: Ok(Told::Names(names)), after: vec![after] };
                }
                Ok(false) => {}
                Err(error) => {
                    return Answer { value: Err(error), after: vec![after] };
                }
            }
        }
    }
}

fn name_of(number: u8) -> &'static [u8] {
    [&b"a"[..], b"b", b"c", b"d", b"e", b".", b".."][usize::from(number)]
}

fn run(place: &Place, operations: &[(usize, Operation)]) -> Result<(), TestCaseError> {
    let mut model = Side::new(memory().vfs);
    let mut local = Side::new(Box::new(place.serve()));
    for (number, (caller, operation)) in operations.iter().enumerate() {
        let caller = CALLERS[*caller];
        let expected = model.perform(&caller, operation);
        if matches!(operation, Operation::Restart) {
            let seen = std::mem::take(&mut local.seen);
            drop(local);
            local = Side { vfs: Box::new(place.serve()), seen };
        }
        let answer = local.perform(&caller, operation);
        prop_assert_eq!(&answer, &expected, "number {}: {:?} by {:?}", number, operation, caller);
        prop_assert_eq!(model.seen.len(), local.seen.len(), "number {}: {:?}", number, operation);
    }
    for (handle, twin) in model.seen.iter().zip(&local.seen) {
        let shown =
            |side: &Side, handle| side.vfs.attributes(handle).map(|attributes| Shown::of(&attributes));
        prop_assert_eq!(shown(&model, handle), shown(&local, twin));
    }
    Ok(())
}

fn explore(cases: u32, parent: &Path, choice: HandleChoice) {
    if !is_root() {
        return;
    }
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let operations = prop::collection::vec((0..CALLERS.len(), operation()), 1..200);
    let explored = TestRunner::new(config).run(&operations, |operations| {
        // On its own thread, because it changes the thread's credentials.
        let place = Place::new(parent, choice);
        std::thread::scope(|scope| scope.spawn(|| run(&place, &operations)).join().unwrap())
    });
    match explored {
        Ok(()) => {}
        // On one line: there may be two hundred of them.
        Err(TestError::Fail(reason, operations)) => panic!("{reason}\nafter {operations:?}"),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn memory_and_tmpfs_by_handle_answer_alike() {
    explore(300, tmpfs(), HandleChoice::Kernel);
}

#[test]
fn memory_and_a_disk_by_handle_answer_alike() {
    explore(60, disk(), HandleChoice::Kernel);
}

#[test]
fn memory_and_tmpfs_by_table_answer_alike() {
    explore(60, tmpfs(), HandleChoice::Table);
}
