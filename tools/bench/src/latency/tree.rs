//! The files of the operations, created through the measured server, call by call.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use curt_client::mounting::{ExportSource, mount};
use curt_client::threads::MonotonicClock;
use curt_proto::nfs3::{
    CommitArguments, CommitOk, CreateArguments, CreateHow, CreateOk, LookupOk, MkdirArguments, NfsFh3,
    NfsProcedure, ReadOk, Sattr, StableHow, WccData, WriteOk,
};
use curt_rpc::auth::RpcCredential;
use curt_rpc::client::{AddressFamily, Interrupt, NoTransportEvents, PortSource, ServerName, TcpOptions};
use curt_xdr::Encode;

use super::connection::{connect, exchange};
use super::load::{BLOCK_BYTES, CONNECTIONS_MAX, LISTED_NAMES, OUTSTANDING_MAX};
use super::operations::{block, call, decoded, named, read, write};

/// Timeout of mounting.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// Blocks of each file: one for each slot, and one that is never read, so that no READ reaches the
/// end.
const FILE_BLOCKS: usize = OUTSTANDING_MAX + 1;
/// Bytes of each file.
pub(super) const FILE_BYTES: u64 = (FILE_BLOCKS * BLOCK_BYTES) as u64;
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
    stream: RefCell<TcpStream>,
    pub(super) address: SocketAddr,
    pub(super) root: NfsFh3,
    credential: RpcCredential,
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
            address: stream.peer_addr()?,
            stream: RefCell::new(stream),
            root: NfsFh3::new(mounted.root.as_bytes())?,
            credential: credential.clone(),
        })
    }

    /// Makes a call, and passes its reply record to `decode`.
    fn reply<T>(&self, call: &[u8], decode: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        decode(&exchange(&mut self.stream.borrow_mut(), call)?)
    }

    fn call<T>(
        &self,
        procedure: NfsProcedure,
        arguments: &dyn Encode,
        decode: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let call = call(&self.credential, procedure, arguments);
        self.reply(&call, decode).with_context(|| procedure.name())
    }

    pub(super) fn find(&self, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
        let place = named(directory, name.as_bytes())?;
        self.call(NfsProcedure::Lookup, &place, |reply| Ok(decoded::<LookupOk>(reply)?.object))
    }

    /// The object of CREATE or MKDIR; a server need not return it (RFC 1813 section 3.3.8).
    fn made(
        &self,
        directory: NfsFh3,
        name: &str,
        procedure: NfsProcedure,
        arguments: &dyn Encode,
    ) -> Result<NfsFh3> {
        let made = self.call(procedure, arguments, |reply| Ok(decoded::<CreateOk>(reply)?.object))?;
        made.map_or_else(|| self.find(directory, name), Ok)
    }

    pub(super) fn make_file(&self, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
        let (place, how) = (named(directory, name.as_bytes())?, CreateHow::Guarded(mode(0o644)));
        self.made(directory, name, NfsProcedure::Create, &CreateArguments { place, how })
    }

    fn make_directory(&self, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
        let (place, attributes) = (named(directory, name.as_bytes())?, mode(0o755));
        self.made(directory, name, NfsProcedure::Mkdir, &MkdirArguments { place, attributes })
    }

    /// Creates a file of [`FILE_BYTES`].
    fn make_filled(&self, directory: NfsFh3, name: &str) -> Result<NfsFh3> {
        let file = self.make_file(directory, name)?;
        for number in 0..FILE_BLOCKS {
            let (offset, data) = (number * BLOCK_BYTES, block(number, 0, BLOCK_BYTES));
            let call = write(&self.credential, file, offset, StableHow::Unstable, &data)?;
            let written = self.reply(&call, |reply| Ok(decoded::<WriteOk>(reply)?.count))?;
            ensure!(usize::try_from(written)? == BLOCK_BYTES, "{written} bytes written");
        }
        let (offset, count) = (0, 0);
        let all = CommitArguments { file, offset, count };
        self.call(NfsProcedure::Commit, &all, |reply| decoded::<CommitOk>(reply).map(drop))?;
        Ok(file)
    }

    /// Removes a name by REMOVE or RMDIR.
    pub(super) fn remove(&self, procedure: NfsProcedure, directory: NfsFh3, name: &str) -> Result<()> {
        self.change(procedure, &named(directory, name.as_bytes())?)
    }

    /// Makes a call that changes only attributes.
    pub(super) fn change(&self, procedure: NfsProcedure, arguments: &dyn Encode) -> Result<()> {
        self.call(procedure, arguments, |reply| decoded::<WccData>(reply).map(drop))
    }
}

fn mode(mode: u32) -> Sattr {
    Sattr { mode: Some(mode), ..Sattr::default() }
}

/// A server's files.
pub(super) struct LatencyTree {
    /// The name of the directory in the export.
    pub(super) name: String,
    pub(super) export: LatencyExport,
    /// The directory of all the files.
    pub(super) directory: NfsFh3,
    /// Two files for each connection: one is read and never written, the other one written.
    pub(super) files: Vec<[NfsFh3; 2]>,
    /// A directory of [`LISTED_NAMES`] empty files.
    pub(super) listed: NfsFh3,
    /// An empty directory, for names that are created and removed.
    pub(super) made: NfsFh3,
}

impl LatencyTree {
    /// Creates it below the root of an export. An existing name of an earlier run is an error.
    pub(super) fn make(export: LatencyExport, name: String) -> Result<Self> {
        let directory = export.make_directory(export.root, &name)?;
        let listed = export.make_directory(directory, LISTED)?;
        for number in 0..LISTED_NAMES {
            export.make_file(listed, &listed_name(number))?;
        }
        let files = (0..CONNECTIONS_MAX).map(|connection| {
            let read = export.make_filled(directory, &file_name(connection))?;
            Ok([read, export.make_filled(directory, &written_name(connection))?])
        });
        Ok(Self {
            files: files.collect::<Result<_>>()?,
            made: export.make_directory(directory, MADE)?,
            directory,
            listed,
            export,
            name,
        })
    }

    /// Reads back the data that the slots of a connection have written, which have to be of this
    /// generation.
    pub(super) fn verify(&self, connection: usize, slots: usize, generation: u64) -> Result<()> {
        let [_, file] = self.files[connection];
        for slot in 0..slots {
            let call = read(&self.export.credential, file, slot * BLOCK_BYTES, BLOCK_BYTES)?;
            let written = block(slot, generation, BLOCK_BYTES);
            let is_written = |reply: &[u8]| Ok(decoded::<ReadOk<'_>>(reply)?.data.bytes() == written);
            ensure!(
                self.export.reply(&call, is_written)?,
                "block {slot} of {} is not what was written",
                written_name(connection)
            );
        }
        Ok(())
    }

    /// Removes it. A remaining name in the directory for created names is an error.
    pub(super) fn remove(&self) -> Result<()> {
        let (export, directory) = (&self.export, self.directory);
        for number in 0..LISTED_NAMES {
            export.remove(NfsProcedure::Remove, self.listed, &listed_name(number))?;
        }
        for connection in 0..CONNECTIONS_MAX {
            export.remove(NfsProcedure::Remove, directory, &file_name(connection))?;
            export.remove(NfsProcedure::Remove, directory, &written_name(connection))?;
        }
        export.remove(NfsProcedure::Rmdir, directory, LISTED)?;
        export.remove(NfsProcedure::Rmdir, directory, MADE)?;
        export.remove(NfsProcedure::Rmdir, export.root, &self.name)
    }
}
