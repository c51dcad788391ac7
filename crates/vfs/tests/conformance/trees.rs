//! The trees that are tested, and short forms of operations on them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use curt_types::{Attributes, SetAttributes, Stability};
use curt_vfs::{
    CreateMode, CreatedNode, Error, FetchOptions, FetchResult, FsCred, HandleChoice, LocalOptions, LocalVfs,
    MemoryOptions, MemoryVfs, MetadataDurability, NewNode, NodeHandle, PostOpResult, ReadResult,
    ReaddirDetail, Vfs, VfsNode, WccResult,
};
use rustix::io::Errno;
use tempfile::TempDir;

pub(crate) const ROOT: FsCred<'static> = FsCred::ROOT;
pub(crate) const OWNER: FsCred<'static> = FsCred { uid: 1000, gid: 1000, groups: &[], privileged: false };
pub(crate) const OTHER: FsCred<'static> = FsCred { uid: 2000, gid: 2000, groups: &[], privileged: false };

/// [`Vfs::fetch`] that may wait and copies.
pub(crate) trait ReadBytes: Vfs {
    fn read(
        &self,
        caller: &FsCred<'_>,
        node: &NodeHandle,
        offset: u64,
        count: u32,
        data: &mut Vec<u8>,
    ) -> PostOpResult<ReadResult> {
        let how = FetchOptions { sendfile: false, wait: true };
        let fetched = self.fetch(caller, node, offset, count, how, data).expect("it may wait");
        let value = fetched.value.map(|fetched| match fetched {
            FetchResult::Copied(read) => read,
            FetchResult::FileRange(_) => panic!("a range was not requested"),
        });
        PostOpResult { attributes: fetched.attributes, value }
    }
}

impl<T: Vfs + ?Sized> ReadBytes for T {}

/// A tree, and its directory on disk.
pub(crate) struct Tree {
    pub(crate) name: &'static str,
    pub(crate) vfs: Box<dyn Vfs>,
    pub(crate) place: Option<Place>,
}

/// A directory to serve, and the options to serve it again.
pub(crate) struct Place {
    pub(crate) served: PathBuf,
    pub(crate) choice: HandleChoice,
    beside: TempDir,
}

impl Place {
    pub(crate) fn new(parent: &Path, choice: HandleChoice) -> Self {
        let beside = tempfile::Builder::new().prefix("curt-vfs").tempdir_in(parent).unwrap();
        let served = beside.path().join("served");
        std::fs::create_dir(&served).unwrap();
        Self { served, choice, beside }
    }

    /// Opens it, for the first time or after a restart.
    pub(crate) fn serve(&self) -> LocalVfs {
        let options = LocalOptions {
            handles: self.choice,
            table: Some(self.beside.path().join("table")),
            metadata: MetadataDurability::Eventual,
            ..LocalOptions::default()
        };
        LocalVfs::open(&self.served, &options).unwrap()
    }
}

impl Drop for Place {
    /// A thread with another caller's credentials may not be able to remove the files: it becomes
    /// root again.
    fn drop(&mut self) {
        if let Ok(vfs) = LocalVfs::open(self.beside.path(), &LocalOptions::default()) {
            let as_root = vfs.lookup(&ROOT, &vfs.root(), b".");
            assert!(as_root.value.is_ok() || std::thread::panicking());
        }
    }
}

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("local trees are left out: not root");
    }
    root
}

/// A file system on a disk, and one in memory.
pub(crate) fn disk() -> &'static Path {
    Path::new("/var/tmp")
}

pub(crate) fn tmpfs() -> &'static Path {
    Path::new("/dev/shm")
}

pub(crate) fn memory() -> Tree {
    Tree { name: "memory", vfs: Box::new(MemoryVfs::new(MemoryOptions::default())), place: None }
}

pub(crate) fn local(name: &'static str, parent: &Path, choice: HandleChoice) -> Tree {
    let place = Place::new(parent, choice);
    Tree { name, vfs: Box::new(place.serve()), place: Some(place) }
}

/// A new tree of each kind.
pub(crate) fn all() -> Vec<Tree> {
    let mut trees = vec![memory()];
    if is_root() {
        trees.push(local("disk by handle", disk(), HandleChoice::Kernel));
        trees.push(local("disk by table", disk(), HandleChoice::Table));
        trees.push(local("tmpfs by handle", tmpfs(), HandleChoice::Kernel));
        trees.push(local("tmpfs by table", tmpfs(), HandleChoice::Table));
    }
    trees
}

/// Runs a test on each kind of tree, on its own thread, because it changes the thread's
/// credentials.
pub(crate) fn everywhere(claim: impl Fn(&Tree) + Sync) {
    for tree in all() {
        std::thread::scope(|scope| {
            let tried = scope.spawn(|| claim(&tree)).join();
            assert!(tried.is_ok(), "on {}", tree.name);
        });
    }
}

pub(crate) fn errno<T>(value: Result<T, Error>) -> Option<Errno> {
    match value {
        Ok(_) => None,
        Err(Error::Os(errno)) => Some(errno),
        Err(error) => panic!("no errno: {error}"),
    }
}

impl Tree {
    pub(crate) fn root(&self) -> NodeHandle {
        self.vfs.root()
    }

    pub(crate) fn attributes(&self, handle: &NodeHandle) -> Attributes {
        self.vfs.attributes(handle).unwrap()
    }

    /// A regular file, created by root for [`OWNER`].
    pub(crate) fn file(&self, directory: &NodeHandle, name: &str, mode: u32) -> VfsNode {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let made = self.vfs.create(&ROOT, directory, name.as_bytes(), CreateMode::Guarded(&set));
        let node = made.value.unwrap().node;
        self.give_away(&node.handle, mode)
    }

    /// A directory, created by root for [`OWNER`].
    pub(crate) fn directory(&self, directory: &NodeHandle, name: &str, mode: u32) -> VfsNode {
        let set = SetAttributes::with_mode(mode);
        let made = self.vfs.make(&ROOT, directory, name.as_bytes(), NewNode::Directory(&set));
        let node = made.value.unwrap().node;
        self.give_away(&node.handle, mode)
    }

    fn give_away(&self, handle: &NodeHandle, mode: u32) -> VfsNode {
        let owner = SetAttributes { uid: Some(OWNER.uid), gid: Some(OWNER.gid), ..SetAttributes::default() };
        self.set(&ROOT, handle, &owner).value.unwrap();
        let set = self.set(&ROOT, handle, &SetAttributes::with_mode(mode));
        set.value.unwrap();
        VfsNode { handle: *handle, attributes: set.after.unwrap() }
    }

    pub(crate) fn set(&self, caller: &FsCred<'_>, handle: &NodeHandle, set: &SetAttributes) -> WccResult<()> {
        self.vfs.set_attributes(caller, handle, set, None)
    }

    pub(crate) fn write(
        &self,
        caller: &FsCred<'_>,
        handle: &NodeHandle,
        offset: u64,
        data: &[u8],
    ) -> Result<u32, Error> {
        self.vfs.write(caller, handle, offset, data, Stability::Unstable).value.map(|written| written.count)
    }

    pub(crate) fn read(&self, handle: &NodeHandle, offset: u64, count: u32) -> (Vec<u8>, bool) {
        let mut data = Vec::new();
        let read = self.vfs.read(&ROOT, handle, offset, count, &mut data).value.unwrap();
        assert_eq!(read.count as usize, data.len());
        (data, read.eof)
    }

    pub(crate) fn lookup(&self, directory: &NodeHandle, name: &str) -> Result<VfsNode, Error> {
        self.vfs.lookup(&ROOT, directory, name.as_bytes()).value
    }

    pub(crate) fn guarded(
        &self,
        caller: &FsCred<'_>,
        directory: &NodeHandle,
        name: &str,
        mode: u32,
    ) -> Result<CreatedNode, Error> {
        let set = SetAttributes::with_mode(mode);
        self.vfs.create(caller, directory, name.as_bytes(), CreateMode::Guarded(&set)).value
    }

    /// All names after `cookie`, at most `count` per call, with their cookies.
    pub(crate) fn names(
        &self,
        directory: &NodeHandle,
        cookie: u64,
        count: usize,
    ) -> (Vec<(String, u64)>, bool) {
        names(&*self.vfs, directory, cookie, count)
    }
}

/// At most `count` names after `cookie` with their cookies, and whether the directory ends with
/// them.
pub(crate) fn names(
    vfs: &dyn Vfs,
    directory: &NodeHandle,
    cookie: u64,
    count: usize,
) -> (Vec<(String, u64)>, bool) {
    let mut names = Vec::new();
    let listed = vfs.read_directory(&ROOT, directory, cookie, ReaddirDetail::Names, &mut |entry| {
        if names.len() == count {
            return ControlFlow::Break(());
        }
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.cookie));
        ControlFlow::Continue(())
    });
    (names, listed.value.unwrap())
}
