//! A tree with one object of each type, and a valid call of each procedure for any of them.

use curt_proto::nfs3::{
    AccessArguments, CommitArguments, Cookie, CookieVerf3, CreateArguments, CreateHow, CreateOk, DirOpArgs,
    Filename, LinkArguments, MkdirArguments, MknodArguments, MknodData, NfsFh3, NfsPath, NfsProcedure,
    NfsResult, NfsStat3, ReadArguments, ReaddirArguments, ReaddirPlusArguments, RenameArguments, Sattr,
    SetattrArguments, SpecData, StableHow, SymlinkArguments, WccData, WriteArguments,
};
use curt_types::Access;
use curt_xdr::{Encode, Opaque};

use crate::wire::{Refused, Served, Wire, memory};

/// A server and the contents of its tree.
pub(crate) struct World {
    pub(crate) served: Served,
    pub(crate) wire: Wire,
    pub(crate) root: NfsFh3,
    pub(crate) objects: Vec<(&'static str, NfsFh3)>,
}

/// Every type that can be created, by its name in the tree.
pub(crate) const TYPES: [&str; 7] = ["file", "directory", "link", "fifo", "socket", "block", "character"];

impl World {
    pub(crate) fn new() -> Self {
        let served = Served::new(vec![memory("/one", 1), memory("/two", 2)]);
        let mut wire = served.connect();
        let root = wire.mount("/one");
        let objects = TYPES.map(|name| (name, make(&mut wire, root, name))).to_vec();
        Self { served, wire, root, objects }
    }

    pub(crate) fn object(&self, name: &str) -> NfsFh3 {
        self.objects.iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Checks that the calls did no harm: this connection, another, and the tree are as before.
    pub(crate) fn is_unharmed(&mut self) {
        let mut other = self.served.connect();
        for (name, handle) in &self.objects {
            for wire in [&mut self.wire, &mut other] {
                match wire.lookup(self.root, name.as_bytes()) {
                    NfsResult::Ok(found) => assert_eq!(found.object, *handle, "{name}"),
                    NfsResult::Failed(status, _) => panic!("{name}: {status}"),
                }
            }
        }
    }
}

/// Creates the object of that type and name.
fn make(wire: &mut Wire, directory: NfsFh3, name: &str) -> NfsFh3 {
    let place = DirOpArgs { directory, name: Filename::new(name.as_bytes()).unwrap() };
    let attributes = Sattr { mode: Some(0o777), ..Sattr::default() };
    let device = SpecData { major: 1, minor: 3 };
    let node = |what| (NfsProcedure::Mknod, bytes(&MknodArguments { place, what }));
    let (procedure, arguments) = match name {
        "file" => {
            let how = CreateHow::Guarded(attributes);
            (NfsProcedure::Create, bytes(&CreateArguments { place, how }))
        }
        "directory" => (NfsProcedure::Mkdir, bytes(&MkdirArguments { place, attributes })),
        "link" => {
            let target = NfsPath::new(b"/etc/passwd").unwrap();
            let arguments = SymlinkArguments { place, attributes, target };
            (NfsProcedure::Symlink, bytes(&arguments))
        }
        "fifo" => node(MknodData::Fifo(attributes)),
        "socket" => node(MknodData::Socket(attributes)),
        "block" => node(MknodData::BlockDevice(attributes, device)),
        _ => node(MknodData::CharacterDevice(attributes, device)),
    };
    match wire.ask::<CreateOk, WccData>(procedure, &Raw(&arguments)) {
        NfsResult::Ok(made) => made.object.unwrap(),
        NfsResult::Failed(status, _) => panic!("{name}: {status}"),
    }
}

/// Arguments that are already encoded.
pub(crate) struct Raw<'a>(pub(crate) &'a [u8]);

impl Encode for Raw<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.0);
    }
}

pub(crate) fn bytes(value: &dyn Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

/// Arguments that a client could send: for `object`, with `name` for each name, and a second name.
pub(crate) fn arguments(procedure: NfsProcedure, object: NfsFh3, name: &[u8], other: NfsFh3) -> Vec<u8> {
    let place = DirOpArgs { directory: object, name: Filename::new(name).unwrap() };
    let attributes = Sattr { mode: Some(0o700), ..Sattr::default() };
    match procedure {
        NfsProcedure::Lookup | NfsProcedure::Remove | NfsProcedure::Rmdir => bytes(&place),
        NfsProcedure::Create => {
            let how = CreateHow::Guarded(attributes);
            bytes(&CreateArguments { place, how })
        }
        NfsProcedure::Mkdir => bytes(&MkdirArguments { place, attributes }),
        NfsProcedure::Symlink => {
            bytes(&SymlinkArguments { place, attributes, target: NfsPath::new(b"target").unwrap() })
        }
        NfsProcedure::Mknod => bytes(&MknodArguments { place, what: MknodData::Fifo(attributes) }),
        NfsProcedure::Rename => {
            let to = DirOpArgs { directory: other, name: Filename::new(b"another name").unwrap() };
            bytes(&RenameArguments { from: place, to })
        }
        NfsProcedure::Link => bytes(&LinkArguments { file: other, place }),
        NfsProcedure::Null
        | NfsProcedure::Getattr
        | NfsProcedure::Setattr
        | NfsProcedure::Access
        | NfsProcedure::Readlink
        | NfsProcedure::Read
        | NfsProcedure::Write
        | NfsProcedure::Readdir
        | NfsProcedure::ReaddirPlus
        | NfsProcedure::Fsstat
        | NfsProcedure::Fsinfo
        | NfsProcedure::Pathconf
        | NfsProcedure::Commit => nameless(procedure, object),
    }
}

/// The arguments of the procedures that take no name.
fn nameless(procedure: NfsProcedure, object: NfsFh3) -> Vec<u8> {
    let verifier = CookieVerf3::default();
    match procedure {
        NfsProcedure::Null => Vec::new(),
        NfsProcedure::Getattr
        | NfsProcedure::Readlink
        | NfsProcedure::Fsstat
        | NfsProcedure::Fsinfo
        | NfsProcedure::Pathconf => bytes(&object),
        NfsProcedure::Setattr => {
            bytes(&SetattrArguments { object, attributes: Sattr::default(), guard: None })
        }
        NfsProcedure::Access => bytes(&AccessArguments { object, access: Access::ALL.bits() }),
        NfsProcedure::Read => bytes(&ReadArguments { file: object, offset: 0, count: 100 }),
        NfsProcedure::Write => bytes(&WriteArguments {
            file: object,
            offset: 0,
            count: 4,
            stable: StableHow::FileSync,
            data: Opaque::new(b"data").unwrap(),
        }),
        NfsProcedure::Readdir => {
            bytes(&ReaddirArguments { directory: object, cookie: Cookie(0), verifier, count: 4096 })
        }
        NfsProcedure::ReaddirPlus => bytes(&ReaddirPlusArguments {
            directory: object,
            cookie: Cookie(0),
            verifier,
            directory_count: 1024,
            max_count: 4096,
        }),
        NfsProcedure::Commit => bytes(&CommitArguments { file: object, offset: 0, count: 0 }),
        named => panic!("{named} takes a name"),
    }
}

/// The status at the beginning of results.
pub(crate) fn status(results: &[u8]) -> NfsStat3 {
    NfsStat3::from_number(u32::from_be_bytes(*results.first_chunk().unwrap())).expect("a status of the RFC")
}

/// Sends an NFS call with any bytes.
pub(crate) fn call(wire: &mut Wire, procedure: NfsProcedure, arguments: &[u8]) -> Result<NfsStat3, Refused> {
    use curt_proto::nfs3::{PROGRAM, VERSION};
    let results = wire.raw((PROGRAM, VERSION, procedure.number()), arguments)?;
    Ok(status(&results))
}
