//! The files of the operations, created through the measured server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use curt_client::mounting::{ExportSource, mount};
use curt_client::protocol::v3::NfsV3;
use curt_client::protocol::{Answer, CreateRequest, OpenCaller, OpenContext, Protocol};
use curt_client::threads::MonotonicClock;
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{AddressFamily, Interrupt, NoTransportEvents, PortSource, ServerName, TcpOptions};
use curt_types::{FileHandle, SetAttributes, Stability};

use super::connection::connect;
use super::load::{BLOCK_BYTES, CONNECTIONS_MAX, LISTED_NAMES, OUTSTANDING_MAX};
use super::operations::block;

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
pub(super) struct LatencyExport {
    nfs: Arc<NfsV3>,
    pub(super) address: SocketAddr,
    pub(super) root: FileHandle,
    user: OpenContext,
    never: Interrupt,
}

impl LatencyExport {
    /// Mounts `path` of the server at `port`; without `mount_port` its portmapper is queried for
    /// MOUNT.
    pub(super) fn mount(
        host: &str,
        port: u16,
        mount_port: Option<u16>,
        path: &[u8],
        credential: &RpcCredential,
    ) -> Result<Self> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let server =
            host.parse::<IpAddr>().map_or_else(|_| ServerName::Name(host.to_owned()), ServerName::Address);
        let source = ExportSource {
            path: path.to_vec(),
            transport: TcpOptions::new(server, PortSource::Fixed(port)),
            nfs_port: Some(port),
            mount_server: None,
            mount_family: AddressFamily::Any,
            mount_port,
            credential: credential.clone(),
            timeout: MOUNT_TIMEOUT,
        };
        let (events, clock) = (Arc::new(NoTransportEvents), Arc::new(MonotonicClock));
        let mounted = mount(&source, events, clock, &Interrupt::never())?;
        let stream = connect((host, port)).with_context(|| format!("cannot connect to {host}:{port}"))?;
        Ok(Self {
            nfs: NfsV3::new(mounted.rpc),
            address: stream.peer_addr()?,
            root: mounted.root,
            user: OpenContext { owner: 0, credential: Arc::new(credential.clone()) },
            never: Interrupt::never(),
        })
    }

    fn caller(&self) -> OpenCaller<'_> {
        OpenCaller { open: &self.user, interrupt: &self.never }
    }

    pub(super) fn credential(&self) -> &RpcCredential {
        &self.user.credential
    }

    pub(super) fn find(&self, directory: &FileHandle, name: &str) -> Result<FileHandle> {
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
            let written = self.nfs.write(self.caller(), &file, offset, Stability::Unstable, &data);
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

    pub(super) fn remove(&self, directory: &FileHandle, name: &str) -> Result<()> {
        let removed = self.nfs.remove(self.caller().rpc(), directory, name.as_bytes(), false);
        done(removed).with_context(|| name.to_owned())
    }

    fn remove_directory(&self, directory: &FileHandle, name: &str) -> Result<()> {
        let removed = self.nfs.remove(self.caller().rpc(), directory, name.as_bytes(), true);
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
        Ok(Self {
            files: files.collect::<Result<_>>()?,
            made: make_directory(&directory, MADE)?,
            directory,
            listed,
            export,
            name,
        })
    }

    /// Reads back the data that the slots of a connection have written, which have to be of this
    /// generation.
    pub(super) fn verify(&self, connection: usize, slots: usize, generation: u64) -> Result<()> {
        let (export, [_, file]) = (&self.export, &self.files[connection]);
        for slot in 0..slots {
            let offset = (slot * BLOCK_BYTES) as u64;
            let range = offset..offset + BLOCK_BYTES as u64;
            let read = export.nfs.read(export.caller(), file, range, None)?.context("no data")?;
            let read = read.outcome.map_err(|fault| anyhow!("{fault:?}"))?;
            ensure!(
                *read.bytes == *block(slot, generation, BLOCK_BYTES),
                "block {slot} of {} is not what was written",
                written_name(connection)
            );
        }
        Ok(())
    }

    /// Removes it. A remaining name in the directory for created names is an error.
    pub(super) fn remove(&self) -> Result<()> {
        let (export, directory) = (&self.export, &self.directory);
        for number in 0..LISTED_NAMES {
            export.remove(&self.listed, &listed_name(number))?;
        }
        for connection in 0..CONNECTIONS_MAX {
            export.remove(directory, &file_name(connection))?;
            export.remove(directory, &written_name(connection))?;
        }
        export.remove_directory(directory, LISTED)?;
        export.remove_directory(directory, MADE)?;
        export.remove_directory(&export.root, &self.name)
    }
}
