//! The operations by a `Vfs`.

use std::ops::ControlFlow;

use curt_types::{Access, Device, SetAttributes, SetTime, Stability, Timestamp};
use curt_vfs::{CreateMode, Error, FsCred, NewNode, NodeHandle, ReaddirDetail, SpecialFile, Vfs};
use rustix::io::Errno;

use super::Operation::*;
use super::{Case, EXACTLY, Operation, Outcome};
use crate::trees::{ReadBytes as _, Tree};

/// `d` with the file `f`, the file `g`, the empty directory `e`, and next to `d` the open directory
/// `o`.
pub(super) fn by_vfs(
    tree: &Tree,
    name: &str,
    case: &Case,
    caller: &FsCred<'_>,
    operation: Operation,
) -> Outcome {
    let vfs = &*tree.vfs;
    let root = FsCred::ROOT;
    let plain = SetAttributes::with_mode(0o777);
    let make_directory = |directory: &NodeHandle, name: &[u8]| {
        vfs.make(&root, directory, name, NewNode::Directory(&plain)).value.unwrap().node.handle
    };
    let make_file = |directory: &NodeHandle, name: &[u8]| {
        vfs.create(&root, directory, name, CreateMode::Guarded(&plain)).value.unwrap().node.handle
    };
    let top = make_directory(&tree.root(), name.as_bytes());
    let other = make_directory(&top, b"o");
    let d = make_directory(&top, b"d");
    let (f, g, e) = (make_file(&d, b"f"), make_file(&d, b"g"), make_directory(&d, b"e"));
    let give = |node: &NodeHandle, uid, gid, mode| {
        let owner = SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() };
        tree.set(&root, node, &owner).value.unwrap();
        tree.set(&root, node, &SetAttributes::with_mode(mode)).value.unwrap();
    };
    for node in [&f, &g] {
        give(node, case.file_uid, case.file_gid, case.file_mode);
    }
    give(&e, case.file_uid, case.file_gid, case.file_mode | 0o111);
    give(&d, case.directory_uid, 1000, case.directory_mode);
    let value = act(vfs, caller, operation, (&d, &f, &other));
    let errno = value.err().map(|error| error.errno().unwrap());
    let triple = |node: curt_types::Attributes| (node.mode, node.uid, node.gid);
    let made = vfs.lookup(&root, &d, b"new").value.ok().map(|node| triple(node.attributes));
    Outcome { errno, file: vfs.attributes(&f).ok().map(triple), made }
}

fn act(
    vfs: &dyn Vfs,
    caller: &FsCred<'_>,
    operation: Operation,
    (d, f, other): (&NodeHandle, &NodeHandle, &NodeHandle),
) -> Result<(), Error> {
    let mode = SetAttributes::with_mode(0o6771);
    let special = |special| vfs.make(caller, d, b"new", NewNode::Special(special, &mode)).value.map(|_| ());
    match operation {
        Lookup => vfs.lookup(caller, d, b"f").value.map(|_| ()),
        List => {
            let listed =
                vfs.read_directory(caller, d, 0, ReaddirDetail::Names, &mut |_| ControlFlow::Continue(()));
            listed.value.map(|_| ())
        }
        Create => vfs.create(caller, d, b"new", CreateMode::Guarded(&mode)).value.map(|_| ()),
        MakeDirectory => vfs.make(caller, d, b"new", NewNode::Directory(&mode)).value.map(|_| ()),
        MakeSymlink => vfs.make(caller, d, b"new", NewNode::Symlink(b"f", &mode)).value.map(|_| ()),
        MakeFifo => special(SpecialFile::Fifo),
        MakeDevice => special(SpecialFile::CharacterDevice(Device { major: 1, minor: 3 })),
        Remove => vfs.remove(caller, d, b"f").value,
        RemoveDirectory => vfs.remove_directory(caller, d, b"e").value,
        Rename => vfs.rename(caller, d, b"f", other, b"new").value,
        RenameOver => vfs.rename(caller, d, b"f", d, b"g").value,
        MoveDirectory => vfs.rename(caller, d, b"e", other, b"e").value,
        Link => vfs.link(caller, f, d, b"new").directory.value,
        _ => act_on_file(vfs, caller, operation, f),
    }
}

fn act_on_file(
    vfs: &dyn Vfs,
    caller: &FsCred<'_>,
    operation: Operation,
    f: &NodeHandle,
) -> Result<(), Error> {
    let set = |set: &SetAttributes| vfs.set_attributes(caller, f, set, None).value;
    let access = |right| match vfs.access(caller, f, right).value {
        Ok(granted) if granted == right => Ok(()),
        Ok(_) => Err(Errno::ACCESS.into()),
        Err(error) => Err(error),
    };
    let nothing = SetAttributes::default();
    let time = SetTime::Time(Timestamp::new(EXACTLY, 0));
    match operation {
        Read => vfs.read(caller, f, 0, 1, &mut Vec::new()).value.map(|_| ()),
        Write => vfs.write(caller, f, 0, b"x", Stability::Unstable).value.map(|_| ()),
        Truncate => set(&SetAttributes { size: Some(3), ..nothing }),
        Chmod => set(&SetAttributes::with_mode(0o6711)),
        ChownToOneself => set(&SetAttributes { uid: Some(caller.uid), ..nothing }),
        ChgrpToOneself => set(&SetAttributes { gid: Some(caller.gid), ..nothing }),
        TouchNow => set(&SetAttributes { atime: SetTime::ServerTime, mtime: SetTime::ServerTime, ..nothing }),
        TouchExactly => set(&SetAttributes { atime: time, mtime: time, ..nothing }),
        AccessRead => access(Access::READ),
        AccessWrite => access(Access::MODIFY),
        AccessExecute => access(Access::EXECUTE),
        _ => unreachable!("it is about a name"),
    }
}
