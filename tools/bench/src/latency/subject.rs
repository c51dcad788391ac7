//! The subjects: the echo, the floor, Curt's server with and without its file cache, and other
//! servers; and the files of the operations, created through the measured server.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use curt_bench::processes::{Curt, Daemon, Testbed, processor_time};
use curt_client::mounting::ExportSource;
use curt_client::protocol::v3::mounting::{Nfs3Mount, mount};
use curt_client::protocol::{Answer, CreateRequest, OpenCaller, OpenContext, Protocol, WriteRequest};
use curt_client::threads::MonotonicClock;
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{Interrupt, NoTransportEvents, PortSource, TcpOptions};
use curt_types::{FileHandle, SetAttributes, Stability};

use super::connection::{LatencyConnection, connect, exchange};
use super::echo::{self, EchoTask};
use super::operations::{
    BLOCK_BYTES, CONNECTIONS_MAX, LISTED_NAMES, LatencyOperation, OUTSTANDING_MAX, PreparedCalls,
    ReplyChecks, block,
};
use super::rounds::LoadShape;
use super::session::{LatencySession, OpenStateids, SessionPlace};

/// Another server: `NAME=HOST:PORT/PATH[,pid=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PeerServer {
    pub(super) name: String,
    /// `HOST:PORT`.
    address: String,
    path: String,
    pid: Option<u32>,
}

impl PeerServer {
    pub(super) fn parse(text: &str) -> Result<Self> {
        Self::parts(text).context("expected NAME=HOST:PORT/PATH or NAME=HOST:PORT/PATH,pid=N")
    }

    fn parts(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
        let (place, pid) = match rest.rsplit_once(",pid=") {
            Some((place, pid)) => (place, Some(pid.parse().ok()?)),
            None => (rest, None),
        };
        let (address, path) = place.split_once('/')?;
        address.rsplit_once(':')?.1.parse::<u16>().ok()?;
        Some(Self { name: name.to_owned(), address: address.to_owned(), path: format!("/{path}"), pid })
    }
}

/// The version that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LatencyVersion {
    /// NFSv3.
    #[value(name = "3")]
    V3,
    /// NFSv4.1: each operation after SEQUENCE and PUTFH.
    #[value(name = "4.1")]
    V41,
}

/// The kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubjectRole {
    /// Receives and sends.
    Echo,
    /// Makes the system calls of an operation as well.
    Floor,
    /// `curt serve`.
    Curt,
    /// `curt serve --filecache off`.
    Uncached,
    /// Another server.
    Peer,
    /// System calls on a mount of Curt's server.
    Mount,
}

/// The directory of the servers' files, and the caller of the requests.
pub(super) struct SubjectSetup<'a> {
    /// The exported directory.
    pub(super) directory: &'a Path,
    pub(super) credential: &'a RpcCredential,
    /// The prefix of each tree's name.
    pub(super) prefix: &'a str,
    pub(super) version: LatencyVersion,
}

/// A subject.
pub(super) struct LatencySubject {
    pub(super) role: SubjectRole,
    pub(super) name: String,
    /// Its process id, if it runs on this machine and is known.
    pub(super) pid: Option<u32>,
    pub(super) tree: LatencyTree,
    /// The echo does not run in its tree.
    pub(super) address: SocketAddr,
    /// The directory of the tree on this machine, for the floor.
    directory: PathBuf,
    version: LatencyVersion,
    /// The path of the tree from the root of the server.
    path: Vec<u8>,
    /// The opens of each connection that no CLOSE has ended.
    opened: Vec<OpenStateids>,
    pub(super) world: Option<Testbed>,
    _echo: Option<Daemon>,
}

impl LatencySubject {
    /// `curt serve` on loopback.
    pub(super) fn serving(setup: &SubjectSetup<'_>, role: SubjectRole) -> Result<Self> {
        let (name, cache) =
            if role == SubjectRole::Uncached { ("filecache-off", "off") } else { ("curt", "on") };
        let mut arguments = vec![setup.directory.as_os_str()];
        arguments.extend(["--insecure", "--squash", "none", "--filecache", cache].map(OsStr::new));
        let world = Testbed::serving_with(&Curt::in_same_directory()?, setup.directory, None, &arguments)?;
        let port = world.port().context("the server was started here")?;
        let subject = Self::new(setup, role, name, setup.export(port)?)?;
        Ok(Self { pid: world.server_pid(), world: Some(world), ..subject })
    }

    /// A running server.
    pub(super) fn peer(setup: &SubjectSetup<'_>, peer: &PeerServer) -> Result<Self> {
        let (host, port) = peer.address.rsplit_once(':').context("an address has a port")?;
        let export = LatencyExport::mount(host, port.parse()?, None, peer.path.as_bytes(), setup.credential);
        let export = export.with_context(|| peer.name.clone())?;
        let subject = Self::new(setup, SubjectRole::Peer, &peer.name, export)?;
        let path = [peer.path.as_bytes(), b"/", subject.tree.name.as_bytes()].concat();
        Ok(Self { pid: peer.pid, path, ..subject })
    }

    /// The echo or the floor, whose replies are prepared ones of `curt`.
    pub(super) fn bare(setup: &SubjectSetup<'_>, role: SubjectRole, curt: &Self) -> Result<Self> {
        let name = if role == SubjectRole::Echo { "echo" } else { "floor" };
        let (echo, address) = echo::start()?;
        let subject = Self::new(setup, role, name, setup.export(curt.address.port())?)?;
        Ok(Self { pid: Some(echo.pid()), address, _echo: Some(echo), ..subject })
    }

    fn new(setup: &SubjectSetup<'_>, role: SubjectRole, name: &str, export: LatencyExport) -> Result<Self> {
        let (tree_name, address) = (format!("{}-{name}", setup.prefix), export.address);
        let directory = setup.directory.join(&tree_name);
        let tree = LatencyTree::make(export, tree_name);
        let tree = tree.with_context(|| format!("{name}: cannot make the files to measure with"))?;
        let (name, path) = (name.to_owned(), directory.as_os_str().as_encoded_bytes().to_owned());
        let (version, world) = (setup.version, None);
        let opened = (0..CONNECTIONS_MAX).map(|_| Rc::new(RefCell::default())).collect();
        Ok(Self {
            role,
            name,
            pid: None,
            tree,
            address,
            directory,
            version,
            path,
            opened,
            world,
            _echo: None,
        })
    }

    /// The connections of a shape.
    pub(super) fn connections(
        &self,
        operation: LatencyOperation,
        shape: LoadShape,
        generation: u64,
    ) -> Result<Vec<LatencyConnection>> {
        let is_bare = matches!(self.role, SubjectRole::Echo | SubjectRole::Floor);
        let reply = is_bare.then(|| self.reply_to(operation, generation)).transpose()?;
        let connection = |connection| {
            let Some(reply) = reply.clone() else {
                let mut stream = connect(self.address)?;
                let (calls, checks) = self.prepared(&mut stream, operation, connection, shape, generation)?;
                return Ok(LatencyConnection::new(stream, calls, checks));
            };
            let mut server = connect(self.tree.export.address)?;
            let (calls, checks) = self.prepared(&mut server, operation, connection, shape, generation)?;
            let (work, checks) = match self.role {
                SubjectRole::Echo => (None, ReplyChecks::Same(reply.clone())),
                _ => (Some(calls.work(operation, &self.directory, connection, &reply)?), checks),
            };
            let task = EchoTask { call_bytes: calls.sample().len(), reply, work };
            Ok(LatencyConnection::new(echo::connect(self.address, &task)?, calls, checks))
        };
        (0..shape.connections).map(connection).collect()
    }

    /// The calls of a connection, and the check of their replies. A session is opened on `server`.
    fn prepared(
        &self,
        server: &mut TcpStream,
        operation: LatencyOperation,
        connection: usize,
        shape: LoadShape,
        generation: u64,
    ) -> Result<(PreparedCalls, ReplyChecks)> {
        let slots = shape.outstanding;
        if self.version == LatencyVersion::V3 {
            let calls = PreparedCalls::new(operation, &self.tree, connection, slots, generation)?;
            return Ok((calls, ReplyChecks::new(operation, slots)));
        }
        let (path, owner, credential) = (&self.path, &self.tree.name, self.tree.export.credential());
        let place = SessionPlace { path, credential, owner };
        let session = LatencySession::begin(server, &place, connection, shape, generation)?;
        let opened = &self.opened[connection];
        let calls = PreparedCalls::in_session(operation, &session, opened, connection, generation)?;
        Ok((calls, ReplyChecks::in_session(operation, slots, opened)))
    }

    /// The reply of Curt's server to the first call of a connection. Its change is undone.
    fn reply_to(&self, operation: LatencyOperation, generation: u64) -> Result<Vec<u8>> {
        let mut stream = connect(self.tree.export.address)?;
        let shape = LoadShape { outstanding: 1, connections: 1 };
        let mut reply_to = |operation| {
            let (mut calls, mut checks) = self.prepared(&mut stream, operation, 0, shape, generation)?;
            let mut call = Vec::new();
            let number = calls.put(0, &mut call);
            let reply = exchange(&mut stream, &call)?;
            checks.check(number, &reply)?;
            anyhow::Ok(reply)
        };
        // What has to come before it, and what undoes it.
        let (before, after) = match operation {
            LatencyOperation::Remove => (Some(LatencyOperation::Create), None),
            LatencyOperation::Create => (None, Some(LatencyOperation::Remove)),
            LatencyOperation::Close => (Some(LatencyOperation::Open), None),
            LatencyOperation::Open => (None, Some(LatencyOperation::Close)),
            _ => (None, None),
        };
        before.map(&mut reply_to).transpose()?;
        let reply = reply_to(operation)?;
        after.map(&mut reply_to).transpose()?;
        Ok(reply)
    }

    /// The processor time of its process, if known.
    pub(super) fn processor_time(&self) -> Option<Duration> {
        processor_time(self.pid?).ok()
    }
}

impl SubjectSetup<'_> {
    /// The export of Curt's server at `port`.
    fn export(&self, port: u16) -> Result<LatencyExport> {
        let path = self.directory.as_os_str().as_encoded_bytes();
        LatencyExport::mount("127.0.0.1", port, Some(port), path, self.credential)
    }
}

/// Timeout of mounting.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// Blocks of each file: one for each slot, and one that is never read, so that no READ reaches the
/// end.
const FILE_BLOCKS: usize = OUTSTANDING_MAX + 1;
/// The directory for listings.
pub(super) const LISTED: &str = "listed";
/// The directory for created names.
pub(super) const MADE: &str = "made";

/// The file that a connection reads.
pub(super) fn file_name(connection: usize) -> String {
    format!("file-{connection:02}")
}

/// The file that a connection writes.
pub(super) fn written_name(connection: usize) -> String {
    format!("written-{connection:02}")
}

/// A name in the directory for listings.
pub(super) fn listed_name(number: usize) -> String {
    format!("name-{number:03}")
}

/// An export of a server, for the calls before and after the measurement.
pub(crate) struct LatencyExport {
    nfs: Arc<dyn Protocol>,
    pub(super) address: SocketAddr,
    pub(crate) root: FileHandle,
    user: OpenContext,
    never: Interrupt,
}

impl LatencyExport {
    /// Mounts `path` of the server at `port`; without `mount_port` its portmapper is queried for
    /// MOUNT.
    pub(crate) fn mount(
        host: &str,
        port: u16,
        mount_port: Option<u16>,
        path: &[u8],
        credential: &RpcCredential,
    ) -> Result<Self> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let transport = TcpOptions::new(host.into(), PortSource::Fixed(port));
        let source = ExportSource::new(path, transport, credential.clone(), MOUNT_TIMEOUT);
        let source = ExportSource { nfs_port: Some(port), mount_port, ..source };
        let user = OpenContext { owner: 0, credential: Arc::new(credential.clone()) };
        let (events, never) = (Arc::new(NoTransportEvents), Interrupt::never());
        let mounted =
            mount(&source, Nfs3Mount { locks: &|| None, clock: Arc::new(MonotonicClock) }, events, &never)?;
        let stream = connect((host, port)).with_context(|| format!("cannot connect to {host}:{port}"))?;
        let (nfs, address) = (mounted.protocol, stream.peer_addr()?);
        Ok(Self { nfs, address, root: mounted.root, user, never })
    }

    fn caller(&self) -> OpenCaller<'_> {
        OpenCaller { open: &self.user, interrupt: &self.never }
    }

    pub(super) fn credential(&self) -> &RpcCredential {
        &self.user.credential
    }

    pub(crate) fn find(&self, directory: &FileHandle, name: &str) -> Result<FileHandle> {
        let found = self.nfs.find(self.caller().rpc(), directory, name.as_bytes());
        Ok(done(found).with_context(|| name.to_owned())?.handle)
    }

    fn make(&self, directory: &FileHandle, name: &str, new: CreateRequest<'_>) -> Result<FileHandle> {
        let made = done(self.nfs.create(self.caller().rpc(), directory, name.as_bytes(), &new));
        let made = made.and_then(|made| made.map_err(|fault| anyhow!("{fault:?}")));
        Ok(made.with_context(|| name.to_owned())?.handle)
    }

    pub(super) fn make_file(&self, directory: &FileHandle, name: &str) -> Result<FileHandle> {
        self.make(directory, name, CreateRequest::file(0o644))
    }

    /// Creates a file of [`FILE_BLOCKS`].
    fn make_filled(&self, directory: &FileHandle, name: &str) -> Result<FileHandle> {
        let file = self.make_file(directory, name)?;
        for number in 0..FILE_BLOCKS {
            let (offset, data) = ((number * BLOCK_BYTES) as u64, block(number, 0, BLOCK_BYTES));
            let write = WriteRequest {
                offset,
                stability: Stability::Unstable,
                bytes: &data,
                set: None,
                is_lost: &|| false,
            };
            let written = self.nfs.write(self.caller(), &file, write);
            let count = done(written)?.count;
            ensure!(usize::try_from(count)? == BLOCK_BYTES, "{count} bytes written");
        }
        done(self.nfs.commit(self.caller(), &file))?;
        Ok(file)
    }

    pub(super) fn empty(&self, file: &FileHandle) -> Result<()> {
        let attributes = SetAttributes { size: Some(0), ..SetAttributes::default() };
        done(self.nfs.set(self.caller().rpc(), file, &attributes))
    }

    pub(super) fn remove(&self, directory: &FileHandle, name: &str, is_directory: bool) -> Result<()> {
        let removed = self.nfs.remove(self.caller().rpc(), directory, name.as_bytes(), is_directory);
        done(removed).with_context(|| name.to_owned())
    }
}

/// The result of a call that succeeded.
fn done<T, A>(answer: Answer<T, A>) -> Result<T> {
    answer?.outcome.map_err(|fault| anyhow!("{fault:?}"))
}

/// A server's files.
pub(super) struct LatencyTree {
    /// The name of the directory in the export.
    pub(super) name: String,
    pub(super) export: LatencyExport,
    /// The directory of all the files.
    pub(super) directory: FileHandle,
    /// Two files for each connection: one is read and never written, the other one written.
    pub(super) files: Vec<[FileHandle; 2]>,
    /// A directory of [`LISTED_NAMES`] empty files.
    pub(super) listed: FileHandle,
    /// An empty directory, for names that are created and removed.
    pub(super) made: FileHandle,
}

impl LatencyTree {
    /// Creates it below the root of an export. An existing name of an earlier run is an error.
    pub(super) fn make(export: LatencyExport, name: String) -> Result<Self> {
        let make_directory =
            |parent: &FileHandle, name: &str| export.make(parent, name, CreateRequest::directory(0o755));
        let directory = make_directory(&export.root, &name)?;
        let listed = make_directory(&directory, LISTED)?;
        for number in 0..LISTED_NAMES {
            export.make_file(&listed, &listed_name(number))?;
        }
        let files = (0..CONNECTIONS_MAX).map(|connection| {
            let read = export.make_filled(&directory, &file_name(connection))?;
            Ok([read, export.make_filled(&directory, &written_name(connection))?])
        });
        let (files, made) = (files.collect::<Result<_>>()?, make_directory(&directory, MADE)?);
        Ok(Self { name, export, directory, files, listed, made })
    }

    /// Reads back the data that the slots of all connections of a shape have written, which have to
    /// be of this generation.
    pub(super) fn verify(&self, shape: LoadShape, generation: u64) -> Result<()> {
        let export = &self.export;
        for (connection, [_, file]) in self.files.iter().enumerate().take(shape.connections) {
            for slot in 0..shape.outstanding {
                let offset = (slot * BLOCK_BYTES) as u64;
                let range = offset..offset + BLOCK_BYTES as u64;
                let read = export.nfs.read(export.caller(), file, range, None)?.context("no data")?;
                let read = read.outcome.map_err(|fault| anyhow!("{fault:?}"))?;
                let is_same = *read.bytes == *block(slot, generation, BLOCK_BYTES);
                ensure!(is_same, "block {slot} of file {connection} is not what was written");
            }
        }
        Ok(())
    }

    /// Removes it. A remaining name in the directory for created names is an error.
    pub(super) fn remove(&self) -> Result<()> {
        let (export, directory) = (&self.export, &self.directory);
        for number in 0..LISTED_NAMES {
            export.remove(&self.listed, &listed_name(number), false)?;
        }
        for connection in 0..CONNECTIONS_MAX {
            export.remove(directory, &file_name(connection), false)?;
            export.remove(directory, &written_name(connection), false)?;
        }
        [LISTED, MADE].iter().try_for_each(|name| export.remove(directory, name, true))?;
        export.remove(&export.root, &self.name, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_parsed_with_or_without_their_process() {
        let peer = |pid| PeerServer {
            name: "ganesha".into(),
            address: "127.0.0.1:2049".into(),
            path: "/srv/a,b".into(),
            pid,
        };
        let parsed = |text| PeerServer::parse(text).expect("it is right");
        assert_eq!(parsed("ganesha=127.0.0.1:2049/srv/a,b"), peer(None));
        assert_eq!(parsed("ganesha=127.0.0.1:2049/srv/a,b,pid=12"), peer(Some(12)));
        for wrong in ["ganesha", "g=host/path", "g=host:1", "=h:1/p", "g=h:1/p,pid=x", "g=h:99999/p"] {
            assert!(PeerServer::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_may_have_an_ipv6_address() {
        let peer = PeerServer::parse("x=[::1]:2049/").expect("it is right");
        assert_eq!((peer.address.as_str(), peer.path.as_str()), ("[::1]:2049", "/"));
    }
}
